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
