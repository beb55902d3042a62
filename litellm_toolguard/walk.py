"""One walk over the history: the streaks at every round, and the notes that belong to it.

A walk folds the rounds of a transcript through the detectors, oldest first. What it knows after a round depends on the
rounds so far, the policy and, for the notes, on stored facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from litellm_toolguard import notes
from litellm_toolguard.canonical import digest
from litellm_toolguard.detectors import CLEARED_BY_EVENTS, FOLDS
from litellm_toolguard.evidence import Cleared, JudgedExchange, JudgedRound, Step
from litellm_toolguard.policy import DETECTORS, MIN_LIMIT, DetectorName, Ladder, Policy
from litellm_toolguard.streaks import Streak, Streaks
from litellm_toolguard.transcript import RunEnd

Facts: TypeAlias = Mapping[bytes, int]
"""Instance of a streak -> the count at which a note about it was first due."""


ENDS_BEFORE_REJECT: Final = 2
"""The third end of a run on one key in a conversation is a rejection: words did not stop this harness."""


@dataclass(frozen=True, slots=True)
class Raised:
    """A streak as one round left it.

    Args:
        streak: the streak.
        hint: the count of its note; None for no note.
        ladder: its ladder; None for a streak that only hints.
        allowed: whether the policy lets it pass.
    """

    streak: Streak
    hint: int | None
    ladder: Ladder | None
    allowed: bool

    @property
    def over(self) -> bool:
        """Whether the run ends here."""
        return self.ladder is not None and self.streak.count >= self.ladder.end

    @property
    def last(self) -> bool:
        """Whether the next round of its kind ends the run."""
        return self.ladder is not None and self.streak.count == self.ladder.end - 1

    @property
    def near_a_rung(self) -> bool:
        """Whether the next round of its kind would be held back, asked about or ended."""
        ladder = self.ladder
        rungs = () if ladder is None else (ladder.block, ladder.ask, ladder.end)
        return any(rung is not None and self.streak.count + 1 >= rung for rung in rungs)

    @property
    def at_hint(self) -> bool:
        """Whether its note is due."""
        return self.streak.count == self.hint


@dataclass(frozen=True, slots=True)
class RoundState:
    """What is known when a round is folded in."""

    round: JudgedRound
    raised: tuple[Raised, ...]


@dataclass(slots=True)
class Walk:
    """The running state over a history; `add` takes it one step on.

    Args:
        policy: the policy.
        tools: the tools that the request offers, for the sentences.
        streaks: the streaks of every detector after the newest step.
        rounds: the rounds so far.
        ends: how often a run was ended on a key, by the digest of the key.
        turn: digest of what the user wrote at the start of the turn.
        turn_start: number of rounds before the turn.
        refused: calls that were refused for good in the turn, with nothing that succeeded since.
        new_words: whether the user wrote something new since the last end.
    """

    policy: Policy
    tools: Mapping[str, Any] = field(default_factory=dict)
    streaks: dict[DetectorName, Streaks] = field(default_factory=lambda: {name: {} for name in DETECTORS})
    rounds: list[RoundState] = field(default_factory=list)
    ends: dict[bytes, int] = field(default_factory=dict)
    new_words: bool = True
    turn: bytes = b""
    turn_start: int = 0
    refused: frozenset[bytes] = frozenset()
    closed: frozenset[bytes] = frozenset()

    def copy(self) -> Walk:
        """A walk that goes on by itself from here."""
        return replace(self, rounds=list(self.rounds), ends=dict(self.ends))

    def positions(self) -> tuple[bytes, ...]:
        """Where the turn has been: one value at its start and one behind each of its rounds."""
        found = [digest("position", self.turn)]
        for state in self.rounds[self.turn_start :]:
            found.append(digest("position", found[-1], state.round.print))
        return tuple(found)

    def add(self, step: Step) -> None:
        """Fold one more step in."""
        if isinstance(step, JudgedRound):
            self._add_round(step)
        elif isinstance(step, RunEnd):
            self._add_end()
        else:
            self._add_input(step)

    def newest_answer(self) -> Iterator[RoundState]:
        """The newest round, and the provider's rounds of the same answer before it, newest first."""
        for number, state in enumerate(reversed(self.rounds)):
            if number > 0 and not state.round.by_provider:
                return
            yield state

    def newest(self) -> Iterator[Raised]:
        """The streaks that the newest answer raised and that no input emptied since."""
        return (each for state in self.newest_answer() for each in state.raised if self._is_alive(each.streak))

    def alive(self) -> Iterator[Streak]:
        """All streaks that still count."""
        return (streak for streaks in self.streaks.values() for streak in streaks.values())

    def with_newest_withheld(self) -> Walk:
        """The walk with the results of its newest round withheld."""
        newest = frozenset(each.key for each in self.rounds[-1].round.exchanges)
        return replace(self.copy(), closed=self.closed | newest)

    def was_told(self, streak: Streak, facts: Facts, before: int) -> bool:
        """Whether a note about the streak, or about a living one that shares a call with it, was sent before the round
        of the given index."""
        return any(
            facts[other.instance] < other.count or other.raised < before
            for other in self.alive()
            if other.instance in facts and other.shares_a_call(streak)
        )

    def _add_round(self, judged: JudgedRound) -> None:
        self.streaks = {name: detect(self.streaks[name], judged) for name, detect in FOLDS.items()}
        raised = tuple(self._raised(judged.index)) if judged.complete else ()
        self.rounds.append(RoundState(judged, raised))
        works = any(each.outcome.kind in ("succeeded", "unclear") for each in judged.exchanges)
        refused = frozenset(each.key for each in judged.exchanges if _is_final(each))
        self.refused = refused if works else self.refused | refused
        self.closed |= frozenset(each.key for each in judged.exchanges if each.outcome.kind == "withheld")

    def _add_end(self) -> None:
        """An earlier end belongs to the streaks of the round before it that had reached their end, or whose next round
        was held back; a call that was made again after its refusal, to the count of the refusals."""
        self.new_words = False
        near = {raised.streak.key for raised in self.newest() if raised.near_a_rung}
        denied = {key for key in self.streaks["denied-call"] if key.kind == "tool" and self.refused}
        for key in near | denied:
            self.ends[key.digest()] = self.ends.get(key.digest(), 0) + 1

    def is_deaf(self, streak: Streak) -> bool:
        """Whether words did not stop the conversation: the run was ended on this key before, more than once, and the
        user has said nothing new since."""
        return self.ends.get(streak.key.digest(), 0) >= ENDS_BEFORE_REJECT and not self.new_words

    def _add_input(self, step: Cleared) -> None:
        self.new_words = self.new_words or step.by_user
        if step.by_user:
            self.turn, self.turn_start = step.turn, len(self.rounds)
            self.refused = self.closed = frozenset()
        cleared = DETECTORS if step.by_user else CLEARED_BY_EVENTS
        self.streaks = {name: {} if name in cleared else streaks for name, streaks in self.streaks.items()}

    def _raised(self, index: int) -> Iterator[Raised]:
        for name in DETECTORS:
            for streak in self.streaks[name].values():
                if streak.raised == index and streak.count >= MIN_LIMIT:
                    yield from measured(streak, self.policy)

    def _is_alive(self, streak: Streak) -> bool:
        return self.streaks[streak.key.detector].get(streak.key) is streak


_FINAL_DENIALS: Final = frozenset({"user_rejected", "policy_blocked", "tool_disabled", "hook_blocked"})
"""Refusals that stand: asking again for the very same will be refused again."""


def _is_final(judged: JudgedExchange) -> bool:
    outcome = judged.outcome
    return outcome.kind == "denied" and outcome.category in _FINAL_DENIALS and not judged.steered


def measured(streak: Streak, policy: Policy) -> Iterator[Raised]:
    """The streak beside its ladder; nothing where its detector is off."""
    name, kind = streak.key.detector, streak.key.kind
    ladder = policy.ladder(name, kind, streak.tool)
    if ladder is None:
        return
    allowed = policy.allows(name, streak.tool)
    yield Raised(streak, ladder.hint, ladder if isinstance(ladder, Ladder) else None, allowed)


@dataclass(frozen=True, slots=True)
class Place:
    """The note of one round.

    Args:
        state: the round.
        due: the streaks that earned it, the one that it is about first.
        tools: the tools that the request offers.
    """

    state: RoundState
    due: tuple[Raised, ...]
    tools: Mapping[str, Any]

    @property
    def told(self) -> tuple[Raised, ...]:
        """The streaks that it tells of: the one that it is about, those that share a call with it, and other repeats of
        its tool in the round, of which its words are as true."""
        about = self.due[0].streak
        return tuple(raised for raised in self.due if raised.streak.shares_a_call(about) or _both_repeat(raised, about))

    @property
    def text(self) -> str:
        """What it says."""
        raised = self.due[0]
        return notes.hint(sentence_facts(raised.streak, self.tools), last=raised.last or raised.over)


def _both_repeat(raised: Raised, about: Streak) -> bool:
    same_detector = raised.streak.key.detector == about.key.detector == "repeated-call"
    return same_detector and raised.streak.tool == about.tool


@dataclass(frozen=True, slots=True)
class Said:
    """What was said before a round.

    Args:
        newest: the newest note.
        owed: streaks whose note was left out, because the round before had one about another call of the same kind.
    """

    newest: Place | None = None
    owed: frozenset[bytes] = frozenset()


def placed_notes(walk: Walk, facts: Facts) -> Iterator[Place]:
    """Where notes stand in the history: at the hint rung, at the last round before the end, and where an end was
    lowered to a note. One note a round."""
    said = Said()
    for state in walk.rounds:
        place, said = _place(state, walk, facts, said)
        if place is not None:
            yield place


def place_at(walk: Walk, facts: Facts, said: Said) -> tuple[Place | None, Said]:
    """The note of the newest round, and what is said with it; `said` is what was said before."""
    return _place(walk.rounds[-1], walk, facts, said) if walk.rounds else (None, said)


def _place(state: RoundState, walk: Walk, facts: Facts, said: Said) -> tuple[Place | None, Said]:
    acting = [raised for raised in state.raised if not raised.allowed]
    near = _just_before(said, state)
    due = [raised for raised in acting if _is_due(raised, facts, near, said.owed)]
    owed = frozenset(raised.streak.instance for raised in acting if raised.at_hint and _is_owed(raised.streak, near))
    place = Place(state, tuple(sorted(due, key=_urgency)), walk.tools) if due else None
    return place, Said(place or said.newest, owed | (said.owed - {raised.streak.instance for raised in due}))


def _just_before(said: Said, state: RoundState) -> tuple[Streak, ...]:
    """What the note of the round right before was about; two notes in a row about the same would say it twice."""
    newest = said.newest
    if newest is None or newest.state.round.index != state.round.index - 1:
        return ()
    return tuple(raised.streak for raised in newest.due)


def _is_due(raised: Raised, facts: Facts, near: tuple[Streak, ...], owed: frozenset[bytes]) -> bool:
    if raised.over:
        return facts.get(raised.streak.instance) == raised.streak.count
    if raised.last:
        return True
    return (raised.at_hint or raised.streak.instance in owed) and not _is_known(raised.streak, near)


def _is_known(streak: Streak, near: tuple[Streak, ...]) -> bool:
    return _tells_of(streak, near) or any(other.key.detector == streak.key.detector for other in near)


def _is_owed(streak: Streak, near: tuple[Streak, ...]) -> bool:
    """Whether only the detector was the same: the note that stands says nothing about these calls."""
    return _is_known(streak, near) and not _tells_of(streak, near)


def _tells_of(streak: Streak, near: tuple[Streak, ...]) -> bool:
    """Whether a note was about calls of the streak. One on a lap is also about the call that begins the next lap."""
    return any(other.shares_a_call(streak) or other.key.detector == "call-cycle" for other in near)


def _urgency(raised: Raised) -> tuple[bool, int]:
    return not (raised.last or raised.over), DETECTORS.index(raised.streak.key.detector)


def sentence_facts(streak: Streak, tools: Mapping[str, Any]) -> notes.Facts:
    """What a sentence about the streak may say; `tools` are those that the request offers."""
    kind = streak.key.kind
    return notes.Facts(
        detector=f"{streak.key.detector}/{kind}" if kind else streak.key.detector,
        tool=streak.tool,
        count=streak.count,
        sameness="same" if len(streak.signatures) == 1 else "varying",
        refusals=streak.refusals,
        category=streak.category,
        schema=tools.get(streak.tool),
        offered=tuple(tools),
    )
