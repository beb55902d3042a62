"""A LiteLLM proxy as a real process on loopback, in a session of its own. For POSIX systems."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Protocol

from litellm_toolguard.demo.environment import proxy_environment
from litellm_toolguard.errors import ToolGuardError

STARTUP_SECONDS: Final = 120
STOP_SECONDS: Final = 10
LOG_TAIL_LINES: Final = 40

_NO_PROXIES: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# What the console script does, for an interpreter that has none beside it (`pip install --user`).
_ENTRY_POINT: Final = "import sys; del sys.path[0]; from litellm import run_server; run_server()"


class ProxyError(ToolGuardError):
    """A proxy that does not serve; the message ends with the last lines of its log."""


def unused_ports(count: int) -> tuple[int, ...]:
    """Different TCP ports of loopback that nobody listens on now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return tuple(int(probe.getsockname()[1]) for probe in probes)


class Process(Protocol):
    """What is needed of a process."""

    @property
    def pid(self) -> int:
        """Its id, which is that of its group."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; raises `subprocess.TimeoutExpired` while it lives."""


class ProxyProcess:
    """A starting or running proxy; leaving the context stops the whole process group.

    Args:
        config: the LiteLLM config; its folder is the working directory, and the log is written there.
        port: an unused port of loopback.
        key: the key that clients give.
        env: more environment variables.
        python: the interpreter whose LiteLLM is started.
        workers: processes that serve.
    """

    def __init__(
        self,
        config: Path,
        *,
        port: int,
        key: str,
        env: Mapping[str, str],
        python: str = sys.executable,
        workers: int = 1,
    ) -> None:
        self.key = key
        self.url = f"http://127.0.0.1:{port}"
        self._log_path = config.parent / "proxy.log"
        self._process = self._start(config, port, env, python, workers)

    def _start(self, config: Path, port: int, env: Mapping[str, str], python: str, workers: int) -> Process:
        with self._log_path.open("wb") as log:
            return subprocess.Popen(
                _command(python, config, port, workers),
                cwd=config.parent,
                env=proxy_environment(env),
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

    def log_tail(self) -> str:
        """The last lines of the log."""
        return "\n".join(self.log().rstrip().splitlines()[-LOG_TAIL_LINES:])

    def stop(self) -> None:
        """Stop the whole group, first politely."""
        stop_all([self])

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
        """Wait until the proxy is ready (None) or has exited by itself (its exit code).

        Raises:
            ProxyError: it is neither after `STARTUP_SECONDS`.
        """
        deadline = time.monotonic() + STARTUP_SECONDS
        while time.monotonic() < deadline:
            code = self.exit_code(wait=0.2)
            if code is not None or self.is_ready():
                return code
        raise ProxyError(f"the proxy was not ready in {STARTUP_SECONDS} s:\n{self.log_tail()}")

    def wait_until_ready(self) -> None:
        """Wait until the proxy serves.

        Raises:
            ProxyError: it exits, or does not get ready.
        """
        code = self.settle()
        if code is not None:
            raise ProxyError(f"the proxy exited with {code}:\n{self.log_tail()}")

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and all its children; nothing happens when none is left."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def stop_all(proxies: Iterable[ProxyProcess]) -> None:
    """Stop several proxies at a time: each whole group, first politely."""
    proxies = list(proxies)
    for proxy in proxies:
        proxy.signal_group(signal.SIGTERM)
    for proxy in proxies:
        proxy.exit_code(STOP_SECONDS)
        proxy.signal_group(signal.SIGKILL)
        proxy.exit_code(STOP_SECONDS)


def _command(python: str, config: Path, port: int, workers: int) -> list[str]:
    """The console script, as operators start it; `-m` would put the working directory first on the path."""
    script = Path(python).parent / "litellm"
    program = [str(script)] if script.exists() else ["-c", _ENTRY_POINT]
    options = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", str(workers)]
    if workers > 1:
        # Importing LiteLLM takes longer than uvicorn's five seconds on a busy machine: it would kill workers at birth.
        options += ["--timeout_worker_healthcheck", str(STARTUP_SECONDS)]
    return [python, *program, *options]
