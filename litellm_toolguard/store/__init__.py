"""Where the guard keeps what no request carries: the facts that notes were sent and that proposals were blocked.

One contract, `FactStore`, and a home in memory (`memory.py`) and in an SQLite file (`sqlite.py`); `opening.py` opens
the one that a policy names, `access.py` is what an edge uses. Facts hold no content: digests and counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from litellm_toolguard.facts import Block
from litellm_toolguard.policy import FACTS_REFRESH_SHARE


class FactStore(Protocol):
    """Facts of two kinds: at which count a streak's note was first due, and how many samples were blocked where.

    A fact belongs to a tenant (the caller's key and the enforcement), so that nobody reads or sets another's. It is
    kept for `ttl_s` seconds after its last use, less the share below which a use is not written down. `max_entries`
    are kept, for a short while a few more; those that were not used for the longest time go first. A lost fact costs
    one more note, or one more sample, and never ends a run.

    All methods may be called from several threads. They raise `StoreError` when the store cannot be read or written,
    and then nothing was stored.
    """

    @property
    def may_wait(self) -> bool:
        """Whether writing may wait for a disk or for another process, so that an event loop does it in a thread.
        Reading is always short enough for the loop itself."""

    def counts(self, tenant: str, instances: Iterable[bytes]) -> Mapping[bytes, int]:
        """The stored counts of the given streak instances; unknown or expired ones are absent."""

    def remember(self, tenant: str, counts: Mapping[bytes, int]) -> None:
        """Store counts. The first one of an instance stands."""

    def blocks(self, tenant: str, positions: Iterable[bytes]) -> Mapping[bytes, tuple[Block, ...]]:
        """The blocks at the given positions, ordered by their instance; unknown or expired positions are absent."""

    def remember_block(self, tenant: str, position: bytes, blocks: Iterable[Block]) -> None:
        """Store what was blocked at a position. Per instance the largest number stands, so storing the same again, as a
        retry does, changes nothing. Blocks of other instances at the position stay."""

    def close(self) -> None:
        """Let go of files. A later call opens them again."""


def is_expired(used: float, now: float, ttl_s: float) -> bool:
    """Whether a fact that was last used then is gone now. One from far in the future is too: the clock was set back."""
    return abs(now - used) > ttl_s


def is_due(used: float, now: float, ttl_s: float) -> bool:
    """Whether a use is written down. Not every one: reading would cost a write each time."""
    return abs(now - used) * FACTS_REFRESH_SHARE > ttl_s
