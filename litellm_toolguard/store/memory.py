"""Facts in the memory of one process, bounded in number and in time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal, TypeAlias

from litellm_toolguard.facts import Block
from litellm_toolguard.policy import FACTS_MAX_ENTRIES, FACTS_TTL_S
from litellm_toolguard.store import is_due, is_expired

_Key: TypeAlias = tuple[Literal["hint", "block"], str, bytes]
# A hint is one number; its part has no name.
_WHOLE = b""


@dataclass(slots=True)
class _Fact:
    """The numbers of one fact, by the instance that they count for, and when it was last used."""

    used: float
    numbers: dict[bytes, int] = field(default_factory=dict)


class MemoryFactStore:
    """A `FactStore` that forgets the least recently used fact when it is full, and each one after its time.

    Args:
        max_entries: facts kept at most.
        ttl_s: seconds after its last use that a fact is kept.
        clock: seconds that never go back.
    """

    may_wait = False

    def __init__(
        self,
        max_entries: int = FACTS_MAX_ENTRIES,
        ttl_s: float = FACTS_TTL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = Lock()
        self._facts: OrderedDict[_Key, _Fact] = OrderedDict()
        self._entries = 0

    def __len__(self) -> int:
        return self._entries

    def counts(self, tenant: str, instances: Iterable[bytes]) -> Mapping[bytes, int]:
        """See `FactStore.counts`."""
        now = self._clock()
        with self._lock:
            found = {instance: self._used(("hint", tenant, instance), now) for instance in instances}
        return {instance: fact.numbers[_WHOLE] for instance, fact in found.items() if fact is not None}

    def remember(self, tenant: str, counts: Mapping[bytes, int]) -> None:
        """See `FactStore.remember`."""
        now = self._clock()
        with self._lock:
            for instance, count in counts.items():
                fact = self._written(("hint", tenant, instance), now)
                self._set(fact, _WHOLE, fact.numbers.get(_WHOLE, count))
            self._shrink()

    def blocks(self, tenant: str, positions: Iterable[bytes]) -> Mapping[bytes, tuple[Block, ...]]:
        """See `FactStore.blocks`."""
        now = self._clock()
        with self._lock:
            found = {position: self._used(("block", tenant, position), now) for position in positions}
            return {
                position: tuple(Block(instance, samples) for instance, samples in sorted(fact.numbers.items()))
                for position, fact in found.items()
                if fact is not None
            }

    def remember_block(self, tenant: str, position: bytes, blocks: Iterable[Block]) -> None:
        """See `FactStore.remember_block`."""
        now = self._clock()
        given = tuple(blocks)
        if not given:
            return
        with self._lock:
            fact = self._written(("block", tenant, position), now)
            for block in given:
                self._set(fact, block.instance, max(block.samples, fact.numbers.get(block.instance, 0)))
            self._shrink()

    def close(self) -> None:
        """Nothing is held."""

    def _used(self, key: _Key, now: float) -> _Fact | None:
        fact = self._facts.get(key)
        if fact is None:
            return None
        if is_expired(fact.used, now, self._ttl_s):
            self._drop(key)
            return None
        if is_due(fact.used, now, self._ttl_s):
            fact.used = now
        self._facts.move_to_end(key)
        return fact

    def _written(self, key: _Key, now: float) -> _Fact:
        fact = self._used(key, now)
        if fact is None:
            fact = self._facts[key] = _Fact(now)
        fact.used = now
        return fact

    def _set(self, fact: _Fact, part: bytes, number: int) -> None:
        self._entries += part not in fact.numbers
        fact.numbers[part] = number

    def _drop(self, key: _Key) -> None:
        self._entries -= len(self._facts.pop(key).numbers)

    def _shrink(self) -> None:
        while self._entries > self._max_entries:
            self._drop(next(iter(self._facts)))
