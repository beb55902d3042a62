"""What the demo prints: a progress bar while it runs, a table or JSON at its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from rich.box import HORIZONTALS
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from litellm_toolguard.demo.scenarios import Row
from litellm_toolguard.notes import END_PREFIX

_TEXT_CHARS: Final = 80
# Where the output is no terminal, nothing has to fit into one.
_PLAIN_WIDTH: Final = 160
# In a narrower terminal the words stand below the table.
_WIDE: Final = 120
_COLUMNS: Final = ("model", "dialect", "guard", "requests", "executed", "ended by")
_WORDS: Final = "what the user read"
_NUMBERS: Final = frozenset({"requests", "executed"})
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
    wide = console.width >= _WIDE
    console.print(_table(rows, with_words=wide))
    for row in () if wide else rows:
        console.print(Text(f"{row.model}, {row.dialect}, {row.guard}: {_words(row)}"))


def print_json(rows: Sequence[Row]) -> None:
    """Print the rows for programs: a list of objects, without what the folders hold."""
    print(json.dumps([_plain(row) for row in rows], indent=2))


def _table(rows: Sequence[Row], *, with_words: bool) -> Table:
    table = Table(box=HORIZONTALS, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=True)
    if with_words:
        table.add_column(_WORDS)
    for number, row in enumerate(rows):
        words = (Text(_words(row)),) if with_words else ()
        # Two rows belong together: the same agent, observed and guarded.
        table.add_row(*_cells(row), *words, end_section=number % 2 == 1)
    return table


def _cells(row: Row) -> tuple[Text, ...]:
    return (
        Text(row.model),
        Text(f"{row.dialect}, stream" if row.stream else row.dialect),
        Text(row.guard),
        Text(str(row.requests)),
        Text(str(row.executed)),
        Text(row.ended, style=_STYLES[row.ended]),
    )


def _words(row: Row) -> str:
    return _shortened(row.text) or "nothing yet"


def _shortened(text: str) -> str:
    """The beginning of the text, after the words that all ends of the guard start with."""
    told = " ".join(text.removeprefix(END_PREFIX).split())
    start = "… " if text.startswith(END_PREFIX) else ""
    return start + (told if len(told) <= _TEXT_CHARS else f"{told[: _TEXT_CHARS - 1]}…")


def _plain(row: Row) -> dict[str, Any]:
    plain = asdict(row)
    del plain["folder"]
    return plain
