"""Chat Completions: `messages` with `tool_calls`, role `tool`, and the legacy `function_call` with role `function`.

The dialect has no error flag.
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
)
from litellm_toolguard.transcript import Location, ToolCall, ToolResult, Transcript

_TEXT_TYPES = frozenset({"text"})
_SILENT_ROLES = frozenset({"system", "developer"})


def parse(request: Mapping[str, Any]) -> Transcript:
    """Read a Chat Completions request body. Raises `PayloadError` when `messages` is no list."""
    history = History()
    for index, message in enumerate(items_of(request, "messages")):
        _read_message(history, index, message)
    return history.transcript("chat", words_allowed=_words_allowed(request), tools=offered(request, _offered_tool))


def _offered_tool(tool: dict[str, Any]) -> tuple[Any, Any]:
    body = tool.get("function") or tool.get("custom")
    return (body.get("name"), body.get("parameters")) if isinstance(body, dict) else (None, None)


def with_notes(request: Mapping[str, Any], notes: Sequence[Note]) -> dict[str, Any]:
    """The request with the notes appended to tool messages, or in a user message behind the round."""
    return {**request, "messages": edit_items(request["messages"], notes, _append, _own_message)}


def with_text(request: Mapping[str, Any], results: Sequence[ToolResult], text: str) -> dict[str, Any]:
    """The request with a text in the place of each result."""
    edited = list(request["messages"])
    for result in results:
        message = edited[result.location.item]
        edited[result.location.item] = {**message, "content": replaced(message.get("content"), text, "text")}
    return {**request, "messages": edited}


def answered(answer: Mapping[str, Any]) -> tuple[tuple[Any, ...], ...]:
    """What a client appends to its history for each choice of an answer."""
    choices = answer.get("choices")
    messages = [choice.get("message") for choice in (choices if isinstance(choices, list) else ()) if choice]
    return tuple((_appended(message),) for message in messages if isinstance(message, dict))


def _appended(message: Mapping[str, Any]) -> dict[str, Any]:
    """Without what LiteLLM adds for its own use and providers refuse."""
    kept = {key: value for key, value in message.items() if key != "provider_specific_fields"}
    return {"content": None, **kept, "role": "assistant"}


def not_executed(items: Sequence[Any], text: str) -> tuple[Any, ...] | None:
    """The results of calls that did not run."""
    message = items[0]
    calls = message.get("tool_calls") or ()
    results = [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
    legacy = message.get("function_call")
    return (*results, *([{"role": "function", "name": legacy["name"], "content": text}] if legacy else []))


def _append(message: dict[str, Any], _carrier: Location, text: str) -> dict[str, Any]:
    return {**message, "content": appended(message.get("content"), text, "text")}


def _own_message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _read_message(history: History, index: int, message: Any) -> None:
    here = Location(index)
    role = role_of(message)
    if role == "assistant":
        _read_assistant(history, index, message)
    elif role in ("tool", "function"):
        history.result(index, _result_id(message), _result(message, here))
    elif role == "user":
        _read_user(history, index, message.get("content"))
    elif role not in _SILENT_ROLES:
        history.problem(here, "a message of an unknown role")


def _read_assistant(history: History, index: int, message: dict[str, Any]) -> None:
    text, _ = text_and_opaque(message.get("content"), _TEXT_TYPES)
    history.assistant_text(text, Location(index))
    calls = [
        call
        for part, raw in enumerate(_tool_calls(history, index, message.get("tool_calls")))
        if (call := _call(history, raw, Location(index, part))) is not None
    ]
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        name = legacy.get("name")
        call = call_of(_legacy_id(name), name, legacy.get("arguments"), Location(index), history)
        calls += [call] if call is not None else []
    history.calls(index, calls)


def _tool_calls(history: History, index: int, raw: Any) -> Sequence[Any]:
    if raw is None or isinstance(raw, list):
        return raw or ()
    history.problem(Location(index), "`tool_calls` is not a list")
    return ()


def _call(history: History, raw: Any, here: Location) -> ToolCall | None:
    body = raw if isinstance(raw, dict) else {}
    function, custom = body.get("function"), body.get("custom")
    if isinstance(function, dict):
        return call_of(body.get("id"), function.get("name"), function.get("arguments"), here, history)
    if isinstance(custom, dict):
        return call_of(body.get("id"), custom.get("name"), custom.get("input"), here, history)
    history.problem(here, "a tool call of an unknown type")
    return None


def _legacy_id(name: Any) -> str:
    """Legacy calls have no id; their result names the function instead."""
    return f"function:{name}" if isinstance(name, str) else ""


def _result_id(message: dict[str, Any]) -> str:
    if message["role"] == "function":
        return _legacy_id(message.get("name"))
    call_id = message.get("tool_call_id")
    return call_id if isinstance(call_id, str) else ""


def _result(message: dict[str, Any], here: Location) -> ToolResult:
    content = message.get("content")
    text, opaque = text_and_opaque(content, _TEXT_TYPES)
    return ToolResult(text, None, opaque, here, carries_text=can_carry_text(content, _TEXT_TYPES))


def _read_user(history: History, index: int, content: Any) -> None:
    if isinstance(content, str):
        history.user_text(content, Location(index))
        return
    if not isinstance(content, list):
        history.problem(Location(index), "a user message without content")
        return
    for part, block in enumerate(content):
        if is_text(block, _TEXT_TYPES):
            history.user_text(block["text"], Location(index, part))
    if not any(is_text(block, _TEXT_TYPES) for block in content):
        history.user_attachment(content, Location(index))


def _forces_a_call(choice: Any) -> bool:
    if not isinstance(choice, dict):
        return False
    allowed = choice.get("allowed_tools")
    return not isinstance(allowed, dict) or allowed.get("mode") == "required"


def _words_allowed(request: Mapping[str, Any]) -> bool:
    choice, answer = request.get("tool_choice"), request.get("response_format")
    legacy_choice = request.get("function_call")
    forced = choice == "required" or isinstance(legacy_choice, dict) or _forces_a_call(choice)
    return not forced and not (isinstance(answer, dict) and answer.get("type") in ("json_object", "json_schema"))
