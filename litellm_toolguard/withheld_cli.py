"""`toolguard withheld`: what is withheld, and the originals. Originals are reachable here only."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from rich.console import Console
from rich.table import Table

from litellm_toolguard.config import check_file
from litellm_toolguard.errors import ConfigError, ConfigProblem, StoreError
from litellm_toolguard.notes import safe_name
from litellm_toolguard.policy import Policy, Retention
from litellm_toolguard.store.opening import path_of
from litellm_toolguard.store.sqlite_ledger import SqliteLedger
from litellm_toolguard.withheld import Entry, Original

Output: TypeAlias = Literal["text", "json"]

_BAD: Final = 2
_SHORT: Final = 24


def ledger_of(config: Path) -> tuple[Path, Retention]:
    """The ledger that a policy or a LiteLLM config names, and how long originals are kept in it.

    Raises:
        ConfigError: the file is bad, or names no ledger or several.
    """
    folder = config.resolve().parent
    policies: list[Policy] = [policy for _, policy in check_file(config).policies]
    found = {path: policy.refusals for policy in policies if (path := path_of(policy.refusals.ledger, folder))}
    if len(found) != 1:
        raise ConfigError((ConfigProblem("", f"names {len(found)} ledgers: give --ledger"),), str(config))
    return next((path, refusals.retention) for path, refusals in found.items())


class WithheldCommands:
    """The commands over one ledger. Each gives an exit code.

    Args:
        path: the ledger's file, which must be there.
        retention: how long originals are kept.

    Raises:
        ConfigError: it cannot be used.
    """

    def __init__(self, path: Path, retention: Retention | None = None) -> None:
        if not path.exists():
            raise ConfigError((ConfigProblem("", "there is no such file"),), str(path))
        kept = retention or Retention()
        self._ledger = SqliteLedger(path, kept.days, kept.max_mb, create=False)

    def list(self, output: Output) -> int:
        """Print every entry, the newest first."""
        return self._read(lambda: self._list(output))

    def _list(self, output: Output) -> int:
        found = self._ledger.entries()
        if output == "json":
            print(json.dumps([_plain(entry) for entry in found], indent=2))
            return 0
        table = Table("id", "withheld", "tool", "call", "cause", "category", "bytes", "state")
        for entry in found:
            about = (entry.tool, entry.call_id[:_SHORT], entry.cause, entry.category)
            table.add_row(entry.id, _when(entry.withheld_at), *map(_cell, about), str(entry.size), _state(entry))
        Console(width=None if sys.stdout.isatty() else 160).print(table)
        return 0

    def show(self, entry_id: str, output: Output) -> int:
        """Print one entry with its original."""
        return self._read(lambda: self._show(entry_id, output))

    def _show(self, entry_id: str, output: Output) -> int:
        found = self._ledger.original(entry_id)
        if found is None:
            return _unknown(entry_id)
        if output == "json":
            print(json.dumps({**_plain(found.entry), "explanation": found.explanation, "original": _original(found)}))
            return 0
        for name, value in _plain(found.entry).items():
            print(f"{name}: {value}")
        print(f"explanation: {found.explanation}")
        original = _original(found)
        print("the original has expired" if original is None else f"\n{original['text']}\n{original['opaque']}")
        return 0

    def release(self, entry_id: str) -> int:
        """Let an entry pass again."""
        return self._read(lambda: self._release(entry_id))

    def _release(self, entry_id: str) -> int:
        released = self._ledger.release(entry_id)
        if released is None:
            return _unknown(entry_id)
        print(f"{released.id}: released, {_cell(released.tool)}")
        return 0

    def purge(self) -> int:
        """Drop what is too old."""
        return self._read(self._purge)

    def _purge(self) -> int:
        print(f"{self._ledger.purge()} originals dropped")
        return 0

    def _read(self, command: Callable[[], int]) -> int:
        try:
            return command()
        except StoreError as error:
            print(f"the ledger cannot be used: {error}", file=sys.stderr)
            return _BAD
        finally:
            self._ledger.close()


def _unknown(entry_id: str) -> int:
    print(f"{_cell(entry_id)}: no withheld result has this id, or several begin so", file=sys.stderr)
    return _BAD


def _cell(text: str) -> str:
    return safe_name(text) if text else "-"


def _state(entry: Entry) -> str:
    state = "withheld" if entry.released_at is None else "released"
    return state if entry.has_payload else f"{state}, original expired"


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(sep=" ", timespec="seconds")


def _plain(entry: Entry) -> dict[str, Any]:
    return {**asdict(entry), "state": _state(entry)}


def _original(found: Original) -> Any:
    return None if found.payload is None else json.loads(found.payload)
