"""Proxies forked from one process that has imported LiteLLM.

A start is what the console script does; only the import, which takes most of its seconds, is done once. Two programs,
run with LiteLLM's environment. `main`: reads a JSON list of starts `{"workdir": .., "port": .., "env": {..}}` from
standard input, each with a `config.yaml` in its folder, and writes the list of their exit codes. `serve`: reads a
request a line, a start or `{"wait": pid}`, and answers each with the pid, or with the exit code so far.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

# A proxy that is not refused serves until this ends it; its exit code is negative then.
SECONDS = 60


def main() -> None:
    """Start one after the other."""
    import litellm.proxy.proxy_server  # noqa: F401
    from litellm import run_server

    json.dump([_exit_code(start, run_server) for start in json.load(sys.stdin)], sys.stdout)


def serve() -> None:
    """Start proxies as they are asked for, until nobody asks any more."""
    # What the import prints is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import litellm.proxy.proxy_server  # noqa: F401
    from litellm import run_server

    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            pid, status = os.waitpid(asked["wait"], os.WNOHANG)
            answer = None if pid == 0 else os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                os.setsid()
                os.environ.clear()
                _run(asked, run_server)
        print(json.dumps(answer), file=answers, flush=True)


def _exit_code(start: dict[str, Any], run_server: Any) -> int:
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        _run(start, run_server)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run(start: dict[str, Any], run_server: Any) -> NoReturn:
    """Be the proxy."""
    os.chdir(start["workdir"])
    os.environ.update(start["env"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
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
    code = 1
    try:
        run_server()
        code = 0
    # What the interpreter would do with it, without the parent's clean-up.
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
