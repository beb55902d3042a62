"""Facts in the memory of one process, bounded in number and in time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from threading import Lock

from litellm_toolguard.policy import FACTS_MAX_ENTRIES, FACTS_TTL_S


class MemoryFactStore:
    """A `FactStore` that forgets the least recently used fact when it is full, and each one after its time.

    Args:
        max_entries: facts kept at most.
        ttl_s: seconds after its last use that a fact is kept.
        clock: seconds that never go back.
    """

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
        self._facts: OrderedDict[tuple[str, bytes], tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._facts)

    def counts(self, tenant: str, instances: Iterable[bytes]) -> Mapping[bytes, int]:
        """See `FactStore.counts`."""
        now = self._clock()
        with self._lock:
            found = {instance: self._use((tenant, instance), now) for instance in instances}
        return {instance: count for instance, count in found.items() if count is not None}

    def remember(self, tenant: str, counts: Mapping[bytes, int]) -> None:
        """See `FactStore.remember`."""
        now = self._clock()
        with self._lock:
            for instance, count in counts.items():
                if self._use((tenant, instance), now) is None:
                    self._facts[tenant, instance] = (count, now)
            while len(self._facts) > self._max_entries:
                self._facts.popitem(last=False)

    def _use(self, key: tuple[str, bytes], now: float) -> int | None:
        found = self._facts.get(key)
        if found is None:
            return None
        count, used = found
        if now - used > self._ttl_s:
            del self._facts[key]
            return None
        self._facts[key] = (count, now)
        self._facts.move_to_end(key)
        return count
