"""OpenAI Responses: a flat list of items. Calls and outputs are items of their own; tools that the provider runs carry
their result, where they have one, in the call item.

The dialect has no error flag for the client's tools; the provider's carry a `status`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from litellm_toolguard.canonical import canonical_json
from litellm_toolguard.dialects.history import (
    History,
    Note,
    appended,
    call_of,
    can_carry_text,
    edit_items,
    is_text,
    offered,
    replaced,
    role_of,
    text_and_opaque,
    type_of,
)
from litellm_toolguard.errors import PayloadError
from litellm_toolguard.transcript import Location, ToolResult, Transcript

_TEXT_TYPES = frozenset({"input_text", "output_text", "text"})
_IGNORED = frozenset(
    {
        "reasoning",
        "compaction",
        "context_compaction",
        "compaction_summary",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "image_generation_call",
        "tool_search_call",
        "tool_search_output",
    }
)


@dataclass(frozen=True, slots=True)
class _ClientCall:
    """How a call item of a client's tool is read: the fields of its name (or the fixed name) and its arguments."""

    name: str | None
    arguments: str
    output: str
    carries_text: bool


# Shell outputs are structured, local shell outputs can be JSON text that the provider parses, computer outputs are
# images: nothing can be appended to those.
_CLIENT_CALLS: Mapping[str, _ClientCall] = {
    "function_call": _ClientCall(None, "arguments", "function_call_output", True),
    "custom_tool_call": _ClientCall(None, "input", "custom_tool_call_output", True),
    "local_shell_call": _ClientCall("local_shell", "action", "local_shell_call_output", False),
    "shell_call": _ClientCall("shell", "action", "shell_call_output", False),
    "apply_patch_call": _ClientCall("apply_patch", "operation", "apply_patch_call_output", False),
    "computer_call": _ClientCall("computer", "action", "computer_call_output", False),
}
_OUTPUTS = {spec.output: spec for spec in _CLIENT_CALLS.values()}


@dataclass(frozen=True, slots=True)
class _ProviderCall:
    """How a provider's call item is read: its arguments' fields and the field of its result, if it has one."""

    name: str | None
    arguments: tuple[str, ...]
    output: str | None


_PROVIDER_CALLS: Mapping[str, _ProviderCall] = {
    "web_search_call": _ProviderCall("web_search", ("action",), None),
    "file_search_call": _ProviderCall("file_search", ("queries",), "results"),
    "code_interpreter_call": _ProviderCall("code_interpreter", ("code", "container_id"), "outputs"),
    "mcp_call": _ProviderCall(None, ("server_label", "arguments"), "output"),
}


def parse(request: Mapping[str, Any]) -> Transcript:
    """Read a Responses request body. Raises `PayloadError` when `input` is neither a string nor a list."""
    history = History()
    items = request.get("input")
    if isinstance(items, str):
        history.user_text(items, Location(0))
    elif isinstance(items, list):
        for index, item in enumerate(items):
            _read_item(history, index, item)
    else:
        raise PayloadError("`input` is neither a string nor a list")
    for key in ("previous_response_id", "conversation"):
        if request.get(key) is not None:
            history.problem(None, f"the history is kept by the provider (`{key}`)")
    return history.transcript("responses", words_allowed=_words_allowed(request), tools=offered(request, _offered_tool))


def _offered_tool(tool: dict[str, Any]) -> tuple[Any, Any]:
    return tool.get("name") or tool.get("type"), tool.get("parameters")


def with_notes(request: Mapping[str, Any], notes: Sequence[Note]) -> dict[str, Any]:
    """The request with the notes appended to output items, or in a user message behind the round."""
    return {**request, "input": edit_items(request["input"], notes, _append, _own_message)}


def with_text(request: Mapping[str, Any], results: Sequence[ToolResult], text: str) -> dict[str, Any] | None:
    """The request with a text in the place of each result; None where one of them has no place for it: screenshots."""
    edited = list(request["input"])
    for result in results:
        item = edited[result.location.item]
        write = _WRITE_OUTPUT.get(type_of(item))
        if write is None:
            return None
        edited[result.location.item] = {**item, "output": write(item.get("output"), text)}
    return {**request, "input": edited}


def _write_text(output: Any, text: str) -> Any:
    return replaced(output, text, "input_text")


def _write_local_shell(_output: Any, text: str) -> str:
    return json.dumps({"output": text})


def _write_shell(output: Any, text: str) -> list[dict[str, Any]]:
    outcomes = [part["outcome"] for part in output if isinstance(part, dict) and "outcome" in part] if output else []
    outcome = outcomes[-1] if outcomes else {"type": "exit", "exit_code": 0}
    return [{"stdout": text, "stderr": "", "outcome": outcome}]


def _write_patch(_output: Any, text: str) -> str:
    return text


_WRITE_OUTPUT: Mapping[str, Callable[[Any, str], Any]] = {
    "function_call_output": _write_text,
    "custom_tool_call_output": _write_text,
    "local_shell_call_output": _write_local_shell,
    "shell_call_output": _write_shell,
    "apply_patch_call_output": _write_patch,
}


def answered(answer: Mapping[str, Any]) -> tuple[tuple[Any, ...], ...]:
    """What a client appends to its history for an answer."""
    output = answer.get("output")
    return (tuple(output),) if isinstance(output, list) else ()


def not_executed(items: Sequence[Any], text: str) -> tuple[Any, ...] | None:
    """The results of calls that did not run; None where one of them cannot say so in text."""
    specs = [(item, _CLIENT_CALLS[type_of(item)]) for item in items if type_of(item) in _CLIENT_CALLS]
    if not all(spec.carries_text for _, spec in specs):
        return None
    return tuple({"type": spec.output, "call_id": item["call_id"], "output": text} for item, spec in specs)


def _append(item: dict[str, Any], _carrier: Location, text: str) -> dict[str, Any]:
    return {**item, "output": appended(item.get("output"), text, "input_text")}


def _own_message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _read_item(history: History, index: int, item: Any) -> None:
    here = Location(index)
    kind = type_of(item) or ("message" if role_of(item) else "")
    if kind == "message":
        _read_message(history, index, item)
    elif kind in _CLIENT_CALLS:
        _read_client_call(history, item, here, _CLIENT_CALLS[kind])
    elif kind in _OUTPUTS:
        _read_output(history, item, here, _OUTPUTS[kind])
    elif kind in _PROVIDER_CALLS:
        _read_provider_call(history, item, here, _PROVIDER_CALLS[kind])
    elif kind not in _IGNORED:
        history.problem(here, "an item of an unknown type")


def _read_message(history: History, index: int, item: dict[str, Any]) -> None:
    role, content = role_of(item), item.get("content")
    if role == "assistant":
        text, _ = text_and_opaque(content, _TEXT_TYPES)
        history.assistant_text(text, Location(index))
    elif role == "user" and isinstance(content, str):
        history.user_text(content, Location(index))
    elif role == "user" and isinstance(content, list):
        for part, block in enumerate(content):
            if is_text(block, _TEXT_TYPES):
                history.user_text(block["text"], Location(index, part))
        if not any(is_text(block, _TEXT_TYPES) for block in content):
            history.user_attachment(content, Location(index))
    elif role not in ("system", "developer"):
        history.problem(Location(index), "a message of an unknown role")


def _read_client_call(history: History, item: dict[str, Any], here: Location, spec: _ClientCall) -> None:
    name = spec.name if spec.name is not None else item.get("name")
    raw_id = item.get("call_id") if item.get("call_id") is not None else item.get("id")
    call = call_of(raw_id, name, item.get(spec.arguments), here, history)
    if call is not None:
        history.calls(here.item, (call,))


def _read_output(history: History, item: dict[str, Any], here: Location, spec: _ClientCall) -> None:
    call_id = item.get("call_id") if item.get("call_id") is not None else item.get("id")
    output = item.get("output")
    text, opaque = text_and_opaque(output, _TEXT_TYPES)
    writable = spec.carries_text and can_carry_text(output, _TEXT_TYPES)
    result = ToolResult(text, None, opaque, here, carries_text=writable)
    history.result(here.item, call_id if isinstance(call_id, str) else "", result)


def _read_provider_call(history: History, item: dict[str, Any], here: Location, spec: _ProviderCall) -> None:
    arguments = {key: item[key] for key in spec.arguments if item.get(key) is not None}
    if not arguments:
        history.problem(here, "a provider's tool call without its arguments")
        return
    name = spec.name if spec.name is not None else item.get("name")
    raw_id = item.get("id")
    call = call_of(raw_id if isinstance(raw_id, str) else "", name, arguments, here, history, executed_by="provider")
    if call is None:
        return
    output = item.get(spec.output) if spec.output is not None else None
    text, opaque = (output, "") if isinstance(output, str) else ("", "" if output is None else canonical_json(output))
    failed = item.get("status") in ("failed", "incomplete") or item.get("error") is not None
    if failed and not text:
        text = _error_text(item.get("error"))
    history.provider_call(here.item, call, ToolResult(text, failed, opaque, here, carries_text=False))


def _error_text(error: Any) -> str:
    if isinstance(error, dict):
        error = error.get("message") or error.get("content")
    return error if isinstance(error, str) else ""


def _words_allowed(request: Mapping[str, Any]) -> bool:
    choice, text = request.get("tool_choice"), request.get("text")
    answer = text.get("format") if isinstance(text, dict) else None
    forced = choice == "required" or (isinstance(choice, dict) and choice.get("type") != "allowed_tools")
    forced = forced or (isinstance(choice, dict) and choice.get("mode") == "required")
    return not forced and not (isinstance(answer, dict) and answer.get("type") in ("json_object", "json_schema"))
