"""The verdict on a proposed round: would these calls trip block, ask, stop or reject if they ran?

The result of a proposed call is taken to equal the last one of its streak. So a ladder with `block: 5` holds back the
fifth call of its kind. What a call that is new in the turn will return is not known: it may be the one that works, so
only a call trips that was made before. A batch trips only if every call in it does: one new call makes the whole of it
work. For two things one call is enough: a call that is made again although it was refused for good, and
one that is over the budget of its tool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from litellm_toolguard import notes
from litellm_toolguard.canonical import digest
from litellm_toolguard.detectors.failing_tool import TRANSIENT
from litellm_toolguard.evidence import ProposedCall
from litellm_toolguard.policy import DETECTORS, DeniedLadder, DetectorName, EndAction, Ladder
from litellm_toolguard.streaks import Streak
from litellm_toolguard.walk import Facts, Raised, Walk, measured, sentence_facts

ProposalAction: TypeAlias = Literal["ask", "block", "stop", "reject"]

WITHHELD: Final = "withheld"
"""The kind of an objection to a call whose result is withheld."""

SEVERITY: Final[Mapping[ProposalAction, int]] = {"block": 1, "ask": 2, "stop": 3, "reject": 4}

Blocked: TypeAlias = Mapping[bytes, int]
"""Instance of a streak -> samples that were held back for it at earlier places of the turn."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored about the living streaks.

    Args:
        told: at which counts notes about them were first due.
        blocked: samples that were held back for them.
    """

    told: Facts = field(default_factory=dict)
    blocked: Blocked = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a proposed round should not run as it is.

    Args:
        action: `block`, `ask`, `stop` or `reject`.
        detector: the detector.
        kind: the kind of its key.
        tool: the tool.
        count: the count that the round would reach, samples that were held back included.
        call_id: the call that it is about.
        allowed: whether the policy lets it pass.
        instance: identity of the streak.
        sentence: what may be said about it.
        end: how the run ends when the model insists: `stop`, or `reject` where no words can be said.
        alone: whether it holds for a batch whatever the other calls are.
        deaf: whether words did not stop this conversation before.
    """

    action: ProposalAction
    detector: DetectorName
    kind: str
    tool: str
    count: int
    call_id: str
    allowed: bool
    instance: bytes
    sentence: notes.Facts
    end: EndAction
    alone: bool = False
    deaf: bool = False


def judge_proposal(
    walk: Walk, calls: Sequence[ProposedCall], stored: Stored, *, words_allowed: bool
) -> Objection | None:
    """The objection to a proposed round.

    Args:
        walk: the walk over the history before it.
        calls: its calls; none is no proposal.
        stored: what is stored about the living streaks. A streak that was not announced trips nothing.
        words_allowed: whether a run may end in words; where not, a stop or a question is a rejection.
    """
    found = [tuple(_objections(walk, calls, call, stored)) for call in calls]
    flat = [objection for objections in found for objection in objections]
    tripped = flat if found and all(found) else [objection for objection in flat if objection.alone]
    if not tripped:
        return None
    worst = max(tripped, key=_severity)
    end: EndAction = worst.end if words_allowed else "reject"
    in_words = worst.action in ("ask", "stop") and not words_allowed
    return replace(worst, action="reject" if in_words or worst.deaf else worst.action, end=end)


def suspects(walk: Walk) -> tuple[Streak, ...]:
    """The living streaks that a further call could bring to a rung, told or not; their facts are to be looked up."""
    return tuple(
        streak
        for streak in walk.alive()
        if _is_read(streak) and any(_rung(each.ladder, streak.count + 1) for each in measured(streak, walk.policy))
    )


def is_armed(walk: Walk, stored: Stored) -> bool:
    """Whether the next round could trip block, ask, stop or reject, as far as the history tells."""
    return bool(walk.refused or walk.closed) or any(_is_told(walk, streak, stored) for streak in suspects(walk))


def _severity(objection: Objection) -> tuple[int, int]:
    return SEVERITY[objection.action], -DETECTORS.index(objection.detector)


def _objections(walk: Walk, calls: Sequence[ProposedCall], call: ProposedCall, stored: Stored) -> Iterator[Objection]:
    if call.key in walk.closed:
        yield _reopened(walk, call, stored)
    if call.key in walk.refused and (objection := _resend(walk, call, stored)) is not None:
        yield objection
    for streak in _would_raise(walk, calls, call):
        objection = _objection(walk, streak, calls, call, stored)
        if objection is not None and not objection.allowed:
            yield objection


def _objection(
    walk: Walk, streak: Streak, calls: Sequence[ProposedCall], call: ProposedCall, stored: Stored
) -> Objection | None:
    budget = streak.key.detector == "call-budget"
    more = sum(each.name == call.name for each in calls) if budget else 1
    count = streak.count + more + stored.blocked.get(streak.instance, 0)
    for raised in measured(streak, walk.policy):
        action = _rung(raised.ladder, count)
        if action is not None and (raised.allowed or _is_told(walk, streak, stored)):
            return _made(action, raised, walk, call, count, alone=budget)
    return None


def _is_told(walk: Walk, streak: Streak, stored: Stored) -> bool:
    return walk.was_told(streak, stored.told, before=len(walk.rounds))


def _resend(walk: Walk, call: ProposedCall, stored: Stored) -> Objection | None:
    """The objection to a call that was refused for good and is made again. It needs no note before it: the refusal was
    one."""
    for streak in walk.alive():
        if (streak.key.detector, streak.key.kind) != ("denied-call", "tool") or streak.tool != call.name:
            continue
        count = streak.count + 1 + stored.blocked.get(streak.instance, 0)
        for raised in measured(streak, walk.policy):
            if isinstance(raised.ladder, DeniedLadder) and raised.ladder.block_resend and not raised.allowed:
                action = _rung(raised.ladder, count) or "block"
                return _made(action, raised, walk, call, count, alone=True)
    return None


def _reopened(walk: Walk, call: ProposedCall, stored: Stored) -> Objection:
    """The objection to a call whose result is withheld in this turn: it would be withheld again."""
    instance = digest("reopened", walk.turn, call.key)
    return Objection(
        action="block",
        detector="denied-call",
        kind=WITHHELD,
        tool=call.name,
        count=2 + stored.blocked.get(instance, 0),
        call_id=call.call_id,
        allowed=False,
        instance=instance,
        sentence=notes.Facts(detector=f"denied-call/{WITHHELD}", tool=call.name, count=2),
        end="stop",
        alone=True,
    )


def _made(
    action: ProposalAction, raised: Raised, walk: Walk, call: ProposedCall, count: int, *, alone: bool
) -> Objection:
    streak, ladder = raised.streak, raised.ladder
    wanted: EndAction = "stop" if ladder is None else ladder.end_action
    return Objection(
        action=action,
        detector=streak.key.detector,
        kind=streak.key.kind,
        tool=call.name,
        count=count,
        call_id=call.call_id,
        allowed=raised.allowed,
        instance=streak.instance,
        sentence=replace(sentence_facts(streak, walk.tools), tool=call.name),
        end="reject" if walk.is_deaf(streak) else wanted,
        alone=alone,
        deaf=walk.is_deaf(streak),
    )


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
    for streak in walk.alive():
        belongs = _BELONGS.get((streak.key.detector, streak.key.kind))
        if belongs is not None and belongs(walk, streak, calls, call):
            yield streak


def _is_read(streak: Streak) -> bool:
    return (streak.key.detector, streak.key.kind) in _BELONGS


Belongs: TypeAlias = Callable[[Walk, Streak, Sequence[ProposedCall], ProposedCall], bool]


def _same_working_call(_walk: Walk, streak: Streak, _calls: Sequence[ProposedCall], call: ProposedCall) -> bool:
    return streak.key.parts[0] == call.key and call.role != "wait"


def _same_wait(_walk: Walk, streak: Streak, _calls: Sequence[ProposedCall], call: ProposedCall) -> bool:
    return streak.key.parts[0] == call.key and call.role == "wait"


def _same_tool(_walk: Walk, streak: Streak, _calls: Sequence[ProposedCall], call: ProposedCall) -> bool:
    return streak.tool == call.name


def _a_member(walk: Walk, streak: Streak, _calls: Sequence[ProposedCall], call: ProposedCall) -> bool:
    """Whether this very call is one that the streak counts, and nothing changed since."""
    made = (walk.rounds[index].round.exchanges[position] for index, position in streak.calls)
    return not call.rerun and any(judged.key == call.key and judged.tool == call.name for judged in made)


def _closes_a_lap(walk: Walk, streak: Streak, calls: Sequence[ProposedCall], _call: ProposedCall) -> bool:
    """Whether the round is the last of a further lap: the calls of the round one lap before, a lap behind its end."""
    period, index = int(str(streak.key.parts[0])), len(walk.rounds)
    if streak.raised != index - period or index < period:
        return False
    before = walk.rounds[index - period].round
    return sorted(each.key for each in before.exchanges) == sorted(each.key for each in calls)


_BELONGS: Final[Mapping[tuple[DetectorName, str], Belongs]] = {
    ("denied-call", "tool"): _a_member,
    ("denied-call", "target"): _a_member,
    ("denied-call", "category"): _a_member,
    ("unknown-tool", ""): _a_member,
    ("invalid-arguments", ""): _a_member,
    ("stuck-range", ""): _a_member,
    ("failing-call", ""): _a_member,
    ("failing-tool", ""): _a_member,
    ("failing-tool", TRANSIENT): _a_member,
    ("repeated-call", ""): _same_working_call,
    ("call-cycle", ""): _closes_a_lap,
    ("idle-wait", ""): _same_wait,
    ("call-budget", ""): _same_tool,
}
