"""What the history says about each exchange, before any detector counts.

One pass over the events of a transcript turns rounds into `JudgedRound`s: identities, outcome, role, and the facts that
depend on what came earlier in the same turn. Every fact depends on earlier events only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from litellm_toolguard.canonical import (
    call_key,
    digest,
    keyed,
    parse_arguments,
    result_key,
    same_but_for_noise,
    without_nonces,
)
from litellm_toolguard.outcomes import Outcome, outcome_of
from litellm_toolguard.policy import CYCLE_PERIODS, DISTINCT_SHARE, READ_WINDOW, Policy
from litellm_toolguard.roles import Role, call_role, target_path
from litellm_toolguard.traces import ReadTraces, Traces, read_beyond, touched_text
from litellm_toolguard.transcript import Dialect, Event, Exchange, Round, RunEnd, ToolCall, UserInput

FAILURES = frozenset({"failed", "invalid_arguments", "unknown_tool"})
_NOT_NOVEL_ROLES = frozenset({"think", "wait"})
_CHANGING_ROLES = frozenset({"shell", "unknown"})
_LOOKING_WORDS = frozenset(
    {"get", "list", "search", "find", "fetch", "read", "lookup", "query", "describe", "show", "count", "view", "check"}
)


@dataclass(frozen=True, slots=True)
class JudgedExchange:
    """One exchange and what is known about it.

    Args:
        exchange: the exchange.
        key: identity of the call, as the policy defines it; a looser one, without what is made anew for every call,
            where the result is the same as that of the last such call.
        result: identity of the result, empty while pending; that of the same call's last result where the two differ in
            nothing but clocks and the like.
        outcome: how it ended.
        role: the tool's role, refined by the call.
        novel: name and arguments first seen in this turn, and neither thinking nor waiting.
        may_change: it ended well and may have changed something.
        rerun: the same call (of a shell: any command) was made earlier in the turn, and something was written since.
        again: the same call was made earlier in the turn, and its last result was the same.
        traces: what the detectors ask for of its content.
        loose: identity without the arguments that are made anew for every call, if it has such.
        unseen: the provider kept the result of its own tool to itself.
        beyond: a read beyond the end of a file: the file, and the lines that the error names.
        touched: the files read beyond their end in this turn that the call names.
    """

    exchange: Exchange
    key: bytes
    result: bytes
    outcome: Outcome
    role: Role
    novel: bool
    may_change: bool
    rerun: bool
    again: bool
    traces: Traces
    loose: bytes | None = None
    unseen: bool = False
    beyond: tuple[bytes, bytes] | None = None
    touched: frozenset[bytes] = frozenset()

    @property
    def tool(self) -> str:
        """The tool's name as the model wrote it."""
        return self.exchange.call.name

    @property
    def steered(self) -> bool:
        """Whether the user steers the agent with words in the result. The same words to the same call come from
        something that answers in the user's place."""
        return self.outcome.user_words and not self.again

    @property
    def failed(self) -> bool:
        """Whether it ended in a failure that does not pass by itself."""
        return self.outcome.kind in FAILURES


@dataclass(frozen=True, slots=True)
class Lap:
    """A lap of a cycle that a round completed.

    Args:
        period: rounds in a lap.
        laps: laps so far, at least two.
        members: identities of the rounds of a lap, sorted, so that it does not matter where the cycle is entered.
    """

    period: int
    laps: int
    members: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class JudgedRound:
    """A round and its judged exchanges.

    Args:
        index: number of the round in the transcript, from 0.
        turn: digest of what the user wrote at the start of the turn.
        complete: whether a result is there; a round without any is not acted on.
        lap: the lap of a cycle that the round completed.
        rereading: calls of the window of reads, when it is full and few of them are distinct; else 0.
    """

    index: int
    turn: bytes
    round: Round
    exchanges: tuple[JudgedExchange, ...]
    complete: bool
    lap: Lap | None = None
    rereading: int = 0

    @property
    def print(self) -> bytes:
        """Identity of the round in its conversation: the ids, calls and results of it, in order."""
        parts = ((each.exchange.call.id, each.key, each.result) for each in self.exchanges)
        return digest("position", *(part for exchange in parts for part in exchange))

    @property
    def by_provider(self) -> bool:
        """Whether the provider ran it."""
        return self.exchanges[0].exchange.call.executed_by == "provider"

    @property
    def novel(self) -> bool:
        """Whether the round holds a call that is new in this turn."""
        return any(exchange.novel for exchange in self.exchanges)


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """A call that has not run: what is known of it from the history before it.

    Args:
        call_id: its id.
        name: the tool.
        key: identity of the call.
        role: the tool's role, refined by the call.
        rerun: whether it was made before and something was written since.
    """

    call_id: str
    name: str
    key: bytes
    role: Role
    rerun: bool


def proposed_call(judged: JudgedExchange) -> ProposedCall:
    """A recorded call as it was proposed."""
    call = judged.exchange.call
    return ProposedCall(call.id, call.name, judged.key, judged.role, judged.rerun)


@dataclass(frozen=True, slots=True)
class Cleared:
    """Input that empties streaks: all of them for the user's, repeats only for an event.

    Args:
        by_user: whether the user wrote it.
        turn: the turn that begins, or goes on.
    """

    by_user: bool
    turn: bytes = b""


Step: TypeAlias = JudgedRound | Cleared | RunEnd


class _Turn:
    """What the current turn has seen so far."""

    def __init__(self, anchor: bytes) -> None:
        self.anchor = anchor
        self.writes = 0
        self.last_run: dict[bytes, int] = {}
        self.edits = 0
        self.last_shell: dict[str, int] = {}
        self.last: dict[bytes, JudgedExchange] = {}
        self.loose: dict[bytes, JudgedExchange] = {}
        self.reads: deque[bytes] = deque(maxlen=READ_WINDOW)
        self.prints: list[bytes] = []
        self.equal_run: dict[int, int] = dict.fromkeys(CYCLE_PERIODS, 0)
        self.beyond: dict[bytes, str] = {}

    def copy(self) -> _Turn:
        """A turn that goes on by itself from here."""
        twin = copy(self)
        twin.last_run, twin.last_shell = dict(self.last_run), dict(self.last_shell)
        twin.last, twin.loose = dict(self.last), dict(self.loose)
        twin.reads, twin.prints, twin.equal_run = self.reads.copy(), list(self.prints), dict(self.equal_run)
        twin.beyond = dict(self.beyond)
        return twin

    def break_cycle(self) -> None:
        """Nothing before this counts for a cycle."""
        self.prints.clear()
        self.equal_run = dict.fromkeys(CYCLE_PERIODS, 0)


class Reader:
    """Reads events one by one, oldest first.

    Args:
        dialect: the dialect that they come from.
        policy: the policy.
        secret: key of all digests of content; empty for plain ones.
    """

    def __init__(self, dialect: Dialect, policy: Policy, secret: bytes = b"") -> None:
        self._dialect: Dialect = dialect
        self._policy = policy
        self._secret = secret
        self._turn = _Turn(digest("turn"))
        self._after_end = False
        self._seen_after_end: set[bytes] = set()
        self._index = 0

    def copy(self) -> Reader:
        """A reader that goes on by itself from here."""
        twin = copy(self)
        twin._turn, twin._seen_after_end = self._turn.copy(), set(self._seen_after_end)
        return twin

    def steps(self, events: Iterable[Event]) -> Iterator[Step]:
        """What the detectors read of the events. Input that nobody wrote is left out."""
        return (step for event in events if (step := self.step(event)) is not None)

    def step(self, event: Event) -> Step | None:
        """What the detectors read of the event; None for input that nobody wrote."""
        if isinstance(event, Round):
            judged = self.look(event)
            _take_in(self._turn, judged)
            self._after_end = False
            self._index += 1
            return replace(judged, lap=_lap(self._turn, judged.exchanges), rereading=_rereading(self._turn))
        if isinstance(event, RunEnd):
            self._after_end = True
            return event
        return self._input(event)

    def look(self, event: Round) -> JudgedRound:
        """What is known of a round before it is taken in; it stays unread."""
        exchanges = tuple(
            _judge_exchange(exchange, self._turn, self._dialect, self._policy, self._secret)
            for exchange in event.exchanges
        )
        complete = any(judged.exchange.result is not None for judged in exchanges)
        return JudgedRound(self._index, self._turn.anchor, event, exchanges, complete)

    def _input(self, event: UserInput) -> Cleared | None:
        if event.kind == "event":
            self._turn.break_cycle()
            return Cleared(by_user=False, turn=self._turn.anchor)
        if event.kind == "none":
            return None
        words = keyed(digest("words", event.text), self._secret)
        if self._after_end and words in self._seen_after_end:
            return None
        if self._after_end:
            self._seen_after_end.add(words)
        self._turn = _Turn(digest("turn", self._turn.anchor, words))
        return Cleared(by_user=True, turn=self._turn.anchor)


def _take_in(turn: _Turn, judged: JudgedRound) -> None:
    for exchange in judged.exchanges:
        _remember(turn, exchange)
    # Counted after the whole batch: its calls were made together, so none of them is a new run after another's change.
    changed = [exchange.role for exchange in judged.exchanges if _changed_files(exchange)]
    turn.writes += bool(changed)
    turn.edits += any(role != "shell" for role in changed)


def _remember(turn: _Turn, judged: JudgedExchange) -> None:
    turn.last_run[judged.key] = turn.writes
    if judged.role == "shell":
        turn.last_shell[judged.tool] = turn.edits
    turn.last[judged.key] = judged
    if judged.loose is not None:
        turn.loose[judged.loose] = judged
    if judged.beyond is not None:
        parsed = parse_arguments(judged.exchange.call.arguments)
        turn.beyond[judged.beyond[0]] = (target_path(parsed) if isinstance(parsed, Mapping) else None) or ""
    if judged.may_change:
        turn.reads.clear()
    elif judged.role == "read":
        turn.reads.append(judged.key)


def _rereading(turn: _Turn) -> int:
    full = len(turn.reads) == READ_WINDOW
    return READ_WINDOW if full and len(set(turn.reads)) * DISTINCT_SHARE <= READ_WINDOW else 0


def _lap(turn: _Turn, exchanges: tuple[JudgedExchange, ...]) -> Lap | None:
    """Take the round's fingerprint, and see whether it completes a lap. Waiting is no side of a cycle."""
    if any(judged.role == "wait" or judged.outcome.kind in ("pending", "cancelled") for judged in exchanges):
        turn.break_cycle()
        return None
    turn.prints.append(digest("round", *sorted(judged.key + judged.result for judged in exchanges)))
    newest = len(turn.prints) - 1
    for period in CYCLE_PERIODS:
        same = newest >= period and turn.prints[newest] == turn.prints[newest - period]
        turn.equal_run[period] = turn.equal_run[period] + 1 if same else 0
    return next(filter(None, (_completed(turn, period) for period in CYCLE_PERIODS)), None)


def _completed(turn: _Turn, period: int) -> Lap | None:
    run = turn.equal_run[period]
    if run == 0 or run % period != 0:
        return None
    members = tuple(sorted(turn.prints[-period:]))
    # One round repeated is a repeated call, not a cycle.
    return Lap(period, run // period + 1, members) if len(set(members)) > 1 else None


def _judge_exchange(exchange: Exchange, turn: _Turn, dialect: Dialect, policy: Policy, secret: bytes) -> JudgedExchange:
    call, given = exchange.call, exchange.result
    parsed = parse_arguments(call.arguments)
    arguments = parsed if isinstance(parsed, Mapping) else None
    role = call_role(policy.role(call.name), call.name, arguments)
    outcome = outcome_of(dialect, exchange, policy.results(call.name))
    exact = b"" if given is None else keyed(result_key(given), secret)
    key, loose = _identities(call, parsed, exact, turn, policy, secret)
    first = key not in turn.last_run
    before = turn.last.get(key)
    result = _steady(exchange, exact, before)
    again = before is not None and before.result == result
    text = "" if given is None else given.text
    may_change = _may_change(role, outcome, first, new=not again)
    return JudgedExchange(
        exchange=exchange,
        key=key,
        result=result,
        outcome=outcome,
        role=role,
        novel=first and role not in _NOT_NOVEL_ROLES,
        may_change=may_change,
        rerun=_is_rerun(turn, key, call.name, role),
        again=again,
        traces=ReadTraces(text, parsed, outcome, role, secret),
        loose=loose,
        unseen=call.executed_by == "provider" and given is not None and not (given.text or given.opaque),
        beyond=_beyond(text, parsed, outcome, secret),
        touched=_touched(parsed, turn) if may_change and turn.beyond else frozenset(),
    )


def _beyond(text: str, parsed: Any, outcome: Outcome, secret: bytes) -> tuple[bytes, bytes] | None:
    beyond = read_beyond(text, parsed, outcome)
    if beyond is None:
        return None
    return keyed(digest("path", beyond.path), secret), keyed(digest("lines", beyond.lines), secret)


def _touched(parsed: Any, turn: _Turn) -> frozenset[bytes]:
    text = touched_text(parsed)
    return frozenset(digest_ for digest_, path in turn.beyond.items() if path in text)


def _is_rerun(turn: _Turn, key: bytes, tool: str, role: Role) -> bool:
    """Whether the call is a new experiment after a change. For a shell any command is after an edit by another tool."""
    if role == "shell" and turn.edits > turn.last_shell.get(tool, turn.edits):
        return True
    return turn.writes > turn.last_run.get(key, turn.writes)


def _identities(
    call: ToolCall, parsed: Any, result: bytes, turn: _Turn, policy: Policy, secret: bytes
) -> tuple[bytes, bytes | None]:
    """The identity of a call, and its loose one if it has one."""
    identity = policy.identity(call.name)
    counted = identity.of(parsed) if identity is not None and isinstance(parsed, Mapping) else parsed
    exact = keyed(call_key(call, counted), secret)
    kept = without_nonces(counted) if identity is None else None
    if kept is None:
        return exact, None
    loose = keyed(call_key(call, kept, loose=True), secret)
    before = turn.loose.get(loose)
    return (loose if before is not None and before.result == result else exact), loose


def _steady(exchange: Exchange, result: bytes, before: JudgedExchange | None) -> bytes:
    if before is None or before.result == result or exchange.result is None or before.exchange.result is None:
        return result
    return before.result if same_but_for_noise(before.exchange.result, exchange.result) else result


def _may_change(role: Role, outcome: Outcome, first: bool, *, new: bool) -> bool:
    """Whether something may be different after the call: a write, a first call of a tool that may do anything, or any
    call that returns something else than last time. What writes and shells return is mostly unmarked text in dialects
    without an error flag; it is taken for work, because taking an edit for nothing would stop the test that is run
    after it. The same call with the same result is no change: two such calls in turns would else hide each other."""
    if outcome.kind not in ("succeeded", "unclear") or role == "think":
        return False
    return role == "write" or (first and role in _CHANGING_ROLES) or (new and not first)


def _changed_files(judged: JudgedExchange) -> bool:
    """Whether a command that is run again now is a new experiment. Shell commands edit files too, in many agents they
    alone do, and so do tools that nobody knows, unless their name says that they only look; a call that was made before
    is no new change."""
    if judged.role == "write":
        return judged.outcome.kind in ("succeeded", "unclear")
    if judged.role == "unknown" and judged.tool.lower().replace("-", "_").split("_")[0] in _LOOKING_WORDS:
        return False
    return judged.role in _CHANGING_ROLES and judged.novel and judged.may_change
