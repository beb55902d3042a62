"""Facts in an SQLite file: they outlive a restart, and all workers of one machine share them.

The file is in WAL mode, where readers wait for nobody, and `synchronous` is NORMAL: a fact survives the death of every
process; a power failure may cost the last ones, which is one more note each and not worth a disk flush per note. It
must lie on a local disk. For POSIX systems.

A process has two connections, so that a reading event loop never waits behind a thread that writes.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from litellm_toolguard.canonical import digest
from litellm_toolguard.errors import ConfigError, ConfigProblem, StoreError
from litellm_toolguard.facts import Block
from litellm_toolguard.policy import (
    FACTS_MAX_ENTRIES,
    FACTS_PURGE_EVERY,
    FACTS_PURGE_MAX,
    FACTS_TTL_S,
    STORE_READ_WAIT_MS,
    STORE_WRITE_WAIT_MS,
)
from litellm_toolguard.store import is_due, is_expired
from litellm_toolguard.store.sqlite_file import KEYS_OF_ONE_QUERY, Connection, Format, there, transaction

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x746C6764
"""Says in the file's header whose it is."""
# A hint is one number; its part has no name.
_WHOLE: Final = b""

# A key stands for the kind, the tenant and the instance or the position. It is a digest: a tenant may be a key in plain
# text. `part` is the instance of a block, `number` the count or the samples, `used` the second of the last use.
_FORMAT: Final = Format(
    application_id=APPLICATION_ID,
    version=SCHEMA_VERSION,
    schema="""
CREATE TABLE facts (
    key BLOB NOT NULL, part BLOB NOT NULL, number INTEGER NOT NULL, used REAL NOT NULL, PRIMARY KEY (key, part)
) WITHOUT ROWID;
CREATE INDEX facts_used ON facts (used);
""",
    probe="SELECT number FROM facts LIMIT 1",
)
_FIND: Final = "SELECT key, part, number, used FROM facts WHERE key IN ({marks}) ORDER BY key, part"
_REFRESH: Final = "UPDATE facts SET used = ? WHERE key = ?"
_FORGET_EXPIRED: Final = "DELETE FROM facts WHERE key = ? AND abs(used - ?) > ?"
_KEEP_FIRST: Final = """
INSERT INTO facts VALUES (?, ?, ?, ?) ON CONFLICT (key, part) DO UPDATE SET used = excluded.used
"""
_KEEP_LARGEST: Final = """
INSERT INTO facts VALUES (?, ?, ?, ?)
ON CONFLICT (key, part) DO UPDATE SET used = excluded.used, number = max(number, excluded.number)
"""
_PURGE_EXPIRED: Final = """
DELETE FROM facts WHERE (key, part) IN (
    SELECT * FROM (SELECT key, part FROM facts WHERE used < ? ORDER BY used LIMIT ?)
    UNION SELECT * FROM (SELECT key, part FROM facts WHERE used > ? ORDER BY used DESC LIMIT ?)
)
"""
_PURGE_OLDEST: Final = """
DELETE FROM facts WHERE (key, part) IN (SELECT key, part FROM facts ORDER BY used LIMIT ?)
"""

Row: TypeAlias = tuple[bytes, bytes, int]


class SqliteFactStore:
    """A `FactStore` in a file, which is made when it is not there.

    Args:
        path: the file. Its folder must be there.
        max_entries: facts kept; up to `FACTS_PURGE_EVERY` more for each writing process until they are next purged.
        ttl_s: seconds after its last use that a fact is kept.
        clock: seconds that go on while no process runs.

    Raises:
        ConfigError: the file cannot be made, opened or written, is no SQLite database, belongs to another program, or
            was made by a newer version.
    """

    may_wait = True

    def __init__(
        self,
        path: Path,
        max_entries: int = FACTS_MAX_ENTRIES,
        ttl_s: float = FACTS_TTL_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._clock = clock
        self._written = 0
        self._reader = Connection(self.path, _FORMAT, STORE_READ_WAIT_MS, create=False)
        self._writer = Connection(self.path, _FORMAT, STORE_WRITE_WAIT_MS, create=True)
        try:
            self._purge()
        except StoreError as error:
            # Somebody who holds the file for long at the start will have let go of it later.
            if str(error) != "locked":
                raise ConfigError((ConfigProblem("store", f"{self.path} cannot be used: {error}"),)) from error

    def __len__(self) -> int:
        with self._reader.use() as database:
            return 0 if database is None else int(database.execute("SELECT count(*) FROM facts").fetchone()[0])

    def counts(self, tenant: str, instances: Iterable[bytes]) -> Mapping[bytes, int]:
        """See `FactStore.counts`."""
        keys = {digest("hint", tenant, instance): instance for instance in instances}
        return {keys[key]: number for key, _, number in self._found(list(keys))}

    def remember(self, tenant: str, counts: Mapping[bytes, int]) -> None:
        """See `FactStore.remember`."""
        rows = [(digest("hint", tenant, instance), _WHOLE, count) for instance, count in counts.items()]
        self._write(_KEEP_FIRST, rows)

    def blocks(self, tenant: str, positions: Iterable[bytes]) -> Mapping[bytes, tuple[Block, ...]]:
        """See `FactStore.blocks`."""
        keys = {digest("block", tenant, position): position for position in positions}
        found: dict[bytes, tuple[Block, ...]] = {}
        for key, part, number in self._found(list(keys)):
            found[keys[key]] = (*found.get(keys[key], ()), Block(part, number))
        return found

    def remember_block(self, tenant: str, position: bytes, blocks: Iterable[Block]) -> None:
        """See `FactStore.remember_block`."""
        key = digest("block", tenant, position)
        self._write(_KEEP_LARGEST, [(key, block.instance, block.samples) for block in blocks])

    def close(self) -> None:
        """Close both connections of this process."""
        self._reader.close()
        self._writer.close()

    def _found(self, keys: Sequence[bytes]) -> list[Row]:
        """The living rows of the keys. The file may have been deleted: nothing is known then."""
        now = self._clock()
        with self._reader.use() as database:
            if database is None:
                return []
            rows = [
                row
                for start in range(0, len(keys), KEYS_OF_ONE_QUERY)
                for row in _select(database, keys[start:][:KEYS_OF_ONE_QUERY])
            ]
            living = [row for row in rows if not is_expired(row[3], now, self._ttl_s)]
            due = {key for key, _, _, used in living if is_due(used, now, self._ttl_s)}
            if due:
                # That a fact was used may get lost; the answer is as good without.
                with suppress(sqlite3.OperationalError), transaction(database):
                    database.executemany(_REFRESH, [(now, key) for key in sorted(due)])
        return [(key, part, number) for key, part, number, _ in living]

    def _write(self, statement: str, rows: Sequence[Row]) -> None:
        if not rows:
            return
        now = self._clock()
        keys = sorted({key for key, _, _ in rows})
        with self._writer.use() as database, transaction(there(database)) as writing:
            writing.executemany(_FORGET_EXPIRED, [(key, now, self._ttl_s) for key in keys])
            writing.executemany(statement, [(*row, now) for row in rows])
            # The rows of a key age together.
            writing.executemany(_REFRESH, [(now, key) for key in keys])
        self._written += len(rows)
        if self._written >= FACTS_PURGE_EVERY:
            # What was asked for is stored; the old facts can wait for the next time.
            with suppress(StoreError):
                self._purge()

    def _purge(self) -> None:
        self._written = 0
        now, most = self._clock(), FACTS_PURGE_MAX
        with self._writer.use() as database, transaction(there(database)) as writing:
            writing.execute(_PURGE_EXPIRED, (now - self._ttl_s, most, now + self._ttl_s, most))
            excess = writing.execute("SELECT count(*) FROM facts").fetchone()[0] - self._max_entries
            if excess > 0:
                writing.execute(_PURGE_OLDEST, (min(excess, most),))


def _select(database: sqlite3.Connection, keys: Sequence[bytes]) -> list[tuple[bytes, bytes, int, float]]:
    return database.execute(_FIND.format(marks=",".join("?" * len(keys))), keys).fetchall()
