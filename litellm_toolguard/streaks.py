"""Streaks: what all detectors count with.

A streak is a count under a key. The rules that hold for all of them stand here: a round raises a streak by one at most,
a streak that no round touched for a while is dropped, and values are never changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from litellm_toolguard.canonical import digest
from litellm_toolguard.evidence import JudgedExchange, JudgedRound
from litellm_toolguard.policy import STREAK_IDLE_ROUNDS, DetectorName

# More different endings, or older members, change no sentence and no verdict; without a bound a long loop would cost
# the square of its length.
_MAX_SIGNATURES = 8
_MAX_CALLS = 32


@dataclass(frozen=True, slots=True)
class Key:
    """What a streak counts under.

    Args:
        detector: the detector.
        kind: the kind of key, where the detector has several; keys of different kinds never meet.
        parts: names and digests.
    """

    detector: DetectorName
    kind: str
    parts: tuple[str | bytes, ...]

    def digest(self) -> bytes:
        """The key as one value."""
        return digest("key", self.detector, self.kind, *self.parts)


@dataclass(frozen=True, slots=True)
class Streak:
    """A count under a key.

    Args:
        key: what is counted.
        tool: the tool of the newest member.
        count: rounds that raised it.
        turn: the turn that it began in.
        first: id and identity of its first call.
        raised: index of the round that raised it last.
        touched: index of the round that held a member last, raised or not.
        calls: positions (round, exchange) of its newest members, at most 32.
        signatures: what its members ended in, at most 8 different ones.
        refusals: rounds whose member was a denial.
        category: category of the newest denial.
        last: what its newest member ended in.
        newest_id: id of its newest call.
    """

    key: Key
    tool: str
    count: int
    turn: bytes
    first: tuple[str, bytes]
    raised: int
    touched: int
    calls: tuple[tuple[int, int], ...]
    signatures: frozenset[str | bytes] = frozenset()
    refusals: int = 0
    category: str = ""
    last: str | bytes = b""
    newest_id: str = ""

    @property
    def instance(self) -> bytes:
        """Identity of this run of the streak: its key, its turn and its first call. The same in every later request."""
        return digest("instance", self.key.digest(), self.turn, *self.first)

    def shares_a_call(self, other: Streak) -> bool:
        """Whether a call is a member of both."""
        return not set(self.calls).isdisjoint(other.calls)


Streaks: TypeAlias = Mapping[Key, Streak]


@dataclass(frozen=True, slots=True)
class Member:
    """One exchange of a round that belongs to a key."""

    position: int
    judged: JudgedExchange
    signature: str | bytes = b""


@dataclass(slots=True)
class Draft:
    """The streaks of one detector while one round is folded in. Made from a frozen state, turned back into one."""

    round: JudgedRound
    streaks: dict[Key, Streak] = field(default_factory=dict)

    @classmethod
    def of(cls, streaks: Streaks, judged: JudgedRound) -> Draft:
        """The state before the round, without the streaks that were idle for too long."""
        oldest = judged.index - STREAK_IDLE_ROUNDS
        return cls(judged, {key: streak for key, streak in streaks.items() if streak.touched >= oldest})

    def clear(self, where: Callable[[Streak], bool]) -> None:
        """Drop the streaks for which the condition holds."""
        self.streaks = {key: streak for key, streak in self.streaks.items() if not where(streak)}

    def start(self, key: Key, members: Iterable[Member], *, count: int = 1) -> None:
        """Let the streak begin anew with this round, at the given count."""
        self.streaks.pop(key, None)
        self.raise_(key, members, by=count)

    def touch(self, key: Key) -> None:
        """Note that the round holds a member without counting it."""
        self.streaks[key] = replace(self.streaks[key], touched=self.round.index)

    def raise_(self, key: Key, members: Iterable[Member], *, by: int = 1) -> None:
        """Raise the streak, by one however many members the round holds unless its unit is another."""
        found = list(members)
        index, last = self.round.index, found[-1].judged
        before = self.streaks.get(key) or self._new(key, found[0].judged)
        denials = [member.judged.outcome.category for member in found if member.judged.outcome.kind == "denied"]
        self.streaks[key] = replace(
            before,
            tool=last.tool,
            count=before.count + by,
            last=found[-1].signature,
            newest_id=last.exchange.call.id,
            raised=index,
            touched=index,
            calls=(*before.calls, *((index, member.position) for member in found))[-_MAX_CALLS:],
            signatures=_bounded(before.signatures, (member.signature for member in found)),
            refusals=before.refusals + bool(denials),
            category=(denials[-1] or "") if denials else before.category,
        )

    def _new(self, key: Key, first: JudgedExchange) -> Streak:
        index, began = self.round.index, (first.exchange.call.id, first.key)
        return Streak(key, first.tool, 0, self.round.turn, began, raised=index, touched=index, calls=())


def _bounded(known: frozenset[str | bytes], more: Iterable[str | bytes]) -> frozenset[str | bytes]:
    return known if len(known) >= _MAX_SIGNATURES else known | frozenset(more)


def by_key(pairs: Iterable[tuple[Key, Member]]) -> Iterator[tuple[Key, list[Member]]]:
    """Members of a round grouped by key, in order."""
    groups: dict[Key, list[Member]] = {}
    for key, member in pairs:
        groups.setdefault(key, []).append(member)
    return iter(groups.items())


def members(judged: JudgedRound) -> Iterator[Member]:
    """All exchanges of a round."""
    return (Member(position, exchange) for position, exchange in enumerate(judged.exchanges))
