"""Every detector in every dialect, as requests through one real proxy: told at its hint, ended in words at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from litellm_toolguard.policy import DETECTORS, DetectorName
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, Conversation, Step, expand
from tests.harness.gateways import KINDS, Gateway, Gateways, guardrail

pytestmark = pytest.mark.proxy

POLICY = {"tools": [{"match": "send_mail", "detectors": {"call-budget": {"hint": 4, "stop": 6}}}]}
CAUSES = ("red", "blue", "green", "white", "black", "pink", "gold", "grey", "teal", "lime", "navy", "plum")
BEYOND = "The file has 120 lines: the offset is beyond the end of the file."
CLOSED = "The shop is closed to visitors from your region"


@dataclass(frozen=True)
class Loop:
    """A conversation that one detector tells and ends.

    Args:
        steps: its rounds, up to the end.
        hint: number of the round, from 1, whose request gets the note.
        says: what happened, as the note says it.
        end: number of the round whose request is answered in words; None for a detector that only tells.
        ends: what happened, as the last words say it.
        healthy: rounds that look much the same and are work.
    """

    steps: Sequence[Step]
    hint: int
    says: str
    end: int | None
    ends: str
    healthy: Sequence[Step]


def call(tool: str, result: str, *, error: bool = False, **arguments: Any) -> dict[str, Any]:
    """A round of one call."""
    return {"tool": tool, "args": arguments, "result": result, "error": error}


def times(number: int, *steps: Step) -> list[Step]:
    """Rounds that are repeated, `{i}` in them numbered."""
    return [{"times": number, "steps": list(steps)}]


LOOPS: Mapping[DetectorName, Loop] = {
    "denied-call": Loop(
        times(6, call("bash", "Permission denied by user", error=True, command="rm -rf build{i}")),
        *(2, "`bash` was refused 2 times (user_rejected)"),
        *(6, "`bash` was refused 6 times (user_rejected)"),
        [
            call("bash", "Permission denied by user", error=True, command="rm -rf build"),
            *times(9, call("bash", "Exit code: 0\nfile {i}", command="ls part{i}")),
        ],
    ),
    "unknown-tool": Loop(
        times(6, call("helper_{i}", "Unknown tool: helper_{i}", error=True, x=1)),
        *(2, "tools that do not exist were called 2 times, the last one was `helper_1`"),
        *(6, "tools that do not exist were called 6 times, the last one was `helper_5`"),
        times(
            5,
            call("helper_{i}", "Unknown tool: helper_{i}", error=True, x=1),
            call("read_file", "text {i}", path="a{i}"),
        ),
    ),
    "invalid-arguments": Loop(
        times(6, call("exec", "Error: missing 'command' parameter", error=True, why="{i}")),
        *(2, "`exec` was called 2 times with arguments that it does not accept"),
        *(6, "`exec` was called 6 times with arguments that it does not accept"),
        times(
            5,
            call("exec", "Error: missing 'command' parameter", error=True),
            call("exec", "Exit code: 0\nfile {i}", command="ls d{i}"),
        ),
    ),
    "stuck-range": Loop(
        times(6, call("read_file", BEYOND, path="a.py", offset="4{i}0")),
        *(3, "`read_file` was asked 3 times for a part of a file that is outside of it"),
        *(6, "`read_file` was asked 6 times for a part of a file that is outside of it"),
        times(
            5,
            call("read_file", BEYOND, path="a.py", offset="4{i}0"),
            call("edit_file", "ok", path="a.py", old="x{i}", new="y{i}"),
        ),
    ),
    "failing-call": Loop(
        times(6, call("open_app", "Error: application not found", error=True, name="App{i}")),
        *(4, "`open_app` failed 4 times with the same error"),
        *(6, "`open_app` failed 6 times with the same error"),
        times(
            9,
            call("edit_file", "ok", path="a.py", old="v{i}", new="w{i}"),
            call("bash", "Exit code: 1\n1 failed: test_x", error=True, command="pytest -q"),
        ),
    ),
    "failing-tool": Loop(
        [call("query", f"Error: cause {cause}", error=True, q=f"no. {cause}") for cause in CAUSES],
        *(6, "`query` failed 6 times with varying errors"),
        *(12, "`query` failed 12 times with varying errors"),
        times(
            9,
            call("edit_file", "ok", path="a.py", old="v{i}", new="w{i}"),
            call("bash", "Exit code: 1\n{i} failed", error=True, command="pytest -q"),
        ),
    ),
    "repeated-call": Loop(
        times(8, call("read_file", "x = 1", path="a.py")),
        *(3, "`read_file` was called 3 times with the same arguments and returned the same result each time"),
        *(8, "`read_file` was called 8 times with the same arguments and returned the same result each time"),
        times(
            9,
            call("edit_file", "ok", path="a.py", old="v{i}", new="w{i}"),
            call("bash", "Exit code: 0\n3 passed", command="pytest -q"),
        ),
    ),
    "call-cycle": Loop(
        times(5, call("search", "two hits", q="alpha"), call("search", "three hits", q="beta")),
        *(8, "the same calls were made in the same order 4 times and returned the same results each time"),
        *(10, "the same calls were made in the same order 5 times and returned the same results each time"),
        times(
            9,
            call("write_file", "written", path="a.txt", text="same"),
            call("bash", "Exit code: 0\n{i} targets built", command="make"),
        ),
    ),
    "same-answer": Loop(
        times(16, call("search_shop", CLOSED, q="thing {i} please")),
        *(8, "`search_shop` was called 8 times with other arguments and gave the same answer each time"),
        *(16, "`search_shop` was called 16 times with other arguments and gave the same answer each time"),
        [
            *times(7, call("search_shop", CLOSED, q="thing {i} please")),
            call("search_shop", "one map for two coins", q="a map"),
            *times(7, call("search_shop", CLOSED, q="item {i} please")),
        ],
    ),
    "idle-wait": Loop(
        times(100, call("get_job_status", "running", id=7)),
        *(12, "`get_job_status` was asked 12 times and nothing had changed"),
        *(100, "`get_job_status` was asked 100 times and nothing had changed"),
        times(30, call("get_job_status", "progress {i} of 30", id=7)),
    ),
    "reread": Loop(
        times(
            6,
            {
                "round": [
                    *(call("read_file", f"text {name}", path=name) for name in ("a", "a", "b")),
                    call("read_file", "text {i}", path="new{i}"),
                ]
            },
        ),
        *(6, "the last 24 reads were mostly of things that had been read before"),
        *(None, ""),
        times(30, call("read_file", "text {i}", path="a{i}")),
    ),
    "call-budget": Loop(
        times(6, call("send_mail", "sent {i}", to="guest{i}")),
        *(4, "`send_mail` was called 4 times in this turn"),
        *(6, "`send_mail` was called 6 times in this turn"),
        [
            *times(3, call("send_mail", "sent {i}", to="guest{i}")),
            {"user": "and the neighbours"},
            *times(3, call("send_mail", "sent {i}", to="neighbour{i}")),
        ],
    ),
}
# In Messages a result without the error flag is marked as a success: it is an answer, not a refusal that nobody knows.
MARKED: frozenset[tuple[DetectorName, Dialect]] = frozenset({("same-answer", "messages")})

EACH = [(detector, dialect) for detector in DETECTORS for dialect in DIALECTS]


@pytest.fixture
def gateway(gateways: Gateways) -> Gateway:
    """A proxy with the guard, and a budget for one tool."""
    return gateways.get("budgeted", guardrails=[guardrail(POLICY)])


def request(dialect: Dialect, steps: Sequence[Step], rounds: int | None = None) -> dict[str, Any]:
    """The request behind the given number of rounds; None for all."""
    conversation, added = Conversation(dialect), 0
    for step in expand(steps):
        if added == rounds:
            break
        conversation.add(step)
        added += "round" in step
    limit = {"max_tokens": 100} if dialect == "messages" else {}
    return {**conversation.request(), "model": f"{KINDS[dialect]}/words", **limit}


def header(response_header: str) -> dict[str, str]:
    """The pairs of an `x-toolguard` header."""
    return dict(pair.split("=", 1) for pair in response_header.split("; "))


def steps_of(detector: DetectorName, dialect: Dialect, steps: Sequence[Step]) -> list[Step]:
    """The rounds behind a task of their own, so that no two tests share a conversation."""
    return [{"user": f"Get it done ({detector}, {dialect})."}, *steps]


@pytest.mark.parametrize(("detector", "dialect"), [pair for pair in EACH if pair not in MARKED])
def test_a_loop_is_told_and_ended(gateway: Gateway, detector: DetectorName, dialect: Dialect) -> None:
    """The note that reaches the provider and the words that reach the client name what happened; the header names the
    detector and the action; the end costs no request."""
    loop = LOOPS[detector]
    steps = steps_of(detector, dialect, loop.steps)

    sent, told = sent_by(gateway, dialect, request(dialect, steps, loop.hint))

    seen = header(told.headers["x-toolguard"])
    assert (seen["action"], seen["enforced"], seen["detector"]) == ("hint", "true", detector)
    assert f"[toolguard] {loop.says}." in sent.decode() or f"[toolguard] {loop.says}, " in sent.decode()

    if loop.end is None:
        return
    gateway.upstream.clear()
    ended = gateway.post(dialect, request(dialect, steps, loop.end))

    assert (ended.status_code, gateway.upstream.requests) == (200, []), ended.text
    seen = header(ended.headers["x-toolguard"])
    assert (seen["action"], seen["enforced"], seen["detector"]) == ("stop", "true", detector)
    assert f"[toolguard] This run was ended by the gateway: {loop.ends}" in ended.text


@pytest.mark.parametrize(("detector", "dialect"), EACH)
def test_what_looks_much_the_same_and_is_work_passes_as_it_is(
    bare: Gateway, gateway: Gateway, detector: DetectorName, dialect: Dialect
) -> None:
    """The provider receives the very bytes that it receives without the guard, and the client no word of it."""
    loop = LOOPS[detector]
    rounds = loop.steps if (detector, dialect) in MARKED else loop.healthy
    body = request(dialect, steps_of(detector, dialect, rounds))

    plain, _ = sent_by(bare, dialect, body)
    sent, answer = sent_by(gateway, dialect, body)

    assert sent == plain
    assert "x-toolguard" not in answer.headers
    assert "[toolguard]" not in answer.text


def sent_by(gateway: Gateway, dialect: Dialect, body: Mapping[str, Any]) -> tuple[bytes, httpx.Response]:
    """What the provider received for a request, and the answer."""
    gateway.upstream.clear()
    answer = gateway.post(dialect, body)
    assert answer.status_code == 200, answer.text
    (sent,) = gateway.upstream.requests
    return sent.body, answer
