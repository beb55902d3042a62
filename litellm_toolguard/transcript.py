"""Frozen types for the normalised history of one request.

The dialect parsers produce these values and everything after them reads nothing else. A `Location` leads from a
normalised value back to the original payload, so that decisions are made here and edits are made there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Dialect: TypeAlias = Literal["chat", "messages", "responses"]
ExecutedBy: TypeAlias = Literal["client", "provider"]
InputKind: TypeAlias = Literal["user", "event", "none"]


@dataclass(frozen=True, slots=True)
class Location:
    """Where a value stands in the original payload.

    Args:
        item: index into `messages` (chat, messages) or `input` (responses).
        part: index into the item's content blocks or `tool_calls`; None for the item itself.
    """

    item: int
    part: int | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the assistant made it.

    Args:
        id: the id the wire carries; empty where the dialect has none (legacy `function_call`).
        name: the tool's name, never empty.
        arguments: the wire's value, untouched: a JSON object, JSON text, or free text (custom tools).
        location: where it stands.
        executed_by: `provider` for server-side tools, which have run when the gateway sees them.
    """

    id: str
    name: str
    arguments: Any
    location: Location
    executed_by: ExecutedBy = "client"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """One result as the client or the provider reported it.

    Args:
        text: all text parts joined by a newline.
        is_error: the wire's error flag; None where the wire carries none.
        opaque: stable text of the parts that are not text (images, files, structured output), for identity only.
        location: where it stands; for a provider's call that carries its own result, where the call stands.
        carries_text: whether a note may be appended to it.
        withheld: whether the guard put a notice in the place of what the tool returned.
    """

    text: str
    is_error: bool | None
    opaque: str
    location: Location
    carries_text: bool
    withheld: bool = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call and its result; `result` is None while it is pending."""

    call: ToolCall
    result: ToolResult | None


@dataclass(frozen=True, slots=True)
class Round:
    """All calls of one assistant message and their results. A provider-executed call is a round of its own, in stream
    order.

    Args:
        exchanges: never empty.
        end: index of the last item that belongs to the round.
        said: what the assistant said before the calls, in the same answer.
    """

    exchanges: tuple[Exchange, ...]
    end: int
    said: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the assistant's message may go on behind it: the client has answered nothing of it yet. What the
        provider ran is a round beside the client's calls, in Responses in items of its own."""
        return all(each.result is None or each.call.executed_by == "provider" for each in self.exchanges)


@dataclass(frozen=True, slots=True)
class UserInput:
    """Text in the user's role. `kind` says who really wrote it (see `user_input.py`)."""

    text: str
    kind: InputKind
    location: Location


@dataclass(frozen=True, slots=True)
class RunEnd:
    """An assistant message that is the guard's own words of an earlier stop."""

    location: Location


Event: TypeAlias = Round | UserInput | RunEnd


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of the payload that could not be read. It is `not inspected`; the rest is judged.

    Args:
        location: where it stands; None for the payload as a whole.
        reason: a fixed phrase without content of the payload.
    """

    location: Location | None
    reason: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """The normalised history of one request, in the order of the payload.

    Args:
        events: rounds, user inputs and ends of earlier runs.
        problems: what could not be read.
        tools: the parameters' schema of every function that the request offers, by name.
        words_allowed: False where the request forces a tool call or a JSON answer, so a run cannot end in words.
        orphans: results that belong to no call of their round; they are among the problems.
        answered: whether words of the assistant stand at the very end.
    """

    dialect: Dialect
    events: tuple[Event, ...]
    problems: tuple[Problem, ...]
    words_allowed: bool
    tools: Mapping[str, Any] = field(default_factory=dict)
    orphans: tuple[ToolResult, ...] = ()
    answered: bool = False

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The rounds alone, oldest first."""
        return tuple(event for event in self.events if isinstance(event, Round))
