"""The ledger in an SQLite file of its own: what is withheld outlives every restart, and all workers share it.

`synchronous` is FULL: the original is on the disk before the provider is asked again. Payloads are stored once each,
by their content. Old ones are dropped when new ones come, so that the file stays below its bound; what remains of them
is that they are withheld.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from litellm_toolguard.canonical import digest
from litellm_toolguard.errors import ConfigError, ConfigProblem, StoreError
from litellm_toolguard.policy import STORE_READ_WAIT_MS, STORE_WRITE_WAIT_MS
from litellm_toolguard.store.ledger import entry_id as name_of
from litellm_toolguard.store.ledger import entry_key
from litellm_toolguard.store.sqlite_file import KEYS_OF_ONE_QUERY, Connection, Format, there, transaction
from litellm_toolguard.withheld import Entry, Original, Withheld

APPLICATION_ID: Final = 0x746C6777
"""Says in the file's header whose it is."""
SCHEMA_VERSION: Final = 1
_DAY_S: Final = 86_400
_MB: Final = 1_000_000
_FILLED: Final = 0.7
"""Share of the bound that is filled; the rest is for facts to come, for free pages and for the log beside the file."""
_LOG_SHARE: Final = 0.1
"""Share of the bound at which the log is written back into the file."""
_PAGE: Final = 4096

# A key stands for the tenant and the key of a result; `entry` for the tenant and the first key. Both are digests.
_FORMAT: Final = Format(
    application_id=APPLICATION_ID,
    version=SCHEMA_VERSION,
    schema="""
CREATE TABLE entries (
    entry BLOB PRIMARY KEY, tool TEXT NOT NULL, call_id TEXT NOT NULL, cause TEXT NOT NULL, category TEXT NOT NULL,
    explanation TEXT NOT NULL, size INTEGER NOT NULL, payload BLOB, withheld_at REAL NOT NULL, released_at REAL
) WITHOUT ROWID;
CREATE INDEX entries_payload ON entries (payload);
CREATE TABLE keys (key BLOB NOT NULL, entry BLOB NOT NULL, PRIMARY KEY (key, entry)) WITHOUT ROWID;
CREATE INDEX keys_entry ON keys (entry);
CREATE TABLE payloads (payload BLOB PRIMARY KEY, body BLOB NOT NULL, kept_at REAL NOT NULL);
CREATE INDEX payloads_kept ON payloads (kept_at);
""",
    probe="SELECT entry FROM entries LIMIT 1",
    synchronous="FULL",
    settings=f"PRAGMA page_size = {_PAGE}; PRAGMA auto_vacuum = INCREMENTAL;",
)
_ANY: Final = "SELECT 1 FROM keys LIMIT 1"
_FIND: Final = "SELECT DISTINCT key FROM keys WHERE key IN ({marks})"
_KEEP_ENTRY: Final = """
INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)
ON CONFLICT (entry) DO UPDATE SET released_at = NULL, payload = excluded.payload, explanation = excluded.explanation
"""
_KEEP_KEY: Final = "INSERT OR IGNORE INTO keys VALUES (?, ?)"
_KEEP_PAYLOAD: Final = """
INSERT INTO payloads VALUES (?, ?, ?) ON CONFLICT (payload) DO UPDATE SET kept_at = excluded.kept_at
"""
_SHOWN: Final = "entry, tool, call_id, cause, category, size, withheld_at, released_at, payload IS NOT NULL"
_LIST: Final = f"SELECT {_SHOWN} FROM entries ORDER BY withheld_at DESC, entry"
_NAMED: Final = f"SELECT {_SHOWN}, explanation, payload FROM entries WHERE hex(entry) LIKE ? LIMIT 2"
_OLD: Final = "SELECT payload FROM payloads WHERE kept_at < ?"
_OLDEST: Final = "SELECT payload, length(body) FROM payloads ORDER BY kept_at LIMIT 100"


class SqliteLedger:
    """A `Ledger` in a file.

    Args:
        path: the file. Its folder must be there.
        days: days that an original is kept.
        max_mb: megabytes of the file, at most.
        create: whether a missing file is made.
        clock: seconds since 1970.

    Raises:
        ConfigError: the file cannot be made, opened or written, is no SQLite database, belongs to another program, or
            was made by a newer version.
    """

    def __init__(
        self,
        path: Path,
        days: float = 30,
        max_mb: float = 512,
        *,
        create: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self._days = days
        self._bound = max_mb * _MB
        self._clock = clock
        bounded = replace(_FORMAT, log_pages=max(1, int(self._bound * _LOG_SHARE / _PAGE)))
        self._reader = Connection(path, bounded, STORE_READ_WAIT_MS, create=False)
        self._writer = Connection(path, bounded, STORE_WRITE_WAIT_MS, create=create)
        try:
            with self._writer.use() as database:
                _found(database)
        except StoreError as error:
            raise ConfigError((ConfigProblem("ledger", f"{path} cannot be used: {error}"),)) from error

    def is_empty(self) -> bool:
        """See `Ledger.is_empty`."""
        with self._reader.use() as database:
            return _found(database).execute(_ANY).fetchone() is None

    def known(self, tenant: str, keys: Iterable[bytes]) -> frozenset[bytes]:
        """See `Ledger.known`."""
        wanted = {digest("key", tenant, key): key for key in keys}
        stored = list(wanted)
        with self._reader.use() as database:
            rows = [
                row
                for start in range(0, len(stored), KEYS_OF_ONE_QUERY)
                for row in _select(_found(database), stored[start:][:KEYS_OF_ONE_QUERY])
            ]
        return frozenset(wanted[key] for (key,) in rows)

    def withhold(self, tenant: str, results: Sequence[Withheld]) -> None:
        """See `Ledger.withhold`."""
        now = self._clock()
        with self._writer.use() as database, transaction(there(database)) as writing:
            self._make_room(writing, sum(len(result.payload) for result in results))
            for result in results:
                _keep(writing, tenant, result, now)
        with self._writer.use() as database:
            _shrink(there(database), self._bound)

    def entries(self) -> Sequence[Entry]:
        """See `Ledger.entries`."""
        with self._reader.use() as database:
            return [_entry(row) for row in _found(database).execute(_LIST)]

    def original(self, entry_id: str) -> Original | None:
        """See `Ledger.original`."""
        with self._reader.use() as database:
            row = _named(_found(database), entry_id)
            if row is None:
                return None
            body = _found(database).execute("SELECT body FROM payloads WHERE payload = ?", (row[10],)).fetchone()
        return Original(_entry(row), row[9], None if body is None else body[0])

    def release(self, entry_id: str) -> Entry | None:
        """See `Ledger.release`."""
        with self._writer.use() as database, transaction(_found(database)) as writing:
            row = _named(writing, entry_id)
            if row is None:
                return None
            writing.execute("DELETE FROM keys WHERE entry = ?", (row[0],))
            writing.execute("UPDATE entries SET released_at = ? WHERE entry = ?", (self._clock(), row[0]))
            again = _named(writing, entry_id)
        return None if again is None else _entry(again)

    def purge(self) -> int:
        """See `Ledger.purge`."""
        with self._writer.use() as database, transaction(_found(database)) as writing:
            dropped = self._make_room(writing, 0)
        with self._writer.use() as database:
            _shrink(_found(database), 0)
        return dropped

    def close(self) -> None:
        """See `Ledger.close`."""
        self._reader.close()
        self._writer.close()

    def _make_room(self, writing: sqlite3.Connection, wanted: int) -> int:
        """Drop what is too old, and then the oldest, until the new ones fit; gives how many were dropped."""
        room = self._bound * _FILLED - wanted
        if room < 0:
            raise StoreError("an original is larger than the ledger may be")
        old = [row[0] for row in writing.execute(_OLD, (self._clock() - self._days * _DAY_S,))]
        _drop(writing, old)
        dropped = len(old)
        while _used(writing) > room:
            oldest = writing.execute(_OLDEST).fetchall()
            if not oldest:
                raise StoreError("full")
            excess, names = _used(writing) - room, []
            for name, size in oldest:
                if excess <= 0:
                    break
                names.append(name)
                excess -= size
            _drop(writing, names)
            dropped += len(names)
        return dropped


def _found(database: sqlite3.Connection | None) -> sqlite3.Connection:
    """A ledger that is gone is none that is empty."""
    if database is None:
        raise StoreError("it is gone")
    return database


def _select(database: sqlite3.Connection, keys: Sequence[bytes]) -> list[tuple[bytes]]:
    return database.execute(_FIND.format(marks=",".join("?" * len(keys))), keys).fetchall()


def _named(database: sqlite3.Connection, entry_id: str) -> Any | None:
    """The row of the only entry whose id begins so."""
    if not entry_id or not all(letter in "0123456789abcdef" for letter in entry_id.lower()):
        return None
    rows = database.execute(_NAMED, (f"{entry_id.upper()}%",)).fetchall()
    return rows[0] if len(rows) == 1 else None


def _entry(row: Any) -> Entry:
    key, tool, call_id, cause, category, size, withheld_at, released_at, kept = row[:9]
    return Entry(name_of(key), tool, call_id, cause, category, size, withheld_at, released_at, bool(kept))


def _keep(writing: sqlite3.Connection, tenant: str, result: Withheld, now: float) -> None:
    key, payload = entry_key(tenant, result), digest("payload", result.payload)
    about = (result.tool, result.call_id, result.cause, result.category, result.explanation)
    writing.execute(_KEEP_PAYLOAD, (payload, result.payload, now))
    writing.execute(_KEEP_ENTRY, (key, *map(_storable, about), len(result.payload), payload, now))
    writing.executemany(_KEEP_KEY, [(digest("key", tenant, each), key) for each in result.keys])


def _storable(text: str) -> str:
    """SQLite takes no lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _drop(writing: sqlite3.Connection, payloads: Sequence[bytes]) -> None:
    rows = [(payload,) for payload in payloads]
    writing.executemany("DELETE FROM payloads WHERE payload = ?", rows)
    writing.executemany("UPDATE entries SET payload = NULL, explanation = '' WHERE payload = ?", rows)


def _pragma(database: sqlite3.Connection, name: str) -> int:
    return int(database.execute(f"PRAGMA {name}").fetchone()[0])


def _used(database: sqlite3.Connection) -> int:
    return (_pragma(database, "page_count") - _pragma(database, "freelist_count")) * _PAGE


def _shrink(database: sqlite3.Connection, bound: float) -> None:
    """Give free pages back when there are many of them."""
    if _pragma(database, "freelist_count") * _PAGE > bound * _LOG_SHARE:
        database.execute("PRAGMA incremental_vacuum").fetchall()
