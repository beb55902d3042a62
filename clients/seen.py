"""What the client scripts share: the tool's side effect, and one line of JSON about how a run ended."""

import json
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path


def executed(argument: str) -> None:
    """The tool's side effect: a line in a file."""
    with Path(os.environ["LINES"]).open("a", encoding="utf-8") as lines:
        lines.write(f"{argument}\n")


def tell(package: str, run: Callable[[], str]) -> None:
    """Run a client and print its version, how it ended and what its user read."""
    try:
        ended, text = "normally", run()
    # Whatever a client raises is what its user sees.
    except Exception as error:  # noqa: BLE001
        ended, text = type(error).__name__, str(error)
    print(json.dumps({"version": version(package), "ended": ended, "text": text}))
