"""A tool that keeps failing with the same error.

What it detects:
    Rounds in which a tool fails with the same error, whatever its arguments: times, ids and echoed arguments are
    removed before errors are compared.

Why it matters:
    Changing the arguments does not help against an expired key, a missing program or a server that is gone.

Example:
    `open_app` fails with "application not found" for four different names: a note; at the sixth the run ends.

Not reported:
    A command that was run before and is run again after something was written: a red test after an edit is work. If it
    fails in exactly the same way twelve times, there is one note and no end. Invalid arguments and unknown tools, which
    have detectors of their own. Different shell commands that fail without a word, and first reads of different things.
    Cancelled calls. A batch of failures is one failure. Any success of the tool starts the count anew.

Settings:
    A ladder {hint, stop or reject}.
"""

from __future__ import annotations

from typing import Final

from litellm_toolguard.detectors.recovery import recovered_tools
from litellm_toolguard.evidence import JudgedRound
from litellm_toolguard.streaks import Draft, Key, Member, Streaks, by_key, members

NAME: Final = "failing-call"
RERUN: Final = "rerun"


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round."""
    draft = Draft.of(streaks, judged)
    recovered = recovered_tools(judged, draft.streaks)
    draft.clear(lambda streak: streak.tool in recovered)
    failed = (member for member in members(judged) if member.judged.outcome.kind == "failed")
    failures = [member for member in failed if member.judged.tool not in recovered]
    for key, group in by_key(_keyed(member) for member in failures if not member.judged.rerun):
        draft.raise_(key, group)
    for key, group in by_key((_rerun_key(member), member) for member in failures if member.judged.rerun):
        draft.raise_(key, group)
    return draft.streaks


def _keyed(member: Member) -> tuple[Key, Member]:
    judged = member.judged
    signature = judged.traces.error
    # Without a word the exit code alone would make all commands of a shell fail alike.
    # And reads of different things that are not there, or not open to the reader, are a search.
    is_own = (judged.role == "shell" and not judged.traces.has_words) or (judged.role == "read" and judged.novel)
    own = (judged.key,) if is_own else ()
    key = Key(NAME, "", (judged.tool, signature, *own))
    return key, Member(member.position, judged, signature)


def _rerun_key(member: Member) -> Key:
    return Key(NAME, RERUN, (member.judged.key, member.judged.result))
