"""Anthropic Messages: content blocks `tool_use` and `tool_result`, with an error flag, and server-side tools whose call
and result both stand in the assistant's message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from litellm_toolguard.dialects.history import (
    History,
    Note,
    appended,
    call_of,
    can_carry_text,
    edit_items,
    is_text,
    items_of,
    offered,
    replaced,
    role_of,
    text_and_opaque,
    type_of,
)
from litellm_toolguard.transcript import Location, ToolCall, ToolResult, Transcript

_TEXT_TYPES = frozenset({"text"})
_SERVER_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})
_FORCED_CHOICES = frozenset({"any", "tool"})


def parse(request: Mapping[str, Any]) -> Transcript:
    """Read a Messages request body. Raises `PayloadError` when `messages` is no list."""
    history = History()
    for index, message in enumerate(items_of(request, "messages")):
        role = role_of(message)
        if role == "assistant":
            _read_assistant(history, index, message.get("content"))
        elif role == "user":
            _read_user(history, index, message.get("content"))
        elif role != "system":
            history.problem(Location(index), "a message of an unknown role")
    if type_of(request.get("thread")) == "continue":
        history.problem(None, "the history is kept by the provider (`thread`)")
    return history.transcript("messages", words_allowed=_words_allowed(request), tools=offered(request, _offered_tool))


def _offered_tool(tool: dict[str, Any]) -> tuple[Any, Any]:
    return tool.get("name"), tool.get("input_schema")


def with_notes(request: Mapping[str, Any], notes: Sequence[Note]) -> dict[str, Any]:
    """The request with the notes appended to `tool_result` blocks; where that is not possible, as a text block behind
    the round's results, or in a user message of their own behind a provider's round."""
    edited = edit_items(request["messages"], notes, _append, message=None)
    # From the last to the first, so that a message that is added moves no place that is still to be found.
    own = [note for note in notes if note.carrier is None]
    for note in sorted(own, key=lambda note: note.round.end, reverse=True):
        _add_text(edited, note)
    return {**request, "messages": edited}


def with_text(request: Mapping[str, Any], results: Sequence[ToolResult], text: str) -> dict[str, Any]:
    """The request with a text in the place of each result."""
    edited = list(request["messages"])
    for result in results:
        at, part = result.location.item, result.location.part or 0
        content = list(edited[at]["content"])
        content[part] = {**content[part], "content": replaced(content[part].get("content"), text, "text")}
        edited[at] = {**edited[at], "content": content}
    return {**request, "messages": edited}


def answered(answer: Mapping[str, Any]) -> tuple[tuple[Any, ...], ...]:
    """What a client appends to its history for an answer."""
    content = answer.get("content")
    return (({"role": "assistant", "content": content},),) if isinstance(content, list) else ()


def not_executed(items: Sequence[Any], text: str) -> tuple[Any, ...] | None:
    """The results of calls that did not run."""
    calls = [block for block in items[0]["content"] if type_of(block) == "tool_use"]
    return ({"role": "user", "content": [_not_executed(block["id"], text) for block in calls]},)


def _not_executed(call_id: str, text: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": True}


def _append(message: dict[str, Any], carrier: Location, text: str) -> dict[str, Any]:
    content = list(message["content"])
    block = content[carrier.part or 0]
    content[carrier.part or 0] = {**block, "content": appended(block.get("content"), text, "text")}
    return {**message, "content": content}


def _add_text(edited: list[Any], note: Note) -> None:
    block = {"type": "text", "text": note.text}
    end = note.round.end
    with_results = next((at for at in (end, end + 1) if at < len(edited) and _holds(edited[at], "tool_result")), None)
    if with_results is not None:
        blocks = list(edited[with_results]["content"])
        behind = max(at + 1 for at, each in enumerate(blocks) if type_of(each) == "tool_result")
        edited[with_results] = {**edited[with_results], "content": [*blocks[:behind], block, *blocks[behind:]]}
    elif not _waits(edited[end]):
        # Behind a call that waits for its result nothing may be put between the two.
        edited.insert(end + 1, {"role": "user", "content": [block]})


def _waits(message: Any) -> bool:
    """Whether a call of the message still waits for its result."""
    content = message.get("content") if isinstance(message, dict) else None
    blocks = content if isinstance(content, list) else []
    answered = _server_results(blocks)
    return any(
        type_of(block) == "tool_use" or (type_of(block) in _SERVER_CALLS and block.get("id") not in answered)
        for block in blocks
    )


def _holds(message: Any, kind: str) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(type_of(block) == kind for block in content)


def _read_assistant(history: History, index: int, content: Any) -> None:
    if isinstance(content, str):
        history.assistant_text(content, Location(index))
        return
    if not isinstance(content, list):
        history.problem(Location(index), "an assistant message without content")
        return
    server_results = _server_results(content)
    calls: list[ToolCall] = []
    for part, block in enumerate(content):
        here, kind = Location(index, part), type_of(block)
        if kind == "text" and isinstance(block.get("text"), str):
            history.assistant_text(block["text"], here)
        elif kind == "tool_use":
            call = call_of(block.get("id"), block.get("name"), block.get("input"), here, history)
            calls += [call] if call is not None else []
        elif kind in _SERVER_CALLS:
            _read_server_call(history, block, here, server_results)
    history.calls(index, calls)


def _server_results(content: list[Any]) -> dict[str, tuple[int, dict[str, Any]]]:
    """Result blocks of server-side tools by the id of their call."""
    return {
        block["tool_use_id"]: (part, block)
        for part, block in enumerate(content)
        if type_of(block).endswith("_tool_result") and isinstance(block.get("tool_use_id"), str)
    }


def _read_server_call(
    history: History, block: dict[str, Any], here: Location, results: Mapping[str, tuple[int, dict[str, Any]]]
) -> None:
    call = call_of(block.get("id"), block.get("name"), block.get("input"), here, history, executed_by="provider")
    if call is None:
        return
    found = results.get(call.id)
    result = None if found is None else _server_result(found[1], Location(here.item, found[0]))
    history.provider_call(here.item, call, result)


def _server_result(block: dict[str, Any], here: Location) -> ToolResult:
    content = block.get("content")
    text, opaque = text_and_opaque(content, _TEXT_TYPES)
    failed = block.get("is_error") is True or type_of(content).endswith("_error")
    if failed and isinstance(content, dict):
        text = str(content.get("error_code", ""))
    return ToolResult(text, failed, opaque, here, carries_text=False)


def _read_user(history: History, index: int, content: Any) -> None:
    if isinstance(content, str):
        history.user_text(content, Location(index))
        return
    if not isinstance(content, list):
        history.problem(Location(index), "a user message without content")
        return
    words = False
    attachment: Location | None = None
    for part, block in enumerate(content):
        here, kind = Location(index, part), type_of(block)
        if kind == "tool_result":
            _read_result(history, block, here)
            words = True
        elif is_text(block, _TEXT_TYPES):
            history.user_text(block["text"], here)
            words = True
        else:
            attachment = here
    if attachment is not None and not words:
        history.user_attachment(content, attachment)


def _read_result(history: History, block: dict[str, Any], here: Location) -> None:
    content = block.get("content")
    text, opaque = text_and_opaque(content, _TEXT_TYPES)
    flag = block.get("is_error")
    is_error = flag if isinstance(flag, bool) else None
    carries_text = can_carry_text(content, _TEXT_TYPES)
    call_id = block.get("tool_use_id")
    result = ToolResult(text, is_error, opaque, here, carries_text)
    history.result(here.item, call_id if isinstance(call_id, str) else "", result)


def _words_allowed(request: Mapping[str, Any]) -> bool:
    choice = request.get("tool_choice")
    forced = type_of(choice) in _FORCED_CHOICES
    config = request.get("output_config")
    answer = request.get("output_format") or (config.get("format") if isinstance(config, dict) else None)
    return not forced and type_of(answer) != "json_schema"
