"""The twenty-four lists of calls on which guards are compared: right on each, in every dialect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from litellm_toolguard.dialects import parse
from litellm_toolguard.policy import Policy
from litellm_toolguard.review import OVER, Review, review
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, HISTORY, Conversation, expand, live

LISTS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "lists.yaml").read_text(encoding="utf-8"))
KEYS = {"list", "name", "silent", "hint", "over", "executed", "tools", "note", "steps"}

each_dialect = pytest.mark.parametrize("dialect", DIALECTS)
each_list = pytest.mark.parametrize("case", LISTS, ids=lambda case: f"{case['list']:02}: {case['name']}")


def _reviewed(case: Mapping[str, Any], dialect: Dialect) -> Review:
    conversation = Conversation(dialect)
    for step in expand(case["steps"]):
        conversation.add(step)
    return review(parse(dialect, conversation.request()), Policy())


def _in_range(number: int | None, bounds: Sequence[int]) -> bool:
    return number is not None and bounds[0] <= number <= bounds[1]


@each_dialect
@each_list
def test_the_guard_is_right(case: dict[str, Any], dialect: Dialect) -> None:
    """It hints and ends where the list says, and is silent where it says so."""
    seen = _reviewed(case, dialect)

    if case.get("silent"):
        assert seen.interventions == ()
        return
    # A call that is held back tells as much as a note.
    hint = next((each.round for each in seen.interventions if each.action in ("hint", "block")), None)
    over = next((each.round for each in seen.interventions if each.action in OVER), None)
    assert _in_range(hint, case["hint"]), seen.interventions
    assert over is None if case["over"] == "never" else _in_range(over, case["over"]), seen.interventions
    assert seen.calls - seen.saved <= case.get("executed", seen.calls)


def _tool(dialect: Dialect, name: str) -> dict[str, Any]:
    """A tool of one parameter, `command`, as the dialect declares it."""
    schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    if dialect == "messages":
        return {"name": name, "input_schema": schema}
    if dialect == "responses":
        return {"type": "function", "name": name, "parameters": schema}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


@each_dialect
@pytest.mark.parametrize("case", [case for case in LISTS if "note" in case], ids=lambda case: case["name"])
def test_the_note_says_what_the_model_needs(case: dict[str, Any], dialect: Dialect) -> None:
    """For a name that nobody knows it names the tools there are; for wrong arguments it carries the schema."""
    tools = [_tool(dialect, name) for name in case["tools"]]
    seen = live(dialect, case["steps"], more={"tools": tools})

    first = next(request for request, ruling in zip(seen.requests, seen.rulings, strict=False) if ruling.edits)
    note = list(_texts(first[HISTORY[dialect]]))[-1]
    assert [text for text in case["note"] if text not in note] == []


def test_the_table_is_whole() -> None:
    """All twenty-four lists, each with a verdict, and no key that nobody reads."""
    assert [case["list"] for case in LISTS] == list(range(1, 25))
    assert [case["name"] for case in LISTS if set(case) - KEYS] == []
    assert [case["name"] for case in LISTS if ("silent" in case) == ("hint" in case and "over" in case)] == []
