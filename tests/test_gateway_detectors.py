"""Every detector in every dialect, streamed and not, as requests through one real proxy: told at its hint, ended in
words at its end, and silent about work."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from litellm_toolguard.policy import DETECTORS, DetectorName
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, Conversation, Step, expand
from tests.harness.gateways import KINDS, Gateway, Gateways, guardrail
from tests.test_answers import texts

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
        cleared: rounds between which the count starts anew. Without that the last one would get the note.
    """

    steps: Sequence[Step]
    hint: int
    says: str
    end: int | None
    ends: str
    healthy: Sequence[Step]
    cleared: Sequence[Step]


def call(tool: str, result: str, *, error: bool = False, **arguments: Any) -> dict[str, Any]:
    """A round of one call."""
    return {"tool": tool, "args": arguments, "result": result, "error": error}


def times(number: int, *steps: Step) -> list[Step]:
    """Rounds that are repeated, `{i}` in them numbered."""
    return [{"times": number, "steps": list(steps)}]


REREAD: Step = {
    "round": [
        *(call("read_file", f"text {name}", path=name) for name in ("a", "a", "b")),
        call("read_file", "text {i}", path="new{i}"),
    ]
}

LOOPS: Mapping[DetectorName, Loop] = {
    "denied-call": Loop(
        times(6, call("bash", "Permission denied by user", error=True, command="rm -rf build{i}")),
        *(2, "`bash` was refused 2 times (user_rejected)"),
        *(6, "`bash` was refused 6 times (user_rejected)"),
        [
            call("bash", "Permission denied by user", error=True, command="rm -rf build"),
            *times(9, call("bash", "Exit code: 0\nfile {i}", command="ls part{i}")),
        ],
        [
            call("bash", "Permission denied by user", error=True, command="rm -rf build"),
            call("bash", "Exit code: 0\nfile", command="ls part"),
            call("bash", "Permission denied by user", error=True, command="rm -rf dist"),
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
        [
            call("helper_0", "Unknown tool: helper_0", error=True, x=1),
            call("read_file", "text", path="a"),
            call("helper_1", "Unknown tool: helper_1", error=True, x=1),
        ],
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
        [
            call("exec", "Error: missing 'command' parameter", error=True, why="0"),
            call("exec", "Exit code: 0\nfile", command="ls d"),
            call("exec", "Error: missing 'command' parameter", error=True, why="1"),
        ],
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
        [
            *times(2, call("read_file", BEYOND, path="a.py", offset="4{i}0")),
            call("edit_file", "ok", path="a.py", old="x", new="y"),
            call("read_file", BEYOND, path="a.py", offset="500"),
        ],
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
        [
            *times(3, call("open_app", "Error: application not found", error=True, name="App{i}")),
            call("open_app", "its window is open", name="Mail"),
            call("open_app", "Error: application not found", error=True, name="Post"),
        ],
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
        [
            *(call("query", f"Error: cause {cause}", error=True, q=f"no. {cause}") for cause in CAUSES[:5]),
            call("query", "two rows", q="all"),
            call("query", "Error: cause plum", error=True, q="no. plum"),
        ],
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
        [
            *times(2, call("read_file", "x = 1", path="a.py")),
            call("edit_file", "ok", path="b.py", old="x", new="y"),
            call("read_file", "x = 1", path="a.py"),
        ],
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
        times(
            2,
            *times(2, call("search", "two hits", q="alpha {i}"), call("search", "three hits", q="beta {i}")),
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
        [
            *times(7, call("search_shop", CLOSED, q="thing {i} please")),
            call("search_shop", "one map for two coins", q="a map"),
            call("search_shop", CLOSED, q="one more thing please"),
        ],
    ),
    "idle-wait": Loop(
        times(100, call("get_job_status", "running", id=7)),
        *(12, "`get_job_status` was asked 12 times and nothing had changed"),
        *(100, "`get_job_status` was asked 100 times and nothing had changed"),
        times(30, call("get_job_status", "progress {i} of 30", id=7)),
        [*times(11, call("get_job_status", "running", id=7)), call("get_job_status", "at half", id=7)],
    ),
    "reread": Loop(
        times(6, REREAD),
        *(6, "the last 24 reads were mostly of things that had been read before"),
        *(None, ""),
        times(30, call("read_file", "text {i}", path="a{i}")),
        [
            *times(5, REREAD),
            call("edit_file", "ok", path="new", old="x", new="y"),
            REREAD,
        ],
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
        [
            *times(3, call("send_mail", "sent {i}", to="guest{i}")),
            {"user": "and the neighbours"},
            call("send_mail", "sent", to="neighbour"),
        ],
    ),
}
# In Messages a result without the error flag is marked as a success: it is an answer, not a refusal that nobody knows.
MARKED: frozenset[tuple[DetectorName, Dialect]] = frozenset({("same-answer", "messages")})

FORMS = {"whole": False, "streamed": True}


def cells(names: Iterable[str]) -> list[tuple[str, Dialect, str]]:
    """Each name with each dialect and form."""
    return [(name, dialect, form) for name in names for dialect in DIALECTS for form in FORMS]


def in_each(names: Iterable[str], without: Container[tuple[str, Dialect]] = ()) -> pytest.MarkDecorator:
    """A case for each name, dialect and form, called by the three."""
    cases = [
        pytest.param(name, dialect, FORMS[form], id=f"{name}-{dialect}-{form}")
        for name, dialect, form in cells(names)
        if (name, dialect) not in without
    ]
    return pytest.mark.parametrize(("detector", "dialect", "stream"), cases)


@pytest.fixture
def gateway(gateways: Gateways) -> Gateway:
    """A proxy with the guard, and a budget for one tool."""
    return gateways.get("budgeted", guardrails=[guardrail(POLICY)])


@dataclass(frozen=True)
class Talk:
    """One conversation, with words of the user that no other one has.

    Args:
        task: what the user wants.
        dialect: its dialect.
        stream: whether its answers are streamed.
    """

    task: str
    dialect: Dialect
    stream: bool

    def request(self, steps: Sequence[Step], rounds: int | None = None, *, model: str = "words") -> dict[str, Any]:
        """The request behind the given number of rounds; None for all."""
        conversation, added = Conversation(self.dialect), 0
        form = "streamed" if self.stream else "whole"
        for step in expand([{"user": f"Get it done ({self.task}, {self.dialect}, {form})."}, *steps]):
            if added == rounds:
                break
            conversation.add(step)
            added += "round" in step
        more: dict[str, Any] = {"max_tokens": 100} if self.dialect == "messages" else {}
        if self.stream:
            more["stream"] = True
        return {**conversation.request(), "model": f"{KINDS[self.dialect]}/{model}", **more}

    def words(self, answer: httpx.Response) -> str:
        """The text of an answer."""
        return "".join(texts(answer.text)) if self.stream else "".join(texts_of(answer.json()))


def texts_of(value: Any) -> Iterator[str]:
    """The texts in an answer that was not streamed, in any dialect."""
    if isinstance(value, list):
        for item in value:
            yield from texts_of(item)
    elif isinstance(value, dict):
        if value.get("type") in ("text", "output_text"):
            yield value["text"]
        for key in ("choices", "message", "content", "output"):
            inner = value.get(key)
            yield from [inner] if isinstance(inner, str) else texts_of(inner)


def header(answer: httpx.Response) -> dict[str, str]:
    """The pairs of the `x-toolguard` header; none without one."""
    found = answer.headers.get("x-toolguard")
    return {} if found is None else dict(pair.split("=", 1) for pair in found.split("; "))


def said(answer: httpx.Response) -> tuple[str | None, ...]:
    """What the header says was done, and for which detector."""
    pairs = header(answer)
    return tuple(pairs.get(name) for name in ("action", "enforced", "detector"))


@in_each(DETECTORS, without=MARKED)
def test_a_loop_is_told_and_ended(gateway: Gateway, detector: DetectorName, dialect: Dialect, stream: bool) -> None:
    """The note that reaches the provider and the words that reach the client name what happened; the header names the
    detector and the action; the end costs no request."""
    loop, talk = LOOPS[detector], Talk(f"{detector}, a loop", dialect, stream)

    sent, told = sent_by(gateway, talk, talk.request(loop.steps, loop.hint))

    assert said(told) == ("hint", "true", detector), said(told)
    assert f"[toolguard] {loop.says}." in sent.decode() or f"[toolguard] {loop.says}, " in sent.decode()

    if loop.end is None:
        return
    gateway.upstream.clear()
    ended = gateway.post(dialect, talk.request(loop.steps, loop.end))

    assert (ended.status_code, gateway.upstream.requests) == (200, []), ended.text
    assert said(ended) == ("stop", "true", detector)
    assert f"[toolguard] This run was ended by the gateway: {loop.ends}" in talk.words(ended)


@in_each(DETECTORS)
def test_what_looks_much_the_same_and_is_work_passes_as_it_is(
    bare: Gateway, gateway: Gateway, detector: DetectorName, dialect: Dialect, stream: bool
) -> None:
    """The provider receives the very bytes that it receives without the guard, and the client no word of it."""
    loop, talk = LOOPS[detector], Talk(f"{detector}, work", dialect, stream)
    body = talk.request(loop.steps if (detector, dialect) in MARKED else loop.healthy)

    plain, _ = sent_by(bare, talk, body)
    sent, answer = sent_by(gateway, talk, body)

    assert sent == plain
    assert header(answer) == {}
    assert "[toolguard]" not in talk.words(answer)


@in_each(DETECTORS)
def test_a_count_that_was_cleared_starts_anew(
    gateway: Gateway, detector: DetectorName, dialect: Dialect, stream: bool
) -> None:
    """The round that would be one too many without what cleared the count gets no note."""
    loop, talk = LOOPS[detector], Talk(f"{detector}, cleared", dialect, stream)
    is_marked = (detector, dialect) in MARKED
    body = talk.request(loop.steps, loop.hint) if is_marked else talk.request(loop.cleared)

    sent, answer = sent_by(gateway, talk, body)

    assert said(answer) == (None, None, None), said(answer)
    assert "[toolguard]" not in sent.decode()


def sent_by(gateway: Gateway, talk: Talk, body: Mapping[str, Any]) -> tuple[bytes, httpx.Response]:
    """What the provider received for a request, and the answer."""
    gateway.upstream.clear()
    answer = gateway.post(talk.dialect, body)
    assert answer.status_code == 200, answer.text
    (sent,) = gateway.upstream.requests
    return sent.body, answer
