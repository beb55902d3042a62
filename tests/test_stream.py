"""A streamed answer is put together to the same whole, however its bytes are cut."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_toolguard.dialects import answered, read_answer
from litellm_toolguard.stream import SseReader, assembler
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS
from tests.harness import upstream

CALLS = upstream.Calls([("look_up", {"place": "Ä 🦊 \n\u2028", "n": 1.5}), ("wait", {}), ("look_up", {"place": "b"})])
WORDS = upstream.Words("Täglich 9–17 Uhr: 🦊\r\n\ndata: no event")
REPLIES: Mapping[str, upstream.Reply] = {"calls": CALLS, "words": WORDS}
MAKE: Mapping[Dialect, Any] = {
    "chat": upstream._chat_answer,
    "messages": upstream._message_answer,
    "responses": upstream._response_answer,
}
EVENTS: Mapping[Dialect, Any] = {
    "chat": upstream._chat_events,
    "messages": upstream._message_events,
    "responses": upstream._response_events,
}

each_dialect = pytest.mark.parametrize("dialect", DIALECTS)
each_reply = pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)


def scripted(dialect: Dialect, reply: upstream.Reply) -> tuple[dict[str, Any], list[bytes]]:
    """The whole answer of a provider, and the same as the events of its stream."""
    body = {"model": "m", "stream": True}
    answer = MAKE[dialect](reply, body, upstream._Ids())
    # As real providers do: letters stand in the bytes as they are.
    return answer, [_plain(event) for event in EVENTS[dialect](answer, body)]


def _plain(event: bytes) -> bytes:
    head, _, data = event.decode().rstrip("\n").partition("data: ")
    text = data if data == "[DONE]" else json.dumps(json.loads(data), ensure_ascii=False)
    return f"{head}data: {text}\n\n".encode()


def assembled(dialect: Dialect, pieces: Iterable[bytes]) -> Mapping[str, Any] | None:
    reader, whole = SseReader(), assembler(dialect)
    for piece in pieces:
        for event in reader.feed(piece):
            whole.feed(event)
    for event in reader.finish():
        whole.feed(event)
    return whole.answer()


def fed(dialect: Dialect, events: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    whole = assembler(dialect)
    for event in events:
        whole.feed(event)
    return whole.answer()


def same(dialect: Dialect, answer: Mapping[str, Any] | None, whole: Mapping[str, Any]) -> bool:
    """Whether both add the same to a client's history, with the arguments read."""
    return answer is not None and _history(dialect, answer) == _history(dialect, whole)


def _history(dialect: Dialect, answer: Mapping[str, Any]) -> list[Any]:
    choices = answered(dialect, answer)
    return [(items, read_answer(dialect, items).events) for items in choices]


# -------------------------------------------------------------------------------------------------------------- bytes


@each_reply
@each_dialect
def test_cut_at_any_byte_it_is_the_same(dialect: Dialect, reply: upstream.Reply) -> None:
    """In two pieces at every place, and byte by byte."""
    answer, events = scripted(dialect, reply)
    data = b"".join(events)

    assert same(dialect, assembled(dialect, [data]), answer)
    assert same(dialect, assembled(dialect, [data[place : place + 1] for place in range(len(data))]), answer)
    step = max(1, len(data) // 400)
    for place in range(0, len(data), step):
        assert same(dialect, assembled(dialect, [data[:place], data[place:]]), answer)


@each_reply
@each_dialect
@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
def test_the_line_ends_do_not_matter(dialect: Dialect, reply: upstream.Reply, line_end: bytes) -> None:
    """Also where a cut stands inside of one."""
    answer, events = scripted(dialect, reply)
    data = b"".join(events).replace(b"\n", line_end)

    assert same(dialect, assembled(dialect, [data]), answer)
    assert same(dialect, assembled(dialect, [data[place : place + 1] for place in range(len(data))]), answer)


@each_dialect
@given(data=st.data())
def test_cut_anywhere_it_is_the_same(dialect: Dialect, data: st.DataObject) -> None:
    """Random cuts, with comments, empty lines, other fields and events that nobody knows in between."""
    answer, events = scripted(dialect, data.draw(st.sampled_from(list(REPLIES.values()))))
    noise = [
        b": still here\n\n",
        b"\n",
        b"retry: 5\n\n",
        b"id: 7\n",
        b'data: {"type": "ping"}\n\n',
        b"data: no json\n\n",
    ]
    more = [b'data: {"type": "brand.new", "choices": [], "delta": 1}\n\n', b'event: x\ndata: ["list"]\n\n', b"data\n\n"]
    spread = [part for event in events for part in (data.draw(st.sampled_from([b"", *noise, *more])), event)]
    text = b"".join(spread)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))

    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    assert same(dialect, assembled(dialect, pieces), answer)


def test_data_over_several_lines_is_one_event() -> None:
    """The lines are joined; a value may stand without the blank in front of it."""
    assert list(SseReader().feed(b'data:{"a":\ndata: 1}\n\n')) == [{"a": 1}]
    # A byte order mark belongs to no event.
    assert list(SseReader().feed(b'\xef\xbb\xbfdata: {"a": 1}\n\n')) == [{"a": 1}]


def test_the_last_event_may_end_without_a_blank_line() -> None:
    """Once."""
    reader = SseReader()

    assert list(reader.feed(b'data: {"a": 1}')) == []
    assert list(reader.finish()) == [{"a": 1}]
    assert list(reader.finish()) == []


@each_reply
@each_dialect
def test_a_stream_that_breaks_gives_no_answer(dialect: Dialect, reply: upstream.Reply) -> None:
    """Before its last event, wherever."""
    _, events = scripted(dialect, reply)
    last = {"chat": 2, "messages": 1, "responses": 1}[dialect]

    for end in range(len(events) - last + 1):
        assert assembled(dialect, events[:end]) is None


# --------------------------------------------------------------------------------------------------------------- chat


def chunk(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def opened(index: int, name: str) -> dict[str, Any]:
    return {"index": index, "id": f"c{index}", "type": "function", "function": {"name": name, "arguments": ""}}


def more(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": text}}


def message(answer: Mapping[str, Any] | None, choice: int = 0) -> Mapping[str, Any]:
    assert answer is not None
    found: Mapping[str, Any] = answer["choices"][choice]["message"]
    return found


def test_calls_whose_fragments_come_in_turns_are_kept_apart() -> None:
    """By their index, in its order."""
    found = message(
        fed(
            "chat",
            [
                chunk(role="assistant", content=None),
                chunk(tool_calls=[opened(1, "b")]),
                chunk(tool_calls=[opened(0, "a"), more(1, '{"y"')]),
                chunk(tool_calls=[more(0, '{"x": '), more(1, ": 2}")]),
                chunk(tool_calls=[more(0, "1}")]),
                chunk(finish="tool_calls"),
            ],
        )
    )

    assert [call["function"] for call in found["tool_calls"]] == [
        {"name": "a", "arguments": '{"x": 1}'},
        {"name": "b", "arguments": '{"y": 2}'},
    ]
    assert [(call["id"], call["type"], "index" in call) for call in found["tool_calls"]] == [
        ("c0", "function", False),
        ("c1", "function", False),
    ]


def test_a_call_that_repeats_its_id_is_one() -> None:
    """Some providers send id and type with every fragment."""
    again = {"index": 0, "id": "c0", "type": "function", "function": {"arguments": "{}"}}

    found = message(fed("chat", [chunk(tool_calls=[opened(0, "a")]), chunk(tool_calls=[again]), chunk(finish="stop")]))

    assert [(call["id"], call["function"]) for call in found["tool_calls"]] == [
        ("c0", {"name": "a", "arguments": "{}"})
    ]


def test_whole_calls_without_an_index_are_calls_of_their_own() -> None:
    """As some compatible servers send them."""
    whole = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("a", "b")]

    found = message(fed("chat", [chunk(tool_calls=whole[:1]), chunk(tool_calls=whole[1:]), chunk(finish="stop")]))

    assert found["tool_calls"] == whole


def test_custom_tools_and_the_old_function_call() -> None:
    """Free text, and a single call without an id."""
    custom = {"index": 0, "id": "c0", "type": "custom", "custom": {"name": "sql", "input": "select"}}
    rest = {"index": 0, "custom": {"input": " 1"}}
    found = message(fed("chat", [chunk(tool_calls=[custom]), chunk(tool_calls=[rest]), chunk(finish="tool_calls")]))
    assert found["tool_calls"] == [{"id": "c0", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}]

    old = [{"name": "a", "arguments": ""}, {"arguments": '{"x"'}, {"arguments": ": 1}"}]
    answer = fed("chat", [*(chunk(function_call=each) for each in old), chunk(finish="function_call")])
    assert message(answer)["function_call"] == {"name": "a", "arguments": '{"x": 1}'}
    assert [each.call.name for each in read_answer("chat", [message(answer)]).rounds[0].exchanges] == ["a"]


def test_several_choices_in_turns() -> None:
    """Each has its own text and calls. LiteLLM ends a stream with the first that ends: so does the answer."""
    events = [
        chunk(1, content="b"),
        chunk(0, content="a"),
        chunk(1, content="b", tool_calls=[opened(0, "look")]),
        chunk(0, content="a", finish="stop"),
    ]

    assert fed("chat", events[:-1]) is None
    assert fed("chat", events) is not None
    answer = fed("chat", [*events, chunk(1, tool_calls=[more(0, "{}")]), chunk(1, finish="tool_calls")])
    assert [message(answer, choice)["content"] for choice in (0, 1)] == ["aa", "bb"]
    assert [call["function"]["arguments"] for call in message(answer, 1)["tool_calls"]] == ["{}"]


def test_reasoning_and_a_refusal_are_kept() -> None:
    """They are part of what the next request carries."""
    events = [
        chunk(reasoning_content="so "),
        chunk(reasoning_content="what"),
        chunk(refusal="no"),
        chunk(finish="stop"),
    ]

    found = message(fed("chat", events))

    assert (found["reasoning_content"], found["refusal"], found["content"]) == ("so what", "no", None)


# ----------------------------------------------------------------------------------------------------------- messages


def block_of(index: int, block: Mapping[str, Any], *deltas: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "content_block_start", "index": index, "content_block": block}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def in_a_message(*events: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    start = {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "stop_reason": None}}
    return [start, *events, {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"}]


def test_thinking_keeps_its_signature() -> None:
    """Without it the provider refuses the next request."""
    answer = fed(
        "messages",
        in_a_message(
            *block_of(
                0,
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": "so "},
                {"type": "thinking_delta", "thinking": "what"},
                {"type": "signature_delta", "signature": "sig=="},
            ),
            *block_of(1, {"type": "redacted_thinking", "data": "xx"}),
            *block_of(
                2,
                {"type": "tool_use", "id": "t", "name": "look", "input": {}},
                {"type": "input_json_delta", "partial_json": ""},
                {"type": "input_json_delta", "partial_json": '{"a": '},
                {"type": "input_json_delta", "partial_json": "[1]}"},
            ),
            *block_of(3, {"type": "tool_use", "id": "u", "name": "now", "input": {}}),
        ),
    )

    assert answer is not None
    assert answer["stop_reason"] == "tool_use"
    assert answer["content"] == [
        {"type": "thinking", "thinking": "so what", "signature": "sig=="},
        {"type": "redacted_thinking", "data": "xx"},
        {"type": "tool_use", "id": "t", "name": "look", "input": {"a": [1]}},
        {"type": "tool_use", "id": "u", "name": "now", "input": {}},
    ]


def test_blocks_in_turns_and_what_the_provider_ran() -> None:
    """By their index; citations are gathered."""
    used, result = (
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
    )
    first = list(block_of(0, used, {"type": "input_json_delta", "partial_json": '{"q": '}))
    second = list(block_of(1, result))
    third = list(
        block_of(
            2,
            {"type": "text", "text": "", "citations": None},
            {"type": "text_delta", "text": "a"},
            {"type": "citations_delta", "citation": {"n": 1}},
            {"type": "text_delta", "text": "b"},
            {"type": "citations_delta", "citation": {"n": 2}},
        )
    )
    rest = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "1}"}}

    answer = fed("messages", in_a_message(*first[:2], *second, rest, *third))

    assert answer is not None
    assert answer["content"] == [
        {**used, "input": {"q": 1}},
        result,
        {"type": "text", "text": "ab", "citations": [{"n": 1}, {"n": 2}]},
    ]


# ---------------------------------------------------------------------------------------------------------- responses


def test_items_come_from_the_last_event_or_from_their_own() -> None:
    """Some servers leave the output of the last event empty."""
    reasoning = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "xx"}
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "look", "arguments": "{}"}
    done = [
        {"type": "response.output_item.added", "output_index": 1, "item": {**call, "arguments": ""}},
        {"type": "response.output_item.done", "output_index": 1, "item": call},
        {"type": "response.output_item.done", "output_index": 0, "item": reasoning},
    ]

    full = fed("responses", [{"type": "response.completed", "response": {"id": "r", "output": [reasoning, call]}}])
    bare = fed("responses", [*done, {"type": "response.completed", "response": {"id": "r", "output": []}}])

    assert full == bare == {"id": "r", "output": [reasoning, call]}
    assert fed("responses", done) is None


@pytest.mark.parametrize("kind", ["response.incomplete", "response.failed"])
def test_an_answer_that_ends_early_is_one(kind: str) -> None:
    """The provider says so itself; that is no break of the stream."""
    assert fed("responses", [{"type": kind, "response": {"status": "x", "output": []}}]) is not None


_LEAF = st.none() | st.integers(0, 2) | st.sampled_from(["", "x", "function", "message_stop", "response.completed"])
_KEYS = (
    "type",
    "choices",
    "index",
    "delta",
    "item",
    "response",
    "tool_calls",
    "function_call",
    "message",
    "content_block",
)
_ANY = st.recursive(
    _LEAF, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=3)
)


@each_dialect
@given(events=st.lists(st.dictionaries(st.sampled_from(_KEYS), _ANY, max_size=4), max_size=4))
def test_whatever_comes_is_no_error(dialect: Dialect, events: list[dict[str, Any]]) -> None:
    """An event of another form is left alone."""
    fed(dialect, events)
