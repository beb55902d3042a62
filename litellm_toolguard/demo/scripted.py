"""The scripted models as a LiteLLM provider, so that a proxy without any real model can be tried and tested.

    litellm_settings:
      custom_provider_map:
        - {provider: scripted, custom_handler: litellm_toolguard.scripted_models}
    model_list:
      - model_name: looping-agent
        litellm_params: {model: scripted/looping-agent, drop_params: true}

`drop_params` belongs to every entry: without it LiteLLM refuses requests with `reasoning_effort` or `verbosity`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from litellm.llms.custom_llm import CustomLLM, CustomLLMError
from litellm.types.utils import Choices, GenericStreamingChunk, Message, ModelResponse, Usage

from litellm_toolguard.demo.scripts import Calls, Step, next_step

Decide: TypeAlias = Callable[[str, Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], Step]
Words: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    """One answer, ready to be encoded.

    Args:
        words: the text in the pieces that a stream sends; empty for calls.
        tool_calls: OpenAI tool calls, each with an id of its own.
        prompt_tokens: an estimate, the same streamed or not.
        completion_tokens: the same.
    """

    words: Words
    tool_calls: tuple[dict[str, Any], ...]
    prompt_tokens: int
    completion_tokens: int

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self.tool_calls else "stop"


class ScriptedModels(CustomLLM):
    """Answers every request with what `decide` says the model does next.

    All four entry points take the same path.

    Raises:
        CustomLLMError: `decide` does not know the model; status 400.
    """

    def __init__(self, decide: Decide = next_step) -> None:
        super().__init__()
        self._decide = decide

    def completion(self, model: str, messages: list[Any], *_: Any, **kwargs: Any) -> ModelResponse:
        return _whole(self._answer(model, messages, kwargs), model, kwargs["model_response"])

    async def acompletion(self, model: str, messages: list[Any], *_: Any, **kwargs: Any) -> ModelResponse:
        return self.completion(model, messages, **kwargs)

    def streaming(self, model: str, messages: list[Any], *_: Any, **kwargs: Any) -> Iterator[GenericStreamingChunk]:
        return _chunks(self._answer(model, messages, kwargs))

    # LiteLLM declares a coroutine here and does not await what it gets. No generator: it would decide, and fail, only
    # when the stream has begun.
    def astreaming(  # type: ignore[override]
        self, model: str, messages: list[Any], *_: Any, **kwargs: Any
    ) -> AsyncIterator[GenericStreamingChunk]:
        return _in_turn(self.streaming(model, messages, **kwargs))

    def _answer(self, model: str, messages: list[Any], kwargs: Mapping[str, Any]) -> _Answer:
        plain = [_plain(message) for message in messages]
        tools = kwargs["optional_params"].get("tools") or []
        try:
            step = self._decide(model, plain, tools)
        except ValueError as error:
            raise CustomLLMError(status_code=400, message=str(error)) from error  # type: ignore[no-untyped-call]
        return _answer(step, prompt=plain)


scripted_models = ScriptedModels()


def _answer(step: Step, prompt: Sequence[Mapping[str, Any]]) -> _Answer:
    words = () if isinstance(step, Calls) else _pieces(step.text)
    tool_calls = tuple(_tool_call(name, arguments) for name, arguments in step.calls) if isinstance(step, Calls) else ()
    said = "".join(words) or "".join(str(call["function"]) for call in tool_calls)
    return _Answer(words, tool_calls, prompt_tokens=_tokens(str(prompt)), completion_tokens=_tokens(said))


def _whole(answer: _Answer, model: str, model_response: ModelResponse) -> ModelResponse:
    """The answer in LiteLLM's own response object, which carries what LiteLLM noted about the request."""
    message = Message(
        role="assistant", content="".join(answer.words) or None, tool_calls=list(answer.tool_calls) or None
    )
    model_response.model = model
    model_response.choices = [Choices(index=0, message=message, finish_reason=answer.finish_reason)]
    model_response.usage = Usage(**_usage(answer))  # type: ignore[attr-defined]  # LiteLLM sets it the same way
    return model_response


def _chunks(answer: _Answer) -> Iterator[GenericStreamingChunk]:
    """The answer as LiteLLM's generic chunks: unlike its own stream objects they get one id and keep our usage."""
    for piece in answer.words:
        yield _chunk(text=piece)
    for index, tool_call in enumerate(answer.tool_calls):
        yield _chunk(tool_use={**tool_call, "index": index})
    yield _chunk(finish_reason=answer.finish_reason, usage=_usage(answer))


async def _in_turn(chunks: Iterator[GenericStreamingChunk]) -> AsyncIterator[GenericStreamingChunk]:
    for chunk in chunks:
        yield chunk


def _chunk(text: str = "", tool_use: Any = None, finish_reason: str = "", usage: Any = None) -> GenericStreamingChunk:
    return GenericStreamingChunk(
        text=text,
        tool_use=tool_use,
        is_finished=bool(finish_reason),
        finish_reason=finish_reason,
        usage=usage,
        index=0,
    )


def _tool_call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def _usage(answer: _Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


def _pieces(text: str) -> Words:
    """The text word by word, each with the space before it."""
    first, *rest = text.split(" ")
    return (first, *(f" {word}" for word in rest))


def _tokens(text: str) -> int:
    """A rough count of four characters to a token; a demo needs no tokenizer."""
    return max(1, len(text) // 4)


def _plain(message: Any) -> Mapping[str, Any]:
    """A message as a mapping: in library mode callers hand back LiteLLM's own message objects."""
    return message if isinstance(message, Mapping) else dict(message)
