"""Calls whose arguments do not fit.

What it detects:
    Rounds in which a tool refuses its arguments: a parameter is missing, has the wrong type, or cannot be parsed.

Why it matters:
    A model that does not know the form of a call guesses, and the error that it gets back seldom tells the whole form.

Example:
    `exec {}` without its command: at the second time a note with the tool's schema from the request.

Not reported:
    Calls that ran and failed. A success of the tool starts the count anew. A batch is one.

Settings:
    A ladder {hint, block, stop or reject}.
"""

from __future__ import annotations

from typing import Final

from litellm_toolguard.detectors.recovery import recovered_tools
from litellm_toolguard.evidence import JudgedRound
from litellm_toolguard.streaks import Draft, Key, Streaks, by_key, members

NAME: Final = "invalid-arguments"


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round."""
    draft = Draft.of(streaks, judged)
    recovered = recovered_tools(judged, draft.streaks)
    draft.clear(lambda streak: streak.tool in recovered)
    invalid = (member for member in members(judged) if member.judged.outcome.kind == "invalid_arguments")
    keyed = ((Key(NAME, "", (member.judged.tool,)), member) for member in invalid)
    for key, group in by_key(pair for pair in keyed if pair[1].judged.tool not in recovered):
        draft.raise_(key, group)
    return draft.streaks
