"""What a proxy does with the answer to an armed request: holds it, asks once more, ends the run.

The decisions are `session.py`'s; here stands how LiteLLM is asked and what its answers look like.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import litellm
from litellm.proxy._types import UserAPIKeyAuth
from litellm.types.utils import Delta, ModelResponseStream, StreamingChoices
from pydantic import BaseModel

from litellm_toolguard.dialects import HISTORY_KEYS
from litellm_toolguard.proxy_refusals import facts_of
from litellm_toolguard.refusals import in_error
from litellm_toolguard.session import (
    End,
    Failed,
    Kept,
    Proposal,
    Release,
    Remember,
    Reply,
    Seen,
    Send,
    Watch,
    Withhold,
    session,
)
from litellm_toolguard.stop_provider import redirect_to_stop
from litellm_toolguard.stream import CallEvents, SseFrames, SseReader, assembler, ends_call, without_calls
from litellm_toolguard.transcript import Dialect
from litellm_toolguard.withholding import with_newest_withheld

_BUCKETS: Final[Mapping[Dialect, str]] = {
    "chat": "metadata",
    "messages": "litellm_metadata",
    "responses": "litellm_metadata",
}
# What belongs to the first attempt alone. LiteLLM gives the second a row and an id of its own.
_FIRST_ONLY: Final = frozenset({"litellm_logging_obj", "litellm_call_id", "proxy_server_request", "secret_fields"})
_ROUTER_CALLS: Final[Mapping[Dialect, str]] = {
    "chat": "acompletion",
    "messages": "aanthropic_messages",
    "responses": "aresponses",
}
_REPORTS: Final = "standard_logging_guardrail_information"
_GROUP: Final = "toolguard_model_group"
_END_TOKENS: Final = 1024
_TOKENS: Final = (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))


def _ping() -> bytes:
    return b'event: ping\ndata: {"type": "ping"}\n\n'


def _empty_delta() -> ModelResponseStream:
    return ModelResponseStream(choices=[StreamingChoices(index=0, delta=Delta(content=""))])


SIGNS_OF_LIFE: Final[Mapping[Dialect, Callable[[], Any]]] = {"messages": _ping, "chat": _empty_delta}
"""Makes the chunk that says nothing, where the dialect has one."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The request as it left the guard, as far as a further sample is built from it.

    Args:
        dialect: its dialect.
        keys: its top-level keys; what LiteLLM adds later is not sent twice.
        metadata: a copy of LiteLLM's bucket, from which the key and the team are charged.
    """

    dialect: Dialect
    keys: tuple[str, ...]
    metadata: Mapping[str, Any]


def origin_of(dialect: Dialect, data: Mapping[str, Any]) -> Origin:
    """Note what a further sample needs, at the end of the pre-call hook."""
    return Origin(dialect, tuple(data), _unreported(data.get(_BUCKETS[dialect]) or {}))


def _unreported(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without what guardrails reported: that stands in the row of the client's own request, and once."""
    return {name: value for name, value in metadata.items() if name != _REPORTS}


def restore_group(kwargs: Mapping[str, Any]) -> None:
    """Put the model's public name into the metadata of a further sample. LiteLLM writes the deployment's id there,
    because it is by its id that the deployment was asked for."""
    for bucket in set(_BUCKETS.values()):
        metadata = kwargs.get(bucket)
        if isinstance(metadata, dict) and _GROUP in metadata:
            metadata["model_group"] = metadata[_GROUP]


@dataclass(slots=True)
class Received:
    """One answer as it came.

    Args:
        answer: the whole of it in the dialect's plain form; None where it is not whole.
        response: the answer that was not streamed.
        chunks: the chunks of one that was.
        broken: what ended its stream before its time.
    """

    answer: Mapping[str, Any] | None = None
    response: Any = None
    chunks: list[Any] = field(default_factory=list)
    broken: Exception | None = None

    @property
    def reply(self) -> Reply:
        """What the session is sent."""
        if self.answer is not None:
            return Proposal(self.answer)
        refusal = None if self.broken is None else in_error(facts_of(self.broken))
        return Failed("broken") if refusal is None else Seen((), can_be_held=False, refusal=refusal)


def plain(response: Any) -> Mapping[str, Any] | None:
    """An answer or event of LiteLLM's as plain values; None for what is none."""
    if isinstance(response, dict):
        return response
    dump = getattr(response, "model_dump", None)
    dumped = dump(mode="json", exclude_none=True) if callable(dump) else None
    return dumped if isinstance(dumped, dict) else None


def whole(response: Any) -> Received:
    """An answer that was not streamed."""
    return Received(plain(response), response)


class Collector:
    """Puts the answer of a stream together from its chunks, whatever their form.

    Args:
        dialect: its dialect.
        show: is given each event.
    """

    def __init__(self, dialect: Dialect, show: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self._reader = SseReader()
        self._made = assembler(dialect)
        self._show = show

    def add(self, chunk: Any) -> None:
        """Take one chunk."""
        self._feed(self._reader.feed(chunk) if isinstance(chunk, bytes) else [plain(chunk)])

    def answer(self) -> Mapping[str, Any] | None:
        """The answer when the stream has ended; None where it is not whole."""
        self._feed(self._reader.finish())
        return self._made.answer()

    def _feed(self, events: Iterable[Mapping[str, Any] | None]) -> None:
        for event in events:
            if event is None:
                continue
            self._made.feed(event)
            if self._show is not None:
                self._show(event)


class Flow:
    """A stream that answers a tool's result and is not held whole: text flows, and no call is complete before the end.

    Args:
        dialect: its dialect.
        from_first: whether everything is held from the first call on; else only from the newest event of one on.
    """

    def __init__(self, dialect: Dialect, *, from_first: bool) -> None:
        self._from_first = from_first
        self._calls = CallEvents(dialect)
        self._events: list[Mapping[str, Any]] = []
        self._collector = Collector(dialect, self._events.append)
        self._frames = SseFrames()
        self._held: list[tuple[Any, bool]] = []

    def add(self, chunk: Any) -> list[Any]:
        """Take one chunk; gives those that may be sent now."""
        if not isinstance(chunk, bytes):
            return self._add(chunk)
        return [ready for frame in self._frames.feed(chunk) for ready in self._add(frame)]

    def _add(self, chunk: Any) -> list[Any]:
        self._events.clear()
        self._collector.add(chunk)
        calls = [event for event in self._events if self._calls.holds_call(event)]
        held = self._held
        if not all(map(ends_call, calls)) and not (held and self._from_first):
            self._held = [(chunk, True)]
            return [each for each, _ in held]
        if not held:
            return [chunk]
        held.append((chunk, bool(calls)))
        return []

    def answer(self) -> Mapping[str, Any] | None:
        """The answer when the stream has ended; None where it is not whole."""
        self._held += [(frame, False) for frame in self._frames.finish()]
        return self._collector.answer()

    def rest(self, *, refused: bool) -> Iterator[Any]:
        """What is still held; of a refusal without its calls."""
        for chunk, is_call in self._held:
            if not (refused and is_call):
                yield _uncalled(chunk) if refused else chunk


def _uncalled(chunk: Any) -> Any:
    event = None if isinstance(chunk, bytes) else plain(chunk)
    less = event if event is None else without_calls(event)
    return chunk if less is event or not isinstance(chunk, BaseModel) else type(chunk).model_validate(less)


async def receive(stream: AsyncIterator[Any], dialect: Dialect) -> Received:
    """Hold a stream until it ends. Closed whatever happens, so that a client that leaves ends the provider's work."""
    into, collector = Received(), Collector(dialect)
    try:
        async for chunk in stream:
            into.chunks.append(chunk)
            collector.add(chunk)
    # A stream that breaks is passed on as it is: what came, and then the error.
    except Exception as error:  # noqa: BLE001
        into.broken = error
        return into
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            with contextlib.suppress(Exception):
                await close()
    into.answer = collector.answer()
    return into


@dataclass(frozen=True, slots=True)
class Client:
    """What belongs to one client request behind the guard.

    Args:
        origin: the request as it left the guard.
        data: LiteLLM's data of it, as the post hooks have it.
        key: the caller.
        stream: whether the client wants a stream.
        started: when it came, in seconds of the wall clock.
        withheld: whether its newest results were withheld before its first answer came.
    """

    origin: Origin
    data: Mapping[str, Any]
    key: UserAPIKeyAuth
    stream: bool
    started: float
    withheld: bool = False

    @property
    def dialect(self) -> Dialect:
        """Its dialect."""
        return self.origin.dialect

    async def ask(self, send: Send, spent: float) -> Received:
        """One more sample of the same deployment, with held answers behind the history.

        Args:
            send: what is sent.
            spent: what this request cost so far, in dollars; the key's own count does not hold it yet.
        """
        router = llm_router()
        limit, taken = self._time_limit(), time.time() - self.started
        # It could not take as long as the first did.
        too_late = limit is not None and limit - taken <= taken
        history = self._history(send)
        if router is None or history is None or too_late or _is_over_budget(self.key, spent):
            return Received()
        kwargs = self._further_request(history) | ({} if limit is None else {"timeout": limit - taken})
        try:
            response = await getattr(router, _ROUTER_CALLS[self.dialect])(**kwargs)
        # Whatever the provider or LiteLLM says: there is no further answer, and the run ends in words.
        except Exception:  # noqa: BLE001
            return Received()
        return await receive(response, self.dialect) if self.stream else whole(response)

    def cost(self, received: Received) -> float:
        """What an answer cost by the prices of its deployment, in dollars; 0 where they or its tokens are not known."""
        usage = (received.answer or {}).get("usage")
        if not isinstance(usage, Mapping):
            return 0.0
        asked, made = (
            next((count for name in names if isinstance(count := usage.get(name), int)), 0) for names in _TOKENS
        )
        deployment = llm_router().get_deployment(model_id=self._deployment()) if llm_router() is not None else None
        if deployment is None:
            return 0.0
        # Prices of its own stand under the deployment's id, all others under the model's name.
        costs = (_cost(own_id, deployment.litellm_params, asked, made) for own_id in (self._deployment(), None))
        return next((cost for cost in costs if cost), 0.0)

    async def last_words(self, words: str) -> Any:
        """The end in words, from the provider of our own: a response, or a stream of one."""
        bucket = _BUCKETS[self.dialect]
        kwargs: dict[str, Any] = {"stream": self.stream, bucket: _unreported(self.data.get(bucket) or {})}
        if self.dialect == "messages":
            kwargs["max_tokens"] = _END_TOKENS
        ends: Mapping[Dialect, Callable[..., Awaitable[Any]]] = {
            "chat": litellm.acompletion,
            "messages": litellm.anthropic_messages,
            "responses": litellm.aresponses,
        }
        wanted = {**kwargs, HISTORY_KEYS[self.dialect]: []}
        return await ends[self.dialect](**redirect_to_stop(wanted, words))

    def _history(self, send: Send) -> list[Any] | None:
        """The items of a further request; None where the results that are withheld cannot be replaced any more."""
        request: Mapping[str, Any] | None = self.data
        if self.withheld or send.withheld:
            request = with_newest_withheld(self.dialect, self.data)
        if request is None:
            return None
        history = request[HISTORY_KEYS[self.dialect]]
        items = [{"role": "user", "content": history}] if isinstance(history, str) else list(history)
        return items + [item for answer in send.held for item in (*answer.items, *answer.results)]

    def _further_request(self, history: list[Any]) -> dict[str, Any]:
        key, bucket = HISTORY_KEYS[self.dialect], _BUCKETS[self.dialect]
        kept = {name: self.data[name] for name in self.origin.keys if name in self.data and name not in _FIRST_ONLY}
        group = (self.data.get(bucket) or {}).get("model_group")
        return {
            **kept,
            key: history,
            bucket: {**self.origin.metadata, **({_GROUP: group} if group else {})},
            "model": self._deployment() or self.data["model"],
            "stream": self.stream,
        }

    def _deployment(self) -> str | None:
        """The deployment that answered: its prompt cache and its encrypted reasoning are good nowhere else."""
        info = (self.data.get(_BUCKETS[self.dialect]) or {}).get("model_info") or {}
        found = info.get("id") if isinstance(info, Mapping) else None
        return found if isinstance(found, str) else None

    def _time_limit(self) -> float | None:
        """Seconds that the client or the router gives the request; None where nobody does."""
        given = self.data.get("timeout") or self.data.get("request_timeout") or getattr(llm_router(), "timeout", None)
        return float(given) if isinstance(given, (int, float)) else None


def llm_router() -> Any:
    """LiteLLM's router; None where the proxy has none."""
    from litellm.proxy import proxy_server

    return proxy_server.llm_router


def _cost(deployment: str | None, params: Any, asked: int, made: int) -> float:
    try:
        model, provider, *_ = litellm.get_llm_provider(params.model, params.custom_llm_provider, params.api_base)
        costs = litellm.cost_per_token(
            model=deployment or model, custom_llm_provider=provider, prompt_tokens=asked, completion_tokens=made
        )
        return sum(costs)
    # LiteLLM has several errors for a model without prices, one of them a bare Exception.
    except Exception:  # noqa: BLE001
        return 0.0


def _is_over_budget(key: UserAPIKeyAuth, spent: float) -> bool:
    pairs = ((key.max_budget, key.spend), (key.team_max_budget, key.team_spend))
    return any(limit is not None and (used or 0.0) + spent >= limit for limit, used in pairs)


class Keeper(Protocol):
    """What a session needs kept."""

    async def remember(self, effect: Remember) -> None:
        """Store what was held back."""

    async def withhold(self, effect: Withhold) -> Kept:
        """Keep the originals of the newest results."""

    def note(self, answer: Received) -> None:
        """An answer as it came, if its results are not withheld because of it."""


async def carry_out(watch: Watch, client: Client, first: Received, keeper: Keeper) -> tuple[Release | End, Received]:
    """Carry out the session of one client request; gives its last effect and the answer that it is about.

    Args:
        watch: what its answers are judged by.
        client: its client.
        first: the first answer.
        keeper: keeps what is to be kept.
    """
    steps, answers = session(watch), [first]
    next(steps)
    effect = steps.send(first.reply)
    if not isinstance(effect, Withhold):
        keeper.note(first)
    while not isinstance(effect, (Release, End)):
        if isinstance(effect, Remember):
            await keeper.remember(effect)
            effect = steps.send(None)
        elif isinstance(effect, Withhold):
            effect = steps.send(await keeper.withhold(effect))
        else:
            answers.append(await client.ask(effect, sum(map(client.cost, answers))))
            keeper.note(answers[-1])
            effect = steps.send(answers[-1].reply)
    steps.close()
    return effect, answers[0 if isinstance(effect, Release) and effect.first else -1]


async def kept_alive(work: Coroutine[Any, Any, None], sign: Any, every: float) -> AsyncGenerator[Any, None]:
    """Signs of life while the work goes on. The work ends when nobody waits any more; its error is raised here.

    Args:
        work: the work.
        sign: a chunk that says nothing; None where the dialect has none.
        every: seconds between two signs.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=every)
            if sign is not None and not task.done():
                yield sign
        await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
