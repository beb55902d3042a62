"""The verdict on a proposed round: would these calls trip block, ask, stop or reject if they ran?

The result of a proposed call is taken to equal the last one of its streak. So a ladder with `block: 5` holds back the
fifth call of its kind. A batch trips only if every call in it does: one new call makes the whole of it work, whatever
failed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from litellm_toolguard.detectors.failing_tool import TRANSIENT
from litellm_toolguard.evidence import ProposedCall
from litellm_toolguard.policy import DETECTORS, DetectorName, Ladder
from litellm_toolguard.streaks import Streak
from litellm_toolguard.walk import Facts, Walk, measured

ProposalAction: TypeAlias = Literal["ask", "block", "stop", "reject"]

SEVERITY: Final[Mapping[ProposalAction, int]] = {"block": 1, "ask": 2, "stop": 3, "reject": 4}


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a proposed round should not run as it is.

    Args:
        action: `block`, `ask`, `stop` or `reject`.
        detector: the detector.
        tool: the tool.
        count: the count that the round would reach.
        call_id: the call that it is about.
        allowed: whether the policy lets it pass.
    """

    action: ProposalAction
    detector: DetectorName
    tool: str
    count: int
    call_id: str
    allowed: bool


def judge_proposal(walk: Walk, calls: Sequence[ProposedCall], facts: Facts, *, words_allowed: bool) -> Objection | None:
    """The objection to a proposed round, if every call of it trips.

    Args:
        walk: the walk over the history before it.
        calls: its calls; none is no proposal.
        facts: the stored facts of the living streaks. A streak that was not announced trips nothing.
        words_allowed: whether a run may end in words; where not, a stop or a question is a rejection.
    """
    tripped = [_objections(walk, calls, call, facts) for call in calls]
    if not tripped or not all(tripped):
        return None
    worst = max((max(objections, key=_severity) for objections in tripped), key=_severity)
    in_words = worst.action in ("ask", "stop")
    return replace(worst, action="reject") if in_words and not words_allowed else worst


def _severity(objection: Objection) -> tuple[int, int]:
    return SEVERITY[objection.action], -DETECTORS.index(objection.detector)


def _objections(walk: Walk, calls: Sequence[ProposedCall], call: ProposedCall, facts: Facts) -> tuple[Objection, ...]:
    found = (_objection(walk, streak, call, facts) for streak in _would_raise(walk, calls, call))
    return tuple(objection for objection in found if objection is not None and not objection.allowed)


def _objection(walk: Walk, streak: Streak, call: ProposedCall, facts: Facts) -> Objection | None:
    count = streak.count + 1
    for raised in measured(streak, walk.policy):
        action = _rung(raised.ladder, count)
        told = raised.allowed or walk.was_told(streak, facts, before=len(walk.rounds))
        if action is not None and told:
            detector = streak.key.detector
            return Objection(action, detector, call.name, count, call.call_id, raised.allowed)
    return None


def _rung(ladder: Ladder | None, count: int) -> ProposalAction | None:
    """The highest rung that the count reaches."""
    if ladder is None:
        return None
    if count >= ladder.end:
        return ladder.end_action
    if ladder.ask is not None and count >= ladder.ask:
        return "ask"
    return "block" if ladder.block is not None and count >= ladder.block else None


def _would_raise(walk: Walk, calls: Sequence[ProposedCall], call: ProposedCall) -> Iterator[Streak]:
    """The streaks that the call would raise."""
    batch_is_novel = any(each.novel for each in calls)
    for streak in walk.alive():
        belongs = _BELONGS.get((streak.key.detector, streak.key.kind))
        if belongs is not None and belongs(streak, call) and not (batch_is_novel and _foretells(streak)):
            yield streak


def _foretells(streak: Streak) -> bool:
    """Whether it is the result that would raise the streak. That of a call which is new in the turn is not known: the
    call may be the one that works. A limit on calls counts them whatever they return."""
    return streak.key.detector != "call-budget"


Belongs: TypeAlias = Callable[[Streak, ProposedCall], bool]


def _same_call(streak: Streak, call: ProposedCall) -> bool:
    return streak.key.parts[0] == call.key


def _same_working_call(streak: Streak, call: ProposedCall) -> bool:
    return _same_call(streak, call) and call.role != "wait"


def _same_wait(streak: Streak, call: ProposedCall) -> bool:
    return _same_call(streak, call) and call.role == "wait"


def _same_tool(streak: Streak, call: ProposedCall) -> bool:
    return streak.tool == call.name and not call.rerun


def _same_failing_call(streak: Streak, call: ProposedCall) -> bool:
    own: tuple[Any, ...] = streak.key.parts[2:]
    return _same_tool(streak, call) and (not own or own[0] == call.key)


def _denied_tool(streak: Streak, call: ProposedCall) -> bool:
    return streak.tool == call.name


_BELONGS: Final[Mapping[tuple[DetectorName, str], Belongs]] = {
    ("denied-call", "tool"): _denied_tool,
    ("invalid-arguments", ""): _denied_tool,
    ("failing-call", ""): _same_failing_call,
    ("failing-tool", ""): _same_tool,
    ("failing-tool", TRANSIENT): _same_tool,
    ("repeated-call", ""): _same_working_call,
    ("idle-wait", ""): _same_wait,
    ("call-budget", ""): _denied_tool,
}
