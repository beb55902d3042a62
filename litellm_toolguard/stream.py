"""A streamed answer, put together from its events. Pure: the edges hand in plain values and keep the chunks.

`SseReader` cuts bytes into events; an `Assembler` per dialect takes events and gives the whole answer in the form in
which it would have come unstreamed, so that one verdict serves both.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from litellm_toolguard.transcript import Dialect


class Assembler(Protocol):
    """Puts one answer together."""

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take one event. Unknown ones are left alone."""

    def answer(self) -> Mapping[str, Any] | None:
        """The answer; None while it is not complete. A stream that breaks never completes it."""


class SseReader:
    """Events out of bytes that are cut anywhere: inside of characters, of lines, of line ends. Comments and events that
    are no JSON object are left out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._text = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        """The events that these bytes complete."""
        self._text += self._decoder.decode(data)
        # A carriage return at the very end may be the first half of a line end.
        whole, rest = (self._text[:-1], "\r") if self._text.endswith("\r") else (self._text, "")
        lines = whole.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._text = lines.pop() + rest
        for line in lines:
            event = self._line(line)
            if event is not None:
                yield event

    def finish(self) -> Iterator[Mapping[str, Any]]:
        """The event that is left when the bytes end behind its data."""
        yield from self.feed(b"\n\n")

    def _line(self, line: str) -> Mapping[str, Any] | None:
        if line:
            name, _, value = line.partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
            return None
        data, self._data = "\n".join(self._data), []
        try:
            event = json.loads(data) if data else None
        except (ValueError, RecursionError):
            return None
        return event if isinstance(event, dict) else None


class SseFrames:
    """Cuts bytes into whole events with the line ends that they came with, and changes none of them."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that these bytes complete."""
        *frames, self._rest = _split_frames(self._rest + data)
        return frames

    def finish(self) -> list[bytes]:
        """What is left when the bytes end."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


_FRAME_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


def _split_frames(data: bytes) -> Iterator[bytes]:
    start = 0
    for end in _FRAME_END.finditer(data):
        yield data[start : end.end()]
        start = end.end()
    yield data[start:]


def assembler(dialect: Dialect) -> Assembler:
    """An assembler for one answer in the dialect."""
    return _ASSEMBLERS[dialect]()


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _place(index: Any, otherwise: int) -> int:
    """Where a part belongs; parts may begin in another order than they stand in."""
    return index if isinstance(index, int) else otherwise


# ----------------------------------------------------------------------------------------------- the calls of a stream

_CALL_ITEMS: Final = frozenset(
    {
        *("function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call"),
    }
)
_CALL_EVENTS: Final = (
    *("response.function_call_arguments.", "response.custom_tool_call_input."),
    *("response.shell_call_command.", "response.apply_patch_call_operation_diff."),
)


class CallEvents:
    """Tells the events of the client's calls from all others in one stream."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._blocks: set[Any] = set()

    def holds_call(self, event: Mapping[str, Any]) -> bool:
        """Whether the event belongs to a call that the client would run."""
        if self._dialect == "chat":
            deltas = (choice.get("delta") for choice in _dicts(event.get("choices")))
            return any(isinstance(delta, dict) and _has_chat_call(delta) for delta in deltas)
        kind = event.get("type")
        if self._dialect == "messages":
            block = event.get("content_block")
            if kind == "content_block_start" and isinstance(block, dict) and block.get("type") == "tool_use":
                self._blocks.add(event.get("index"))
            return isinstance(kind, str) and kind.startswith("content_block_") and event.get("index") in self._blocks
        item = event.get("item")
        if isinstance(item, dict):
            return item.get("type") in _CALL_ITEMS
        return isinstance(kind, str) and kind.startswith(_CALL_EVENTS)


def ends_call(event: Mapping[str, Any]) -> bool:
    """Whether an event of a call says that it is complete, or repeats the whole of it."""
    kind = event.get("type")
    return isinstance(kind, str) and (kind == "content_block_stop" or kind.endswith(".done"))


def _has_chat_call(delta: Mapping[str, Any]) -> bool:
    return bool(delta.get("tool_calls") or delta.get("function_call"))


def without_calls(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """The last event of a Responses stream without the calls in it; any other event as it is."""
    response = event.get("response")
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        return event
    kept = [item for item in response["output"] if not (isinstance(item, dict) and item.get("type") in _CALL_ITEMS)]
    return {**event, "response": {**response, "output": kept}}


# --------------------------------------------------------------------------------------------------------------- chat


@dataclass
class _Choice:
    """One choice of a chat answer."""

    message: dict[str, Any] = field(default_factory=dict)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)
    finish_reason: Any = None

    def feed(self, delta: Mapping[str, Any]) -> None:
        for key, value in delta.items():
            if value is None or key == "role":
                continue
            if key == _PROVIDER_FIELDS:
                _keep(self.message, value)
            elif key == "tool_calls":
                self._calls(value)
            elif key == "function_call" and isinstance(value, dict):
                _merge(self.message.setdefault("function_call", {}), value)
            else:
                _add(self.message, key, value)

    def _calls(self, value: Any) -> None:
        for fragment in _dicts(value):
            index = fragment.get("index")
            place = index if isinstance(index, int) else max(self.calls, default=-1) + 1
            call = self.calls.setdefault(place, {})
            body = {key: part for key, part in fragment.items() if key != "index" and part is not None}
            for kind in ("function", "custom"):
                inner = body.pop(kind, None)
                if isinstance(inner, dict):
                    _merge(call.setdefault(kind, {}), inner)
            for key, part in body.items():
                call.setdefault(key, part)

    def whole(self) -> dict[str, Any]:
        calls = [self.calls[index] for index in sorted(self.calls)]
        message = {"content": None, **self.message, "role": "assistant", **({"tool_calls": calls} if calls else {})}
        return {"message": message, "finish_reason": self.finish_reason, **self.beside}


_PROVIDER_FIELDS: Final = "provider_specific_fields"
# What LiteLLM says there about how an answer ended; the rest is of one chunk.
_ENDINGS: Final = ("stop_reason", "stop_details", "content_filter_results", "trace")


def _keep(holder: dict[str, Any], fields: Any) -> None:
    """Keep what the provider's own fields say about the end, in the place where an unstreamed answer has it."""
    kept = {key: fields[key] for key in _ENDINGS if fields.get(key) is not None} if isinstance(fields, dict) else {}
    if kept:
        holder[_PROVIDER_FIELDS] = {**holder.get(_PROVIDER_FIELDS, {}), **kept}


def _merge(into: dict[str, Any], fragment: Mapping[str, Any]) -> None:
    for key, value in fragment.items():
        if value is not None:
            _add(into, key, value)


def _add(into: dict[str, Any], key: str, value: Any) -> None:
    before = into.get(key)
    both_text = isinstance(before, str) and isinstance(value, str)
    both_lists = isinstance(before, list) and isinstance(value, list)
    into[key] = before + value if (both_text or both_lists) and before is not None else value


class _Chat:
    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self._beside: dict[str, Any] = {}

    def feed(self, event: Mapping[str, Any]) -> None:
        _keep(self._beside, event.get(_PROVIDER_FIELDS))
        if event.get("usage"):
            self._beside["usage"] = event["usage"]
        for raw in _dicts(event.get("choices")):
            index = raw.get("index")
            choice = self._choices.setdefault(index if isinstance(index, int) else 0, _Choice())
            delta = raw.get("delta")
            if isinstance(delta, dict):
                choice.feed(delta)
            choice.finish_reason = raw.get("finish_reason") or choice.finish_reason
            _keep(choice.beside, raw.get(_PROVIDER_FIELDS))
            _keep(choice.beside, {"content_filter_results": raw.get("content_filter_results")})

    def answer(self) -> Mapping[str, Any] | None:
        # LiteLLM ends a stream of several choices with the first that ends.
        if all(choice.finish_reason is None for choice in self._choices.values()):
            return None
        choices = [{"index": index, **self._choices[index].whole()} for index in sorted(self._choices)]
        return {"choices": choices, **self._beside}


# ----------------------------------------------------------------------------------------------------------- messages


class _Messages:
    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._json: dict[int, str] = {}
        self._over = False

    def feed(self, event: Mapping[str, Any]) -> None:
        kind, index = event.get("type"), _place(event.get("index"), len(self._blocks))
        if kind == "message_start" and isinstance(event.get("message"), dict):
            self._message = dict(event["message"])
        elif kind == "content_block_start" and isinstance(event.get("content_block"), dict):
            self._blocks[index] = dict(event["content_block"])
        elif kind == "content_block_delta" and isinstance(event.get("delta"), dict) and index in self._blocks:
            self._delta(index, event["delta"])
        elif kind == "message_delta" and isinstance(event.get("delta"), dict):
            self._message.update(event["delta"])
            self._usage(event.get("usage"))
        elif kind == "message_stop":
            self._over = True

    def _usage(self, more: Any) -> None:
        """Bridged streams put all of it into the last event, native ones a part."""
        if isinstance(more, dict):
            self._message["usage"] = {**(self._message.get("usage") or {}), **more}

    def _delta(self, index: int, delta: Mapping[str, Any]) -> None:
        block, kind = self._blocks[index], delta.get("type")
        if kind == "input_json_delta":
            self._json[index] = self._json.get(index, "") + str(delta.get("partial_json") or "")
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
        else:
            _merge(block, {key: value for key, value in delta.items() if key != "type"})

    def answer(self) -> Mapping[str, Any] | None:
        if not self._over:
            return None
        return {**self._message, "content": [self._block(index) for index in sorted(self._blocks)]}

    def _block(self, index: int) -> dict[str, Any]:
        text = self._json.get(index)
        if not text:
            return self._blocks[index]
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        return {**self._blocks[index], "input": value}


# ---------------------------------------------------------------------------------------------------------- responses


_LAST_EVENTS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


class _Responses:
    def __init__(self) -> None:
        self._items: dict[int, Any] = {}
        self._refused: dict[int, dict[str, Any]] = {}
        self._last: Mapping[str, Any] | None = None

    def feed(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "response.output_item.done" and isinstance(event.get("item"), dict):
            self._items[_place(event.get("output_index"), len(self._items))] = event["item"]
        elif kind == "response.refusal.done" and isinstance(event.get("refusal"), str):
            part = {"type": "refusal", "refusal": event["refusal"]}
            message = {"type": "message", "role": "assistant", "content": [part]}
            self._refused[_place(event.get("output_index"), 0)] = message
        elif isinstance(kind, str) and kind in _LAST_EVENTS and isinstance(event.get("response"), dict):
            self._last = event["response"]

    def answer(self) -> Mapping[str, Any] | None:
        if self._last is None:
            return None
        # Of a server that tells of a refusal in its own events alone.
        items = {**self._refused, **self._items}
        return {**self._last, "output": self._last.get("output") or [items[place] for place in sorted(items)]}


_ASSEMBLERS: Final[Mapping[Dialect, type[Assembler]]] = {"chat": _Chat, "messages": _Messages, "responses": _Responses}
