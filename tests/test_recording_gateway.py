"""A recording of real traffic: real clients and proxies, three dialects, streamed and not, with and without content."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from litellm_toolguard.cli import main
from litellm_toolguard.demo.agents import Run, ToolOutput
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, Conversation, expand
from tests.harness.gateways import KINDS, RUN, Gateway, Gateways, guardrail

pytestmark = pytest.mark.proxy

FOLDER, FILE = "records", "traffic.jsonl"
PROMPT, OUTPUT, ARGUMENT = "the prompt of Anna", "the output of Anna", "private/anna.txt"
FORMS = [(dialect, stream) for dialect in DIALECTS for stream in (False, True)]
Told = tuple[str, str, int]


@dataclass(frozen=True)
class Recorded:
    """A proxy that records, and what it did.

    Args:
        gateway: the proxy.
        path: the recording.
        runs: the agents' runs, four for each dialect and form.
    """

    gateway: Gateway
    path: Path
    runs: Sequence[Run]

    def text(self) -> str:
        """The recording as it stands."""
        return self.path.read_text(encoding="utf-8")

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Its rows of one kind."""
        found = [json.loads(line) for line in self.text().splitlines()]
        return [row for row in found if row["toolguard"] == kind]


@pytest.fixture(scope="module", params=[False, True], ids=["hashed", "content"])
def recorded(request: pytest.FixtureRequest, gateways: Gateways) -> Recorded:
    """Looping, denied, learning and healthy agents, and a loop that is met in the middle."""
    content = bool(request.param)
    name = f"recording-{content}"
    folder = gateways.folder / f"{name}-files" / FOLDER
    folder.mkdir(parents=True)
    policy = {"record": f"../{folder.parent.name}/{FOLDER}/{FILE}", "record_content": content}
    gateway = gateways.get(name, guardrails=[guardrail(policy)])
    runs = [run for dialect, stream in FORMS for run in agents(gateway, dialect, stream)]
    for dialect in DIALECTS:
        for body in met_in_the_middle(dialect):
            assert gateway.post(dialect, body).status_code == 200
    return Recorded(gateway, folder / FILE, runs)


def agents(gateway: Gateway, dialect: Dialect, stream: bool) -> list[Run]:
    """Each with a prompt of its own: equal conversations would be one."""

    def output(_name: str, arguments: Mapping[str, Any]) -> ToolOutput:
        return ToolOutput(f"{OUTPUT} for {sorted(arguments.values())}")

    def refused(_name: str, _arguments: Mapping[str, Any]) -> ToolOutput:
        return ToolOutput("Permission denied by user", is_error=True)

    def prompt(behaviour: str) -> str:
        return f"{PROMPT}: {behaviour}, {dialect}, {stream}"

    options: dict[str, Any] = {"stream": stream, "execute": output}
    return [
        gateway.run(dialect, "looping", prompt=prompt("looping"), **options),
        gateway.run(dialect, "learning", prompt=prompt("learning"), **options),
        gateway.run(dialect, "denied", prompt=prompt("denied"), tools=[RUN], stream=stream, execute=refused),
        gateway.run(dialect, "healthy", prompt=prompt("healthy"), max_requests=6, **options),
    ]


def met_in_the_middle(dialect: Dialect) -> list[dict[str, Any]]:
    """The requests behind nine and ten equal rounds."""
    call = {"tool": "read_file", "args": {"path": ARGUMENT}, "result": OUTPUT}
    conversation, bodies = Conversation(dialect), []
    for step in expand([{"user": f"{PROMPT}, from elsewhere, {dialect}"}, {"times": 10, "steps": [call]}]):
        conversation.add(step)
        bodies.append({**conversation.request(), "model": f"{KINDS[dialect]}/words", "max_tokens": 100})
        if dialect != "messages":
            del bodies[-1]["max_tokens"]
    return bodies[-2:]


def replayed(path: Path) -> list[dict[str, Any]]:
    result = CliRunner().invoke(main, ["replay", str(path), "--format", "json"], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(result.stdout)["transcripts"]
    return found


def told(transcript: Mapping[str, Any]) -> list[Told]:
    return [(each["action"], each["detector"], each["count"]) for each in transcript["interventions"]]


def logged(gateway: Gateway, count: int) -> Counter[Told]:
    """The decisions that LiteLLM's own log names. It is written behind the answers, and twice of an answer's end."""
    deadline = time.monotonic() + 30
    while True:
        entries = [entry for row in gateway.rows() for entry in row["information"] or ()]
        found = {entry["guardrail_response"]["decision_id"]: entry["guardrail_response"] for entry in entries}
        if len(found) >= count:
            return Counter((each["action"], each["detector"], each["count"]) for each in found.values())
        assert time.monotonic() < deadline, f"only {len(found)} of {count}"
        time.sleep(0.05)


def test_it_replays_to_exactly_what_the_proxy_decided(recorded: Recorded) -> None:
    """One transcript per run, with the decisions that LiteLLM logged, the last of which the client saw."""
    found = replayed(recorded.path)
    decided = [each for transcript in found for each in told(transcript)]

    assert [each["dialect"] for each in found] == [
        *(dialect for dialect, _ in FORMS for _ in range(4)),
        *DIALECTS,
    ]
    assert Counter(decided) == logged(recorded.gateway, len(decided))
    for run, transcript in zip(recorded.runs, found, strict=False):
        if run.toolguard is not None:
            ended = (run.toolguard["action"], run.toolguard["detector"], run.toolguard["count"])
            assert told(transcript)[-1] == ended
        # The results of an agent that stopped at its cap were sent to nobody.
        assert transcript["calls"] == len(run.executions) - (run.ended == "cap")
    kinds = {action for action, *_ in decided}
    assert kinds == {"hint", "stop"}
    assert [told(each)[0][0] for each in found[-3:]] == ["hint"] * 3
    assert [told(each) for each in found[3:24:4]] == [[]] * 6


def test_every_answer_of_the_provider_stands_in_it(recorded: Recorded) -> None:
    """As many whole answers as the provider gave: each request that was not ended has one, a blocked one two."""
    answers = recorded.rows("answer")
    requests = recorded.rows("request")
    stopped = sum(row["decision"]["action"] == "stop" for row in requests)
    more = sum(row["verdict"]["samples"] - 1 for row in recorded.rows("verdict"))

    assert all(row["whole"] for row in answers)
    assert len(answers) == len(requests) - stopped + more


def test_content_is_there_if_it_was_asked_for(recorded: Recorded) -> None:
    """Prompts, arguments and outputs, in requests and answers; else none of them."""
    text = recorded.text()
    content = recorded.rows("recording")[0]["content"]

    for word in (PROMPT, OUTPUT, ARGUMENT, "Anna", "anna", "Permission denied", "notes.txt"):
        assert (word in text) == content, word
    assert "read_file" in text
    assert "sk-upstream" not in text
    assert recorded.gateway.proxy.key not in text


def test_its_files_are_for_their_owner(recorded: Recorded) -> None:
    """The recording, and the key of its digests."""
    files = sorted(recorded.path.parent.iterdir())

    assert [file.name for file in files] == [FILE] + (
        [] if recorded.rows("recording")[0]["content"] else [f"{FILE}.key"]
    )
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_a_recording_that_is_gone_costs_no_request(recorded: Recorded) -> None:
    """Its folder goes away: agents go on, and are ended, and one line of the log says the error's type."""
    kept = recorded.path.parent.with_name("kept")
    shutil.copytree(recorded.path.parent, kept)
    os.unlink(recorded.path)
    os.rename(recorded.path.parent, recorded.path.parent.with_name("away"))
    try:
        run = recorded.gateway.run("chat", "looping", prompt=PROMPT)
        assert run.ended == "words"
        assert run.toolguard is not None
        log = recorded.gateway.proxy.log()
        assert log.count("toolguard: the recording could not be written: FileNotFoundError") == 1
        assert PROMPT not in log.rpartition("could not be written")[2]
    finally:
        os.rename(kept, recorded.path.parent)

    recorded.gateway.run("chat", "looping", prompt=PROMPT)
    assert recorded.rows("request")
