"""The machine-readable end of a run: one field, put where the official clients keep it on their parsed objects.

| dialect | plain | streamed |
|---|---|---|
| chat | `completion.toolguard` | the first chunk, and so `stream.get_final_completion().toolguard` |
| messages | `message.toolguard` | `message_start.message`, and so `stream.get_final_message().toolguard` |
| responses | `response.toolguard` | `event.response`, and so `stream.get_final_response().toolguard` |
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from litellm.types.llms.openai import ResponsesAPIResponse
from litellm.types.utils import ModelResponse, ModelResponseStream

FIELD = "toolguard"

_FRAME_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DATA = re.compile(rb"^data:[ ]?([^\r\n]*)", re.MULTILINE)


def mark_response(response: Any, field: Mapping[str, Any]) -> Any:
    """A copy of the answer with the field on it.

    Args:
        response: what `async_post_call_success_hook` is given: a `ModelResponse` (chat), a dict (messages) or a
            `ResponsesAPIResponse` (responses). Anything else is returned as it is.
        field: JSON values.
    """
    if isinstance(response, dict):
        return {**response, FIELD: dict(field)}
    if isinstance(response, (ModelResponse, ResponsesAPIResponse)):
        return response.model_copy(update={FIELD: dict(field)})
    return response


async def mark_stream(stream: AsyncIterator[Any], field: Mapping[str, Any]) -> AsyncIterator[Any]:
    """The streamed answer with the field on it.

    Args:
        stream: what `async_post_call_streaming_iterator_hook` is given: chunks (chat), bytes as they come from the
            socket (messages) or events (responses). Anything else is passed on as it is.
        field: JSON values.
    """
    marker = _Marker(field)
    async for chunk in stream:
        marked = marker.mark(chunk)
        if marked != b"":
            yield marked
    if rest := marker.rest():
        yield rest


class _Marker:
    """Marks the chunks of one stream."""

    def __init__(self, field: Mapping[str, Any]) -> None:
        self._field = field
        self._start = _MessageStart(field)
        self._chunk_seen = False

    def mark(self, chunk: Any) -> Any:
        """The chunk to send on; `b""` while a frame is incomplete."""
        if isinstance(chunk, bytes):
            return self._start.feed(chunk)
        if isinstance(chunk, ModelResponseStream):
            return self._mark_first(chunk)
        response = getattr(chunk, "response", None)
        if isinstance(response, ResponsesAPIResponse):
            return chunk.model_copy(update={"response": mark_response(response, self._field)})
        return chunk

    def rest(self) -> bytes:
        """What an unfinished stream of bytes still holds."""
        return self._start.finish()

    def _mark_first(self, chunk: ModelResponseStream) -> ModelResponseStream:
        """Only the first chunk: the clients' helpers build the final object from it and leave extra keys of later
        chunks out.
        """
        if self._chunk_seen:
            return chunk
        self._chunk_seen = True
        # The proxy writes a chunk of plain text with a serializer of its own, which knows no extra keys. Provider
        # fields, even empty ones, make it use the full one.
        provider_fields = chunk.provider_specific_fields or {}
        return chunk.model_copy(update={FIELD: dict(self._field), "provider_specific_fields": provider_fields})


class _MessageStart:
    """Puts the field into the `message_start` event of a byte stream; everything else comes out byte for byte."""

    def __init__(self, field: Mapping[str, Any]) -> None:
        self._field = field
        self._held = b""
        self._done = False

    def feed(self, data: bytes) -> bytes:
        """What may be sent on now; empty while a frame is incomplete."""
        if self._done:
            return data
        self._held += data
        ready = b""
        while not self._done and (end := _FRAME_END.search(self._held)):
            frame, self._held = self._held[: end.end()], self._held[end.end() :]
            ready += self._mark(frame)
        return ready + self.finish() if self._done else ready

    def finish(self) -> bytes:
        """What is still held."""
        held, self._held = self._held, b""
        return held

    def _mark(self, frame: bytes) -> bytes:
        """The frame with the field, if it is the one."""
        data = _DATA.search(frame)
        event = _message_start(data[1]) if data else None
        if data is None or event is None:
            return frame
        self._done = True
        event["message"][FIELD] = dict(self._field)
        return frame[: data.start(1)] + json.dumps(event).encode() + frame[data.end(1) :]


def _message_start(data: bytes) -> dict[str, Any] | None:
    """The event in the data of a frame, if it is a `message_start` with a message."""
    if b"message_start" not in data:
        return None
    try:
        event = json.loads(data)
    except ValueError:
        return None
    is_start = isinstance(event, dict) and event.get("type") == "message_start"
    return event if is_start and isinstance(event.get("message"), dict) else None
