"""Identities: when are two calls, two results or two errors the same?

Everything here is a digest or a short signature, so that no state of the guard holds arguments or tool output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import Any

from litellm_toolguard.transcript import ToolCall, ToolResult

_DIGEST_BYTES = 16
# An integer of this many digits is written out; a longer one keeps its exponent form, because expanding "1e999999999"
# would take all memory there is.
_MAX_INTEGER_DIGITS = 60
# Errors name their cause in the first lines; what follows is often a stack or a log that differs by addresses.
_SIGNATURE_CHARS = 600
# Shorter argument values ("1", "a") also occur in errors by chance; removing them would make different errors equal.
_MIN_ECHO_CHARS = 3

_VOLATILE = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"
    r"|\b\d+(?:\.\d+)?\s?(?:ms|s|sec|secs|seconds|us|ns)\b"
    r"|\b0x[0-9a-f]+\b"
    r"|\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b",
    re.IGNORECASE,
)
_EXIT_CODE_LINE = re.compile(
    r"^(?:exit code:?|process exited with code|<returncode>)\s*-?\d+(?:</returncode>)?\s*$", re.I | re.M
)


def digest(*parts: str | bytes) -> bytes:
    """A 16-byte digest of the parts; the length of each is part of it, so ("a", "bc") differs from ("ab", "c")."""
    raw = [part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in parts]
    lengths = ",".join([str(len(part)) for part in raw])
    return blake2b(b"".join([lengths.encode(), b":", *raw]), digest_size=_DIGEST_BYTES).digest()


def parse_arguments(arguments: Any) -> Any:
    """The arguments as a JSON value: a mapping or list, or the wire's text where it is not JSON.

    Numbers with a fraction or an exponent are `Decimal`, so that no two different ones become equal.
    """
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments, parse_float=Decimal)
    except (ValueError, RecursionError, InvalidOperation):
        return arguments
    return value if isinstance(value, (dict, list)) else arguments


def canonical_arguments(parsed: Any) -> str:
    """One text for all spellings of the same arguments: key order, white space and number form (1, 1.0, 1e0) do not
    matter. Takes a value of `parse_arguments`; text that is not JSON stays text."""
    if isinstance(parsed, str):
        return "text:" + parsed
    return "json:" + json.dumps(_plain(parsed), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return _number(Decimal(repr(value)))
    if isinstance(value, Decimal):
        return _number(value)
    return value


def _number(value: Decimal) -> int | dict[str, str]:
    if not value.is_finite():
        return {"\0number": str(value)}
    shortest = value.normalize()
    if shortest == shortest.to_integral_value() and shortest.adjusted() < _MAX_INTEGER_DIGITS:
        return int(shortest)
    return {"\0number": str(shortest)}


def call_key(call: ToolCall, parsed: Any) -> bytes:
    """Identity of a call: its name and its canonical arguments."""
    return digest("call", call.name, canonical_arguments(parsed))


def result_key(result: ToolResult) -> bytes:
    """Exact identity of a result: its text, its other parts and its error flag."""
    return digest("result", result.text, result.opaque, str(bool(result.is_error)))


def error_signature(text: str, parsed: Any) -> str:
    """What an error says once the arguments it echoes and what changes by itself (times, durations, ids, addresses) are
    removed. Bounded to the first 600 characters."""
    head = without_echo(text[: 2 * _SIGNATURE_CHARS], parsed)[:_SIGNATURE_CHARS]
    return " ".join(_VOLATILE.sub("#", head).lower().split())


def has_words(signature: str) -> bool:
    """Whether an error signature says more than an exit code: `Exit code 1` alone names no cause."""
    return any(letter.isalpha() for letter in _EXIT_CODE_LINE.sub("", signature))


def without_echo(text: str, parsed: Any) -> str:
    """The text with every argument value that it repeats removed, longest first."""
    for value in sorted(set(_string_values(parsed)), key=len, reverse=True):
        if value in text:
            text = text.replace(value, "@")
    return text


def _string_values(value: Any) -> Iterator[str]:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, (str, int, Decimal)):
        text = str(value)
        if _MIN_ECHO_CHARS <= len(text) <= _SIGNATURE_CHARS:
            yield text
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _string_values(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _string_values(item)
