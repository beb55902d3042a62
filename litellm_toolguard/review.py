"""What a live guard would have done over a recorded conversation, from its start.

Pure. Every request of the conversation is judged as the gateway would have judged it, and every recorded message of the
assistant as a proposal on top of the history before it. Behind an end nothing is judged until the user writes again:
the calls in between would not have happened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from litellm_toolguard.engine import SEVERITY, Finding, chosen_of, hints, verdicts
from litellm_toolguard.evidence import Cleared, JudgedRound, Reader, proposed_call
from litellm_toolguard.policy import DetectorName, Policy
from litellm_toolguard.proposals import Stored, is_armed, judge_proposal
from litellm_toolguard.transcript import Round, Transcript, UserInput
from litellm_toolguard.walk import Place, Said, Walk, place_at

ReviewAction: TypeAlias = Literal["hint", "ask", "block", "stop", "reject"]
OVER: frozenset[ReviewAction] = frozenset({"ask", "block", "stop", "reject"})
"""What ends the run as it was recorded."""


@dataclass(frozen=True, slots=True)
class Intervention:
    """One thing that the guard would have done.

    Args:
        round: number of the assistant's message with calls, from 1: for a note or an end the newest one of the request,
            for a proposal the proposed one.
        call_id: the call that it is about.
        detector: the detector.
        action: the action.
        tool: the tool, as the model wrote it.
        count: the count that tripped.
    """

    round: int
    call_id: str
    detector: DetectorName
    action: ReviewAction
    tool: str
    count: int


@dataclass(frozen=True, slots=True)
class Review:
    """The whole of it.

    Args:
        rounds: assistant messages with calls.
        calls: calls in them.
        interventions: in order.
        saved: calls that would not have run.
        not_inspected: parts that could not be read.
        requests: requests that were judged.
        armed: those of them whose answer would have been held until it was judged.
    """

    rounds: int
    calls: int
    interventions: tuple[Intervention, ...]
    saved: int
    not_inspected: int
    requests: int = 0
    armed: int = 0


@dataclass(slots=True)
class _Reader:
    """The state of a review."""

    walk: Walk
    words_allowed: bool
    facts: dict[bytes, int] = field(default_factory=dict)
    said: Said = field(default_factory=Said)
    number: int = 0
    calls: int = 0
    saved: int = 0
    requests: int = 0
    armed: int = 0
    over: bool = False
    found: list[Intervention] = field(default_factory=list)

    def round(self, judged: JudgedRound, *, begins: bool, requested: bool) -> None:
        """Judge a round: first as a proposal, then, if a request followed with it as the newest, that request.
        `begins` says that it is the first one of its message."""
        self.number += begins
        self.calls += len(judged.exchanges)
        if not self.over:
            self._propose(judged)
        self.saved += len(judged.exchanges) if self.over else 0
        self.walk.add(judged)
        place, said = place_at(self.walk, self.facts, self.said)
        if not self.over and requested:
            said = self._request(place, said)
            self.requests += 1
            self.armed += not self.over and is_armed(self.walk, Stored(self.facts))
        self.said = said

    def _propose(self, judged: JudgedRound) -> None:
        if any(exchange.exchange.call.executed_by == "provider" for exchange in judged.exchanges):
            return
        calls = [proposed_call(each) for each in judged.exchanges]
        objection = judge_proposal(self.walk, calls, Stored(self.facts), words_allowed=self.words_allowed)
        if objection is None:
            return
        self.over = True
        self.found.append(
            Intervention(
                self.number, objection.call_id, objection.detector, objection.action, objection.tool, objection.count
            )
        )

    def _request(self, place: Place | None, said: Said) -> Said:
        """The verdict on the request behind the newest round; what is said with its note."""
        ends = tuple(verdicts(self.walk, self.facts, words_allowed=self.words_allowed))
        lowered = {finding.instance: finding.count for finding in ends if finding.action == "hint"}
        if lowered:
            place, said = place_at(self.walk, {**self.facts, **lowered}, self.said)
        findings = (*ends, *hints(self.walk, place))
        chosen = chosen_of(findings, place)
        if chosen is None:
            return said
        self.found.append(self._intervention(chosen))
        self.over = SEVERITY[chosen.action] >= SEVERITY["stop"]
        for finding in findings:
            if finding.action == "hint" and not finding.allowed:
                self.facts.setdefault(finding.instance, finding.count)
        return said

    def _intervention(self, finding: Finding) -> Intervention:
        action: ReviewAction = "hint" if finding.action == "pass" else finding.action
        return Intervention(self.number, finding.call_id, finding.detector, action, finding.tool, finding.count)


def review(transcript: Transcript, policy: Policy) -> Review:
    """Judge a whole recorded conversation."""
    # Input in the very message of the results was there before any request with them was made.
    steered = {
        event.location.item for event in transcript.events if isinstance(event, UserInput) and event.kind == "user"
    }
    reader = _Reader(Walk(policy, transcript.tools), transcript.words_allowed)
    read, goes_on = Reader(transcript.dialect, policy), False
    for event in transcript.events:
        step = read.step(event)
        if isinstance(step, JudgedRound):
            requested = step.complete and step.round.end not in steered
            reader.round(step, begins=not goes_on, requested=requested)
        elif step is not None:
            reader.walk.add(step)
            reader.over = reader.over and not (isinstance(step, Cleared) and step.by_user)
        goes_on = isinstance(event, Round) and event.is_open
    return Review(
        reader.number,
        reader.calls,
        tuple(reader.found),
        reader.saved,
        len(transcript.problems),
        reader.requests,
        reader.armed,
    )
