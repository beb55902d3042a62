"""More calls of one tool than it may have.

What it detects:
    Calls of a tool in one turn, whatever they are.

Why it matters:
    Some tools cost money or bother people with each call, and their owner knows how many are enough.

Example:
    `send_mail` with {hint: 8, stop: 10}: a note at the eighth mail of a turn, the end at the tenth.

Not reported:
    Anything, unless the policy gives it a ladder: it is off by default.

Settings:
    A ladder {hint, stop or reject}, counted in calls.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from litellm_toolguard.evidence import JudgedRound
from litellm_toolguard.streaks import Draft, Key, Streaks, by_key, members

NAME: Final = "call-budget"

_NEVER_RAN = frozenset({"pending", "cancelled", "unknown_tool", "denied"})


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round. A budget is of the turn: it is not dropped while the model does other
    things."""
    draft = Draft.of({key: replace(streak, touched=judged.index) for key, streak in streaks.items()}, judged)
    ran = (member for member in members(judged) if member.judged.outcome.kind not in _NEVER_RAN)
    for key, group in by_key((Key(NAME, "", (member.judged.tool,)), member) for member in ran):
        draft.raise_(key, group, by=len(group))
    return draft.streaks
