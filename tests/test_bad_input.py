"""What the guard cannot read, and what it does when it fails itself: through a real proxy."""

from __future__ import annotations

from typing import Any

import pytest

from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS
from tests.harness.gateways import KINDS, Gateway, Gateways, guardrail
from tests.harness.upstream import FINAL_WORDS

pytestmark = pytest.mark.proxy

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)

# Fails where the history is judged, with content in the error's text.
BROKEN = """
from litellm_toolguard import ToolGuard

class Broken(ToolGuard):
    def judge(self, tenant, data, dialect):
        raise ZeroDivisionError(f"secret content of {data}")
"""


def _broken(gateways: Gateways, name: str, on_error: str) -> Gateway:
    return gateways.get(
        name, guardrails=[guardrail({"on_error": on_error}, loaded="broken.Broken")], files={"broken.py": BROKEN}
    )


@every_dialect
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_error_inside_the_guard_leaves_the_request_unharmed(
    gateways: Gateways, dialect: Dialect, stream: bool
) -> None:
    """The request goes on as it came; type and nothing else stand in header and log."""
    failing = _broken(gateways, "broken-allow", "allow")
    run = failing.run(dialect, "looping", stream=stream, max_requests=9)

    assert (run.ended, len(run.executions)) == ("cap", 9)
    assert run.headers["x-toolguard"] == "action=pass; error=ZeroDivisionError"
    assert "toolguard: action=pass; error=ZeroDivisionError" in failing.proxy.log()
    assert "secret content" not in failing.proxy.log()


@every_dialect
def test_an_error_inside_the_guard_is_a_503_where_the_policy_says_so(gateways: Gateways, dialect: Dialect) -> None:
    """`on_error: reject`: no request without a verdict."""
    failing = _broken(gateways, "broken-reject", "reject")
    run = failing.run(dialect, "words")

    assert (run.ended, run.status, len(failing.upstream.requests)) == ("error", 503, 0)
    assert run.error_body["error"]["provider_specific_fields"] == {
        "code": "toolguard_error",
        "action": "reject",
        "error": "ZeroDivisionError",
    }
    assert "secret content" not in failing.proxy.log()


# Fails where an answer is judged, with content in the error's text; or where the last words are said.
BROKEN_ANSWERS = """
from litellm_toolguard import ToolGuard, proxy, proxy_answers

async def carry_out(watch, client, first, *_):
    raise ZeroDivisionError(f"secret content of {first.answer}")

async def last_words(self, words):
    raise ZeroDivisionError(f"secret content of {words}")

class BrokenAnswers(ToolGuard):
    async def _judge_answer(self, client, ruling, first):
        proxy.carry_out, whole = carry_out, proxy.carry_out
        try:
            return await super()._judge_answer(client, ruling, first)
        finally:
            proxy.carry_out = whole

class Speechless(ToolGuard):
    async def _last_words(self, client, ruling):
        proxy_answers.Client.last_words, whole = last_words, proxy_answers.Client.last_words
        try:
            return await super()._last_words(client, ruling)
        finally:
            proxy_answers.Client.last_words = whole
"""
BROKEN_GUARDS = {
    "allow": ({"on_error": "allow"}, "broken.BrokenAnswers"),
    "reject": ({"on_error": "reject"}, "broken.BrokenAnswers"),
    "speechless": ({}, "broken.Speechless"),
}


@pytest.fixture
def broken_answers(gateways: Gateways) -> Gateway:
    """A proxy whose guards, each for the requests that name it, fail at the answer."""
    entries = [
        {**guardrail(policy, loaded=loaded, default_on=False), "guardrail_name": name}
        for name, (policy, loaded) in BROKEN_GUARDS.items()
    ]
    return gateways.get("broken-answers", guardrails=entries, files={"broken.py": BROKEN_ANSWERS})


@every_dialect
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_error_while_an_answer_is_judged(broken_answers: Gateway, dialect: Dialect, stream: bool) -> None:
    """The answer is delivered as it came, or the policy makes it a 503, streamed too; without content in the log."""
    allowed, rejected = (
        broken_answers.run(
            dialect, "looping", stream=stream, max_requests=6, extra={"extra_body": {"guardrails": [name]}}
        )
        for name in ("allow", "reject")
    )

    assert (allowed.ended, len(allowed.executions)) == ("cap", 6)
    assert (rejected.ended, rejected.status, len(rejected.executions)) == ("error", 503, 4)
    assert "toolguard: ZeroDivisionError while an answer was judged" in broken_answers.proxy.log()
    assert "secret content" not in broken_answers.proxy.log()


@every_dialect
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_where_no_words_can_be_said_the_end_is_a_rejection(
    broken_answers: Gateway, dialect: Dialect, stream: bool
) -> None:
    """The call that was proposed is not handed over."""
    run = broken_answers.run(dialect, "looping", stream=stream, extra={"extra_body": {"guardrails": ["speechless"]}})

    assert (run.ended, run.status, len(run.executions)) == ("error", 400, 4)
    assert "`read_file` was called 4 times" in run.text
    assert "toolguard: ZeroDivisionError while a run was ended" in broken_answers.proxy.log()
    assert "secret content" not in broken_answers.proxy.log()


@pytest.fixture
def strict_reader(gateways: Gateways) -> Gateway:
    """A proxy that rejects what it cannot inspect."""
    return gateways.get("strict-reader", guardrails=[guardrail({"not_inspected": "reject"})])


UNREADABLE: dict[Dialect, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "go"}, {"role": "tool", "tool_call_id": "x", "content": "y"}]},
    "messages": {
        "max_tokens": 100,
        "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "y"}]}],
    },
    "responses": {"input": "go", "previous_response_id": "resp_1"},
}


@every_dialect
def test_a_history_that_cannot_be_read_passes_and_is_said(guarded: Gateway, dialect: Dialect) -> None:
    """By default it goes on unchanged, and is never passed off as clean."""
    guarded.upstream.clear()
    answer = guarded.post(dialect, {**UNREADABLE[dialect], "model": f"{KINDS[dialect]}/words"})

    assert answer.status_code == 200, answer.text
    assert FINAL_WORDS in answer.text
    assert answer.headers["x-toolguard"] == "action=pass; not_inspected=1"


def test_a_thread_that_the_provider_keeps_is_not_inspected(guarded: Gateway) -> None:
    """Its history is elsewhere."""
    guarded.upstream.clear()
    body = {"max_tokens": 100, "messages": [{"role": "user", "content": "go"}], "model": "native-messages/words"}
    answer = guarded.post("messages", {**body, "thread": {"type": "continue", "id": "thread_1"}})

    assert answer.headers["x-toolguard"] == "action=pass; not_inspected=1"


@every_dialect
def test_a_history_that_cannot_be_read_is_rejected_where_the_policy_says_so(
    strict_reader: Gateway, dialect: Dialect
) -> None:
    """A 400 with a reason of its own; a readable request passes."""
    strict_reader.upstream.clear()
    answer = strict_reader.post(dialect, {**UNREADABLE[dialect], "model": f"{KINDS[dialect]}/words"})

    assert answer.status_code == 400
    fields = answer.json()["error"]["provider_specific_fields"]
    assert (fields["code"], fields["not_inspected"]) == ("toolguard_not_inspected", 1)
    assert len(strict_reader.upstream.requests) == 0
    assert strict_reader.run(dialect, "words").text == FINAL_WORDS
