"""The provider that answers a stopped request, so that LiteLLM encodes the end, in every dialect, streamed or not.

The deployment hook sends the request here instead of to the deployment. The words travel as the request's only message:
that works on native endpoints, over both of LiteLLM's bridges and in library mode, and no bridge ever translates the
stopped conversation, in which anything may stand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import litellm
from litellm.llms.custom_llm import CustomLLM
from litellm.types.llms.custom_llm import CustomLLMItem
from litellm.types.utils import Choices, GenericStreamingChunk, Message, ModelResponse, Usage
from litellm.utils import custom_llm_setup

PROVIDER = "toolguard"
STOP_MODEL = f"{PROVIDER}/stop"

_NO_USAGE: Mapping[str, Any] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}

# Where the request would have gone.
_ROUTE_KEYS = frozenset({"custom_llm_provider", "api_base", "api_key", "base_url", "client", "litellm_credential_name"})

# What a bridge would translate, look up or refuse although an answer in fixed words needs none of it.
_REQUEST_KEYS = frozenset(
    {
        "audio",
        "background",
        "container",
        "context_management",
        "conversation",
        "function_call",
        "functions",
        "include",
        "instructions",
        "mcp_servers",
        "mock_response",
        "mock_timeout",
        "mock_tool_calls",
        "modalities",
        "n",
        "output_config",
        "output_format",
        "parallel_tool_calls",
        "prediction",
        "previous_response_id",
        "prompt",
        "prompt_id",
        "prompt_variables",
        "reasoning",
        "reasoning_effort",
        "response_format",
        "speed",
        "system",
        "text",
        "text_format",
        "thinking",
        "tool_choice",
        "tools",
        "vector_store_ids",
        "verbosity",
        "web_search_options",
    }
)
# Prices by time or by request would charge for an answer that nobody generated.
_PRICE_PREFIXES = ("input_cost_per_", "output_cost_per_")


class StopProvider(CustomLLM):
    """Answers with the text of the last message: usage 0, finish reason `stop`."""

    def completion(self, model: str, messages: list[Any], *_: Any, **kwargs: Any) -> ModelResponse:
        response: ModelResponse = kwargs["model_response"]
        response.model = _model_asked_for(kwargs.get("litellm_params") or {}) or model
        response.choices = [Choices(index=0, message=Message(content=_text(messages)), finish_reason="stop")]
        response.usage = Usage(**_NO_USAGE)  # type: ignore[attr-defined]  # LiteLLM sets it the same way
        return response

    async def acompletion(self, model: str, messages: list[Any], *_: Any, **kwargs: Any) -> ModelResponse:
        return self.completion(model, messages, **kwargs)

    def streaming(self, model: str, messages: list[Any], *_: Any, **kwargs: Any) -> Iterator[GenericStreamingChunk]:
        del model, kwargs
        yield GenericStreamingChunk(
            text=_text(messages), tool_use=None, is_finished=False, finish_reason="", usage=None, index=0
        )
        yield GenericStreamingChunk(
            text="", tool_use=None, is_finished=True, finish_reason="stop", usage=_no_usage(), index=0
        )

    # LiteLLM declares a coroutine here and does not await what it gets.
    async def astreaming(  # type: ignore[override]
        self, model: str, messages: list[Any], *_: Any, **kwargs: Any
    ) -> AsyncIterator[GenericStreamingChunk]:
        for chunk in self.streaming(model, messages, **kwargs):
            yield chunk


_stop_provider = StopProvider()


def install_stop_provider() -> None:
    """Make LiteLLM know the provider. Cheap when it does; to be called before every redirect, because LiteLLM's config
    loader replaces the list of providers whenever it reads a config.
    """
    if any(item["custom_handler"] is _stop_provider for item in litellm.custom_provider_map):
        return
    item = CustomLLMItem(provider=PROVIDER, custom_handler=_stop_provider)
    litellm.custom_provider_map = [item, *litellm.custom_provider_map]
    custom_llm_setup()  # type: ignore[no-untyped-call]


def redirect_to_stop(kwargs: dict[str, Any], text: str) -> dict[str, Any]:
    """The arguments of a call to LiteLLM, changed so that the answer is `text` and no provider is called.

    Args:
        kwargs: the arguments as `async_pre_call_deployment_hook` or a wrapper has them, by name; left as they are.
        text: what the assistant says.

    Idempotent: LiteLLM runs the hook a second time on bridged models.
    """
    install_stop_provider()
    kept = {key: value for key, value in kwargs.items() if not _is_dropped(key)}
    words = {"input": text} if "input" in kwargs else {"messages": [{"role": "user", "content": text}]}
    return {
        **kept,
        **words,
        "model": STOP_MODEL,
        "drop_params": True,
        "cache": {"no-cache": True, "no-store": True},
    }


def _is_dropped(key: str) -> bool:
    return key in _ROUTE_KEYS or key in _REQUEST_KEYS or key.startswith(_PRICE_PREFIXES)


def _text(messages: list[Any]) -> str:
    """The text of the last message, which a bridge may have turned into a list of parts."""
    content = messages[-1]["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if isinstance(part.get("text"), str))


def _model_asked_for(litellm_params: Mapping[str, Any]) -> str | None:
    """The model group that the client named, as far as LiteLLM's router noted it."""
    for bucket in ("metadata", "litellm_metadata"):
        group = (litellm_params.get(bucket) or {}).get("model_group")
        if isinstance(group, str) and group:
            return group
    return None


def _no_usage() -> Any:
    """Zero usage, a new object each time because LiteLLM writes into what it is given."""
    return dict(_NO_USAGE)
