"""The answer to an armed request: held, judged, asked for once more or ended, through a real proxy."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from litellm_toolguard import notes
from litellm_toolguard.demo.agents import Run, ToolOutput
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, Conversation, expand
from tests.harness.gateways import KINDS, PATHS, Gateway, Gateways, guardrail, tool
from tests.harness.upstream import (
    FINAL_WORDS,
    RECOVERED_WORDS,
    Calls,
    Cut,
    Failure,
    Gate,
    Gated,
    Reply,
    Several,
    Words,
)

pytestmark = pytest.mark.proxy

both_forms = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)

CLEAN_FINISH = {"chat": "stop", "messages": "end_turn", "responses": "completed"}
TOKENS = 18
"""Of each whole answer of the scripted provider."""
LOOP = Calls([("read_file", {"path": "notes.txt"})])
ENDED = f"{notes.END_PREFIX}`read_file` was called 4 times"
RUNGS = {
    "ask_*": {"hint": 3, "ask": 5, "stop": 8},
    "reject_*": {"hint": 3, "reject": 5},
    "stop_*": {"hint": 3, "stop": 5},
}
FAILURES = {"500": Failure(500), "429": Failure(429), "empty": Words(""), "broken": Cut(Words(), 3)}

# A guardrail of somebody else, behind the guard: it writes down what it is given.
WITNESS = """
import os
from litellm.integrations.custom_guardrail import CustomGuardrail

class Witness(CustomGuardrail):
    async def async_post_call_success_hook(self, data, user_api_key_dict, response):
        self.write(str(response))
        return response

    async def async_post_call_streaming_iterator_hook(self, user_api_key_dict, response, request_data):
        async for chunk in response:
            self.write(chunk.decode() if isinstance(chunk, bytes) else str(chunk))
            yield chunk

    def write(self, text):
        with open(os.environ["WITNESS_FILE"], "a") as file:
            file.write(text + "\\n")
"""


def named(name: str, policy: Mapping[str, Any]) -> dict[str, Any]:
    """A guard that only requests get that name it."""
    entry = guardrail(dict(policy), default_on=False)
    return {**entry, "guardrail_name": name}


@pytest.fixture
def answering(gateways: Gateways) -> Gateway:
    """A proxy with a guard for each policy that the tests need, and a witness behind them."""
    tools = [{"match": [glob], "detectors": {"repeated-call": ladder}} for glob, ladder in RUNGS.items()]
    witness = {"guardrail": "witness.Witness", "mode": "post_call", "default_on": True}
    return gateways.get(
        "answering",
        guardrails=[
            named("usual", {"tools": tools, "stream": {"keep_alive_s": 1}}),
            *(named(f"samples-{number}", {"block_samples": number}) for number in (0, 2, 3)),
            {"guardrail_name": "witness", "litellm_params": witness},
        ],
        files={"witness.py": WITNESS},
        env={"WITNESS_FILE": str(gateways.folder / "witness.txt")},
        router_settings={"num_retries": 3},
    )


@contextmanager
def script(gateway: Gateway, *replies: Reply) -> Iterator[None]:
    """The replies of the model `script`, all of which are taken."""
    gateway.upstream.script = replies
    try:
        yield
        assert gateway.upstream.script == []
    finally:
        gateway.upstream.script = []


def run(gateway: Gateway, dialect: Dialect, behaviour: str, *, guard: str = "usual", **options: Any) -> Run:
    """A run that is guarded by the named guard."""
    extra = {**options.pop("extra", {}), "extra_body": {"guardrails": [guard], **options.pop("body", {})}}
    return gateway.run(dialect, behaviour, extra=extra, **options)


# ------------------------------------------------------------------------------------------------------ what is run


@every_dialect
@both_forms
def test_a_blocked_call_does_not_run(guarded: Gateway, tmp_path: Path, dialect: Dialect, stream: bool) -> None:
    """The tool leaves a line each time. The model thinks again at the second sample, and its words arrive."""
    file = tmp_path / "lines.txt"

    def append(_: str, arguments: Mapping[str, Any]) -> ToolOutput:
        with file.open("a", encoding="utf-8") as opened:
            opened.write(f"{arguments['path']}\n")
        return ToolOutput("appended")

    done = guarded.run(dialect, "recovering", stream=stream, execute=append, tools=[tool("append_line")])

    assert file.read_text(encoding="utf-8") == "notes.txt\n" * 4
    assert (done.ended, done.requests, len(done.executions), done.text) == ("words", 5, 4, RECOVERED_WORDS)
    assert (done.finish, done.toolguard, len(guarded.upstream.requests)) == (CLEAN_FINISH[dialect], None, 6)
    assert "not executed" not in json.dumps(done.history)


@every_dialect
@both_forms
@pytest.mark.parametrize(("samples", "asked"), [(0, 5), (2, 7), (3, 8)])
def test_a_model_that_ignores_every_block_is_ended(
    answering: Gateway, dialect: Dialect, stream: bool, samples: int, asked: int
) -> None:
    """Four executions, and as many further samples as the policy allows: the run never goes on behind them."""
    done = run(answering, dialect, "looping", guard=f"samples-{samples}", stream=stream)

    assert (done.ended, len(done.executions), len(answering.upstream.requests)) == ("words", 4, asked)
    assert done.text.startswith(ENDED)
    assert done.toolguard is not None
    assert done.toolguard["action"] == "stop"


@every_dialect
@both_forms
def test_what_is_held_back_never_reaches_the_client(answering: Gateway, dialect: Dialect, stream: bool) -> None:
    """Neither as bytes nor at the guardrail behind us, which sees the accepted answer."""
    witness = answering.workdir.parent / "witness.txt"
    told(answering, dialect, name := f"held back, {dialect}, {stream}")
    before = len(witness.read_text(encoding="utf-8"))
    with script(answering, LOOP, Words("A different thing to say.")):
        answer = answering.post(dialect, request(dialect, name, 4, stream=stream))

    seen = witness.read_text(encoding="utf-8")[before:]
    text = "".join(texts(answer.text)) if stream else answer.text
    assert answer.status_code == 200
    assert "A different thing to say." in text
    assert "notes.txt" not in answer.text
    assert "tool_use" not in answer.text
    assert "notes.txt" not in seen
    assert "A differ" in seen
    held = answering.upstream.requests[-1].body.decode()
    assert "was not executed" in held


# -------------------------------------------------------------------------------------------------------- not armed


@every_dialect
def test_a_stream_that_is_not_armed_is_the_providers(bare: Gateway, guarded: Gateway, dialect: Dialect) -> None:
    """Event by event: the provider sends the next text only when the client has the one before. And the same lines as
    without the guard, but for ids and times."""
    body, words = request(dialect, "not armed", 1, stream=True), "one two three four five six seven"
    with Gate() as gate, script(guarded, Gated(Words(words), gate)):
        seen: list[str] = []
        gate.let_through(HEAD[dialect])
        with streamed(guarded, dialect, body) as lines:
            for line in lines:
                seen.append(line)
                if any(texts(line)):
                    gate.let_through(50 if words == "".join(texts("\n".join(seen))) else 1)
    with script(bare, Words(words)), streamed(bare, dialect, body) as lines:
        plain = list(lines)

    assert [without_ids(line) for line in seen] == [without_ids(line) for line in plain]


HEAD: Mapping[Dialect, int] = {"chat": 2, "messages": 4, "responses": 5}
"""Events of the scripted provider up to the first text."""


def without_ids(line: str) -> str:
    """A line of a stream without what no two answers share: numbered ids, LiteLLM's sealed ones, times."""
    return re.sub(r'"(id|item_id|response_id|created|created_at)": ?("[^"]*"|[0-9.]+)', r'"\1"', line)


# ------------------------------------------------------------------------------------------- a second sample fails


@every_dialect
@both_forms
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_second_sample_that_fails_ends_the_run_in_words(
    guarded: Gateway, dialect: Dialect, stream: bool, failure: Reply
) -> None:
    """The plain stop, and no half message."""
    with script(guarded, *[LOOP] * 5, *([failure] if stream or not isinstance(failure, Cut) else [Failure(503)])):
        done = guarded.run(dialect, "script", stream=stream)

    assert (done.ended, len(done.executions), done.finish) == ("words", 4, CLEAN_FINISH[dialect])
    assert done.text.startswith(ENDED)
    assert len(guarded.upstream.requests) == 6


# ------------------------------------------------------------------------------------------------------- other rungs


@every_dialect
@both_forms
def test_a_question_is_asked_before_the_call_runs(answering: Gateway, dialect: Dialect, stream: bool) -> None:
    """The user's next message is the answer: the counts start anew."""
    options: dict[str, Any] = {"stream": stream, "tools": [tool("ask_first")]}
    done = run(answering, dialect, "looping", **options)
    first = len(answering.upstream.requests)
    again = run(answering, dialect, "looping", **options, history=done.history, prompt="Yes, go on.")

    assert (done.ended, len(done.executions), first) == ("words", 4, 5)
    assert done.text.startswith(notes.QUESTION_PREFIX)
    assert done.toolguard is not None
    assert (done.toolguard["action"], done.finish) == ("ask", CLEAN_FINISH[dialect])
    assert (again.ended, len(again.executions)) == ("words", 4)


@every_dialect
@both_forms
def test_a_stop_comes_before_the_call_runs(answering: Gateway, dialect: Dialect, stream: bool) -> None:
    """Nobody is asked a second time."""
    done = run(answering, dialect, "looping", stream=stream, tools=[tool("stop_it")])

    assert (done.ended, len(done.executions), len(answering.upstream.requests)) == ("words", 4, 5)
    assert done.text.startswith(f"{notes.END_PREFIX}`stop_it` was called 4 times")


@every_dialect
@both_forms
def test_a_rejection_is_an_http_400(answering: Gateway, dialect: Dialect, stream: bool) -> None:
    """Streamed too, where nothing was sent before."""
    done = run(answering, dialect, "looping", stream=stream, tools=[tool("reject_it")])

    assert (done.ended, done.status, len(done.executions), len(answering.upstream.requests)) == ("error", 400, 4, 5)
    assert "`reject_it` was called 4 times" in done.text


# ------------------------------------------------------------------------------------------------------------- denials

DENIED = {"tool": "bash", "args": {"command": "rm -rf build"}, "result": "Permission denied by user", "error": True}
OTHER = {"tool": "bash", "args": {"command": "make test"}, "result": "3 passed"}
RESEND = Calls([("bash", {"command": "rm -rf build"})])


@every_dialect
@both_forms
def test_a_refused_call_that_is_made_again_is_held_back(guarded: Gateway, dialect: Dialect, stream: bool) -> None:
    """At once; behind another success it is delivered."""
    body = request(dialect, "denied", 1, DENIED, stream=stream)
    guarded.upstream.clear()
    with script(guarded, RESEND, Words()):
        held = guarded.post(dialect, body)
    asked = len(guarded.upstream.requests)
    with script(guarded, RESEND):
        delivered = guarded.post(dialect, request(dialect, "denied, then work", 1, DENIED, OTHER, stream=stream))

    text = "".join(texts(held.text)) if stream else held.text
    assert (held.status_code, asked, FINAL_WORDS in text) == (200, 2, True)
    assert "bash" not in held.text
    assert "bash" in delivered.text


# ---------------------------------------------------------------------------------------------------------- broken off


@every_dialect
def test_a_stream_that_breaks_is_passed_on_as_broken(guarded: Gateway, dialect: Dialect) -> None:
    """Never as a complete message, and no call of it runs."""
    with script(guarded, *[LOOP] * 4, Cut(LOOP, 4)):
        try:
            done = guarded.run(dialect, "script", stream=True)
        # What the clients' helpers raise on a stream without an end is their own matter.
        except (RuntimeError, AssertionError, ValueError, httpx.HTTPError):
            return
    assert done.ended == "error" or (len(done.executions), done.finish) == (4, "")


# --------------------------------------------------------------------------------------------------------- disconnects


@every_dialect
def test_a_client_that_leaves_ends_the_providers_work(answering: Gateway, dialect: Dialect) -> None:
    """While the first answer is held and while the second is made. No block is remembered: the same request is judged
    as before."""
    name = f"left, {dialect}"
    told(answering, dialect, name)
    body = request(dialect, name, 4, stream=True)
    for before in ([], [LOOP]):
        with Gate() as gate, script(answering, *before, Gated(LOOP, gate)):
            # LiteLLM itself does not end a stream of chat whose client leaves before its first event.
            gate.let_through(3)
            with sent(answering, dialect, body):
                assert gate.reached.wait(30)
            assert gate.left.wait(30)
    # The hint's answer, and the first sample of the second request, which was whole before its client left.
    settled(answering, name, 2, tokens=TOKENS)
    answering.upstream.clear()
    with script(answering, LOOP, Words()):
        answer = answering.post(dialect, body)

    assert "".join(texts(answer.text)) == FINAL_WORDS
    assert len(answering.upstream.requests) == 2
    assert "was destroyed but it is pending" not in answering.proxy.log()
    assert "never retrieved" not in answering.proxy.log()


# ---------------------------------------------------------------------------------------------------------- keep-alive


SIGNS = {"messages": "event: ping", "chat": '"choices":[{"index":0,"delta":{"content":""}}]'}


@every_dialect
def test_a_held_stream_shows_signs_of_life(answering: Gateway, dialect: Dialect) -> None:
    """Pings in messages, empty deltas in chat once the provider's stream has begun; responses has no such event."""
    name = f"alive, {dialect}"
    told(answering, dialect, name)
    seen: list[str] = []
    with Gate() as gate, script(answering, Gated(Words(), gate)):
        gate.let_through({"messages": 0, "chat": 1}.get(dialect, 50))
        with streamed(answering, dialect, request(dialect, name, 4, stream=True)) as lines:
            seen += [next(lines) for _ in range(3)] if dialect in SIGNS else []
            assert "".join(texts("\n".join(seen))) == ""
            gate.let_through(50)
            seen += lines

    assert "".join(texts("\n".join(seen))) == FINAL_WORDS
    assert dialect not in SIGNS or SIGNS[dialect] in seen[0]


@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_behind_a_sign_of_life_a_rejection_is_an_error_in_the_stream(answering: Gateway, dialect: Dialect) -> None:
    """Its status was sent; the call is not handed over all the same."""
    step = {**READ, "tool": "reject_it"}
    name, again = f"alive and rejected, {dialect}", Calls([("reject_it", READ["args"])])
    told(answering, dialect, name, step)
    with Gate() as gate, script(answering, Gated(again, gate)):
        gate.let_through({"messages": 0, "chat": 1}[dialect])
        with streamed(answering, dialect, request(dialect, name, 4, step, stream=True)) as lines:
            seen = [next(lines)]
            gate.let_through(50)
            seen += lines

    assert SIGNS[dialect] in seen[0]
    assert "`reject_it` was called 4 times" in (text := "\n".join(seen))
    assert '"error"' in text
    assert "notes.txt" not in text


# ------------------------------------------------------------------------------------------------------------- choices


@both_forms
def test_one_choice_that_trips_holds_back_all(answering: Gateway, stream: bool) -> None:
    """There is no second sample of several choices: which one would it answer?"""
    told(answering, "chat", name := f"several, {stream}")
    answering.upstream.clear()
    with script(answering, Several([Words("fine"), LOOP])):
        answer = answering.post("chat", {**request("chat", name, 4, stream=stream), "n": 2})

    text = "".join(texts(answer.text)) if stream else answer.json()["choices"][0]["message"]["content"]
    assert text.startswith(ENDED)
    assert "fine" not in answer.text
    assert len(answering.upstream.requests) == 1


# ------------------------------------------------------------------------------------------------------------- helpers

READ: dict[str, Any] = {"tool": "read_file", "args": {"path": "notes.txt"}, "result": "x = 1"}


def request(
    dialect: Dialect, name: str, rounds: int, *steps: Mapping[str, Any], stream: bool = False
) -> dict[str, Any]:
    """The request behind so many equal rounds of a conversation of that name, for the model `script`."""
    conversation = Conversation(dialect)
    repeated = {"times": rounds, "steps": [dict(step) for step in steps or (READ,)]}
    for step in expand([{"user": name}, repeated]):
        conversation.add(step)
    limit = {"max_tokens": 100} if dialect == "messages" else {}
    return {
        **conversation.request(),
        "model": f"{KINDS[dialect]}/script",
        "guardrails": ["usual"],
        "stream": stream,
        **limit,
    }


def told(gateway: Gateway, dialect: Dialect, name: str, *steps: Mapping[str, Any]) -> None:
    """Let the guard tell of the conversation's loop, so that the next request is armed."""
    with script(gateway, Words()):
        assert gateway.post(dialect, request(dialect, name, 3, *steps)).status_code == 200


@contextmanager
def streamed(gateway: Gateway, dialect: Dialect, body: Mapping[str, Any]) -> Iterator[Iterator[str]]:
    """The lines of a stream that are not empty, as they come."""
    headers = {"Authorization": f"Bearer {gateway.proxy.key}"}
    with (
        httpx.Client(trust_env=False, timeout=20) as client,
        client.stream("POST", f"{gateway.proxy.url}{PATHS[dialect]}", json=dict(body), headers=headers) as answer,
    ):
        assert answer.status_code == 200
        yield filter(None, answer.iter_lines())


@contextmanager
def sent(gateway: Gateway, dialect: Dialect, body: Mapping[str, Any]) -> Iterator[None]:
    """A request whose client waits for nothing and leaves at the end."""
    address, data = httpx.URL(gateway.proxy.url), json.dumps(dict(body)).encode()
    head = [
        f"POST {PATHS[dialect]} HTTP/1.1",
        f"Host: {address.netloc.decode()}",
        f"Authorization: Bearer {gateway.proxy.key}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    ]
    with socket.create_connection((address.host, address.port or 80)) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode() + data)
        yield


def texts(stream: str) -> Iterator[str]:
    """The text that a stream's events add."""
    for line in stream.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        for choice in event.get("choices") or ():
            yield choice["delta"].get("content") or ""
        delta = event.get("delta")
        if event.get("type") == "response.output_text.delta":
            yield delta
        elif isinstance(delta, dict):
            yield delta.get("text") or ""


def settled(gateway: Gateway, name: str, count: int, tokens: int | None = None) -> list[dict[str, Any]]:
    """The rows of a conversation, or those of so many tokens. LiteLLM writes them behind the answers: wait until so
    many are there."""
    deadline = time.monotonic() + 30
    while True:
        rows = [row for row in gateway.rows() if name in row["about"] and tokens in (None, row["total_tokens"])]
        if len(rows) >= count:
            return rows
        assert time.monotonic() < deadline, f"only {len(rows)} rows"
        time.sleep(0.05)
