"""A few rounds that come again in the same order.

What it detects:
    Two to five rounds whose calls and results repeat as a cycle: A, B, A, B, or A, B, C, A, B, C.

Why it matters:
    A model that looks at two things in turn never makes the same call twice in a row, and can do so for an hour.

Example:
    Two searches that alternate with unchanged results: a note when the third lap is complete, the end with the fifth.

Not reported:
    A cycle in which one side returns something else, makes another call or waits. One round that repeats (see
    `repeated-call`). What the user or an event came between.

Settings:
    A ladder {hint, block, stop or reject}, counted in laps.
"""

from __future__ import annotations

from typing import Final

from litellm_toolguard.evidence import JudgedRound
from litellm_toolguard.streaks import Draft, Key, Streaks, members

NAME: Final = "call-cycle"


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round."""
    draft = Draft.of(streaks, judged)
    lap = judged.lap
    if lap is None:
        return draft.streaks
    key = Key(NAME, "", (str(lap.period), *lap.members))
    before = draft.streaks.get(key)
    if before is None or before.count >= lap.laps:
        draft.start(key, members(judged), count=lap.laps)
    else:
        draft.raise_(key, members(judged))
    return draft.streaks
