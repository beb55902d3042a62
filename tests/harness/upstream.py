"""A scripted provider on loopback that speaks the three native wire formats.

The model's name (its last path part) chooses a behaviour: a function from a `Turn`, which is what a model would see of
the request, to `Calls` or `Words`. A reply is rendered once as the dialect's whole answer; the event stream is derived
from that whole answer, so both forms always say the same.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

FRAGMENT = 8  # characters per streamed fragment of text or arguments
HEALTHY_ROUNDS = 30
FINAL_WORDS = "The work is done."
RECOVERED_WORDS = "Then I use what I have."


@dataclass(frozen=True, slots=True)
class Calls:
    """An answer with tool calls: (name, arguments) each."""

    calls: Sequence[tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in words."""

    text: str = FINAL_WORDS


Plain: TypeAlias = "Calls | Words | Raw"


@dataclass(frozen=True, slots=True)
class Failure:
    """An HTTP error in the dialect's form."""

    status: int
    message: str = "failed as the script says"
    code: str = ""


@dataclass(frozen=True, slots=True)
class Raw:
    """An answer of the dialect's own parts, laid over one in words; in chat over its choice."""

    parts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cut:
    """An answer whose stream breaks off behind so many events, without an end."""

    reply: Plain
    events: int


@dataclass(frozen=True, slots=True)
class Several:
    """A chat answer with several choices."""

    replies: Sequence[Plain]


class Gate:
    """What an answer waits for: each event of its stream, or the whole of one that is not streamed.

    Attributes:
        reached: an answer has come to the gate and was not let through.
        left: the reader has gone away while an answer waited.
    """

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.left = threading.Event()
        self._test, self._upstream = socket.socketpair()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self._test.close()
        self._upstream.close()

    def let_through(self, events: int = 1) -> None:
        """Let so many events through."""
        self._test.sendall(b"." * events)

    def passes(self, reader: socket.socket) -> bool:
        """Wait until the gate lets one event through; False when the reader goes away first."""
        try:
            if not select.select([self._upstream], [], [], 0)[0]:
                self.reached.set()
            ready, _, _ = select.select([self._upstream, reader], [], [])
            if self._upstream in ready:
                return bool(self._upstream.recv(1))
        # The test is over and has closed the gate.
        except (OSError, ValueError):
            return False
        self.left.set()
        return False


@dataclass(frozen=True, slots=True)
class Gated:
    """An answer that comes event by event, as the gate lets it."""

    reply: Plain
    gate: Gate


Reply: TypeAlias = Calls | Words | Raw | Failure | Cut | Several | Gated


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request as it arrived; header names in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool that the request offers."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """What a model sees of a request.

    Args:
        tools: empty where the request forbids calls.
        results: texts of all tool results, oldest first.
        rounds: assistant turns with calls so far.
    """

    tools: tuple[Offered, ...]
    results: tuple[str, ...]
    rounds: int


# Behaviours

_FIXED = {"path": "notes.txt", "command": "make test", "query": "opening hours", "pattern": "TODO"}


def _arguments(tool: Offered, value: Callable[[str], str]) -> dict[str, Any]:
    """Arguments for the tool's required properties; `value` gives the text of a string property."""
    properties = tool.schema.get("properties", {})
    names = tool.schema.get("required") or list(properties)
    return {name: _value(properties.get(name, {}).get("type", "string"), name, value) for name in names}


def _value(kind: str, name: str, value: Callable[[str], str]) -> Any:
    others: dict[str, Any] = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
    return others[kind] if kind in others else value(name)


def _fixed(name: str) -> str:
    return _FIXED.get(name, f"fixed {name}")


def _one_call(turn: Turn, value: Callable[[str], str]) -> Plain:
    if not turn.tools:
        return Words()
    tool = turn.tools[0]
    return Calls([(tool.name, _arguments(tool, value))])


def _looping(turn: Turn) -> Plain:
    return _one_call(turn, _fixed)


def _learning(turn: Turn) -> Plain:
    lines = itertools.chain.from_iterable(text.splitlines() for text in turn.results)
    return Words() if any(line.startswith("[toolguard]") for line in lines) else _looping(turn)


def _recovering(turn: Turn) -> Plain:
    """Nothing but a call that was not executed makes it think again."""
    blocked = any("was not executed" in text for text in turn.results)
    return Words(RECOVERED_WORDS) if blocked else _looping(turn)


def _denied(turn: Turn) -> Plain:
    number = turn.rounds + 1
    return _one_call(turn, lambda name: f"rm -rf build --try {number}" if name == "command" else f"{name} {number}")


def _failing(turn: Turn) -> Plain:
    number = turn.rounds + 1
    return _one_call(turn, lambda name: f"make step-{number}" if name == "command" else f"missing/{name}-{number}")


def _healthy(turn: Turn) -> Plain:
    return Words() if turn.rounds >= HEALTHY_ROUNDS else _one_call(turn, lambda name: f"{name}-{turn.rounds:02d}")


def _fanout(turn: Turn) -> Plain:
    if not turn.tools:
        return Words()
    first = turn.tools[0]
    if len(turn.tools) > 1:
        return Calls([(tool.name, _arguments(tool, _fixed)) for tool in turn.tools[:2]])
    return Calls([(first.name, _arguments(first, value)) for value in (_fixed, lambda name: f"second {name}")])


def _words(_: Turn) -> Plain:
    return Words()


_BEHAVIOURS: Mapping[str, Callable[[Turn], Plain]] = {
    "looping": _looping,
    "learning": _learning,
    "recovering": _recovering,
    "denied": _denied,
    "failing": _failing,
    "healthy": _healthy,
    "fanout": _fanout,
    "words": _words,
}
BEHAVIOURS = (*_BEHAVIOURS, "script")


# Shared by the dialects


def _text(content: Any) -> str:
    """The text of a content value: a string, or parts with a `text` each."""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or () if isinstance(part, Mapping))


def _calls_forbidden(body: Mapping[str, Any]) -> bool:
    return body.get("tool_choice") in ("none", {"type": "none"})


def _offered(tools: Iterable[Mapping[str, Any]], schema_key: str, body: Mapping[str, Any]) -> tuple[Offered, ...]:
    if _calls_forbidden(body):
        return ()
    return tuple(Offered(tool["name"], tool.get(schema_key) or {}) for tool in tools if "name" in tool)


def _fragments(text: str) -> list[str]:
    return [text[start : start + FRAGMENT] for start in range(0, len(text), FRAGMENT)]


def _sse(data: Mapping[str, Any], event: str = "") -> bytes:
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(data)}\n\n".encode()


class _Ids:
    """Numbered ids, never used twice by one upstream."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def __call__(self, prefix: str) -> str:
        return f"{prefix}_{next(self._numbers)}"


Body: TypeAlias = Mapping[str, Any]


# Chat Completions


def _read_chat(body: Body) -> Turn:
    messages = body["messages"]
    functions = [tool.get("function", {}) for tool in body.get("tools") or ()]
    return Turn(
        tools=_offered(functions, "parameters", body),
        results=tuple(_text(message.get("content")) for message in messages if message["role"] == "tool"),
        rounds=sum(1 for message in messages if message.get("tool_calls")),
    )


def _chat_answer(reply: Plain, body: Body, ids: _Ids) -> dict[str, Any]:
    if isinstance(reply, Raw):
        answer = _chat_answer(Words(), body, ids)
        return {**answer, "choices": [{**answer["choices"][0], **reply.parts}]}
    words = isinstance(reply, Words)
    message = {"role": "assistant", "content": reply.text} if isinstance(reply, Words) else _chat_calls(reply, ids)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop" if words else "tool_calls"}
    return {
        "id": ids("chatcmpl"),
        "object": "chat.completion",
        "created": 1700000000,
        "model": body["model"],
        "choices": [choice],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def _chat_calls(reply: Calls, ids: _Ids) -> dict[str, Any]:
    calls = [
        {"id": ids("call"), "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for name, arguments in reply.calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _chat_events(answer: Mapping[str, Any], body: Body) -> Iterator[bytes]:
    head = {key: answer[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    for index, choice in enumerate(answer["choices"]):
        for delta in _chat_deltas(choice["message"]):
            yield _sse({**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]})
    for index, choice in enumerate(answer["choices"]):
        yield _sse({**head, "choices": [{"index": index, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        yield _sse({**head, "choices": [], "usage": answer["usage"]})
    yield b"data: [DONE]\n\n"


def _chat_deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    calls, legacy = message.get("tool_calls") or [], message.get("function_call")
    yield {"role": "assistant", "content": None if calls or legacy else ""}
    for key in ("content", "refusal"):
        for text in _fragments(message.get(key) or ""):
            yield {key: text}
    if legacy:
        yield {"function_call": {"name": legacy["name"], "arguments": ""}}
        for text in _fragments(legacy["arguments"]):
            yield {"function_call": {"arguments": text}}
    for index, call in enumerate(calls):
        opened = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        yield {"tool_calls": [opened]}
        for text in _fragments(call["function"]["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


# Messages


def _read_messages(body: Body) -> Turn:
    contents = [message["content"] for message in body["messages"]]
    blocks = [[block for block in content if isinstance(block, Mapping)] for content in contents]
    results = [block for block in itertools.chain(*blocks) if block["type"] == "tool_result"]
    return Turn(
        tools=_offered(body.get("tools") or (), "input_schema", body),
        results=tuple(_text(block.get("content")) for block in results),
        rounds=sum(1 for content in blocks if any(block["type"] == "tool_use" for block in content)),
    )


def _message_answer(reply: Plain, body: Body, ids: _Ids) -> dict[str, Any]:
    if isinstance(reply, Raw):
        return {**_message_answer(Words(), body, ids), **reply.parts}
    words = isinstance(reply, Words)
    return {
        "id": ids("msg"),
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [{"type": "text", "text": reply.text}] if isinstance(reply, Words) else _tool_uses(reply, ids),
        "stop_reason": "end_turn" if words else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 7},
    }


def _tool_uses(reply: Calls, ids: _Ids) -> list[dict[str, Any]]:
    return [
        {"type": "tool_use", "id": ids("toolu"), "name": name, "input": dict(arguments)}
        for name, arguments in reply.calls
    ]


def _message_events(answer: Mapping[str, Any], _: Body) -> Iterator[bytes]:
    opened = {**answer, "content": [], "stop_reason": None, "usage": {"input_tokens": 11, "output_tokens": 1}}
    yield _named_sse({"type": "message_start", "message": opened})
    yield _named_sse({"type": "ping"})
    for index, block in enumerate(answer["content"]):
        yield from map(_named_sse, _block_events(index, block))
    ended = {key: answer[key] for key in ("stop_reason", "stop_sequence", "stop_details") if key in answer}
    yield _named_sse({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 7}})
    yield _named_sse({"type": "message_stop"})


def _block_events(index: int, block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    opened, kind, key, text = _opened_block(block)
    yield {"type": "content_block_start", "index": index, "content_block": opened}
    for fragment in _fragments(text):
        yield {"type": "content_block_delta", "index": index, "delta": {"type": kind, key: fragment}}
    yield {"type": "content_block_stop", "index": index}


def _opened_block(block: Mapping[str, Any]) -> tuple[Mapping[str, Any], str, str, str]:
    """A block as it begins, and what follows in fragments: the kind of delta, its key, the whole of it."""
    if block["type"] == "text":
        return {**block, "text": ""}, "text_delta", "text", block["text"]
    if "input" in block:
        return {**block, "input": {}}, "input_json_delta", "partial_json", json.dumps(block["input"])
    return block, "", "", ""


def _named_sse(data: Mapping[str, Any]) -> bytes:
    return _sse(data, event=data["type"])


# Responses


def _read_responses(body: Body) -> Turn:
    items = body["input"] if isinstance(body["input"], list) else []
    kinds = [item.get("type", "message") for item in items]
    results = [item["output"] for item, kind in zip(items, kinds, strict=True) if kind == "function_call_output"]
    return Turn(
        tools=_offered(body.get("tools") or (), "parameters", body),
        results=tuple(map(_text, results)),
        rounds=sum(1 for kind, _ in itertools.groupby(kinds) if kind == "function_call"),
    )


def _response_answer(reply: Plain, body: Body, ids: _Ids) -> dict[str, Any]:
    if isinstance(reply, Raw):
        return {**_response_answer(Words(), body, ids), **reply.parts}
    output = [_response_message(reply, ids)] if isinstance(reply, Words) else _function_calls(reply, ids)
    usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": ids("resp"),
        "object": "response",
        "created_at": 1700000000,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": None,
        "metadata": {},
        "model": body["model"],
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {**usage, **details},
    }


def _response_message(reply: Words, ids: _Ids) -> dict[str, Any]:
    content = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
    return {"id": ids("msg"), "type": "message", "role": "assistant", "status": "completed", "content": content}


def _function_calls(reply: Calls, ids: _Ids) -> list[dict[str, Any]]:
    return [
        {
            "id": ids("fc"),
            "type": "function_call",
            "status": "completed",
            "call_id": ids("call"),
            "name": name,
            "arguments": json.dumps(arguments),
        }
        for name, arguments in reply.calls
    ]


def _response_events(answer: Mapping[str, Any], _: Body) -> Iterator[bytes]:
    for number, event in enumerate(_response_steps(answer)):
        yield _named_sse({**event, "sequence_number": number})


def _response_steps(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    opened = {**answer, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": opened}
    yield {"type": "response.in_progress", "response": opened}
    for index, item in enumerate(answer["output"]):
        yield from _item_steps(index, item)
    yield {"type": f"response.{answer['status']}", "response": answer}


def _item_steps(index: int, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    emptied: dict[str, Any]
    emptied = {"arguments": ""} if item["type"] == "function_call" else {"content": []} if "content" in item else {}
    yield _item_event("response.output_item.added", index, {**item, "status": "in_progress", **emptied})
    place = {"item_id": item["id"], "output_index": index}
    if item["type"] == "function_call":
        yield from _argument_steps(place, item)
    for number, part in enumerate(item.get("content") or ()):
        yield from _part_steps({**place, "content_index": number}, part)
    yield _item_event("response.output_item.done", index, item)


def _item_event(kind: str, index: int, item: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": kind, "output_index": index, "item": item}


def _argument_steps(place: Mapping[str, Any], item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for text in _fragments(item["arguments"]):
        yield {"type": "response.function_call_arguments.delta", **place, "delta": text}
    done = {"name": item["name"], "arguments": item["arguments"]}
    yield {"type": "response.function_call_arguments.done", **place, **done}


def _part_steps(place: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    key, name = ("refusal", "refusal") if part["type"] == "refusal" else ("text", "output_text")
    more: dict[str, Any] = {} if key == "refusal" else {"logprobs": []}
    yield {"type": "response.content_part.added", **place, "part": {**part, key: ""}}
    for text in _fragments(part[key]):
        yield {"type": f"response.{name}.delta", **place, "delta": text, **more}
    yield {"type": f"response.{name}.done", **place, key: part[key], **more}
    yield {"type": "response.content_part.done", **place, "part": part}


@dataclass(frozen=True, slots=True)
class _Wire:
    """One native format: how a request is read, and how an answer is written whole and as events."""

    read: Callable[[Body], Turn]
    answer: Callable[[Plain, Body, _Ids], dict[str, Any]]
    events: Callable[[Mapping[str, Any], Body], Iterator[bytes]]


_WIRES: Mapping[str, _Wire] = {
    "/chat/completions": _Wire(_read_chat, _chat_answer, _chat_events),
    "/messages": _Wire(_read_messages, _message_answer, _message_events),
    "/responses": _Wire(_read_responses, _response_answer, _response_events),
}


# The server


class ScriptedUpstream:
    """The provider as a context manager.

    Attributes:
        chunking: bytes per socket write of a stream; None writes whole events.
        pause: seconds after each write, a slow line. Without it a reader may meet several writes at once, so cuts of
            `chunking` need a millisecond or two to be seen as such.
        script: replies of the model `script`, taken from the left, one per request.
        refuses: a text, and what every request is answered with in which it stands.
    """

    def __init__(self) -> None:
        self.chunking: int | None = None
        self.pause = 0.0
        self.refuses: tuple[str, Reply] | None = None
        self.ids = _Ids()
        self._lock = threading.Lock()
        self._script: deque[Reply] = deque()
        self._requests: list[RecordedRequest] = []
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> ScriptedUpstream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def requests(self) -> list[RecordedRequest]:
        """A copy of the requests so far, in the order of arrival."""
        with self._lock:
            return list(self._requests)

    @property
    def script(self) -> list[Reply]:
        with self._lock:
            return list(self._script)

    @script.setter
    def script(self, replies: Iterable[Reply]) -> None:
        with self._lock:
            self._script = deque(replies)

    def clear(self) -> None:
        """Forget the recorded requests."""
        with self._lock:
            self._requests.clear()

    def record(self, request: RecordedRequest) -> None:
        with self._lock:
            self._requests.append(request)

    def reply(self, model: str, turn: Turn) -> Reply | None:
        """The reply of a model; None for an unknown one and for a script that has come to its end."""
        if model == "script":
            with self._lock:
                return self._script.popleft() if self._script else None
        behaviour = _BEHAVIOURS.get(model)
        return None if behaviour is None else behaviour(turn)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, upstream: ScriptedUpstream) -> None:
        self.upstream = upstream
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.upstream.record(RecordedRequest(self.path, headers, body))
        wire = _WIRES.get(self.path.partition("?")[0].removeprefix("/v1"))
        if wire is None:
            self._send_error(404, f"no such path: {self.path}")
            return
        self._serve(wire, json.loads(body))

    def _serve(self, wire: _Wire, body: Body) -> None:
        upstream = self.server.upstream
        refused = upstream.refuses
        if refused is not None and refused[0] in json.dumps(body):
            reply: Reply | None = refused[1]
        else:
            reply = upstream.reply(body["model"].rpartition("/")[2], wire.read(body))
        if reply is None:
            self._send_error(404, f"nothing to say as model {body['model']}")
        elif isinstance(reply, Failure):
            self._send_error(reply.status, reply.message, reply.code)
        else:
            self._answer(wire, reply, body)

    def _answer(self, wire: _Wire, reply: Plain | Cut | Several | Gated, body: Body) -> None:
        gate = reply.gate if isinstance(reply, Gated) else None
        answer = _answer_of(wire, reply, body, self.server.upstream.ids)
        if body.get("stream"):
            events = wire.events(answer, body)
            self._send_stream(events if gate is None else self._gated(events, gate), _events_of(reply))
        elif gate is None or gate.passes(self.connection):
            self._send_json(200, answer)
        else:
            self.close_connection = True

    def _gated(self, events: Iterator[bytes], gate: Gate) -> Iterator[bytes]:
        for event in events:
            if not gate.passes(self.connection):
                raise ConnectionAbortedError
            yield event

    def _send_error(self, status: int, message: str, code: str = "") -> None:
        kinds = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(status, "api_error")
        error = {"type": kind, "message": message, "param": None, "code": code or kind}
        self._send_json(status, {"type": "error", "error": error})

    def _send_json(self, status: int, value: Mapping[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_stream(self, events: Iterator[bytes], limit: int | None) -> None:
        """Send a stream; one with a limit breaks off behind so many events."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for piece in _pieces(itertools.islice(events, limit), self.server.upstream.chunking):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                time.sleep(self.server.upstream.pause)
            if limit is None:
                self.wfile.write(b"0\r\n\r\n")
            self.close_connection = limit is not None
        except ConnectionError:  # the reader has gone away, as readers of a stopped stream do
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _events_of(reply: Reply) -> int | None:
    return reply.events if isinstance(reply, Cut) else None


def _answer_of(wire: _Wire, reply: Plain | Cut | Several | Gated, body: Body, ids: _Ids) -> dict[str, Any]:
    """The whole answer of a reply."""
    if isinstance(reply, Several):
        answers = [wire.answer(each, body, ids) for each in reply.replies]
        choices = [{**each["choices"][0], "index": index} for index, each in enumerate(answers)]
        return {**answers[0], "choices": choices}
    return wire.answer(reply.reply if isinstance(reply, (Cut, Gated)) else reply, body, ids)


def _pieces(events: Iterator[bytes], size: int | None) -> Iterator[bytes]:
    """The events as socket writes: whole, or the joined stream cut into `size` bytes."""
    if size is None:
        yield from events
        return
    whole = b"".join(events)
    yield from (whole[start : start + size] for start in range(0, len(whole), size))
