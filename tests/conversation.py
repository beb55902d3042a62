"""One neutral conversation, rendered in every dialect.

A conversation is a list of steps, as they stand in `tests/cases/*.yaml`:

- `{user: text}`: the user, or a harness in the user's role;
- `{assistant: text}`: words of the model;
- `{tool: name, args: {...}, result: text, error: bool}`: a round of one call; `error` is the flag, where the dialect
  has one;
- `{round: [call, ...]}`: a round of several calls; one with `by: provider` was run by the provider, before the others
  (not in `chat`, which has no such calls);
- `{times: N, steps: [...]}`: steps repeated, `{i}` in a text replaced by the number of the repetition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from litellm_toolguard import gate
from litellm_toolguard.policy import Policy
from litellm_toolguard.store.memory import MemoryFactStore
from litellm_toolguard.transcript import Dialect

Step: TypeAlias = Mapping[str, Any]
DIALECTS: tuple[Dialect, ...] = ("chat", "messages", "responses")
HISTORY = {"chat": "messages", "messages": "messages", "responses": "input"}


def expand(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps with repetitions written out and every call in a round."""
    for step in steps:
        if "times" in step:
            for number in range(step["times"]):
                yield from expand([_numbered(inner, number) for inner in step["steps"]])
        elif "tool" in step:
            yield {"round": [step]}
        else:
            yield step


def _numbered(value: Any, number: int) -> Any:
    if isinstance(value, str):
        return value.replace("{i}", str(number))
    if isinstance(value, Mapping):
        return {key: _numbered(item, number) for key, item in value.items()}
    return [_numbered(item, number) for item in value] if isinstance(value, list) else value


@dataclass
class Conversation:
    """A conversation under construction in one dialect."""

    dialect: Dialect
    items: list[dict[str, Any]] = field(default_factory=list)
    calls: int = 0

    def request(self) -> dict[str, Any]:
        """The request body as it stands."""
        return {"model": "m", HISTORY[self.dialect]: list(self.items)}

    def add(self, step: Step) -> None:
        """Append one expanded step."""
        if "round" in step:
            self._add_round(step["round"])
        elif "user" in step:
            self.items.append({"role": "user", "content": step["user"]})
        else:
            self.items.append({"role": "assistant", "content": step["assistant"]})

    def _add_round(self, calls: Sequence[Step]) -> None:
        named = []
        for call in calls:
            self.calls += 1
            named.append((f"call_{self.calls}", call))
        _ADD[self.dialect](self.items, named)


Named: TypeAlias = list[tuple[str, Step]]


def _is_clients(named: tuple[str, Step]) -> bool:
    return named[1].get("by") != "provider"


def _text_arguments(call: Step) -> str:
    arguments = call.get("args", {})
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _add_chat(items: list[dict[str, Any]], named: Named) -> None:
    calls = [
        {"id": name, "type": "function", "function": {"name": call["tool"], "arguments": _text_arguments(call)}}
        for name, call in named
    ]
    items.append({"role": "assistant", "content": None, "tool_calls": calls})
    items.extend(
        {"role": "tool", "tool_call_id": name, "content": call["result"]} for name, call in named if "result" in call
    )


def _add_messages(items: list[dict[str, Any]], named: Named) -> None:
    blocks: list[dict[str, Any]] = []
    for name, call in sorted(named, key=_is_clients):
        use = {"id": name, "name": call["tool"], "input": call.get("args", {})}
        blocks.append({"type": "tool_use" if _is_clients((name, call)) else "mcp_tool_use", **use})
        if not _is_clients((name, call)):
            text = {"type": "text", "text": call["result"]}
            blocks.append({"type": "mcp_tool_result", "tool_use_id": name, "is_error": False, "content": [text]})
    items.append({"role": "assistant", "content": blocks})
    results = []
    for name, call in filter(_is_clients, named):
        if "result" in call:
            flag = {"is_error": call["error"]} if "error" in call else {}
            results.append({"type": "tool_result", "tool_use_id": name, "content": call["result"], **flag})
    if results:
        items.append({"role": "user", "content": results})


def _add_responses(items: list[dict[str, Any]], named: Named) -> None:
    for name, call in sorted(named, key=_is_clients):
        asked = {"name": call["tool"], "arguments": _text_arguments(call)}
        if _is_clients((name, call)):
            items.append({"type": "function_call", "call_id": name, **asked})
        else:
            items.append({"type": "mcp_call", "id": name, "server_label": "s", **asked, "output": call["result"]})
    for name, call in filter(_is_clients, named):
        if "result" in call:
            items.append({"type": "function_call_output", "call_id": name, "output": call["result"]})


_ADD = {"chat": _add_chat, "messages": _add_messages, "responses": _add_responses}


@dataclass(frozen=True)
class Live:
    """What a live guard did over a conversation.

    Args:
        events: (round from 1, action, detector) of every request on which it said something.
        requests: the edited request of every boundary that was not ended.
    """

    events: list[tuple[int, str, str]]
    requests: list[dict[str, Any]]
    rulings: list[gate.Ruling]


def live(
    dialect: Dialect,
    steps: Sequence[Step],
    policy: Policy | None = None,
    more: Mapping[str, Any] | None = None,
    judged: frozenset[int] | None = None,
) -> Live:
    """Judge every request of the conversation as a gateway would, from its start. Behind an end, the guard's words
    stand in the history and the rounds up to the next input do not happen.

    Args:
        more: more keys of each request.
        judged: numbers of the rounds whose requests are judged, from 1; None for all.
    """
    policy = policy or Policy()
    store = MemoryFactStore()
    conversation = Conversation(dialect)
    seen = Live([], [], [])
    rounds, ended = 0, False
    for step in expand(steps):
        ended = ended and "user" not in step
        rounds += "round" in step
        if ended:
            continue
        conversation.add(step)
        if "assistant" in step or (judged is not None and rounds not in judged):
            continue
        ruling = judge({**conversation.request(), **(more or {})}, dialect, policy, store)
        seen.rulings.append(ruling)
        if ruling.report is not None and ruling.report["action"] != "pass":
            seen.events.append((rounds, ruling.report["action"], ruling.report["detector"]))
        if gate.ends_run(ruling.action):
            conversation.add({"assistant": ruling.words})
            ended = True
        else:
            seen.requests.append({**conversation.request(), **ruling.edits})
    return seen


def judge(request: Mapping[str, Any], dialect: Dialect, policy: Policy, store: MemoryFactStore) -> gate.Ruling:
    """One request through the gate, its facts stored."""
    ruling = gate.rule(dialect, request, policy, lambda instances: store.counts("t", instances))
    store.remember("t", ruling.remember)
    return ruling
