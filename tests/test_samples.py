"""What further samples cost and how long they may take, and answers of rarer forms, through a real proxy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from litellm_toolguard import notes
from litellm_toolguard.demo.agents import ToolOutput, run_agent
from litellm_toolguard.transcript import Dialect
from tests.conversation import Conversation, expand
from tests.harness.gateways import KINDS, READ_FILE, Gateway, Gateways, guardrail
from tests.harness.proxy import TOKEN_COST
from tests.harness.upstream import FINAL_WORDS, Failure, Gate, Gated, Raw, Words
from tests.test_answers import (
    ENDED,
    LOOP,
    TOKENS,
    answering,
    both_forms,
    every_dialect,
    request,
    script,
    settled,
    texts,
    told,
)

__all__ = ["answering"]

pytestmark = pytest.mark.proxy

# ------------------------------------------------------------------------------------------------------------- billing


@every_dialect
@both_forms
def test_both_samples_are_billed(answering: Gateway, dialect: Dialect, stream: bool) -> None:
    """Each with its own call id, tokens and cost, under the caller's key and the model's public name."""
    told(answering, dialect, name := f"billed, {dialect}, {stream}")
    settled(answering, name, 1)
    with script(answering, LOOP, Words()):
        answering.post(dialect, request(dialect, name, 4, stream=stream))

    rows = settled(answering, name, 3)[1:]
    assert [(row["status"], row["total_tokens"], row["model_group"]) for row in rows] == [
        ("success", TOKENS, f"{KINDS[dialect]}/script")
    ] * 2
    assert [row["cost"] for row in rows] == pytest.approx([TOKENS * TOKEN_COST] * 2)
    assert len({row["call_id"] for row in rows}) == 2
    assert {row["key"] for row in rows} == {answering.rows()[0]["key"]}


@every_dialect
@both_forms
def test_what_the_gateway_tries_again_is_billed_once_and_raises_no_count(
    answering: Gateway, dialect: Dialect, stream: bool
) -> None:
    """The provider fails at first, and LiteLLM asks it again; then the client sends the same request anew."""
    told(answering, dialect, name := f"tried again, {dialect}, {stream}")
    answering.upstream.clear()
    body = request(dialect, name, 4, stream=stream)
    for _ in range(2):
        with script(answering, Failure(500), LOOP, Words()):
            answer = answering.post(dialect, body)
        text = "".join(texts(answer.text)) if stream else answer.text
        assert FINAL_WORDS in text

    assert len(answering.upstream.requests) == 6
    rows = [row for row in settled(answering, name, 7)[1:] if row["status"] == "success"]
    assert [(row["total_tokens"], row["model_group"]) for row in rows] == [(TOKENS, f"{KINDS[dialect]}/script")] * 4
    blocks = [entry["guardrail_response"] for row in rows for entry in row["information"] or ()]
    assert [(block["action"], block["count"], block["samples"]) for block in blocks if "samples" in block] == [
        ("block", 5, 2)
    ] * 2


# ------------------------------------------------------------------------------------------------------------- budgets

# Whose key it is, LiteLLM asks this: one has used up what it may spend, another will have with the first sample.
KEYS = """
from litellm.proxy._types import UserAPIKeyAuth

SPENT = {"sk-poor": 1.0, "sk-nearly": 0.99}

async def known(request, api_key):
    return UserAPIKeyAuth(api_key=api_key, max_budget=1.0, spend=SPENT.get(api_key, 0.0))
"""


@pytest.fixture
def paying(gateways: Gateways) -> Gateway:
    """A proxy whose callers have budgets."""
    general = {"custom_auth": "keys.known"}
    return gateways.get("paying", guardrails=[guardrail()], files={"keys.py": KEYS}, general_settings=general)


@every_dialect
@both_forms
def test_a_key_without_money_gets_no_second_sample(paying: Gateway, dialect: Dialect, stream: bool) -> None:
    """The run ends in words at once; a key that has some is asked for once more. What the first sample costs counts
    too, though no row of it is written yet."""
    requests = {}
    for key in ("sk-rich", "sk-nearly", "sk-poor"):
        paying.upstream.clear()
        done = run_agent(
            dialect=dialect,
            stream=stream,
            base_url=paying.proxy.url,
            api_key=key,
            model=f"{KINDS[dialect]}/looping",
            tools=[READ_FILE],
            execute=lambda name, _: ToolOutput(f"output of {name}"),
            prompt="Do it.",
        )
        assert (done.ended, len(done.executions), done.text.startswith(ENDED)) == ("words", 4, True)
        requests[key] = len(paying.upstream.requests)

    assert requests == {"sk-rich": 6, "sk-nearly": 5, "sk-poor": 5}


# ---------------------------------------------------------------------------------------------------------------- time

# Guards whose requests came long ago, as far as they know.
LATE = """
from datetime import timedelta
from litellm_toolguard import ToolGuard

class Late(ToolGuard):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        data["litellm_logging_obj"].start_time -= timedelta(seconds=100)
        return await super().async_pre_call_hook(user_api_key_dict, cache, data, call_type)
"""


@pytest.fixture
def late(gateways: Gateways) -> Gateway:
    """A proxy whose first samples took 100 s."""
    return gateways.get("late", guardrails=[guardrail(loaded="late.Late")], files={"late.py": LATE})


@every_dialect
@both_forms
def test_without_the_time_for_it_there_is_no_second_sample(late: Gateway, dialect: Dialect, stream: bool) -> None:
    """Of 150 s the first took 100. Of 300 s there is enough left."""
    asked = []
    for seconds in (150, 300):
        name = f"late, {dialect}, {stream}, {seconds}"
        told(late, dialect, name)
        late.upstream.clear()
        with script(late, LOOP, *([Words()] if seconds == 300 else [])):
            answer = late.post(dialect, {**request(dialect, name, 4, stream=stream), "timeout": seconds})
        text = "".join(texts(answer.text)) if stream else answer.text
        assert (FINAL_WORDS if seconds == 300 else ENDED) in text
        asked.append(len(late.upstream.requests))

    assert asked == [1, 2]


@every_dialect
@both_forms
def test_a_second_sample_that_does_not_come_in_time_ends_the_run_in_words(
    guarded: Gateway, dialect: Dialect, stream: bool
) -> None:
    """It gets what is left of the request's time."""
    told(guarded, dialect, name := f"too slow, {dialect}, {stream}")
    with Gate() as gate, script(guarded, LOOP, Gated(Words(), gate)):
        answer = guarded.post(dialect, {**request(dialect, name, 4, stream=stream), "timeout": 3})

    text = "".join(texts(answer.text)) if stream else answer.text
    assert answer.status_code == 200
    assert ENDED in text
    assert FINAL_WORDS not in text


# -------------------------------------------------------------------------------------------------------- it is refused

REFUSED: Mapping[Dialect, Raw] = {
    "chat": Raw({"message": {"role": "assistant", "content": "Well, "}, "finish_reason": "content_filter"}),
    "messages": Raw({"content": [{"type": "text", "text": "Well, "}], "stop_reason": "refusal"}),
    "responses": Raw({"output": [], "status": "incomplete", "incomplete_details": {"reason": "content_filter"}}),
}


@every_dialect
@both_forms
def test_a_second_sample_that_is_refused_ends_the_run_in_words(
    guarded: Gateway, dialect: Dialect, stream: bool
) -> None:
    """Nothing of the refusal is shown."""
    told(guarded, dialect, name := f"refused, {dialect}, {stream}")
    with script(guarded, LOOP, REFUSED[dialect]):
        answer = guarded.post(dialect, request(dialect, name, 4, stream=stream))

    assert answer.status_code == 200
    assert ENDED in ("".join(texts(answer.text)) if stream else answer.text)
    assert "Well, " not in answer.text


# ---------------------------------------------------------------------------------------------------------- other forms

LEGACY = {"role": "assistant", "content": None, "function_call": {"name": "read_file", "arguments": '{"path": "a"}'}}
ANSWER = {"role": "function", "name": "read_file", "content": "x = 1"}


@both_forms
def test_legacy_function_calls_are_held_back(guarded: Gateway, stream: bool) -> None:
    """In the form that came before `tool_calls`."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    body = {
        "model": "native-chat/script",
        "functions": [{"name": "read_file", "parameters": schema}],
        "stream": stream,
    }
    user = {"role": "user", "content": f"legacy, {stream}"}
    with script(guarded, Words()):
        guarded.post("chat", {**body, "messages": [user, *[LEGACY, ANSWER] * 3]})
    guarded.upstream.clear()
    with script(guarded, Raw({"message": LEGACY, "finish_reason": "function_call"}), Words()):
        answer = guarded.post("chat", {**body, "messages": [user, *[LEGACY, ANSWER] * 4]})

    text = "".join(texts(answer.text)) if stream else answer.text
    assert FINAL_WORDS in text
    assert "read_file" not in answer.text
    call, result = guarded.upstream.requests[1].json["messages"][-2:]
    assert call["function_call"] == LEGACY["function_call"]
    assert (result["role"], result["name"]) == ("function", "read_file")
    assert "was not executed" in result["content"]


# ------------------------------------------------------------------------------------------------- the provider's tools

SEARCH: dict[str, Any] = {"tool": "ask_server", "args": {"q": "a"}, "result": "no", "by": "provider"}


def asked_by_provider(dialect: Dialect, times: int) -> tuple[list[Any], Mapping[str, Any]]:
    """History items of so many searches that the provider ran, and as many more of them as an answer."""
    history, more = Conversation(dialect), Conversation(dialect, calls=100)
    for step in expand([{"user": f"search, {dialect}"}, {"times": times, "steps": [{"round": [SEARCH]}]}]):
        history.add(step)
    for _ in range(2):
        more.add({"round": [SEARCH]})
    if dialect == "responses":
        return history.items, {"output": [{**item, "status": "completed"} for item in more.items]}
    blocks = [block for message in more.items for block in message["content"]]
    return history.items, {"content": blocks, "stop_reason": "pause_turn"}


@pytest.mark.parametrize("dialect", ["messages", "responses"])
@both_forms
def test_what_the_provider_ran_is_counted_one_by_one(answering: Gateway, dialect: Dialect, stream: bool) -> None:
    """Two searches in one answer behind six are the eighth: the answer is ended in words, and nothing is asked of the
    provider again. Behind five they are delivered as they came."""
    key = "input" if dialect == "responses" else "messages"
    limit = {"max_tokens": 100} if dialect == "messages" else {}
    body = {"model": f"{KINDS[dialect]}/script", "guardrails": ["usual"], "stream": stream, **limit}
    for times in (3, 7):
        history, _ = asked_by_provider(dialect, times)
        with script(answering, Words()):
            assert answering.post(dialect, {**body, key: history}).status_code == 200
    answers = []
    for times in (5, 6):
        history, parts = asked_by_provider(dialect, times)
        answering.upstream.clear()
        with script(answering, Raw(parts)):
            answers.append(answering.post(dialect, {**body, key: history}))
        assert len(answering.upstream.requests) == 1

    delivered, ended = answers
    said = "".join(texts(ended.text)) if stream else ended.text
    assert f"{notes.END_PREFIX}`ask_server` was called 8 times" in said
    assert "mcp" not in ended.text
    assert delivered.text.count("mcp_tool_use" if dialect == "messages" else '"mcp_call"') >= 2
    assert ("pause_turn" in delivered.text, "pause_turn" in ended.text) == (dialect == "messages", False)
