"""What `toolguard replay` prints: the report on standard output, faults and a progress bar on standard error."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from litellm_toolguard.notes import safe_name
from litellm_toolguard.replay_files import Fault, printable
from litellm_toolguard.replay_formats import Skipped
from litellm_toolguard.replay_judge import Judged
from litellm_toolguard.replay_labels import VERDICTS, Labels, Wrong
from litellm_toolguard.review import Intervention

Output: TypeAlias = Literal["text", "json", "jsonl"]
FailOn: TypeAlias = Literal["stop", "hint"]

_MAX_FAULTS: Final = 20
"""Faults of one file that are shown; the others are counted."""


@dataclass(slots=True)
class Summary:
    """The sum over all transcripts. `stops` holds rejections, too; `saved` are calls that would not have run."""

    transcripts: int = 0
    calls: int = 0
    hints: int = 0
    blocks: int = 0
    asks: int = 0
    stops: int = 0
    saved: int = 0
    not_inspected: int = 0
    skipped: int = 0

    def add(self, outcome: Judged | Skipped) -> None:
        """Add one transcript, or a row that is none."""
        if isinstance(outcome, Skipped):
            self.skipped += 1
            return
        actions = Counter(each.action for each in outcome.interventions)
        self.transcripts += 1
        self.calls += outcome.calls
        self.hints += actions["hint"]
        self.blocks += actions["block"]
        self.asks += actions["ask"]
        self.stops += actions["stop"] + actions["reject"]
        self.saved += outcome.saved
        self.not_inspected += outcome.not_inspected

    def fails(self, on: FailOn | None) -> bool:
        """Whether there was such an intervention: for `stop` whatever ends the run as it was recorded."""
        ends = self.stops + self.blocks + self.asks
        return on is not None and ends + (self.hints if on == "hint" else 0) > 0


@dataclass(slots=True)
class Faults:
    """The faults, shown as they come.

    Args:
        say: how a line is shown.
        by_source: how many each file has.
    """

    say: Callable[[str], None] = lambda line: click.echo(line, err=True)
    by_source: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """All faults."""
        return sum(self.by_source.values())

    def add(self, fault: Fault) -> None:
        """Show a fault, or only count it."""
        self.by_source[fault.source] += 1
        if self.by_source[fault.source] <= _MAX_FAULTS:
            self.say(str(fault))

    def finish(self) -> None:
        """Say how many were not shown."""
        for source, count in self.by_source.items():
            if count > _MAX_FAULTS:
                self.say(str(Fault(source, 0, f"and {count - _MAX_FAULTS} more")))


@contextmanager
def progress(total: int, faults: Faults, *, text: bool) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if that is a terminal; call the function with the bytes that are done.

    Not shown where the report runs into the same terminal meanwhile: the text is printed at the end, JSON as it comes.
    """
    console = Console(stderr=True)
    if not console.is_terminal or not (text or not Console().is_terminal):
        yield lambda _size: None
        return
    columns = (BarColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        say, task = faults.say, bar.add_task("", total=total or None)
        faults.say = lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)
        yield lambda size: bar.advance(task, size)
        faults.say = say


class Report(Protocol):
    """One format."""

    def add(self, judged: Judged) -> None:
        """Take one transcript."""

    def finish(self, summary: Summary, labels: Labels | None, errors: int) -> None:
        """Print what comes last."""


def report_of(output: Output) -> Report:
    """The report in the given format."""
    reports: dict[Output, Callable[[], Report]] = {"text": TextReport, "json": JsonReport, "jsonl": JsonLinesReport}
    return reports[output]()


# --------------------------------------------------------------------------------------------------------------- JSON


def plain(judged: Judged) -> dict[str, Any]:
    """A transcript in plain values."""
    return {
        "id": judged.id,
        "dialect": judged.dialect,
        "rounds": judged.rounds,
        "calls": judged.calls,
        "interventions": [asdict(each) for each in judged.interventions],
    }


def plain_summary(summary: Summary, labels: Labels | None, errors: int) -> dict[str, Any]:
    """The sum in plain values."""
    whole: dict[str, Any] = {**asdict(summary), "errors": errors}
    if labels is not None:
        whole["labels"] = {
            **labels.transcripts,
            "without_transcript": labels.without_transcript,
            "wrong": [{"id": each.id, "verdict": each.verdict} for each in labels.wrong],
        }
    return whole


class JsonReport:
    """One object, written as it grows."""

    def __init__(self) -> None:
        self._before = '{"transcripts": ['

    def add(self, judged: Judged) -> None:
        """Write one transcript."""
        click.echo(self._before + "\n" + json.dumps(plain(judged)), nl=False)
        self._before = ","

    def finish(self, summary: Summary, labels: Labels | None, errors: int) -> None:
        """Write the sum."""
        before = "" if self._before == "," else self._before
        click.echo(f'{before}\n], "summary": {json.dumps(plain_summary(summary, labels, errors))}}}')


class JsonLinesReport:
    """A line per transcript, and a last one with the sum."""

    def add(self, judged: Judged) -> None:
        """Write one transcript."""
        click.echo(json.dumps(plain(judged)))

    def finish(self, summary: Summary, labels: Labels | None, errors: int) -> None:
        """Write the sum."""
        click.echo(json.dumps({"summary": plain_summary(summary, labels, errors)}))


# --------------------------------------------------------------------------------------------------------------- text


class TextReport:
    """For people: the transcripts with interventions, then the sum."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, judged: Judged) -> None:
        """Keep a transcript, if there is anything to say of it."""
        if judged.interventions:
            self._lines.append(f"{printable(judged.id)} ({judged.dialect}, {judged.calls} calls)")
            self._lines += [_line(each) for each in judged.interventions]

    def finish(self, summary: Summary, labels: Labels | None, errors: int) -> None:
        """Print all of it."""
        table = _label_lines(labels) if labels is not None else ()
        for line in (*self._lines, *([""] if self._lines else ()), *_summary_lines(summary, errors), *table):
            click.echo(line)


def _line(each: Intervention) -> str:
    told = f"{each.action:<6}  {each.detector:<17}  {safe_name(each.tool)}  count {each.count}"
    return f"  round {each.round:>4}  {told}" + (f"  {printable(each.call_id)}" if each.call_id else "")


def _summary_lines(summary: Summary, errors: int) -> Iterator[str]:
    yield f"{summary.transcripts} transcripts, {summary.calls} calls"
    yield f"{summary.hints} hints, {summary.blocks} blocks, {summary.asks} asks, {summary.stops} stops"
    yield f"{summary.saved} calls would have been saved"
    if summary.not_inspected:
        yield f"{summary.not_inspected} parts of transcripts could not be read"
    if summary.skipped:
        yield f"{summary.skipped} rows of requests without a conversation were passed over"
    if errors:
        yield f"{errors} errors"


def _label_lines(labels: Labels) -> Iterator[str]:
    yield ""
    yield f"{'verdict':<12}  transcripts  interventions"
    for verdict in VERDICTS:
        counts = f"{labels.transcripts[verdict]:>11}  {labels.interventions[verdict]:>13}"
        yield f"{verdict.replace('_', ' '):<12}  {counts}"
    yield from (_wrong_line(each) for each in labels.wrong)
    if labels.without_transcript:
        yield f"{labels.without_transcript} labelled ids have no transcript in these files"


def _wrong_line(wrong: Wrong) -> str:
    told = ", ".join(
        " ".join(printable(word) for word in (label.label, label.scope, label.kind, label.tool) if word)
        for label in wrong.labels
    )
    return f"  {wrong.verdict.replace('_', ' ')}: {printable(wrong.id)} ({told or 'no label'})"
