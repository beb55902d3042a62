"""Reading each wire format, and writing notes into its original form."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from litellm_toolguard.dialects import Note, parse, with_notes
from litellm_toolguard.errors import PayloadError
from litellm_toolguard.notes import END_PREFIX
from litellm_toolguard.transcript import Dialect, Location, Round, RunEnd, ToolCall, ToolResult, Transcript, UserInput

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aWJt"}}


def chat(*messages: Any, **more: Any) -> Transcript:
    return parse("chat", {"messages": list(messages), **more})


def messages(*items: Any, **more: Any) -> Transcript:
    return parse("messages", {"messages": list(items), **more})


def responses(*items: Any, **more: Any) -> Transcript:
    return parse("responses", {"input": list(items), **more})


def shape(transcript: Transcript) -> list[Any]:
    """The events in short: rounds as (name, result text or None) pairs, inputs by kind, ends."""
    return [_shape(event) for event in transcript.events]


def _shape(event: Round | UserInput | RunEnd) -> Any:
    if isinstance(event, Round):
        return [(pair.call.name, pair.result.text if pair.result else None) for pair in event.exchanges]
    return event.kind if isinstance(event, UserInput) else "end"


def reasons(transcript: Transcript) -> list[str]:
    return [problem.reason for problem in transcript.problems]


# -------------------------------------------------------------------------------------------------------------- chat


def chat_call(name: str, call_id: str, arguments: Any = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def tool(call_id: str, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


USER = {"role": "user", "content": "go"}


def test_a_chat_batch_is_one_round_in_the_order_of_its_calls() -> None:
    """Results may come in any order."""
    transcript = chat(USER, assistant(chat_call("a", "1"), chat_call("b", "2")), tool("2", "B"), tool("1", "A"))

    assert shape(transcript) == ["user", [("a", "A"), ("b", "B")]]
    assert transcript.rounds[0].end == 3
    assert transcript.rounds[0].exchanges[0].call == ToolCall("1", "a", "{}", Location(1, 0))
    assert transcript.rounds[0].exchanges[1].result == ToolResult("B", None, "", Location(2), True)


def test_the_legacy_function_role_is_paired_by_name() -> None:
    """It has no ids."""
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    transcript = chat(USER, call, {"role": "function", "name": "f", "content": "x"}, call)

    assert shape(transcript) == ["user", [("f", "x")], [("f", None)]]
    assert reasons(transcript) == []


def test_custom_tools_of_chat_keep_their_text() -> None:
    """Their input is no JSON."""
    transcript = chat(assistant({"id": "1", "type": "custom", "custom": {"name": "c", "input": "free text"}}))

    assert transcript.rounds[0].exchanges[0].call.arguments == "free text"


def test_an_id_that_is_used_again_belongs_to_the_newest_round() -> None:
    """Some clients number the calls of every message from one."""
    round_ = (assistant(chat_call("a", "call_1")), tool("call_1", "x"))
    transcript = chat(USER, *round_, *round_)

    assert shape(transcript) == ["user", [("a", "x")], [("a", "x")]]


def test_what_cannot_be_paired_is_not_inspected_and_the_rest_is() -> None:
    """A result before its call, a second result, a result of an older round, a call without a name."""
    transcript = chat(
        tool("1", "early"),
        assistant(chat_call("a", "1"), chat_call("", "9")),
        tool("1", "A"),
        tool("1", "again"),
        assistant(chat_call("b", "2")),
        tool("1", "late"),
        tool("2", "B"),
        {"role": "robot", "content": "x"},
    )

    assert shape(transcript) == [[("a", "A")], [("b", "B")]]
    unpaired = "a tool result without a call of the newest round"
    assert reasons(transcript) == [
        unpaired,
        "a tool call without a name",
        unpaired,
        unpaired,
        "a message of an unknown role",
    ]


def test_words_of_an_earlier_end_are_seen_in_assistant_messages_only() -> None:
    """In a user message or in a result they are text."""
    text = END_PREFIX + "x"
    transcript = chat(
        {"role": "user", "content": text},
        assistant(chat_call("a", "1")),
        tool("1", text),
        {"role": "assistant", "content": [{"type": "text", "text": text}]},
    )

    assert shape(transcript) == ["user", [("a", text)], "end"]


@pytest.mark.parametrize(
    ("more", "allowed"),
    [
        ({}, True),
        ({"tool_choice": "auto"}, True),
        ({"tool_choice": "required"}, False),
        ({"tool_choice": {"type": "function", "function": {"name": "a"}}}, False),
        ({"response_format": {"type": "text"}}, True),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, False),
        ({"function_call": {"name": "a"}}, False),
    ],
)
def test_a_chat_request_that_forces_its_answer_leaves_no_room_for_words(more: dict[str, Any], allowed: bool) -> None:
    """A run of it cannot end in a sentence."""
    assert chat(USER, **more).words_allowed is allowed


# ---------------------------------------------------------------------------------------------------------- messages


def use(name: str, call_id: str, kind: str = "tool_use", **more: Any) -> dict[str, Any]:
    return {"type": kind, "id": call_id, "name": name, "input": {}, **more}


def result(call_id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def says(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_the_error_flag_of_messages_is_kept_with_its_three_values() -> None:
    """True, false and absent."""
    transcript = messages(
        says("assistant", use("a", "1"), use("b", "2"), use("c", "3")),
        says("user", result("1", "x", is_error=True), result("2", "y", is_error=False), result("3", "z")),
    )

    flags = [pair.result.is_error for pair in transcript.rounds[0].exchanges if pair.result]
    assert flags == [True, False, None]


def test_text_beside_results_is_input_behind_the_round() -> None:
    """Each block is one input, of its own kind."""
    reminder = "<system-reminder>\nx\n</system-reminder>"
    transcript = messages(
        says("assistant", use("a", "1")), says("user", result("1", "x"), text("stop that"), text(reminder))
    )

    assert shape(transcript) == [[("a", "x")], "user", "none"]


def test_server_side_tools_are_rounds_of_the_provider() -> None:
    """Each one for itself, in stream order, before the client's calls of the same message."""
    found = {
        "type": "web_search_tool_result",
        "tool_use_id": "s1",
        "content": [{"type": "web_search_result", "url": "u"}],
    }
    failed = {
        "type": "web_search_tool_result",
        "tool_use_id": "s2",
        "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
    }
    remote = {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": False, "content": [text("done")]}
    transcript = messages(
        says(
            "assistant",
            use("web_search", "s1", "server_tool_use"),
            found,
            use("web_search", "s2", "server_tool_use"),
            failed,
            use("ask", "m1", "mcp_tool_use"),
            remote,
            use("a", "1"),
        ),
        says("user", result("1", "x")),
    )

    assert shape(transcript) == [
        [("web_search", "")],
        [("web_search", "max_uses_exceeded")],
        [("ask", "done")],
        [("a", "x")],
    ]
    pairs = [round_.exchanges[0] for round_ in transcript.rounds]
    assert [pair.call.executed_by for pair in pairs] == ["provider", "provider", "provider", "client"]
    assert [pair.result.is_error for pair in pairs if pair.result] == [False, True, False, None]


def test_an_image_in_a_result_is_part_of_its_identity_and_cache_marks_are_not() -> None:
    """The opaque parts tell two results with the same text apart."""
    marked = {**IMAGE, "cache_control": {"type": "ephemeral"}}
    other = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "b3Ro"}}
    opaque = [
        pair.result.opaque
        for block in (IMAGE, marked, other)
        for pair in messages(says("assistant", use("a", "1")), says("user", result("1", [block]))).rounds[0].exchanges
        if pair.result
    ]

    assert opaque[0] == opaque[1] != opaque[2]


def test_an_image_of_the_user_is_input_unless_it_follows_a_round() -> None:
    """Clients of dialects without images in results hand a screenshot over in the user's role."""
    alone = chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]})
    behind = chat(
        assistant(chat_call("a", "1")),
        tool("1", "see below"),
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
    )

    assert (shape(alone), shape(behind)[-1]) == (["user"], "event")


# --------------------------------------------------------------------------------------------------------- responses


def call(name: str, call_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "call_id": call_id, "arguments": "{}", **more}


def output(call_id: str, value: Any, kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, "output": value}


def test_neighbouring_calls_of_responses_are_one_round() -> None:
    """Reasoning between them does not part them; an output does."""
    transcript = responses(
        {"role": "user", "content": "go"},
        {"type": "reasoning", "id": "r", "summary": []},
        call("a", "1"),
        call("b", "2"),
        output("1", "A"),
        output("2", [{"type": "input_text", "text": "B"}]),
        call("c", "3"),
    )

    assert shape(transcript) == ["user", [("a", "A"), ("b", "B")], [("c", None)]]


def test_the_other_client_tools_of_responses_are_calls_too() -> None:
    """Custom, shell, local shell, patch and computer; to structured outputs nothing can be appended."""
    kinds = ("custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call")
    names = {"custom_tool_call": {"name": "mine", "input": "text"}}
    items = [
        item
        for kind in kinds
        for item in (
            {"type": kind, "call_id": kind, "action": {"type": "x"}, "operation": {}, **names.get(kind, {})},
            output(kind, "out" if kind == "custom_tool_call" else {"o": 1}, f"{kind}_output"),
        )
    ]
    pairs = [round_.exchanges[0] for round_ in responses(*items).rounds]

    assert [pair.call.name for pair in pairs] == ["mine", "local_shell", "shell", "apply_patch", "computer"]
    assert [pair.result.carries_text for pair in pairs if pair.result] == [True, False, False, False, False]


def test_hosted_tools_of_responses_are_rounds_of_the_provider() -> None:
    """Also between the client's calls of the same answer, which stay one round behind them."""
    search = {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "q"}}
    remote = {"type": "mcp_call", "id": "m", "server_label": "s", "name": "ask", "arguments": "{}", "output": "yes"}
    broken = {**remote, "output": None, "error": {"type": "x", "message": "no route"}}
    transcript = responses(search, call("a", "1"), remote, call("b", "2"), broken, output("1", "A"), output("2", "B"))

    assert shape(transcript) == [
        [("web_search", "")],
        [("ask", "yes")],
        [("ask", "no route")],
        [("a", "A"), ("b", "B")],
    ]
    assert [round_.exchanges[0].call.executed_by for round_ in transcript.rounds] == ["provider"] * 3 + ["client"]


def test_what_responses_keeps_at_the_provider_is_not_inspected() -> None:
    """A history of another request, an item by reference, a search without its query, an unknown item."""
    transcript = responses(
        {"type": "item_reference", "id": "x"},
        {"type": "web_search_call", "id": "ws", "status": "completed"},
        {"type": "hologram_call"},
        previous_response_id="resp_1",
    )

    assert reasons(transcript) == [
        "an item of an unknown type",
        "a provider's tool call without its arguments",
        "an item of an unknown type",
        "the history is kept by the provider (`previous_response_id`)",
    ]


def test_a_thread_of_messages_that_goes_on_is_not_inspected() -> None:
    """Its earlier messages are the provider's; one that begins is whole."""
    request_ = {"messages": [says("user", text("go"))]}
    transcripts = [parse("messages", {**request_, "thread": {"type": kind}}) for kind in ("continue", "new")]

    assert [reasons(each) for each in transcripts] == [["the history is kept by the provider (`thread`)"], []]


def test_an_input_that_is_one_text_is_the_users() -> None:
    """The short form of a first request."""
    assert shape(parse("responses", {"input": "go"})) == ["user"]


@pytest.mark.parametrize(
    ("dialect", "request_"),
    [("chat", {}), ("chat", {"messages": "x"}), ("messages", {"messages": None}), ("responses", {"input": 3})],
)
def test_a_request_without_a_history_cannot_be_read(dialect: Dialect, request_: dict[str, Any]) -> None:
    """The reason holds no content."""
    with pytest.raises(PayloadError):
        parse(dialect, request_)


# ------------------------------------------------------------------------------------------------------------- notes


def noted(dialect: Dialect, request_: dict[str, Any]) -> list[Any]:
    """The items with a note on the newest round; the caller's own are left as they are."""
    before = copy.deepcopy(request_)
    edited = with_notes(dialect, request_, [Note(parse(dialect, request_).rounds[-1], "NOTE")])
    assert request_ == before
    return list(edited["input" if dialect == "responses" else "messages"])


def test_a_note_stands_at_the_end_of_the_last_result() -> None:
    """Behind a blank line; text stays text, a list gets a part, nothing becomes the note."""
    contents = ["x", [{"type": "text", "text": "x"}], None]
    carried = [
        noted("chat", {"messages": [assistant(chat_call("a", "1")), tool("1", content)]}) for content in contents
    ]

    assert [items[-1]["content"] for items in carried] == [
        "x\n\nNOTE",
        [{"type": "text", "text": "x"}, {"type": "text", "text": "\n\nNOTE"}],
        "\n\nNOTE",
    ]


def test_a_note_takes_another_result_of_the_round_where_the_last_one_cannot_carry_it() -> None:
    """A structured output is left alone."""
    shell = {"type": "shell_call", "call_id": "2", "action": {}}
    items = [call("a", "1"), shell, output("1", "A"), output("2", [{"stdout": "B"}], "shell_call_output")]
    edited = noted("responses", {"input": items})

    assert edited[2]["output"] == "A\n\nNOTE"
    assert edited[3] is items[3]


def test_a_note_without_a_carrier_stands_in_a_message_behind_the_round() -> None:
    """The history that the client sends later is the same up to there."""
    shell = {"type": "shell_call", "call_id": "2", "action": {}}
    in_responses = noted("responses", {"input": [shell, output("2", [{"stdout": "B"}], "shell_call_output")]})
    behind = noted(
        "messages",
        {
            "messages": [
                says(
                    "assistant",
                    use("web_search", "s", "server_tool_use"),
                    {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                ),
                says("user", text("and?")),
            ]
        },
    )

    assert in_responses[-1] == {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "NOTE"}],
    }
    assert behind[1:] == [says("user", text("NOTE")), says("user", text("and?"))]


def test_a_note_never_stands_between_a_call_and_its_result() -> None:
    """Behind a provider's round with calls of the client beside it, the note follows their results."""
    search = (
        use("web_search", "s", "server_tool_use"),
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
    )
    history = [says("assistant", *search, use("a", "1")), says("user", result("1", "x"), text("and?"))]
    first = parse("messages", {"messages": history}).rounds[0]
    edited = with_notes("messages", {"messages": history}, [Note(first, "NOTE")])
    waiting = with_notes("messages", {"messages": history[:1]}, [Note(first, "NOTE")])

    assert edited["messages"][1]["content"] == [result("1", "x"), text("NOTE"), text("and?")]
    assert waiting["messages"] == history[:1]
