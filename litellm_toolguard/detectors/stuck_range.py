"""Reads beyond the end.

What it detects:
    Reads of one file whose range lies outside of it, with the same or with other offsets, and with good reads between.

Why it matters:
    The model believes in lines that are not there, and moves the offset instead of the belief.

Example:
    A file of 120 lines is read at 400, 500 and 600: a note at the third, which says that there is no more.

Not reported:
    Reads inside the file. After a write to the file, or when the error names another number of lines, the count starts
    anew.

Settings:
    A ladder {hint, block, stop or reject}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from litellm_toolguard.evidence import JudgedExchange, JudgedRound
from litellm_toolguard.roles import shell_command, target_path
from litellm_toolguard.streaks import Draft, Key, Member, Streaks, by_key, members

NAME: Final = "stuck-range"

# What tools say of a range outside of the file, in lower case, within the first 400 characters of a result.
RANGE_TEXTS: Final = (
    "shorter than the provided offset",
    "is out of range for this file",
    "offset is beyond the end of the file",
    "offset beyond end of file",
    "exceeds the total number of lines",
    "exceeds the number of lines",
    "beyond the end of the file",
    "beyond end of file",
    "line number out of range",
    "invalid `view_range`",
    "offset exceeds file length",
    "start line is greater than the total",
)
_TEXT_CHARS = 400
_ENDED = frozenset({"succeeded", "unclear", "failed", "invalid_arguments"})


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round."""
    draft = Draft.of(streaks, judged)
    touched = {text for exchange in judged.exchanges if exchange.may_change and (text := _touched(exchange))}
    draft.clear(lambda streak: any(str(streak.key.parts[0]) in text for text in touched))
    stuck = (pair for member in members(judged) if (pair := _keyed(member)) is not None)
    for key, group in by_key(stuck):
        draft.raise_(key, group)
    return draft.streaks


def _touched(exchange: JudgedExchange) -> str:
    """The text in which a changed path would stand: the path written to, or the command."""
    if not isinstance(exchange.parsed, Mapping):
        return str(exchange.parsed)
    return shell_command(exchange.parsed) or target_path(exchange.parsed) or ""


def _keyed(member: Member) -> tuple[Key, Member] | None:
    judged = member.judged
    path = target_path(judged.parsed) if isinstance(judged.parsed, Mapping) else None
    text = judged.text[:_TEXT_CHARS].lower()
    if path is None or judged.outcome.kind not in _ENDED or not any(mark in text for mark in RANGE_TEXTS):
        return None
    return Key(NAME, "", (path, _lines(text, judged))), member


def _lines(text: str, judged: JudgedExchange) -> str:
    """The number of lines that the error names: numbers that the call itself does not hold."""
    asked = {str(value) for value in judged.parsed.values()} if isinstance(judged.parsed, Mapping) else set()
    numbers = "".join(letter if letter.isdecimal() else " " for letter in text).split()
    return " ".join(number for number in numbers if number not in asked)
