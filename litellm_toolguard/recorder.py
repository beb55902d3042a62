"""Writes a recording: one JSON line per row, appended with a single write, so that several processes may share a file.

Without content every digest is keyed with a secret, which stands beside the file in `<file>.key`. Whoever has the
recording and not the key cannot find out what was said by guessing it. A replay needs no key.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any, Final

from litellm_toolguard import recording
from litellm_toolguard.canonical import digest, keyed
from litellm_toolguard.engine import Evidence
from litellm_toolguard.facts import Block
from litellm_toolguard.gate import Ruling
from litellm_toolguard.policy import Policy
from litellm_toolguard.session import End, Release, look
from litellm_toolguard.transcript import Dialect

KEY_SUFFIX: Final = ".key"
_SECRET_BYTES: Final = 32
_PRIVATE: Final = 0o600
_OTHERS: Final = 0o077
_NEWEST_ROWS: Final = 10_000
"""Rows of which it is known that a later one may continue them."""


class Looked:
    """Notes which stored facts a decision was made with.

    Attributes:
        counts: the counts that were found.
        blocks: what was found to be held back.
    """

    def __init__(self, facts: Any) -> None:
        self._facts = facts
        self.counts: Mapping[bytes, int] = {}
        self.blocks: Mapping[bytes, tuple[Block, ...]] = {}

    def look_up(self, instances: Iterable[bytes]) -> Mapping[bytes, int]:
        """See `StoreAccess.counts`."""
        self.counts = dict(self._facts.counts(instances))
        return self.counts

    def look_up_blocks(self, positions: Iterable[bytes]) -> Mapping[bytes, tuple[Block, ...]]:
        """See `StoreAccess.blocks`."""
        found = self._facts.blocks(positions)
        self.blocks = {position: tuple(blocks) for position, blocks in found.items() if blocks}
        return self.blocks


class Recorder:
    """One recording that is being written. Its methods raise what writing raises; a request must not fail for it.

    Args:
        path: the file; made with mode 0600 where it is not there.
        policy: the policy that judges.

    Raises:
        OSError: the file, or the key beside it, cannot be opened, is no regular file, or is open to others.
    """

    def __init__(self, path: Path, policy: Policy) -> None:
        self._path = path
        self._policy = policy
        self._lock = Lock()
        self._file = _opened(path)
        self.secret = b"" if policy.record_content else _secret(path.with_name(path.name + KEY_SUFFIX))
        self._begin()

    @property
    def with_content(self) -> bool:
        """Whether content is kept."""
        return self._policy.record_content

    def request(self, tenant: str, dialect: Dialect, body: Mapping[str, Any], ruling: Ruling, looked: Looked) -> str:
        """Write a request and its decision; gives the id of its row."""
        with self._lock:
            self._ready()
            name = self._name()
            tenant_ = keyed(digest("tenant", tenant), self.secret).hex()
            row: dict[str, Any] = {
                recording.KIND: "request",
                "run": self._run,
                "id": name,
                "dialect": dialect,
                "tenant": tenant_,
                "facts": recording.plain_counts(looked.counts),
                "blocks": recording.plain_blocks(looked.blocks),
                "decision": recording.plain_decision(ruling),
            }
            if self.with_content:
                self._write({**row, "body": recording.body_of(body)})
            elif ruling.basis is not None:
                self._write_evidence(row, ruling.basis[1].evidence)
            else:
                self._write(row)
            return name

    def answer(self, ruling: Ruling, dialect: Dialect, answer: Mapping[str, Any] | None) -> None:
        """Write an answer of the provider; None for one that did not come whole."""
        row: dict[str, Any] = {
            recording.KIND: "answer",
            "run": self._run,
            "of": ruling.row,
            "whole": answer is not None,
        }
        if answer is not None and self.with_content:
            row["answer"] = answer
        elif answer is not None:
            row["calls"] = recording.calls_of(dialect, answer)
            if ruling.watch is not None:
                row["seen"] = recording.plain_seen(look(ruling.watch.standing, answer))
        with self._lock:
            self._write(row)

    def verdict(self, ruling: Ruling, effect: Release | End) -> None:
        """Write what became of the answers to an armed request."""
        plain = recording.plain_verdict(effect)
        with self._lock:
            self._write({recording.KIND: "verdict", "run": self._run, "of": ruling.row, "verdict": plain})

    # ------------------------------------------------------------------------------------------------------------ rows

    def _begin(self) -> None:
        """Begin a new run of rows: none of them continues a row of an earlier one."""
        self._run = secrets.token_hex(6)
        self._number = 0
        self._begun = False
        self._size = 0
        self._torn = False
        self._ends: OrderedDict[tuple[str, str, bytes], tuple[str, int]] = OrderedDict()

    def _name(self) -> str:
        self._number += 1
        return f"{self._run}-{self._number}"

    def _ready(self) -> None:
        """See that the file is there and says who writes. It may have been moved away or emptied meanwhile."""
        held = os.fstat(self._file)
        if held.st_nlink == 0:
            again = _opened(self._path)
            os.close(self._file)
            self._file = again
            self._begin()
        elif held.st_size < self._size:
            # Another worker may have begun it anew already.
            self._begin()
        held = os.fstat(self._file)
        self._size = held.st_size
        if not self._begun:
            # Whoever wrote last may have died within a row.
            self._torn = held.st_size > 0 and os.pread(self._file, 1, held.st_size - 1) != b"\n"
            self._write(
                {
                    recording.KIND: "recording",
                    "format": recording.FORMAT,
                    "version": version("litellm-toolguard"),
                    "run": self._run,
                    "content": self.with_content,
                    "policy": recording.plain_policy(self._policy),
                }
            )
            self._begun = True

    def _write_evidence(self, row: dict[str, Any], evidence: Evidence) -> None:
        ends = recording.chain(evidence.steps)
        keys = [(str(row["tenant"]), evidence.dialect, end) for end in ends]
        before = next((self._ends[key] for key in reversed(keys) if key in self._ends), None)
        parent, start = before if before is not None else (None, 0)
        self._write({**row, "continues": parent, "from": start, **recording.plain_evidence(evidence, start)})
        if not keys:
            return
        self._ends[keys[-1]] = (str(row["id"]), len(keys))
        self._ends.move_to_end(keys[-1])
        while len(self._ends) > _NEWEST_ROWS:
            self._ends.popitem(last=False)

    def _write(self, row: Mapping[str, Any]) -> None:
        """Append a row in one piece. Behind one that was torn off, a new line begins."""
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        whole = b"\n" + line if self._torn else line
        self._torn = True
        if os.write(self._file, whole) < len(whole):
            raise OSError("a row was written in part")
        self._torn = False


# Without waiting: a pipe that nobody reads is refused, and does not hang the start.
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


def _opened(path: Path) -> int:
    file = os.open(path, _FLAGS, _PRIVATE)
    try:
        _check_private(os.fstat(file))
    except OSError:
        os.close(file)
        raise
    return file


def _check_private(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is no regular file")
    if os.name == "posix" and found.st_mode & _OTHERS:
        raise OSError(0, f"others may read it (mode {stat.S_IMODE(found.st_mode):04o}); chmod 600 it")


def _secret(path: Path) -> bytes:
    """The secret in the file, made where it is not there. Of several processes that make it at once one is first."""
    if not path.exists():
        made = path.with_name(f"{path.name}.{secrets.token_hex(6)}")
        file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
        try:
            os.write(file, secrets.token_bytes(_SECRET_BYTES))
            _link(made, path)
        finally:
            os.close(file)
            made.unlink()
    with path.open("rb") as opened:
        _check_private(os.fstat(opened.fileno()))
        secret = opened.read()
    if len(secret) != _SECRET_BYTES:
        raise OSError(0, f"{path.name} beside it holds no key")
    return secret


def _link(made: Path, path: Path) -> None:
    try:
        os.link(made, path)
    except FileExistsError:
        return
