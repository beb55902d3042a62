"""Which results of a request are withheld, and which would be if it were refused. Pure.

A result is known again by its content (tool, arguments, content), so a re-fetch under a new id is too, and by its call
(id, tool, arguments, the answer that made the call), so a client that shortens old results does not leak it. Neither
depends on the dialect: text counts as it is joined, images and files by their bytes. A result without its call is known
by its content alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from litellm_toolguard import notes
from litellm_toolguard.canonical import call_key, canonical_arguments, digest, parse_arguments
from litellm_toolguard.dialects import parse, with_text
from litellm_toolguard.refusals import Refusal
from litellm_toolguard.transcript import Dialect, Exchange, Round, ToolResult, Transcript, UserInput
from litellm_toolguard.withheld import Withheld

Known: TypeAlias = Callable[[Callable[[], Iterable[bytes]]], frozenset[bytes]]
"""Gives those of the keys that are withheld, which are only made if anything is. Called at most once per request, and
not for one without results."""

_DATA_URL: Final = ";base64,"


@dataclass(frozen=True, slots=True)
class Cleared:
    """A request without what is withheld.

    Args:
        request: with notices in the places of withheld results; the caller's own where there are none.
        transcript: its transcript.
        replaced: how many results were replaced.
    """

    request: Mapping[str, Any]
    transcript: Transcript
    replaced: int = 0


def without_withheld(dialect: Dialect, request: Mapping[str, Any], transcript: Transcript, known: Known) -> Cleared:
    """Put notices in the places of the results that are withheld.

    Args:
        dialect: the request's.
        request: its body, left as it is.
        transcript: its history.
        known: see `Known`.
    """
    if not transcript.orphans and not any(map(_has_results, transcript.rounds)):
        return Cleared(request, transcript)
    keyed: list[tuple[ToolResult, tuple[bytes, ...]]] = []

    def keys_of_all() -> Iterable[bytes]:
        keyed.extend(_keyed_results(transcript))
        return {key for _, keys in keyed for key in keys}

    found = known(keys_of_all)
    hidden = [
        result
        for result, keys in keyed
        if not found.isdisjoint(keys) and with_text(dialect, request, [result], "") is not None
    ]
    gone = {id(result) for result in hidden}
    lasts = [results[-1] for event in transcript.rounds if (results := [r for r in _results(event) if id(r) in gone])]
    edited = _replaced(dialect, request, hidden, lasts) if hidden else None
    if edited is None:
        return Cleared(request, transcript)
    return Cleared(edited, _marked(transcript, gone), len(hidden))


def _replaced(
    dialect: Dialect, request: Mapping[str, Any], results: Sequence[ToolResult], lasts: Sequence[ToolResult]
) -> dict[str, Any] | None:
    """The request with notices in the places of results; the last of each round says that the source is closed."""
    edited = with_text(dialect, request, results, notes.WITHHELD)
    return None if edited is None else with_text(dialect, edited, lasts, notes.CLOSED)


def _has_results(event: Round) -> bool:
    return any(each.result is not None and each.call.executed_by == "client" for each in event.exchanges)


def _keyed_results(transcript: Transcript) -> Iterator[tuple[ToolResult, tuple[bytes, ...]]]:
    for event in transcript.rounds:
        made_by = _answer_key(event)
        for exchange in event.exchanges:
            if exchange.result is not None and exchange.call.executed_by == "client":
                yield exchange.result, _keys_of(exchange, made_by)
    for orphan in transcript.orphans:
        yield orphan, (_content_key(b"", orphan),)


def _marked(transcript: Transcript, gone: set[int]) -> Transcript:
    events = tuple(_marked_round(event, gone) if isinstance(event, Round) else event for event in transcript.events)
    return replace(transcript, events=events)


def _marked_round(event: Round, gone: set[int]) -> Round:
    if not any(id(exchange.result) in gone for exchange in event.exchanges):
        return event
    exchanges = (
        replace(exchange, result=replace(exchange.result, text=notes.WITHHELD, opaque="", withheld=True))
        if exchange.result is not None and id(exchange.result) in gone
        else exchange
        for exchange in event.exchanges
    )
    return replace(event, exchanges=tuple(exchanges))


def submitted(transcript: Transcript) -> Round | None:
    """The batch of results that the request submits to the provider: its newest part, whole, and not only notices.
    What a harness says behind it does not count; words of the user behind it or beside it do."""
    if transcript.answered:
        return None
    for event in reversed(transcript.events):
        if isinstance(event, Round):
            return event if _is_whole(event) else None
        if not isinstance(event, UserInput) or event.kind == "user":
            return None
    return None


def _is_whole(event: Round) -> bool:
    results = [exchange.result for exchange in event.exchanges if exchange.call.executed_by == "client"]
    known = [result for result in results if result is not None]
    return len(known) == len(event.exchanges) and not all(result.withheld for result in known)


@dataclass(frozen=True, slots=True)
class Submission:
    """The results that a request submits, all of which can be replaced.

    Args:
        batch: their round.
    """

    batch: Round = field(repr=False)

    def originals(self, refusal: Refusal) -> tuple[Withheld, ...]:
        """What the refusal withholds."""
        made_by = _answer_key(self.batch)
        return tuple(
            _original(exchange, made_by, exchange.result, refusal)
            for exchange in self.batch.exchanges
            if exchange.result is not None and not exchange.result.withheld
        )


def _original(exchange: Exchange, made_by: bytes, result: ToolResult, refusal: Refusal) -> Withheld:
    kept = json.dumps({"text": result.text, "opaque": result.opaque}, ensure_ascii=False)
    return Withheld(
        keys=_stored_keys(exchange, made_by),
        tool=exchange.call.name,
        call_id=exchange.call.id,
        cause=refusal.guardrail or refusal.kind,
        category=refusal.category,
        explanation=refusal.explanation,
        payload=kept.encode("utf-8", "surrogatepass"),
    )


def submission(dialect: Dialect, request: Mapping[str, Any], transcript: Transcript) -> Submission | None:
    """The results that a request submits, if there are any and all of them can be replaced; else None.

    Args:
        dialect: the request's.
        request: its body without what is withheld already.
        transcript: its history.
    """
    batch = submitted(transcript)
    if batch is None or with_text(dialect, request, _results(batch), "") is None:
        return None
    return Submission(batch)


def with_newest_withheld(dialect: Dialect, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The request with notices in the places of its newest results, notes of the guard's own at their ends included.
    None where it has none that can be replaced.

    Args:
        dialect: the request's.
        request: its body, as it would be sent.
    """
    batch = submitted(parse(dialect, request))
    return None if batch is None else _replaced(dialect, request, _results(batch), _results(batch)[-1:])


def _results(event: Round) -> list[ToolResult]:
    return [exchange.result for exchange in event.exchanges if exchange.result is not None]


# ---------------------------------------------------------------------------------------------------------------- keys


def _keys_of(exchange: Exchange, made_by: bytes) -> tuple[bytes, ...]:
    """The keys under which a result is looked up: that of its content, where it has any, and that of its call.

    Args:
        exchange: the call and its result.
        made_by: key of the answer that made the call.
    """
    call, result = exchange.call, exchange.result
    called = call_key(call, parse_arguments(call.arguments))
    by_call = digest("withheld call", call.id, called, made_by)
    if result is None or not (result.text or result.opaque):
        return (by_call,)
    return (_content_key(called, result), by_call)


def _stored_keys(exchange: Exchange, made_by: bytes) -> tuple[bytes, ...]:
    """Those, and the one of the content alone, by which a result without its call is known."""
    keys, result = _keys_of(exchange, made_by), exchange.result
    return keys if result is None or len(keys) == 1 else (*keys, _content_key(b"", result))


def _content_key(called: bytes, result: ToolResult) -> bytes:
    return digest("withheld content", called, result.text, *map(_essence, result.opaque.splitlines()))


def _answer_key(event: Round) -> bytes:
    """The answer that made the calls: what it said, and its calls."""
    calls = [
        (call.id, call.name, canonical_arguments(parse_arguments(call.arguments)))
        for call in (exchange.call for exchange in event.exchanges)
    ]
    return digest("answer", event.said, *(part for call in calls for part in call))


def _essence(part: str) -> str:
    """What makes a part of a result that is no text: its longest string, an image's bytes in any dialect."""
    try:
        value = json.loads(part)
    except (ValueError, RecursionError):
        return part
    longest, waiting = "", [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            longest = max(longest, node.partition(_DATA_URL)[2] or node, key=len)
        elif isinstance(node, dict):
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
    return longest or part
