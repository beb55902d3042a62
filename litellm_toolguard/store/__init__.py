"""Where the guard keeps what no request carries: the facts that notes were sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol


class FactStore(Protocol):
    """Facts of one kind: at which count a streak's note was first due.

    A fact belongs to a tenant (the caller's key and the enforcement), so that nobody reads or sets another's.
    """

    def counts(self, tenant: str, instances: Iterable[bytes]) -> Mapping[bytes, int]:
        """The stored counts of the given streak instances; unknown or expired ones are absent."""

    def remember(self, tenant: str, counts: Mapping[bytes, int]) -> None:
        """Store counts. The first one of an instance stands."""
