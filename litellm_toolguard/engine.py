"""Transcript, policy and stored facts in; one decision out. The only place where detectors run.

The history is walked once. At every round the streaks that the round raised are compared with their ladders, which
gives the notes that belong to that round; the newest round also gives the verdict. Both depend on earlier rounds and on
stored facts only, so a longer history gets the same notes at the same places.

Facts: a streak may end a run only if a note about it, or about a streak that shares a call with it, was sent at an
earlier round. That is remembered as `instance of the streak -> count at which it was first due`. An unknown fact lowers
the end to a note now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from litellm_toolguard import notes
from litellm_toolguard.canonical import digest
from litellm_toolguard.dialects.history import Note
from litellm_toolguard.evidence import Reader, Step
from litellm_toolguard.policy import DetectorName, EndAction, Policy
from litellm_toolguard.proposals import Objection, suspects
from litellm_toolguard.streaks import Streak
from litellm_toolguard.transcript import Dialect, Transcript
from litellm_toolguard.walk import Facts, Place, Raised, Walk, placed_notes, sentence_facts

Action: TypeAlias = Literal["pass", "hint", "stop", "reject"]
FactLookup: TypeAlias = Callable[[Iterable[bytes]], Facts]

SEVERITY: Final[Mapping[Action, int]] = {"pass": 0, "hint": 1, "stop": 2, "reject": 3}


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
        call_id: the newest call that it counts.
        sentence: what may be said about it.
    """

    detector: DetectorName
    kind: str
    action: Action
    tool: str
    count: int
    allowed: bool
    instance: bytes
    call_id: str
    sentence: notes.Facts


def decision_id(found: Finding | Objection) -> str:
    """Twelve hex digits; the same for the same action on the same streak at the same count."""
    return digest("decision", found.instance, found.action, str(found.count)).hex()[:12]


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
        return decision_id(self.finding)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a decision is made on.

    Args:
        dialect: the dialect of the request.
        steps: the history as the detectors read it.
        tools: the tools that the request offers, for the sentences.
        words_allowed: whether the run may end in words.
        problems: reasons of the parts that could not be read.
    """

    dialect: Dialect
    steps: tuple[Step, ...]
    tools: Mapping[str, Any]
    words_allowed: bool
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a conversation stands when a request leaves: what the answer to it is judged by.

    Args:
        reader: reads what comes next.
        walk: the walk over the history.
        told: the stored facts of its streaks, those of this request included.
        evidence: what the decision on the request was made on.
    """

    reader: Reader
    walk: Walk
    told: Facts
    evidence: Evidence

    @property
    def dialect(self) -> Dialect:
        """The dialect of the request."""
        return self.evidence.dialect

    @property
    def words_allowed(self) -> bool:
        """Whether the run may end in words."""
        return self.evidence.words_allowed


def decide(
    transcript: Transcript, policy: Policy, lookup: FactLookup, secret: bytes = b""
) -> tuple[Decision, Standing]:
    """The decision on one request, and where the conversation stands behind it.

    Args:
        transcript: its history.
        policy: the policy.
        lookup: gives the stored facts of the given streak instances; unknown ones are absent. Called at most once.
        secret: key of all digests; empty for plain ones.
    """
    reader = Reader(transcript.dialect, policy, secret)
    read = tuple(reader.steps(transcript.events))
    problems = tuple(problem.reason for problem in transcript.problems)
    evidence = Evidence(transcript.dialect, read, transcript.tools, transcript.words_allowed, problems)
    return decide_on(evidence, policy, lookup, reader)


def decide_on(evidence: Evidence, policy: Policy, lookup: FactLookup, reader: Reader) -> tuple[Decision, Standing]:
    """The same on evidence; `reader` reads what comes behind it."""
    walk = Walk(policy, evidence.tools)
    for step in evidence.steps:
        walk.add(step)
    facts = _facts(walk, lookup)
    decision = _decision(evidence, walk, facts)
    return decision, Standing(reader, walk, {**decision.remember, **facts}, evidence)


def _decision(evidence: Evidence, walk: Walk, facts: Facts) -> Decision:
    ends = tuple(verdicts(walk, facts, words_allowed=evidence.words_allowed))
    lowered = {finding.instance: finding.count for finding in ends if finding.action == "hint"}
    placed = tuple(placed_notes(walk, {**facts, **lowered}))
    findings = (*ends, *hints(walk, placed[-1] if placed else None))
    chosen = chosen_of(findings, placed[-1] if placed else None)
    over = chosen is not None and SEVERITY[chosen.action] >= SEVERITY["stop"]
    due = {finding.instance: finding.count for finding in findings if finding.action == "hint" and not finding.allowed}
    return Decision(
        action="pass" if chosen is None else chosen.action,
        finding=chosen,
        also=tuple(finding for finding in findings if finding is not chosen),
        notes=() if over else tuple(Note(place.state.round.round, place.text) for place in placed),
        remember={} if over else {instance: count for instance, count in due.items() if instance not in facts},
        words=_words(chosen),
        not_inspected=evidence.problems,
    )


def _facts(walk: Walk, lookup: FactLookup) -> Facts:
    """The facts of every streak that ever reached its end (a note may stand there), of those that the next round could
    bring to a rung, and of the living streaks that may speak for one of those. Nothing is asked for a history without
    such a streak."""
    over = [raised.streak for state in walk.rounds for raised in state.raised if raised.over]
    near = [*over, *suspects(walk)]
    if not near:
        return {}
    speaking = {other.instance for other in walk.alive() if any(other.shares_a_call(streak) for streak in near)}
    return lookup(sorted(speaking | {streak.instance for streak in near}))


def verdicts(walk: Walk, facts: Facts, *, words_allowed: bool) -> Iterator[Finding]:
    """What the streaks ask for that the newest round brought to their end, or beyond it. A streak that was not
    announced gets a note instead."""
    for raised in walk.newest():
        if not raised.over or raised.ladder is None:
            continue
        told = raised.allowed or walk.was_told(raised.streak, facts, before=walk.rounds[-1].round.index)
        wanted = raised.ladder.end_action
        action = _end_action(wanted, raised.streak, walk, words_allowed) if told else "hint"
        yield _finding(raised, action, walk)


def _end_action(wanted: EndAction, streak: Streak, walk: Walk, words_allowed: bool) -> Action:
    return "reject" if not words_allowed or walk.is_deaf(streak) else wanted


def hints(walk: Walk, place: Place | None) -> Iterator[Finding]:
    """The notes that the newest round earned by itself; `place` is the newest note of the history."""
    if place is None or not any(place.state is state for state in walk.newest_answer()):
        return
    alive = {raised.streak.instance for raised in walk.newest()}
    for raised in place.told:
        if not raised.over and raised.streak.instance in alive:
            yield _finding(raised, "hint", walk)


def _finding(raised: Raised, action: Action, walk: Walk) -> Finding:
    streak = raised.streak
    return Finding(
        detector=streak.key.detector,
        kind=streak.key.kind,
        action=action,
        tool=streak.tool,
        count=streak.count,
        allowed=raised.allowed,
        instance=streak.instance,
        call_id=streak.newest_id,
        sentence=sentence_facts(streak, walk.tools),
    )


def chosen_of(findings: Iterable[Finding], place: Place | None) -> Finding | None:
    """The one that decides: the most severe; among notes the one that is said, else the first."""
    about = None if place is None else place.due[0].streak.instance
    acting = (finding for finding in findings if not finding.allowed)
    return max(acting, key=lambda finding: (SEVERITY[finding.action], finding.instance == about), default=None)


def _words(chosen: Finding | None) -> str:
    if chosen is None or chosen.action not in ("stop", "reject"):
        return ""
    return notes.end(chosen.sentence) if chosen.action == "stop" else notes.rejection(chosen.sentence)
