"""What the three parsers share: pairing of calls and results, and where a note is written.

Pairing is causal: a result belongs to the newest round or to none. Attaching a late result to an older round would
change what an earlier request looked like, and with it the notes that were already sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from litellm_toolguard import notes as sentences
from litellm_toolguard.canonical import canonical_json
from litellm_toolguard.errors import PayloadError
from litellm_toolguard.transcript import (
    Dialect,
    Event,
    Exchange,
    Location,
    Problem,
    Round,
    RunEnd,
    ToolCall,
    ToolResult,
    Transcript,
    UserInput,
)
from litellm_toolguard.user_input import classify_input


@dataclass(frozen=True, slots=True)
class Note:
    """One note for the model.

    Args:
        round: the round it belongs to.
        text: the sentence, without the blank line before it.
    """

    round: Round
    text: str

    @property
    def carrier(self) -> Location | None:
        """The last result of the round that can carry text; None when the note must stand in a message of its own."""
        results = [exchange.result for exchange in self.round.exchanges if exchange.result is not None]
        carriers = [result.location for result in results if result.carries_text]
        return max(carriers, key=lambda at: (at.item, at.part or 0)) if carriers else None


@dataclass(slots=True)
class _OpenRound:
    calls: list[ToolCall]
    end: int
    by_provider: bool = False
    said: str = ""
    results: dict[int, ToolResult] = field(default_factory=dict)

    def freeze(self) -> Round:
        exchanges = tuple(Exchange(call, self.results.get(index)) for index, call in enumerate(self.calls))
        return Round(exchanges, self.end, self.said)


class History:
    """Collects the parts of a payload in order. Used inside one `parse` only."""

    def __init__(self) -> None:
        self._events: list[_OpenRound | UserInput | RunEnd] = []
        self._problems: list[Problem] = []
        self._orphans: list[ToolResult] = []
        self._newest: _OpenRound | None = None
        self._newest_at = 0
        self._attachment = ""
        self._after_assistant = False
        self._said = ""
        self._answered = False

    def calls(self, item: int, calls: Sequence[ToolCall]) -> None:
        """Calls of the client's tools. A batch that the wire spreads over neighbouring assistant items is one round."""
        if not calls:
            return
        newest = self._newest
        if newest is not None and self._after_assistant and not newest.results:
            newest.calls.extend(calls)
            newest.end = item
        else:
            self._newest, self._newest_at = _OpenRound(list(calls), item, said=self._said), len(self._events)
            self._events.append(self._newest)
        self._said, self._answered = "", False
        self._after_assistant = True

    def provider_call(self, item: int, call: ToolCall, result: ToolResult | None) -> None:
        """A call that the provider ran itself: a round of its own, also between the client's calls of one answer."""
        opened = _OpenRound([call], item, by_provider=True)
        if result is not None:
            opened.results[0] = result
        self._events.append(opened)

    def result(self, item: int, call_id: str, result: ToolResult) -> None:
        """A result; it is paired with the first call of the client's newest round that has this id and no result
        yet."""
        self._after_assistant = self._answered = False
        newest = self._newest
        if newest is None:
            self._orphan(result)
            return
        for index, call in enumerate(newest.calls):
            if call.id == call_id and index not in newest.results:
                self._behind_provider_rounds(newest)
                newest.results[index] = result
                newest.end = max(newest.end, item)
                return
        self._orphan(result)

    def _orphan(self, result: ToolResult) -> None:
        self._orphans.append(result)
        self.problem(result.location, "a tool result without a call of the newest round")

    def user_text(self, text: str, location: Location) -> None:
        """Text in the user's role."""
        self._after_assistant = self._answered = False
        self._said = ""
        self._events.append(UserInput(text, classify_input(text), location))

    def user_attachment(self, content: Any, location: Location) -> None:
        """Images or files in the user's role. Behind a round they are mostly a tool's output that the dialect cannot
        hold in a result, so they are an event there, if they are new, and the user's own input elsewhere."""
        self._after_assistant = False
        shown, before = canonical_json(content), self._attachment
        self._attachment = shown
        follows_round = bool(self._events) and isinstance(self._events[-1], _OpenRound)
        if follows_round and shown == before:
            return
        self._events.append(UserInput("", "event" if follows_round else "user", location))

    def assistant_text(self, text: str, location: Location) -> None:
        """Text of the assistant: that before its calls, and the guard's own words of an earlier end."""
        self._said = text
        self._answered = bool(text)
        if text.startswith((sentences.END_PREFIX, sentences.QUESTION_PREFIX)):
            self._after_assistant = False
            self._events.append(RunEnd(location))

    def problem(self, location: Location | None, reason: str) -> None:
        """A part that could not be read."""
        self._problems.append(Problem(location, reason))

    def transcript(self, dialect: Dialect, *, words_allowed: bool, tools: Mapping[str, Any]) -> Transcript:
        """The finished history."""
        events: tuple[Event, ...] = tuple(
            event.freeze() if isinstance(event, _OpenRound) else event for event in self._events
        )
        return Transcript(
            dialect, events, tuple(self._problems), words_allowed, tools, tuple(self._orphans), self._answered
        )

    def _behind_provider_rounds(self, newest: _OpenRound) -> None:
        """The provider's tools of the same answer ran before the client's: their rounds stand first."""
        if newest.results:
            return
        behind = self._events[self._newest_at + 1 :]
        if all(isinstance(event, _OpenRound) and event.by_provider for event in behind):
            self._events[self._newest_at :] = [*behind, newest]


def items_of(request: Mapping[str, Any], key: str) -> Sequence[Any]:
    """The list under `key`.

    Raises:
        PayloadError: when there is none.
    """
    items = request.get(key)
    if not isinstance(items, list):
        raise PayloadError(f"`{key}` is not a list")
    return items


def offered(request: Mapping[str, Any], read: Callable[[dict[str, Any]], tuple[Any, Any]]) -> dict[str, Any]:
    """The tools that a request offers: name -> schema of the parameters (None where it has none).

    Args:
        request: the request.
        read: name and schema of one entry of `tools`.
    """
    tools = request.get("tools")
    entries = (read(tool) for tool in (tools if isinstance(tools, list) else ()) if isinstance(tool, dict))
    return {name: schema for name, schema in entries if isinstance(name, str) and name}


def call_of(
    raw_id: Any, name: Any, arguments: Any, location: Location, history: History, **more: Any
) -> ToolCall | None:
    """A call, or None with a problem noted when it has no usable name, id or arguments."""
    if not isinstance(name, str) or not name:
        history.problem(location, "a tool call without a name")
        return None
    if not isinstance(raw_id, str):
        history.problem(location, "a tool call without an id")
        return None
    return ToolCall(raw_id, name, arguments, location, **more)


def text_and_opaque(content: Any, text_types: frozenset[str]) -> tuple[str, str]:
    """The text parts of a content value joined by a newline, and a stable text of its other parts."""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        return "", "" if content is None else canonical_json(content)
    texts = [part["text"] for part in content if is_text(part, text_types)]
    opaque = [canonical_json(_without_cache_mark(part)) for part in content if not is_text(part, text_types)]
    return "\n".join(texts), "\n".join(opaque)


def _without_cache_mark(part: Any) -> Any:
    """Clients move cache marks from one request to the next; they are no part of what a tool returned."""
    return {key: part[key] for key in part if key != "cache_control"} if isinstance(part, dict) else part


def can_carry_text(content: Any, text_types: frozenset[str]) -> bool:
    """Whether a note may be appended to a result's content: to text, and to lists that hold some or nothing."""
    if isinstance(content, list):
        return not content or any(is_text(part, text_types) for part in content)
    return content is None or isinstance(content, str)


def is_text(part: Any, text_types: frozenset[str]) -> bool:
    """Whether a content part is a text part."""
    return type_of(part) in text_types and isinstance(part.get("text"), str)


def type_of(part: Any) -> str:
    """The `type` of a content part or item; empty where it has none."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def role_of(message: Any) -> str:
    """The `role` of a message; empty where it has none."""
    role = message.get("role") if isinstance(message, dict) else None
    return role if isinstance(role, str) else ""


def appended(content: Any, text: str, text_type: str) -> Any:
    """The content of a result with a note behind it. The note starts with a blank line, because LiteLLM's bridges join
    the parts of a result without a separator."""
    note = "\n\n" + text
    if isinstance(content, str):
        return content + note
    if isinstance(content, list):
        return [*content, {"type": text_type, "text": note}]
    return note


def replaced(content: Any, text: str, text_type: str) -> Any:
    """The content of a result with nothing but a text in it, in the form that it had. A cache mark stays."""
    if not isinstance(content, list):
        return text
    marks = [part["cache_control"] for part in content if isinstance(part, dict) and part.get("cache_control")]
    return [{"type": text_type, "text": text, **({"cache_control": marks[-1]} if marks else {})}]


def edit_items(
    items: Sequence[Any],
    notes: Sequence[Note],
    append: Callable[[Any, Location, str], Any],
    message: Callable[[str], Any] | None,
) -> list[Any]:
    """The items with each note written to its carrier, or in a message of its own behind the round.

    Args:
        items: the items of the request.
        notes: the notes.
        append: the item with a text appended to the place.
        message: a message of the guard's own; None where the caller places those notes itself.
    """
    edited = list(items)
    for note in notes:
        carrier = note.carrier
        if carrier is not None:
            edited[carrier.item] = append(edited[carrier.item], carrier, note.text)
    if message is None:
        return edited
    # From the last to the first, so that a message that is added moves no place that is still to be found.
    own = sorted((note for note in notes if note.carrier is None), key=lambda note: note.round.end, reverse=True)
    for note in own:
        edited.insert(note.round.end + 1, message(note.text))
    return edited
