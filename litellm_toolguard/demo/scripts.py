"""What each scripted model of the demo does next: pure functions over OpenAI chat messages and tools.

A scripted model has no memory. Everything it knows stands in the messages it is given, so it behaves the same through
every endpoint, on every worker and after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from litellm_toolguard.notes import MARK

Message: TypeAlias = Mapping[str, Any]
Tool: TypeAlias = Mapping[str, Any]

HEALTHY_CALLS = 12

# Each one does the same thing in other words, as a model does that takes a refusal for a matter of form.
REFUSED_COMMANDS = (
    "rm -rf build",
    "rm -r ./build",
    "/bin/rm -rf build",
    "sudo rm -rf build",
    "find build -delete",
)


@dataclass(frozen=True, slots=True)
class Calls:
    """The model calls tools: pairs of a tool's name and its arguments, never empty."""

    calls: tuple[tuple[str, dict[str, Any]], ...]


@dataclass(frozen=True, slots=True)
class Words:
    """The model answers in words."""

    text: str


Step: TypeAlias = Calls | Words


def next_step(model: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Step:
    """The next step of the scripted model `model`.

    Args:
        model: one of `MODELS`.
        messages: OpenAI chat messages, oldest first.
        tools: OpenAI chat tools. What is not a named function is left out; without any, every model answers in words.

    Raises:
        ValueError: the model is unknown; the message names those that exist.
    """
    script = _SCRIPTS.get(model)
    if script is None:
        raise ValueError(f"unknown scripted model {model!r}; known: {', '.join(MODELS)}")
    functions = [function for tool in tools if (function := _function(tool)) is not None]
    if not functions:
        return Words("No tool is offered, so there is nothing for me to call.")
    return script(messages, functions)


def _looping(messages: Sequence[Message], functions: Sequence[Tool]) -> Step:
    """The same call for ever, whatever comes back."""
    del messages
    return _call(functions[0], _arguments(functions[0]))


def _learning(messages: Sequence[Message], functions: Sequence[Tool]) -> Step:
    """The same call until a tool result carries a note of the guard."""
    if any(_is_noted(text) for text in _result_texts(messages)):
        return Words("The note is right: the same call again tells me nothing new. Here is what I know so far.")
    return _call(functions[0], _arguments(functions[0]))


def _denied(messages: Sequence[Message], functions: Sequence[Tool]) -> Step:
    """A refused command again and again, each time in other words."""
    function = next((each for each in functions if _takes_text(each, "command")), functions[0])
    return _call(function, _worded(function, _refused_command(_calls_done(messages)), preferred="command"))


def _healthy(messages: Sequence[Message], functions: Sequence[Tool]) -> Step:
    """Twelve different calls, then an answer."""
    done = _calls_done(messages)
    if done >= HEALTHY_CALLS:
        return Words(f"Done: {done} calls, each of them another one.")
    function = functions[done % len(functions)]
    return _call(function, _numbered(function, done + 1))


_SCRIPTS: Mapping[str, Callable[[Sequence[Message], Sequence[Tool]], Step]] = MappingProxyType(
    {
        "looping-agent": _looping,
        "learning-agent": _learning,
        "denied-agent": _denied,
        "healthy-agent": _healthy,
    }
)
MODELS = tuple(_SCRIPTS)


# --- arguments out of a JSON schema


def _arguments(function: Tool) -> dict[str, Any]:
    """A value for each required property of the function's schema, always the same."""
    properties = _properties(function)
    required = _mapping(function.get("parameters")).get("required")
    names = required if isinstance(required, list) else []
    return {name: _value(name, _mapping(properties.get(name))) for name in names if isinstance(name, str)}


def _value(name: str, schema: Mapping[str, Any]) -> Any:
    """A fixed value that fits the schema of the property `name`."""
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    fixed: dict[str, Any] = {"integer": 1, "number": 1, "boolean": False, "null": None, "array": [], "object": {}}
    return fixed.get(_type(schema), f"some {name}")


def _type(schema: Mapping[str, Any]) -> str:
    """The schema's type; the first that is not null where it lists several; `string` where it names none."""
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    return kind if isinstance(kind, str) else "string"


def _worded(function: Tool, text: str, preferred: str) -> dict[str, Any]:
    """The function's arguments with `text` in its `preferred` property, else in its first one that takes text."""
    names = [name for name in _properties(function) if _takes_text(function, name)]
    target = preferred if preferred in names or not names else names[0]
    return {**_arguments(function), target: text}


def _numbered(function: Tool, number: int) -> dict[str, Any]:
    """The function's arguments made different from those of every other number."""
    names = [*_arguments(function), *_properties(function)]
    text = next((name for name in names if _takes_text(function, name)), None)
    if text is not None:
        return {**_arguments(function), text: f"{text} {number}"}
    counter = next((name for name in names if _takes_number(function, name)), "step")
    return {**_arguments(function), counter: number}


def _takes_text(function: Tool, name: str) -> bool:
    schema = _properties(function).get(name)
    return isinstance(schema, Mapping) and _type(schema) == "string" and "enum" not in schema


def _takes_number(function: Tool, name: str) -> bool:
    schema = _mapping(_properties(function).get(name))
    return _type(schema) in ("integer", "number") and "enum" not in schema


def _refused_command(attempt: int) -> str:
    """The wording of the attempt with this number, counted from 0; no two are alike."""
    if attempt < len(REFUSED_COMMANDS):
        return REFUSED_COMMANDS[attempt]
    return f"{REFUSED_COMMANDS[0]} # attempt {attempt + 1}"


# --- reading the conversation


def _calls_done(messages: Sequence[Message]) -> int:
    """How many tool calls the assistant has made, in the whole conversation.

    Not those since the last user message: clients put reminders beside a tool's result, and LiteLLM's bridges turn them
    into messages of the user.
    """
    return sum(len(_list(message.get("tool_calls"))) for message in messages)


def _result_texts(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if message.get("role") == "tool":
            yield from _texts(message.get("content"))


def _texts(content: Any) -> Iterator[str]:
    """The text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        yield content
    for part in _list(content):
        text = _mapping(part).get("text")
        if isinstance(text, str):
            yield text


def _is_noted(text: str) -> bool:
    return any(line.startswith(MARK) for line in text.splitlines())


# --- small readers


def _function(tool: Tool) -> Tool | None:
    """The function a tool offers, or None for a tool of another kind."""
    function = _mapping(tool.get("function"))
    return function if isinstance(function.get("name"), str) else None


def _properties(function: Tool) -> Mapping[str, Any]:
    return _mapping(_mapping(function.get("parameters")).get("properties"))


def _call(function: Tool, arguments: dict[str, Any]) -> Calls:
    return Calls(((str(function["name"]), arguments),))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
