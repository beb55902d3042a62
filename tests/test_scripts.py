"""What the scripted models do next, as a function of the conversation alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from litellm_toolguard.demo.scripts import HEALTHY_CALLS, MODELS, REFUSED_COMMANDS, Calls, Step, Words, next_step
from litellm_toolguard.notes import MARK

QUESTION: dict[str, Any] = {"role": "user", "content": "Do it."}


def tool(name: str, required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """An OpenAI function tool; every property is required unless `required` says otherwise."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TEXT = {"type": "string"}
SEARCH = tool("search", query=TEXT)
SHELL = tool("shell", timeout={"type": "integer"}, command=TEXT)


def after(messages: list[dict[str, Any]], step: Step, result: Any = "nothing found") -> list[dict[str, Any]]:
    """The conversation once the calls of `step` were answered with `result`."""
    assert isinstance(step, Calls)
    calls = [
        {"id": f"call_{len(messages)}_{index}", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for index, (name, arguments) in enumerate(step.calls)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": result} for call in calls]
    return [*messages, {"role": "assistant", "content": None, "tool_calls": calls}, *results]


def run(model: str, tools: list[dict[str, Any]], steps: int, result: Any = "nothing found") -> list[Step]:
    """The first steps of a run in which every call gets the same result; ends early at an answer in words."""
    messages, taken = [QUESTION], list[Step]()
    while len(taken) < steps and not (taken and isinstance(taken[-1], Words)):
        taken.append(next_step(model, messages, tools))
        messages = after(messages, taken[-1], result) if isinstance(taken[-1], Calls) else messages
    return taken


def test_an_unknown_model_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'gpt-5'.*looping-agent, learning-agent, denied-agent, healthy-agent"):
        next_step("gpt-5", [QUESTION], [])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tools", [[], [{"type": "web_search"}]], ids=["none", "no function"])
def test_every_model_answers_in_words_when_there_is_nothing_to_call(model: str, tools: list[dict[str, Any]]) -> None:
    assert isinstance(next_step(model, [QUESTION], tools), Words)


@pytest.mark.parametrize("model", MODELS)
def test_the_same_conversation_gives_the_same_step(model: str) -> None:
    assert next_step(model, [QUESTION], [SEARCH]) == next_step(model, [QUESTION], [SEARCH])


class TestLooping:
    def test_it_repeats_one_call_whatever_comes_back(self) -> None:
        taken = run("looping-agent", [SEARCH, SHELL], steps=20, result=f"{MARK} Stop that.")

        assert taken == [Calls((("search", {"query": "some query"}),))] * 20

    @pytest.mark.parametrize(
        ("schema", "value"),
        [
            ({"type": "string"}, "some x"),
            ({}, "some x"),
            ({"type": "integer"}, 1),
            ({"type": "number"}, 1),
            ({"type": "boolean"}, False),
            ({"type": "array"}, []),
            ({"type": "object"}, {}),
            ({"type": ["null", "integer"]}, 1),
            ({"type": "null"}, None),
            ({"type": "string", "enum": ["celsius", "kelvin"]}, "celsius"),
        ],
        ids=lambda value: json.dumps(value),
    )
    def test_arguments_fit_the_schema(self, schema: dict[str, Any], value: Any) -> None:
        assert next_step("looping-agent", [QUESTION], [tool("t", x=schema)]) == Calls((("t", {"x": value}),))

    @pytest.mark.parametrize(
        "offered",
        [
            tool("t", required=[], x=TEXT),
            {"type": "function", "function": {"name": "t"}},
            {"type": "function", "function": {"name": "t", "parameters": None}},
        ],
        ids=["optional property", "no schema", "null schema"],
    )
    def test_only_required_properties_are_filled(self, offered: dict[str, Any]) -> None:
        assert next_step("looping-agent", [QUESTION], [offered]) == Calls((("t", {}),))


class TestLearning:
    def test_without_a_note_it_loops(self) -> None:
        assert len(set(map(repr, run("learning-agent", [SEARCH], steps=9, result=f"see {MARK} here")))) == 1

    @pytest.mark.parametrize(
        "result",
        [
            f"{MARK} Do something else.",
            f"nothing found\n\n{MARK} Do something else.",
            [{"type": "text", "text": "nothing found"}, {"type": "text", "text": f"\n\n{MARK} Do something else."}],
        ],
        ids=["alone", "after the output", "in a part"],
    )
    def test_a_note_in_a_result_makes_it_answer(self, result: Any) -> None:
        called, answered = run("learning-agent", [SEARCH], steps=9, result=result)

        assert isinstance(called, Calls)
        assert isinstance(answered, Words)

    def test_a_note_outside_of_results_is_none(self) -> None:
        messages = [{"role": "user", "content": f"{MARK} Do something else."}]

        assert isinstance(next_step("learning-agent", messages, [SEARCH]), Calls)


class TestDenied:
    def test_it_asks_in_other_words_each_time(self) -> None:
        taken = run("denied-agent", [SEARCH, SHELL], steps=9)
        commands = [step.calls[0][1]["command"] for step in taken if isinstance(step, Calls)]

        assert tuple(commands[: len(REFUSED_COMMANDS)]) == REFUSED_COMMANDS
        assert len(set(commands)) == 9

    def test_it_prefers_a_tool_with_a_command(self) -> None:
        assert next_step("denied-agent", [QUESTION], [SEARCH, SHELL]) == Calls(
            (("shell", {"timeout": 1, "command": "rm -rf build"}),)
        )

    def test_without_one_it_takes_the_first_tool(self) -> None:
        assert next_step("denied-agent", [QUESTION], [SEARCH]) == Calls((("search", {"query": "rm -rf build"}),))


class TestHealthy:
    @pytest.mark.parametrize(
        "tools",
        [[SEARCH], [SEARCH, SHELL], [tool("count", n={"type": "integer"})], [tool("bare")]],
        ids=["one tool", "two tools", "numbers only", "no properties"],
    )
    def test_it_makes_different_calls_and_then_answers(self, tools: list[dict[str, Any]]) -> None:
        *calls, last = run("healthy-agent", tools, steps=99)

        assert len(set(map(repr, calls))) == HEALTHY_CALLS
        assert all(isinstance(step, Calls) for step in calls)
        assert isinstance(last, Words)

    def test_a_reminder_of_the_client_does_not_start_it_anew(self) -> None:
        messages = [QUESTION]
        for _ in range(HEALTHY_CALLS):
            messages = [*after(messages, next_step("healthy-agent", messages, [SEARCH])), QUESTION]

        assert isinstance(next_step("healthy-agent", messages, [SEARCH]), Words)
