"""The store and the ledger that a policy names."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from litellm_toolguard.errors import ConfigError, ConfigProblem
from litellm_toolguard.policy import SQLITE_STORE, RefusalPolicy
from litellm_toolguard.store import FactStore
from litellm_toolguard.store.ledger import Ledger
from litellm_toolguard.store.memory import MemoryFactStore

if TYPE_CHECKING:
    from litellm_toolguard.store.sqlite import SqliteFactStore
    from litellm_toolguard.store.sqlite_ledger import SqliteLedger

# One store for all guards of a process: a guardrail and a callback see the same conversations.
_memory = MemoryFactStore()
_files: dict[Path, SqliteFactStore] = {}
_ledgers: dict[Path, SqliteLedger] = {}
_lock = Lock()


def open_store(name: str, base: Path | None) -> FactStore:
    """The store of this name, shared by everyone in the process who names it.

    Args:
        name: `memory`, or `sqlite:///path`, as the policy checked it.
        base: folder that a relative path starts from; None where it is not known.

    Raises:
        ConfigError: the file cannot be used, or its path is relative and `base` is None.
    """
    if name == "memory":
        return _memory
    path = path_of(name, base)
    if path is None:
        raise ConfigError((ConfigProblem("store", _RELATIVE),))
    with _lock:
        if path not in _files:
            # Needs fcntl, which not every system has.
            from litellm_toolguard.store.sqlite import SqliteFactStore

            _files[path] = SqliteFactStore(path)
        return _files[path]


def open_ledger(policy: RefusalPolicy, base: Path | None) -> Ledger | None:
    """The ledger that a policy names, shared like a store. While nothing is recovered from, a ledger that is there is
    read all the same: what was withheld stays withheld. None where there is none.

    Args:
        policy: the policy.
        base: folder that a relative path starts from; None where it is not known.

    Raises:
        ConfigError: the file cannot be used, or its path is relative and `base` is None.
    """
    path = path_of(policy.ledger, base)
    if path is None:
        if policy.recover:
            raise ConfigError((ConfigProblem("ledger", _RELATIVE),))
        return None
    with _lock:
        if path not in _ledgers:
            if not policy.recover and not path.exists():
                return None
            from litellm_toolguard.store.sqlite_ledger import SqliteLedger

            kept = policy.retention
            _ledgers[path] = SqliteLedger(path, kept.days, kept.max_mb, create=policy.recover)
        return _ledgers[path]


_RELATIVE = "is relative, and the folder of the config is not known"


def path_of(name: str, base: Path | None) -> Path | None:
    """The path of a file that is named so; None where nobody knows where it starts."""
    path = Path(name.removeprefix(SQLITE_STORE)).expanduser()
    if not path.is_absolute() and base is None:
        return None
    return Path(os.path.realpath(path if base is None else base / path))
