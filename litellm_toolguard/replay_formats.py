"""What a JSON value of a recorded file is: a transcript, an entry of a session log, or nothing that can be replayed.

Recognised are request bodies of the three dialects, transcript records, LiteLLM's spend-log rows with bodies, and the
session logs of Claude Code and Codex, whose entries make up one transcript over many lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, get_args

from litellm_toolguard.recording import KIND, KINDS
from litellm_toolguard.replay_files import Fault, Value
from litellm_toolguard.review import Intervention
from litellm_toolguard.transcript import Dialect, Location

_HISTORY: Final[Mapping[Dialect, str]] = {"chat": "messages", "messages": "messages", "responses": "input"}

_ANTHROPIC_BLOCKS: Final = frozenset({"tool_use", "tool_result", "server_tool_use", "mcp_tool_use", "mcp_tool_result"})
_CHAT_ROLES: Final = frozenset({"tool", "function"})

_CODEX_TYPES: Final = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_CLAUDE_TYPES: Final = frozenset({"user", "assistant"})
_CLAUDE_SILENT_TYPES: Final = frozenset({"summary", "system", "file-history-snapshot"})

_CALL_TYPES: Final[Mapping[str, Dialect]] = {
    "completion": "chat",
    "acompletion": "chat",
    "anthropic_messages": "messages",
    "responses": "responses",
    "aresponses": "responses",
}


@dataclass(frozen=True, slots=True)
class Record:
    """One transcript as it was recorded.

    Args:
        source: the file, as it was named.
        id: its own id, or where it stands.
        dialect: its dialect.
        request: the request body that its history would make up.
        lines: the line of each of its items; one line alone where all of it stands there.
    """

    source: str
    id: str
    dialect: Dialect
    request: Mapping[str, Any]
    lines: tuple[int, ...]

    def fault(self, message: str, at: Location | None = None) -> Fault:
        """A fault of this transcript, at one of its items where that is known."""
        several = at is not None and len(self.lines) > 1
        return Fault(self.source, self.lines[at.item if at is not None and several else 0], message)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a session log that belongs to a transcript.

    Args:
        value: the entry.
        log: the log's kind.
    """

    value: Value
    log: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A spend-log row of a request without a history: an embedding, an image, a health check."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One transcript and what the guard would have done.

    Args:
        id: its id.
        dialect: its dialect.
        rounds: assistant messages with calls.
        calls: calls in them.
        interventions: in order.
        saved: calls that would not have run.
        not_inspected: parts that could not be read.
    """

    id: str
    dialect: Dialect
    rounds: int
    calls: int
    interventions: tuple[Intervention, ...]
    saved: int
    not_inspected: int


Recognised: TypeAlias = Record | Entry | Skipped | Fault | None
"""None is an entry of a log that says nothing about calls."""


def recognise(value: Value) -> Recognised:
    """What the value is."""
    data = value.data
    if not isinstance(data, dict):
        return value.fault("is no transcript: not a JSON object")
    if data.get(KIND) in KINDS and "run" in data:
        return Entry(value, "recording")
    kind = data.get("type") if isinstance(data.get("type"), str) else None
    if kind in _CODEX_TYPES and "payload" in data:
        return Entry(value, "codex") if kind in ("response_item", "session_meta") else None
    if kind in _CLAUDE_TYPES and ("sessionId" in data or "uuid" in data):
        return _claude_entry(value, data)
    has_history = "messages" in data or "input" in data
    if not has_history and (
        kind in _CLAUDE_SILENT_TYPES or (kind is not None and isinstance(data.get("sessionId"), str))
    ):
        return None
    if "request_id" in data and ("call_type" in data or "proxy_server_request" in data):
        return _spend_row(value, data)
    if has_history:
        return _record(value, data, _id_of(data.get("id")))
    return value.fault("is no transcript: neither `messages` nor `input`, nor an entry of a known session log")


def is_log(value: Value) -> bool:
    """Whether the value begins a session log."""
    found = recognise(value)
    return found is None or isinstance(found, Entry)


# ------------------------------------------------------------------------------------------------------ request bodies


def _id_of(raw: Any) -> str:
    return raw if isinstance(raw, str) else str(raw) if isinstance(raw, int) else ""


def _record(value: Value, request: Mapping[str, Any], name: str, likely: Dialect | None = None) -> Record | Fault:
    named = request.get("dialect")
    if named is not None and named not in get_args(Dialect):
        return value.fault(f"`dialect` is none of {', '.join(get_args(Dialect))}")
    dialect = named if named is not None else dialect_of(request, likely)
    if dialect is None:
        return value.fault("mixes the signs of several dialects: say which one it is with `dialect`")
    return Record(value.source, name or value.name, dialect, request, (value.line,))


def dialect_of(request: Mapping[str, Any], likely: Dialect | None = None) -> Dialect | None:
    """The dialect of a request body; None when its signs contradict each other.

    Args:
        request: the body.
        likely: what it is taken for where it holds no sign, that is, where it holds no call either.
    """
    messages, items = request.get("messages"), request.get("input")
    if messages is None or items is not None:
        return "responses" if messages is None else None
    messages = [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []
    anthropic, chat = any(map(_has_anthropic_block, messages)), any(map(_has_chat_call, messages))
    if anthropic or chat:
        return None if anthropic and chat else "messages" if anthropic else "chat"
    blocks = any(isinstance(message.get("content"), list) for message in messages)
    if "system" in request or ("max_tokens" in request and blocks):
        return "messages"
    return "messages" if likely == "messages" else "chat"


def _has_anthropic_block(message: dict[str, Any]) -> bool:
    content = message.get("content")
    blocks = content if isinstance(content, list) else ()
    return any(isinstance(block, dict) and block.get("type") in _ANTHROPIC_BLOCKS for block in blocks)


def _has_chat_call(message: dict[str, Any]) -> bool:
    return bool(message.get("tool_calls") or message.get("function_call")) or message.get("role") in _CHAT_ROLES


# ----------------------------------------------------------------------------------------------------- spend-log rows


def _spend_row(value: Value, row: Mapping[str, Any]) -> Record | Skipped | Fault:
    call_type = row.get("call_type")
    likely = _CALL_TYPES.get(call_type) if isinstance(call_type, str) else None
    name = _id_of(row.get("request_id"))
    other = bool(call_type) and likely is None
    for column in ("proxy_server_request", "messages"):
        body = _request_of(row, column)
        if isinstance(body, str):
            return value.fault(body)
        # Embeddings and the like have an `input`, too; behind a pass-through route may be a conversation.
        if body is not None and not (other and "messages" not in body):
            return _record(value, {**body, "dialect": None}, name, likely)
    if other:
        return Skipped()
    return value.fault("is a spend-log row without the request: LiteLLM stores it with `store_prompts_in_spend_logs`")


def _request_of(row: Mapping[str, Any], key: str) -> Mapping[str, Any] | str | None:
    """The request body in a column of the row; None where there is none, a sentence where it cannot be read."""
    column = row.get(key)
    if isinstance(column, str) and column:
        try:
            column = json.loads(column)
        except (ValueError, RecursionError):
            return f"`{key}` is text that is not JSON"
    if key == "messages":
        return {"messages": column} if isinstance(column, list) and column else None
    if isinstance(column, dict) and isinstance(column.get("body"), dict):
        column = column["body"]
    has_history = isinstance(column, dict) and ("messages" in column or "input" in column)
    return column if has_history else None


# ------------------------------------------------------------------------------------------------------- session logs


def _claude_entry(value: Value, data: Mapping[str, Any]) -> Entry | Fault:
    if not isinstance(data.get("sessionId"), str) or not isinstance(data.get("message"), dict):
        return value.fault("is an entry of a Claude Code session without `sessionId` or `message`")
    return Entry(value, "claude-code")


@dataclass(slots=True)
class _Open:
    """A transcript whose entries are being read."""

    id: str
    dialect: Dialect
    items: list[Any] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    message_id: str | None = None
    message_at: int = 0

    def add(self, item: Any, line: int) -> None:
        """Append an item."""
        self.items.append(item)
        self.lines.append(line)

    def record(self, source: str) -> Record:
        """The whole of it."""
        request = {_HISTORY[self.dialect]: self.items}
        return Record(source, self.id or source, self.dialect, request, tuple(self.lines))


@dataclass(slots=True)
class Gatherer:
    """The transcripts of one file's session logs, in the order of their first entries."""

    source: str
    _open: dict[tuple[str, ...], _Open] = field(default_factory=dict)
    _sidechains: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, entry: Entry) -> Fault | None:
        """Add an entry; a fault where it cannot be one."""
        data, line = entry.value.data, entry.value.line
        if entry.log == "codex":
            return self._add_codex(entry.value, data, line)
        session = data["sessionId"]
        chain = self._sidechain(session, data) if data.get("isSidechain") is True else ""
        name = f"{session}/{chain}" if chain else session
        _add_claude(self._open.setdefault((session, chain), _Open(name, "messages")), data, line)
        return None

    def records(self) -> Iterator[Record]:
        """The transcripts that have anything in them."""
        return (opened.record(self.source) for opened in self._open.values() if opened.items)

    def _add_codex(self, value: Value, data: Mapping[str, Any], line: int) -> Fault | None:
        payload = data["payload"]
        if not isinstance(payload, dict):
            return value.fault("is an entry of a Codex rollout whose `payload` is no object")
        opened = self._open.setdefault((), _Open("", "responses"))
        if data["type"] == "response_item":
            opened.add(payload, line)
        elif not opened.id:
            # A forked rollout holds the head of its parent behind its own.
            opened.id = _id_of(payload.get("id"))
        return None

    def _sidechain(self, session: str, data: Mapping[str, Any]) -> str:
        """The name of the sidechain: its agent's id, or a number, which is that of its parent entry."""
        agent, own, parent = data.get("agentId"), data.get("uuid"), data.get("parentUuid")
        if isinstance(agent, str) and agent:
            return agent
        chain = self._sidechains.get((session, parent)) if isinstance(parent, str) else None
        if chain is None:
            known = {chain for (of, _), chain in self._sidechains.items() if of == session}
            chain = f"sidechain-{len(known) + 1}"
        if isinstance(own, str):
            self._sidechains[session, own] = chain
        return chain


def _add_claude(opened: _Open, data: Mapping[str, Any], line: int) -> None:
    """Append an entry. The blocks of one answer are entries of their own with the same message id, also where the
    results of the first ones already stand between them."""
    message, role = data["message"], data["type"]
    content, message_id = message.get("content"), message.get("id")
    if role == "user":
        if not _only_results(content):
            opened.message_id = None
        opened.add({"role": role, "content": content}, line)
        return
    if isinstance(message_id, str) and message_id == opened.message_id:
        whole = opened.items[opened.message_at]
        whole["content"] = [*_blocks(whole["content"]), *_blocks(content)]
        return
    opened.message_id = message_id if isinstance(message_id, str) else None
    opened.message_at = len(opened.items)
    opened.add({"role": role, "content": content}, line)


def _only_results(content: Any) -> bool:
    blocks = content if isinstance(content, list) else ()
    return bool(blocks) and all(isinstance(block, dict) and block.get("type") == "tool_result" for block in blocks)


def _blocks(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) else []
