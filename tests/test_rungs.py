"""What each rung costs with a model that never listens: the README's table, over three workers and a restart."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from litellm_toolguard import notes
from litellm_toolguard.demo.agents import Run, ToolOutput, run_agent
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS
from tests.harness.gateways import KINDS, Gateways, guardrail, tool
from tests.harness.proxy import ProxyProcess, config, start_proxy, unused_port

pytestmark = [pytest.mark.proxy, pytest.mark.long]


@dataclass(frozen=True)
class Rung:
    """A ladder and what a model costs that calls on and on.

    Args:
        ladder: of `repeated-call`.
        block_samples: of the policy.
        executed: calls that ran.
        requests: of the client.
        samples: of the provider.
        end: how the run ends: `stop`, `ask` or `reject`.
    """

    ladder: Mapping[str, int]
    block_samples: int
    executed: int
    requests: int
    samples: int
    end: str

    @property
    def row(self) -> str:
        """Its row of the README's table."""
        ladder = "{" + ", ".join(f"{rung}: {at}" for rung, at in self.ladder.items()) + "}"
        ends = {"stop": "words", "ask": "a question", "reject": "HTTP 400"}[self.end]
        return f"| `{ladder}` | {self.block_samples} | {self.executed} | {self.requests} | {self.samples} | {ends} |"


RUNGS = {
    "held": Rung({"hint": 3, "block": 5, "stop": 8}, 1, 4, 5, 6, "stop"),
    "not_again": Rung({"hint": 3, "block": 5, "stop": 8}, 0, 4, 5, 5, "stop"),
    "thrice": Rung({"hint": 3, "block": 5, "stop": 8}, 3, 4, 5, 8, "stop"),
    "asked": Rung({"hint": 3, "ask": 5, "stop": 8}, 1, 4, 5, 5, "ask"),
    "stopped": Rung({"hint": 3, "stop": 8}, 1, 7, 8, 8, "stop"),
    "rejected": Rung({"hint": 3, "reject": 5}, 1, 4, 5, 5, "reject"),
}
CELLS = [(name, dialect, stream) for name in RUNGS for dialect in DIALECTS for stream in (False, True)]
PREFIXES = {"stop": notes.END_PREFIX, "ask": notes.QUESTION_PREFIX, "reject": ""}

RESTART_BEFORE = 5
"""The request whose answer is judged by what another process told the model: the note goes out with the one before."""


def guards() -> list[dict[str, Any]]:
    """A guard for each number of samples, all of them over one file."""
    tools = [{"match": [name], "detectors": {"repeated-call": dict(rung.ladder)}} for name, rung in RUNGS.items()]
    return [
        {**guardrail(policy, default_on=False), "guardrail_name": f"samples-{samples}"}
        for samples in sorted({rung.block_samples for rung in RUNGS.values()})
        for policy in [{"tools": tools, "block_samples": samples, "store": "sqlite:///facts.db"}]
    ]


@dataclass
class Served:
    """A proxy of three workers that is stopped and started anew on the same port.

    Attributes:
        waiting: agents that wait for the second one.
    """

    config: Mapping[str, Any]
    workdir: Path
    port: int = field(default_factory=unused_port)
    waiting: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    restarted: threading.Event = field(default_factory=threading.Event)

    def start(self) -> ProxyProcess:
        """Start it."""
        return start_proxy(self.config, workdir=self.workdir, workers=3, port=self.port)

    def before(self, number: int) -> None:
        """Wait for the second one before that request."""
        if number == RESTART_BEFORE:
            self.waiting.release()
            self.restarted.wait()


@pytest.fixture(scope="module")
def runs(gateways: Gateways, tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, Dialect, bool], Run]:
    """A run of each cell, all of them at once; the proxy is restarted in the middle of every one."""
    served = Served(
        config(gateways.upstream.url, guardrails=guards()), tmp_path_factory.mktemp("rungs"), port=unused_port()
    )
    gateways.upstream.clear()
    with ThreadPoolExecutor(len(CELLS)) as pool:
        try:
            with served.start() as proxy:
                jobs = {cell: pool.submit(run, served, proxy, *cell) for cell in CELLS}
                for _ in CELLS:
                    assert served.waiting.acquire(timeout=120)
            with served.start():
                served.restarted.set()
                return {cell: job.result() for cell, job in jobs.items()}
        finally:
            served.restarted.set()


def run(served: Served, proxy: ProxyProcess, name: str, dialect: Dialect, stream: bool) -> Run:
    """The run of one cell; each of its requests is taken by whichever worker is first."""
    return run_agent(
        dialect=dialect,
        stream=stream,
        base_url=proxy.url,
        api_key=proxy.key,
        model=f"{KINDS[dialect]}/looping",
        tools=[tool(name)],
        execute=lambda _, __: ToolOutput("x = 1"),
        prompt=prompt(name, dialect, stream),
        on_request=served.before,
        extra={
            "extra_body": {"guardrails": [f"samples-{RUNGS[name].block_samples}"]},
            "extra_headers": {"Connection": "close"},
        },
    )


def prompt(name: str, dialect: Dialect, stream: bool) -> str:
    """By which its requests are found at the provider."""
    return f"Do it: {name}, {dialect}, {'streamed' if stream else 'whole'}."


@pytest.mark.parametrize(("name", "dialect", "stream"), CELLS)
def test_a_rung_costs_what_the_table_says(
    gateways: Gateways, runs: Mapping[tuple[str, Dialect, bool], Run], name: str, dialect: Dialect, stream: bool
) -> None:
    """Executions, requests of the client and samples of the provider are exact."""
    done, rung = runs[name, dialect, stream], RUNGS[name]
    asked = [each for each in gateways.upstream.requests if prompt(name, dialect, stream).encode() in each.body]

    assert (len(done.executions), done.requests, len(asked)) == (rung.executed, rung.requests, rung.samples)
    assert (done.ended, done.status) == (("error", 400) if rung.end == "reject" else ("words", None))
    assert done.text.startswith(PREFIXES[rung.end])
    assert f"`{name}` was called {rung.executed} times" in done.text


def test_the_readme_gives_the_table() -> None:
    """Row for row."""
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert [rung.row for rung in RUNGS.values() if rung.row not in readme] == []
