"""Real LiteLLM proxy processes on loopback."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from litellm_toolguard.demo.environment import proxy_environment
from litellm_toolguard.demo.process import STARTUP_SECONDS, Process, ProxyProcess, unused_ports
from tests.harness.upstream import BEHAVIOURS

__all__ = ["ProxyProcess", "Start", "config", "refused_start", "refused_starts", "start_proxy", "unused_port"]


def config(
    upstream_url: str,
    *,
    guardrails: list[dict[str, Any]] | None = None,
    litellm_settings: dict[str, Any] | None = None,
    general_settings: dict[str, Any] | None = None,
    router_settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A proxy configuration over a scripted upstream.

    `native-chat/<behaviour>` is native for chat and responses, `native-messages/<behaviour>` for messages.
    """
    deployments = [_deployment(kind, behaviour, upstream_url) for kind in _NATIVE for behaviour in BEHAVIOURS]
    made: dict[str, Any] = {
        "model_list": deployments,
        "general_settings": {"master_key": f"sk-{secrets.token_hex(24)}", **(general_settings or {})},
        "litellm_settings": {"num_retries": 0, "drop_params": True, **(litellm_settings or {})},
        # One 404 or 401 takes a deployment out of service for seconds, with which the next test would meet no model.
        "router_settings": {"num_retries": 0, "disable_cooldowns": True, **(router_settings or {})},
    }
    return {**made, "guardrails": guardrails} if guardrails else made


TOKEN_COST = 0.001
"""Dollars for each token of the scripted provider."""

# Kind of model -> (LiteLLM's provider, path of its api_base). LiteLLM appends /chat/completions or /responses to the
# first and /v1/messages to the second.
_NATIVE: Mapping[str, tuple[str, str]] = {"native-chat": ("openai", "/v1"), "native-messages": ("anthropic", "")}


def _deployment(kind: str, behaviour: str, upstream_url: str) -> dict[str, Any]:
    provider, path = _NATIVE[kind]
    params: dict[str, Any] = {
        "model": f"{provider}/{behaviour}",
        "api_base": f"{upstream_url}{path}",
        "api_key": "sk-upstream",
    }
    params |= {"input_cost_per_token": TOKEN_COST, "output_cost_per_token": TOKEN_COST}
    return {"model_name": f"{kind}/{behaviour}", "litellm_params": params}


def unused_port() -> int:
    """A TCP port of loopback that nobody listens on now."""
    return unused_ports(1)[0]


def start_proxy(
    config: Mapping[str, Any],
    *,
    workdir: Path,
    env: Mapping[str, str] = {},
    files: Mapping[str, str] = {},
    python: str = sys.executable,
    workers: int = 1,
    port: int | None = None,
) -> ProxyProcess:
    """Start a proxy and wait until it serves; use it as a context manager.

    Args:
        workdir: an existing directory for the configuration, `files` (relative path -> text) and the log.
        env: more environment variables.
        python: the interpreter whose LiteLLM is started.
        workers: processes that serve.
        port: an unused port of loopback; None takes any.
    """
    proxy = _process(config, workdir, env, files, python, workers, port)
    try:
        proxy.wait_until_ready()
        _wait_for_workers(proxy, workers)
    except BaseException:
        proxy.stop()
        raise
    return proxy


def _wait_for_workers(proxy: ProxyProcess, workers: int) -> None:
    """The first worker makes the proxy ready; wait for the others."""
    deadline = time.monotonic() + STARTUP_SECONDS
    while proxy.log().count("Application startup complete.") < workers:
        assert time.monotonic() < deadline, f"not all workers started:\n{proxy.log_tail()}"
        time.sleep(0.1)


def refused_start(
    config: Mapping[str, Any],
    *,
    workdir: Path,
    env: Mapping[str, str] = {},
    files: Mapping[str, str] = {},
    python: str = sys.executable,
) -> tuple[int, str]:
    """Start a proxy that must refuse to; gives its exit code and its whole output."""
    with _process(config, workdir, env, files, python) as proxy:
        code = proxy.settle()
        assert code is not None, f"the proxy started:\n{proxy.log_tail()}"
        return code, proxy.log()


@dataclass(frozen=True)
class Start:
    """A start that must be refused: see `start_proxy`."""

    config: Mapping[str, Any]
    workdir: Path
    env: Mapping[str, str]
    files: Mapping[str, str]


def refused_starts(starts: Sequence[Start]) -> list[tuple[int, str]]:
    """Exit code and whole output of each start, all of them forked from one process that has imported LiteLLM. What the
    environment changes about the import itself is not seen; a negative code means that the proxy was not refused."""
    for start in starts:
        _write_config(start.config, start.workdir, start.files)
    asked = [{"workdir": str(start.workdir), "port": unused_port(), "env": dict(start.env)} for start in starts]
    done = subprocess.run(
        [sys.executable, "-c", "from tests.harness.forked import main; main()"],
        cwd=Path(__file__).parents[2],
        env=proxy_environment({}),
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    logs = [(start.workdir / "proxy.log").read_text(encoding="utf-8") for start in starts]
    return list(zip(json.loads(done.stdout), logs, strict=True))


class _Server:
    """Forks proxies from a process that has imported LiteLLM. One for the whole test process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.harness.forked import serve; serve()"],
            cwd=Path(__file__).parents[2],
            env=proxy_environment({}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, request: Mapping[str, Any]) -> Any:
        """The answer to one request."""
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        with self._lock:
            print(json.dumps(request), file=asked, flush=True)
            return json.loads(answers.readline())


@cache
def _server() -> _Server:
    return _Server()


class _Forked:
    """A process that the server forked."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self.pid: int = _server().ask(start)
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout or 0.0)
        while self._code is None:
            self._code = _server().ask({"wait": self.pid})
            if self._code is None:
                if timeout is not None and time.monotonic() >= deadline:
                    raise subprocess.TimeoutExpired("proxy", timeout)
                time.sleep(0.02)
        return self._code


class _ForkedProxy(ProxyProcess):
    """A proxy without the seconds of its import. What the environment changes about that is not seen."""

    def _start(self, config: Path, port: int, env: Mapping[str, str], *_: Any) -> Process:
        self._log_path.touch()
        return _Forked({"workdir": str(config.parent), "port": port, "env": proxy_environment(env)})


_READ_AT_IMPORT = frozenset({"LITELLM_LOG", "PYTHONPATH"})


def _process(
    config: Mapping[str, Any],
    workdir: Path,
    env: Mapping[str, str],
    files: Mapping[str, str],
    python: str,
    workers: int = 1,
    port: int | None = None,
) -> ProxyProcess:
    path = _write_config(config, workdir, files)
    key = config["general_settings"]["master_key"]
    alike = workers == 1 and python == sys.executable and _READ_AT_IMPORT.isdisjoint(env)
    made = _ForkedProxy if alike and (Path(python).parent / "litellm").exists() else ProxyProcess
    return made(path, port=port or unused_port(), key=key, env=env, python=python, workers=workers)


def _write_config(config: Mapping[str, Any], workdir: Path, files: Mapping[str, str]) -> Path:
    path = workdir / "config.yaml"
    _write_files(workdir, {**files, path.name: yaml.safe_dump(dict(config), sort_keys=False)})
    return path


def _write_files(workdir: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = workdir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
