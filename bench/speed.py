"""What the guard costs, as ratios inside one run: a decision on a long history against reading its body as JSON.

    python bench/speed.py

The history is made up: a coding agent's reads, edits and commands with results of some KiB, about 350 KiB in all. The
next request is the same conversation with one more round. Each number is the median of many runs that alternate with
the thing it is compared to.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import orjson  # noqa: E402

from litellm_toolguard import gate  # noqa: E402
from litellm_toolguard.dialects import HISTORY_KEYS  # noqa: E402
from litellm_toolguard.policy import Policy  # noqa: E402
from litellm_toolguard.store.memory import MemoryFactStore  # noqa: E402
from litellm_toolguard.transcript import Dialect  # noqa: E402
from tests.conversation import DIALECTS, Conversation  # noqa: E402

BODY_BYTES: Final = 350 * 1024
RESULT_CHARS: Final = 3_500
RUNS: Final = 40
AIM: Final = 6.0


def conversation(dialect: Dialect) -> Conversation:
    """A healthy session of the wanted size."""
    made = Conversation(dialect)
    made.add({"user": "Mend the parser."})
    number = 0
    while len(json.dumps(made.request())) < BODY_BYTES:
        made.add({"round": [_call(number)]})
        number += 1
    return made


def _call(number: int) -> dict[str, Any]:
    text = "\n".join(f"{line:5d}  value_{number}_{line} = compute({line})" for line in range(RESULT_CHARS // 40))
    calls = (
        {"tool": "read_file", "args": {"path": f"src/module_{number}.py"}, "result": text},
        {"tool": "edit_file", "args": {"path": f"src/module_{number - 1}.py", "new": text}, "result": "edited"},
        {"tool": "bash", "args": {"command": f"pytest tests/test_{number}.py"}, "result": text},
    )
    return calls[number % len(calls)]


def measure(dialect: Dialect) -> float:
    """The decision on a history at first sight, in times of `orjson.loads` of its body."""
    policy, store = Policy(), MemoryFactStore()
    body = json.dumps(conversation(dialect).request()).encode()
    request = orjson.loads(body)

    def decide() -> None:
        gate.rule(dialect, request, policy, lambda instances: store.counts("t", instances))

    reading, deciding = [], []
    for _ in range(RUNS):
        reading.append(_seconds(lambda: orjson.loads(body)))
        deciding.append(_seconds(decide))
    return statistics.median(deciding) / statistics.median(reading)


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> int:
    """Measure and print."""
    for dialect in DIALECTS:
        ratio = measure(dialect)
        print(f"{dialect:<10} first sight {ratio:5.1f} x orjson.loads   aim at most {AIM:g}")
    return 0


if __name__ == "__main__":
    assert set(HISTORY_KEYS) == set(DIALECTS)
    raise SystemExit(main())
