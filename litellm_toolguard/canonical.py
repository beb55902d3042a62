"""Identities: when are two calls, two results or two errors the same?

Everything here is a digest or a short signature, so that no state of the guard holds arguments or tool output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from itertools import chain, repeat
from json.encoder import encode_basestring
from typing import Any

from litellm_toolguard.transcript import ToolCall, ToolResult

_DIGEST_BYTES = 16
# A longer exponent is compared as it was written: to Python, too, reading it would be work without a bound.
_MAX_EXPONENT_CHARS = 20
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
# What changes in a result by itself. Bare numbers are not among it: a count or a percentage that moves is progress.
_NOISE = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"
    r"|\b\d+(?:\.\d+)?\s?(?:ms|s|secs?|seconds|us|ns)\b"
    r"|\bpid[ =:]+\d+"
    r"|\bchunk id: *[0-9a-f]+",
    re.IGNORECASE,
)
# A job that is running tells how long: there a duration alone is news, and the guard must not take it for noise.
_RUNNING_WORDS = ("running", "pending", "progress", "elapsed", "waiting", "queued", "building", "remaining", "eta")
# Longer texts that differ are taken as different: reading them with an expression would cost more than the verdict.
_MAX_NOISY_CHARS = 50_000
# Arguments that are made anew for every call, by their names in lower case without separators.
_NONCE_NAMES = frozenset(
    {
        "requestid",
        "correlationid",
        "traceid",
        "spanid",
        "idempotencykey",
        "nonce",
        "timestamp",
        "ts",
        "cachebuster",
        "clientrequestid",
        "xrequestid",
        "callid",
        "toolcallid",
    }
)
# What wrappers of commands write around an output: it names no cause.
_WRAPPING = re.compile(
    r"(?:exit code:?|process exited with code|exit status) -?\d+|<returncode>-?\d+</returncode>|</?output>|\boutput:",
    re.IGNORECASE,
)
# Lines that such a wrapper puts first and that differ for every run.
_RUN_LINES = ("Chunk ID: ", "Wall time: ", "Original token count: ")
_MAX_WRAPPER_LINES = 7


def digest(*parts: str | bytes) -> bytes:
    """A 16-byte digest of the parts; the length of each is part of it, so ("a", "bc") differs from ("ab", "c")."""
    raw = [part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in parts]
    lengths = ",".join([str(len(part)) for part in raw])
    return blake2b(b"".join([lengths.encode(), b":", *raw]), digest_size=_DIGEST_BYTES).digest()


def keyed(value: bytes, secret: bytes) -> bytes:
    """A digest as nobody can make it who does not have the secret; the digest itself where the secret is empty."""
    return blake2b(value, key=secret, digest_size=_DIGEST_BYTES).digest() if secret else value


class NumberText(str):
    """A JSON number as it was written, so that no two different ones become equal by being rounded."""

    __slots__ = ()


def parse_arguments(arguments: Any) -> Any:
    """The arguments as a JSON value: a mapping or list, or the wire's text where it is not JSON. Numbers of JSON text
    are `NumberText`."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments, parse_float=NumberText, parse_int=NumberText, parse_constant=NumberText)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, (dict, list)) else arguments


def canonical_arguments(parsed: Any) -> str:
    """One text for all spellings of the same arguments: key order, white space and number form (1, 1.0, 1e0) do not
    matter. Takes a value of `parse_arguments`; text that is not JSON stays text."""
    return "text:" + parsed if isinstance(parsed, str) else "json:" + canonical_json(parsed)


def canonical_json(value: Any) -> str:
    """A JSON value with sorted keys and numbers in one form. Nesting of any depth is walked without recursion."""
    written: list[str] = []
    waiting: list[_Token | Any] = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _Token):
            written.append(node.text)
        elif isinstance(node, dict):
            waiting.extend(reversed(_object_parts(node)))
        elif isinstance(node, (list, tuple)):
            waiting.extend(reversed(_list_parts(node)))
        else:
            written.append(_scalar(node))
    return "".join(written)


class _Token:
    """Text between values."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


_CLOSE_LIST, _CLOSE_OBJECT = _Token("]"), _Token("}")


def _object_parts(node: dict[Any, Any]) -> list[Any]:
    parts: list[Any] = []
    for mark, key in zip(chain("{", repeat(",")), sorted(node, key=str), strict=False):
        parts += (_Token(f"{mark}{encode_basestring(str(key))}:"), node[key])
    return [*parts, _CLOSE_OBJECT] if parts else [_Token("{}")]


def _list_parts(node: list[Any] | tuple[Any, ...]) -> list[Any]:
    parts: list[Any] = []
    for mark, item in zip(chain("[", repeat(",")), node, strict=False):
        parts += (_Token(mark), item)
    return [*parts, _CLOSE_LIST] if parts else [_Token("[]")]


def _scalar(value: Any) -> str:
    if isinstance(value, NumberText):
        return _number(value)
    if isinstance(value, str):
        return encode_basestring(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return _number(_digits_of(value))


def _digits_of(value: Any) -> str:
    """A number in digits. Python writes out no integer beyond a limit; such a one is told apart in base 16."""
    try:
        return repr(value)
    except ValueError:
        return hex(value)


def _number(written: str) -> str:
    """Sign, digits without zeros at either end, and exponent: exact, whatever the size."""
    mantissa, _, power = written.lower().partition("e")
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    short = digits.rstrip("0")
    if not (whole + fraction).isdecimal() or len(power) > _MAX_EXPONENT_CHARS:
        return written
    if not short:
        return "0"
    exponent = int(power or 0) - len(fraction) + len(digits) - len(short)
    return f"{'-' if written.startswith('-') else ''}{short}e{exponent}"


def call_key(call: ToolCall, parsed: Any, *, loose: bool = False) -> bytes:
    """Identity of a call: its name and its canonical arguments. A loose identity, of arguments with something left out,
    never equals an exact one."""
    return digest("loose call" if loose else "call", call.name, canonical_arguments(parsed))


def result_key(result: ToolResult) -> bytes:
    """Exact identity of a result: its text, its other parts and its error flag."""
    return digest("result", _without_run_lines(result.text), result.opaque, str(bool(result.is_error)))


def _without_run_lines(text: str) -> str:
    """The text without the lines of a command's wrapper that differ for every run; they stand at its start."""
    if not text.startswith((*_RUN_LINES, "Exit code: ")):
        return text
    head = text.split("\n", _MAX_WRAPPER_LINES)
    kept = [line for line in head[:_MAX_WRAPPER_LINES] if not line.startswith(_RUN_LINES)]
    return "\n".join([*kept, *head[_MAX_WRAPPER_LINES:]])


def without_nonces(parsed: Any) -> dict[str, Any] | None:
    """The arguments without those that are made anew for every call; None where there are none such."""
    if not isinstance(parsed, Mapping):
        return None
    kept = {name: value for name, value in parsed.items() if _plain_name(name) not in _NONCE_NAMES}
    return kept if len(kept) < len(parsed) else None


def _plain_name(name: Any) -> str:
    return str(name).lower().replace("_", "").replace("-", "")


def same_but_for_noise(one: ToolResult, other: ToolResult) -> bool:
    """Whether two results differ in nothing but what changes by itself: colours, clocks, durations, process ids, chunk
    ids, UUIDs. Never for the output of something that says it is still running."""
    if one.opaque != other.opaque or one.is_error != other.is_error:
        return False
    if max(len(one.text), len(other.text)) > _MAX_NOISY_CHARS:
        return False
    steady = _NOISE.sub("#", one.text)
    if steady != _NOISE.sub("#", other.text):
        return False
    lowered = steady.lower()
    return not any(word in lowered for word in _RUNNING_WORDS)


def error_signature(text: str, parsed: Any) -> str:
    """What an error says once the arguments it echoes and what changes by itself (times, durations, ids, addresses) are
    removed. Bounded to the first 600 characters."""
    head = without_echo(_without_run_lines(text[: 2 * _SIGNATURE_CHARS]), parsed)[:_SIGNATURE_CHARS]
    return " ".join(_VOLATILE.sub("#", head).lower().split())


def has_words(signature: str) -> bool:
    """Whether an error signature says more than an exit code: `Exit code 1` alone names no cause."""
    return any(letter.isalpha() for letter in _WRAPPING.sub("", signature))


def without_echo(text: str, parsed: Any, *, numbers: bool = True) -> str:
    """The text with every argument value that it repeats removed, longest first; `numbers` says whether values that are
    a number are removed too."""
    for value in sorted(_echoes(parsed), key=lambda value: (-len(value), value)):
        if value in text and (numbers or not _is_number(value)):
            text = text.replace(value, "@")
    return text


def _is_number(text: str) -> bool:
    return all(letter.isdecimal() or letter in "+-.,:%" for letter in text)


def _echoes(value: Any) -> set[str]:
    """The scalar values anywhere in the arguments, as a tool would repeat them."""
    found: set[str] = set()
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            waiting.extend(node.values())
        elif isinstance(node, (list, tuple)):
            waiting.extend(node)
        elif isinstance(node, str) or (isinstance(node, (int, float)) and not isinstance(node, bool)):
            text = node if isinstance(node, str) else _digits_of(node)
            found |= {str(text)} if _MIN_ECHO_CHARS <= len(text) <= _SIGNATURE_CHARS else set()
    return found
