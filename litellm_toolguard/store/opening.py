"""The store that a policy names."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from litellm_toolguard.errors import ConfigError, ConfigProblem
from litellm_toolguard.policy import SQLITE_STORE
from litellm_toolguard.store import FactStore
from litellm_toolguard.store.memory import MemoryFactStore

if TYPE_CHECKING:
    from litellm_toolguard.store.sqlite import SqliteFactStore

# One store for all guards of a process: a guardrail and a callback see the same conversations.
_memory = MemoryFactStore()
_files: dict[Path, SqliteFactStore] = {}
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
    path = Path(name.removeprefix(SQLITE_STORE)).expanduser()
    if not path.is_absolute():
        if base is None:
            raise ConfigError((ConfigProblem("store", "is relative, and the folder of the config is not known"),))
        path = base / path
    path = Path(os.path.realpath(path))
    with _lock:
        if path not in _files:
            # Needs fcntl, which not every system has.
            from litellm_toolguard.store.sqlite import SqliteFactStore

            _files[path] = SqliteFactStore(path)
        return _files[path]
