"""The three wire formats. Each module parses a request into a `Transcript` and writes notes into the original form.

All three have the same two functions:

- `parse(request) -> Transcript`; raises `PayloadError` when the history cannot be read at all;
- `with_notes(request, notes) -> request` returns a request in which only the named places differ; the values on the
  way to them are copied, everything else is the caller's own object, untouched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from litellm_toolguard.dialects import chat, messages, responses
from litellm_toolguard.dialects.history import Note
from litellm_toolguard.transcript import Dialect, Transcript

_MODULES: Mapping[Dialect, ModuleType] = {"chat": chat, "messages": messages, "responses": responses}


def parse(dialect: Dialect, request: Mapping[str, Any]) -> Transcript:
    """Read a request body of the given dialect.

    Raises:
        PayloadError: when there is no history that could be read.
    """
    transcript: Transcript = _MODULES[dialect].parse(request)
    return transcript


def with_notes(dialect: Dialect, request: Mapping[str, Any], notes: Sequence[Note]) -> dict[str, Any]:
    """The request with the notes written in; see the package's docstring for what stays as it is."""
    edited: dict[str, Any] = _MODULES[dialect].with_notes(request, notes)
    return edited


__all__ = ["Note", "parse", "with_notes"]
