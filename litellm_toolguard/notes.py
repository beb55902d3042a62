"""Every sentence the guard says, to the model and to the user.

A note to the model says in one line what happened and the count that tripped, then the next action. Words to the user
are true as far as the history tells: "same" and "varying" stand only where that was recorded. No sentence repeats
arguments or tool output; a tool's name is sanitised and bounded, because the model chose it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

MARK = "[toolguard]"
"""What every note to the model starts with."""

END_PREFIX = "[toolguard] This run was ended by the gateway: "
"""What the words of an ended run start with. It is looked for in assistant messages only."""

QUESTION_PREFIX = "[toolguard] The gateway asks before it goes on: "
"""What a question to the user starts with; the user's next message is the answer."""

WITHHELD: Final = (
    "[toolguard] The result of this call is withheld by the gateway and cannot be shown. The call itself ran. "
    "Go on without the result."
)
"""What stands in the place of a withheld result, for ever the same."""

CLOSED: Final = (
    f"{WITHHELD}\n\n"
    "[toolguard] In this turn this source is closed: do not make this call again. Answer from what there is."
)
"""What stands in the place of the last withheld result of a round."""

Sameness: TypeAlias = Literal["same", "varying", "unknown"]

_MAX_NAME_CHARS = 64
_MAX_OFFERED = 40
_MAX_SCHEMA_CHARS = 4_000
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
        schema: for invalid arguments, the schema of the tool's parameters from the request.
        offered: for unknown tools, the names of the tools that the request offers.
    """

    detector: str
    tool: str
    count: int
    sameness: Sameness = "unknown"
    refusals: int = 0
    category: str = ""
    schema: Any = None
    offered: tuple[str, ...] = ()


def safe_name(name: str) -> str:
    """A tool's name with everything but letters, digits and `_-.:/` replaced, at most 64 characters."""
    safe = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in _NAME_MARKS) else "_" for letter in name
    )
    return safe[:_MAX_NAME_CHARS] or "unnamed"


def hint(facts: Facts, *, last: bool) -> str:
    """The note to the model. `last` says that the next one of its kind ends the run."""
    sentences = [f"{MARK} {_happened(facts)}.", _SPEECH[facts.detector].next_action, *_help(facts)]
    if last:
        sentences.append("The next one ends this run.")
    return " ".join(sentences)


def end(facts: Facts) -> str:
    """The last words of a run, to the user."""
    return f"{END_PREFIX}{_happened(facts)}. {_SPEECH[facts.detector].for_the_user} Write a new message to continue."


def not_executed(facts: Facts) -> str:
    """What the model gets instead of the result of a call that was held back."""
    sentences = [f"{MARK} This call was not executed.", f"{_capital(_happened(facts))}."]
    return " ".join([*sentences, _SPEECH[facts.detector].next_action, *_help(facts)])


def question(facts: Facts) -> str:
    """The words of a run that waits for the user."""
    tool = safe_name(facts.tool)
    return (
        f"{QUESTION_PREFIX}{_happened(facts)}, and the agent wants to call `{tool}` once more. It was not executed. "
        "Shall it go on? Your next message is the answer, and all counts start anew with it."
    )


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def rejection(facts: Facts) -> str:
    """The message of an HTTP error."""
    return (
        f"{MARK} The request was rejected: {_happened(facts)}. A message of the user that says something new continues."
    )


def not_inspected(reason: str) -> str:
    """The message of an HTTP error for a request that could not be read; `reason` holds no content."""
    return f"{MARK} The request was rejected: its history could not be inspected ({reason})."


def ledger_unreadable() -> str:
    """The message of an HTTP error while it is not known which results are withheld."""
    return f"{MARK} The request was rejected: its tool results could not be checked against those that are withheld."


def guard_error() -> str:
    """The message of an HTTP error after a fault of the guard's own."""
    return f"{MARK} The request was rejected: the guard failed and its policy does not let requests pass then."


@dataclass(frozen=True, slots=True)
class _Speech:
    """What is said about the findings of one detector.

    Args:
        happened: what happened; `{tool}`, `{count}`, `{how}` and `{category}` are filled in.
        next_action: to the model.
        for_the_user: to the user.
    """

    happened: str
    next_action: str
    for_the_user: str


_WENT_ON = "The agent was told and went on."
_NOT_PAST = "The agent was told and did not get past it."
_CHANGE = "Read the error and change the approach, use another tool, or report what is in the way."
_REFUSAL = (
    "A refusal is a decision: do not try the same in other words or by another tool. "
    "Go on with what is allowed, or tell the user what you need."
)
_TRIED = "The agent was told that this is refused and went on trying."

_SPEECH: Final[Mapping[str, _Speech]] = {
    "repeated-call": _Speech(
        "`{tool}` was called {count} times with the same arguments and returned the same result each time",
        "Calling it again will bring nothing new: use the result you have, do something else, or answer.",
        _WENT_ON,
    ),
    "repeated-call/unseen": _Speech(
        "`{tool}` was called {count} times with the same arguments",
        "Calling it again will hardly bring anything new: use what you have, do something else, or answer.",
        _WENT_ON,
    ),
    "call-cycle": _Speech(
        "the same calls were made in the same order {count} times and returned the same results each time, the last "
        "one was to `{tool}`",
        "Another lap will bring nothing new: use the results you have, do something else, or answer.",
        _WENT_ON,
    ),
    "failing-call": _Speech("`{tool}` failed {count} times{how}", _CHANGE, _NOT_PAST),
    "failing-tool": _Speech("`{tool}` failed {count} times{how}", _CHANGE, _NOT_PAST),
    "failing-call/rerun": _Speech(
        "`{tool}` was run {count} times after changes and failed in the same way each time",
        "Look at the cause from another side, or report what you found.",
        _NOT_PAST,
    ),
    "failing-tool/transient": _Speech(
        "`{tool}` failed {count} times with errors that may pass by themselves",
        "Wait longer before the next try, do other work first, or report that the service is not available.",
        _NOT_PAST,
    ),
    "invalid-arguments": _Speech(
        "`{tool}` was called {count} times with arguments that it does not accept",
        "Build the call from its schema, or do without it.",
        _NOT_PAST,
    ),
    "unknown-tool": _Speech(
        "tools that do not exist were called {count} times, the last one was `{tool}`",
        "Call only tools that are offered to you, or answer.",
        _WENT_ON,
    ),
    "stuck-range": _Speech(
        "`{tool}` was asked {count} times for a part of a file that is outside of it",
        "There is nothing more beyond the end that the result names: read inside of it, or use what you have.",
        _WENT_ON,
    ),
    "same-answer": _Speech(
        "`{tool}` was called {count} times with other arguments and gave the same answer each time",
        "More variations will bring the same: take the answer as it is, use another way, or report it.",
        _WENT_ON,
    ),
    "idle-wait": _Speech(
        "`{tool}` was asked {count} times and nothing had changed",
        "Wait longer between two questions, use a call that waits by itself, or do other work first.",
        "Nothing changed while the agent waited.",
    ),
    "idle-wait/changing": _Speech(
        "`{tool}` was called {count} times with the same arguments, with another answer each time",
        "If you wait for something, wait longer between two calls; if not, use what you have.",
        _WENT_ON,
    ),
    "reread": _Speech(
        "the last {count} reads were mostly of things that had been read before, and nothing was written since",
        "Use what you have read, write down what you need, or go on to the next step.",
        _WENT_ON,
    ),
    "call-budget": _Speech(
        "`{tool}` was called {count} times in this turn",
        "It may be called only a limited number of times: go on without it.",
        "That is its limit.",
    ),
    "denied-call/withheld": _Speech(
        "`{tool}` was called again for a result that is withheld",
        "In this turn this source is closed: answer from what there is, or use another one.",
        "The agent was told that this source is closed.",
    ),
    "denied-call/tool": _Speech("`{tool}` was refused {count} times{category}", _REFUSAL, _TRIED),
    "denied-call/target": _Speech(
        "calls on the same target were refused {count} times{category}, the last one to `{tool}`", _REFUSAL, _TRIED
    ),
    "denied-call/category": _Speech(
        "tool calls were refused {count} times{category}, the last one to `{tool}`", _REFUSAL, _TRIED
    ),
}


def _happened(facts: Facts) -> str:
    return (
        _SPEECH[facts.detector]
        .happened.format(
            tool=safe_name(facts.tool),
            count=facts.count,
            how=_how(facts),
            category=f" ({facts.category})" if facts.category else "",
        )
        .replace(" 1 times", " once")
    )


def _how(facts: Facts) -> str:
    how = {"same": " with the same error", "varying": " with varying errors", "unknown": ""}[facts.sameness]
    if 0 < facts.refusals < facts.count:
        return f"{how}, {facts.refusals} of them refusals"
    return f"{how}, each time by a refusal" if facts.refusals else how


def _help(facts: Facts) -> Iterator[str]:
    """What the request itself says and the model seems to have missed."""
    if facts.detector == "invalid-arguments" and (schema := _schema_text(facts.schema)):
        yield f"The schema of its parameters: {schema}"
    if facts.detector == "unknown-tool" and facts.offered:
        names = [safe_name(name) for name in facts.offered[:_MAX_OFFERED]]
        more = f" and {len(facts.offered) - len(names)} more" if len(facts.offered) > len(names) else ""
        yield f"There are: {', '.join(names)}{more}."


def _schema_text(schema: Any) -> str:
    """The schema as one line of JSON; empty when there is none, or when it is too long for a note."""
    if not isinstance(schema, Mapping):
        return ""
    try:
        text = json.dumps(schema, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return ""
    return text if len(text) <= _MAX_SCHEMA_CHARS else ""
