"""The conversation with the model about one armed answer, driven by hand: what is sent, stored, released and ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from litellm_toolguard import gate, notes
from litellm_toolguard.dialects import HISTORY_KEYS, parse
from litellm_toolguard.engine import decision_id
from litellm_toolguard.facts import Block
from litellm_toolguard.policy_reading import load_policy
from litellm_toolguard.proposals import Objection
from litellm_toolguard.session import (
    Effect,
    End,
    Failed,
    Proposal,
    Release,
    Remember,
    Reply,
    Send,
    Watch,
    session,
)
from litellm_toolguard.store.memory import MemoryFactStore
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, Conversation, Step, expand

READ: Step = {"tool": "read_file", "args": {"path": "a"}}
OTHER: Step = {"tool": "read_file", "args": {"path": "b"}}
LOOP: list[Step] = [{"user": "look"}, {"times": 4, "steps": [{**READ, "result": "x"}]}]
"""One read before the fifth, which is held back."""
REFUSED: list[Step] = [
    {"user": "clean up"},
    {"tool": "bash", "args": {"command": "rm -rf build"}, "result": "Permission denied by user", "error": True},
]
FORCED: Mapping[Dialect, Mapping[str, Any]] = {
    "chat": {"tool_choice": "required"},
    "messages": {"tool_choice": {"type": "any"}},
    "responses": {"tool_choice": "required"},
}

each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


def rung(**ladder: int) -> dict[str, Any]:
    """A policy with this ladder for repeated calls."""
    return {"detectors": {"repeated-call": ladder}}


def said(dialect: Dialect, text: str) -> Proposal:
    """An answer in words."""
    content: Any = [{"type": "text", "text": text}] if dialect == "messages" else text
    return _proposal(dialect, [{"role": "assistant", "content": content}])


def called(dialect: Dialect, *calls: Step, number: int = 100) -> Proposal:
    """An answer with these calls; `number` keeps its ids apart from others."""
    conversation = Conversation(dialect, calls=number)
    conversation.add({"round": calls})
    return _proposal(dialect, conversation.items)


def _proposal(dialect: Dialect, items: Sequence[dict[str, Any]]) -> Proposal:
    if dialect == "responses":
        return Proposal({"output": list(items)})
    if dialect == "messages":
        return Proposal({"role": "assistant", "content": items[0]["content"]})
    return Proposal({"choices": [{"index": 0, "message": items[0], "finish_reason": "stop"}]})


class Gateway:
    """Facts and blocks as a gateway stores them."""

    def __init__(self) -> None:
        self.facts = MemoryFactStore()
        self.blocks: dict[bytes, tuple[Block, ...]] = {}
        self.asked: list[bytes] = []

    def held(self, positions: Iterable[bytes]) -> Mapping[bytes, tuple[Block, ...]]:
        """What was held back at the positions."""
        self.asked = list(positions)
        return {position: self.blocks[position] for position in self.asked if position in self.blocks}

    def watch(
        self,
        dialect: Dialect,
        steps: Sequence[Step],
        policy: Mapping[str, Any] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Watch | None:
        """What the answer to the newest request of the conversation is judged by, all requests before it judged."""
        conversation, found = Conversation(dialect), None
        for step in expand(steps):
            conversation.add(step)
            found = self._ruling(dialect, {**conversation.request(), **(more or {})}, policy or {}).watch
        return found

    def _ruling(self, dialect: Dialect, request: Mapping[str, Any], policy: Mapping[str, Any]) -> gate.Ruling:
        told = self.facts
        ruling = gate.rule(dialect, request, load_policy(dict(policy)), lambda each: told.counts("t", each), self.held)
        told.remember("t", ruling.remember)
        return ruling

    def run(self, watch: Watch | None, *replies: Reply) -> list[Effect]:
        """Every effect of the session; each `Send` is answered by the next reply."""
        return list(self._effects(watch, iter(replies)))

    def _effects(self, watch: Watch | None, replies: Iterator[Reply]) -> Iterator[Effect]:
        assert watch is not None, "the request is not armed"
        talk = session(watch)
        effect = next(talk)
        while True:
            yield effect
            if isinstance(effect, Remember):
                self.blocks[effect.position] = effect.blocks
            try:
                effect = talk.send(next(replies) if isinstance(effect, Send) else None)
            except StopIteration:
                return


def effects(
    dialect: Dialect,
    *replies: Reply,
    steps: Sequence[Step] = LOOP,
    policy: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
) -> list[Effect]:
    gateway = Gateway()
    return gateway.run(gateway.watch(dialect, steps, policy, more), *replies)


def kinds(found: Sequence[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in found]


def ended(found: Sequence[Effect]) -> End:
    assert isinstance(found[-1], End), found[-1]
    return found[-1]


def released(found: Sequence[Effect]) -> Release:
    assert isinstance(found[-1], Release), found[-1]
    return found[-1]


# ----------------------------------------------------------------------------------------------------- asked once more


@each_dialect
def test_a_clean_second_answer_is_released(dialect: Dialect) -> None:
    """The first answer is held and stored as such, the second one delivered; the objection is in the record."""
    first, second = called(dialect, READ), said(dialect, "It says x.")

    found = effects(dialect, first, second)

    assert kinds(found) == ["Send", "Send", "Remember", "Release"]
    _, again, stored, last = found
    assert isinstance(again, Send)
    assert isinstance(stored, Remember)
    assert isinstance(last, Release)
    assert found[0] == Send()
    assert last.objection is not None
    assert (last.objection.action, last.objection.count, last.samples, last.inspected) == ("block", 5, 2, True)
    assert stored.blocks == (Block(last.objection.instance, 1),)
    assert len(again.held) == 1


@each_dialect
def test_an_answer_that_does_something_else_is_released_at_once(dialect: Dialect) -> None:
    """Words, another call, or none of both: nobody is asked twice."""
    silent = said(dialect, "")
    for reply in (said(dialect, "Done."), called(dialect, OTHER), silent):
        assert effects(dialect, reply) == [Send(), Release()]


@each_dialect
def test_what_is_held_back_is_answered_call_by_call(dialect: Dialect) -> None:
    """The next request carries the answer as it came and one result for each of its calls, as an error where there is
    a flag; it names no argument."""
    second_read = {**OTHER, "result": "y"}
    steps: list[Step] = [{"user": "look"}, {"times": 4, "steps": [{"round": [{**READ, "result": "x"}, second_read]}]}]
    first = called(dialect, READ, OTHER)

    found = effects(dialect, first, said(dialect, "Done."), steps=steps)

    again = found[1]
    assert isinstance(again, Send)
    items = [item for held in again.held for item in (*held.items, *held.results)]
    transcript = parse(dialect, {HISTORY_KEYS[dialect]: items})
    [round_] = transcript.rounds
    assert transcript.problems == ()
    assert [each.call.id for each in round_.exchanges] == ["call_101", "call_102"]
    for each in round_.exchanges:
        assert each.result is not None
        assert each.result.text.startswith(f"{notes.MARK} This call was not executed.")
        assert "path" not in each.result.text
        assert each.result.is_error is (True if dialect == "messages" else None)


@each_dialect
def test_a_model_that_insists_is_ended_in_true_words(dialect: Dialect) -> None:
    """Four calls ran; the words say so, and not that the two that were held back returned anything."""
    found = effects(dialect, called(dialect, READ), called(dialect, READ, number=200))

    assert kinds(found) == ["Send", "Send", "Remember", "End"]
    end = ended(found)
    assert (end.action, end.objection.action, end.objection.count, end.samples) == ("stop", "stop", 5, 2)
    assert end.words.startswith(notes.END_PREFIX)
    assert "`read_file` was called 4 times with the same arguments and returned the same result each time" in end.words


@each_dialect
@pytest.mark.parametrize(
    "reply", [Failed("budget"), None, Proposal({}), "empty"], ids=["failed", "none", "bad", "empty"]
)
def test_without_a_second_answer_the_run_ends(dialect: Dialect, reply: Any) -> None:
    """The held answer is not delivered, and it is stored that it was held."""
    second = said(dialect, " ") if reply == "empty" else reply

    found = effects(dialect, called(dialect, READ), second)

    assert kinds(found) == ["Send", "Send", "Remember", "End"]
    assert (ended(found).action, ended(found).samples) == ("stop", 2)


_CUT: Mapping[Dialect, Mapping[str, Any]] = {
    "chat": {"choices": [{"message": {"role": "assistant", "content": "The"}, "finish_reason": "content_filter"}]},
    "messages": {"content": [{"type": "text", "text": "The"}], "stop_reason": "refusal"},
    "responses": {
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "The"}]}],
        "incomplete_details": {"reason": "content_filter"},
    },
}
_FAILED = {"status": "failed", "error": {"code": "server_error", "message": "No."}, "incomplete_details": None}


@pytest.mark.parametrize(
    ("dialect", "answer"),
    [*_CUT.items(), ("responses", {**_CUT["responses"], **_FAILED})],
    ids=[*_CUT, "a response that failed"],
)
def test_a_second_answer_that_was_refused_is_none(dialect: Dialect, answer: Mapping[str, Any]) -> None:
    """Whatever it had said before: the run ends. A first one is the client's, as it came."""
    found = effects(dialect, called(dialect, READ), Proposal(answer))

    assert kinds(found) == ["Send", "Send", "Remember", "End"]
    assert (ended(found).action, ended(found).samples) == ("stop", 2)
    assert effects(dialect, Proposal(answer)) == [Send(), Release()]


@each_dialect
@pytest.mark.parametrize(
    "reply", [Failed("time"), None, Proposal({}), Proposal({"choices": 3, "content": 3, "output": 3})]
)
def test_a_first_answer_that_cannot_be_read_is_released(dialect: Dialect, reply: Reply) -> None:
    """It is said that it was not inspected."""
    assert effects(dialect, reply) == [Send(), Release(inspected=False)]


@each_dialect
@pytest.mark.parametrize(
    ("bounds", "samples"),
    [({"block_samples": 0}, 1), ({"max_samples": 1}, 1), ({"max_samples": 2, "block_samples": 9}, 2), ({}, 2)],
)
def test_samples_are_bounded(dialect: Dialect, bounds: Mapping[str, int], samples: int) -> None:
    """By what a block may cause, and by what a request may cause."""
    replies = [called(dialect, READ, number=100 * number) for number in range(1, samples + 1)]

    found = effects(dialect, *replies, policy=bounds)

    assert sum(isinstance(effect, Send) for effect in found) == samples
    assert (ended(found).action, ended(found).samples) == ("stop", samples)


@each_dialect
def test_two_further_samples_are_held_one_behind_the_other(dialect: Dialect) -> None:
    """What is stored is how many were held at this place; the count does not grow by the samples of one request."""
    replies = [called(dialect, READ, number=100), called(dialect, READ, number=200), said(dialect, "Done.")]

    found = effects(dialect, *replies, policy={"block_samples": 2})

    assert kinds(found) == ["Send", "Send", "Remember", "Send", "Remember", "Release"]
    sent = [effect for effect in found if isinstance(effect, Send)]
    stored = [effect for effect in found if isinstance(effect, Remember)]
    assert [len(each.held) for each in sent] == [0, 1, 2]
    assert sent[2].held[:1] == sent[1].held
    assert [each.blocks[0].samples for each in stored] == [1, 2]
    assert len({each.position for each in stored}) == 1
    assert released(found).samples == 3


@each_dialect
def test_what_is_held_back_is_no_failure(dialect: Dialect) -> None:
    """The guard's results are in no count: the third failure stays the third, however often it is proposed."""
    failing: Step = {"tool": "bash", "args": {"command": "make"}, "result": "Error: no rule", "error": True}
    steps: list[Step] = [{"user": "make it"}, {"times": 2, "steps": [failing]}]
    policy = {"detectors": {"failing-call": {"hint": 2, "block": 3, "stop": 5}}, "block_samples": 3}
    call: Step = {"tool": "bash", "args": {"command": "make"}}
    replies = [called(dialect, call, number=100 * number) for number in range(1, 5)]

    end = ended(effects(dialect, *replies, steps=steps, policy=policy))

    assert (end.objection.detector, end.objection.count, end.samples) == ("failing-call", 3, 4)
    assert "failed 2 times" in end.words


# ------------------------------------------------------------------------------------------------------ ends at once


@each_dialect
@pytest.mark.parametrize(
    ("ladder", "action", "start"),
    [
        ({"hint": 3, "ask": 5, "stop": 8}, "ask", notes.QUESTION_PREFIX),
        ({"hint": 3, "stop": 5}, "stop", notes.END_PREFIX),
        ({"hint": 3, "reject": 5}, "reject", f"{notes.MARK} The request was rejected"),
        ({"hint": 3, "block": 4, "stop": 5}, "stop", notes.END_PREFIX),
    ],
)
def test_a_rung_above_a_block_ends_without_asking_again(
    dialect: Dialect, ladder: dict[str, int], action: str, start: str
) -> None:
    """A question, words, or an error."""
    found = effects(dialect, called(dialect, READ), policy=rung(**ladder))

    assert kinds(found) == ["Send", "End"]
    end = ended(found)
    assert (end.action, end.objection.action, end.samples) == (action, action, 1)
    assert end.words.startswith(start)
    assert len(decision_id(end.objection)) == 12


@each_dialect
@pytest.mark.parametrize("ladder", [{"hint": 3, "ask": 5, "stop": 8}, {"hint": 3, "stop": 5}])
def test_where_no_words_are_allowed_the_end_is_an_error(dialect: Dialect, ladder: dict[str, int]) -> None:
    """A forced tool call cannot be answered in words."""
    end = ended(effects(dialect, called(dialect, READ), policy=rung(**ladder), more=FORCED[dialect]))

    assert end.action == "reject"


@each_dialect
def test_where_no_words_are_allowed_a_block_is_still_asked_again(dialect: Dialect) -> None:
    """It is only the end that changes."""
    found = effects(dialect, called(dialect, READ), called(dialect, READ, number=200), more=FORCED[dialect])

    assert kinds(found) == ["Send", "Send", "Remember", "End"]
    assert ended(found).action == "reject"


def test_one_choice_of_several_that_trips_ends_the_run() -> None:
    """The client may take any of them; a second sample would cost each of them again."""
    good, bad = said("chat", "Done.").answer["choices"], called("chat", READ).answer["choices"]

    found = effects("chat", Proposal({"choices": [*good, *bad]}))

    assert kinds(found) == ["Send", "End"]
    assert ended(found).action == "stop"
    assert effects("chat", Proposal({"choices": [*good, *good]})) == [Send(), Release()]


def test_calls_whose_results_hold_no_text_are_ended() -> None:
    """The model could not be told that they did not run."""
    call = {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"]}, "status": "completed"}
    items: list[dict[str, Any]] = [{"role": "user", "content": "look"}]
    gateway, watch = Gateway(), None
    for number in range(4):
        name = f"c{number}"
        items += [{**call, "call_id": name}, {"type": "local_shell_call_output", "call_id": name, "output": "a"}]
        watch = gateway._ruling("responses", {"input": list(items)}, {}).watch

    found = gateway.run(watch, Proposal({"output": [{**call, "call_id": "c9"}]}))

    assert kinds(found) == ["Send", "End"]


# ------------------------------------------------------------------------------------------------------------- batches


@each_dialect
def test_a_batch_with_a_new_call_is_delivered_whole(dialect: Dialect) -> None:
    """Something new is work, whatever stands beside it."""
    assert effects(dialect, called(dialect, READ, OTHER)) == [Send(), Release()]


@each_dialect
def test_a_refused_call_holds_back_its_batch(dialect: Dialect) -> None:
    """It will be refused again; nothing needs to have been told before."""
    refused: Step = {"tool": "bash", "args": {"command": "rm -rf build"}}

    found = effects(dialect, called(dialect, refused, OTHER), said(dialect, "May I?"), steps=REFUSED)

    assert kinds(found) == ["Send", "Send", "Remember", "Release"]
    objection = released(found).objection
    assert objection is not None
    assert (objection.detector, objection.action, objection.tool) == ("denied-call", "block", "bash")


# ------------------------------------------------------------------------------------------------------ the provider's


def _provider(times: int) -> list[Step]:
    return [{"tool": "ask_server", "args": {"q": "a"}, "result": "no", "by": "provider"}] * times


def _asked(times: int) -> list[Step]:
    look: Step = {"tool": "grep", "args": {"pattern": "b{i}"}, "result": "none {i}"}
    return [{"user": "look"}, {"times": times, "steps": [{"round": [*_provider(1), look]}]}]


@pytest.mark.parametrize("dialect", ["messages", "responses"])
def test_what_the_provider_ran_counts_one_by_one(dialect: Dialect) -> None:
    """Four before and four in one answer are eight, which ends the run; three more do not."""
    assert effects(dialect, called(dialect, *_provider(3)), steps=_asked(4)) == [Send(), Release()]

    found = effects(dialect, called(dialect, *_provider(4)), steps=_asked(4))

    assert kinds(found) == ["Send", "End"]
    end = ended(found)
    assert (end.action, end.objection.tool, end.objection.count) == ("stop", "ask_server", 8)


@pytest.mark.parametrize("dialect", ["messages", "responses"])
def test_the_clients_calls_behind_the_providers_are_judged_after_them(dialect: Dialect) -> None:
    """A new call of the client saves no answer in which the provider already went too far."""
    found = effects(dialect, called(dialect, *_provider(4), OTHER), steps=_asked(4))

    assert ended(found).objection.tool == "ask_server"


# ---------------------------------------------------------------------------------------------- places of the turn


@each_dialect
def test_what_was_held_back_earlier_in_the_turn_counts(dialect: Dialect) -> None:
    """Five ran or were held at the fifth; behind another read the next one is the sixth."""
    gateway = Gateway()
    gateway.run(gateway.watch(dialect, LOOP), called(dialect, READ), called(dialect, OTHER))

    later = gateway.watch(dialect, [*LOOP, {**OTHER, "result": "y"}])
    found = gateway.run(later, called(dialect, READ, number=300), said(dialect, "Done."))

    objection = released(found).objection
    assert objection is not None
    assert objection.count == 6


@each_dialect
def test_held_back_often_enough_the_ladder_ends(dialect: Dialect) -> None:
    """Three samples at an earlier place and the four that ran bring the next one to the eighth."""
    gateway = Gateway()
    replies = [called(dialect, READ, number=100 * number) for number in range(1, 4)]
    policy = {"block_samples": 3}
    gateway.run(gateway.watch(dialect, LOOP, policy), *replies, called(dialect, OTHER))

    later = gateway.watch(dialect, [*LOOP, {**OTHER, "result": "y"}], policy)
    found = gateway.run(later, called(dialect, READ, number=500))

    assert kinds(found) == ["Send", "End"]
    assert (ended(found).action, ended(found).objection.count) == ("stop", 8)


@each_dialect
def test_a_retry_of_the_request_counts_nothing(dialect: Dialect) -> None:
    """The same place is not asked for, and stored as the same value."""
    gateway = Gateway()
    replies = [called(dialect, READ), said(dialect, "Done.")]
    once = gateway.run(gateway.watch(dialect, LOOP), *replies)
    stored = dict(gateway.blocks)

    again = gateway.run(gateway.watch(dialect, LOOP), *replies)

    assert again == once
    assert gateway.blocks == stored
    assert set(stored).isdisjoint(gateway.asked)


@each_dialect
def test_new_input_of_the_user_leaves_the_places_before_it(dialect: Dialect) -> None:
    """What was held back for an earlier instruction counts for no later one."""
    gateway = Gateway()
    gateway.run(gateway.watch(dialect, LOOP), called(dialect, READ), said(dialect, "Done."))

    later = gateway.watch(dialect, [*LOOP, {"user": "once more"}, {"times": 4, "steps": [{**READ, "result": "x"}]}])
    found = gateway.run(later, called(dialect, READ, number=300), said(dialect, "Done."))

    objection = released(found).objection
    assert objection is not None
    assert objection.count == 5
    assert len(gateway.blocks) == 2


# ------------------------------------------------------------------------------------------------------------- observe


@each_dialect
@pytest.mark.parametrize("ladder", [{"hint": 3, "block": 5, "stop": 8}, {"hint": 3, "stop": 5}])
def test_observe_releases_and_reports(dialect: Dialect, ladder: dict[str, int]) -> None:
    """Nothing is held, asked again or stored; the objection is said."""
    found = effects(dialect, called(dialect, READ), policy={"enforcement": "observe", **rung(**ladder)})

    assert kinds(found) == ["Send", "Release"]
    objection = released(found).objection
    assert isinstance(objection, Objection)
    assert (objection.detector, objection.count) == ("repeated-call", 5)


@each_dialect
def test_a_request_that_cannot_trip_is_not_watched(dialect: Dialect) -> None:
    """Nothing of a healthy session is held."""
    assert Gateway().watch(dialect, LOOP[:1]) is None
    assert Gateway().watch(dialect, [LOOP[0], {**READ, "result": "x"}]) is None
