"""`toolguard replay`: formats, order, labels, exit codes, bad input, memory; and that a replay says what a live guard
says."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from litellm_toolguard import replay as replay_module
from litellm_toolguard.cli import main
from litellm_toolguard.policy import Policy
from litellm_toolguard.replay import replay
from litellm_toolguard.replay_files import CHUNK_BYTES
from litellm_toolguard.replay_judge import Judged
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, Conversation, expand
from tests.verdict_cases import Case, cases

LOOP: list[dict[str, Any]] = [
    {"user": "look"},
    {"times": 3, "steps": [{"tool": "read_file", "args": {"path": "a"}, "result": "x"}]},
]
WORK: list[dict[str, Any]] = [
    {"user": "look"},
    {"times": 3, "steps": [{"tool": "read_file", "args": {"path": "{i}"}, "result": "x{i}"}]},
]
HINT = {"round": 3, "detector": "repeated-call", "action": "hint", "tool": "read_file", "count": 3}


def request(dialect: Dialect = "chat", steps: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    conversation = Conversation(dialect)
    for step in expand(steps or LOOP):
        conversation.add(step)
    return conversation.request()


def record(name: str, steps: list[dict[str, Any]] | None = None, dialect: Dialect = "chat") -> dict[str, Any]:
    return {"id": name, "dialect": dialect, **request(dialect, steps)}


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def run(folder: Path, content: str | bytes, *options: str, name: str = "file.jsonl") -> Result:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return invoke(str(file), *options)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["replay", *arguments], catch_exceptions=False)


def judged(folder: Path, content: str | bytes, name: str = "file.jsonl") -> list[dict[str, Any]]:
    result = run(folder, content, "--format", "json", name=name)
    assert (result.exit_code, result.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(result.stdout)["transcripts"]
    return found


def seen(transcript: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{key: each[key] for key in HINT} for each in transcript["interventions"]]


# ------------------------------------------------------------------------------------------------------------ formats


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_request_body_tells_its_dialect_by_itself(tmp_path: Path, dialect: Dialect) -> None:
    """Nothing but the body is given; its name is where it stands."""
    [found] = judged(tmp_path, lines(request(dialect)))

    assert (found["id"], found["dialect"]) == (f"{tmp_path / 'file.jsonl'}:1", dialect)
    assert (found["rounds"], found["calls"], seen(found)) == (3, 3, [HINT])


@pytest.mark.parametrize(
    ("body", "dialect"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, "chat"),
        ({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}, "chat"),
        ({"messages": [{"role": "user", "content": "hi"}], "system": "be brief"}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 5}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}, "chat"),
        ({"input": "hi"}, "responses"),
        ({"messages": [], "dialect": "messages"}, "messages"),
    ],
)
def test_a_body_without_calls_tells_its_dialect_by_its_fields(
    tmp_path: Path, body: dict[str, Any], dialect: str
) -> None:
    """`system`, and `max_tokens` beside content blocks, are Anthropic's."""
    [found] = judged(tmp_path, lines(body))

    assert (found["dialect"], found["calls"]) == (dialect, 0)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_transcript_record_keeps_its_id(tmp_path: Path, dialect: Dialect) -> None:
    """Id and dialect are the record's own."""
    [found] = judged(tmp_path, lines(record("one", dialect=dialect)))

    assert (found["id"], found["dialect"], seen(found)) == ("one", dialect, [HINT])


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("listed", [True, False])
def test_json_over_many_lines_or_one(tmp_path: Path, indent: int | None, listed: bool) -> None:
    """A file may be one value or a list of values, pretty-printed or not."""
    values = [record("one"), record("two")] if listed else record("one")

    found = judged(tmp_path, "\n" + json.dumps(values, indent=indent), name="file.json")

    assert [each["id"] for each in found] == (["one", "two"] if listed else ["one"])
    assert all(seen(each) == [HINT] for each in found)


def test_elements_without_an_id_are_named_by_line_and_index(tmp_path: Path) -> None:
    """So that every transcript can be found again."""
    found = judged(tmp_path, "[\n" + json.dumps(request()) + ",\n" + json.dumps(request()) + "\n]", name="file.json")

    where = tmp_path / "file.json"
    assert [each["id"] for each in found] == [f"{where}:2[0]", f"{where}:3[1]"]


def test_gzip_is_seen_by_the_content(tmp_path: Path) -> None:
    """The name does not matter, nor does a mark of UTF-8 at the beginning."""
    content = gzip.compress(b"\xef\xbb\xbf" + lines(record("one"), record("two")).encode())

    assert [each["id"] for each in judged(tmp_path, content, name="file.txt")] == ["one", "two"]


def claude(kind: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content, **({"id": more.pop("message")} if "message" in more else {})}
    return {"type": kind, "sessionId": "s1", "isSidechain": False, "message": message, "uuid": "u", **more}


def use(number: int, path: str = "a") -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": f"t{number}", "name": "read_file", "input": {"path": path}}]


def result_of(number: int) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": f"t{number}", "content": "x"}]


def rounds_of(count: int, **more: Any) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield claude("assistant", use(number), message=f"m{number}", **more)
        yield claude("user", result_of(number), **more)


def test_a_claude_code_session_is_one_transcript_per_chain(tmp_path: Path) -> None:
    """Sessions, sidechains and agents are apart though their entries are mixed; what is no message is ignored."""
    entries = [
        {"type": "summary", "summary": "earlier", "leafUuid": "x"},
        {"type": "file-history-snapshot", "messageId": "x", "snapshot": {}},
        claude("user", "look"),
        *rounds_of(2),
        {"type": "system", "subtype": "note", "sessionId": "s1"},
        {"type": "something-new", "sessionId": "s1"},
        claude("user", "look", isSidechain=True, uuid="a1", parentUuid=None),
        *rounds_of(3, isSidechain=True, uuid="a1", parentUuid="a1"),
        claude("user", "look", isSidechain=True, uuid="b1", parentUuid=None),
        claude("user", "look", isSidechain=True, agentId="ag"),
        *rounds_of(1, sessionId="s2"),
        claude("assistant", use(2), message="m2"),
        claude("user", result_of(2)),
    ]

    found = judged(tmp_path, lines(*entries))

    assert [(each["id"], each["calls"], seen(each)) for each in found] == [
        ("s1", 3, [HINT]),
        ("s1/sidechain-1", 3, [HINT]),
        ("s1/sidechain-2", 0, []),
        ("s1/ag", 0, []),
        ("s2", 1, []),
    ]


def test_entries_of_one_answer_are_one_message(tmp_path: Path) -> None:
    """Also where the result of the first call already stands between them."""
    entries = [
        claude("user", "look"),
        claude("assistant", "words", message="m1"),
        claude("assistant", use(1, "a"), message="m1"),
        claude("user", result_of(1)),
        claude("assistant", use(2, "b"), message="m1"),
        claude("user", result_of(2)),
        claude("assistant", use(3, "c"), message="m2"),
        claude("user", "stop"),
        claude("assistant", use(4, "d"), message="m2"),
    ]

    [found] = judged(tmp_path, lines(*entries))

    assert (found["rounds"], found["calls"]) == (3, 4)


def codex(kind: str, payload: Any) -> dict[str, Any]:
    return {"timestamp": "2025-01-01T00:00:00Z", "type": kind, "payload": payload}


def test_a_codex_rollout_is_one_transcript(tmp_path: Path) -> None:
    """Its response items are the history; its id is that of the first session."""
    items = request("responses")["input"]
    entries = [
        codex("session_meta", {"id": "r1"}),
        codex("session_meta", {"id": "parent"}),
        codex("turn_context", {}),
        *(codex("response_item", item) for item in items),
        codex("event_msg", {"type": "token_count"}),
        codex("compacted", {"message": "summary"}),
    ]

    [found] = judged(tmp_path, lines(*entries))

    assert (found["id"], found["dialect"], seen(found)) == ("r1", "responses", [HINT])


ROWS = {
    "messages": ({"call_type": "acompletion", "messages": request("chat")["messages"]}, "chat"),
    "messages as text": ({"call_type": "acompletion", "messages": json.dumps(request("chat")["messages"])}, "chat"),
    "the whole body": ({"call_type": "aresponses", "proxy_server_request": request("responses")}, "responses"),
    "the body as text": (
        {"call_type": "anthropic_messages", "messages": {}, "proxy_server_request": json.dumps(request("messages"))},
        "messages",
    ),
    "the body in an envelope": ({"proxy_server_request": {"url": "u", "body": request("messages")}}, "messages"),
}


@pytest.mark.parametrize("row", ROWS)
def test_spend_log_rows(tmp_path: Path, row: str) -> None:
    """The body is in one of two columns, as a value or as text."""
    columns, dialect = ROWS[row]

    [found] = judged(tmp_path, lines({"request_id": "r", **columns}))

    assert (found["id"], found["dialect"], seen(found)) == ("r", dialect, [HINT])


def test_rows_of_other_requests_are_passed_over_and_counted(tmp_path: Path) -> None:
    """An embedding has an `input`, too."""
    rows = [
        {"request_id": "e", "call_type": "aembedding", "proxy_server_request": {"input": ["a"]}, "messages": {}},
        {"request_id": "i", "call_type": "aimage_generation", "messages": {}},
    ]

    result = run(tmp_path, lines(*rows), "--format", "json")

    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout)["summary"]["skipped"] == 2


# ------------------------------------------------------------------------------------------------------------- output


def test_the_json_has_exactly_these_keys(tmp_path: Path) -> None:
    """Programs read it."""
    result = run(tmp_path, lines(record("one"), record("two", WORK)), "--format", "json")

    assert json.loads(result.stdout) == {
        "transcripts": [
            {"id": "one", "dialect": "chat", "rounds": 3, "calls": 3, "interventions": [{**HINT, "call_id": "call_3"}]},
            {"id": "two", "dialect": "chat", "rounds": 3, "calls": 3, "interventions": []},
        ],
        "summary": {
            "transcripts": 2,
            "calls": 6,
            "hints": 1,
            "blocks": 0,
            "asks": 0,
            "stops": 0,
            "saved": 0,
            "not_inspected": 0,
            "skipped": 0,
            "errors": 0,
        },
    }


def test_json_lines_hold_the_same(tmp_path: Path) -> None:
    """One line each, the sum last."""
    content = lines(record("one"), record("two", WORK))
    whole = json.loads(run(tmp_path, content, "--format", "json").stdout)

    found = [json.loads(line) for line in run(tmp_path, content, "--format", "jsonl").stdout.splitlines()]

    assert found == [*whole["transcripts"], {"summary": whole["summary"]}]


def test_the_text_shows_what_there_is_to_see_and_no_sign_that_steers_a_terminal(tmp_path: Path) -> None:
    """Names in a file are anyone's."""
    steps: list[dict[str, Any]] = [
        {"user": "x"},
        {"times": 3, "steps": [{"tool": "read\x1b[31m", "args": {}, "result": "x"}]},
    ]

    result = run(tmp_path, lines(record("o\x1bne", steps), record("two", WORK)))

    assert result.stdout.splitlines() == [
        "o?ne (chat, 3 calls)",
        "  round    3  hint    repeated-call      read__31m  count 3  call_3",
        "",
        "2 transcripts, 6 calls",
        "1 hints, 0 blocks, 0 asks, 0 stops",
        "0 calls would have been saved",
    ]


def longer(times: int) -> list[dict[str, Any]]:
    return [LOOP[0], {**LOOP[1], "times": times}]


STOPPING = "detectors: {repeated-call: {hint: 3, stop: 4}}\n"
REJECTING = "detectors: {repeated-call: {hint: 3, reject: 4}}\n"


@pytest.mark.parametrize(
    ("policy", "counts"),
    [
        ("", {"hints": 1, "blocks": 1, "stops": 0, "saved": 2}),
        (STOPPING, {"hints": 1, "blocks": 0, "stops": 1, "saved": 3}),
        (REJECTING, {"hints": 1, "blocks": 0, "stops": 1, "saved": 3}),
        ("detectors: {repeated-call: {hint: 3, ask: 4, stop: 8}}\n", {"hints": 1, "asks": 1, "stops": 0, "saved": 3}),
    ],
)
def test_the_sum_counts_every_action(tmp_path: Path, policy: str, counts: dict[str, int]) -> None:
    """A rejection is a stop; what would not have run is saved."""
    (tmp_path / "policy.yaml").write_text(policy, encoding="utf-8")

    result = run(
        tmp_path, lines(record("one", longer(6))), "--format", "json", "--policy", str(tmp_path / "policy.yaml")
    )

    summary = json.loads(result.stdout)["summary"]
    assert {key: summary[key] for key in counts} == counts


@pytest.mark.parametrize(
    ("times", "fail_on", "code"),
    [(2, "hint", 0), (3, None, 0), (3, "stop", 0), (3, "hint", 1), (8, "stop", 1), (8, "hint", 1), (8, None, 0)],
)
def test_fail_on(tmp_path: Path, times: int, fail_on: str | None, code: int) -> None:
    """For CI: `stop` is whatever ends the run, `hint` is anything."""
    options = ("--fail-on", fail_on) if fail_on else ()

    assert run(tmp_path, lines(record("one", longer(times))), *options).exit_code == code


# ------------------------------------------------------------------------------------------------------------- labels


def labelled(tmp_path: Path, *options: str) -> Result:
    transcripts = [
        record("right silence", WORK),
        record("right loop"),
        record("false hint"),
        record("false stop", longer(6)),
        record("missed", WORK),
        record("out of scope", WORK),
    ]
    labels = [
        {"id": "right loop", "label": "benign"},
        {"id": "right loop", "label": "loop", "kind": "consecutive", "tool": "read_file"},
        {"id": "false hint", "label": "benign", "kind": "polling"},
        {"id": "missed", "label": "loop", "kind": "slow", "tool": "read_file"},
        {"id": "out of scope", "label": "loop", "scope": "across_turns"},
        {"id": "elsewhere", "label": "loop"},
    ]
    (tmp_path / "labels").write_text(lines(*labels), encoding="utf-8")
    return run(tmp_path, lines(*transcripts), "--labels", str(tmp_path / "labels"), *options)


def test_labels_give_a_table_of_right_and_wrong(tmp_path: Path) -> None:
    """The wrong ones are named. A transcript without a label is no loop; one with several labels is one if any says
    so."""
    result = labelled(tmp_path)

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-10:] == [
        "verdict       transcripts  interventions",
        "right                   3              1",
        "false stops             1              1",
        "false hints             2              2",
        "missed loops            1              0",
        "  false hints: false hint (benign polling)",
        "  false stops: false stop (no label)",
        "  false hints: false stop (no label)",
        "  missed loops: missed (loop slow read_file)",
        "1 labelled ids have no transcript in these files",
    ]


def test_labels_stand_in_the_summary_of_the_json(tmp_path: Path) -> None:
    """The same numbers."""
    summary = json.loads(labelled(tmp_path, "--format", "json").stdout)["summary"]

    assert summary["labels"] == {
        "right": 3,
        "false_stops": 1,
        "false_hints": 2,
        "missed_loops": 1,
        "without_transcript": 1,
        "wrong": [
            {"id": "false hint", "verdict": "false_hints"},
            {"id": "false stop", "verdict": "false_stops"},
            {"id": "false stop", "verdict": "false_hints"},
            {"id": "missed", "verdict": "missed_loops"},
        ],
    }


@pytest.mark.parametrize("label", [{"id": "one"}, {"label": "loop"}, {"id": "one", "label": "secret"}, ["secret"], 1])
def test_a_bad_label_is_an_error(tmp_path: Path, label: Any) -> None:
    """With its line, and the others are used."""
    labels = tmp_path / "labels"
    labels.write_text(lines({"id": "one", "label": "loop"}, label), encoding="utf-8")

    result = run(tmp_path, lines(record("one")), "--labels", str(labels), "--format", "json")

    assert result.exit_code == 1
    assert result.stderr.startswith(f"{labels}:2: is no label")
    assert "secret" not in result.stderr
    assert json.loads(result.stdout)["summary"]["labels"]["right"] == 1


# ---------------------------------------------------------------------------------------------------------- bad input

GOOD = lines(record("good")).encode()
SECRET = "hunter2"
BAD: dict[str, tuple[bytes, str]] = {
    "half a line": (f'{{"messages": ["{SECRET}", '.encode(), "is not JSON: Expecting value at column 26"),
    "text": (SECRET.encode(), "is not JSON: Expecting value at column 1"),
    "another encoding": (f'{{"messages": ["{SECRET} é"]}}'.encode("latin-1"), "is not UTF-8 text"),
    "a number": (b"12", "is no transcript: not a JSON object"),
    "another object": (
        lines({"role": "user", "content": SECRET}).encode(),
        "is no transcript: neither `messages` nor `input`, nor an entry of a known session log",
    ),
    "messages that are text": (lines({"messages": SECRET}).encode(), "cannot be read: `messages` is not a list"),
    "messages that are none": (
        lines({"messages": [SECRET, 3]}).encode(),
        "is no transcript: a message of an unknown role",
    ),
    "an input that is none": (lines({"input": [SECRET]}).encode(), "is no transcript: an item of an unknown type"),
    "an unknown dialect": (
        lines({"messages": [], "dialect": SECRET}).encode(),
        "`dialect` is none of chat, messages, responses",
    ),
    "a history twice": (
        lines({"messages": [], "input": []}).encode(),
        "mixes the signs of several dialects: say which one it is with `dialect`",
    ),
    "two dialects": (
        lines({"messages": request("chat")["messages"] + request("messages")["messages"]}).encode(),
        "mixes the signs of several dialects: say which one it is with `dialect`",
    ),
    "a session's entry without a message": (
        lines({"type": "user", "sessionId": "s", "message": SECRET}).encode(),
        "is an entry of a Claude Code session without `sessionId` or `message`",
    ),
    "a rollout's entry without an item": (
        lines(codex("response_item", SECRET)).encode(),
        "is an entry of a Codex rollout whose `payload` is no object",
    ),
    "a row without a body": (
        lines({"request_id": SECRET, "call_type": "acompletion", "messages": {}}).encode(),
        "is a spend-log row without the request: LiteLLM stores it with `store_prompts_in_spend_logs`",
    ),
    "a row with broken text": (
        lines({"request_id": "r", "call_type": "acompletion", "messages": f'["{SECRET}'}).encode(),
        "`messages` is text that is not JSON",
    ),
    "nesting without end": (
        b"[" * 100_000 + b"]" * 100_000,
        "is JSON that is nested too deeply or holds too long a number",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_an_error_with_its_line_and_the_rest_is_read(tmp_path: Path, bad: str) -> None:
    """No content of it is shown."""
    content, message = BAD[bad]

    result = run(tmp_path, GOOD + content.rstrip(b"\n") + b"\n" + GOOD, "--format", "json")

    assert result.exit_code == 1
    assert result.stderr == f"{tmp_path / 'file.jsonl'}:2: {message}\n"
    assert SECRET not in result.stderr
    whole = json.loads(result.stdout)
    assert [each["id"] for each in whole["transcripts"]] == ["good", "good"]
    assert whole["summary"]["errors"] == 1


def literal(arguments: str) -> dict[str, Any]:
    body = record("spoilt")
    for message in body["messages"]:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = arguments
    return body


def test_python_literals_for_arguments_are_told_and_compared_as_text(tmp_path: Path) -> None:
    """Whoever wrote the file may have spoilt them; the transcript is judged as a gateway would."""
    result = run(tmp_path, lines(literal("{'path': '\\d hunter2', 'all': True}")), "--format", "json")

    message = "the arguments of 3 calls are Python literals, not JSON; they are compared as text"
    assert (result.exit_code, result.stderr) == (1, f"{tmp_path / 'file.jsonl'}:1: {message}\n")
    assert json.loads(result.stdout)["summary"]["transcripts"] == 1


@pytest.mark.parametrize("arguments", ['{"path": "a"}', "{'path': open(1)}", "{broken", "{1}", "", "5", "['a']"])
def test_other_arguments_are_the_models_own(tmp_path: Path, arguments: str) -> None:
    """JSON that a model broke is for the detectors."""
    result = run(tmp_path, lines(literal(arguments)))

    assert (result.exit_code, result.stderr) == (0, "")


def test_python_literals_in_a_session_are_told_with_the_line_of_the_call(tmp_path: Path) -> None:
    """A session runs over many lines."""
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{'a': None}"}
    entries = [codex("session_meta", {"id": "r"}), codex("turn_context", {}), codex("response_item", item)]
    user = codex("response_item", {"type": "message", "role": "user", "content": "hi"})

    result = run(tmp_path, lines(*entries[:2], user, entries[2]))

    assert result.stderr.startswith(f"{tmp_path / 'file.jsonl'}:4: the arguments of 1 calls")


FILES: dict[str, tuple[str, bytes, str]] = {
    "empty": ("a.jsonl", b"", ": holds no transcript"),
    "blank": ("a.jsonl", b"\n \n", ": holds no transcript"),
    "summaries only": ("a.jsonl", lines({"type": "summary", "summary": "x"}).encode(), ": holds no transcript"),
    "UTF-16": ("a.jsonl", lines(record("a")).encode("utf-16"), ":1: is UTF-16 text; it must be UTF-8"),
    "a document that ends": ("a.json", b'{\n"messages": [\n', ":3: is not JSON: Expecting value at column 1"),
    "a document and more": ("a.json", b'{\n"messages": []}\n}', ":3: is not JSON: Extra data at column 1"),
    "a document in latin-1": ("a.json", b'{\n"messages": ["\xe9"]}', ":2: is not UTF-8 text"),
    "a list without commas": ("a.json", b"[\n1\n2\n]", ":3: is not JSON: Expecting ',' delimiter at column 1"),
    "deep": ("a.json", b"[\n" + b"[" * 100_000, ": is JSON that is nested too deeply or holds too long a number"),
    "broken gzip": (
        "a.gz",
        gzip.compress(lines(record("a")).encode())[:-20],
        ":1: cannot be read: the gzip data is broken or ends too early",
    ),
    "no gzip": ("a.gz", b"\x1f\x8bnothing", ":1: cannot be read: the gzip data is broken or ends too early"),
}


@pytest.mark.parametrize("bad", FILES)
def test_a_bad_file_is_an_error_and_the_others_are_read(tmp_path: Path, bad: str) -> None:
    """Each error begins with the file."""
    name, content, message = FILES[bad]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "good").write_bytes(GOOD)

    result = invoke(str(tmp_path / name), str(tmp_path / "good"), "--format", "jsonl")

    assert result.exit_code == 1
    assert f"{tmp_path / name}{message}" in result.stderr.splitlines()
    assert json.loads(result.stdout.splitlines()[0])["id"] == "good"


def test_what_stands_before_the_fault_of_a_list_is_read(tmp_path: Path) -> None:
    """A file that was cut off still holds its beginning."""
    whole = json.dumps([record("one"), record("two"), record("three")], indent=1)

    result = run(tmp_path, whole[: whole.index('"three"')], "--format", "json", name="file.json")

    assert result.exit_code == 1
    assert [each["id"] for each in json.loads(result.stdout)["transcripts"]] == ["one", "two"]


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """And so is a folder."""
    result = invoke(str(tmp_path / "none"), str(tmp_path))

    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == f"{tmp_path / 'none'}: cannot be read: No such file or directory"
    assert result.stderr.splitlines()[1].startswith(f"{tmp_path}: cannot be read: ")


def test_a_file_full_of_faults_does_not_flood_the_terminal(tmp_path: Path) -> None:
    """The rest is counted."""
    result = run(tmp_path, "no\n" * 50)

    shown = result.stderr.splitlines()
    assert (len(shown), shown[-1]) == (21, f"{tmp_path / 'file.jsonl'}: and 30 more")


def test_a_bad_policy_is_named_by_its_key(tmp_path: Path) -> None:
    """As `check` does, before anything is read."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("detectors: {repeated-call: {hint: 1, stop: 8}}\n", encoding="utf-8")

    result = run(tmp_path, lines(record("one")), "--policy", str(policy))

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"{policy}: detectors.repeated-call.hint: must be at least 2, not 1\n"


# ----------------------------------------------------------------------------------------------------- order and size


def test_the_order_is_that_of_the_files_with_any_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large files are split into pieces, small ones are one; a session whose entries are spread over pieces is one
    transcript, behind the records of its file."""
    monkeypatch.setattr(replay_module, "SMALL_BYTES", 20_000)
    monkeypatch.setattr(replay_module, "CHUNK_BYTES", 5_000)
    entries = [claude("user", "look"), *rounds_of(3)]
    mixed: list[dict[str, Any]] = [record(f"a{number}") for number in range(60)]
    for number, entry in enumerate(entries):
        mixed.insert(1 + number * 8, entry)
    (tmp_path / "a").write_text(lines(*mixed) + "half", encoding="utf-8")
    (tmp_path / "b").write_text(lines(record("b")), encoding="utf-8")
    (tmp_path / "c").write_bytes(gzip.compress(lines(*entries, *[claude("user", "x" * 99)] * 300).encode()))
    (tmp_path / "d").write_text("", encoding="utf-8")
    files = [str(tmp_path / name) for name in "abcd"]

    alone = invoke(*files, "--format", "json", "--jobs", "1")
    several = invoke(*files, "--format", "json", "--jobs", "2")

    assert [each["id"] for each in json.loads(alone.stdout)["transcripts"]] == [
        *(f"a{number}" for number in range(60)),
        "s1",
        "b",
        "s1",
    ]
    assert all(seen(each) == [HINT] for each in json.loads(alone.stdout)["transcripts"])
    assert alone.stderr.splitlines() == [
        f"{files[0]}:{len(mixed) + 1}: is not JSON: Expecting value at column 1",
        f"{files[3]}: holds no transcript",
    ]
    assert (several.exit_code, several.stdout, several.stderr) == (1, alone.stdout, alone.stderr)


def test_processes_judge_by_the_policy_that_was_given(tmp_path: Path) -> None:
    """It has to travel to them."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(STOPPING, encoding="utf-8")

    result = run(tmp_path, lines(record("one", longer(6))), "--policy", str(policy), "--jobs", "2", "--format", "json")

    assert json.loads(result.stdout)["summary"]["stops"] == 1


def test_a_large_file_of_lines_is_never_held_as_a_whole(tmp_path: Path) -> None:
    """However large it is, a few pieces of it are in memory."""
    line = json.dumps(request("chat", [{"user": "y" * 9_000}])).encode() + b"\n"
    count = 40 * CHUNK_BYTES // len(line)
    file = tmp_path / "large.jsonl"
    with file.open("wb") as written:
        written.writelines(line for _ in range(count))

    tracemalloc.start()
    judged_count = sum(isinstance(each, Judged) for step in replay([file], Policy()) for each in step.outcomes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert judged_count == count
    assert peak < 8 * CHUNK_BYTES


def test_progress_adds_up_to_the_stored_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a file that is packed."""
    monkeypatch.setattr(replay_module, "SMALL_BYTES", 100)
    monkeypatch.setattr(replay_module, "CHUNK_BYTES", 5_000)
    packed, open_ = tmp_path / "a", tmp_path / "b"
    packed.write_bytes(gzip.compress(lines(*(record(str(number)) for number in range(50))).encode()))
    open_.write_text(lines(*(record(str(number)) for number in range(50))), encoding="utf-8")

    steps = list(replay([packed, open_], Policy()))

    assert len(steps) > 4
    assert sum(step.size for step in steps) == replay_module.stored_bytes([packed, open_])


# -------------------------------------------------------------------------------------------------- replay equals live

NUDGED = "a nudge behind an end makes a live harness go on; a replay is over until the user writes"
NO_RUNG = "the ends in the history came from a rung that this test takes out of the policy"
DIFFERENT = {
    "an address that always says no, with a nudge of the harness after each try": NUDGED,
    "ends that came before the round ran count for the third as well": NO_RUNG,
}
"""Cases in which the replay is known to say something else than the requests alone."""


def _replayed() -> Iterator[Any]:
    """Every case in one of its dialects, in turn; that all say the same is tested with the cases themselves."""
    for number, case in enumerate(cases().values()):
        dialect = case.dialects[number % len(case.dialects)]
        reason = DIFFERENT.get(case.name) or DIFFERENT.get(f"{case.name} [{dialect}]")
        marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
        yield pytest.param(case, dialect, id=f"{case.id} [{dialect}]", marks=marks)


@pytest.mark.parametrize(("case", "dialect"), list(_replayed()))
def test_a_replay_says_what_a_live_guard_says(case: Case, dialect: Dialect) -> None:
    """The whole judged once, against what the cases' own test found for every request judged as it comes: the same
    rounds, actions and detectors."""
    assert case.replayed_difference(dialect) == ""
