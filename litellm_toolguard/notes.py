"""Every sentence the guard says, to the model and to the user.

A note to the model says in one line what happened and the count that tripped, then the next action. Words to the user
are true as far as the history tells: "same" and "varying" stand only where that was recorded. No sentence repeats
arguments or tool output; a tool's name is sanitised and bounded, because the model chose it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

MARK = "[toolguard]"
"""What every note to the model starts with."""

END_PREFIX = "[toolguard] This run was ended by the gateway: "
"""What the words of an ended run start with. It is looked for in assistant messages only."""

Sameness: TypeAlias = Literal["same", "varying", "unknown"]

_MAX_NAME_CHARS = 64
_NAME_MARKS = frozenset("_-.:/")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a sentence may say.

    Args:
        detector: the finding's detector, with its kind after a slash where it has several.
        tool: the tool's name as the model wrote it.
        count: the count that tripped.
        sameness: whether the errors or results were recorded as equal.
        refusals: how many of the counted failures were refusals.
        category: for denials, the category.
    """

    detector: str
    tool: str
    count: int
    sameness: Sameness = "unknown"
    refusals: int = 0
    category: str = ""


def safe_name(name: str) -> str:
    """A tool's name with everything but letters, digits and `_-.:/` replaced, at most 64 characters."""
    safe = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in _NAME_MARKS) else "_" for letter in name
    )
    return safe[:_MAX_NAME_CHARS] or "unnamed"


def hint(facts: Facts, *, last: bool) -> str:
    """The note to the model. `last` says that the next one of its kind ends the run."""
    sentences = [f"{MARK} {_happened(facts)}.", _next_action(facts)]
    if last:
        sentences.append("The next one ends this run.")
    return " ".join(sentences)


def end(facts: Facts) -> str:
    """The last words of a run, to the user."""
    return f"{END_PREFIX}{_happened(facts)}. {_for_the_user(facts)}"


def rejection(facts: Facts) -> str:
    """The message of an HTTP error."""
    return f"{MARK} The request was rejected: {_happened(facts)}."


def not_inspected(reason: str) -> str:
    """The message of an HTTP error for a request that could not be read; `reason` holds no content."""
    return f"{MARK} The request was rejected: its history could not be inspected ({reason})."


def guard_error() -> str:
    """The message of an HTTP error after a fault of the guard's own."""
    return f"{MARK} The request was rejected: the guard failed and its policy does not let requests pass then."


def _happened(facts: Facts) -> str:
    tool, count = safe_name(facts.tool), facts.count
    if facts.detector == "repeated-call":
        return f"`{tool}` was called {count} times with the same arguments and returned the same result each time"
    if facts.detector == "failing-call/rerun":
        return f"`{tool}` was run {count} times after changes and failed in the same way each time"
    if facts.detector == "failing-tool/transient":
        return f"`{tool}` failed {count} times with errors that may pass by themselves"
    if facts.detector.startswith("failing-"):
        return f"`{tool}` failed {count} times{_how(facts)}"
    return _refused(facts, tool)


def _how(facts: Facts) -> str:
    how = {"same": " with the same error", "varying": " with varying errors", "unknown": ""}[facts.sameness]
    if 0 < facts.refusals < facts.count:
        return f"{how}, {facts.refusals} of them refusals"
    return f"{how}, each time by a refusal" if facts.refusals else how


def _refused(facts: Facts, tool: str) -> str:
    category = f" ({facts.category})" if facts.category else ""
    if facts.detector == "denied-call/category":
        return f"tool calls were refused {facts.count} times{category}, the last one to `{tool}`"
    if facts.detector == "denied-call/target":
        return f"calls on the same target were refused {facts.count} times{category}, the last one to `{tool}`"
    return f"`{tool}` was refused {facts.count} times{category}"


def _next_action(facts: Facts) -> str:
    if facts.detector == "repeated-call":
        return "Calling it again will bring nothing new: use the result you have, do something else, or answer."
    if facts.detector == "failing-call/rerun":
        return "Look at the cause from another side, or report what you found."
    if facts.detector == "failing-tool/transient":
        return "Wait longer before the next try, do other work first, or report that the service is not available."
    if facts.detector.startswith("failing-"):
        return "Read the error and change the approach, use another tool, or report what is in the way."
    return (
        "A refusal is a decision: do not try the same in other words or by another tool. "
        "Go on with what is allowed, or tell the user what you need."
    )


def _for_the_user(facts: Facts) -> str:
    if facts.detector == "repeated-call":
        cause = "The agent was told and went on."
    elif facts.detector.startswith("denied-"):
        cause = "The agent was told that this is refused and went on trying."
    else:
        cause = "The agent was told and did not get past it."
    return f"{cause} Write a new message to continue."
