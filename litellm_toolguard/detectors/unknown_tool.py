"""Calls of tools that do not exist.

What it detects:
    Rounds in which a call is answered with "there is no such tool", whatever the name.

Why it matters:
    A model that makes up names makes up another one next time; no count per name sees that.

Example:
    `tool_0`, `tool_1`, ...: at the second a note with the names of the tools that the request offers.

Not reported:
    What the tools list of the request says about a call of the past: only the result's own text counts. A call that
    reached a tool starts the count anew.

Settings:
    A ladder {hint, stop or reject}.
"""

from __future__ import annotations

from typing import Final

from litellm_toolguard.evidence import JudgedRound
from litellm_toolguard.streaks import Draft, Key, Streaks, members

NAME: Final = "unknown-tool"

_NEVER_REACHED_A_TOOL = frozenset({"unknown_tool", "pending", "cancelled", "invalid_arguments"})


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round."""
    draft = Draft.of(streaks, judged)
    if any(exchange.outcome.kind not in _NEVER_REACHED_A_TOOL for exchange in judged.exchanges):
        return {}
    unknown = [member for member in members(judged) if member.judged.outcome.kind == "unknown_tool"]
    if unknown:
        draft.raise_(Key(NAME, "", ()), unknown)
    return draft.streaks
