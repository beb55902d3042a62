"""`toolguard demo`: agents run through two real proxies, one whose guard observes and one whose guard enforces."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import yaml

from litellm_toolguard.demo.agents import Run, run_agent
from litellm_toolguard.demo.environment import client_environment
from litellm_toolguard.demo.process import ProxyError, ProxyProcess, stop_all, unused_ports
from litellm_toolguard.demo.scenarios import CAP, GUARDS, SCENARIOS, Ended, Guard, Row, Scenario, wrong_rows
from litellm_toolguard.demo.show import print_json, print_table, progress
from litellm_toolguard.demo.signals import Interrupted, Signals
from litellm_toolguard.demo.workshop import Workshop
from litellm_toolguard.notes import END_PREFIX

Format: TypeAlias = Literal["text", "json"]

EXIT_OK: Final = 0
EXIT_WRONG: Final = 1
EXIT_CANNOT_RUN: Final = 2

CONFIG: Final = "litellm_config.yaml"
_KEY_VARIABLE: Final = "LITELLM_MASTER_KEY"
# Modules of litellm[proxy] without which its proxy does not start, and the clients.
_NEEDED: Final = ("litellm", "fastapi", "uvicorn", "apscheduler", "backoff", "orjson", "openai", "anthropic")
_REQUEST_SECONDS: Final = 30


def run_demo(output: Format, signals: Signals) -> int:
    """Run the demo, print its table, and give the exit code.

    Args:
        output: what is printed.
        signals: installed; the exit code of one that ends the demo is 128 and its number.
    """
    obstacle = _obstacle()
    if obstacle:
        print(obstacle, file=sys.stderr)
        return EXIT_CANNOT_RUN
    try:
        rows = _all_rows(signals)
        signals.check()
    except Interrupted as interrupted:
        return interrupted.exit_code
    except ProxyError as error:
        print(error, file=sys.stderr)
        return EXIT_WRONG
    (print_json if output == "json" else print_table)(rows)
    wrong = wrong_rows(rows)
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    return EXIT_WRONG if wrong else EXIT_OK


def config_text() -> str:
    """The config that the demo runs: the wheel's copy, or the file at the root of the checkout."""
    here = Path(__file__).parent
    places = (here / CONFIG, here.parents[1] / CONFIG)
    return next(place for place in places if place.exists()).read_text(encoding="utf-8")


def _obstacle() -> str:
    """Why the demo cannot run here; empty when it can."""
    if not hasattr(os, "killpg"):
        return "The demo needs Linux or macOS."
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        return f"The demo needs {', '.join(missing)}: install litellm-toolguard[proxy]."
    return ""


def _all_rows(signals: Signals) -> list[Row]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="toolguard-demo-")))
        step = stack.enter_context(progress(len(GUARDS) + len(SCENARIOS) * len(GUARDS)))
        proxies = _start(stack, folder)
        stack.enter_context(client_environment())
        with signals.interruptible():
            for guard, proxy in proxies.items():
                step(f"Starting the LiteLLM proxy whose guard is set to {guard}")
                proxy.wait_until_ready()
            return [
                _row(scenario, guard, proxy, folder, step, signals.check)
                for scenario in SCENARIOS
                for guard, proxy in proxies.items()
            ]


def _start(stack: ExitStack, folder: Path) -> Mapping[Guard, ProxyProcess]:
    """Start both proxies at the same time; the stack stops them."""
    proxies: dict[Guard, ProxyProcess] = {}
    stack.callback(lambda: stop_all(proxies.values()))
    for guard, port in zip(GUARDS, unused_ports(len(GUARDS)), strict=True):
        config = folder / guard / CONFIG
        config.parent.mkdir()
        config.write_text(yaml.safe_dump(_config(guard), sort_keys=False), encoding="utf-8")
        # A key of its own each, so that no other program on the machine is taken for this proxy, or uses it.
        key = f"sk-{secrets.token_hex(24)}"
        proxies[guard] = ProxyProcess(config, port=port, key=key, env={_KEY_VARIABLE: key})
    return proxies


def _config(guard: Guard) -> Any:
    config = yaml.safe_load(config_text())
    config["guardrails"][0]["litellm_params"]["toolguard"]["enforcement"] = guard
    return config


def _row(
    scenario: Scenario,
    guard: Guard,
    proxy: ProxyProcess,
    folder: Path,
    step: Callable[[str], None],
    check: Callable[[], None],
) -> Row:
    step(f"{scenario.model}, {scenario.dialect}, {guard}")
    workshop = Workshop(Path(tempfile.mkdtemp(prefix=f"{scenario.model}-", dir=folder)))
    workshop.open()
    run = run_agent(
        dialect=scenario.dialect,
        stream=scenario.stream,
        base_url=proxy.url,
        api_key=proxy.key,
        model=scenario.model,
        tools=scenario.tools,
        execute=workshop.execute,
        prompt=scenario.prompt,
        max_requests=CAP,
        on_request=lambda _: check(),
        extra={"timeout": _REQUEST_SECONDS},
    )
    return Row(
        model=scenario.model,
        dialect=scenario.dialect,
        stream=scenario.stream,
        guard=guard,
        requests=run.requests,
        executed=workshop.executed(),
        ended=_ended(run),
        text=run.text,
        folder=workshop.content(),
    )


def _ended(run: Run) -> Ended:
    """By whom the run was ended. The guard's words must say so themselves, and to programs too."""
    if run.ended != "words":
        return run.ended
    return "guard" if run.text.startswith(END_PREFIX) and run.toolguard is not None else "model"
