"""The ledger: which tool results are withheld, for good, and their originals for a while.

One contract, `Ledger`, and a home in memory (here) and in an SQLite file (`sqlite_ledger.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from litellm_toolguard.canonical import digest
from litellm_toolguard.withheld import Entry, Original, Withheld


class Ledger(Protocol):
    """What is withheld, by tenant. That a result is withheld is kept until it is released; its original until it is too
    old, or until the ledger is too large.

    All methods may be called from several threads. They raise `StoreError` when the ledger cannot be read or written,
    and then nothing was stored.
    """

    def is_empty(self) -> bool:
        """Whether nothing is withheld of anybody: then no key has to be computed."""

    def known(self, tenant: str, keys: Iterable[bytes]) -> frozenset[bytes]:
        """Those of the keys under which something of the tenant is withheld."""

    def withhold(self, tenant: str, results: Sequence[Withheld]) -> None:
        """Withhold results, all or none; durable on return. The same again is the same entry: withheld again if it
        was released, known under its further keys, and its original kept anew."""

    def entries(self) -> Sequence[Entry]:
        """Everything that was ever withheld, the newest first."""

    def original(self, entry_id: str) -> Original | None:
        """What is kept of an entry; None for an unknown id. The beginning of an id is enough if no other begins so."""

    def release(self, entry_id: str) -> Entry | None:
        """Let a result pass again; None for an unknown id. That it was withheld stays on record."""

    def purge(self) -> int:
        """Drop the originals that are too old or too many; gives how many were dropped."""

    def close(self) -> None:
        """Let go of files. A later call opens them again."""


def entry_key(tenant: str, result: Withheld) -> bytes:
    """Identity of an entry: the tenant's and the first of its keys. A digest: a tenant may be a key in plain text."""
    return digest("entry", tenant, result.keys[0])


def entry_id(key: bytes) -> str:
    """What people call it."""
    return key.hex()[:12]


def entry_of(key: bytes, result: Withheld, now: float) -> Entry:
    """A new entry."""
    return Entry(
        id=entry_id(key),
        tool=result.tool,
        call_id=result.call_id,
        cause=result.cause,
        category=result.category,
        size=len(result.payload),
        withheld_at=now,
        released_at=None,
        has_payload=True,
    )


class MemoryLedger:
    """A `Ledger` that ends with the process. Keeps every original."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._originals: dict[str, Original] = {}
        self._keys: dict[bytes, set[str]] = {}

    def is_empty(self) -> bool:
        """See `Ledger.is_empty`."""
        return not self._keys

    def known(self, tenant: str, keys: Iterable[bytes]) -> frozenset[bytes]:
        """See `Ledger.known`."""
        return frozenset(key for key in keys if digest("key", tenant, key) in self._keys)

    def withhold(self, tenant: str, results: Sequence[Withheld]) -> None:
        """See `Ledger.withhold`."""
        for result in results:
            key = entry_key(tenant, result)
            made = Original(entry_of(key, result, self._clock()), result.explanation, result.payload)
            kept = self._originals.setdefault(made.entry.id, made)
            again = replace(kept.entry, released_at=None)
            self._originals[made.entry.id] = replace(made, entry=again)
            for each in result.keys:
                self._keys.setdefault(digest("key", tenant, each), set()).add(made.entry.id)

    def entries(self) -> Sequence[Entry]:
        """See `Ledger.entries`."""
        return sorted((kept.entry for kept in self._originals.values()), key=lambda each: (-each.withheld_at, each.id))

    def original(self, entry_id: str) -> Original | None:
        """See `Ledger.original`."""
        found = [kept for name, kept in self._originals.items() if name.startswith(entry_id)]
        return found[0] if len(found) == 1 else None

    def release(self, entry_id: str) -> Entry | None:
        """See `Ledger.release`."""
        kept = self.original(entry_id)
        if kept is None:
            return None
        for names in self._keys.values():
            names.discard(kept.entry.id)
        self._keys = {key: names for key, names in self._keys.items() if names}
        released = replace(kept, entry=replace(kept.entry, released_at=self._clock()))
        self._originals[kept.entry.id] = released
        return released.entry

    def purge(self) -> int:
        """See `Ledger.purge`."""
        return 0

    def close(self) -> None:
        """See `Ledger.close`."""
