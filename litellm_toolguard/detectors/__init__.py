"""The detectors: one file each, a docstring page and one fold.

A fold takes the streaks before a round and gives the streaks after it. What holds for all of them (input of the user,
idle streaks, counting rounds instead of calls) stands in `streaks.py` and `engine.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from litellm_toolguard.detectors import denied_call, failing_call, failing_tool, repeated_call
from litellm_toolguard.evidence import JudgedRound
from litellm_toolguard.policy import DetectorName
from litellm_toolguard.streaks import Streaks

Fold: TypeAlias = Callable[[Streaks, JudgedRound], Streaks]

FOLDS: Final[Mapping[DetectorName, Fold]] = {
    "denied-call": denied_call.fold,
    "failing-call": failing_call.fold,
    "failing-tool": failing_tool.fold,
    "repeated-call": repeated_call.fold,
}
"""Every detector by its name, in the order that breaks ties."""

CLEARED_BY_EVENTS: Final[frozenset[DetectorName]] = frozenset({"repeated-call"})
"""What an event (a task's notification, a command's output) empties: the world may have changed, a refusal has not."""
