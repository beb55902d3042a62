"""Real LiteLLM proxy processes on loopback."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from tests.harness.upstream import BEHAVIOURS

STARTUP_SECONDS = 120
STOP_SECONDS = 10
_LOG_TAIL = 6000
# Settings of the tester's own shell that would change a proxy or lead it to a live service.
_FOREIGN_ENV = ("LITELLM", "OPENAI", "ANTHROPIC", "DATABASE", "REDIS", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_NO_PROXIES = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def config(
    upstream_url: str,
    *,
    guardrails: list[dict[str, Any]] | None = None,
    litellm_settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A proxy configuration over a scripted upstream.

    `native-chat/<behaviour>` is native for chat and responses, `native-messages/<behaviour>` for messages.
    """
    deployments = [_deployment(kind, behaviour, upstream_url) for kind in _NATIVE for behaviour in BEHAVIOURS]
    made: dict[str, Any] = {
        "model_list": deployments,
        "general_settings": {"master_key": f"sk-{secrets.token_hex(24)}"},
        "litellm_settings": {"num_retries": 0, "drop_params": True, **(litellm_settings or {})},
        # One 404 or 401 takes a deployment out of service for seconds, with which the next test would meet no model.
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }
    return {**made, "guardrails": guardrails} if guardrails else made


# Kind of model -> (LiteLLM's provider, path of its api_base). LiteLLM appends /chat/completions or /responses to the
# first and /v1/messages to the second.
_NATIVE: Mapping[str, tuple[str, str]] = {"native-chat": ("openai", "/v1"), "native-messages": ("anthropic", "")}


def _deployment(kind: str, behaviour: str, upstream_url: str) -> dict[str, Any]:
    provider, path = _NATIVE[kind]
    params = {"model": f"{provider}/{behaviour}", "api_base": f"{upstream_url}{path}", "api_key": "sk-upstream"}
    return {"model_name": f"{kind}/{behaviour}", "litellm_params": params}


def unused_port() -> int:
    """A TCP port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ProxyProcess:
    """A proxy in a process group of its own; leaving the context stops the whole group."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        workdir: Path,
        env: Mapping[str, str],
        files: Mapping[str, str],
        python: str,
    ) -> None:
        self.key: str = config["general_settings"]["master_key"]
        port = unused_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log_path = workdir / "proxy.log"
        _write_files(workdir, {**files, "config.yaml": yaml.safe_dump(dict(config), sort_keys=False)})
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                _command(python, workdir / "config.yaml", port),
                cwd=workdir,
                env=_environment(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> ProxyProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        """Everything that the proxy has printed so far."""
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        """Stop the whole group, first politely."""
        self._signal_group(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self._signal_group(signal.SIGKILL)
        self._process.wait(STOP_SECONDS)

    def exit_code(self, wait: float) -> int | None:
        """The exit code, waited for at most `wait` seconds; None while the process lives."""
        try:
            return self._process.wait(wait)
        except subprocess.TimeoutExpired:
            return None

    def is_ready(self) -> bool:
        try:
            with _NO_PROXIES.open(f"{self.url}/health/readiness", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def settle(self) -> int | None:
        """Wait until the proxy is ready (None) or has exited by itself (its exit code)."""
        deadline = time.monotonic() + STARTUP_SECONDS
        while time.monotonic() < deadline:
            code = self.exit_code(wait=0.2)
            if code is not None or self.is_ready():
                return code
        raise AssertionError(f"the proxy was not ready in {STARTUP_SECONDS} s:\n{self.log()[-_LOG_TAIL:]}")

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def start_proxy(
    config: Mapping[str, Any],
    *,
    workdir: Path,
    env: Mapping[str, str] = {},
    files: Mapping[str, str] = {},
    python: str = sys.executable,
) -> ProxyProcess:
    """Start a proxy and wait until it serves; use it as a context manager.

    Args:
        workdir: an existing directory for the configuration, `files` (relative path -> text) and the log.
        env: more environment variables.
        python: the interpreter whose LiteLLM is started.
    """
    proxy = ProxyProcess(config, workdir=workdir, env=env, files=files, python=python)
    try:
        code = proxy.settle()
        assert code is None, f"the proxy exited with {code}:\n{proxy.log()[-_LOG_TAIL:]}"
    except BaseException:
        proxy.stop()
        raise
    return proxy


def refused_start(
    config: Mapping[str, Any],
    *,
    workdir: Path,
    env: Mapping[str, str] = {},
    files: Mapping[str, str] = {},
    python: str = sys.executable,
) -> tuple[int, str]:
    """Start a proxy that must refuse to; gives its exit code and its whole output."""
    with ProxyProcess(config, workdir=workdir, env=env, files=files, python=python) as proxy:
        code = proxy.settle()
        assert code is not None, f"the proxy started:\n{proxy.log()[-_LOG_TAIL:]}"
        return code, proxy.log()


def _command(python: str, config_path: Path, port: int) -> list[str]:
    """The console script, as operators start it; `-m` would put the working directory first on the path."""
    options = ["--config", str(config_path), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    return [python, str(Path(python).parent / "litellm"), *options]


def _write_files(workdir: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = workdir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.upper().startswith(_FOREIGN_ENV)}
    paths = [*_source_root(), *filter(None, [own.get("PYTHONPATH")])]
    return {
        **own,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY_DISABLED": "True",
        "NO_PROXY": "127.0.0.1,localhost",
        **extra,
    }


def _source_root() -> list[str]:
    """The directory of the checkout that the tests import the package from; nothing where it is installed."""
    spec = find_spec("litellm_toolguard")
    places = list(spec.submodule_search_locations or ()) if spec else []
    roots = [str(Path(place).parent) for place in places[:1]]
    return [root for root in roots if "site-packages" not in root]
