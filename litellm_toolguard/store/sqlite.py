"""Facts in an SQLite file: they outlive a restart, and all workers of one machine share them.

The file is in WAL mode, where readers wait for nobody, and `synchronous` is NORMAL: a fact survives the death of every
process; a power failure may cost the last ones, which is one more note each and not worth a disk flush per note. It
must lie on a local disk. For POSIX systems.

A process has two connections, so that a reading event loop never waits behind a thread that writes. Both are closed
around a fork, because SQLite's locks do not survive one, and opened again when they are next used.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias
from weakref import WeakSet

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

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x746C6764
"""Says in the file's header whose it is."""
_MODE: Final = 0o600
_CHUNK: Final = 500
"""Keys of one query; older versions of SQLite take 999."""
# A hint is one number; its part has no name.
_WHOLE: Final = b""

# A key stands for the kind, the tenant and the instance or the position. It is a digest: a tenant may be a key in plain
# text. `part` is the instance of a block, `number` the count or the samples, `used` the second of the last use.
_SCHEMA: Final = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
CREATE TABLE facts (
    key BLOB NOT NULL, part BLOB NOT NULL, number INTEGER NOT NULL, used REAL NOT NULL, PRIMARY KEY (key, part)
) WITHOUT ROWID;
CREATE INDEX facts_used ON facts (used);
"""
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

# What SQLite says, and what is said of it. Other texts may name parts of a statement, never values; they are not told.
_REASONS: Final[Mapping[str, str]] = {
    "database is locked": "locked",
    "database table is locked": "locked",
    "database or disk is full": "full",
    "disk I/O error": "disk error",
    "attempt to write a readonly database": "read-only",
    "unable to open database file": "cannot be opened",
    "database disk image is malformed": "damaged",
    "no such table: facts": "damaged",
    "file is not a database": "no SQLite database",
}

Row: TypeAlias = tuple[bytes, bytes, int]
_File: TypeAlias = tuple[int, int]


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
        self._reader = _Connection(self.path, STORE_READ_WAIT_MS, create=False)
        self._writer = _Connection(self.path, STORE_WRITE_WAIT_MS, create=True)
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
            rows = [row for start in range(0, len(keys), _CHUNK) for row in _select(database, keys[start:][:_CHUNK])]
            living = [row for row in rows if not is_expired(row[3], now, self._ttl_s)]
            due = {key for key, _, _, used in living if is_due(used, now, self._ttl_s)}
            if due:
                # That a fact was used may get lost; the answer is as good without.
                with suppress(sqlite3.OperationalError), _transaction(database):
                    database.executemany(_REFRESH, [(now, key) for key in sorted(due)])
        return [(key, part, number) for key, part, number, _ in living]

    def _write(self, statement: str, rows: Sequence[Row]) -> None:
        if not rows:
            return
        now = self._clock()
        keys = sorted({key for key, _, _ in rows})
        with self._writer.use() as database, _transaction(_there(database)) as writing:
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
        with self._writer.use() as database, _transaction(_there(database)) as writing:
            writing.execute(_PURGE_EXPIRED, (now - self._ttl_s, most, now + self._ttl_s, most))
            excess = writing.execute("SELECT count(*) FROM facts").fetchone()[0] - self._max_entries
            if excess > 0:
                writing.execute(_PURGE_OLDEST, (min(excess, most),))


class _Connection:
    """A connection that is opened when it is used, again after a fork, an error, or when the file is another one.

    Args:
        path: the file.
        wait_ms: how long a statement waits for other processes.
        create: whether a missing file is made.
    """

    def __init__(self, path: Path, wait_ms: int, *, create: bool) -> None:
        self._path = path
        self._wait_ms = wait_ms
        self._create = create
        self._lock = Lock()
        self._database: sqlite3.Connection | None = None
        self._file: _File | None = None
        _connections.add(self)

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection | None]:
        """The connection, for this thread alone; None when the file is not there and is not to be made.

        Raises:
            StoreError: for everything that goes wrong.
        """
        with self._lock:
            try:
                yield self._opened()
            except (sqlite3.Error, OSError) as error:
                reason = _reason(error)
                if reason != "locked":
                    self._drop()
                raise StoreError(reason) from error

    def close(self) -> None:
        with self._lock:
            self._drop()

    def hold(self) -> None:
        """Before a fork: nobody uses it, and it is closed."""
        self._lock.acquire()
        self._drop()

    def release(self) -> None:
        """After a fork, in both processes."""
        self._lock.release()

    def _opened(self) -> sqlite3.Connection | None:
        file = _identity(self._path)
        if self._database is not None and file == self._file:
            return self._database
        self._drop()
        if file is None and not self._create:
            # A file that was deleted is made again by the next write; a folder that is gone needs somebody.
            self._path.parent.stat()
            return None
        if self._create:
            _ensure_file(self._path)
        self._database = _connect(self._path, self._wait_ms, checkpoints=self._create)
        self._file = _identity(self._path)
        return self._database

    def _drop(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            with suppress(sqlite3.Error):
                database.close()


_connections: WeakSet[_Connection] = WeakSet()
_held: list[_Connection] = []


def _before_fork() -> None:
    for connection in tuple(_connections):
        connection.hold()
        _held.append(connection)


def _after_fork() -> None:
    while _held:
        _held.pop().release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


# ---------------------------------------------------------------------------------------------------------- the file


def _identity(path: Path) -> _File | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _ensure_file(path: Path) -> None:
    """Make the file if it is not there: as a whole, under a lock on its folder, so that nobody sees half of it.

    What a deleted file left beside it goes first: SQLite would take it for the new one's.
    """
    if _is_made(path):
        _make_private(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if _is_made(path):
            return
        made = path.with_name(f"{path.name}.new")
        for rest in (*_besides(path), made, *_besides(made)):
            rest.unlink(missing_ok=True)
        os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _MODE))
        with closing(sqlite3.connect(made, isolation_level=None)) as database:
            database.executescript(f"BEGIN; {_SCHEMA} COMMIT; PRAGMA journal_mode = WAL;")
        made.rename(path)
    finally:
        os.close(folder)


def _is_made(path: Path) -> bool:
    """An empty file, as `touch` makes one, is none yet."""
    return path.exists() and path.stat().st_size > 0


def _make_private(path: Path) -> None:
    """Take the file away from others; SQLite gives its mode to those beside it. By name: closing a handle of one's own
    would drop the locks that SQLite holds on the file."""
    for file in (path, *_besides(path)):
        with suppress(FileNotFoundError):
            if stat.S_IMODE(file.stat().st_mode) & ~_MODE:
                file.chmod(_MODE)


def _besides(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def _connect(path: Path, wait_ms: int, *, checkpoints: bool) -> sqlite3.Connection:
    """A connection to a file that is there; it never makes one. Only where `checkpoints` is set does it ever flush."""
    database = sqlite3.connect(
        f"{path.as_uri()}?mode=rw", uri=True, timeout=wait_ms / 1000, isolation_level=None, check_same_thread=False
    )
    try:
        _check(database)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        if not checkpoints:
            database.execute("PRAGMA wal_autocheckpoint = 0")
    except BaseException:
        database.close()
        raise
    return database


def _check(database: sqlite3.Connection) -> None:
    """Refuse a file that is not ours, before anything in it is changed."""
    owner = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if owner != APPLICATION_ID:
        raise StoreError("the database of another program")
    if version > SCHEMA_VERSION:
        raise StoreError(f"made by a newer version (its format is {version}, known are formats up to {SCHEMA_VERSION})")
    database.execute("SELECT number FROM facts LIMIT 1")


# -------------------------------------------------------------------------------------------------------- statements


def _select(database: sqlite3.Connection, keys: Sequence[bytes]) -> list[tuple[bytes, bytes, int, float]]:
    return database.execute(_FIND.format(marks=",".join("?" * len(keys))), keys).fetchall()


def _there(database: sqlite3.Connection | None) -> sqlite3.Connection:
    if database is None:
        raise AssertionError("a connection that makes its file has one")
    return database


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All or nothing. The lock for writing is taken first, so that nothing that was read can be outdated."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield database
        database.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    return _REASONS.get(str(error), type(error).__name__)
