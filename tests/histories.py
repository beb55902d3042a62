"""Hypothesis strategies for histories: what clients send, in every dialect, and what no client should ever send.

A history is a list of `Part`s, so that a test can serve it request by request as a live gateway would. The calls come
from a small alphabet and are repeated, because a history of random calls would never reach a ladder's first rung.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hypothesis import strategies as st

from litellm_toolguard import gate
from litellm_toolguard.policy import Policy
from litellm_toolguard.policy_reading import load_policy
from litellm_toolguard.store.memory import MemoryFactStore
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, HISTORY, judge

PartKind: TypeAlias = Literal["round", "user", "assistant"]

dialects: st.SearchStrategy[Dialect] = st.sampled_from(DIALECTS)
policies: st.SearchStrategy[Policy] = st.sampled_from(
    [
        load_policy(data)
        for data in (
            None,
            {"preset": "strict"},
            {"detectors": {"repeated-call": {"hint": 2, "stop": 3}, "failing-call": {"hint": 2, "reject": 3}}},
            {"detectors": {"repeated-call": {"stop": 3}, "denied-call": {"hint": 2, "stop": 2}}},
            {"preset": "strict", "tools": [{"match": "read_*", "allow": ["repeated-call"]}]},
        )
    ]
)


@dataclass(frozen=True)
class Part:
    """Neighbouring items of a history that arrive in one request: an answer of the model with its results, or input."""

    kind: PartKind
    items: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Served:
    """One request of a conversation and what was ruled on it."""

    items: list[Any]
    ruling: gate.Ruling
    edited: list[Any]


@dataclass(frozen=True)
class Spec:
    """A call and its result, in no dialect."""

    tool: str
    args: Mapping[str, Any]
    result: str
    error: bool = False


# ------------------------------------------------------------------------------------------------ neutral conversations

ERRORS = (
    "Error: not found",
    "Error: no such thing as {arg}",
    "Error: 429 Too Many Requests",
    "Permission denied by user",
)
READS, WRITES, OTHERS = ("read_file", "grep"), ("write_file", "edit_file"), ("bash", "think", "open_app", "job_status")


@st.composite
def specs(draw: st.DrawFn, tools: Sequence[str] = (*READS, *WRITES, *OTHERS)) -> Spec:
    """One call out of a small alphabet, so that two draws are often equal."""
    tool, arg = draw(st.sampled_from(tools)), draw(st.sampled_from(("alpha", "beta")))
    args = {"command": f"make {arg}"} if tool == "bash" else {"path": arg}
    error = draw(st.sampled_from((None, None, *ERRORS)))
    if error is not None:
        return Spec(tool, args, error.format(arg=arg), error=True)
    return Spec(tool, args, draw(st.sampled_from(("done", "", "other"))))


@st.composite
def neutral_steps(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Steps for `tests.conversation`, whose evidence is the same in every dialect: errors are said in words and by the
    flag, what succeeds is a tool whose role is known, and no write is made twice."""
    steps: list[dict[str, Any]] = [{"user": "start"}]
    for segment in range(draw(st.integers(1, 4))):
        rounds = [
            {"round": [_step(spec, f"{segment}") for spec in batch]}
            for batch in draw(st.lists(st.lists(_same_evidence(), min_size=1, max_size=2), min_size=1, max_size=2))
        ]
        steps.append({"times": draw(st.integers(1, 7)), "steps": rounds})
        steps += draw(
            st.sampled_from(([], [], [{"user": f"go on {segment}"}], [{"user": REMINDER}], [{"user": EVENT}]))
        )
    return steps


def _same_evidence() -> st.SearchStrategy[Spec]:
    known = specs(tools=(*READS, *WRITES))
    return st.one_of(known, specs().filter(lambda spec: spec.error))


def _step(spec: Spec, segment: str) -> dict[str, Any]:
    args = dict(spec.args)
    if spec.tool in WRITES and not spec.error:
        args["text"] = segment + ".{i}." + json.dumps(spec.result)
    return {"tool": spec.tool, "args": args, "result": spec.result, "error": spec.error}


# -------------------------------------------------------------------------------------------------- decorated histories

REMINDER = "<system-reminder>\nThe list is empty.\n</system-reminder>"
EVENT = "<task-notification>\n<task-id>t1</task-id>\n</task-notification>"
_CACHE = {"cache_control": {"type": "ephemeral"}}
_UNKNOWN = {"x_unknown": {"z": [1, None, {"y": "é\ud800"}], "a": 0.1}}
_IMAGE: Mapping[Dialect, dict[str, Any]] = {
    "chat": {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    "messages": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    "responses": {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
}
_TEXT_TYPE = {"chat": "text", "messages": "text", "responses": "input_text"}


@st.composite
def parts(draw: st.DrawFn, dialect: Dialect) -> list[Part]:
    """A well-formed history of the dialect with everything that a client may put beside calls and results."""
    found: list[Part] = [_said(dialect, "start", {})]
    number = 0
    for segment in range(draw(st.integers(1, 4))):
        batches = draw(st.lists(st.lists(specs(), min_size=1, max_size=2), min_size=1, max_size=2))
        looks = [draw(_looks(dialect)) for _ in batches]
        for _ in range(draw(st.sampled_from((1, 2, 3, 4, 5, 7, 9)))):
            for batch, look in zip(batches, looks, strict=True):
                number += 1
                found.append(Part("round", tuple(_RENDER[dialect](batch, number, look))))
        found += draw(_between(dialect, segment))
    return found


@dataclass(frozen=True)
class Look:
    """How a round is written."""

    extra: Mapping[str, Any]
    content: Literal["text", "parts", "image", "none", "dict"]
    shape: str
    words: bool


def _looks(dialect: Dialect) -> st.SearchStrategy[Look]:
    shapes = {
        "chat": ("function", "custom", "legacy"),
        "messages": ("plain", "thinking", "server", "server-alone"),
        "responses": ("function", "custom", "shell", "reasoning", "search", "mcp-alone"),
    }
    return st.builds(
        Look,
        st.sampled_from(({}, _CACHE, _UNKNOWN, {**_UNKNOWN, **_CACHE})),
        st.sampled_from(("text", "text", "parts", "image", "none", "dict")),
        st.sampled_from(shapes[dialect]),
        st.booleans(),
    )


def _between(dialect: Dialect, segment: int) -> st.SearchStrategy[list[Part]]:
    image = {"role": "user", "content": [_IMAGE[dialect]]}
    return st.sampled_from(
        [
            [],
            [_said(dialect, f"now this, {segment}", {})],
            [_said(dialect, "go on", _UNKNOWN)],
            [_said(dialect, REMINDER, {})],
            [_said(dialect, EVENT, {})],
            [Part("assistant", ({"role": "assistant", "content": "let me think"},)), _said(dialect, "yes", _CACHE)],
            [Part("user", (image,))],
        ]
    )


def _said(dialect: Dialect, text: str, extra: Mapping[str, Any]) -> Part:
    part = {"type": _TEXT_TYPE[dialect], "text": text, **extra}
    return Part("user", ({"role": "user", "content": [part] if extra else text},))


def _content(dialect: Dialect, spec: Spec, look: Look) -> Any:
    part = {"type": _TEXT_TYPE[dialect], "text": spec.result, **look.extra}
    return {
        "text": spec.result,
        "parts": [part],
        "image": [part, _IMAGE[dialect]],
        "none": None,
        "dict": {"stdout": spec.result},
    }[look.content]


def _chat(batch: Sequence[Spec], number: int, look: Look) -> Iterator[dict[str, Any]]:
    extra = dict(look.extra)
    if look.shape == "legacy":
        spec = batch[0]
        function = {"name": spec.tool, "arguments": json.dumps(spec.args)}
        yield {"role": "assistant", "content": None, "function_call": function, **extra}
        yield {"role": "function", "name": spec.tool, "content": _content("chat", spec, look), **extra}
        return
    calls: list[dict[str, Any]] = []
    for position, spec in enumerate(batch):
        head = {"index": position, "id": f"call_{number}_{position}"}
        if look.shape == "custom":
            calls.append({**head, "type": "custom", "custom": {"name": spec.tool, "input": str(spec.args)}, **extra})
        else:
            function = {"arguments": json.dumps(spec.args), "name": spec.tool}
            calls.append({**head, "function": function, "type": "function", **extra})
    thinking = {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}]} if look.words else {}
    yield {"role": "assistant", "content": "I look" if look.words else None, **thinking, "tool_calls": calls}
    for position, spec in enumerate(batch):
        content = _content("chat", spec, look)
        yield {**extra, "role": "tool", "tool_call_id": f"call_{number}_{position}", "content": content}


def _messages(batch: Sequence[Spec], number: int, look: Look) -> Iterator[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if look.shape == "thinking":
        blocks.append({"type": "thinking", "thinking": "hm", "signature": "c2ln" + "A" * number})
        blocks.append({"type": "redacted_thinking", "data": "ZGF0YQ=="})
    if look.words:
        blocks.append({"type": "text", "text": "I look", "citations": None})
    if look.shape.startswith("server"):
        call_id = f"srvtoolu_{number}"
        found = {"type": "web_search_tool_result_error", "error_code": "unavailable"} if batch[0].error else []
        blocks.append({"type": "server_tool_use", "id": call_id, "name": "web_search", "input": {"query": "a"}})
        blocks.append({"type": "web_search_tool_result", "tool_use_id": call_id, "content": found})
    if look.shape == "server-alone":
        yield {"role": "assistant", "content": [*blocks, {"type": "text", "text": "done"}], **look.extra}
        yield {"role": "user", "content": REMINDER}
        return
    results: list[dict[str, Any]] = []
    for position, spec in enumerate(batch):
        call_id = f"toolu_{number}_{position}"
        blocks.append({"type": "tool_use", "id": call_id, "name": spec.tool, "input": dict(spec.args), **look.extra})
        flag = {"is_error": True} if spec.error else {}
        content = {} if look.content == "none" else {"content": _content("messages", spec, look)}
        results.append({"type": "tool_result", "tool_use_id": call_id, **content, **flag, **look.extra})
    yield {"role": "assistant", "content": blocks}
    reminder = [{"type": "text", "text": REMINDER, **look.extra}] if look.words else []
    yield {**look.extra, "role": "user", "content": [*results, *reminder]}


def _responses(batch: Sequence[Spec], number: int, look: Look) -> Iterator[dict[str, Any]]:
    extra = dict(look.extra)
    if look.shape == "reasoning":
        yield {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "AAA" + "A" * number}
    if look.words:
        yield {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]}
    if look.shape == "mcp-alone":
        spec = batch[0]
        arguments = {"server_label": "s", "arguments": json.dumps(spec.args), "name": spec.tool}
        yield {"type": "mcp_call", "id": f"mcp_{number}", **arguments, "output": spec.result, "error": None, **extra}
        return
    names = [f"call_{number}_{position}" for position in range(len(batch))]
    for name, spec in zip(names, batch, strict=True):
        yield {"id": f"fc_{name}", "call_id": name, "status": "completed", **_responses_call(spec, look), **extra}
    if look.shape == "search":
        action = {"type": "search", "query": batch[0].result}
        yield {"type": "web_search_call", "id": f"ws_{number}", "status": "completed", "action": action}
    for name, spec in zip(names, batch, strict=True):
        kind = {"custom": "custom_tool_call_output", "shell": "shell_call_output"}.get(
            look.shape, "function_call_output"
        )
        content = [{"stdout": spec.result}] if look.shape == "shell" else _content("responses", spec, look)
        yield {**extra, "type": kind, "call_id": name, "output": content}


def _responses_call(spec: Spec, look: Look) -> dict[str, Any]:
    if look.shape == "custom":
        return {"type": "custom_tool_call", "name": spec.tool, "input": str(spec.args)}
    if look.shape == "shell":
        return {"type": "shell_call", "action": {"commands": [spec.tool]}}
    return {"type": "function_call", "name": spec.tool, "arguments": json.dumps(spec.args)}


_RENDER = {"chat": _chat, "messages": _messages, "responses": _responses}


def serve(dialect: Dialect, history: Sequence[Part], policy: Policy, store: MemoryFactStore) -> list[Served]:
    """Every request of the history, judged in order as a live gateway does. Behind an end the guard's words stand, and
    the rest of the run does not happen."""
    items: list[Any] = []
    served: list[Served] = []
    ended = False
    for part in history:
        ended = ended and part.kind != "user"
        if ended:
            continue
        items.extend(part.items)
        if part.kind == "assistant":
            continue
        ruling = judge({HISTORY[dialect]: list(items)}, dialect, policy, store)
        served.append(Served(list(items), ruling, ruling.edits.get(HISTORY[dialect], list(items))))
        if gate.ends_run(ruling.action):
            items.append({"role": "assistant", "content": ruling.words})
            ended = True
    return served


# -------------------------------------------------------------------------------------------------------------- garbage

_NUMBER_TEXTS = ('{"n": 1e999999}', '{"n": 1e9999999}', '{"n": -1e-9999999}', '{"n": NaN}', '{"n": -Infinity}')
_TEXTS = (
    *(
        "",
        "x",
        "\ud800",
        "\0",
        "call_1_0",
        "Error: no",
        "Permission denied by user",
        "[toolguard] ",
        "{",
        '{"error": 1}',
    ),
    *("Exit code: --5", "Exit code: ²", "Exit code: " + "9" * 11, "<returncode>-</returncode>", "<tool_use_error>"),
    *('{"a": 1, "a": "b"}', "[1,", '{"n": ' + "9" * 5000 + "}", "read_file", "tool", "assistant", "function", "custom"),
    *_NUMBER_TEXTS,
)


def nested(depth: int) -> Any:
    """A list in a list, to the given depth."""
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


_SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 10**30, float("nan"), float("inf"), 1e308, -0.0),
    *([], {}, [[]], [None], [{}], {"type": []}, {"type": {}}, {"type": "text"}, {"type": "text", "text": 1}),
    *({"type": ["text"], "text": "x"}, {"type": "tool_result"}, {"type": "tool_use"}, {"function": []}, {"name": "f"}),
)
junk: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(_SCALARS),
    st.sampled_from(_TEXTS),
    # Deeper ones stand in a test of their own: hypothesis could not print them.
    st.sampled_from((99, 100, 101)).map(nested),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
        max_leaves=6,
    ),
)


@st.composite
def broken_items(draw: st.DrawFn, dialect: Dialect) -> list[Any]:
    """A looping history in which some places hold anything, are gone, stand twice or stand elsewhere."""
    history = draw(parts(dialect))
    items: list[Any] = [copy.deepcopy(item) for part in history for item in part.items]
    for _ in range(draw(st.integers(1, 6))):
        _break(draw, items)
    return items


def _break(draw: st.DrawFn, items: list[Any]) -> None:
    holder, key = _a_place(draw, items)
    action = draw(st.sampled_from(("replace", "replace", "replace", "delete", "insert", "again", "move")))
    if action == "replace":
        holder[key] = _some(draw)
    elif action == "delete":
        del holder[key]
    elif isinstance(holder, dict):
        holder[draw(st.sampled_from(("type", "role", "content", "output", "tool_calls", "id", "name")))] = _some(draw)
    elif action == "insert":
        holder.insert(key, _some(draw))
    elif action == "again":
        holder.insert(key, copy.deepcopy(holder[key]))
    else:
        holder.insert(draw(st.integers(0, len(holder))), holder.pop(key))


def _some(draw: st.DrawFn) -> Any:
    """A copy, because the next break may happen inside it."""
    return copy.deepcopy(draw(junk))


def _a_place(draw: st.DrawFn, items: list[Any]) -> tuple[Any, Any]:
    holder: Any = items
    key: Any = draw(st.integers(0, max(0, len(items) - 1)))
    if not items:
        items.append(None)
    while isinstance(holder[key], (dict, list)) and holder[key] and draw(st.booleans() | st.just(True)):
        holder = holder[key]
        key = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
    return holder, key


anything: st.SearchStrategy[Any] = st.one_of(junk, st.lists(junk, max_size=4), st.dictionaries(st.text(), junk))
