"""Proxies that must refuse to start, forked from one process that has imported LiteLLM.

Run as a program with LiteLLM's environment: reads a JSON list of starts `{"workdir": .., "port": .., "env": {..}}` from
standard input, each with a `config.yaml` in its folder, and writes the list of their exit codes. A start is what the
console script does; only the import, which takes most of its seconds, is done once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

# A proxy that is not refused serves until this ends it; its exit code is negative then.
SECONDS = 60


def main() -> None:
    """Start one after the other."""
    import litellm.proxy.proxy_server  # noqa: F401
    from litellm import run_server

    json.dump([_exit_code(start, run_server) for start in json.load(sys.stdin)], sys.stdout)


def _exit_code(start: dict[str, Any], run_server: Any) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(SECONDS)
    os.chdir(start["workdir"])
    os.environ.update(start["env"])
    log = os.open("proxy.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    config = str(Path("config.yaml").resolve())
    sys.argv = [
        "litellm",
        "--config",
        config,
        "--host",
        "127.0.0.1",
        "--port",
        str(start["port"]),
        "--num_workers",
        "1",
    ]
    run_server()
    os._exit(0)


if __name__ == "__main__":
    main()
