"""The three wire formats. Each module parses a request into a `Transcript` and writes notes into the original form.

All three have the same functions:

- `parse(request) -> Transcript`; raises `PayloadError` when the history cannot be read at all;
- `with_notes(request, notes) -> request` returns a request in which only the named places differ; the values on the
  way to them are copied, everything else is the caller's own object, untouched;
- `with_text(request, results, text)` puts a text in the place of results, on the same terms;
- `answered(answer)` and `not_executed(items, text)`: what an answer adds to the history, and the results that say that
  its calls did not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final

from litellm_toolguard.dialects import chat, messages, responses
from litellm_toolguard.dialects.history import Note
from litellm_toolguard.transcript import Dialect, ToolResult, Transcript

HISTORY_KEYS: Final[Mapping[Dialect, str]] = {"chat": "messages", "messages": "messages", "responses": "input"}
"""The key of a request that holds its history."""

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


def with_text(
    dialect: Dialect, request: Mapping[str, Any], results: Sequence[ToolResult], text: str
) -> dict[str, Any] | None:
    """The request with a text in the place of each of these results of its transcript, and nothing else changed. None
    where one of them cannot hold a text."""
    edited: dict[str, Any] | None = _MODULES[dialect].with_text(request, results, text)
    return edited


def answered(dialect: Dialect, answer: Mapping[str, Any]) -> tuple[tuple[Any, ...], ...]:
    """What a client appends to its history for an answer: one tuple of items per choice; empty where the answer is
    none."""
    items: tuple[tuple[Any, ...], ...] = _MODULES[dialect].answered(answer)
    return items


def read_answer(dialect: Dialect, items: Sequence[Any]) -> Transcript:
    """The items of an answer as a history of its own."""
    return parse(dialect, {HISTORY_KEYS[dialect]: list(items)})


def not_executed(dialect: Dialect, items: Sequence[Any], text: str) -> tuple[Any, ...] | None:
    """The items that answer every client's call of an answer with a text; None where a call cannot be answered so."""
    results: tuple[Any, ...] | None = _MODULES[dialect].not_executed(items, text)
    return results


__all__ = ["HISTORY_KEYS", "Note", "answered", "not_executed", "parse", "read_answer", "with_notes", "with_text"]
