"""Run real clients with a looping model behind the guarded proxy, and write `docs/clients.md`.

    python -m clients.run

With names of clients only these are run, and the table is printed alone.

Each client has a virtual environment of its own below a temporary folder, so this needs a package index; the model is
scripted and stands on loopback. Without the guard, with `stop` and with `reject`, each client runs to its own end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from litellm_toolguard.demo.process import ProxyProcess
from tests.harness.gateways import guardrail
from tests.harness.proxy import config, start_proxy
from tests.harness.upstream import ScriptedUpstream

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Client:
    """A client script.

    Args:
        name: what people call it.
        script: its file.
        packages: what it needs.
        runs: (api, form, model) of each run.
        end: the action that is its end.
    """

    name: str
    script: str
    packages: Sequence[str]
    runs: Sequence[tuple[str, str, str]]
    end: str


_CHAT, _MESSAGES = "native-chat/looping", "native-messages/looping"
CLIENTS = (
    Client(
        "OpenAI Agents SDK",
        "with_openai_agents.py",
        ["openai-agents"],
        [(api, form, _CHAT) for api in ("chat", "responses") for form in ("whole", "streamed")],
        "stop",
    ),
    Client(
        "LangChain",
        "with_langchain.py",
        ["langchain", "langchain-openai"],
        [(api, form, _CHAT) for api in ("chat", "responses") for form in ("whole", "streamed")],
        "stop",
    ),
    Client(
        "Anthropic SDK, tool runner",
        "with_anthropic_runner.py",
        ["anthropic"],
        [("messages", form, _MESSAGES) for form in ("whole", "streamed")],
        "stop",
    ),
    Client("mini-SWE-agent", "with_mini_swe_agent.py", ["mini-swe-agent"], [("chat", "whole", _CHAT)], "reject"),
)

_LADDERS = {
    "without": None,
    "`stop`": {"hint": 3, "block": 5, "stop": 8},
    "`reject`": {"hint": 3, "reject": 5},
}


def main() -> None:
    """Run all of them, or those that are named."""
    chosen = [client for client in CLIENTS if client.name in sys.argv[1:] or len(sys.argv) == 1]
    with TemporaryDirectory() as folder, ScriptedUpstream() as upstream, ExitStack() as stack:
        proxies = {name: stack.enter_context(_proxy(upstream.url, Path(folder), name)) for name in _LADDERS}
        rows = [row for client in chosen for row in _rows(client, proxies, Path(folder))]
    table = [
        "| client | API | guard | calls that ran | ended | what the user reads |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
    print("\n".join(table))
    if chosen != list(CLIENTS):
        return
    page = ROOT / "docs" / "clients.md"
    before, _, behind = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text("\n".join([before + BEGIN, *table, END + behind.partition(END)[2]]), encoding="utf-8")


BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"


def _proxy(upstream: str, folder: Path, name: str) -> ProxyProcess:
    workdir = folder / name.strip("`")
    workdir.mkdir()
    ladder = _LADDERS[name]
    policy = {"detectors": {"repeated-call": ladder}}
    return start_proxy(config(upstream, guardrails=[guardrail(policy)] if ladder else None), workdir=workdir)


def _rows(client: Client, proxies: Mapping[str, ProxyProcess], folder: Path) -> Iterator[str]:
    python = _environment(folder / client.script.removesuffix(".py"), client.packages)
    for api, form, model in client.runs:
        for guard, proxy in proxies.items():
            seen = _run(client, python, proxy, (api, form, model), folder)
            about = f"{client.name} {seen['version']} | {api}, {form} | {guard}"
            yield f"| {about} | {seen['executed']} | {seen['ended']} | {_short(seen['text'])} |"


def _environment(folder: Path, packages: Sequence[str]) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def _run(
    client: Client, python: Path, proxy: ProxyProcess, run: tuple[str, str, str], folder: Path
) -> Mapping[str, Any]:
    with TemporaryDirectory(dir=folder) as work:
        lines = Path(work) / "lines.txt"
        lines.touch()
        settings = {"GATEWAY": proxy.url, "GATEWAY_KEY": proxy.key, "MODEL": run[2], "LINES": str(lines)}
        done = subprocess.run(
            [python, ROOT / "clients" / client.script, *run[:2]],
            env={**os.environ, **settings, "NO_PROXY": "*", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            capture_output=True,
            text=True,
            check=True,
        )
        seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**seen, "executed": len(lines.read_text(encoding="utf-8").splitlines())}


_MAX_CHARS = 110


def _short(text: str) -> str:
    """The words as a cell of a table."""
    line = " ".join(text.replace("|", "/").split())
    start = max(line.find("[toolguard]"), 0)
    return line[start : start + _MAX_CHARS] + ("..." if len(line) > start + _MAX_CHARS else "")


if __name__ == "__main__":
    main()
