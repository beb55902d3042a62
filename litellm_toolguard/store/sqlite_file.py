"""SQLite files of the guard's own: made as a whole, private, told from others, and safe over forks.

A connection is closed around a fork, because SQLite's locks do not survive one, and opened again when it is next used.
For POSIX systems.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, Literal, TypeAlias
from weakref import WeakSet

from litellm_toolguard.errors import StoreError

_MODE: Final = 0o600
KEYS_OF_ONE_QUERY: Final = 500
"""Older versions of SQLite take 999."""

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
    "no such table: entries": "damaged",
    "file is not a database": "no SQLite database",
}

_File: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Format:
    """What is in a file.

    Args:
        application_id: says in the file's header whose it is.
        version: of the schema.
        schema: statements that make the tables.
        probe: a query that every file of this format answers.
        synchronous: NORMAL survives the death of every process, FULL a power failure too.
        settings: statements for a new file, before its tables are made.
        log_pages: pages of the log at which it is written back into the file.
    """

    application_id: int
    version: int
    schema: str
    probe: str
    synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    settings: str = ""
    log_pages: int = 1_000

    @property
    def script(self) -> str:
        """What makes a new file."""
        header = f"PRAGMA application_id = {self.application_id}; PRAGMA user_version = {self.version};"
        return f"{self.settings} BEGIN; {header} {self.schema} COMMIT; PRAGMA journal_mode = WAL;"


class Connection:
    """A connection that is opened when it is used, again after a fork, an error, or when the file is another one.

    Args:
        path: the file.
        format: what is in it.
        wait_ms: how long a statement waits for other processes.
        create: whether a missing file is made.
    """

    def __init__(self, path: Path, format: Format, wait_ms: int, *, create: bool) -> None:
        self._path = path
        self._format = format
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
            _ensure_file(self._path, self._format)
        self._database = _connect(self._path, self._format, self._wait_ms, checkpoints=self._create)
        self._file = _identity(self._path)
        return self._database

    def _drop(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            with suppress(sqlite3.Error):
                database.close()


_connections: WeakSet[Connection] = WeakSet()
_held: list[Connection] = []


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


def _ensure_file(path: Path, format: Format) -> None:
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
            database.executescript(format.script)
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


def _connect(path: Path, format: Format, wait_ms: int, *, checkpoints: bool) -> sqlite3.Connection:
    """A connection to a file that is there; it never makes one. Only where `checkpoints` is set does it ever flush."""
    database = sqlite3.connect(
        f"{path.as_uri()}?mode=rw", uri=True, timeout=wait_ms / 1000, isolation_level=None, check_same_thread=False
    )
    try:
        _check(database, format)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA synchronous = {format.synchronous}")
        database.execute(f"PRAGMA wal_autocheckpoint = {format.log_pages if checkpoints else 0}")
    except BaseException:
        database.close()
        raise
    return database


def _check(database: sqlite3.Connection, format: Format) -> None:
    """Refuse a file that is not ours, before anything in it is changed."""
    owner = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if owner != format.application_id:
        raise StoreError("the database of another program")
    if version > format.version:
        raise StoreError(f"made by a newer version (its format is {version}, known are formats up to {format.version})")
    database.execute(format.probe)


def there(database: sqlite3.Connection | None) -> sqlite3.Connection:
    """The database of a connection that makes its file."""
    if database is None:
        raise AssertionError("a connection that makes its file has one")
    return database


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
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
