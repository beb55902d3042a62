"""The promise itself: real clients, a real proxy, a native upstream, three dialects, streamed and not."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from litellm_toolguard import notes
from litellm_toolguard.demo.agents import Run, ToolOutput
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, Conversation, expand
from tests.harness.gateways import HISTORY, KINDS, RUN, Gateway, Gateways, guardrail, tool
from tests.harness.upstream import FINAL_WORDS, HEALTHY_ROUNDS

pytestmark = pytest.mark.proxy

both_forms = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)

CLEAN_FINISH = {"chat": "stop", "messages": "end_turn", "responses": "completed"}
HINT_3 = (
    "[toolguard] `read_file` was called 3 times with the same arguments and returned the same result each time. "
    "Calling it again will bring nothing new: use the result you have, do something else, or answer."
)
HINT_7 = HINT_3.replace("3 times", "7 times") + " The next one ends this run."
END_4 = (
    "[toolguard] This run was ended by the gateway: `read_file` was called 4 times with the same arguments and "
    "returned the same result each time. The agent was told and went on. Write a new message to continue."
)
END_7 = END_4.replace("4 times", "7 times")
NOT_EXECUTED = (
    "[toolguard] This call was not executed. `read_file` was called 4 times with the same arguments and returned the "
    "same result each time. Calling it again will bring nothing new: use the result you have, do something else, or "
    "answer."
)


def refused(_name: str, _arguments: Mapping[str, Any]) -> ToolOutput:
    return ToolOutput("Permission denied by user", is_error=True)


def frozen(_name: str, _arguments: Mapping[str, Any]) -> ToolOutput:
    return ToolOutput("FREEZE: no builds before Monday\nask the release desk")


def reads(name: str, arguments: Mapping[str, Any]) -> ToolOutput:
    return ToolOutput(f"{name} gave {arguments}")


def broken(_name: str, _arguments: Mapping[str, Any]) -> ToolOutput:
    return ToolOutput("Error: the backend is gone", is_error=True)


# ---------------------------------------------------------------------------------------------------- a looping agent


@every_dialect
@both_forms
def test_without_the_guard_a_looping_agent_reaches_its_cap(bare: Gateway, dialect: Dialect, stream: bool) -> None:
    """Nothing else in the way ends it."""
    run = bare.run(dialect, "looping", stream=stream)

    assert (run.ended, run.requests, len(run.executions)) == ("cap", 14, 14)


@every_dialect
@both_forms
def test_a_looping_agent_is_told_and_then_ended(guarded: Gateway, dialect: Dialect, stream: bool) -> None:
    """Four executions: the fifth call is held back and asked for again within the same request of the client. Then
    the end in words with a clean finish, no request to the provider for it."""
    run = guarded.run(dialect, "looping", stream=stream)

    assert (run.ended, run.requests, len(run.executions), run.text) == ("words", 5, 4, END_4)
    assert run.finish == CLEAN_FINISH[dialect]
    sent = [texts_of_results(dialect, request.json) for request in guarded.upstream.requests]
    assert sent == [*(expected_results(number) for number in range(5)), [*expected_results(4), NOT_EXECUTED]]


@pytest.fixture
def unblocking(gateways: Gateways) -> Gateway:
    """A proxy whose policy tells and ends, and holds nothing back in between."""
    return gateways.get("unblocking", guardrails=[guardrail({"detectors": {"repeated-call": {"hint": 3, "stop": 8}}})])


@every_dialect
@both_forms
def test_without_a_block_the_eighth_call_ends_the_run(unblocking: Gateway, dialect: Dialect, stream: bool) -> None:
    """It is not handed over. Each answer is asked for once."""
    run = unblocking.run(dialect, "looping", stream=stream)

    assert (run.ended, run.requests, len(run.executions), run.text) == ("words", 8, 7, END_7)
    assert run.finish == CLEAN_FINISH[dialect]
    sent = [texts_of_results(dialect, request.json) for request in unblocking.upstream.requests]
    assert sent == [expected_results(number) for number in range(8)]


@every_dialect
@both_forms
def test_the_end_is_machine_readable(guarded: Gateway, dialect: Dialect, stream: bool) -> None:
    """The official client's parsed object carries the field, and the response the header where its headers were not
    sent before the answer was judged."""
    run = guarded.run(dialect, "looping", stream=stream)

    assert run.toolguard is not None
    decision_id = run.toolguard["decision_id"]
    assert len(decision_id) == 12
    assert dict(run.toolguard) == {
        "action": "stop",
        "detector": "repeated-call",
        "tool": "read_file",
        "count": 5,
        "decision_id": decision_id,
    }
    said = f"action=stop; enforced=true; detector=repeated-call; tool=read_file; count=5; decision_id={decision_id}"
    assert run.headers.get("x-toolguard") == (None if stream else said)
    assert run.headers["x-litellm-applied-guardrails"] == "toolguard"


@every_dialect
@both_forms
def test_a_learning_agent_recovers_after_the_hint(guarded: Gateway, dialect: Dialect, stream: bool) -> None:
    """Three executions, then the model's own words."""
    run = guarded.run(dialect, "learning", stream=stream)

    assert (run.ended, len(run.executions), run.text) == ("words", 3, FINAL_WORDS)
    assert run.toolguard is None
    assert "action=hint" in run.headers["x-toolguard"]


@pytest.mark.parametrize(
    ("dialect", "kind"), [("chat", "native-messages"), ("messages", "native-chat"), ("responses", "native-messages")]
)
@both_forms
def test_over_litellms_bridges_it_ends_the_same(guarded: Gateway, dialect: Dialect, kind: str, stream: bool) -> None:
    """The dialect of the client decides, not that of the provider."""
    run = guarded.run(dialect, "looping", kind=kind, stream=stream)

    assert (run.ended, len(run.executions), run.text) == ("words", 4, END_4)
    assert run.toolguard is not None


def test_an_end_in_a_stream_cut_at_every_byte_is_the_same(guarded: Gateway) -> None:
    """What the upstream's chunks look like is no matter of the guard's."""
    guarded.upstream.chunking, guarded.upstream.pause = 1, 0.001
    try:
        run = guarded.run("messages", "looping", stream=True)
    finally:
        guarded.upstream.chunking, guarded.upstream.pause = None, 0.0

    assert (run.ended, len(run.executions), run.text) == ("words", 4, END_4)


# ----------------------------------------------------------------------------------------------------- healthy agents


@every_dialect
@both_forms
def test_a_healthy_run_ends_as_it_would_without_the_guard(
    bare: Gateway, guarded: Gateway, dialect: Dialect, stream: bool
) -> None:
    """Thirty different calls: no note, no header, nothing but the client's own requests at the upstream."""
    plain = bare.run(dialect, "healthy", stream=stream, max_requests=40, execute=reads)
    run = guarded.run(dialect, "healthy", stream=stream, max_requests=40, execute=reads)

    assert (run.ended, run.requests, run.text) == ("words", HEALTHY_ROUNDS + 1, FINAL_WORDS)
    assert run.executions == plain.executions
    assert "x-toolguard" not in run.headers
    assert notes.MARK.encode() not in b"".join(request.body for request in guarded.upstream.requests)


@every_dialect
def test_a_healthy_history_is_byte_identical_at_the_upstream(bare: Gateway, guarded: Gateway, dialect: Dialect) -> None:
    """Every boundary of a conversation of thirty calls, as the provider sees it, with and without the guard."""
    steps: list[dict[str, Any]] = [
        {"user": "go"},
        *({"tool": "read_file", "args": {"path": f"f{n}"}, "result": f"r{n}"} for n in range(30)),
    ]
    for body in boundaries(dialect, steps)[::6]:
        assert upstream_bytes(bare, dialect, body) == upstream_bytes(guarded, dialect, body)


@every_dialect
def test_nothing_but_the_note_differs_at_the_upstream(bare: Gateway, guarded: Gateway, dialect: Dialect) -> None:
    """The note stands at the end of the third result, in this request and in every later one; nothing else differs."""
    steps: list[dict[str, Any]] = [
        {"user": "go"},
        {"times": 4, "steps": [{"tool": "read_file", "args": {"path": "a"}, "result": "x = 1"}]},
        {"user": "and now b"},
        {"tool": "read_file", "args": {"path": "b"}, "result": "y"},
    ]
    note = json.dumps("\n\n" + HINT_3)[1:-1].encode()
    counts = []
    for body in boundaries(dialect, steps):
        plain, edited = upstream_bytes(bare, dialect, body), upstream_bytes(guarded, dialect, body)
        assert edited.replace(note, b"") == plain
        counts.append(edited.count(note))
        if note in edited:
            assert texts_of_results(dialect, json.loads(edited))[2] == f"x = 1\n\n{HINT_3}"
    assert counts == [0, 0, 0, 1, 1, 1, 1]


# ------------------------------------------------------------------------------------------------ refusals, failures


@every_dialect
@both_forms
def test_a_denied_agent_is_ended_at_the_sixth_refusal(guarded: Gateway, dialect: Dialect, stream: bool) -> None:
    """Other words each time; told at the second refusal and at the fifth."""
    run = guarded.run(dialect, "denied", stream=stream, tools=[RUN], execute=refused)

    assert (run.ended, len(run.executions), len(set(run.executions))) == ("words", 6, 6)
    assert run.toolguard is not None
    assert (run.toolguard["detector"], run.toolguard["count"]) == ("denied-call", 6)
    assert run.text.startswith(f"{notes.END_PREFIX}`bash` was refused 6 times (user_rejected).")
    noted = [
        number
        for number, text in enumerate(texts_of_results(dialect, guarded.upstream.requests[-1].json), 1)
        if notes.MARK in text
    ]
    assert noted == [2, 5]


@pytest.fixture
def informed(gateways: Gateways) -> Gateway:
    """A proxy whose policy knows how the operator's own tool refuses."""
    refusal = {"glob": "FREEZE: no * before *", "outcome": "denied", "category": "hook_blocked"}
    return gateways.get("informed", guardrails=[guardrail({"tools": [{"match": RUN.name, "results": [refusal]}]})])


@every_dialect
@both_forms
def test_a_refusal_that_only_the_operator_knows_ends_the_run(
    guarded: Gateway, informed: Gateway, dialect: Dialect, stream: bool
) -> None:
    """The agent's tool answers without any flag. The guard that does not know the text lets the run reach its cap."""
    unknown = guarded.run(dialect, "denied", stream=stream, tools=[RUN], execute=frozen)
    run = informed.run(dialect, "denied", stream=stream, tools=[RUN], execute=frozen)

    assert (unknown.ended, len(unknown.executions), unknown.toolguard) == ("cap", 14, None)
    assert (run.ended, len(run.executions)) == ("words", 6)
    assert run.toolguard is not None
    assert (run.toolguard["action"], run.toolguard["detector"], run.toolguard["count"]) == ("stop", "denied-call", 6)
    assert run.text.startswith(f"{notes.END_PREFIX}`bash` was refused 6 times (hook_blocked).")


@every_dialect
def test_a_failing_tool_is_ended_at_the_sixth_equal_error(guarded: Gateway, dialect: Dialect) -> None:
    """Other arguments each time, the same error."""
    run = guarded.run(dialect, "failing", tools=[tool("query", "command")], execute=broken)

    assert (run.ended, len(run.executions)) == ("words", 6)
    assert run.toolguard is not None
    assert run.toolguard["detector"] == "failing-call"
    assert run.text.startswith(f"{notes.END_PREFIX}`query` failed 6 times with the same error.")


@every_dialect
def test_varying_errors_end_at_the_twelfth(guarded: Gateway, dialect: Dialect) -> None:
    """The content-blind twin."""
    numbers = iter(range(100))
    words = ["red", "blue", "green", "white", "black", "pink", "gold", "grey", "teal", "lime", "navy", "plum", "rose"]
    run = guarded.run(
        dialect,
        "failing",
        tools=[tool("query", "command")],
        execute=lambda *_: ToolOutput(f"Error: cause {words[next(numbers)]}", is_error=True),
    )

    assert (run.ended, len(run.executions)) == ("words", 12)
    assert run.toolguard is not None
    assert (run.toolguard["detector"], run.toolguard["count"]) == ("failing-tool", 12)
    assert "with varying errors" in run.text


# ------------------------------------------------------------------------------------------------------------- turns


@every_dialect
@both_forms
def test_after_the_end_the_users_next_message_continues(guarded: Gateway, dialect: Dialect, stream: bool) -> None:
    """The model is asked again, its counts start from zero, and the words of the end are no obstacle."""
    ended = guarded.run(dialect, "looping", stream=stream)
    went_on = guarded.go_on(
        dialect, "looping", stream=stream, history=ended.history, prompt="Then read it differently."
    )

    assert (ended.ended, went_on.ended, went_on.requests) == ("words", "words", 5)
    assert len(went_on.executions) == 4
    assert len(guarded.upstream.requests) == 12


@every_dialect
def test_a_harness_that_nudges_for_ever_is_rejected(guarded: Gateway, dialect: Dialect) -> None:
    """The same words after every end: the second time they are no new input, the third end is a 400."""
    run = guarded.run(dialect, "looping")
    ends = [run]
    for _ in range(3):
        run = guarded.go_on(dialect, "looping", history=run.history, prompt="Go on with the task.")
        ends.append(run)

    assert [(end.ended, len(end.executions)) for end in ends[:3]] == [("words", 4), ("words", 4), ("error", 0)]
    assert ends[2].status == 400
    assert fields_of(ends[2])["code"] == "toolguard_rejected"


@every_dialect
def test_a_retry_of_the_same_request_changes_nothing(guarded: Gateway, dialect: Dialect) -> None:
    """The client's retries are no rounds: the same request, the same verdict, the same bytes."""
    steps: list[dict[str, Any]] = [
        {"user": "go"},
        {"times": 3, "steps": [{"tool": "read_file", "args": {"path": "a"}, "result": "x"}]},
    ]
    body = boundaries(dialect, steps)[-1]

    sent = {upstream_bytes(guarded, dialect, body) for _ in range(9)}

    assert len(sent) == 1


@every_dialect
def test_a_guard_that_meets_a_loop_in_the_middle_tells_first(guarded: Gateway, dialect: Dialect) -> None:
    """A history of nine equal rounds that this guard has not seen gets a note and one more sample, then the end."""
    unseen: list[dict[str, Any]] = [
        {"user": f"a conversation from elsewhere, {dialect}"},
        {"times": 10, "steps": [{"tool": "read_file", "args": {"path": "a"}, "result": "x"}]},
    ]
    bodies = boundaries(dialect, unseen)

    first, second = guarded.post(dialect, bodies[9]), guarded.post(dialect, bodies[10])

    assert "action=hint" in first.headers["x-toolguard"]
    assert "count=9" in first.headers["x-toolguard"]
    assert "action=stop" in second.headers["x-toolguard"]


# -------------------------------------------------------------------------------------------------------- rejections


@every_dialect
@both_forms
def test_where_no_words_can_be_said_the_end_is_a_400(guarded: Gateway, dialect: Dialect, stream: bool) -> None:
    """A forced tool choice leaves no room for words; the body names code, detector, tool and count. Of LiteLLM's errors
    the one in a stream of messages carries no more than its sentence."""
    choice: Any = {"type": "any"} if dialect == "messages" else "required"
    run = guarded.run(dialect, "looping", stream=stream, extra={"tool_choice": choice})

    assert (run.ended, run.status, len(run.executions), len(guarded.upstream.requests)) == ("error", 400, 4, 6)
    assert run.error_body["error"]["message"].startswith(
        "[toolguard] The request was rejected: `read_file` was called 4"
    )
    if stream and dialect == "messages":
        return
    fields = fields_of(run)
    assert {name: fields[name] for name in ("code", "action", "detector", "tool", "count")} == {
        "code": "toolguard_rejected",
        "action": "reject",
        "detector": "repeated-call",
        "tool": "read_file",
        "count": 5,
    }
    if not stream:
        assert run.headers["x-toolguard"].startswith("action=reject; enforced=true; detector=repeated-call")
    assert run.headers["x-litellm-applied-guardrails"] == "toolguard"


@every_dialect
@both_forms
def test_a_request_without_room_for_words_is_a_400(guarded: Gateway, dialect: Dialect, stream: bool) -> None:
    """Where the rounds themselves end the run, before the model is asked."""
    choice: Any = {"type": "any"} if dialect == "messages" else "required"
    options = {"tools": [RUN], "execute": refused, "extra": {"tool_choice": choice}}
    run = guarded.run(dialect, "denied", stream=stream, **options)

    assert (run.ended, run.status, len(run.executions), len(guarded.upstream.requests)) == ("error", 400, 6, 6)
    assert (fields_of(run)["detector"], fields_of(run)["count"]) == ("denied-call", 6)
    assert run.headers["x-toolguard"].startswith("action=reject; enforced=true; detector=denied-call")


# ------------------------------------------------------------------------------------------------ observing, recording


@pytest.fixture
def observing(gateways: Gateways) -> Gateway:
    """A proxy with the callback, which reads its policy from a file that TOOLGUARD_POLICY names."""
    folder = gateways.folder / "policy"
    folder.mkdir(exist_ok=True)
    policy = folder / "observe.yaml"
    policy.write_text("enforcement: observe\n", encoding="utf-8")
    return gateways.get("observing", callbacks=["litellm_toolguard.callback"], env={"TOOLGUARD_POLICY": str(policy)})


@every_dialect
@both_forms
def test_observe_records_and_changes_nothing(observing: Gateway, dialect: Dialect, stream: bool) -> None:
    """The callback with its own policy: the run reaches its cap, the header says what would have been done."""
    run = observing.run(dialect, "looping", stream=stream)

    assert (run.ended, len(run.executions), run.toolguard) == ("cap", 14, None)
    assert notes.MARK.encode() not in b"".join(request.body for request in observing.upstream.requests)
    assert run.headers["x-toolguard"].startswith("action=stop; enforced=false; detector=repeated-call")


@every_dialect
def test_guardrail_and_callback_together_judge_once(gateways: Gateways, dialect: Dialect) -> None:
    """By the policy of the guardrail: one note a rung, one entry in the log, one end."""
    both = gateways.get("both", guardrails=[guardrail({"preset": "strict"})], callbacks=["litellm_toolguard.callback"])
    before = len(both.rows())
    run = both.run(dialect, "looping")

    assert (run.ended, len(run.executions), run.headers["x-litellm-applied-guardrails"]) == ("words", 3, "toolguard")
    assert len(both.upstream.requests) == 5
    results = texts_of_results(dialect, both.upstream.requests[-1].json)
    assert [text.count(notes.MARK) for text in results] == [0, 0, 1, 1]
    rows = settled_rows(both, before + 6)[before:]
    # The first sample of the fourth request, with its note and its end; neither the second nor the last words.
    assert sorted(len(row["information"] or []) for row in rows) == [0, 0, 0, 0, 0, 2]


@every_dialect
@both_forms
def test_every_decision_is_recorded_without_content(guarded: Gateway, dialect: Dialect, stream: bool) -> None:
    """LiteLLM's guardrail information names action, detector, tool and count; the last words cost nothing."""
    before = len(guarded.rows())
    guarded.run(dialect, "looping", stream=stream)

    rows = settled_rows(guarded, before + 7)[before:]
    told = [row["information"][0] for row in rows if row["information"]]
    answers = [entry["guardrail_response"] for entry in told]
    assert [(answer["action"], answer["detector"], answer["tool"], answer["count"]) for answer in answers] == [
        ("hint", "repeated-call", "read_file", 3),
        ("stop", "repeated-call", "read_file", 5),
    ]
    assert [entry["guardrail_status"] for entry in told] == ["guardrail_flagged", "guardrail_intervened"]
    assert {row["status"] for row in rows} == {"success"}
    assert sorted(row["total_tokens"] for row in rows) == [0, *[18] * 6]
    assert "notes.txt" not in json.dumps(told)
    assert "output of" not in json.dumps(told)


def test_a_rejection_is_recorded_in_the_failure_row(guarded: Gateway) -> None:
    """A 400 is no less a decision than a stop."""
    before = len(guarded.rows())
    options = {"tools": [RUN], "execute": refused, "extra": {"tool_choice": "required"}}
    guarded.run("chat", "denied", **options)

    rows = settled_rows(guarded, before + 7)[before:]
    assert rows[-1]["status"] == "failure"
    assert rows[-1]["information"][0]["guardrail_response"]["action"] == "reject"


# ------------------------------------------------------------------------------------------------------------ helpers


def boundaries(dialect: Dialect, steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The request body behind every step of a conversation."""
    conversation, bodies = Conversation(dialect), []
    for step in expand(steps):
        conversation.add(step)
        model = f"{KINDS[dialect]}/words"
        bodies.append(
            {**conversation.request(), "model": model, "max_tokens": 100}
            if dialect == "messages"
            else {**conversation.request(), "model": model}
        )
    return bodies


def upstream_bytes(gateway: Gateway, dialect: Dialect, body: Mapping[str, Any]) -> bytes:
    """The body that the provider receives for a request."""
    gateway.upstream.clear()
    answer = gateway.post(dialect, body)
    assert answer.status_code == 200, answer.text
    (request,) = gateway.upstream.requests
    return request.body


def texts_of_results(dialect: Dialect, body: Mapping[str, Any]) -> list[str]:
    """The text of every tool result of a request, in order."""
    items = body[HISTORY[dialect]]
    if dialect == "chat":
        contents = [item["content"] for item in items if item["role"] == "tool"]
    elif dialect == "responses":
        contents = [item["output"] for item in items if item.get("type") == "function_call_output"]
    else:
        blocks = [block for item in items if isinstance(item["content"], list) for block in item["content"]]
        contents = [block["content"] for block in blocks if block["type"] == "tool_result"]
    return [content if isinstance(content, str) else "".join(part["text"] for part in content) for content in contents]


def expected_results(count: int) -> list[str]:
    """The results of a looping run after so many rounds, with the notes where they belong."""
    plain = "output of read_file"
    noted = {3: f"{plain}\n\n{HINT_3}", 7: f"{plain}\n\n{HINT_7}"}
    return [noted.get(number, plain) for number in range(1, count + 1)]


def fields_of(run: Run) -> Mapping[str, Any]:
    """The guard's fields in the body of an error."""
    fields: Mapping[str, Any] = run.error_body["error"]["provider_specific_fields"]
    return fields


def settled_rows(gateway: Gateway, count: int) -> list[dict[str, Any]]:
    """LiteLLM writes its rows behind the answers: wait until so many are there."""
    deadline = time.monotonic() + 30
    while len(rows := gateway.rows()) < count:
        assert time.monotonic() < deadline, f"only {len(rows)} rows"
        time.sleep(0.05)
    return rows
