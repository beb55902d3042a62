"""What the demo prints: a progress bar while it runs, a table or JSON at its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from litellm_toolguard.demo.scenarios import ENDED_BY, Row
from litellm_toolguard.notes import END_PREFIX

_TEXT_CHARS: Final = 90
# Where the output is no terminal, nothing has to fit into one.
_PLAIN_WIDTH: Final = 160
_COLUMNS: Final = ("model", "dialect", "guard", "requests", "tools executed", "ended by", "what the user read")
_NUMBERS: Final = frozenset({"requests", "tools executed"})
_STYLES: Final = {"cap": "yellow", "guard": "green", "model": "", "error": "red"}


@contextmanager
def progress(steps: int) -> Iterator[Callable[[str], None]]:
    """Shows on standard error what is being done; call the function with each step as it begins.

    Where standard error is no terminal, each step is a line.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: console.print(step, markup=False, highlight=False, soft_wrap=True)
        return
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=steps)

        def begin(step: str) -> None:
            bar.update(task, description=step)
            bar.advance(task)

        yield begin


def print_table(rows: Sequence[Row]) -> None:
    """Print the rows for people."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PLAIN_WIDTH)
    console.print(_table(rows))


def print_json(rows: Sequence[Row]) -> None:
    """Print the rows for programs: a list of objects, without what the folders hold."""
    print(json.dumps([_plain(row) for row in rows], indent=2))


def _table(rows: Sequence[Row]) -> Table:
    table = Table()
    for name in _COLUMNS:
        table.add_column(
            name, justify="right" if name in _NUMBERS else "left", no_wrap=name in ("model", "dialect", "guard")
        )
    for number, row in enumerate(rows):
        # Two rows belong together: the same agent, observed and guarded.
        table.add_row(*_cells(row), end_section=number % 2 == 1)
    return table


def _cells(row: Row) -> tuple[Text, ...]:
    return (
        Text(row.model),
        Text(f"{row.dialect}, streamed" if row.stream else row.dialect),
        Text(row.guard),
        Text(str(row.requests)),
        Text(str(row.executed)),
        Text(ENDED_BY[row.ended], style=_STYLES[row.ended]),
        Text(_shortened(row.text) or "nothing yet"),
    )


def _shortened(text: str) -> str:
    """The beginning of the text, after the words that all ends of the guard start with."""
    told = " ".join(text.removeprefix(END_PREFIX).split())
    start = "… " if text.startswith(END_PREFIX) else ""
    return start + (told if len(told) <= _TEXT_CHARS else f"{told[: _TEXT_CHARS - 1]}…")


def _plain(row: Row) -> dict[str, Any]:
    plain = asdict(row)
    del plain["folder"]
    return plain
