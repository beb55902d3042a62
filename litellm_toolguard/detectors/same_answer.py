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

from litellm_toolguard.canonical import without_echo
from litellm_toolguard.evidence import JudgedExchange, JudgedRound
from litellm_toolguard.streaks import Draft, Key, Member, Streaks, by_key, members

NAME: Final = "same-answer"

# What a tool says that has nothing to say.
_ACKNOWLEDGEMENTS = frozenset(
    {
        "all done",
        "command executed",
        "command executed successfully",
        "completed successfully",
        "finished successfully",
        "no output",
        "operation completed successfully",
        '{"ok": true}',
        '{"status": "ok"}',
        '{"status": "success"}',
        '{"success": true}',
    }
)
# A refusal or an error is short; the same long text for other arguments is a document.
_MAX_ANSWER_CHARS = 300
# One word says too little to be an answer that a model should have understood.
_MIN_ANSWER_WORDS = 2
# "Opened @", "navigated to @": what names the thing that was asked for is an acknowledgement, unless it says no.
_NEGATIVE_WORDS = (
    *("not", "no ", "n't", "cannot", "unable", "error", "fail", "denied", "deny", "refus", "forbid", "block", "reject"),
    *("invalid", "unavailable", "permission", "allowed", "policy", "disabled", "missing", "never", "without"),
)
_SILENT_ROLES = frozenset({"write", "think", "wait"})


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round."""
    draft = Draft.of(streaks, judged)
    answered = [member for member in members(judged) if member.judged.outcome.kind in ("succeeded", "unclear")]
    said = [Member(member.position, member.judged, _answer(member.judged)) for member in answered]
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


def _answer(judged: JudgedExchange) -> str:
    """What is compared; empty for an answer that does not count."""
    if judged.outcome.kind != "unclear" or judged.role in _SILENT_ROLES or len(judged.text) > _MAX_ANSWER_CHARS:
        return ""
    said = " ".join(without_echo(judged.text, judged.parsed, numbers=False).split())
    if said != " ".join(judged.text.split()) and not any(word in said.lower() for word in _NEGATIVE_WORDS):
        return ""
    counts = len(said.split()) >= _MIN_ANSWER_WORDS and said.lower().rstrip(".!") not in _ACKNOWLEDGEMENTS
    return said if counts else ""
