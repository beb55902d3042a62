"""The one place that decides how an exchange ended, and how that is known.

The order is from the strongest evidence to the weakest: what the operator says of the tool's results, a text that a
known client puts at the start of a result (and flags, where it flags), the wire's error flag, the shape of the result,
and nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from litellm_toolguard.client_texts import ClientText, DenialCategory, OutcomeKind, match_client_text
from litellm_toolguard.operator_texts import DEFAULT_CATEGORY, OperatorText, match_operator_text
from litellm_toolguard.transcript import Dialect, Exchange

Provenance: TypeAlias = Literal["operator", "wire", "client", "shape", "gateway", "none"]

# A failure body is short; a longer JSON text is data that a tool returned.
_MAX_BODY_CHARS = 20_000
_EXIT_CODE_STARTS = ("Exit code: ", "Exit code ", "Exit Code: ", "Process exited with code ")
_RETURNCODE_START, _RETURNCODE_END = "<returncode>", "</returncode>"
# The header that Codex writes before the exit code line.
_EXEC_HEADER_STARTS = ("Chunk ID: ", "Wall time: ", "Command: ")
_EXEC_HEADER_LINES = 6
_MAX_CODE_DIGITS = 11
_ERROR_STARTS = ("Error: ", "ERROR: ", "error: ", "Error executing tool ", "Traceback (most recent call last):")

# How programs and protocols say that a call's arguments do not fit, at the start of a failed result.
_LEADS = ("error: ", "error executing tool ", "invalid_request: ")
_ARGUMENT_MARKS = (
    "missing required",
    "missing parameter",
    "missing argument",
    "missing '",
    "missing `",
    'missing "',
    "invalid argument",
    "invalid parameter",
    "invalid params",
    "invalid tool arguments",
    "input validation error",
    "inputvalidationerror",
    "invalid input for tool",
)
_VALIDATION_MARK = " validation error"
_MAX_EXIT_LINE_CHARS = 200
_EXIT_WORDS = ("exit ", "exit code ", "exit status ")

# Causes that pass by themselves. They are looked for in the first 300 characters of a failed result.
_TRANSIENT_CHARS = 300
_TRANSIENT_MARKS = (
    "rate limit",
    "rate_limit",
    "too many requests",
    "429 too",
    "status code 429",
    "http 429",
    "error 429",
    "429:",
    "502 bad gateway",
    "503 service",
    "504 gateway",
    "overloaded",
    "temporarily unavailable",
    "service unavailable",
    "econnreset",
    "etimedout",
    "connection reset",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an exchange ended.

    Args:
        kind: one of the ten outcomes.
        provenance: what it is known from; `none` for `unclear` and `pending`.
        category: for `denied`, which kind of denial.
        user_words: a rejection that carries words of the user.
    """

    kind: OutcomeKind
    provenance: Provenance
    category: DenialCategory | None = None
    user_words: bool = False


_PENDING = Outcome("pending", "none")
_UNCLEAR = Outcome("unclear", "none")
_WITHHELD = Outcome("withheld", "gateway")


def outcome_of(dialect: Dialect, exchange: Exchange, operator_texts: Sequence[OperatorText] = ()) -> Outcome:
    """Decide the outcome of one exchange of a transcript in the given dialect.

    Args:
        dialect: the transcript's.
        exchange: the exchange.
        operator_texts: what the policy says of the results of this tool.
    """
    result = exchange.result
    if result is None:
        return _PENDING
    if result.withheld:
        return _WITHHELD
    has_flag = dialect == "messages" or exchange.call.executed_by == "provider"
    told = match_operator_text(operator_texts, result.text, is_error=result.is_error, has_flag=has_flag)
    if told is not None:
        return _from_operator(told)
    known = match_client_text(result.text, is_error=result.is_error, has_flag=has_flag)
    if known is not None and not _is_quoted(known, result.text):
        return _from_client(known)
    if result.is_error is True:
        return _failure(result.text, "wire")
    if result.is_error is False:
        return Outcome("succeeded", "wire")
    shaped = _from_shape(result.text)
    if has_flag and (shaped is None or not _outweighs_the_flag(shaped, result.text)):
        return Outcome("succeeded", "wire")
    return shaped or _UNCLEAR


def _is_quoted(known: ClientText, text: str) -> bool:
    """A text that a client appends to output is output itself behind an exit code that says success."""
    return known.template.startswith("*") and _exit_code(text) == 0


def _outweighs_the_flag(shaped: Outcome, text: str) -> bool:
    """An absent flag means success, but some clients never set it: then an exit code, or a body that is an error and
    nothing else, says more. Output that only starts like an error does not."""
    if shaped.kind == "succeeded" or _exit_code(text) is not None:
        return True
    body = _json_object(text)
    return "\n" not in text.strip() if body is None else bool(body.get("error")) or body.get("isError") is True


def _from_operator(told: OperatorText) -> Outcome:
    category = (told.category or DEFAULT_CATEGORY) if told.outcome == "denied" else None
    return Outcome(told.outcome, "operator", category)


def _from_client(known: ClientText) -> Outcome:
    return Outcome(known.outcome, "client", known.category, known.user_words)


def _failure(text: str, provenance: Provenance) -> Outcome:
    start = text[:_TRANSIENT_CHARS].lower()
    if any(mark in start for mark in _TRANSIENT_MARKS):
        return Outcome("transient", provenance)
    return Outcome("invalid_arguments" if _is_about_arguments(start) else "failed", provenance)


def _is_about_arguments(start: str) -> bool:
    for lead in _LEADS:
        start = start.removeprefix(lead)
    return start.startswith(_ARGUMENT_MARKS) or _VALIDATION_MARK in start.partition("\n")[0]


def _from_shape(text: str) -> Outcome | None:
    code = _exit_code(text)
    if code is not None:
        return Outcome("succeeded", "shape") if code == 0 else Outcome("failed", "shape")
    if text.startswith(_ERROR_STARTS):
        return _failure(text, "shape")
    body = _json_object(text)
    if body is not None:
        return _from_body(body)
    return Outcome("failed", "shape") if _ends_in_exit_code(text) else None


def _ends_in_exit_code(text: str) -> bool:
    """One short line that ends in `exit 2` or the like: how a shell wrapper reports a command without output."""
    if len(text) > _MAX_EXIT_LINE_CHARS or "\n" in text.strip():
        return False
    words, _, code = text.strip().lower().rpartition(" ")
    return code.isdecimal() and int(code) != 0 and f"{words} ".endswith(_EXIT_WORDS)


def _exit_code(text: str) -> int | None:
    if text.startswith(_RETURNCODE_START):
        return _integer(text[len(_RETURNCODE_START) :].partition(_RETURNCODE_END)[0])
    rest = text
    for _ in range(_EXEC_HEADER_LINES):
        line, _, rest = rest.partition("\n")
        for start in _EXIT_CODE_STARTS:
            if line.startswith(start):
                return _integer(line[len(start) :])
        if not line.startswith(_EXEC_HEADER_STARTS):
            return None
    return None


def _integer(text: str) -> int | None:
    digits = text.strip()
    sign, number = (-1, digits[1:]) if digits.startswith("-") else (1, digits)
    return sign * int(number) if number.isdecimal() and len(number) <= _MAX_CODE_DIGITS else None


def _json_object(text: str) -> Mapping[str, Any] | None:
    if not text.startswith("{") or len(text) > _MAX_BODY_CHARS:
        return None
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _from_body(body: Mapping[str, Any]) -> Outcome | None:
    """`{"error": ..}` and `{"isError": true}` are failures, `{"exit_code": N}` (also inside `metadata`) decides
    itself."""
    metadata = body.get("metadata")
    nested = metadata.get("exit_code") if isinstance(metadata, dict) else None
    code = body.get("exit_code", nested)
    if isinstance(code, int) and not isinstance(code, bool):
        return Outcome("succeeded", "shape") if code == 0 and not body.get("error") else Outcome("failed", "shape")
    if body.get("isError") is True or body.get("status") == "error":
        return _failure(_error_text(body), "shape")
    if body.get("error"):
        return _failure(_error_text(body), "shape")
    return None


def _error_text(body: Mapping[str, Any]) -> str:
    error = body.get("error", body.get("message", ""))
    if isinstance(error, dict):
        error = error.get("message", "")
    return error if isinstance(error, str) else ""
