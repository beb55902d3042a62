"""The detectors: one file each, a docstring page and one fold.

A fold takes the streaks before a round and gives the streaks after it. What holds for all of them (input of the user,
idle streaks, counting rounds instead of calls) stands in `streaks.py` and `engine.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from litellm_toolguard.detectors import (
    call_budget,
    call_cycle,
    denied_call,
    failing_call,
    failing_tool,
    idle_wait,
    invalid_arguments,
    repeated_call,
    reread,
    same_answer,
    stuck_range,
    unknown_tool,
)
from litellm_toolguard.evidence import JudgedRound
from litellm_toolguard.policy import DetectorName
from litellm_toolguard.streaks import Streaks

Fold: TypeAlias = Callable[[Streaks, JudgedRound], Streaks]

FOLDS: Final[Mapping[DetectorName, Fold]] = {
    "denied-call": denied_call.fold,
    "unknown-tool": unknown_tool.fold,
    "invalid-arguments": invalid_arguments.fold,
    "stuck-range": stuck_range.fold,
    "failing-call": failing_call.fold,
    "failing-tool": failing_tool.fold,
    "repeated-call": repeated_call.fold,
    "call-cycle": call_cycle.fold,
    "same-answer": same_answer.fold,
    "idle-wait": idle_wait.fold,
    "reread": reread.fold,
    "call-budget": call_budget.fold,
}
"""Every detector by its name, in the order that breaks ties."""

CLEARED_BY_EVENTS: Final[frozenset[DetectorName]] = frozenset({"repeated-call", "call-cycle"})
"""What an event (a task's notification, a command's output) empties: the world may have changed, a refusal has not."""
