"""Transcript, policy and stored facts in; one decision out. The only place where detectors run.

The history is folded once. At every round the streaks that the round raised are compared with their ladders, which
gives the notes that belong to that round; the newest round also gives the verdict. Both depend on earlier rounds and on
stored facts only, so a longer history gets the same notes at the same places.

Facts: a streak may end a run only if a note about it, or about a streak that shares a call with it, was sent at an
earlier round. That is remembered as `instance of the streak -> count at which it was first due`. An unknown fact lowers
the end to a note now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from litellm_toolguard import notes
from litellm_toolguard.canonical import digest
from litellm_toolguard.detectors import CLEARED_BY_EVENTS, FOLDS
from litellm_toolguard.detectors.failing_call import RERUN
from litellm_toolguard.dialects.history import Note
from litellm_toolguard.evidence import Cleared, JudgedRound, steps
from litellm_toolguard.policy import DETECTORS, MIN_LIMIT, RERUN_HINT, DetectorName, EndAction, Ladder, Policy
from litellm_toolguard.streaks import Streak, Streaks
from litellm_toolguard.transcript import RunEnd, Transcript

Action: TypeAlias = Literal["pass", "hint", "stop", "reject"]
Facts: TypeAlias = Mapping[bytes, int]
FactLookup: TypeAlias = Callable[[Iterable[bytes]], Facts]

SEVERITY: Final[Mapping[Action, int]] = {"pass": 0, "hint": 1, "stop": 2, "reject": 3}
ENDS_BEFORE_REJECT: Final = 2
"""The third end of a run on one key in a conversation is a rejection: words did not stop this harness."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one streak asks for at the newest round.

    Args:
        detector: the detector.
        kind: the kind of its key, '' where the detector has one kind only.
        action: what its ladder says, after hint-first; `pass` where the policy allows the tool.
        tool: the tool, as the model wrote it.
        count: the count that tripped.
        allowed: whether the policy lets it pass.
        instance: identity of the streak.
    """

    detector: DetectorName
    kind: str
    action: Action
    tool: str
    count: int
    allowed: bool
    instance: bytes
    sentence: notes.Facts


@dataclass(frozen=True, slots=True)
class Decision:
    """What the guard does with a request, and why.

    Args:
        action: `pass`, `hint`, `stop` or `reject`.
        finding: the finding that decided; None for `pass`.
        also: the other findings, in order.
        notes: every note of the whole history; empty when the run ends.
        remember: facts to be stored before the request goes on.
        words: the last words of an ended run, or the message of a rejection.
        not_inspected: reasons of the parts that could not be read, without content.
    """

    action: Action
    finding: Finding | None = None
    also: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()
    remember: Facts = field(default_factory=dict)
    words: str = ""
    not_inspected: tuple[str, ...] = ()

    @property
    def decision_id(self) -> str:
        """Twelve hex digits; the same for the same decision on the same request."""
        if self.finding is None:
            return ""
        return digest("decision", self.finding.instance, self.action, str(self.finding.count)).hex()[:12]


@dataclass(frozen=True, slots=True)
class _Raised:
    """A streak as one round left it.

    Args:
        streak: the streak.
        ladder: its ladder; None for a streak that only hints.
        allowed: whether the policy lets it pass.
    """

    streak: Streak
    hint: int | None
    ladder: Ladder | None
    allowed: bool

    @property
    def over(self) -> bool:
        return self.ladder is not None and self.streak.count >= self.ladder.end

    @property
    def last(self) -> bool:
        """Whether the next round of its kind ends the run."""
        return self.ladder is not None and self.streak.count == self.ladder.end - 1

    @property
    def at_hint(self) -> bool:
        return self.streak.count == self.hint


@dataclass(frozen=True, slots=True)
class _RoundState:
    """What is known when a round is folded in."""

    round: JudgedRound
    raised: tuple[_Raised, ...]


@dataclass(slots=True)
class _Fold:
    """The running state of the fold over a whole history."""

    streaks: dict[DetectorName, Streaks] = field(default_factory=lambda: {name: {} for name in DETECTORS})
    rounds: list[_RoundState] = field(default_factory=list)
    ends: dict[bytes, int] = field(default_factory=dict)
    new_words: bool = True


def decide(transcript: Transcript, policy: Policy, lookup: FactLookup) -> Decision:
    """The decision on one request.

    Args:
        transcript: its history.
        policy: the policy.
        lookup: gives the stored facts of the given streak instances; unknown ones are absent. Called at most once.
    """
    fold = _folded(transcript, policy)
    facts = _facts(fold, lookup)
    verdicts = tuple(_verdicts(fold, transcript, facts))
    lowered = {finding.instance: finding.count for finding in verdicts if finding.action == "hint"}
    placed = tuple(_placed_notes(fold.rounds, {**facts, **lowered}))
    findings = sorted((*verdicts, *_hints(fold, placed, lowered)), key=_order)
    acting = [finding for finding in findings if not finding.allowed]
    chosen = max(acting, key=_severity, default=None)
    ends = chosen is not None and SEVERITY[chosen.action] >= SEVERITY["stop"]
    due = {finding.instance: finding.count for finding in acting if finding.action == "hint"}
    return Decision(
        action="pass" if chosen is None else chosen.action,
        finding=chosen,
        also=tuple(finding for finding in findings if finding is not chosen),
        notes=() if ends else tuple(Note(place.state.round.round, place.text) for place in placed),
        remember={} if ends else {instance: count for instance, count in due.items() if instance not in facts},
        words=_words(chosen),
        not_inspected=tuple(problem.reason for problem in transcript.problems),
    )


def _folded(transcript: Transcript, policy: Policy) -> _Fold:
    fold = _Fold()
    for step in steps(transcript, policy):
        if isinstance(step, JudgedRound):
            _fold_round(fold, step, policy)
        elif isinstance(step, RunEnd):
            _fold_end(fold)
        else:
            _fold_input(fold, step)
    return fold


def _fold_round(fold: _Fold, judged: JudgedRound, policy: Policy) -> None:
    fold.streaks = {name: detect(fold.streaks[name], judged) for name, detect in FOLDS.items()}
    raised = tuple(_raised(fold.streaks, judged.index, policy)) if judged.complete else ()
    fold.rounds.append(_RoundState(judged, raised))


def _fold_end(fold: _Fold) -> None:
    """An earlier end belongs to the streaks of the round before it that had reached their end."""
    fold.new_words = False
    newest = fold.rounds[-1].raised if fold.rounds else ()
    for raised in newest:
        if raised.over and _is_alive(fold, raised.streak):
            key = raised.streak.key.digest()
            fold.ends[key] = fold.ends.get(key, 0) + 1


def _fold_input(fold: _Fold, step: Cleared) -> None:
    fold.new_words = fold.new_words or step.by_user
    cleared = DETECTORS if step.by_user else CLEARED_BY_EVENTS
    fold.streaks = {name: {} if name in cleared else streaks for name, streaks in fold.streaks.items()}


def _raised(streaks: Mapping[DetectorName, Streaks], index: int, policy: Policy) -> Iterator[_Raised]:
    for name in DETECTORS:
        for key, streak in streaks[name].items():
            if streak.raised != index or streak.count < MIN_LIMIT:
                continue
            ladder = policy.ladder(name, key.kind, streak.tool)
            if ladder is None:
                continue
            allowed = policy.allows(name, streak.tool)
            if key.kind == RERUN:
                yield _Raised(streak, RERUN_HINT, None, allowed)
            else:
                yield _Raised(streak, ladder.hint, ladder, allowed)


def _is_alive(fold: _Fold, streak: Streak) -> bool:
    return fold.streaks[streak.key.detector].get(streak.key) is streak


# -------------------------------------------------------------------------------------------------------------- facts


def _facts(fold: _Fold, lookup: FactLookup) -> Facts:
    """The facts of every streak that ever reached its end (a note may stand there), and of the living streaks that may
    speak for one of those. Nothing is asked for a history without such a streak."""
    over = [raised.streak for state in fold.rounds for raised in state.raised if raised.over]
    if not over:
        return {}
    alive = [streak for streaks in fold.streaks.values() for streak in streaks.values()]
    speaking = {other.instance for other in alive if any(other.shares_a_call(streak) for streak in over)}
    return lookup(sorted(speaking | {streak.instance for streak in over}))


def _was_told(streak: Streak, fold: _Fold, facts: Facts) -> bool:
    """Whether a note about the streak, or about a living one that shares a call with it, was sent at an earlier
    round."""
    newest = fold.rounds[-1].round.index
    alive = (other for streaks in fold.streaks.values() for other in streaks.values())
    return any(
        facts[other.instance] < other.count or other.raised < newest
        for other in alive
        if other.instance in facts and other.shares_a_call(streak)
    )


# ----------------------------------------------------------------------------------------------------------- verdicts


def _verdicts(fold: _Fold, transcript: Transcript, facts: Facts) -> Iterator[Finding]:
    """What the streaks ask for that the newest round brought to their end, or beyond it. A streak that was not
    announced gets a note instead."""
    for raised in _newest_raised(fold):
        if not raised.over or raised.ladder is None:
            continue
        told = raised.allowed or _was_told(raised.streak, fold, facts)
        action = _end_action(raised.ladder.end_action, raised.streak, fold, transcript) if told else "hint"
        yield _finding(raised, action)


def _end_action(wanted: EndAction, streak: Streak, fold: _Fold, transcript: Transcript) -> Action:
    earlier = fold.ends.get(streak.key.digest(), 0)
    if not transcript.words_allowed or (earlier >= ENDS_BEFORE_REJECT and not fold.new_words):
        return "reject"
    return wanted


def _newest_raised(fold: _Fold) -> Iterator[_Raised]:
    """The streaks that the newest round raised and that no input emptied since."""
    newest = fold.rounds[-1].raised if fold.rounds else ()
    return (raised for raised in newest if _is_alive(fold, raised.streak))


def _hints(fold: _Fold, placed: tuple[_Place, ...], lowered: Facts) -> Iterator[Finding]:
    """The notes that the newest round earned by itself."""
    if not fold.rounds or not placed or placed[-1].state is not fold.rounds[-1]:
        return
    for raised in placed[-1].due:
        if raised.streak.instance not in lowered and not raised.over and _is_alive(fold, raised.streak):
            yield _finding(raised, "hint")


def _finding(raised: _Raised, action: Action) -> Finding:
    streak = raised.streak
    return Finding(
        detector=streak.key.detector,
        kind=streak.key.kind,
        action=action,
        tool=streak.tool,
        count=streak.count,
        allowed=raised.allowed,
        instance=streak.instance,
        sentence=_sentence_facts(streak),
    )


def _sentence_facts(streak: Streak) -> notes.Facts:
    kind = streak.key.kind
    return notes.Facts(
        detector=f"{streak.key.detector}/{kind}" if kind else streak.key.detector,
        tool=streak.tool,
        count=streak.count,
        sameness="same" if len(streak.signatures) == 1 else "varying",
        refusals=streak.refusals,
        category=streak.category,
    )


def _order(finding: Finding) -> int:
    return DETECTORS.index(finding.detector)


def _severity(finding: Finding) -> int:
    return SEVERITY[finding.action]


def _words(chosen: Finding | None) -> str:
    if chosen is None or chosen.action not in ("stop", "reject"):
        return ""
    return notes.end(chosen.sentence) if chosen.action == "stop" else notes.rejection(chosen.sentence)


# -------------------------------------------------------------------------------------------------------------- notes


@dataclass(frozen=True, slots=True)
class _Place:
    """The note of one round.

    Args:
        state: the round.
        due: the streaks that earned it, the one that it is about first.
    """

    state: _RoundState
    due: tuple[_Raised, ...]

    @property
    def text(self) -> str:
        raised = self.due[0]
        return notes.hint(_sentence_facts(raised.streak), last=raised.last or raised.over)


def _placed_notes(rounds: Iterable[_RoundState], facts: Facts) -> Iterator[_Place]:
    """Where notes stand in the history: at the hint rung, at the last round before the end, and where an end was
    lowered to a note. One note a round."""
    before: _Place | None = None
    for state in rounds:
        due = [raised for raised in state.raised if not raised.allowed and _is_due(raised, facts, before)]
        before = _Place(state, tuple(sorted(due, key=_urgency))) if due else None
        if before is not None:
            yield before


def _is_due(raised: _Raised, facts: Facts, before: _Place | None) -> bool:
    if raised.over:
        return facts.get(raised.streak.instance) == raised.streak.count
    if raised.last:
        return True
    return raised.at_hint and not _just_told(raised.streak, before)


def _just_told(streak: Streak, before: _Place | None) -> bool:
    """Whether the round before had a note about the same calls: two notes in a row would say the same thing twice."""
    return before is not None and any(raised.streak.shares_a_call(streak) for raised in before.due)


def _urgency(raised: _Raised) -> tuple[bool, int]:
    return not (raised.last or raised.over), DETECTORS.index(raised.streak.key.detector)
