"""The guard in a LiteLLM proxy: hooks only.

`ToolGuard` is a guardrail with native hooks. The request is judged once, in `async_pre_call_hook`; what was ruled stays
on the request's logging object, which all later hooks see. A stop is carried out by the deployment hook, which sends
the request to the provider of our own, so that LiteLLM encodes the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Final
from weakref import WeakSet

import litellm
from litellm.exceptions import ContentPolicyViolationError, GuardrailRaisedException
from litellm.integrations.custom_guardrail import CustomGuardrail
from litellm.proxy._types import ProxyException, UserAPIKeyAuth
from litellm.proxy.common_utils.callback_utils import add_guardrail_to_applied_guardrails_header
from litellm.types.guardrails import GuardrailEventHooks

from litellm_toolguard import gate
from litellm_toolguard.config import (
    NO_POST_CALL,
    entry_ledger,
    entry_policy,
    entry_recorder,
    entry_store,
    order_problem,
    remarks,
    switch_problem,
)
from litellm_toolguard.end_field import mark_response, mark_stream
from litellm_toolguard.errors import ConfigError, ConfigProblem, StoreError
from litellm_toolguard.gate import BAD_REQUEST, Ruling
from litellm_toolguard.policy import Policy
from litellm_toolguard.proxy_answers import (
    SIGNS_OF_LIFE,
    Client,
    Collector,
    Flow,
    Origin,
    Received,
    carry_out,
    kept_alive,
    llm_router,
    origin_of,
    plain,
    receive,
    restore_group,
    whole,
)
from litellm_toolguard.proxy_refusals import Attempts, allow_one_more, facts_of
from litellm_toolguard.recorder import Looked, Recorder
from litellm_toolguard.refusals import Refusal, in_answer, in_error
from litellm_toolguard.session import End, Kept, Release, Remember, Withhold
from litellm_toolguard.stop_provider import install_stop_provider, redirect_to_stop
from litellm_toolguard.store import FactStore
from litellm_toolguard.store.access import LedgerAccess, StoreAccess
from litellm_toolguard.store.ledger import Ledger
from litellm_toolguard.store.memory import MemoryFactStore
from litellm_toolguard.transcript import Dialect

_log = logging.getLogger("litellm_toolguard")

_DIALECTS: Final[Mapping[str, Dialect]] = {
    "completion": "chat",
    "acompletion": "chat",
    "anthropic_messages": "messages",
    "responses": "responses",
    "aresponses": "responses",
}
# Requests of an agent in a format that the guard does not read. Other calls (embeddings, images, ...) have no tools.
_UNREAD_CALLS: Final = frozenset(
    {"generate_content", "agenerate_content", "generate_content_stream", "agenerate_content_stream", "_arealtime"}
)
_STATE: Final = "_toolguard_ruling"
_ORIGIN: Final = "_toolguard_origin"
_JUDGE: Final = "_toolguard_judge"
_ATTEMPTS: Final = "_toolguard_attempts"
_LOGGED_HISTORY: Final = ("messages", "input")
"""Where LiteLLM's logging object keeps the history of a request."""
_APPLIED_HEADER: Final = "x-litellm-applied-guardrails"
_HOOKS: Final = (
    "async_pre_call_hook",
    "async_pre_call_deployment_hook",
    "async_post_call_success_deployment_hook",
    "async_post_call_failure_deployment_hook",
    "async_post_call_success_hook",
    "async_post_call_streaming_iterator_hook",
    "async_post_call_response_headers_hook",
)
_STATUS: Final = {"pass": "success", "hint": "guardrail_flagged", "stop": "guardrail_intervened"}

# The guards that configs made. A callback leaves a request to them: their policy stands where the operator looks.
_entries: WeakSet[ToolGuard] = WeakSet()

# Takes what a store that is down does not.
_spare_facts = MemoryFactStore()
_STORE_LOG_S: Final = 60
"""Seconds between two lines of the log about the same failure of a store."""


class ToolGuard(CustomGuardrail):
    """The guardrail, loaded by `guardrail: litellm_toolguard.ToolGuard`.

    Args:
        toolguard: the policy, or `{policy: path}` with the path of a policy file, relative to the proxy's config.
        guardrail_name: its name in the config.
        event_hook: its `mode`: [pre_call, post_call].
        default_on: whether requests are judged that do not name it.
        params: what LiteLLM passes to every guardrail; options of other vendors among it are ignored.

    Raises:
        ConfigError: a RuntimeError, which stops the proxy; LiteLLM answers other errors by starting without the guard.
    """

    use_native_lifecycle_hooks: ClassVar[bool] = True
    is_callback: ClassVar[bool] = False

    def __init__(
        self,
        toolguard: Any = None,
        *,
        guardrail_name: str = "toolguard",
        event_hook: Any = ("pre_call", "post_call"),
        default_on: bool | None = False,
        **params: Any,
    ) -> None:
        try:
            self.policy: Policy = entry_policy(_mode(event_hook), params, toolguard, _config_folder())
            self.facts: FactStore = entry_store(self.policy, _config_folder())
            self.recorder: Recorder | None = entry_recorder(self.policy, _config_folder())
            self.ledger: Ledger | None = entry_ledger(self.policy, _config_folder())
            super().__init__(guardrail_name=guardrail_name, event_hook=_hooks(event_hook), default_on=bool(default_on))
            if not self.is_callback:
                _check_order(_names(event_hook), recovers=self.policy.refusals.recover)
        except (ValueError, TypeError) as error:
            raise ConfigError((ConfigProblem("", f"{type(error).__name__}: {error}"),)) from error
        self.counts: Counter[str] = Counter()
        self._store_logged: dict[str, float] = {}
        self._recording_logged: set[str] = set()
        if not self.is_callback:
            _entries.add(self)
        install_stop_provider()
        _say_hello(self)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """LiteLLM looks hooks up in the class's own namespace; a subclass that inherits them would lose its streams."""
        super().__init_subclass__(**kwargs)
        for name in _HOOKS:
            if name not in cls.__dict__:
                setattr(cls, name, getattr(cls, name))

    # LiteLLM sets these on the finished instance when the config names them.
    @property
    def run_in_parallel(self) -> bool:
        """Always False: LiteLLM would discard what the guard changes."""
        return False

    @run_in_parallel.setter
    def run_in_parallel(self, value: bool) -> None:
        if value:
            raise switch_problem("run_in_parallel")

    @property
    def scan_raw_request(self) -> bool:
        """Always False: LiteLLM would discard what the guard changes."""
        return False

    @scan_raw_request.setter
    def scan_raw_request(self, value: bool) -> None:
        if value:
            raise switch_problem("scan_raw_request")

    # ------------------------------------------------------------------------------------------------------- request

    async def async_pre_call_hook(
        self, user_api_key_dict: UserAPIKeyAuth, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any] | None:
        """Judge the request once, write notes into it, refuse it, or mark it for the deployment hook.

        Raises:
            ProxyException: 400 when the policy rejects the request, 503 after an error of the guard with `on_error:
            reject`.
        """
        del cache
        if _ruling_of(data) is not None or self._stands_aside(data):
            return None
        ruling = await self._rule(user_api_key_dict, data, call_type)
        if ruling is None:
            return None
        ruling = _kept(data, ruling, self)
        self._record(data, ruling)
        if ruling.action == "reject":
            raise _http_error(self, ruling)
        data.update(ruling.edits)
        if "withheld" in (ruling.report or {}):
            _scrub(data, ruling.edits)
        self._prepare(user_api_key_dict, data, ruling)
        return data

    def _prepare(self, key: UserAPIKeyAuth, data: dict[str, Any], ruling: Ruling) -> None:
        """Leave what the later hooks need of a request whose answer is to be judged."""
        carrier = data.get("litellm_logging_obj")
        if ruling.watch is None or carrier is None:
            return
        dialect = ruling.watch.standing.dialect
        if ruling.submission is not None:
            attempts = Attempts(dialect, key.api_key or "", ruling.submission)
            attempts.retries = allow_one_more(data, llm_router())
            setattr(carrier, _ATTEMPTS, attempts)
        setattr(carrier, _ORIGIN, origin_of(dialect, data))

    def _own_ruling(self, data: Mapping[str, Any]) -> Ruling | None:
        """The ruling on a request that this guard judged: another one in the same proxy judges its own answers."""
        mine = getattr(data.get("litellm_logging_obj"), _JUDGE, None) is self
        return _ruling_of(data) if mine else None

    def _stands_aside(self, data: dict[str, Any]) -> bool:
        event = GuardrailEventHooks.pre_call
        return self.is_callback and any(entry.should_run_guardrail(data, event) is True for entry in _entries)

    async def judge(self, tenant: str, data: Mapping[str, Any], dialect: Dialect) -> Ruling:
        """The ruling on one request body, with the facts that are stored for the tenant, and its own facts stored."""
        facts = self._access(tenant)
        recorder, looked = self.recorder, Looked(facts)
        secret = b"" if recorder is None else recorder.secret
        ledger = LedgerAccess(self.ledger, tenant)
        ruling = gate.rule(dialect, data, self.policy, looked.look_up, looked.look_up_blocks, secret, ledger.known)
        ruling = self._readable(ledger, ruling)
        if recorder is not None:
            with self._recording():
                ruling = replace(ruling, row=recorder.request(facts.tenant, dialect, data, ruling, looked))
        if not ruling.row:
            ruling = replace(ruling, basis=None)
        if ruling.remember and facts.may_wait:
            await asyncio.to_thread(facts.remember, ruling.remember)
        elif ruling.remember:
            facts.remember(ruling.remember)
        if not facts.failure:
            return ruling
        self._store_failed(facts.failure)
        return gate.without_store(ruling)

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """A recording that cannot be written costs no request. Only the error's type is said: its text may hold
        content."""
        try:
            yield
        # The one boundary of the recording.
        except Exception as error:  # noqa: BLE001
            name = type(error).__name__
            self.counts[f"recording_error:{name}"] += 1
            if name not in self._recording_logged:
                self._recording_logged.add(name)
                _log.error("toolguard: the recording could not be written: %s", name)

    def _record_answer(self, ruling: Ruling, dialect: Dialect, answer: Mapping[str, Any] | None) -> None:
        if self.recorder is not None and ruling.row:
            with self._recording():
                self.recorder.answer(ruling, dialect, answer)

    def _record_verdict(self, ruling: Ruling, effect: Release | End) -> None:
        if self.recorder is not None and ruling.row:
            with self._recording():
                self.recorder.verdict(ruling, effect)

    def _store_failed(self, reason: str) -> None:
        self.counts["store_error"] += 1
        now = time.monotonic()
        if now - self._store_logged.get(reason, -_STORE_LOG_S) >= _STORE_LOG_S:
            self._store_logged[reason] = now
            _log.warning("toolguard: store unavailable: %s", reason)

    async def _rule(self, key: UserAPIKeyAuth, data: Mapping[str, Any], call_type: str) -> Ruling | None:
        name = str(getattr(call_type, "value", call_type))
        if name in _UNREAD_CALLS:
            return gate.unreadable(f"a request of type {name}", self.policy)
        dialect = _DIALECTS.get(name)
        if dialect is None:
            return None
        try:
            return await self.judge(key.api_key or "", data, dialect)
        # The one boundary: a fault of the guard must not become a fault of the request.
        except Exception as error:  # noqa: BLE001
            return self._failed(error, key.api_key or "", data, dialect)

    def _failed(self, error: Exception, tenant: str, data: Mapping[str, Any], dialect: Dialect) -> Ruling:
        """The ruling after a fault of the guard: what is withheld stays withheld all the same."""
        failed, ledger = gate.failed(error, self.policy), LedgerAccess(self.ledger, tenant)
        try:
            return self._readable(ledger, gate.cleared(failed, dialect, data, ledger.known))
        # The same boundary again: where even that fails, nobody knows what the request holds.
        except Exception:  # noqa: BLE001
            return gate.ledger_unreadable(self.policy) or failed

    def _readable(self, ledger: LedgerAccess, ruling: Ruling) -> Ruling:
        """The ruling, unless the ledger that it needed could not be read."""
        if not ledger.failure:
            return ruling
        self._store_failed(f"ledger: {ledger.failure}")
        return gate.ledger_unreadable(self.policy) or ruling

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any] | None:
        """Send a request that is to be stopped to the provider of our own, and one whose results were refused without
        them. Runs for every attempt."""
        restore_group(kwargs)
        ruling = _ruling_of(kwargs)
        if ruling is None or ruling.action != "stop":
            return await self._attempt(kwargs, call_type)
        return redirect_to_stop(kwargs, ruling.words)

    async def _attempt(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any] | None:
        """The next attempt of a request whose results may be refused; None for one that goes on as it is.

        Raises:
            Exception: that of the attempt before, where only the guard had allowed another one.
        """
        attempts = self._attempts_of(kwargs, call_type)
        if attempts is None:
            return None
        # The operator's fallback, behind ours: to another model, and without what is withheld.
        falls_back = bool(kwargs.get("fallback_depth"))
        if attempts.phase == "first" and (falls_back or (attempts.refusal is None and not attempts.ends_here)):
            return None
        again = None if attempts.ends_here and not falls_back else attempts.again(kwargs)
        if again is not None and attempts.phase == "first" and attempts.refusal is not None:
            kept = await self._withhold(kwargs, attempts, attempts.refusal)
            attempts.phase = "again" if kept else "over"
            again = again if kept else None
        # What is withheld is sent to nobody, whatever became of the request meanwhile.
        if again is None:
            raise attempts.error or _blocked(kwargs)
        return again

    def _attempts_of(self, data: Mapping[str, Any], call_type: Any) -> Attempts | None:
        """The attempts of a request that this guard judged, in the call that is in the request's own dialect: LiteLLM's
        bridges make another one within."""
        carrier = data.get("litellm_logging_obj")
        found = getattr(carrier, _ATTEMPTS, None)
        dialect = _DIALECTS.get(str(getattr(call_type, "value", call_type)))
        if not isinstance(found, Attempts) or found.dialect != dialect:
            return None
        return found if getattr(carrier, _JUDGE, None) is self else None

    async def _withhold(self, data: Mapping[str, Any], attempts: Attempts, refusal: Refusal) -> bool:
        """Keep the originals of the request's newest results; gives whether they are kept."""
        stored = self.ledger is not None
        try:
            if self.ledger is not None:
                await asyncio.to_thread(self.ledger.withhold, attempts.tenant, attempts.submission.originals(refusal))
        except StoreError as error:
            stored = False
            self._store_failed(f"ledger: {error}")
        self.counts["withheld" if stored else "not_withheld"] += 1
        ruling = _ruling_of(data)
        if ruling is not None:
            judged = gate.recovered(ruling, refusal, stored=stored)
            self._record(dict(data), _kept(data, judged, self))
        return stored

    async def async_post_call_failure_deployment_hook(
        self, request_data: Mapping[str, Any], exception: Exception, call_type: Any, fallback_depth: int | None = None
    ) -> None:
        """See whether an attempt was refused."""
        del fallback_depth
        attempts = self._attempts_of(request_data, call_type)
        if attempts is not None:
            attempts.failed(exception)

    async def async_post_call_success_deployment_hook(self, request_data: Any, response: Any, call_type: Any) -> Any:
        """See whether an answer is a refusal: the router may make an error of it."""
        attempts = self._attempts_of(request_data, call_type)
        if attempts is not None:
            attempts.answered(plain(response))
        return response

    # ------------------------------------------------------------------------------------------------------ response

    async def async_post_call_success_hook(
        self, data: dict[str, Any], user_api_key_dict: UserAPIKeyAuth, response: Any
    ) -> Any:
        """Judge an answer that is not streamed before it is handed over; put the machine-readable end on it.

        Raises:
            ProxyException: 400 when the policy rejects the answer.
        """
        ruling = self._own_ruling(data)
        if ruling is None:
            return response
        if ruling.action == "stop":
            return mark_response(response, ruling.end)
        client = _client(data, user_api_key_dict, ruling, stream=False)
        if client is None:
            if ruling.row and ruling.basis is not None:
                self._record_answer(ruling, ruling.basis[1].dialect, plain(response))
            return response
        effect, newest = await self._judge_answer(client, ruling, whole(response))
        ruling = self._answered(data, effect)
        if isinstance(effect, Release):
            return response if newest.response is None else newest.response
        if effect.action == "reject":
            raise _http_error(self, ruling)
        return mark_response(await self._last_words(client, ruling), ruling.end)

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: UserAPIKeyAuth, response: Any, request_data: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        """Hold the stream of an armed request until its calls are judged, and put the machine-readable end on one that
        is stopped. Every other stream passes chunk for chunk.

        Raises:
            ProxyException: 400 when the policy rejects the answer and nothing was sent.
        """
        ruling = self._own_ruling(request_data)
        if ruling is not None and ruling.action == "stop":
            response = mark_stream(response, ruling.end)
        client = None if ruling is None else _client(request_data, user_api_key_dict, ruling, stream=True)
        if ruling is not None and client is not None:
            flows = self._flowing_stream if self._may_flow(ruling, client) else self._held_stream
            chunks = _with_status(flows(response, request_data, ruling, client), client.dialect, self)
        elif ruling is not None and _is_recorded(ruling):
            chunks = self._recorded_stream(response, ruling)
        else:
            async for chunk in response:
                yield chunk
            return
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    def _may_flow(self, ruling: Ruling, client: Client) -> bool:
        """Whether the stream is held for nothing but a refusal, and the policy does not want it held whole for that."""
        armed = ruling.watch is not None and ruling.watch.armed
        return self.policy.refusals.hold != "all" and not armed and not client.withheld

    async def _flowing_stream(
        self, response: Any, data: dict[str, Any], ruling: Ruling, client: Client
    ) -> AsyncGenerator[Any, None]:
        """A stream of which something is sent before it is known whether it is a refusal: then its results are withheld
        from the next request on, and none of its calls is complete."""
        flow = Flow(client.dialect, from_first=self.policy.refusals.hold == "until_tool_call")
        refusal: Refusal | None = None
        try:
            async for chunk in response:
                for ready in flow.add(chunk):
                    yield ready
        except Exception as error:
            refusal = in_error(facts_of(error))
            if refusal is not None:
                await self._withhold_submitted(data, refusal)
            raise
        answer = flow.answer()
        self._record_answer(ruling, client.dialect, answer)
        refusal = in_answer(client.dialect, answer)
        if refusal is not None and self.policy.refusals.recovers_from(refusal.certain):
            await self._withhold_submitted(data, refusal)
        for chunk in flow.rest(refused=refusal is not None and refusal.certain):
            yield chunk

    async def _withhold_submitted(self, data: Mapping[str, Any], refusal: Refusal) -> bool:
        attempts = getattr(data.get("litellm_logging_obj"), _ATTEMPTS, None)
        return isinstance(attempts, Attempts) and await self._withhold(data, attempts, refusal)

    async def _recorded_stream(self, response: Any, ruling: Ruling) -> AsyncGenerator[Any, None]:
        """The stream chunk for chunk; what it made up is recorded when it ends or nobody reads it any more."""
        if ruling.basis is None:
            async for chunk in response:
                yield chunk
            return
        dialect = ruling.basis[1].dialect
        collector = Collector(dialect)
        try:
            async for chunk in response:
                with self._recording():
                    collector.add(chunk)
                yield chunk
        finally:
            with self._recording():
                self._record_answer(ruling, dialect, collector.answer())

    async def _held_stream(
        self, response: Any, data: dict[str, Any], ruling: Ruling, client: Client
    ) -> AsyncGenerator[Any, None]:
        done: list[tuple[Release | End, Received]] = []

        async def work() -> None:
            done.append(await self._judge_answer(client, ruling, await receive(response, client.dialect)))

        make_sign = SIGNS_OF_LIFE.get(client.dialect)
        signs = kept_alive(work(), make_sign and make_sign(), self.policy.stream.keep_alive_s)
        async with contextlib.aclosing(signs):
            async for sign in signs:
                yield sign
        effect, newest = done[0]
        judged = self._answered(data, effect)
        if isinstance(effect, Release):
            for chunk in newest.chunks:
                yield chunk
            if newest.broken is not None:
                raise newest.broken
        elif effect.action == "reject":
            raise _http_error(self, judged)
        else:
            async for chunk in mark_stream(await self._last_words(client, judged), judged.end):
                yield chunk

    async def _judge_answer(self, client: Client, ruling: Ruling, first: Received) -> tuple[Release | End, Received]:
        watch = ruling.watch
        if watch is None:
            return Release(), first
        if client.withheld:
            watch = watch.behind_refusal()
        facts = self._access(client.key.api_key or "")
        keeper = _Keeper(self, client, ruling, facts)
        try:
            effect, newest = await carry_out(watch, client, first, keeper)
            self._record_verdict(ruling, effect)
            return effect, newest
        # The one boundary of the response side: a fault of the guard must not become a fault of the answer.
        except Exception as error:  # noqa: BLE001
            failed = gate.failed(error, self.policy)
            self._count(failed)
            _log.error("toolguard: %s while an answer was judged", type(error).__name__)
            if failed.action == "reject":
                raise _http_error(self, failed) from None
            return Release(), first
        finally:
            if facts.failure:
                self._store_failed(facts.failure)

    async def _last_words(self, client: Client, ruling: Ruling) -> Any:
        """The end in words. Where LiteLLM cannot say them the same decision is a rejection: the call is not handed
        over."""
        try:
            return await client.last_words(ruling.words)
        except Exception as error:  # noqa: BLE001
            self.counts[f"error:{type(error).__name__}"] += 1
            _log.error("toolguard: %s while a run was ended", type(error).__name__)
            raise _http_error(self, gate.ended_by_rejection(ruling)) from None

    def _answered(self, data: dict[str, Any], effect: Release | End) -> Ruling:
        ruling = _ruling_of(data)
        if ruling is None:
            raise AssertionError("an answer is judged by the ruling on its request")
        judged = gate.answered(ruling, effect)
        if judged is not ruling:
            _kept(data, judged, self)
            self._record(data, judged)
        return judged

    def _access(self, tenant: str) -> StoreAccess:
        return StoreAccess(self.facts, _spare_facts, f"{self.policy.enforcement}:{tenant}")

    async def async_post_call_response_headers_hook(
        self,
        data: dict[str, Any],
        user_api_key_dict: UserAPIKeyAuth,
        response: Any,
        request_headers: dict[str, str] | None = None,
        litellm_call_info: dict[str, Any] | None = None,
    ) -> dict[str, str] | None:
        """The `x-toolguard` header of a request on which there is something to say."""
        del user_api_key_dict, response, request_headers, litellm_call_info
        ruling = _ruling_of(data)
        return {gate.HEADER: ruling.header} if ruling is not None and ruling.header else None

    # ----------------------------------------------------------------------------------------------------- recording

    def _record(self, data: dict[str, Any], ruling: Ruling) -> None:
        self._count(ruling)
        proposed = bool((ruling.report or {}).get("proposed"))
        add_guardrail_to_applied_guardrails_header(request_data=data, guardrail_name=self.guardrail_name)
        if ruling.report is None:
            return
        now = time.time()
        decided = str(ruling.report["action"])
        self.add_standard_logging_guardrail_information_to_request_data(
            guardrail_json_response=dict(ruling.report),
            request_data=data,
            guardrail_status=_status(ruling),
            start_time=now,
            end_time=now,
            duration=0.0,
            guardrail_provider="toolguard",
            event_type=GuardrailEventHooks.post_call if proposed else GuardrailEventHooks.pre_call,
            tracing_detail={"detection_method": str(ruling.report.get("detector", "")), "guardrail_action": decided},
        )
        level = logging.WARNING if decided in ("ask", "stop", "reject") or "error" in ruling.report else logging.INFO
        _log.log(level, "toolguard: %s", ruling.header)

    def _count(self, ruling: Ruling) -> None:
        if not (ruling.report or {}).get("proposed"):
            self.counts["judged"] += 1
        if ruling.inspected != "whole":
            self.counts["not_inspected"] += 1
        report = ruling.report or {}
        if "error" in report:
            self.counts[f"error:{report['error']}"] += 1
        elif report.get("action", "pass") != "pass":
            self.counts[str(report["action"])] += 1


@dataclass(frozen=True)
class _Keeper:
    """Keeps what the session of one client request needs kept."""

    guard: ToolGuard
    client: Client
    ruling: Ruling
    facts: StoreAccess

    async def remember(self, effect: Remember) -> None:
        if self.facts.may_wait:
            await asyncio.to_thread(self.facts.remember_block, effect.position, effect.blocks)
        else:
            self.facts.remember_block(effect.position, effect.blocks)

    async def withhold(self, effect: Withhold) -> Kept:
        return Kept(await self.guard._withhold_submitted(self.client.data, effect.refusal))

    def note(self, answer: Received) -> None:
        self.guard._record_answer(self.ruling, self.client.dialect, answer.answer)


def _blocked(kwargs: Mapping[str, Any]) -> Exception:
    """What LiteLLM's router makes of an answer that is a refusal."""
    return ContentPolicyViolationError(
        message="Response output was blocked.", model=str(kwargs.get("model")), llm_provider=""
    )


def _scrub(data: Mapping[str, Any], edits: Mapping[str, Any]) -> None:
    """Take what is withheld out of the copies of the request that LiteLLM keeps for its logs."""
    kept = data.get("proxy_server_request")
    if isinstance(kept, dict) and isinstance(kept.get("body"), dict):
        kept["body"] = {**kept["body"], **edits}
    carrier: Any = data.get("litellm_logging_obj")
    if carrier is None:
        return
    for history in edits.values():
        carrier.messages = history
        for name in _LOGGED_HISTORY:
            if name in carrier.model_call_details:
                carrier.model_call_details[name] = history


def _ruling_of(data: Mapping[str, Any]) -> Ruling | None:
    return getattr(data.get("litellm_logging_obj"), _STATE, None)


def _is_recorded(ruling: Ruling) -> bool:
    """Whether the answer of the provider to this request is to be recorded. A stop asks no provider."""
    return ruling.row != "" and ruling.action != "stop"


def _kept(data: Mapping[str, Any], ruling: Ruling, judge: ToolGuard) -> Ruling:
    """Leave the ruling where the later hooks find it. Without such a place a stop could not be carried out."""
    carrier = data.get("litellm_logging_obj")
    if carrier is None:
        return gate.ended_by_rejection(ruling) if ruling.action == "stop" else ruling
    setattr(carrier, _STATE, ruling)
    setattr(carrier, _JUDGE, judge)
    return ruling


def _client(data: Mapping[str, Any], key: UserAPIKeyAuth, ruling: Ruling, *, stream: bool) -> Client | None:
    """The client whose answer is to be judged; None for a request that is not armed."""
    carrier = data.get("litellm_logging_obj")
    origin = getattr(carrier, _ORIGIN, None)
    if ruling.watch is None or not isinstance(origin, Origin):
        return None
    began = getattr(carrier, "start_time", None)
    started = began.timestamp() if isinstance(began, datetime) else time.time()
    attempts = getattr(carrier, _ATTEMPTS, None)
    withheld = isinstance(attempts, Attempts) and attempts.phase != "first"
    return Client(origin, data, key, stream, started, withheld)


async def _with_status(
    chunks: AsyncGenerator[Any, None], dialect: Dialect, guard: ToolGuard
) -> AsyncGenerator[Any, None]:
    """The chunks, with an error of the guard's own as the client should see it: by an HTTP status while nothing was
    sent, by an event behind that."""
    begun = False
    try:
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                begun = True
                yield chunk
    except _GuardError as error:
        if begun:
            # Of LiteLLM's exceptions the one that every dialect writes as an event.
            raise GuardrailRaisedException(
                guardrail_name=guard.guardrail_name, message=error.message, should_wrap_with_default_message=False
            ) from None
        if dialect == "messages":
            raise
        # LiteLLM turns a first event of this form into an answer with the status that it names. An exception would be
        # a 500 in chat, and in responses a stream that the clients cannot read.
        yield f"data: {json.dumps({'error': error.to_dict()})}\n\n"


class _GuardError(ProxyException):
    """An error that the guard itself makes."""


def _http_error(guard: ToolGuard, ruling: Ruling) -> ProxyException:
    """Of LiteLLM's exceptions the only one that carries fields and headers to the client in every dialect. LiteLLM
    writes into the headers that it is given."""
    applied = {_APPLIED_HEADER: guard.guardrail_name or "toolguard"}
    return _GuardError(
        message=ruling.words,
        type="invalid_request_error" if ruling.status == BAD_REQUEST else "internal_server_error",
        param=None,
        code=ruling.status,
        headers={gate.HEADER: ruling.header, **applied},
        provider_specific_fields={"code": ruling.code, **(ruling.report or {})},
    )


def _status(ruling: Ruling) -> Any:
    report = ruling.report or {}
    if "error" in report:
        return "guardrail_failed_to_respond"
    if ruling.inspected == "none":
        return "not_run"
    if report.get("enforced") is False and report["action"] != "pass":
        return "guardrail_flagged"
    return _STATUS.get(str(report["action"]), "guardrail_intervened")


# ------------------------------------------------------------------------------------------------------------ loading


def _mode(event_hook: Any) -> Any:
    """The mode in plain text; LiteLLM passes text, its own enum, or a list of either."""
    if isinstance(event_hook, (list, tuple)):
        return [_mode(hook) for hook in event_hook]
    return str(getattr(event_hook, "value", event_hook)) if isinstance(event_hook, str) else event_hook


def _names(event_hook: Any) -> list[str]:
    mode = _mode(event_hook)
    return [mode] if isinstance(mode, str) else list(mode) if isinstance(mode, list) else []


def _hooks(event_hook: Any) -> Any:
    return [GuardrailEventHooks(name) for name in _names(event_hook)]


def _check_order(modes: list[str], *, recovers: bool) -> None:
    """Raises `ConfigError` when a guardrail was loaded before the guard that must see nothing before it does."""
    before = [
        (
            str(callback.guardrail_name),
            [mode for mode in _names(callback.event_hook) if mode in (*modes, "during_call")],
        )
        for callback in litellm.callbacks
        if isinstance(callback, CustomGuardrail) and not isinstance(callback, ToolGuard)
    ]
    problem = order_problem(before, recovers=recovers)
    if problem is not None:
        raise ConfigError((problem,))


def _config_folder() -> Path | None:
    """The folder of the proxy's config, from which a relative policy path starts."""
    server = sys.modules.get("litellm.proxy.proxy_server")
    path = getattr(server, "user_config_file_path", None)
    return Path(path).resolve().parent if isinstance(path, str) and path else None


def _say_hello(guard: ToolGuard) -> None:
    policy = guard.policy
    _log.info("toolguard: %s, preset %s", policy.enforcement, policy.preset)
    for remark in remarks(policy):
        _log.warning("toolguard: %s", remark)
    if guard.default_on is not True:
        _log.warning(
            "toolguard: `default_on` is not true: only requests that name %s are guarded", guard.guardrail_name
        )
    if "post_call" not in (_mode(guard.event_hook) or ()):
        _log.warning("toolguard: `mode` has no post_call: %s", NO_POST_CALL)
    if sys.version_info < (3, 12):
        _log.warning("toolguard: run LiteLLM's proxy on Python 3.12 or newer; older ones crash under load")
