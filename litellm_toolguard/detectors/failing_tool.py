"""A tool that keeps failing, in whatever way.

What it detects:
    Rounds in which a tool fails or is refused, without one success of the same tool in between. It does not look at
    what the errors say.

Why it matters:
    A broken tool answers with varying errors, and a model can try variations for ever. A success of another tool does
    not mend it.

Example:
    `bash` fails in twelve rounds with twelve different errors: a note at the sixth, the end at the twelfth.

Not reported:
    A command that is run again after something was written, cancelled calls, rejections with words of the user, a batch
    in which the tool also succeeded. A batch of failures is one failure. Errors that may pass by themselves (rate
    limits, overload) count apart, at twice the bounds, with a note to wait.

Settings:
    A ladder {hint, stop or reject}.
"""

from __future__ import annotations

from typing import Final

from litellm_toolguard.detectors.recovery import recovered_tools
from litellm_toolguard.evidence import JudgedRound
from litellm_toolguard.streaks import Draft, Key, Member, Streaks, by_key, members

NAME: Final = "failing-tool"
TRANSIENT: Final = "transient"


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round."""
    draft = Draft.of(streaks, judged)
    recovered = recovered_tools(judged, draft.streaks)
    draft.clear(lambda streak: streak.tool in recovered)
    counted = (member for member in members(judged) if member.judged.tool not in recovered)
    for key, group in by_key(_keyed(member) for member in counted if _counts(member)):
        draft.raise_(key, group)
    return draft.streaks


def _counts(member: Member) -> bool:
    judged = member.judged
    kind = judged.outcome.kind
    return kind in ("denied", "transient") or (judged.failed and not judged.rerun)


def _keyed(member: Member) -> tuple[Key, Member]:
    judged = member.judged
    kind = TRANSIENT if judged.outcome.kind == "transient" else ""
    signature = judged.traces.error
    return Key(NAME, kind, (judged.tool,)), Member(member.position, judged, signature)
