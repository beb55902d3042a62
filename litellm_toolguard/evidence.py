"""What the history says about each exchange, before any detector counts.

One pass over the events of a transcript turns rounds into `JudgedRound`s: identities, outcome, role, and the facts that
depend on what came earlier in the same turn. Every fact depends on earlier events only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from litellm_toolguard.canonical import call_key, digest, parse_arguments, result_key
from litellm_toolguard.outcomes import Outcome, outcome_of
from litellm_toolguard.policy import Policy
from litellm_toolguard.roles import Role, call_role
from litellm_toolguard.transcript import Dialect, Exchange, Round, RunEnd, Transcript

FAILURES = frozenset({"failed", "invalid_arguments", "unknown_tool"})
_NOT_NOVEL_ROLES = frozenset({"think", "wait"})
_CHANGING_ROLES = frozenset({"shell", "unknown"})


@dataclass(frozen=True, slots=True)
class JudgedExchange:
    """One exchange and what is known about it.

    Args:
        exchange: the exchange.
        parsed: its arguments, see `canonical.parse_arguments`.
        key: identity of the call.
        result: exact identity of the result, empty while pending.
        outcome: how it ended.
        role: the tool's role, refined by the call.
        novel: name and arguments first seen in this turn, and neither thinking nor waiting.
        may_change: it ended well and may have changed something.
        rerun: the same call was made earlier in the turn, and something was written since.
    """

    exchange: Exchange
    parsed: Any
    key: bytes
    result: bytes
    outcome: Outcome
    role: Role
    novel: bool
    may_change: bool
    rerun: bool

    @property
    def tool(self) -> str:
        """The tool's name as the model wrote it."""
        return self.exchange.call.name

    @property
    def text(self) -> str:
        """The text of the result."""
        return self.exchange.result.text if self.exchange.result is not None else ""

    @property
    def failed(self) -> bool:
        """Whether it ended in a failure that does not pass by itself."""
        return self.outcome.kind in FAILURES


@dataclass(frozen=True, slots=True)
class JudgedRound:
    """A round and its judged exchanges.

    Args:
        index: number of the round in the transcript, from 0.
        turn: digest of what the user wrote at the start of the turn.
        complete: whether every call has its result; only a complete round is acted on.
    """

    index: int
    turn: bytes
    round: Round
    exchanges: tuple[JudgedExchange, ...]
    complete: bool

    @property
    def novel(self) -> bool:
        """Whether the round holds a call that is new in this turn."""
        return any(exchange.novel for exchange in self.exchanges)


@dataclass(frozen=True, slots=True)
class Cleared:
    """Input that empties streaks: all of them for the user's, repeats only for an event.

    Args:
        by_user: whether the user wrote it.
    """

    by_user: bool


Step: TypeAlias = JudgedRound | Cleared | RunEnd


class _Turn:
    """What the current turn has seen so far."""

    def __init__(self, anchor: bytes) -> None:
        self.anchor = anchor
        self.writes = 0
        self.last_run: dict[bytes, int] = {}
        self.last_result: dict[bytes, bytes] = {}


def steps(transcript: Transcript, policy: Policy) -> Iterator[Step]:
    """The events of a transcript as the detectors read them. Input that nobody wrote is left out."""
    turn = _Turn(digest("turn"))
    after_end = False
    seen_after_end: set[bytes] = set()
    index = 0
    for event in transcript.events:
        if isinstance(event, Round):
            after_end = False
            yield _judge(event, index, turn, transcript.dialect, policy)
            index += 1
        elif isinstance(event, RunEnd):
            after_end = True
            yield event
        elif event.kind == "user":
            words = digest("words", event.text)
            if after_end and words in seen_after_end:
                continue
            if after_end:
                seen_after_end.add(words)
            turn = _Turn(digest("turn", turn.anchor, words))
            yield Cleared(by_user=True)
        elif event.kind == "event":
            yield Cleared(by_user=False)


def _judge(event: Round, index: int, turn: _Turn, dialect: Dialect, policy: Policy) -> JudgedRound:
    exchanges = tuple(_judge_exchange(exchange, turn, dialect, policy) for exchange in event.exchanges)
    for judged in exchanges:
        turn.last_run[judged.key] = turn.writes
        turn.last_result[judged.key] = judged.result
    # Counted after the whole batch: its calls were made together, so none of them is a new run after another's change.
    turn.writes += any(_changed_files(judged) for judged in exchanges)
    complete = all(judged.outcome.kind != "pending" for judged in exchanges)
    return JudgedRound(index, turn.anchor, event, exchanges, complete)


def _judge_exchange(exchange: Exchange, turn: _Turn, dialect: Dialect, policy: Policy) -> JudgedExchange:
    call = exchange.call
    parsed = parse_arguments(call.arguments)
    key = call_key(call, parsed)
    arguments = parsed if isinstance(parsed, Mapping) else None
    role = call_role(policy.role(call.name), call.name, arguments)
    outcome = outcome_of(dialect, exchange)
    first = key not in turn.last_run
    result = b"" if exchange.result is None else result_key(exchange.result)
    return JudgedExchange(
        exchange=exchange,
        parsed=parsed,
        key=key,
        result=result,
        outcome=outcome,
        role=role,
        novel=first and role not in _NOT_NOVEL_ROLES,
        may_change=_may_change(role, outcome, first, new=turn.last_result.get(key) != result),
        rerun=not first and turn.writes > turn.last_run[key],
    )


def _may_change(role: Role, outcome: Outcome, first: bool, *, new: bool) -> bool:
    """A tool of an unknown role that is called again and returns the same again is no change: two such calls in turns
    would else hide each other. What writes and shells return is mostly unmarked text in dialects without an error flag;
    it is taken for work, because taking an edit for nothing would stop the test that is run after it."""
    if role == "write":
        return outcome.kind in ("succeeded", "unclear")
    if role not in _CHANGING_ROLES:
        return False
    return (outcome.kind == "succeeded" and new) or (outcome.kind == "unclear" and first and role == "shell")


def _changed_files(judged: JudgedExchange) -> bool:
    """Whether a command that is run again now is a new experiment. Shell commands edit files too, in many agents they
    alone do; an identical command is no new change."""
    if judged.role == "write":
        return judged.outcome.kind in ("succeeded", "unclear")
    return judged.role == "shell" and judged.novel and judged.may_change
