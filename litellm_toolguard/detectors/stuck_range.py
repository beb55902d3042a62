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

from typing import Final

from litellm_toolguard.evidence import JudgedRound
from litellm_toolguard.streaks import Draft, Key, Streaks, by_key, members

NAME: Final = "stuck-range"


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round."""
    draft = Draft.of(streaks, judged)
    touched = {path for exchange in judged.exchanges if exchange.may_change for path in exchange.touched}
    draft.clear(lambda streak: streak.key.parts[0] in touched)
    stuck = (
        (Key(NAME, "", member.judged.beyond), member) for member in members(judged) if member.judged.beyond is not None
    )
    for key, group in by_key(stuck):
        draft.raise_(key, group)
    return draft.streaks
