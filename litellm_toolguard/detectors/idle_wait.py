"""Waiting that leads nowhere.

What it detects:
    Two kinds. A wait (a poll of a job, a sleep, an agent that waits for another) whose answer stays the same round
    after round. And any other call that is made again and again and answers something else each time.

Why it matters:
    Waiting is work, and a job may take long; but a process that has ended is polled for ever, and a clock always shows
    another time.

Example:
    The status of a job that stays "running": a note to wait longer at the twelfth poll, the end at the hundredth.

Not reported:
    A wait whose answer changes: it is never ended. A command that is run again after something was written.

Settings:
    A ladder {hint, stop or reject} for waits, and `changing`, one for the other kind.
"""

from __future__ import annotations

from typing import Final

from litellm_toolguard.evidence import JudgedRound
from litellm_toolguard.streaks import Draft, Key, Member, Streaks, by_key, members

NAME: Final = "idle-wait"
CHANGING: Final = "changing"

_ANSWERED = frozenset({"succeeded", "unclear"})


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round."""
    draft = Draft.of(streaks, judged)
    answered = [member for member in members(judged) if member.judged.outcome.kind in _ANSWERED]
    for key, group in by_key((_key(member), member) for member in answered):
        _count(draft, key, group)
    return draft.streaks


def _key(member: Member) -> Key:
    return Key(NAME, "" if member.judged.role == "wait" else CHANGING, (member.judged.key,))


def _count(draft: Draft, key: Key, group: list[Member]) -> None:
    newest = Member(group[-1].position, group[-1].judged, group[-1].judged.result)
    before = draft.streaks.get(key)
    again = before is not None and before.last == newest.signature
    if before is None or again == (key.kind == CHANGING) or newest.judged.rerun:
        draft.start(key, [newest])
    else:
        draft.raise_(key, [newest])
