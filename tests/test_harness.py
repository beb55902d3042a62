"""The harness itself: without any guard, every dialect runs its loops to the end that the script says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from litellm_toolguard.demo.agents import Run, ToolOutput, ToolSpec, run_agent
from tests.harness.proxy import ProxyProcess, config, refused_start, start_proxy, unused_port
from tests.harness.upstream import FINAL_WORDS, HEALTHY_ROUNDS, Calls, ScriptedUpstream, Words

pytestmark = pytest.mark.proxy

Dialect: TypeAlias = Literal["chat", "messages", "responses"]
DIALECTS: tuple[Dialect, ...] = ("chat", "messages", "responses")
KINDS = {"chat": "native-chat", "messages": "native-messages", "responses": "native-chat"}
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
CALL_FINISH = {"chat": "tool_calls", "messages": "tool_use", "responses": "completed"}
WORDS_FINISH = {"chat": "stop", "messages": "end_turn", "responses": "completed"}


def _spec(name: str, argument: str) -> ToolSpec:
    properties = {argument: {"type": "string"}}
    return ToolSpec(name, f"A tool named {name}.", {"type": "object", "properties": properties, "required": [argument]})


READ_FILE = _spec("read_file", "path")
RUN = _spec("run", "command")


@dataclass(frozen=True)
class Bench:
    """A guardless proxy over a scripted upstream, and runs through it."""

    upstream: ScriptedUpstream
    proxy: ProxyProcess
    requested: list[int] = field(default_factory=list)

    def run(self, dialect: Dialect, behaviour: str, *, stream: bool, kind: str = "", **options: Any) -> Run:
        self.upstream.clear()
        self.requested.clear()
        arguments: dict[str, Any] = {
            "tools": [READ_FILE, RUN],
            "execute": lambda name, _: ToolOutput(f"output of {name}"),
            "prompt": "Do it.",
            "on_request": self.requested.append,
            **options,
        }
        return run_agent(
            dialect=dialect,
            stream=stream,
            base_url=self.proxy.url,
            api_key=self.proxy.key,
            model=f"{kind or KINDS[dialect]}/{behaviour}",
            **arguments,
        )


@pytest.fixture(scope="session")
def session_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    workdir = tmp_path_factory.mktemp("proxy")
    with ScriptedUpstream() as upstream, start_proxy(config(upstream.url), workdir=workdir) as proxy:
        yield Bench(upstream, proxy)


@pytest.fixture
def bench(session_bench: Bench) -> Iterator[Bench]:
    yield session_bench
    session_bench.upstream.chunking = None
    session_bench.upstream.pause = 0.0
    session_bench.upstream.script = []


both_forms = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


@every_dialect
@both_forms
def test_a_looping_model_runs_until_the_cap(bench: Bench, dialect: Dialect, stream: bool) -> None:
    """Nothing stops it: twelve requests, twelve executions of the same call, all on the native endpoint."""
    run = bench.run(dialect, "looping", stream=stream)

    assert (run.ended, run.requests, run.finish) == ("cap", 12, CALL_FINISH[dialect])
    assert run.executions == (("read_file", '{"path": "notes.txt"}'),) * 12
    assert bench.requested == list(range(1, 13))
    assert [request.path for request in bench.upstream.requests] == [PATHS[dialect]] * 12
    assert {request.json.get("stream", False) for request in bench.upstream.requests} == {stream}
    assert (run.toolguard, run.error_body, run.status) == (None, None, None)
    assert "x-litellm-call-id" in run.headers


@every_dialect
@both_forms
def test_a_healthy_model_ends_in_words(bench: Bench, dialect: Dialect, stream: bool) -> None:
    """Thirty different calls, then words in the thirty-first answer."""
    run = bench.run(dialect, "healthy", stream=stream, max_requests=40)

    assert (run.ended, run.requests, run.text) == ("words", HEALTHY_ROUNDS + 1, FINAL_WORDS)
    assert len(set(run.executions)) == len(run.executions) == HEALTHY_ROUNDS
    assert run.finish == WORDS_FINISH[dialect]


@every_dialect
@both_forms
def test_words_end_a_run_at_once(bench: Bench, dialect: Dialect, stream: bool) -> None:
    """A run without a call is one request, and its history can be continued."""
    first = bench.run(dialect, "words", stream=stream)
    second = bench.run(dialect, "words", stream=stream, history=first.history, prompt="And now?")

    assert (first.ended, first.requests, first.executions, first.text) == ("words", 1, (), FINAL_WORDS)
    assert (second.ended, len(first.history), len(second.history)) == ("words", 2, 4)


@every_dialect
@both_forms
@pytest.mark.parametrize("tools", [[READ_FILE, RUN], [READ_FILE]], ids=["two tools", "one tool"])
def test_parallel_calls_are_all_executed(bench: Bench, dialect: Dialect, stream: bool, tools: list[ToolSpec]) -> None:
    """Two calls in every answer are two executions in every round."""
    run = bench.run(dialect, "fanout", stream=stream, tools=tools, max_requests=3)

    assert (run.ended, run.requests, len(run.executions)) == ("cap", 3, 6)
    assert len(set(run.executions)) == 2


@every_dialect
@both_forms
@pytest.mark.parametrize("behaviour", ["denied", "failing"])
def test_a_varying_model_never_repeats_its_arguments(
    bench: Bench, dialect: Dialect, stream: bool, behaviour: str
) -> None:
    """The same tool with other arguments each time."""
    run = bench.run(dialect, behaviour, stream=stream, tools=[RUN], max_requests=4)

    assert {name for name, _ in run.executions} == {"run"}
    assert len(set(run.executions)) == 4


@every_dialect
@both_forms
def test_a_learning_model_stops_when_a_result_carries_a_note(bench: Bench, dialect: Dialect, stream: bool) -> None:
    """It reads the tool results that reach the provider."""
    outputs = iter(["first", "second", "third\n\n[toolguard] You have asked this before."])
    run = bench.run(dialect, "learning", stream=stream, execute=lambda *_: ToolOutput(next(outputs)))

    assert (run.ended, run.requests, len(run.executions)) == ("words", 4, 3)


@every_dialect
@both_forms
def test_a_script_is_played_once(bench: Bench, dialect: Dialect, stream: bool) -> None:
    """Its end is an HTTP error, which the run reports."""
    bench.upstream.script = [Calls([("run", {"command": "ls"}), ("run", {"command": "pwd"})]), Words("Both are done.")]
    run = bench.run(dialect, "script", stream=stream)
    after = bench.run(dialect, "script", stream=stream)

    assert run.executions == (("run", '{"command": "ls"}'), ("run", '{"command": "pwd"}'))
    assert (run.ended, run.text) == ("words", "Both are done.")
    assert (after.ended, after.requests, after.status) == ("error", 1, 404)
    assert "nothing to say as model script" in after.error_body["error"]["message"]


@pytest.mark.parametrize(("dialect", "size"), [("messages", 1), ("messages", 7), ("chat", 7), ("responses", 7)])
def test_streams_may_be_cut_anywhere(bench: Bench, dialect: Dialect, size: int) -> None:
    """Events that arrive in pieces are the same events."""
    bench.upstream.chunking = size
    bench.upstream.pause = 0.001
    run = bench.run(dialect, "fanout", stream=True, max_requests=2)

    assert (run.ended, len(run.executions)) == ("cap", 4)


@every_dialect
@both_forms
def test_a_request_that_forbids_calls_gets_words(bench: Bench, dialect: Dialect, stream: bool) -> None:
    """`extra` reaches the provider, which offers nothing to call then."""
    choice = {"type": "none"} if dialect == "messages" else "none"
    run = bench.run(dialect, "looping", stream=stream, extra={"tool_choice": choice})

    assert (run.ended, run.requests) == ("words", 1)


@both_forms
def test_only_failed_results_carry_the_error_flag(bench: Bench, stream: bool) -> None:
    """The messages dialect sends `is_error` for a failed output and leaves it out otherwise."""
    outputs = iter([ToolOutput("fine"), ToolOutput("broken", is_error=True)])
    bench.run("messages", "looping", stream=stream, max_requests=3, execute=lambda *_: next(outputs, ToolOutput("")))

    content = [message["content"] for message in bench.upstream.requests[2].json["messages"]]
    results = [block for blocks in content for block in blocks if isinstance(block, dict) and "tool_use_id" in block]
    assert [block.get("is_error") for block in results] == [None, True]


@pytest.mark.parametrize("kind", ["native-chat", "native-messages"])
@every_dialect
@both_forms
def test_bridged_dialects_run_too(bench: Bench, dialect: Dialect, stream: bool, kind: str) -> None:
    """A model of the other provider answers every dialect as well."""
    run = bench.run(dialect, "looping", stream=stream, kind=kind, max_requests=3)

    assert (run.ended, len(run.executions)) == ("cap", 3)


def test_a_proxy_that_cannot_load_its_guardrail_refuses_to_start(bench: Bench, tmp_path: Path) -> None:
    """A start that fails gives its exit code and its output."""
    params = {"guardrail": "no_such_package.Guard", "mode": "pre_call", "default_on": True}
    broken = config(bench.upstream.url, guardrails=[{"guardrail_name": "broken", "litellm_params": params}])
    code, output = refused_start(broken, workdir=tmp_path)

    assert code != 0
    assert "no_such_package" in output


def test_a_proxy_that_starts_was_not_refused(bench: Bench, tmp_path: Path) -> None:
    """`refused_start` fails where the proxy serves."""
    with pytest.raises(AssertionError, match="the proxy started"):
        refused_start(config(bench.upstream.url), workdir=tmp_path)


def test_unused_ports_are_ports() -> None:
    """A port above the reserved ones."""
    assert 1024 <= unused_port() <= 65535
