"""Reading the same few things over and over.

What it detects:
    Twenty-four reads without a write between them, of which at most a third are different.

Why it matters:
    It is no repeat and no cycle, and still nothing new comes in: the model lost what it has read.

Example:
    Twenty of twenty-seven reads are re-reads of seven files.

Not reported:
    Reads of different things, and reads with writes between them. It only tells and never ends a run.

Settings:
    {hint}: from which count the note is due; the window is 24 reads.
"""

from __future__ import annotations

from typing import Final

from litellm_toolguard.evidence import JudgedRound
from litellm_toolguard.streaks import Draft, Key, Streaks, members

NAME: Final = "reread"


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round."""
    draft = Draft.of(streaks, judged)
    reads = [member for member in members(judged) if member.judged.role == "read"]
    if not reads:
        return draft.streaks
    key = Key(NAME, "", ())
    if not judged.rereading:
        return {}
    if key in draft.streaks:
        draft.raise_(key, reads)
    else:
        draft.start(key, reads, count=judged.rereading)
    return draft.streaks
