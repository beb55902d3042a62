"""The same call again and again, with the same result.

What it detects:
    Rounds that make a call with the same tool and arguments and get the same result, also with other reads or thinking
    in between.

Why it matters:
    A model that does not take in what a tool returned asks for it again, without end, and every round is paid for.

Example:
    `read_file {"path": "a.py"}` in eight rounds, the file unchanged: a note at the third, the end at the eighth.

Not reported:
    A repeat after something may have changed (a successful write, a successful call of an unknown tool, a first shell
    command), a call whose result changes, a round that also makes a new call, waiting and polling, several equal calls
    in one message (one round), refusals and errors that pass by themselves (they have detectors of their own).

Settings:
    A ladder {hint, block, stop or reject}.
"""

from __future__ import annotations

from typing import Final

from litellm_toolguard.evidence import FAILURES, JudgedRound
from litellm_toolguard.streaks import Draft, Key, Member, Streaks, by_key, members

NAME: Final = "repeated-call"
UNSEEN: Final = "unseen"

_COUNTED = FAILURES | {"succeeded", "unclear"}
_NEVER_RAN = frozenset({"pending", "cancelled"})


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round."""
    draft = Draft.of(streaks, judged)
    changing = {exchange.key for exchange in judged.exchanges if exchange.may_change}
    steered = {exchange.tool for exchange in judged.exchanges if exchange.steered}
    draft.clear(lambda streak: streak.tool in steered or bool(changing - {streak.key.parts[0]}))
    idle = all(exchange.outcome.kind in _NEVER_RAN for exchange in judged.exchanges)
    counted = (member for member in members(judged) if _counts(member, idle))
    for key, group in by_key((_key(member), member) for member in counted):
        _count(draft, key, group)
    return draft.streaks


def _counts(member: Member, idle: bool) -> bool:
    """A call that never ran is no repeat beside one that did. Where nothing of the round ever runs and the client says
    the same each time, it is one."""
    judged = member.judged
    ran = judged.outcome.kind in _COUNTED or (idle and judged.again)
    return ran and judged.role != "wait"


def _key(member: Member) -> Key:
    return Key(NAME, UNSEEN if member.judged.unseen else "", (member.judged.key,))


def _count(draft: Draft, key: Key, group: list[Member]) -> None:
    before = draft.streaks.get(key)
    results = frozenset(member.judged.result for member in group)
    signed = [Member(member.position, member.judged, member.judged.result) for member in group]
    if before is None or before.signatures != results:
        draft.start(key, signed[-1:] if len(results) > 1 else signed)
    elif draft.round.novel:
        draft.touch(key)
    else:
        draft.raise_(key, signed)
