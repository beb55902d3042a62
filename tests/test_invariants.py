"""The promises that hold for every history, whatever a client or a model writes into it."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from types import FrameType
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litellm_toolguard import gate, notes
from litellm_toolguard.canonical import canonical_arguments, parse_arguments
from litellm_toolguard.policy import Policy
from litellm_toolguard.policy_reading import load_policy
from litellm_toolguard.store.memory import MemoryFactStore
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, HISTORY, Conversation, Step, expand, judge
from tests.histories import (
    EVENT,
    Part,
    Served,
    anything,
    broken_items,
    nested,
    neutral_steps,
    parts,
    policies,
    serve,
)

# Examples do not change from run to run, so a failure here is a change of the code and not of the dice.
_SLOW: Final = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
histories_served = settings(
    max_examples=14, deadline=None, derandomize=True, database=None, suppress_health_check=_SLOW
)
values_compared = settings(
    max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=_SLOW
)

each_dialect = pytest.mark.parametrize("dialect", DIALECTS)
NEW_WORDS = "Please stop that and look at the other module instead."


def dump(value: Any) -> str:
    """The value as it would go over the wire: equal text means equal values in equal key order."""
    return json.dumps(value)


def always(dialect: Dialect) -> Callable[..., Any]:
    """Any well-formed history of the dialect under any policy."""
    return given(history=parts(dialect), policy=policies)


def in_each_dialect(check: Callable[[Dialect, list[Part], Policy], None]) -> Callable[[Dialect], None]:
    """The check over generated histories of each dialect, one test for each."""

    @each_dialect
    def test(dialect: Dialect) -> None:
        @histories_served
        @always(dialect)
        def run(history: list[Part], policy: Policy) -> None:
            check(dialect, history, policy)

        run()

    test.__doc__ = check.__doc__
    return test


# ------------------------------------------------------------------------------------------- 1 what is not edited stays


def _is_note(value: Any) -> bool:
    text = value.get("text") if isinstance(value, dict) else value
    return isinstance(text, str) and text.lstrip("\n").startswith(notes.MARK) and len(text.splitlines()) <= 3


def _is_note_message(item: Any) -> bool:
    content = item.get("content") if isinstance(item, dict) and item.get("role") == "user" else None
    return _is_note(content[0] if isinstance(content, list) and len(content) == 1 else content)


def notes_added(dialect: Dialect, before: Sequence[Any], after: Sequence[Any]) -> int:
    """How many notes the edited items hold; fails where anything else differs."""
    return _notes_between(before, after, _is_note_message, lambda old, new: _notes_in_item(dialect, old, new))


def _notes_between(
    before: Sequence[Any],
    after: Sequence[Any],
    is_note: Callable[[Any], bool],
    compare: Callable[[Any, Any], int],
) -> int:
    added, at = 0, 0
    for old in before:
        while is_note(after[at]) and dump(after[at]) != dump(old):
            added, at = added + 1, at + 1
        added, at = added + compare(old, after[at]), at + 1
    assert all(is_note(rest) for rest in after[at:])
    return added + len(after) - at


def _notes_in_item(dialect: Dialect, old: Any, new: Any) -> int:
    if dump(old) == dump(new):
        return 0
    if dialect == "messages":
        _assert_only_differs_in("content", old, new)
        said = [{"type": "text", "text": old["content"]}] if isinstance(old["content"], str) else old["content"]
        return _notes_between(said, new["content"], _is_note, _note_in_block)
    return _note_at_the_end_of("output" if dialect == "responses" else "content", old, new)


def _note_in_block(old: Any, new: Any) -> int:
    return 0 if dump(old) == dump(new) else _note_at_the_end_of("content", old, new)


def _note_at_the_end_of(name: str, old: Any, new: Any) -> int:
    _assert_only_differs_in(name, old, new)
    was, now = old.get(name), new[name]
    if isinstance(was, list):
        assert dump(now[:-1]) == dump(was)
        assert now[-1]["text"].startswith("\n\n")
        assert _is_note(now[-1])
    else:
        text = was or ""
        assert now.startswith(text + "\n\n" + notes.MARK)
        assert _is_note(now[len(text) :])
    return 1


def _assert_only_differs_in(name: str, old: Any, new: Any) -> None:
    assert isinstance(old, dict)
    assert list(new) == list(old if name in old else [*old, name])
    assert dump({key: new[key] for key in old if key != name}) == dump({key: old[key] for key in old if key != name})


@in_each_dialect
def test_what_is_not_edited_is_unchanged(dialect: Dialect, history: list[Part], policy: Policy) -> None:
    """An edited request equals the client's everywhere but in the notes: values, key order, unknown keys, cache marks,
    signatures. Nothing that the client sent is changed in place, and without a note there is no edit at all."""
    untouched = copy.deepcopy(history)

    served = serve(dialect, history, policy, MemoryFactStore())

    assert dump([part.items for part in history]) == dump([part.items for part in untouched])
    for request in served:
        added = notes_added(dialect, request.items, request.edited)
        assert (request.ruling.edits == {}) == (added == 0)
        assert set(request.ruling.edits) <= {HISTORY[dialect]}


@in_each_dialect
def test_every_hint_is_one_note_more(dialect: Dialect, history: list[Part], policy: Policy) -> None:
    """A request that is ruled a hint carries a note that the one before it did not carry, and never two more for its
    newest round; a hint that could not be written anywhere would count as said."""
    before = 0
    for request in serve(dialect, history, policy, MemoryFactStore()):
        if gate.ends_run(request.ruling.action):
            continue
        now = notes_added(dialect, request.items, request.edited)
        assert now >= before
        assert now > 0 or request.ruling.action != "hint"
        before = now


def test_a_note_that_finds_no_place_counts_as_not_said() -> None:
    """A history may end in the model's own message, with a provider's tool in it that nothing can be appended to. The
    run is not ended before a note about it was really sent."""
    store, told = MemoryFactStore(), False
    items: list[Any] = [{"role": "user", "content": "start"}]
    for number in range(12):
        name = f"srvtoolu_{number}"
        call = {"type": "server_tool_use", "id": name, "name": "bash_code_execution", "input": {"command": "ls"}}
        result = {"type": "bash_code_execution_tool_result", "tool_use_id": name, "content": {"stdout": "a"}}
        items.append({"role": "assistant", "content": [call, result]})
        ruling = judge({"messages": list(items)}, "messages", Policy(), store)
        assert told or not gate.ends_run(ruling.action)
        added = notes_added("messages", items, ruling.edits.get("messages", items))
        assert (ruling.edits == {}) == (added == 0)
        told = told or added > 0


# ---------------------------------------------------------------------------------------------------------- 2 pairing


def answered_once(dialect: Dialect, items: Sequence[Any]) -> list[tuple[int, str]]:
    """Every call of the history that has exactly one result where its provider looks for it, in order."""
    return list(_ANSWERED[dialect](items))


def _chat_answered(items: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """Results stand directly behind the message of their calls."""
    number = 0
    for at, item in enumerate(items):
        calls = item.get("tool_calls") if isinstance(item, dict) else None
        if not isinstance(calls, list):
            continue
        behind: list[Any] = []
        for later in items[at + 1 :]:
            if not isinstance(later, dict) or later.get("role") != "tool":
                break
            behind.append(later.get("tool_call_id"))
        for call in calls:
            number += 1
            name = call.get("id") if isinstance(call, dict) else None
            if isinstance(name, str) and behind.count(name) == 1:
                yield number, name


def _messages_answered(items: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """Results stand in the next message, in front of any text that the guard adds."""
    number = 0
    for at, item in enumerate(items):
        for call in _blocks(item, "tool_use"):
            number += 1
            behind = (
                [block.get("tool_use_id") for block in _blocks(items[at + 1], "tool_result")] if items[at + 1 :] else []
            )
            if isinstance(call.get("id"), str) and behind.count(call["id"]) == 1:
                yield number, call["id"]


def _blocks(item: Any, kind: str) -> list[Any]:
    """The blocks of one kind; results behind a note do not count, the provider refuses those."""
    content = item.get("content") if isinstance(item, dict) else None
    found: list[Any] = []
    for block in content if isinstance(content, list) else ():
        if kind == "tool_result" and _is_note(block):
            break
        if isinstance(block, dict) and block.get("type") == kind:
            found.append(block)
    return found


def _responses_answered(items: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """An output stands anywhere behind its call."""
    number = 0
    for at, item in enumerate(items):
        if not isinstance(item, dict) or not str(item.get("type")).endswith("_call"):
            continue
        number += 1
        name = item.get("call_id")
        behind = [later.get("call_id") for later in items[at + 1 :] if _is_output(later)]
        if isinstance(name, str) and behind.count(name) == 1:
            yield number, name


def _is_output(item: Any) -> bool:
    return isinstance(item, dict) and str(item.get("type")).endswith("_output")


_ANSWERED: Mapping[Dialect, Callable[[Sequence[Any]], Iterator[tuple[int, str]]]] = {
    "chat": _chat_answered,
    "messages": _messages_answered,
    "responses": _responses_answered,
}


@in_each_dialect
def test_a_rewrite_never_makes_pairing_worse(dialect: Dialect, history: list[Part], policy: Policy) -> None:
    """Every call that had exactly one result where the provider looks for it still has it after an edit."""
    for request in serve(dialect, history, policy, MemoryFactStore()):
        assert answered_once(dialect, request.edited) == answered_once(dialect, request.items)


@each_dialect
def test_a_rewrite_never_makes_broken_pairing_worse(dialect: Dialect) -> None:
    """What came broken passes as it came; what was whole beside it stays whole."""

    @histories_served
    @given(items=broken_items(dialect), policy=policies)
    def run(items: list[Any], policy: Policy) -> None:
        before = copy.deepcopy(items)
        store = MemoryFactStore()
        for end in (len(items) * 2 // 3, len(items)):
            ruling = judge({HISTORY[dialect]: items[:end]}, dialect, policy, store)
            edited = ruling.edits.get(HISTORY[dialect], items[:end])
            assert dump(items) == dump(before)
            assert answered_once(dialect, edited) == answered_once(dialect, items[:end])
            notes_added(dialect, items[:end], edited)

    run()


# ----------------------------------------------------------------------------------------------------- 3, 4 same again


@in_each_dialect
def test_a_longer_history_begins_as_the_shorter_was_sent(dialect: Dialect, history: list[Part], policy: Policy) -> None:
    """What was sent once is sent again byte for byte in front of what is new, also behind input, reminders and an end,
    so that the provider's prompt cache keeps hitting."""
    before: list[Any] = []
    for request in serve(dialect, history, policy, MemoryFactStore()):
        if gate.ends_run(request.ruling.action):
            continue
        assert dump(request.edited[: len(before)]) == dump(before)
        before = request.edited


def _said(ruling: gate.Ruling) -> tuple[Any, ...]:
    return ruling.action, ruling.words, dump(ruling.edits), ruling.header, ruling.code, ruling.inspected


@in_each_dialect
def test_the_same_request_twice_is_ruled_the_same(dialect: Dialect, history: list[Part], policy: Policy) -> None:
    """A client's retry is no new round: whatever was remembered for the first attempt, the second gets the same."""
    store = MemoryFactStore()
    for request in serve(dialect, history, policy, MemoryFactStore()):
        first = judge({HISTORY[dialect]: request.items}, dialect, policy, store)
        again = judge({HISTORY[dialect]: copy.deepcopy(request.items)}, dialect, policy, store)
        assert _said(first) == _said(again) == _said(request.ruling)


@in_each_dialect
def test_a_replay_equals_what_was_live(dialect: Dialect, history: list[Part], policy: Policy) -> None:
    """The verdict depends on the request, the policy and the facts only: recorded requests, judged in order with a
    fresh store, are ruled as they were."""
    recorded = [json.loads(dump((request.items, _said(request.ruling)))) for request in _live(dialect, history, policy)]

    store = MemoryFactStore()
    replayed = [judge({HISTORY[dialect]: items}, dialect, policy, store) for items, _ in recorded]

    assert [list(_said(ruling)) for ruling in replayed] == [said for _, said in recorded]


def _live(dialect: Dialect, history: list[Part], policy: Policy) -> list[Served]:
    return serve(dialect, history, policy, MemoryFactStore())


# ------------------------------------------------------------------------------------------------------- 5 new input


@in_each_dialect
def test_new_input_of_the_user_empties_every_streak(dialect: Dialect, history: list[Part], policy: Policy) -> None:
    """Whatever came before, words that the user had not said yet let the run go on."""
    store = MemoryFactStore()
    for request in serve(dialect, history, policy, store):
        ruling = judge(_with_words(dialect, request.items), dialect, policy, store)
        assert ruling.action == "pass"


@each_dialect
def test_new_input_passes_behind_a_broken_history(dialect: Dialect) -> None:
    """Also where parts of the history cannot be read, or calls are still pending."""

    @histories_served
    @given(items=broken_items(dialect), policy=policies)
    def run(items: list[Any], policy: Policy) -> None:
        store = MemoryFactStore()
        for end in (len(items) // 2, len(items)):
            judge({HISTORY[dialect]: items[:end]}, dialect, policy, store)
            assert judge(_with_words(dialect, items[:end]), dialect, policy, store).action == "pass"

    run()


def _with_words(dialect: Dialect, items: Sequence[Any]) -> dict[str, Any]:
    return {HISTORY[dialect]: [*items, {"role": "user", "content": NEW_WORDS}]}


# ------------------------------------------------------------------------------------------------------ 12 never raises


def _is_ruled(request: Mapping[str, Any], dialect: Dialect, policy: Policy | None = None) -> gate.Ruling:
    ruling = gate.rule(dialect, request, policy or Policy(), lambda _: {})
    assert ruling.inspected in ("whole", "part", "none")
    assert ruling.header.isascii()
    return ruling


@each_dialect
def test_a_broken_history_is_ruled(dialect: Dialect) -> None:
    """Anything in any place of a looping history gives a ruling and never an error: a fault of the guard would let the
    loop pass unseen."""

    @settings(histories_served, max_examples=60)
    @given(items=broken_items(dialect), policy=policies)
    def run(items: list[Any], policy: Policy) -> None:
        store = MemoryFactStore()
        for end in (len(items), len(items) // 2):
            judge({HISTORY[dialect]: items[:end]}, dialect, policy, store)

    run()


@each_dialect
def test_anything_is_ruled(dialect: Dialect) -> None:
    """Anything at all as a history, and beside it, gives a ruling."""
    keys = st.sampled_from(("tool_choice", "function_call", "response_format", "text", "output_config", "conversation"))

    @values_compared
    @given(history=anything, more=st.dictionaries(keys, anything, max_size=2))
    def run(history: Any, more: dict[str, Any]) -> None:
        _is_ruled({HISTORY[dialect]: history, **more}, dialect)
        _is_ruled(more, dialect)

    run()


def _one_call(dialect: Dialect, arguments: Any, result: Any = "Error: no") -> dict[str, Any]:
    conversation = Conversation(dialect)
    for _ in range(3):
        conversation.add({"round": [{"tool": "get", "args": arguments, "result": result, "error": True}]})
    return conversation.request()


WRONG: Mapping[str, tuple[Dialect, list[Any]]] = {
    "chat: a role that is a list": ("chat", [{"role": [], "content": "x"}]),
    "chat: a role that is an object": ("chat", [{"role": {}, "content": "x"}]),
    "chat: tool calls that are a number": ("chat", [{"role": "assistant", "tool_calls": 5}]),
    "chat: tool calls that are true": ("chat", [{"role": "assistant", "tool_calls": True}]),
    "chat: tool calls that are an object": ("chat", [{"role": "assistant", "tool_calls": {"id": "a"}}]),
    "chat: tool calls that are text": ("chat", [{"role": "assistant", "tool_calls": "read_file"}]),
    "chat: content that is a number": ("chat", [{"role": "user", "content": 5}, {"role": "tool", "content": 5}]),
    "chat: a part of a type that is a list": ("chat", [{"role": "user", "content": [{"type": [], "text": "x"}]}]),
    "messages: a part of a type that is an object": ("messages", [{"role": "user", "content": [{"type": {}}]}]),
    "messages: a flag that is text": (
        "messages",
        [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "text"}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": "yes", "content": 5}]},
        ],
    ),
    "responses: a part of a type that is a list": ("responses", [{"role": "user", "content": [{"type": ["text"]}]}]),
    "responses: an output in front of its call": (
        "responses",
        [
            {"type": "function_call_output", "call_id": "a", "output": "x"},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": {"a": 1}},
        ],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_is_ruled(name: str) -> None:
    """A value of a wrong type in a known place gives a ruling."""
    dialect, items = WRONG[name]
    _is_ruled({HISTORY[dialect]: items}, dialect)


@each_dialect
@pytest.mark.parametrize(
    "number", ["1e999999", "1e9999999", "-1e-9999999", "9.9e999999999999999999999", "NaN", "-Infinity", "9" * 5000]
)
def test_a_number_of_any_size_is_ruled(dialect: Dialect, number: str) -> None:
    """A number in the text of arguments, however large, gives a ruling."""
    _is_ruled(_one_call(dialect, f'{{"n": {number}}}'), dialect)


@each_dialect
@pytest.mark.parametrize(
    "text", ["Exit code: --5", "Exit code: ²", "<returncode>-</returncode>", "{" * 3000, "[" * 3000]
)
def test_a_text_that_looks_like_an_exit_code_is_ruled(dialect: Dialect, text: str) -> None:
    """A result that begins as a client's own shape and goes on otherwise gives a ruling."""
    _is_ruled(_one_call(dialect, {}, text), dialect)


@each_dialect
@pytest.mark.parametrize("opened", ['{"a":', "["])
def test_arguments_of_any_depth_are_ruled(dialect: Dialect, opened: str) -> None:
    """Arguments nested to any depth give a ruling, also where the interpreter's stack is nearly used up; the steps are
    small, because parsing and comparing give up at different depths."""
    closed = "}" if opened.startswith("{") else "]"
    for depth in [*range(20, 1200, 20), 5_000, 100_000]:
        _is_ruled(_one_call(dialect, opened * depth + '"x"' + closed * depth), dialect)


PLACES_FOR_DEPTH: Mapping[str, Callable[[Any], tuple[Dialect, dict[str, Any]]]] = {
    "arguments": lambda deep: ("messages", _one_call("messages", {"a": deep})),
    "chat result": lambda deep: ("chat", _one_call("chat", {}, {"a": deep})),
    "chat part": lambda deep: ("chat", _one_call("chat", {}, [{"type": "image", "a": deep}])),
    "messages result": lambda deep: ("messages", _one_call("messages", {}, {"a": deep})),
    "responses output": lambda deep: ("responses", _one_call("responses", {}, [deep])),
    "a legacy name": lambda deep: ("chat", {"messages": [{"role": "function", "name": deep, "content": "x"}]}),
    "an item's type": lambda deep: ("responses", {"input": [{"type": deep}]}),
    "a provider's output": lambda deep: (
        "responses",
        {"input": [{"type": "file_search_call", "id": "a", "queries": ["q"], "results": deep}]},
    ),
    "a provider's id": lambda deep: (
        "responses",
        {"input": [{"type": "file_search_call", "id": deep, "queries": ["q"]}]},
    ),
}


@pytest.mark.parametrize("place", PLACES_FOR_DEPTH)
def test_a_value_of_any_depth_is_ruled(place: str) -> None:
    """A value nested to any depth, in any place, gives a ruling."""
    for depth in (99, 150, 500, 950, 1500, 20_000):
        dialect, request = PLACES_FOR_DEPTH[place](nested(depth))
        _is_ruled(request, dialect)


# ---------------------------------------------------------------------------------------------------- 13 three dialects


def _decisions(dialect: Dialect, steps: Sequence[Step], policy: Policy) -> list[tuple[Any, ...]]:
    store, conversation, ended = MemoryFactStore(), Conversation(dialect), False
    decisions: list[tuple[Any, ...]] = []
    for step in expand(steps):
        ended = ended and "user" not in step
        if ended:
            continue
        conversation.add(step)
        ruling = judge(conversation.request(), dialect, policy, store)
        report = ruling.report or {}
        decisions.append((ruling.action, report.get("detector"), report.get("tool"), report.get("count"), ruling.words))
        if gate.ends_run(ruling.action):
            conversation.add({"assistant": ruling.words})
            ended = True
    return decisions


def _assert_alike(steps: Sequence[Step], policy: Policy) -> None:
    chat, messages, responses = (_decisions(dialect, steps, policy) for dialect in DIALECTS)
    assert chat == messages
    assert chat == responses


@settings(histories_served, max_examples=60)
@given(steps=neutral_steps(), policy=policies)
def test_the_three_dialects_decide_alike(steps: list[Step], policy: Policy) -> None:
    """The same conversation with the same evidence gets the same decision at the same request in every dialect."""
    _assert_alike(steps, policy)


ALIKE: Mapping[str, list[Step]] = {
    "errors that echo a number with a fraction": [
        {"tool": "get", "args": {"x": 1.255}, "result": "Error: none at 1.255", "error": True},
        {"tool": "get", "args": {"x": 2.755}, "result": "Error: none at 2.755", "error": True},
    ],
    "a write that is made again": [
        {"tool": "write_file", "args": {"path": "a"}, "result": "ok"},
        {"tool": "read_file", "args": {"path": "a"}, "result": "text"},
    ],
    "two writes in turns": [
        {"tool": "write_file", "args": {"path": "a", "text": text}, "result": "ok"} for text in ("x", "y")
    ],
    "a refused target that was granted in between": [
        {"tool": "write_file", "args": {"path": "a"}, "result": "Permission denied by user", "error": True},
        {"tool": "read_file", "args": {"path": "a"}, "result": "text {i}"},
        {"tool": "edit_file", "args": {"path": "a"}, "result": "Permission denied by user", "error": True},
    ],
    "a command of an unknown tool that is run again after an edit": [
        {"tool": "write_file", "args": {"path": "a", "text": "{i}"}, "result": "ok"},
        {"tool": "run_tests", "args": {}, "result": "Error: 1 failed", "error": True},
    ],
}


@pytest.mark.parametrize("name", ALIKE)
def test_cases_in_which_the_dialects_differ_in_form(name: str) -> None:
    """Where a dialect says the same thing by other means, the decisions are still the same."""
    _assert_alike([{"user": "start"}, {"times": 7, "steps": ALIKE[name]}], Policy())


# -------------------------------------------------------------------------------------------------------- 14 long runs


def _items(dialect: Dialect, rounds: int, step: Callable[[int], Step]) -> list[Any]:
    conversation = Conversation(dialect)
    conversation.add({"user": "start"})
    for number in range(rounds):
        conversation.add({"round": [step(number)]})
    return conversation.items


def _healthy(number: int) -> Step:
    return {"tool": "read_file", "args": {"path": f"f{number}.py"}, "result": f"text {number}"}


def _looping(_: int) -> Step:
    return {"tool": "read_file", "args": {"path": "a.py"}, "result": "text"}


def _failing(number: int) -> Step:
    return {"tool": "open_app", "args": {"name": f"app{number}"}, "result": "Error: none", "error": True}


def _with_searches(dialect: Dialect, rounds: int) -> list[Any]:
    """A provider's tool beside the client's in every answer."""
    items: list[Any] = []
    for item in _items(dialect, rounds, _healthy):
        items.append(item)
        if item.get("type") == "function_call":
            action = {"type": "search", "query": item["arguments"]}
            items.append({"type": "web_search_call", "id": "w", "status": "completed", "action": action})
    return items


@each_dialect
def test_ten_thousand_messages_of_work_are_judged(dialect: Dialect) -> None:
    """A session of ten thousand items of work is read as a whole, and nothing is said about it."""
    ruling = _is_ruled({HISTORY[dialect]: _items(dialect, 5_000, _healthy)}, dialect)

    assert (ruling.action, ruling.inspected, ruling.report, ruling.edits) == ("pass", "whole", None, {})


@each_dialect
def test_ten_thousand_messages_of_a_loop_are_judged(dialect: Dialect) -> None:
    """A loop that observe let run for ten thousand items is still decided as one."""
    store = MemoryFactStore()
    items = _items(dialect, 5_000, _looping)
    policy = load_policy({"enforcement": "observe"})
    judge({HISTORY[dialect]: items[:-2]}, dialect, policy, store)

    ruling = judge({HISTORY[dialect]: items}, dialect, policy, store)

    assert ruling.action == "pass"
    assert ruling.report is not None
    assert (ruling.report["action"], ruling.report["count"]) == ("stop", 5_000)


COSTS: Mapping[str, Callable[[int], tuple[Dialect, list[Any]]]] = {
    "work": lambda rounds: ("chat", _items("chat", rounds, _healthy)),
    "a loop": lambda rounds: ("messages", _items("messages", rounds, _looping)),
    "failures": lambda rounds: ("messages", _items("messages", rounds, _failing)),
    "a provider's tools beside the client's": lambda rounds: ("responses", _with_searches("responses", rounds)),
    "reminders": lambda rounds: ("chat", [{"role": "user", "content": EVENT}] * rounds),
}


@pytest.mark.parametrize("name", COSTS)
def test_cost_grows_with_the_history_and_not_with_its_square(name: str) -> None:
    """Twice the history takes about twice the function calls, never four times."""
    once, twice = (_function_calls(*COSTS[name](rounds)) for rounds in (400, 800))

    assert twice < 2.5 * once


def _function_calls(dialect: Dialect, items: list[Any]) -> int:
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    policy, before = load_policy({"enforcement": "observe"}), sys.getprofile()
    sys.setprofile(count)
    try:
        gate.rule(dialect, {HISTORY[dialect]: items}, policy, lambda instances: dict.fromkeys(instances, 2))
    finally:
        sys.setprofile(before)
    return calls


# -------------------------------------------------------------------------------------------------- canonical arguments

# A number is a `Decimal` here and text there, so that nothing is rounded on the way.
numbers = st.one_of(
    st.integers(-(10**40), 10**40).map(Decimal),
    st.integers(-20, 20).map(Decimal),
    st.builds(
        lambda digits, exponent: Decimal(f"{digits}e{exponent}"),
        st.integers(-(10**45), 10**45),
        st.one_of(st.integers(-50, 50), st.sampled_from((-5_000_000, -400, 400, 5_000_000))),
    ),
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.sampled_from(("", "1", "true", "null", "1.0", "\ud800", "é"))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(("a", "b", "1", "\0number", "é")), inner, max_size=3),
    ),
    max_leaves=8,
)
json_objects = st.dictionaries(st.sampled_from(("a", "b", "\0number")), json_values, max_size=3)


@st.composite
def spellings(draw: st.DrawFn, value: Any) -> str:
    """One of the many texts of a JSON value: any key order, white space and number form."""
    space = draw(st.sampled_from(("", "", " ", "\n\t ")))
    if isinstance(value, dict):
        pairs = draw(st.permutations(list(value.items())))
        inner = [f"{space}{draw(_texts(key))}{space}:{draw(spellings(item))}" for key, item in pairs]
        return f"{space}{{{','.join(inner)}{space}}}{space}"
    if isinstance(value, list):
        return f"{space}[{','.join([draw(spellings(item)) for item in value])}]{space}"
    if isinstance(value, Decimal):
        return space + draw(st.sampled_from(_number_forms(value)))
    return space + (draw(_texts(value)) if isinstance(value, str) else json.dumps(value))


def _texts(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from((json.dumps(text), json.dumps(text, ensure_ascii=False)))


def _number_forms(value: Decimal) -> list[str]:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    plain = ("-" if sign else "") + "".join(map(str, digits))
    forms = [f"{plain}e{exponent}", f"{plain}.0E{exponent:+d}", f"{plain}.000e{exponent}"]
    forms += [f"{plain}0e{exponent - 1}"] if value else []
    return [*forms, *([plain + "0" * exponent] if 0 <= exponent <= 50 else [])]


def identity(text: str) -> str:
    """What the guard takes as the identity of arguments in this spelling."""
    return canonical_arguments(parse_arguments(text))


@values_compared
@given(data=st.data(), value=json_objects)
def test_spelling_does_not_matter(data: st.DataObject, value: dict[str, Any]) -> None:
    """Key order, white space and the form of numbers make no other call."""
    one, other = data.draw(spellings(value)), data.draw(spellings(value))

    assert identity(one) == identity(other)


def _tagged(value: Any) -> Any:
    """A value under which Python's `==` is JSON's: true is not 1, and "1" is not 1."""
    if isinstance(value, dict):
        return "object", sorted((key, _tagged(item)) for key, item in value.items())
    if isinstance(value, list):
        return "list", [_tagged(item) for item in value]
    # Compared as text, because comparing huge and tiny numbers would write them out.
    return type(value).__name__, str(_plain_number(value)) if isinstance(value, Decimal) else str(value)


def _plain_number(value: Decimal) -> tuple[int, str, int]:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    return (sign, kept, exponent + len(text) - len(kept)) if kept else (0, "", 0)


@values_compared
@given(data=st.data(), value=json_objects, other=json_objects)
def test_different_values_are_never_equal(data: st.DataObject, value: dict[str, Any], other: dict[str, Any]) -> None:
    """Two calls are the same only if their arguments are the same JSON value."""
    same = _tagged(value) == _tagged(other)

    assert (identity(data.draw(spellings(value))) == identity(data.draw(spellings(other)))) == same


@values_compared
@given(data=st.data(), value=numbers, other=numbers)
def test_different_numbers_are_never_equal(data: st.DataObject, value: Decimal, other: Decimal) -> None:
    """Numbers are compared exactly, however many digits they have and however large they are."""
    neighbour = data.draw(st.sampled_from((other, _next_to(value))))
    same = _plain_number(value) == _plain_number(neighbour)

    texts = [data.draw(spellings({"n": number})) for number in (value, neighbour)]
    assert (identity(texts[0]) == identity(texts[1])) == same


def _next_to(value: Decimal) -> Decimal:
    """The number that differs in the last digit."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return Decimal((sign, (*digits[:-1], (digits[-1] + 1) % 10), exponent))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.1", "0.10", True),
        ("1", "1.0", True),
        ("1", "1e0", True),
        ("100", "1e2", True),
        ("0", "-0.0", True),
        ("1e70", "1" + "0" * 70, True),
        ("1e60", "1" + "0" * 60, True),
        ("1", "true", False),
        ("0", "false", False),
        ("0", "null", False),
        ("1", '"1"', False),
        ("0.1", '{"\\u0000number": "0.1"}', False),
        ("NaN", '{"\\u0000number": "NaN"}', False),
        ("NaN", "Infinity", False),
        ("18446744073709551616", "18446744073709551617", False),
        ("9007199254740993.0", "9007199254740992.0", False),
        ("0.1000000000000000055511151231257827", "0.1", False),
        ("12345678901234567890123456789012.0", "12345678901234567890123456789013.0", False),
        ("1e-9999999", "0", False),
        ("1e9999999", "1e9999998", False),
        ("[]", "{}", False),
        ("[1]", "1", False),
        ('""', "null", False),
    ],
)
def test_numbers_and_their_neighbours(one: str, other: str, same: bool) -> None:
    """The pairs that a careless comparison gets wrong."""
    assert (identity(f'{{"n": {one}}}') == identity(f'{{"n":{other}}}')) == same


@pytest.mark.parametrize(
    ("number", "text"), [(5.0, "5"), (0.1, "0.10"), (1e22, "1e22"), (-0.0, "0"), (2**70, str(2**70))]
)
def test_a_number_is_the_same_as_a_value_and_in_text(number: float, text: str) -> None:
    """Messages sends arguments as values and the other dialects as text; a number is the same in both."""
    assert canonical_arguments({"n": number}) == identity(f'{{"n": {text}}}')


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "1", '"a"', "null", "\ud800", "*** Begin Patch"])
def test_text_that_is_no_object_stays_text(text: str) -> None:
    """Free text is its own identity, and never that of a JSON value."""
    assert identity(text) == "text:" + text
