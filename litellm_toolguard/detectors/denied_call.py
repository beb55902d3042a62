"""Calls that are refused and tried again.

What it detects:
    Denials by the user, by permissions, by a policy or by a hook, counted under three keys: the tool and the category,
    the target (a path, or a program and its first argument) across tools, and the category across all tools.

Why it matters:
    A refusal is a decision. An agent that takes it for an error tries other words, other paths and other tools, and
    nothing of that will be allowed: one run made 384 denied calls in 26 minutes.

Example:
    `bash` is refused for `rm -rf build`, `rm -r ./build`, ...: a note at the second refusal, the end at the sixth.

Not reported:
    A rejection with words of the user (it steers the tool), ordinary failures that say "permission denied", calls that
    were cancelled with a sibling, a review that could not be completed. A success of the tool, or on the target, starts
    its count anew; new input of the user starts all counts anew.

Settings:
    A ladder {hint, stop or reject}, and `any_tool`, a ladder for one category across all tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from litellm_toolguard.detectors.recovery import recovered_tools, works
from litellm_toolguard.evidence import JudgedRound
from litellm_toolguard.streaks import Draft, Key, Member, Streak, Streaks, by_key, members

NAME: Final = "denied-call"
TOOL, TARGET, CATEGORY = "tool", "target", "category"


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round."""
    draft = Draft.of(streaks, judged)
    recovered = recovered_tools(judged, draft.streaks)
    signatures = {signature for streak in draft.streaks.values() for signature in streak.signatures}
    freed = {exchange.traces.target for exchange in judged.exchanges if works(exchange, signatures)} - {b""}
    draft.clear(lambda streak: _is_over(streak, recovered, freed))
    denied = (member for member in members(judged) if _counts(member))
    for key, group in by_key(pair for member in denied for pair in _keyed(member, recovered, freed)):
        draft.raise_(key, group)
    return draft.streaks


def _is_over(streak: Streak, recovered: frozenset[str], freed: set[bytes]) -> bool:
    if streak.key.kind == TOOL:
        return streak.tool in recovered
    return streak.key.kind == TARGET and streak.key.parts[0] in freed


def _counts(member: Member) -> bool:
    return member.judged.outcome.kind == "denied" and not member.judged.steered


def _keyed(member: Member, recovered: frozenset[str], freed: set[bytes]) -> Iterator[tuple[Key, Member]]:
    judged = member.judged
    category = judged.outcome.category or ""
    signed = Member(member.position, judged, judged.traces.error)
    if judged.tool not in recovered:
        yield Key(NAME, TOOL, (judged.tool, category)), signed
    target = judged.traces.target
    if target and target not in freed:
        yield Key(NAME, TARGET, (target,)), signed
    yield Key(NAME, CATEGORY, (category,)), signed
