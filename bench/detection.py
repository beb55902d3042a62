"""How well the guard tells loops from work: measured over a folder of recorded transcripts with labels.

    python bench/detection.py [FOLDER]

FOLDER holds `*.jsonl.gz` with transcript records and `labels.jsonl`; the transcripts of `intercode*` are old models on
short tasks, full of loops and labelled only in part, and are counted apart. Exit code 1: a number is missed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from litellm_toolguard.canonical import canonical_arguments, parse_arguments  # noqa: E402
from litellm_toolguard.dialects import parse  # noqa: E402
from litellm_toolguard.policy import Policy  # noqa: E402
from litellm_toolguard.replay_files import Fault, Value, file_values  # noqa: E402
from litellm_toolguard.review import OVER, Review, review  # noqa: E402
from litellm_toolguard.transcript import Exchange, Round, Transcript, UserInput  # noqa: E402

DEFAULT_FOLDER: Final = ROOT.parent / "shared" / "corpus"
UNLABELLED: Final = "intercode"
CALLS_PER_HINT: Final = 2_000
CLIENTS: Final = ("claude_code", "codex")
ARMED_SHARE: Final = 0.03
IN_A_ROW: Final = 3


@dataclass
class Group:
    """What was counted of one half of the corpus."""

    transcripts: int = 0
    calls: int = 0
    saved: int = 0
    requests: int = 0
    armed: int = 0


@dataclass
class Counts:
    """Everything that was counted. The lists hold ids of transcripts."""

    work: Group = field(default_factory=Group)
    old: Group = field(default_factory=Group)
    clients: dict[str, Group] = field(default_factory=lambda: {name: Group() for name in CLIENTS})
    false_ends: list[str] = field(default_factory=list)
    false_hints: list[str] = field(default_factory=list)
    calls_not_loop: int = 0
    loops: int = 0
    missed: list[str] = field(default_factory=list)
    repeats: int = 0
    late: list[str] = field(default_factory=list)
    successes: int = 0
    cut: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    number: str
    wanted: str
    met: bool
    which: list[str]


def main() -> int:
    """Measure and print."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER
    if not folder.is_dir():
        print(f"no corpus at {folder}: nothing is measured")
        return 0
    labels = read_labels(folder / "labels.jsonl")
    started = time.perf_counter()
    counts = Counts()
    for file in sorted(folder.glob("*.jsonl.gz")):
        for record in records(file):
            count(counts, file.name, record, labels.get(record["id"], []))
    return show(counts, time.perf_counter() - started)


def read_labels(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The labels by id."""
    labels: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        label = json.loads(line)
        labels.setdefault(label["id"], []).append(label)
    return labels


def records(file: Path) -> Iterator[dict[str, Any]]:
    """The records of a file; a corpus that cannot be read measures nothing."""
    for value in file_values(file):
        if isinstance(value, Fault):
            raise SystemExit(str(value))
        yield _record(value)


def _record(value: Value) -> dict[str, Any]:
    record: dict[str, Any] = value.data
    return record


def count(counts: Counts, file: str, record: dict[str, Any], labels: list[dict[str, Any]]) -> None:
    """Judge one transcript and count it."""
    old = file.startswith(UNLABELLED)
    transcript = parse(record["dialect"], record)
    seen = review(transcript, Policy())
    for group in (counts.old if old else counts.work, *(counts.clients[name] for name in CLIENTS if name in file)):
        group.transcripts += 1
        group.calls += seen.calls
        group.saved += seen.saved
        group.requests += seen.requests
        group.armed += seen.armed
    loops = [label for label in labels if label["label"] == "loop"]
    if not old and any("scope" not in label for label in loops):
        counts.loops += 1
        counts.missed += [record["id"]] if not seen.interventions else []
    if old:
        count_old(counts, record, transcript, seen)
    elif not loops:
        counts.calls_not_loop += seen.calls
        for each in seen.interventions:
            (counts.false_ends if each.action in OVER else counts.false_hints).append(record["id"])


def count_old(counts: Counts, record: dict[str, Any], transcript: Transcript, seen: Review) -> None:
    """What is asked of the transcripts that are labelled only in part."""
    repeated = third_in_a_row(transcript)
    if repeated is not None:
        counts.repeats += 1
        number, call = repeated
        same = {each.call.id for each in exchanges(transcript) if _texts(each)[:2] == call}
        told = any(each.round <= number and each.call_id in same for each in seen.interventions)
        counts.late += [] if told else [record["id"]]
    if record.get("outcome") == "success":
        counts.successes += 1
        counts.cut += [record["id"]] if seen.saved and was_cut(transcript, seen) else []


def was_cut(transcript: Transcript, seen: Review) -> bool:
    """Whether a run was ended before it had its answer: whether the calls behind the end, which would not have run,
    returned anything that was not there before it."""
    end = next(each.round for each in seen.interventions if each.action in OVER)
    texts = [{each.result.text for each in round_.exchanges if each.result is not None} for round_ in transcript.rounds]
    return bool(set().union(*texts[end - 1 :]) - set().union(*texts[: end - 1]))


def exchanges(transcript: Transcript) -> Iterator[Exchange]:
    """All calls with their results."""
    return (exchange for round_ in transcript.rounds for exchange in round_.exchanges)


def third_in_a_row(transcript: Transcript) -> tuple[int, tuple[str, str]] | None:
    """The round in which a call with the same result stands for the third time in a row, and the call; None if there is
    none. Told by the texts alone, not by the guard's own identities."""
    before: object = None
    number, times = 0, 0
    for event in transcript.events:
        if isinstance(event, UserInput) and event.kind == "user":
            times = 0
        if not isinstance(event, Round):
            continue
        number += 1
        for exchange in event.exchanges:
            same = _texts(exchange)
            times = times + 1 if times and same == before else 1
            before = same
            if times == IN_A_ROW:
                return number, same[:2]
    return None


def _texts(exchange: Exchange) -> tuple[str, str, str | None]:
    call, result = exchange.call, exchange.result
    return call.name, canonical_arguments(parse_arguments(call.arguments)), None if result is None else result.text


def rows(counts: Counts) -> Iterator[Row]:
    """The table."""
    allowed = counts.calls_not_loop // CALLS_PER_HINT
    hints, caught = len(counts.false_hints), counts.loops - len(counts.missed)
    ends, hinted = len(counts.false_ends), counts.repeats - len(counts.late)
    yield Row("work: stops, blocks, asks on what is no loop", str(ends), "0", not ends, counts.false_ends)
    yield Row(
        f"work: hints on what is no loop, in {counts.calls_not_loop} calls",
        str(hints),
        f"at most {allowed}",
        hints <= allowed,
        counts.false_hints,
    )
    for name, group in counts.clients.items():
        share = group.armed / max(group.requests, 1)
        yield Row(
            f"{name}: armed, of {group.requests} requests", f"{share:.1%}", "at most 3%", share <= ARMED_SHARE, []
        )
    yield Row("work: labelled loops seen", f"{caught} of {counts.loops}", "all", not counts.missed, counts.missed)
    yield Row(
        "intercode: told by the third same call", f"{hinted} of {counts.repeats}", "all", not counts.late, counts.late
    )
    cut = f"{len(counts.cut)} of {counts.successes}"
    yield Row("intercode: successes ended before their last news", cut, "0", not counts.cut, counts.cut)


def show(counts: Counts, seconds: float) -> int:
    """Print the table; the exit code."""
    table = list(rows(counts))
    for row in table:
        print(f"{'ok    ' if row.met else 'MISSED'}  {row.what:<52} {row.number:>12}   wanted {row.wanted}")
        for name in row.which:
            print(f"          {name}")
    for name, group in (("work", counts.work), ("intercode", counts.old)):
        print(f"{name}: {group.transcripts} transcripts, {group.calls} calls, {group.saved} of them saved")
    print(f"{seconds:.1f} seconds")
    return 0 if all(row.met for row in table) else 1


if __name__ == "__main__":
    raise SystemExit(main())
