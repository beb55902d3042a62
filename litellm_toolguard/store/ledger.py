"""What is withheld, for good: one contract."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from litellm_toolguard.withheld import Withheld


class Ledger(Protocol):
    """Provisional."""

    def is_empty(self) -> bool: ...

    def known(self, tenant: str, keys: Iterable[bytes]) -> frozenset[bytes]: ...

    def withhold(self, tenant: str, results: Sequence[Withheld]) -> None: ...


class MemoryLedger:
    """Provisional."""

    def __init__(self) -> None:
        self._keys: set[tuple[str, bytes]] = set()

    def is_empty(self) -> bool:
        return not self._keys

    def known(self, tenant: str, keys: Iterable[bytes]) -> frozenset[bytes]:
        return frozenset(key for key in keys if (tenant, key) in self._keys)

    def withhold(self, tenant: str, results: Sequence[Withheld]) -> None:
        self._keys |= {(tenant, key) for each in results for key in each.keys}
