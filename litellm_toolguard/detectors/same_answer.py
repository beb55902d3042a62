"""One tool, other arguments each time, and always the same answer.

What it detects:
    Rounds in which a tool is called with new arguments and returns the same short text, once the arguments that it
    echoes are removed.

Why it matters:
    An error or a refusal that no flag and no known text marks looks like this, and so does a search that cannot find
    what it is asked for.

Example:
    A tool that answers "not available in your region" to sixteen different queries: a note at the eighth, the end at
    the sixteenth.

Not reported:
    Answers that are marked: as a success by a flag or an exit code, or as a failure or refusal, which have detectors of
    their own. Answers in which a number differs, also one that was asked for: the next page is news. Acknowledgements
    ("all done"; also "opened X" for the X that was asked for), answers of one word, long ones, tools that write, think
    or wait. Another answer of the tool starts the count anew.

Settings:
    A ladder {hint, stop or reject}.
"""

from __future__ import annotations

from typing import Final

from litellm_toolguard.evidence import JudgedRound
from litellm_toolguard.streaks import Draft, Key, Member, Streaks, by_key, members

NAME: Final = "same-answer"


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round."""
    draft = Draft.of(streaks, judged)
    answered = [member for member in members(judged) if member.judged.outcome.kind in ("succeeded", "unclear")]
    said = [Member(member.position, member.judged, member.judged.traces.answer) for member in answered]
    heard: dict[str, set[str | bytes]] = {}
    for member in said:
        heard.setdefault(member.judged.tool, set()).add(member.signature)
    draft.clear(lambda streak: bool(heard.get(streak.tool, set()) - {streak.key.parts[1]}))
    varied = (
        member for member in said if member.signature and member.judged.novel and len(heard[member.judged.tool]) == 1
    )
    for key, group in by_key((Key(NAME, "", (member.judged.tool, member.signature)), member) for member in varied):
        draft.raise_(key, group)
    return draft.streaks
