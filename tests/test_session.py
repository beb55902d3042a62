"""The conversation with the model as a pure generator: what follows on which answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from litellm_toolguard import gate
from litellm_toolguard.policy import Policy
from litellm_toolguard.session import End, Failed, Proposal, Release, Remember, Reply, Send, session
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, Conversation, expand

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
READ = {"tool": "read_file", "args": {"path": "a"}, "result": "x = 1"}


@dataclass
class Known:
    """The stored facts."""

    facts: dict[bytes, Any] = field(default_factory=dict)

    def of(self, keys: Iterable[bytes]) -> dict[bytes, Any]:
        return {key: self.facts[key] for key in keys if key in self.facts}


def run(dialect: Dialect, *answers: Reply, **policy: Any) -> list[Any]:
    """The effects of the fifth request of a loop of which the guard told, given its answers."""
    made = Policy.model_validate(policy)
    known = Known()
    for rounds in (3, 4):
        conversation = Conversation(dialect)
        for step in expand([{"user": "go"}, {"times": rounds, "steps": [READ]}]):
            conversation.add(step)
        ruling = gate.rule(dialect, conversation.request(), made, known.of)
        known.facts |= ruling.remember
    assert ruling.watch is not None
    steps, effects, replies = session(ruling.watch), [], iter(answers)
    effect = next(steps)
    while not isinstance(effect, (Release, End)):
        effects.append(effect)
        effect = steps.send(next(replies) if isinstance(effect, Send) else None)
    return [*effects, effect]


def calls(dialect: Dialect, path: str = "a") -> Proposal:
    """An answer with a call."""
    text = f'{{"path": "{path}"}}'
    if dialect == "chat":
        function = {"name": "read_file", "arguments": text}
        message = {"role": "assistant", "tool_calls": [{"id": "n", "type": "function", "function": function}]}
        return Proposal({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    if dialect == "messages":
        block = {"type": "tool_use", "id": "n", "name": "read_file", "input": {"path": path}}
        return Proposal({"content": [block], "stop_reason": "tool_use"})
    item = {"type": "function_call", "call_id": "n", "name": "read_file", "arguments": text}
    return Proposal({"output": [item], "status": "completed"})


def refused(dialect: Dialect) -> Proposal:
    """An answer that the provider refused in the middle of a sentence."""
    if dialect == "chat":
        message = {"role": "assistant", "content": "I was about"}
        return Proposal({"choices": [{"message": message, "finish_reason": "content_filter"}]})
    if dialect == "messages":
        return Proposal({"content": [{"type": "text", "text": "I was about"}], "stop_reason": "refusal"})
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I was about"}]}
    why = {"reason": "content_filter"}
    return Proposal({"output": [item], "status": "incomplete", "incomplete_details": why})


@every_dialect
def test_an_equal_call_is_held_and_asked_for_once_more(dialect: Dialect) -> None:
    """Then the run ends; what was held back is remembered before."""
    first, second, remembered, end = run(dialect, calls(dialect), calls(dialect))

    assert (first, len(second.held), type(remembered)) == (Send(), 1, Remember)
    assert (end.action, end.samples, end.objection.count) == ("stop", 2, 5)


@every_dialect
def test_another_call_is_released(dialect: Dialect) -> None:
    """At once, and after a block."""
    assert run(dialect, calls(dialect, "b"))[-1] == Release(None)
    assert isinstance(run(dialect, calls(dialect), calls(dialect, "b"))[-1], Release)


@every_dialect
def test_a_second_answer_that_is_none_ends_the_run(dialect: Dialect) -> None:
    """An error, and a refusal of the provider; a first answer of that kind is passed on."""
    for answer in (Failed("broken"), refused(dialect)):
        end = run(dialect, calls(dialect), answer)[-1]
        assert isinstance(end, End)
        assert end.action == "stop"
        assert isinstance(run(dialect, answer)[-1], Release)
