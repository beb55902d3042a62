"""Agent loops as a developer writes them, with the official clients: Chat Completions, Messages and Responses.

One loop serves all three: ask the model, run every call of the answer, append the results, ask again. What differs
between the dialects is a table of small functions (`_DIALECTS`). Streamed answers go through the clients' own helpers
(`.stream(...)` and the accumulated object), so a run proves that the helpers accept what the gateway sends.

The clients are imported when a run starts; neither they nor LiteLLM are needed to import this module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

AgentDialect: TypeAlias = Literal["chat", "messages", "responses"]
Execute: TypeAlias = "Callable[[str, dict[str, Any]], ToolOutput]"


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the agent offers it; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool gave back. Only the messages dialect can carry `is_error` on the wire."""

    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an agent, from the prompt to its end.

    Args:
        ended: `words` for a plain final answer, `error` for an error of the client, `cap` for the request cap.
        requests: model requests sent.
        executions: (tool, JSON arguments) really executed, in order.
        text: the final words, or the error message; empty at the cap.
        toolguard: the guard's machine-readable end as it stands on the client's parsed object.
        headers: response headers of the last request, names in lower case.
        finish: finish_reason, stop_reason or status of the last answer; empty where there was none.
        error_body: parsed body of an HTTP error, else None.
        history: the messages or input items as they stand at the end; a caller may continue from them.
        status: HTTP status of an error, else None.
    """

    ended: Literal["words", "error", "cap"]
    requests: int
    executions: tuple[tuple[str, str], ...]
    text: str
    toolguard: Mapping[str, Any] | None
    headers: Mapping[str, str]
    finish: str
    error_body: Any
    history: tuple[Any, ...]
    status: int | None = None


def run_agent(
    *,
    dialect: AgentDialect,
    stream: bool,
    base_url: str,
    api_key: str,
    model: str,
    tools: Sequence[ToolSpec],
    execute: Execute,
    prompt: str,
    history: Sequence[Any] = (),
    max_requests: int = 12,
    on_request: Callable[[int], None] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Run:
    """Run an agent to its end: words, an error, or `max_requests` requests.

    Args:
        base_url: the gateway's address, without `/v1`.
        execute: runs one tool call.
        history: messages or input items of an earlier run of the same dialect.
        on_request: told the number of each request, from 1, before it is sent.
        extra: more keyword arguments of the client's request method.
    """
    shape = _DIALECTS[dialect]
    options = {**shape.options(model, tools), **(extra or {})}
    conversation = [*history, {"role": "user", "content": prompt}]
    with shape.connect(base_url, api_key) as client:
        ask = _Asker(shape, client, stream, options)
        return _loop(ask, conversation, execute, max_requests, on_request or _ignore)


def find_toolguard(value: Any) -> Mapping[str, Any] | None:
    """The guard's machine-readable end on a parsed object of a client: an extra field named `toolguard`."""
    found = getattr(value, "toolguard", None)
    return found if isinstance(found, Mapping) else None


@dataclass(frozen=True, slots=True)
class _Call:
    """One tool call of an answer, in no dialect's shape."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the loop needs from a final object; `items` go into the history exactly as they came."""

    calls: tuple[_Call, ...]
    text: str
    finish: str
    items: list[Any]


@dataclass(frozen=True, slots=True)
class _Received:
    """The client's final object and what stood around it."""

    final: Any
    headers: Mapping[str, str]
    toolguard: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class _Failed:
    """An error of the client instead of an answer."""

    text: str
    status: int | None
    body: Any
    headers: Mapping[str, str]


_Executed: TypeAlias = tuple[_Call, ToolOutput]


@dataclass(frozen=True, slots=True)
class _Dialect:
    """What differs between the dialects.

    Args:
        connect: opens a client on (base_url, api_key).
        error: the base of the client's exceptions.
        endpoint: the resource that offers `create` and `stream`.
        accumulated: the stream helper's method that gives the final object.
        history_key: the request's key for the conversation.
        options: the request's other arguments for (model, tools).
        read: takes a final object apart.
        results: history items that answer executed calls.
    """

    connect: Callable[[str, str], Any]
    error: Callable[[], type[Exception]]
    endpoint: Callable[[Any], Any]
    accumulated: str
    history_key: str
    options: Callable[[str, Sequence[ToolSpec]], dict[str, Any]]
    read: Callable[[Any], _Answer]
    results: Callable[[Sequence[_Executed]], list[Any]]


@dataclass(frozen=True, slots=True)
class _Asker:
    """Sends one conversation and takes the answer, streamed or whole."""

    shape: _Dialect
    client: Any
    stream: bool
    options: Mapping[str, Any]

    def __call__(self, conversation: Sequence[Any]) -> _Received | _Failed:
        request = {**self.options, self.shape.history_key: list(conversation)}
        endpoint = self.shape.endpoint(self.client)
        try:
            return self._streamed(endpoint, request) if self.stream else _whole(endpoint, request)
        except self.shape.error() as error:
            return _failed(error)

    def _streamed(self, endpoint: Any, request: Mapping[str, Any]) -> _Received:
        with endpoint.stream(**request) as events:
            seen = [carrier for event in events for carrier in _carriers(event)]
            final = getattr(events, self.shape.accumulated)()
            return _Received(final, _lower(_response_of(events).headers), _first_toolguard([final, *seen]))


def _whole(endpoint: Any, request: Mapping[str, Any]) -> _Received:
    raw = endpoint.with_raw_response.create(**request)
    final = raw.parse()
    return _Received(final, _lower(raw.headers), find_toolguard(final))


def _loop(
    ask: _Asker, conversation: list[Any], execute: Execute, max_requests: int, on_request: Callable[[int], None]
) -> Run:
    executed: list[_Executed] = []
    finish, number = "", 0
    while True:
        number += 1
        on_request(number)
        received = ask(conversation)
        if isinstance(received, _Failed):
            return _run_of_error(received, number, executed, finish, conversation)
        answer = ask.shape.read(received.final)
        finish = answer.finish
        conversation += answer.items
        if not answer.calls:
            return _run("words", answer.text, number, executed, received, finish, conversation)
        outputs = [(call, execute(call.name, call.arguments)) for call in answer.calls]
        executed += outputs
        conversation += ask.shape.results(outputs)
        if number >= max_requests:
            return _run("cap", "", number, executed, received, finish, conversation)


def _run(
    ended: Literal["words", "cap"],
    text: str,
    requests: int,
    executed: Sequence[_Executed],
    received: _Received,
    finish: str,
    conversation: Sequence[Any],
) -> Run:
    return Run(
        ended=ended,
        requests=requests,
        executions=_executions(executed),
        text=text,
        toolguard=received.toolguard,
        headers=received.headers,
        finish=finish,
        error_body=None,
        history=tuple(conversation),
    )


def _run_of_error(
    failed: _Failed, requests: int, executed: Sequence[_Executed], finish: str, conversation: Sequence[Any]
) -> Run:
    return Run(
        ended="error",
        requests=requests,
        executions=_executions(executed),
        text=failed.text,
        toolguard=None,
        headers=failed.headers,
        finish=finish,
        error_body=failed.body,
        history=tuple(conversation),
        status=failed.status,
    )


def _executions(executed: Sequence[_Executed]) -> tuple[tuple[str, str], ...]:
    return tuple((call.name, json.dumps(call.arguments)) for call, _ in executed)


def _ignore(_: int) -> None:
    """Nobody wants to know the number of the request."""


# What the clients have in common


def _failed(error: Exception) -> _Failed:
    response = getattr(error, "response", None)
    headers = {} if response is None else _lower(response.headers)
    return _Failed(str(error), getattr(error, "status_code", None), _error_body(error, response), headers)


def _error_body(error: Exception, response: Any) -> Any:
    """The whole body of an HTTP error; what the client kept of it where the stream had begun already."""
    if response is None or response.status_code < 400:
        return getattr(error, "body", None)
    try:
        return response.json()
    except ValueError:
        return response.text


def _response_of(events: Any) -> Any:
    """The HTTP response under a stream helper: public in one client, private in the other."""
    return getattr(events, "response", None) or events._response


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _carriers(event: Any) -> Iterator[Any]:
    """The parsed objects of a stream event that may carry `toolguard`."""
    yield event
    for name in ("chunk", "message", "response"):
        inner = getattr(event, name, None)
        if inner is not None:
            yield inner


def _first_toolguard(values: Sequence[Any]) -> Mapping[str, Any] | None:
    return next((found for found in map(find_toolguard, values) if found is not None), None)


def _as_received(value: Any) -> dict[str, Any]:
    """A parsed object as a dictionary for the next request."""
    dumped: dict[str, Any] = value.to_dict(exclude_none=True, warnings=False)
    return dumped


def _parsed(arguments: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(arguments or "{}")
    return parsed


def _openai_client(base_url: str, api_key: str) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{base_url}/v1", api_key=api_key, max_retries=0)


def _openai_error() -> type[Exception]:
    import openai

    return openai.OpenAIError


def _anthropic_client(base_url: str, api_key: str) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=base_url, api_key=api_key, max_retries=0)


def _anthropic_error() -> type[Exception]:
    import anthropic

    return anthropic.AnthropicError


# Chat Completions


def _chat_options(model: str, tools: Sequence[ToolSpec]) -> dict[str, Any]:
    return {"model": model, "tools": [{"type": "function", "function": _function(tool)} for tool in tools]}


def _function(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _read_chat(final: Any) -> _Answer:
    choice = final.choices[0]
    message = choice.message
    calls = tuple(
        _Call(call.id, call.function.name, _parsed(call.function.arguments)) for call in message.tool_calls or ()
    )
    return _Answer(calls, message.content or "", choice.finish_reason, [_as_received(message)])


def _chat_results(executed: Sequence[_Executed]) -> list[Any]:
    return [{"role": "tool", "tool_call_id": call.id, "content": output.text} for call, output in executed]


# Messages


def _messages_options(model: str, tools: Sequence[ToolSpec]) -> dict[str, Any]:
    offered = [{"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in tools]
    return {"model": model, "max_tokens": 1024, "tools": offered}


def _read_message(final: Any) -> _Answer:
    calls = tuple(_Call(block.id, block.name, block.input) for block in final.content if block.type == "tool_use")
    text = "".join(block.text for block in final.content if block.type == "text")
    content = [_as_received(block) for block in final.content]
    return _Answer(calls, text, final.stop_reason or "", [{"role": "assistant", "content": content}])


def _message_results(executed: Sequence[_Executed]) -> list[Any]:
    return [{"role": "user", "content": [_tool_result(call, output) for call, output in executed]}]


def _tool_result(call: _Call, output: ToolOutput) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call.id, "content": output.text}
    return {**block, "is_error": True} if output.is_error else block


# Responses


def _responses_options(model: str, tools: Sequence[ToolSpec]) -> dict[str, Any]:
    return {"model": model, "tools": [{"type": "function", **_function(tool), "strict": False} for tool in tools]}


def _read_response(final: Any) -> _Answer:
    calls = tuple(
        _Call(item.call_id, item.name, _parsed(item.arguments)) for item in final.output if item.type == "function_call"
    )
    return _Answer(calls, final.output_text, final.status or "", [_as_received(item) for item in final.output])


def _response_results(executed: Sequence[_Executed]) -> list[Any]:
    return [{"type": "function_call_output", "call_id": call.id, "output": output.text} for call, output in executed]


_DIALECTS: Mapping[AgentDialect, _Dialect] = {
    "chat": _Dialect(
        connect=_openai_client,
        error=_openai_error,
        endpoint=lambda client: client.chat.completions,
        accumulated="get_final_completion",
        history_key="messages",
        options=_chat_options,
        read=_read_chat,
        results=_chat_results,
    ),
    "messages": _Dialect(
        connect=_anthropic_client,
        error=_anthropic_error,
        endpoint=lambda client: client.messages,
        accumulated="get_final_message",
        history_key="messages",
        options=_messages_options,
        read=_read_message,
        results=_message_results,
    ),
    "responses": _Dialect(
        connect=_openai_client,
        error=_openai_error,
        endpoint=lambda client: client.responses,
        accumulated="get_final_response",
        history_key="input",
        options=_responses_options,
        read=_read_response,
        results=_response_results,
    ),
}
