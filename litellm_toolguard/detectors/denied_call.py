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

from collections.abc import Iterator, Mapping
from typing import Final

from litellm_toolguard.canonical import error_signature
from litellm_toolguard.detectors.recovery import recovered_tools, works
from litellm_toolguard.evidence import JudgedExchange, JudgedRound
from litellm_toolguard.roles import shell_command, target_path
from litellm_toolguard.streaks import Draft, Key, Member, Streak, Streaks, by_key, members

NAME: Final = "denied-call"
TOOL, TARGET, CATEGORY = "tool", "target", "category"

# Words of a command that are read: a program, options and an argument.
_COMMAND_WORDS: Final = 6


def fold(streaks: Streaks, judged: JudgedRound) -> Streaks:
    """The streaks after one more round."""
    draft = Draft.of(streaks, judged)
    recovered = recovered_tools(judged, draft.streaks)
    signatures = {signature for streak in draft.streaks.values() for signature in streak.signatures}
    freed = {
        target
        for exchange in judged.exchanges
        if works(exchange, signatures) and (target := _target(exchange)) is not None
    }
    draft.clear(lambda streak: _is_over(streak, recovered, freed))
    denied = (member for member in members(judged) if _counts(member))
    for key, group in by_key(pair for member in denied for pair in _keyed(member, recovered, freed)):
        draft.raise_(key, group)
    return draft.streaks


def _is_over(streak: Streak, recovered: frozenset[str], freed: set[str]) -> bool:
    if streak.key.kind == TOOL:
        return streak.tool in recovered
    return streak.key.kind == TARGET and streak.key.parts[0] in freed


def _counts(member: Member) -> bool:
    return member.judged.outcome.kind == "denied" and not member.judged.steered


def _keyed(member: Member, recovered: frozenset[str], freed: set[str]) -> Iterator[tuple[Key, Member]]:
    judged = member.judged
    category = judged.outcome.category or ""
    signed = Member(member.position, judged, error_signature(judged.text, judged.parsed))
    if judged.tool not in recovered:
        yield Key(NAME, TOOL, (judged.tool, category)), signed
    target = _target(judged)
    if target is not None and target not in freed:
        yield Key(NAME, TARGET, (target,)), signed
    yield Key(NAME, CATEGORY, (category,)), signed


def _target(judged: JudgedExchange) -> str | None:
    """A path, or the program and first argument of a command that is no option."""
    if not isinstance(judged.parsed, Mapping):
        return None
    command = shell_command(judged.parsed)
    if command is not None:
        program, *words = command.split(maxsplit=_COMMAND_WORDS)[:_COMMAND_WORDS] or [""]
        argument = next((word for word in words if not word.startswith("-")), "")
        return f"command:{program} {argument}".rstrip()
    path = target_path(judged.parsed)
    return None if path is None else "path:" + path
