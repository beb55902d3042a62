"""Every threshold, every reset and every exemption is broken once: a case of `tests/cases/*.yaml` goes red."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest

from litellm_toolguard import policy
from litellm_toolguard.dialects import parse
from litellm_toolguard.errors import ConfigError
from litellm_toolguard.evidence import JudgedRound, Reader
from litellm_toolguard.policy import DETECTORS
from litellm_toolguard.policy_reading import load_policy
from litellm_toolguard.store.memory import MemoryFactStore
from litellm_toolguard.transcript import Dialect
from tests.conversation import Conversation
from tests.mutants import Change, broken, constant, constants, line, numbers, rung, rungs
from tests.verdict_cases import Case, cases

PRESET: policy.Preset = "balanced"
MODULES = [
    *(f"detectors.{name.replace('-', '_')}" for name in DETECTORS),
    *("detectors.recovery", "traces", "evidence", "engine", "walk", "proposals"),
]


@dataclass(frozen=True)
class Mutant:
    """One thing that is broken, and the case that must notice.

    Args:
        red: the id of the case, or its beginning; a dialect in brackets behind it where the first one of the case is
            not meant.
    """

    name: str
    change: Change
    red: str

    def case(self) -> tuple[Case, Dialect]:
        """The case and the dialect that it is judged in."""
        start, _, named = self.red.removesuffix("]").partition(" [")
        found = [case for case in cases().values() if case.id.startswith(start)]
        assert len(found) == 1, f"{len(found)} cases begin with {start}"
        return found[0], next(dialect for dialect in found[0].dialects if named in ("", dialect))


# ---------------------------------------------------------------------------------------------------------------- rungs

# Rung -> the case that goes red when it is one lower, and when it is one higher.
RUNGS = {
    "denied-call.hint": "denied-call: an identical denied call is told",
    "denied-call.stop": "denied-call: an identical denied call is told",
    "denied-call.any_tool.hint": "denied-call: a gate that refuses every kind of change",
    "denied-call.any_tool.stop": "denied-call: a gate that refuses every kind of change",
    "unknown-tool.hint": "unknown-tool: made-up names are told",
    "unknown-tool.stop": "unknown-tool: made-up names are told",
    "invalid-arguments.hint": "invalid-arguments: a call without its argument is told",
    "invalid-arguments.block": "invalid-arguments: a wrong call that is made again after the third",
    "invalid-arguments.stop": "invalid-arguments: a call without its argument is told",
    "stuck-range.hint": "stuck-range: reads beyond the end are told",
    "stuck-range.block": "stuck-range: the fourth equal read beyond the end is held back",
    "stuck-range.stop": "stuck-range: reads beyond the end are told",
    "failing-call.hint": "failing: the same error for other arguments",
    "failing-call.stop": "failing: the same error for other arguments",
    "failing-tool.hint": "failing: varying errors of one tool",
    "failing-tool.stop": "failing: varying errors of one tool",
    "repeated-call.hint": "repeated-call: eight equal reads",
    "repeated-call.block": "repeated-call: a fifth equal read that is proposed",
    "repeated-call.stop": "repeated-call: eight equal reads",
    "call-cycle.hint": "call-cycle: three rounds in turns",
    "call-cycle.stop": "call-cycle: three rounds in turns",
    "same-answer.hint": "same-answer: the same refusal that nobody recognises",
    "same-answer.stop": "same-answer: the same refusal that nobody recognises",
    "idle-wait.hint": "idle-wait: a job that never changes",
    "idle-wait.stop": "idle-wait: a job that never changes",
    "idle-wait.changing.hint": "idle-wait: a clock that always shows another time",
    "idle-wait.changing.stop": "idle-wait: a clock that always shows another time",
    "reread.hint": "reread: twenty-four reads of eight things",
}
# One lower it stands beside the hint, and what was not told is not held back.
HINT_FIRST = {"stuck-range.block"}


def _rung_mutants() -> Iterator[Mutant]:
    for path, red in RUNGS.items():
        if path not in HINT_FIRST:
            yield Mutant(f"{path} one lower", rung(PRESET, path, -1), red)
        yield Mutant(f"{path} one higher", rung(PRESET, path, +1), red)


def test_every_rung_of_the_preset_has_its_mutants() -> None:
    """A new threshold comes with the case that holds it."""
    assert set(rungs(PRESET)) == set(RUNGS)


# ------------------------------------------------------------------------------------------------------------ constants

# Constant -> other values of it, each with the case that goes red.
NUMBERS: dict[str, dict[Any, str]] = {
    "policy.MIN_LIMIT": {
        1: "turns: a ladder that ends at the second still tells first",
        3: "denied-call: an identical denied call is told",
    },
    "policy.TRANSIENT_FACTOR": {
        1: "failing: a few rate limits are no failure",
        3: "failing: rate limits are told late",
    },
    "policy.RERUN_HINT": dict.fromkeys((11, 13), "failing: an equal red test after edits is told once"),
    "policy.READ_WINDOW": dict.fromkeys((23, 25), "reread: twenty-four reads of eight things"),
    "policy.DISTINCT_SHARE": {
        2: "reread: more than a third of different things",
        4: "reread: twenty-four reads of eight things",
    },
    "policy.CYCLE_PERIODS": {
        (3, 4, 5): "call-cycle: two searches in turns",
        (2, 3, 4): "call-cycle: five rounds in turns are the longest",
        (2, 3, 4, 5, 6): "call-cycle: a lap of six rounds",
    },
    "policy.STREAK_IDLE_ROUNDS": {
        19: "invalid-arguments: nineteen quiet rounds keep the count",
        21: "invalid-arguments: twenty quiet rounds end the count",
    },
    "walk.ENDS_BEFORE_REJECT": {
        1: "turns: a system reminder is no input of the user",
        3: "turns: a harness that nudges with the same words for ever",
    },
    "traces._MAX_ANSWER_CHARS": {
        299: "same-answer: an answer of three hundred characters",
        301: "same-answer: an answer of one character more",
    },
    "traces._MIN_ANSWER_WORDS": {
        1: "same-answer: one word is too little",
        3: "same-answer: two words are an answer",
    },
    "traces._TEXT_CHARS": {
        399: "stuck-range: what stands within the first four hundred characters",
        401: "stuck-range: what stands one character further on",
    },
}
# Set -> its members, each with the case that goes red without it.
MEMBERS = {
    "detectors.call_budget._NEVER_RAN": {
        "cancelled": "call-budget: a cancelled call uses up nothing",
        "denied": "call-budget: a refused call uses up nothing",
        "pending": "call-budget: a call without its result uses up nothing",
        "unknown_tool": "call-budget: a name that is not there uses up nothing",
    },
    "detectors.idle_wait._ANSWERED": {
        "succeeded": "idle-wait: a job that never changes [messages]",
        "unclear": "idle-wait: a job that never changes [chat]",
    },
    "detectors.repeated_call._COUNTED": {
        "failed": "repeated-call: an identical failing call",
        "invalid_arguments": "repeated-call: the same wrong call is a repeat",
        "succeeded": "repeated-call: eight equal reads [messages]",
        "unclear": "repeated-call: eight equal reads [chat]",
        "unknown_tool": "repeated-call: the same name that is not there is a repeat",
    },
    "detectors.repeated_call._NEVER_RAN": {
        "cancelled": "repeated-call: a call that is called off for a sibling that is not there",
        "pending": "repeated-call: a call that waits for an approval that nobody gives",
    },
    "traces._SILENT_ROLES": {
        "write": "same-answer: what writes says the same every time",
    },
    "traces._ENDED": {
        "failed": "stuck-range: as an error it is the same",
        "invalid_arguments": "stuck-range: an offset that the client finds invalid",
        "succeeded": "stuck-range: reads beyond the end are told [messages]",
        "unclear": "stuck-range: reads beyond the end are told [chat]",
    },
    "detectors.unknown_tool._NEVER_REACHED_A_TOOL": {
        "cancelled": "unknown-tool: a call that waits or was cancelled",
        "invalid_arguments": "unknown-tool: a wrong call of a real tool",
        "pending": "unknown-tool: a call without its result",
        "unknown_tool": "unknown-tool: made-up names are told",
    },
    "walk._FINAL_DENIALS": {
        "hook_blocked": "denied-call: what a hook blocked is held back",
        "policy_blocked": "denied-call: what a policy blocked is held back",
        "tool_disabled": "denied-call: a tool that is switched off is held back",
        "user_rejected": "denied-call: the very call that the user refused is held back",
    },
    "evidence.FAILURES": {
        "failed": "failing: varying errors of one tool",
        "invalid_arguments": "failing: wrong arguments are failures of the tool",
        "unknown_tool": "failing: a name that is not there fails",
    },
    "evidence._CHANGING_ROLES": {
        "shell": "repeated-call: shell commands in between",
        "unknown": "failing: tools of one's own that edit",
    },
    "evidence._NOT_NOVEL_ROLES": {
        "think": "repeated-call: a thought in the same message",
        "wait": "repeated-call: a poll in the same message",
    },
    "detectors.CLEARED_BY_EVENTS": {
        "repeated-call": "repeated-call: a command that finished is an event",
    },
}
# What is said twice: these roles are never novel, and an event breaks the laps themselves.
SAID_TWICE = {
    "traces._SILENT_ROLES": {"think", "wait"},
    "detectors.CLEARED_BY_EVENTS": {"call-cycle"},
}
# Table of words -> the case that goes red without it.
WORDS = {
    "traces._ACKNOWLEDGEMENTS": "same-answer: acknowledgements are no answers",
    "traces._NEGATIVE_WORDS": "same-answer: an answer that repeats the question",
    "traces.RANGE_TEXTS": "stuck-range: reads beyond the end are told",
    "evidence._LOOKING_WORDS": "failing: a tool that only looks makes no new experiment",
}


def _value(where: str) -> Any:
    module, _, name = where.rpartition(".")
    return getattr(import_module(f"litellm_toolguard.{module}"), name)


def _constant_mutants() -> Iterator[Mutant]:
    for where, values in NUMBERS.items():
        for value, red in values.items():
            yield Mutant(f"{where} = {value}", constant(where, value), red)
    for where, members in MEMBERS.items():
        for member, red in members.items():
            yield Mutant(f"{where} without {member}", constant(where, _value(where) - {member}), red)
    for where, red in WORDS.items():
        yield Mutant(f"{where} empty", constant(where, type(_value(where))()), red)


def test_every_constant_has_its_mutants() -> None:
    """Of the policy every number, here or in a test below; of detectors and evidence every number, set and table."""
    found = {f"policy.{name}" for name in numbers("policy")}
    found |= {f"{module}.{name}" for module in MODULES for name in constants(module, (int, tuple, frozenset))}

    assert found == {*NUMBERS, *MEMBERS, *WORDS, *OF_POLICY_AND_STORE} - {"detectors.CLEARED_BY_EVENTS"}
    for where, members in MEMBERS.items():
        assert set(members) | SAID_TWICE.get(where, set()) == set(_value(where))


def test_a_limit_is_at_most_ten_thousand() -> None:
    """What is more is a mistake, and said to be one."""
    assert load_policy({"detectors": {"repeated-call": {"stop": 10_000}}}) is not None
    for limit in (1, 10_001):
        with pytest.raises(ConfigError):
            load_policy({"detectors": {"repeated-call": {"stop": limit}}})


def test_the_target_of_a_command_is_its_program_and_argument() -> None:
    """Options are left out; what stands behind six words is not read."""
    assert _target_of("rm -rf build") == _target_of("rm -r build --now") == _target_of("rm build")
    assert _target_of("sed -n 1p a") != _target_of("sed -n 5p b")
    assert _target_of("tar -a -b -c -d x") == _target_of("tar x")
    assert _target_of("tar -a -b -c -d -e x") == _target_of("tar")


def _target_of(command: str) -> bytes:
    conversation = Conversation("chat")
    conversation.add({"round": [{"tool": "bash", "args": {"command": command}, "result": ""}]})
    (judged,) = Reader("chat", policy.Policy()).steps(parse("chat", conversation.request()).events)
    assert isinstance(judged, JudgedRound)
    return judged.exchanges[0].traces.target


def test_a_store_keeps_a_hundred_thousand_facts_for_a_day() -> None:
    """The oldest goes first; a fact that nobody asked for ends with its day."""
    now = 0.0
    store = MemoryFactStore(clock=lambda: now)
    store.remember("t", {number.to_bytes(4, "big"): 3 for number in range(100_001)})

    assert len(store) == 100_000
    now = 24 * 3600.0
    assert store.counts("t", [b"\x00\x00\x00\x01"])
    now += 24 * 3600.0 + 1
    assert not store.counts("t", [b"\x00\x00\x00\x01"])


# Tested where a store is tested, and where a session is.
OF_POLICY_AND_STORE = {
    "traces._COMMAND_WORDS",
    "policy.MAX_LIMIT",
    "policy.MAX_SAMPLES",
    "policy.FACTS_MAX_ENTRIES",
    "policy.FACTS_TTL_S",
    "policy.FACTS_REFRESH_SHARE",
    "policy.FACTS_PURGE_EVERY",
    "policy.FACTS_PURGE_MAX",
    "policy.STORE_READ_WAIT_MS",
    "policy.STORE_WRITE_WAIT_MS",
}

# ---------------------------------------------------------------------------------------------------------------- lines

_CLEARS_RECOVERED = "draft.clear(lambda streak: streak.tool in recovered)"
_WORKED = 'outcome.kind not in ("succeeded", "unclear")'

# What is broken -> function, text, what it becomes, and the case that goes red.
LINES = {
    # Input of the user, events, ends.
    "input of the user empties nothing": (
        *("evidence:Reader._input", "return Cleared(by_user=True, turn=self._turn.anchor)", "return None"),
        "repeated-call: the user asks for it again and again",
    ),
    "input of the user begins no new turn": (
        *("evidence:Reader._input", 'self._turn = _Turn(digest("turn", self._turn.anchor, words))', "pass"),
        "reread: new input of the user begins a new window",
    ),
    "an event empties nothing": (
        *("evidence:Reader._input", "return Cleared(by_user=False, turn=self._turn.anchor)", "return None"),
        "repeated-call: a command that finished is an event",
    ),
    "an event breaks no cycle": (
        *("evidence:Reader._input", "self._turn.break_cycle()", "pass"),
        "call-cycle: an event between two laps",
    ),
    "an event empties all": (
        *("walk:Walk._add_input", "DETECTORS if step.by_user else CLEARED_BY_EVENTS", "DETECTORS"),
        "denied-call: an event is no permission",
    ),
    "the user empties no more than an event": (
        *("walk:Walk._add_input", "DETECTORS if step.by_user else CLEARED_BY_EVENTS", "CLEARED_BY_EVENTS"),
        "denied-call: after new input of the user",
    ),
    "a nudge after an end is new input": (
        *("evidence:Reader._input", "if self._after_end and words in self._seen_after_end:", "if False:"),
        "turns: a harness that nudges with the same words for ever",
    ),
    "words are old before they stand behind an end": (
        *("evidence:Reader._input", "if self._after_end:", "if True:"),
        "turns: words that the user said before an end are new behind it",
    ),
    "new words do not help after two ends": (
        *("walk:Walk.is_deaf", " and not self.new_words", ""),
        "turns: new words after every end are the user's",
    ),
    "words are said where none are allowed": (
        *("engine:_end_action", "not words_allowed or ", ""),
        "repeated-call: without words to say the end is a rejection",
    ),
    "nobody is told first": (
        *("engine:verdicts", 'else "hint"', "else wanted"),
        "turns: a ladder that ends at the second still tells first",
    ),
    "a warning is not given": (
        *("walk:_is_due", "if raised.last:", "if False:"),
        "repeated-call: eight equal reads",
    ),
    "two notes in a row say the same": (
        *("walk:_is_due", " and not _is_known(raised.streak, near)", ""),
        "repeated-call: an identical failing call",
    ),
    "a provider's call is acted on only when it is the newest": (
        *("walk:Walk.newest_answer", "not state.round.by_provider", "True"),
        "repeated-call: what the provider runs in every answer",
    ),
    "a note that is owed is never given": (
        *("walk:_place", "owed | (said.owed - {raised.streak.instance for raised in due})", "frozenset()"),
        "situations: a file is read page by page, and from the start again",
    ),
    "a canned reply steers": (
        *("evidence:JudgedExchange.steered", " and not self.again", ""),
        "repeated-call: a canned reply in the user's place",
    ),
    "calls that never run are no repeats": (
        *("detectors.repeated_call:_counts", " or (idle and judged.again)", ""),
        "repeated-call: a call that waits for an approval that nobody gives",
    ),
    # Proposals.
    "a call that is new in its turn is held back": (
        *("proposals:_a_member", "not call.rerun and any(", "not call.rerun or any("),
        "invalid-arguments: other arguments may be the right ones",
    ),
    "a call that was made before something changed is held back": (
        *("proposals:_a_member", "not call.rerun and ", ""),
        "failing: a red test that is run again after an edit is not held back",
    ),
    "a refused call may be made again": (
        *("proposals:_objections", "call.key in walk.refused", "False"),
        "denied-call: the very call that the user refused is held back",
    ),
    "a success does not open what was refused": (
        *("walk:Walk._add_round", "refused if works else self.refused | refused", "self.refused | refused"),
        "denied-call: a refused call that is made again after something else succeeded",
    ),
    "a re-send is held back whatever the policy says": (
        *("proposals:_resend", "raised.ladder.block_resend and ", ""),
        "denied-call: a re-send is let through where the policy says so",
    ),
    "a re-send beside work is delivered": (
        *("proposals:_resend", "alone=True", "alone=False"),
        "denied-call: a re-send beside work holds the whole message back",
    ),
    "a lap that is proposed is not seen": (
        *("proposals:_closes_a_lap", "streak.raised != index - period", "True"),
        "call-cycle: the round that would complete a lap too many is held back",
    ),
    "allowed is not allowed": (
        *("walk:measured", "policy.allows(name, streak.tool)", "False"),
        "repeated-call: allowed by policy it is recorded",
    ),
    # Counting.
    "a batch counts each call": (
        *("streaks:Draft.raise_", "count=before.count + by", "count=before.count + max(by, len(found))"),
        "failing: one batch of failures is one failure",
    ),
    "a round with something new touches nothing": (
        *("streaks:Draft.touch", "touched=self.round.index", "touched=self.streaks[key].touched"),
        "repeated-call: an anchor beside new files keeps its count",
    ),
    # What may have changed something.
    "a write changes nothing": (
        *("evidence:_may_change", 'role == "write" or ', ""),
        "repeated-call: a todo list written between edits",
    ),
    "a failed write is a change": (
        *("evidence:_may_change", _WORKED, "False"),
        "repeated-call: a failed write is no progress",
    ),
    "a first call of a tool of one's own changes nothing": (
        *("evidence:_may_change", "(first and role in _CHANGING_ROLES)", "False"),
        "repeated-call: shell commands in between",
    ),
    "another result is no change": (
        *("evidence:_may_change", "(new and not first)", "False"),
        "repeated-call: another result of the same call is progress",
    ),
    "a thought is a change": (
        *("evidence:_may_change", ' or role == "think"', ""),
        "repeated-call: a thought between two repeats",
    ),
    "a write does not end the window of reads": (
        *("evidence:_remember", "if judged.may_change:", "if False:"),
        "reread: a write in between begins a new window",
    ),
    "every call is a read": (
        *("evidence:_remember", 'elif judged.role == "read":', "else:"),
        "reread: commands before a read",
    ),
    "a window that is left is not left": (
        *("detectors.reread:fold", "return {}", "pass"),
        "reread: a window that was left and comes again",
    ),
    # A new experiment after a change.
    "writes make no new experiment": (
        *("evidence:_take_in", "turn.writes += bool(changed)", "pass"),
        "failing: tools of one's own that edit",
    ),
    "edits make no new experiment for other commands": (
        *("evidence:_take_in", 'turn.edits += any(role != "shell" for role in changed)', "pass"),
        "failing: other red commands after edits",
    ),
    "a failed edit makes a new experiment": (
        *("evidence:_changed_files", 'judged.outcome.kind in ("succeeded", "unclear")', "True"),
        "failing: an edit that fails makes no new experiment",
    ),
    "the same edit makes a new experiment": (
        *("evidence:_changed_files", "judged.novel and ", ""),
        "failing: the same edit again makes no new experiment",
    ),
    "a new experiment is the same failure": (
        *("detectors.failing_call:fold", "if not member.judged.rerun", ""),
        "failing: tools of one's own that edit",
    ),
    "an equal red experiment is never told": (
        *("detectors.failing_call:fold", "for member in failures if member.judged.rerun", "for member in ()"),
        "failing: an equal red test after edits",
    ),
    "a new experiment is a failure of the tool": (
        *("detectors.failing_tool:_counts", " and not judged.rerun", ""),
        "failing: a changing red test after edits",
    ),
    "a new experiment is waiting": (
        *("detectors.idle_wait:_count", " or newest.judged.rerun", ""),
        "idle-wait: a test after each edit",
    ),
    # Identity.
    "what is made anew for every call makes it another": (
        *("evidence:_identities", "(loose if before is not None and before.result == result else exact)", "exact"),
        "repeated-call: a request id that is made anew",
    ),
    "clocks make another result": (
        *("evidence:_steady", "same_but_for_noise(before.exchange.result, exchange.result)", "False"),
        "repeated-call: durations and clocks",
    ),
    # repeated-call
    "progress does not clear repeats": (
        *("detectors.repeated_call:fold", "bool(changing - {streak.key.parts[0]})", "False"),
        "repeated-call: shell commands in between",
    ),
    "a call is its own progress": (
        *("detectors.repeated_call:fold", "changing - {streak.key.parts[0]}", "changing"),
        "repeated-call: an identical write is not its own progress",
    ),
    "words of the user do not clear repeats of the tool": (
        *("detectors.repeated_call:fold", "streak.tool in steered or ", ""),
        "repeated-call: what the user says in a rejection",
    ),
    "polls are repeats": (
        *("detectors.repeated_call:_counts", ' and judged.role != "wait"', ""),
        "repeated-call: a short poll with the same answer",
    ),
    "a repeat beside something new counts": (
        *("detectors.repeated_call:_count", "draft.round.novel", "False"),
        "repeated-call: an anchor that is read beside new files",
    ),
    "another result goes on with the count": (
        *("detectors.repeated_call:_count", " or before.signatures != results", ""),
        "repeated-call: a read whose result changes",
    ),
    # call-cycle
    "a wait is a side of a cycle": (
        *("evidence:_lap", 'judged.role == "wait" or ', ""),
        "call-cycle: a wait in the lap",
    ),
    "a cancelled call is a side of a cycle": (
        *("evidence:_lap", '("pending", "cancelled")', "()"),
        "call-cycle: a cancelled call in the lap",
    ),
    "one round that repeats is a cycle": (
        *("evidence:_completed", "len(set(members)) > 1", "True"),
        "call-cycle: one round that repeats",
    ),
    # denied-call
    "a success of the tool does not clear its denials": (
        *("detectors.denied_call:_is_over", "return streak.tool in recovered", "return False"),
        "denied-call: a success of the tool between two denials",
    ),
    "a success on the target does not free it": (
        *("detectors.denied_call:_is_over", "streak.key.kind == TARGET and streak.key.parts[0] in freed", "False"),
        "denied-call: a target that was opened is free",
    ),
    "a success clears the denials of all tools": (
        *(
            "detectors.denied_call:_is_over",
            "return streak.key.kind == TARGET and",
            "return streak.key.kind != TARGET or",
        ),
        "denied-call: a gate that refuses every kind of change",
    ),
    "a success of the tool in the batch does not count": (
        *("detectors.denied_call:_keyed", "if judged.tool not in recovered:", "if True:"),
        "denied-call: a success of the tool in the same message",
    ),
    "a success on the target in the batch does not count": (
        *("detectors.denied_call:_keyed", " and target not in freed", ""),
        "denied-call: a success on the target in the same message",
    ),
    "a rejection with words of the user is a denial": (
        *("detectors.denied_call:_counts", " and not member.judged.steered", ""),
        "denied-call: a rejection with words of the user steers",
    ),
    # failing-call, failing-tool, invalid-arguments
    "a success does not clear equal failures": (
        *("detectors.failing_call:fold", _CLEARS_RECOVERED, "pass"),
        "failing: an unclear other text means that the tool works",
    ),
    "an equal failure beside a success counts": (
        *("detectors.failing_call:fold", "if member.judged.tool not in recovered", ""),
        "failing: a failure beside a success of the tool is not the first of four",
    ),
    "wordless failures of different commands are the same": (
        *("detectors.failing_call:_keyed", '(judged.role == "shell" and not judged.traces.has_words)', "False"),
        "failing: different shell commands that fail without a word",
    ),
    "reads of what is not there are the same failure": (
        *("detectors.failing_call:_keyed", '(judged.role == "read" and judged.novel)', "False"),
        "failing: pages that are closed to the reader",
    ),
    "a success does not clear a tool's failures": (
        *("detectors.failing_tool:fold", _CLEARS_RECOVERED, "pass"),
        "failing: eleven failures, a success",
    ),
    "a failure of the tool beside a success counts": (
        *("detectors.failing_tool:fold", "if member.judged.tool not in recovered", ""),
        "failing: a failure beside a success of the tool is not the first of six",
    ),
    "refusals are no failures of the tool": (
        *("detectors.failing_tool:_counts", '("denied", "transient")', '("transient",)'),
        "failing: refusals of a tool are failures of it",
    ),
    "errors that pass by themselves are no failures": (
        *("detectors.failing_tool:_counts", '("denied", "transient")', '("denied",)'),
        "failing: rate limits are told late",
    ),
    "cancelled siblings are failures": (
        *("detectors.failing_tool:_counts", '("denied", "transient")', '("denied", "transient", "cancelled")'),
        "failing: cancelled siblings are no failures of their tool",
    ),
    "errors that pass by themselves have single bounds": (
        *("detectors.failing_tool:_keyed", "TRANSIENT if", "'' if"),
        "failing: a few rate limits are no failure",
    ),
    "a success does not clear wrong calls": (
        *("detectors.invalid_arguments:fold", _CLEARS_RECOVERED, "pass"),
        "invalid-arguments: after a success the count starts at one",
    ),
    "a wrong call beside a right one counts": (
        *("detectors.invalid_arguments:fold", "if pair[1].judged.tool not in recovered", ""),
        "invalid-arguments: a wrong call beside a right one",
    ),
    "no success is one": (
        *("detectors.recovery:works", 'outcome.kind == "succeeded" or ', ""),
        "denied-call: a success of the tool between two denials",
    ),
    "words of the user do not steer the tool": (
        *("detectors.recovery:works", " or exchange.steered", ""),
        "denied-call: a rejection with words of the user ends",
    ),
    "an unclear text is no success": (
        *("detectors.recovery:works", 'if outcome.kind != "unclear":', "if True:"),
        "failing: an unclear other text means that the tool works",
    ),
    # unknown-tool, stuck-range, same-answer, idle-wait, call-budget
    "a call that reached a tool does not clear made-up names": (
        *("detectors.unknown_tool:fold", "return {}", "pass"),
        "unknown-tool: after a call that reached a tool",
    ),
    "a write to the file does not clear its range": (
        *("detectors.stuck_range:fold", "streak.key.parts[0] in touched", "False"),
        "stuck-range: a write to the file between two reads",
    ),
    "a write to any file clears a range": (
        *("detectors.stuck_range:fold", "streak.key.parts[0] in touched", "True"),
        "stuck-range: a write to another file",
    ),
    "another length is the same range": (
        *("traces:read_beyond", '" ".join(number for number in numbers if number not in asked)', "''"),
        "stuck-range: a log that grows between the reads is followed with",
    ),
    "an echoed offset is another length": (
        *("traces:read_beyond", "if number not in asked", ""),
        "stuck-range: as an error it is the same",
    ),
    "another answer does not clear the same answers": (
        *("detectors.same_answer:fold", "bool(heard.get(streak.tool, set()) - {streak.key.parts[1]})", "False"),
        "same-answer: one other answer between seven and seven",
    ),
    "one of two answers counts": (
        *("detectors.same_answer:fold", " and len(heard[member.judged.tool]) == 1", ""),
        "same-answer: two answers of a tool in one message",
    ),
    "a question that was asked before is a variation": (
        *("detectors.same_answer:fold", " and member.judged.novel", ""),
        "same-answer: the same questions again are repeats",
    ),
    "an answer that is marked as a success counts": (
        *("traces:ReadTraces._said", 'self._outcome.kind != "unclear" or ', ""),
        "same-answer: answers that the wire marks as successes",
    ),
    "a number that was asked for is an echo": (
        *("traces:ReadTraces._said", "numbers=False", "numbers=True"),
        "same-answer: a number that was asked for",
    ),
    "a wait that changes is idle": (
        *("detectors.idle_wait:_count", "again == (key.kind == CHANGING)", "False"),
        "idle-wait: a poll with a changing answer is never ended",
    ),
    "a budget is forgotten in quiet rounds": (
        *("detectors.call_budget:fold", "replace(streak, touched=judged.index)", "streak"),
        "call-budget: quiet rounds do not refill it",
    ),
    "a budget counts rounds": (
        *("detectors.call_budget:fold", ", by=len(group)", ""),
        "call-budget: calls in one message count each",
    ),
}


def _line_mutants() -> Iterator[Mutant]:
    for name, (where, text, becomes, red) in LINES.items():
        yield Mutant(name, line(where, text, becomes), red)


MUTANTS = [*_rung_mutants(), *_constant_mutants(), *_line_mutants()]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_turns_a_case_red(mutant: Mutant) -> None:
    """The guard says something else than the case expects, by a verdict and not by an error; whole again, it does
    not."""
    case, dialect = mutant.case()

    with broken(mutant.change):
        assert case.difference(dialect) != ""
    assert case.difference(dialect) == ""
