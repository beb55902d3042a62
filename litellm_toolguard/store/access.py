"""How one request reaches a store or the ledger: one that is down raises nothing here, and says why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from litellm_toolguard.errors import StoreError
from litellm_toolguard.facts import Block
from litellm_toolguard.store import FactStore
from litellm_toolguard.store.ledger import Ledger
from litellm_toolguard.store.memory import MemoryFactStore


class StoreAccess:
    """The facts of one tenant for the length of one request. Raises nothing: a store that is down costs no request, and
    no loop its end.

    What the store does not take is kept in the memory of the process, and known here from then on: without that, a run
    in a loop would be told for ever, and never ended, while the store is down.

    Args:
        store: the store.
        spare: takes what the store does not.
        tenant: whose facts they are.

    Attributes:
        failure: why the store failed last in this request; empty when it did not.
    """

    def __init__(self, store: FactStore, spare: MemoryFactStore, tenant: str) -> None:
        self._store = store
        self._spare = spare
        self._tenant = tenant
        self.failure = ""

    @property
    def tenant(self) -> str:
        """Whose facts they are."""
        return self._tenant

    @property
    def may_wait(self) -> bool:
        """See `FactStore.may_wait`."""
        return self._store.may_wait

    def counts(self, instances: Iterable[bytes]) -> Mapping[bytes, int]:
        """See `FactStore.counts`; unknown where the store failed."""
        wanted = tuple(instances)
        spare = self._spare.counts(self._tenant, wanted)
        try:
            return {**spare, **self._store.counts(self._tenant, wanted)}
        except StoreError as error:
            self.failure = str(error)
            return spare

    def remember(self, counts: Mapping[bytes, int]) -> None:
        """See `FactStore.remember`."""
        try:
            self._store.remember(self._tenant, counts)
        except StoreError as error:
            self.failure = str(error)
            self._spare.remember(self._tenant, counts)

    def blocks(self, positions: Iterable[bytes]) -> Mapping[bytes, tuple[Block, ...]]:
        """See `FactStore.blocks`; unknown where the store failed."""
        wanted = tuple(positions)
        spare = self._spare.blocks(self._tenant, wanted)
        try:
            stored = self._store.blocks(self._tenant, wanted)
        except StoreError as error:
            self.failure = str(error)
            return spare
        shared = {position: _larger(spare[position], stored[position]) for position in spare.keys() & stored.keys()}
        return {**spare, **stored, **shared}

    def remember_block(self, position: bytes, blocks: Iterable[Block]) -> None:
        """See `FactStore.remember_block`."""
        given = tuple(blocks)
        try:
            self._store.remember_block(self._tenant, position, given)
        except StoreError as error:
            self.failure = str(error)
            self._spare.remember_block(self._tenant, position, given)


def _larger(one: tuple[Block, ...], other: tuple[Block, ...]) -> tuple[Block, ...]:
    samples = {block.instance: block.samples for block in one}
    for block in other:
        samples[block.instance] = max(block.samples, samples.get(block.instance, 0))
    return tuple(Block(instance, number) for instance, number in sorted(samples.items()))


class LedgerAccess:
    """What one request asks of the ledger.

    Args:
        ledger: the ledger; None where there is none.
        tenant: whose results are looked up.

    Attributes:
        failure: why it could not be read; empty when it could.
    """

    def __init__(self, ledger: Ledger | None, tenant: str) -> None:
        self._ledger = ledger
        self._tenant = tenant
        self.failure = ""

    def known(self, keys: Callable[[], Iterable[bytes]]) -> frozenset[bytes]:
        """Those of the keys that are withheld; none where nobody can tell. They are only made if there is anything.

        Args:
            keys: makes the keys.
        """
        if self._ledger is None:
            return frozenset()
        try:
            return frozenset() if self._ledger.is_empty() else self._ledger.known(self._tenant, keys())
        except StoreError as error:
            self.failure = str(error)
            return frozenset()
