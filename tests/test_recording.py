"""Recordings: what a proxy decided is written down, without content unless that is asked for, and replays to it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from litellm_toolguard import gate, recording
from litellm_toolguard.cli import main
from litellm_toolguard.dialects import answered, parse
from litellm_toolguard.engine import decide, decide_on
from litellm_toolguard.evidence import Reader
from litellm_toolguard.policy import Policy
from litellm_toolguard.policy_reading import load_policy
from litellm_toolguard.recorder import KEY_SUFFIX, Looked, Recorder
from litellm_toolguard.session import End, Failed, Proposal, Release, Remember, look, session
from litellm_toolguard.store.access import StoreAccess
from litellm_toolguard.store.memory import MemoryFactStore
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, HISTORY, Conversation, expand
from tests.histories import dialects, parts, policies

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
both_modes = pytest.mark.parametrize("content", [False, True], ids=["hashed", "content"])

SECRETS = ("the prompt of Anna", "private/plans.txt", "the content of the plans")
READ = {"tool": "read_file", "args": {"path": SECRETS[1]}, "result": SECRETS[2]}
LOOP: list[dict[str, Any]] = [{"user": SECRETS[0]}, {"times": 9, "steps": [READ]}]
DENIED: list[dict[str, Any]] = [
    {"user": SECRETS[0]},
    {
        "times": 7,
        "steps": [
            {
                "tool": "bash",
                "args": {"command": f"cat {SECRETS[1]} {{i}}"},
                "result": "Permission denied by user",
                "error": True,
            }
        ],
    },
]
WORK: list[dict[str, Any]] = [
    {"user": SECRETS[0]},
    {"times": 9, "steps": [{"tool": "read_file", "args": {"path": "{i}" + SECRETS[1]}, "result": "{i}" + SECRETS[2]}]},
]


class Live:
    """A guard that records, as the proxy puts it together."""

    def __init__(self, path: Path, content: bool = False, **policy: Any) -> None:
        self.policy = load_policy({"record": str(path), "record_content": content, **policy})
        self.recorder = Recorder(path, self.policy)
        self.store = MemoryFactStore()
        self.decided: list[tuple[str, str, int]] = []

    def request(self, dialect: Dialect, body: Mapping[str, Any], tenant: str = "t") -> gate.Ruling:
        """One request, judged and recorded."""
        looked = Looked(StoreAccess(self.store, MemoryFactStore(), tenant))
        ruling = gate.rule(dialect, body, self.policy, looked.look_up, looked.look_up_blocks, self.recorder.secret)
        self.store.remember(tenant, ruling.remember)
        row = self.recorder.request(tenant, dialect, body, ruling, looked)
        if ruling.report is not None and ruling.report["action"] != "pass":
            report = ruling.report
            self.decided.append((report["action"], report.get("detector", ""), report.get("count", 0)))
        return replace(ruling, row=row)

    def run(self, dialect: Dialect, steps: Sequence[Mapping[str, Any]], start: int = 0) -> None:
        """Every request of a conversation from the given number of rounds on, until its end."""
        conversation, rounds = Conversation(dialect), 0
        for step in expand(steps):
            conversation.add(step)
            rounds += "round" in step
            if rounds >= start and gate.ends_run(self.request(dialect, conversation.request()).action):
                return

    def answer(
        self, ruling: gate.Ruling, dialect: Dialect, answers: Sequence[Mapping[str, Any] | None]
    ) -> Release | End:
        """The answers to an armed request, judged and recorded."""
        assert ruling.watch is not None
        steps, replies = session(ruling.watch), iter(answers)
        effect = next(steps)
        while not isinstance(effect, (Release, End)):
            if isinstance(effect, Remember):
                self.store.remember_block("t", effect.position, effect.blocks)
                effect = steps.send(None)
                continue
            answer = next(replies)
            self.recorder.answer(ruling, dialect, answer)
            effect = steps.send(Failed("broken") if answer is None else Proposal(answer))
        self.recorder.verdict(ruling, effect)
        if effect.objection is not None:
            found = effect.objection
            self.decided.append((found.action, found.detector, found.count))
        return effect


def replay(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)], catch_exceptions=False)


def replayed(*arguments: str | Path) -> list[dict[str, Any]]:
    result = replay(*arguments, "--format", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(result.stdout)["transcripts"]
    return found


def seen(transcripts: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    return [
        (each["action"], each["detector"], each["count"])
        for transcript in transcripts
        for each in transcript["interventions"]
    ]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


# ------------------------------------------------------------------------------------------------------------ evidence


@settings(deadline=None)
@given(st.data(), dialects, policies)
def test_evidence_that_was_written_down_is_decided_alike(data: st.DataObject, dialect: Dialect, policy: Policy) -> None:
    """Every generated history, at its end and in its middle, with and without a secret."""
    history = data.draw(parts(dialect))
    secret = data.draw(st.sampled_from((b"", b"secret")))
    end = data.draw(st.integers(1, len(history)))
    items = [item for part in history[:end] for item in part.items]
    transcript = parse(dialect, {HISTORY[dialect]: items})

    def told(instances: Any) -> dict[bytes, int]:
        return {instance: 2 for instance in instances if instance[0] % 2}

    decision, standing = decide(transcript, policy, told, secret)
    plain = json.loads(json.dumps(recording.plain_evidence(standing.evidence, 0)))
    evidence = recording.read_evidence(dialect, (), plain)
    again, stands = decide_on(evidence, policy, told, Reader(dialect, policy))

    assert recording.plain_evidence(evidence, 0) == plain
    assert recording.chain(evidence.steps) == recording.chain(standing.evidence.steps)
    live = gate.ruled(decision, standing, policy, lambda _: {})
    assert recording.plain_decision(gate.ruled(again, stands, policy, lambda _: {})) == recording.plain_decision(live)
    assert stands.walk.positions() == standing.walk.positions()


@every_dialect
def test_a_policy_that_was_written_down_is_the_same(dialect: Dialect) -> None:
    """What is off is off, what is not given stays the preset's."""
    policy = load_policy(
        {
            "preset": "strict",
            "detectors": {"reread": "off", "repeated-call": {"hint": 2, "stop": 4}},
            "tools": [{"match": "a*", "role": "wait", "detectors": {"failing-call": "off"}}],
            "store": "memory",
            "record": f"{dialect}.jsonl",
        }
    )
    again = recording.read_policy(json.loads(json.dumps(recording.plain_policy(policy))))

    assert recording.plain_policy(again) == recording.plain_policy(policy)
    assert again.record is None
    assert again.ladder("reread", "", "x") is None
    assert again.ladder("failing-call", "", "ab") is None
    assert again.ladder("failing-call", "", "b") == policy.ladder("failing-call", "", "b")


# -------------------------------------------------------------------------------------------------------------- replay


@every_dialect
@both_modes
def test_a_recording_replays_to_what_was_decided(tmp_path: Path, dialect: Dialect, content: bool) -> None:
    """A loop, refusals, work, and a loop that the guard met in the middle: four transcripts."""
    live = Live(tmp_path / "r.jsonl", content)
    for number, steps in enumerate((LOOP, DENIED, WORK)):
        live.run(dialect, [{"user": f"{number}"}, *steps])
    live.run(dialect, [{"user": "elsewhere"}, *LOOP, {"times": 3, "steps": [READ]}], start=9)

    found = replayed(tmp_path / "r.jsonl")

    assert seen(found) == live.decided
    assert [(each["dialect"], each["rounds"]) for each in found] == [(dialect, n) for n in (8, 6, 9, 10)]
    assert [action for action, *_ in live.decided] == ["hint", "hint", "stop"] * 2 + ["hint", "stop"]


@every_dialect
@both_modes
def test_answers_to_armed_requests_replay_too(tmp_path: Path, dialect: Dialect, content: bool) -> None:
    """A block and what the model says then, an insistence, an answer that broke off."""
    live = Live(tmp_path / "r.jsonl", content)
    live.run(dialect, [*LOOP[:1], {"times": 3, "steps": [READ]}])
    conversation = Conversation(dialect)
    for step in expand([*LOOP[:1], {"times": 4, "steps": [READ]}]):
        conversation.add(step)
    same, words = an_answer(dialect, READ), an_answer(dialect, None)

    effects = []
    for answers in ([same, words], [same, same], [None], [words]):
        ruling = live.request(dialect, conversation.request())
        effects.append(live.answer(ruling, dialect, answers))

    assert [type(effect) for effect in effects] == [Release, End, Release, Release]
    assert seen(replayed(tmp_path / "r.jsonl")) == live.decided
    assert [action for action, *_ in live.decided] == ["hint", "block", "stop"]


def an_answer(dialect: Dialect, call: Mapping[str, Any] | None) -> dict[str, Any]:
    """An answer with one call, or in words."""
    if dialect == "chat":
        function = {"name": "read_file", "arguments": json.dumps(READ["args"])}
        calls = {"tool_calls": [{"id": "n", "type": "function", "function": function}]} if call else {}
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": "well", **calls}}]}
    if dialect == "messages":
        use = [{"type": "tool_use", "id": "n", "name": "read_file", "input": READ["args"]}] if call else []
        return {"role": "assistant", "content": [{"type": "text", "text": "well"}, *use]}
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "well"}]}
    made = {"type": "function_call", "call_id": "n", "name": "read_file", "arguments": json.dumps(READ["args"])}
    return {"output": [made if call else message]}


@every_dialect
def test_without_content_no_word_of_it_is_written(tmp_path: Path, dialect: Dialect) -> None:
    """Names of tools and ids of calls are; prompts, arguments and outputs are not, nor a plain digest of them."""
    live = Live(tmp_path / "r.jsonl")
    for steps in (LOOP, DENIED, WORK):
        live.run(dialect, steps)
    text = (tmp_path / "r.jsonl").read_text()

    assert not [word for word in (*SECRETS, "Anna", "plans", "Permission", "cat private") if word in text]
    assert "read_file" in text
    plain = look_up_plain_digests(dialect)
    assert plain
    assert not [value for value in plain if value in text]


def look_up_plain_digests(dialect: Dialect) -> list[str]:
    """What anybody could compute who guesses the calls."""
    conversation = Conversation(dialect)
    for step in expand(LOOP):
        conversation.add(step)
    _, standing = decide(parse(dialect, conversation.request()), Policy(), lambda _: {})
    judged = standing.walk.rounds[0].round.exchanges[0]
    return [judged.key.hex(), judged.result.hex(), judged.traces.target.hex()]


@pytest.mark.parametrize("content", [False, True])
def test_a_message_in_which_the_provider_ran_tools_is_one_round(tmp_path: Path, content: bool) -> None:
    """As it is in the review of the conversation itself."""
    beside = {"round": [{"tool": "ask", "args": {"q": "a"}, "result": "no", "by": "provider"}, READ]}
    path = tmp_path / "r.jsonl"
    Live(path, content=content).run("responses", [{"user": "look"}, {"times": 3, "steps": [beside]}])

    (found,) = replayed(path)
    assert found["rounds"] == 3


def test_only_what_is_read_of_a_request_is_kept(tmp_path: Path) -> None:
    """Headers, keys and LiteLLM's own objects are no part of a recording with content either."""
    live = Live(tmp_path / "r.jsonl", content=True)
    live.request(
        "chat", {"messages": [{"role": "user", "content": "hi"}], "api_key": "sk-1", "secret_fields": object()}
    )

    assert rows(tmp_path / "r.jsonl")[1]["body"] == {"messages": [{"role": "user", "content": "hi"}]}


def test_a_request_grows_the_file_by_its_new_rounds_alone(tmp_path: Path) -> None:
    """Without content a row carries on the one before; with a retry it holds nothing new."""
    live = Live(tmp_path / "r.jsonl")
    live.run("chat", WORK)
    live.run("chat", WORK)

    written = [row for row in rows(tmp_path / "r.jsonl") if row["toolguard"] == "request"]
    assert [len(row["steps"]) for row in written] == [1] * 10 + [0] * 10
    assert len(replayed(tmp_path / "r.jsonl")) == 2


def test_a_rejection_of_what_cannot_be_read_replays(tmp_path: Path) -> None:
    """With and without a history at all."""
    for content in (True, False):
        live = Live(tmp_path / f"{content}.jsonl", content, not_inspected="reject")
        rulings = [
            live.request("responses", {"input": "hi", "previous_response_id": "r"}),
            live.request("chat", {"messages": 5}),
        ]
        assert [ruling.action for ruling in rulings] == ["reject", "reject"]
        result = replay(tmp_path / f"{content}.jsonl", "--format", "json")
        assert (result.exit_code, json.loads(result.stdout)["summary"]["not_inspected"]) == (0, 2)


def test_a_recording_is_read_packed_and_beside_other_files(tmp_path: Path) -> None:
    """By its content, in its place."""
    live = Live(tmp_path / "r.jsonl")
    live.run("chat", LOOP)
    packed, other = tmp_path / "r.gz", tmp_path / "other.jsonl"
    packed.write_bytes(gzip.compress((tmp_path / "r.jsonl").read_bytes()))
    other.write_text(json.dumps({"id": "x", "messages": [{"role": "user", "content": "hi"}]}) + "\n")

    assert [each["rounds"] for each in replayed(other, packed, tmp_path / "r.jsonl")] == [0, 8, 8]
    assert [each["rounds"] for each in replayed("--jobs", "2", other, packed)] == [0, 8]


@both_modes
def test_another_decision_is_a_fault(tmp_path: Path, content: bool) -> None:
    """A row whose decision was changed is named; with a policy of one's own there is nothing to compare."""
    path = tmp_path / "r.jsonl"
    Live(path, content).run("chat", LOOP)
    changed = rows(path)
    changed[-1]["decision"]["report"]["count"] = 9
    path.write_text("".join(json.dumps(row) + "\n" for row in changed))

    result = replay(path)
    assert result.exit_code == 1
    assert result.stderr == (
        f"{path}:10: replays to another decision: recorded stop by repeated-call at 9, now stop by repeated-call at 8\n"
    )
    policy = tmp_path / "policy.yaml"
    policy.write_text("detectors: {repeated-call: {hint: 4, stop: 5}}\n")
    assert seen(replayed(path, "--policy", policy))[:2] == [("hint", "repeated-call", 4), ("stop", "repeated-call", 5)]


def test_a_policy_that_reads_calls_otherwise_needs_content(tmp_path: Path) -> None:
    """Roles and identities are in the digests."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("tools: [{match: read_file, role: wait}]\n")
    for content, code in ((False, 1), (True, 0)):
        path = tmp_path / f"{content}.jsonl"
        Live(path, content).run("chat", LOOP)
        assert replay(path, "--policy", policy).exit_code == code


@pytest.mark.parametrize(
    "change",
    [
        {"dialect": "x"},
        {"run": "unknown"},
        {"steps": [{}]},
        {"steps": [{"calls": []}]},
        {"steps": [5]},
        {"steps": None},
        {"facts": 5},
        {"facts": {"zz": 1}},
        {"blocks": {"00": {"00": 0}}},
        {"continues": "unknown"},
        {"id": None},
        {"decision": None},
        {"tenant": []},
    ],
)
def test_a_broken_row_is_a_fault_and_the_others_are_judged(tmp_path: Path, change: dict[str, Any]) -> None:
    """Whatever stands in it."""
    path = tmp_path / "r.jsonl"
    Live(path).run("chat", LOOP)
    held = rows(path)
    path.write_text("".join(json.dumps(row) + "\n" for row in (*held, {**held[1], **change}, "torn")))

    result = replay(path, "--format", "json")

    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 2)
    assert seen(json.loads(result.stdout)["transcripts"])[-1] == ("stop", "repeated-call", 8)


# ---------------------------------------------------------------------------------------------------------------- file


def test_the_file_and_its_key_are_for_their_owner(tmp_path: Path) -> None:
    """Also where the umask would allow more."""
    before = os.umask(0)
    try:
        Live(tmp_path / "r.jsonl")
    finally:
        os.umask(before)

    assert [path.stat().st_mode & 0o777 for path in sorted(tmp_path.iterdir())] == [0o600, 0o600]


def test_a_restart_appends_with_the_same_key(tmp_path: Path) -> None:
    """The conversation goes on as one transcript, though the stored facts are gone."""
    path = tmp_path / "r.jsonl"
    first = Live(path)
    first.run("chat", [*LOOP[:1], {"times": 4, "steps": [READ]}])
    second = Live(path)
    second.run("chat", LOOP, start=5)

    (found,) = replayed(path)
    assert seen([found]) == first.decided + second.decided
    assert second.recorder.secret == first.recorder.secret


def test_a_file_that_was_emptied_or_taken_away_begins_anew(tmp_path: Path) -> None:
    """As programs do that rotate logs."""
    path = tmp_path / "r.jsonl"
    live = Live(path)
    live.run("chat", WORK)
    os.truncate(path, 0)
    live.run("chat", WORK)
    assert len(replayed(path)) == 1
    path.unlink()
    live.run("chat", WORK)
    assert len(replayed(path)) == 1


def assert_one_row_is_lost(path: Path) -> None:
    """One fault, and the loop behind it is seen to its end."""
    result = replay(path, "--format", "json")
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert "stop" in [action for action, *_ in seen(json.loads(result.stdout)["transcripts"])]


def test_a_row_that_was_torn_off_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes half of a row; the next one begins a line of its own."""
    path = tmp_path / "r.jsonl"
    live = Live(path)
    live.run("chat", LOOP[:1])
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
        with pytest.raises(OSError, match="in part"):
            live.request("chat", {"messages": [{"role": "user", "content": "lost"}]})
    live.run("chat", LOOP)

    assert_one_row_is_lost(path)


def test_a_start_behind_a_row_that_was_torn_off_begins_a_line(tmp_path: Path) -> None:
    """Its writer died within the row."""
    path = tmp_path / "r.jsonl"
    Live(path).run("chat", WORK)
    with path.open("ab") as file:
        file.write(b'{"row": "requ')
    live = Live(path)
    live.run("chat", LOOP)

    assert_one_row_is_lost(path)


def test_one_who_did_not_empty_the_file_sees_that_it_was(tmp_path: Path) -> None:
    """The other writer has begun it anew before."""
    path = tmp_path / "r.jsonl"
    one, other = Live(path), Live(path)
    one.run("chat", LOOP)
    other.run("chat", WORK)
    os.truncate(path, 0)
    one.run("chat", LOOP[:1])
    other.run("chat", WORK)

    assert replayed(path)


WRITER = """
import sys
from pathlib import Path
from tests.test_recording import LOOP, Live
live = Live(Path(sys.argv[1]))
for number in range(20):
    live.run("chat", [{"user": f"{sys.argv[2]} {number}"}, *LOOP])
"""


def test_two_processes_write_one_file(tmp_path: Path) -> None:
    """Row by row, with one key."""
    path = tmp_path / "r.jsonl"
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], cwd=Path(__file__).parents[1])
        for name in ("one", "other")
    ]
    assert [each.wait() for each in running] == [0, 0]

    found = replayed(path)
    assert len(found) == 40
    assert {tuple(seen([each])) for each in found} == {
        (("hint", "repeated-call", 3), ("hint", "repeated-call", 7), ("stop", "repeated-call", 8))
    }
    assert path.with_name(path.name + KEY_SUFFIX).stat().st_size == 32


@pytest.mark.parametrize("fault", ["folder", "mode", "key", "directory", "pipe"])
def test_a_file_that_cannot_be_used_is_an_error(tmp_path: Path, fault: str) -> None:
    """A missing folder, a file that others may read, a key that is none, a directory, a pipe."""
    path = tmp_path / "r.jsonl"
    if fault == "mode":
        path.touch(mode=0o600)
        path.chmod(0o640)
    elif fault == "key":
        path.with_name(path.name + KEY_SUFFIX).touch(mode=0o600)
    elif fault == "directory":
        path.mkdir()
    elif fault == "pipe":
        os.mkfifo(path, mode=0o600)
    else:
        path = tmp_path / "none" / "r.jsonl"

    with pytest.raises(OSError, match=r"."):
        Recorder(path, load_policy({"record": str(path)}))


def test_an_answer_is_read_as_it_was_seen() -> None:
    """What the verdict needs of an answer survives the file."""
    ruling_at: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    _, standing = decide(parse("chat", ruling_at), Policy(), lambda _: {}, b"secret")
    found = look(standing, an_answer("chat", READ))
    again = recording.read_seen(json.loads(json.dumps(recording.plain_seen(found))))

    assert recording.plain_seen(again) == recording.plain_seen(found)
    assert found.can_be_held
    assert answered("chat", an_answer("chat", None))
