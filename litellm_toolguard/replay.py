"""`toolguard replay`: what the guard would have done over recorded conversations.

The files are read in pieces, which one or several processes judge; what they find comes back in the files' order. A
small file is one piece, and so is one that holds a session log, whose entries make up few transcripts.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Final, TypeAlias

from litellm_toolguard.policy import Policy
from litellm_toolguard.replay_files import (
    CHUNK_BYTES,
    Fault,
    Line,
    is_document,
    open_fault,
    open_file,
    values,
)
from litellm_toolguard.replay_formats import Entry, is_log
from litellm_toolguard.replay_judge import (
    Gathering,
    Judged,
    Outcome,
    gathered,
    judge_file,
    judge_gathered,
    judge_values,
)
from litellm_toolguard.replay_labels import Labels, read_labels
from litellm_toolguard.replay_report import FailOn, Faults, Output, Summary, progress, report_of

SMALL_BYTES: Final = 4 * CHUNK_BYTES
"""Where all files together are smaller, starting processes takes longer than judging; a file that is smaller is judged
by one process."""
_AHEAD: Final = 3
"""Pieces per process that are read before they are asked for."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one process judges at a time.

    Args:
        number: the file's number.
        path: the file.
        lines: lines of it; None for the whole file.
        size: stored bytes that it takes.
    """

    number: int
    path: Path
    lines: tuple[Line | Fault, ...] | None
    size: int


@dataclass(frozen=True, slots=True)
class Step:
    """What one piece gave.

    Args:
        outcomes: in the order of the file.
        size: stored bytes that it took.
    """

    outcomes: tuple[Outcome, ...]
    size: int


Found: TypeAlias = tuple[Piece, list[Outcome | Entry]]
Mapper: TypeAlias = Callable[[Iterable[Piece]], Iterator[Found]]


def replay(paths: Sequence[Path], policy: Policy | None, jobs: int = 1) -> Iterator[Step]:
    """Judge every transcript of the files, in their order.

    Args:
        paths: the files.
        policy: the policy; None for the default one and, in recordings, the recorded one.
        jobs: processes; 1 for none but this one.
    """
    with _mapper(policy, jobs) as found_in:
        for _, group in groupby(found_in(pieces(paths)), key=lambda found: found[0].number):
            yield from _steps(group, policy)


def _steps(group: Iterator[Found], policy: Policy | None) -> Iterator[Step]:
    """The outcomes of one file; behind its last piece those of the session logs that were spread over pieces."""
    gathering: Gathering | None = None
    empty, source = True, ""
    for piece, found in group:
        source = str(piece.path)
        gathering = gathering or Gathering.of(source, policy)
        outcomes = tuple(gathered(found, gathering))
        empty = empty and not outcomes
        yield Step(outcomes, piece.size)
    last = tuple(judge_gathered(gathering, policy)) if gathering is not None else ()
    if last or empty:
        yield Step(last or (Fault(source, 0, "holds no transcript"),), 0)


def stored_bytes(paths: Iterable[Path]) -> int:
    """The size of all files as they are stored; one that cannot be read has none."""
    return sum(_size(path) for path in paths)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def pieces(paths: Iterable[Path]) -> Iterator[Piece]:
    """The pieces of the files, in their order. A large file of lines is read as its pieces are asked for."""
    for number, path in enumerate(paths):
        size = _size(path)
        if size <= SMALL_BYTES or _is_one_piece(path):
            yield Piece(number, path, None, size)
        else:
            yield from _chunks(number, path)


def _is_one_piece(path: Path) -> bool:
    try:
        with open_file(path) as file:
            first = next(file.lines(), None)
    except OSError:
        return True
    if first is None or isinstance(first, Fault):
        return True
    value = next(values(str(path), [first]), None)
    return is_document(path, first[1]) or (value is not None and not isinstance(value, Fault) and is_log(value))


def _chunks(number: int, path: Path) -> Iterator[Piece]:
    try:
        with open_file(path) as file:
            taken, size, before = [], 0, 0
            for line in file.lines():
                taken.append(line)
                size += 0 if isinstance(line, Fault) else len(line[1])
                if size >= CHUNK_BYTES:
                    yield Piece(number, path, tuple(taken), file.held - before)
                    taken, size, before = [], 0, file.held
            yield Piece(number, path, tuple(taken), file.held - before)
    except OSError as error:
        yield Piece(number, path, (open_fault(path, error),), 0)


# ---------------------------------------------------------------------------------------------------------- processes


def _judge(piece: Piece, policy: Policy | None) -> list[Outcome | Entry]:
    if piece.lines is None:
        return list(judge_file(piece.path, policy))
    return list(judge_values(values(str(piece.path), piece.lines), policy))


@contextmanager
def _mapper(policy: Policy | None, jobs: int) -> Iterator[Mapper]:
    if jobs == 1:
        yield lambda found: ((piece, _judge(piece, policy)) for piece in found)
        return
    # A fork would copy the threads' locks of the progress bar.
    context = get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_Worker.start, initargs=(policy,))
    try:
        yield lambda found: _in_order(pool, found, jobs * _AHEAD)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_order(pool: ProcessPoolExecutor, found: Iterable[Piece], ahead: int) -> Iterator[Found]:
    waiting: deque[tuple[Piece, Future[list[Outcome | Entry]]]] = deque()
    for piece in found:
        waiting.append((piece, pool.submit(_Worker.judge, piece)))
        if len(waiting) >= ahead:
            first, future = waiting.popleft()
            yield first, future.result()
    for first, future in waiting:
        yield first, future.result()


class _Worker:
    """What a process of the pool keeps: one policy, so that its caches serve all pieces."""

    policy: Policy | None = None

    @classmethod
    def start(cls, policy: Policy | None) -> None:
        """Called once in each process. An interrupt is the parent's to handle."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        cls.policy = policy

    @classmethod
    def judge(cls, piece: Piece) -> list[Outcome | Entry]:
        """The outcomes of one piece."""
        return _judge(piece, cls.policy)


# ---------------------------------------------------------------------------------------------------------- the command


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says.

    Args:
        output: the format.
        labels: the file of labels, if any.
        fail_on: the intervention that makes the exit code 1, if any.
        jobs: processes; None for one per CPU, or none where there is little to do.
    """

    output: Output = "text"
    labels: Path | None = None
    fail_on: FailOn | None = None
    jobs: int | None = None


def run_replay(paths: Sequence[Path], policy: Policy | None, options: Options) -> int:
    """Replay the files and print the report. Exit code: 1 after a fault or an intervention of `fail_on`, else 0."""
    faults, summary = Faults(), Summary()
    labels = read_labels(options.labels, faults) if options.labels is not None else None
    report = report_of(options.output)
    try:
        with progress(stored_bytes(paths), faults, text=options.output == "text") as advance:
            for step in replay(paths, policy, _jobs(paths, options.jobs)):
                for outcome in step.outcomes:
                    _take(outcome, summary, labels, faults)
                    if isinstance(outcome, Judged):
                        report.add(outcome)
                advance(step.size)
    except BrokenProcessPool:
        faults.add(Fault("toolguard", 0, "a process died, perhaps for want of memory; try --jobs 1"))
    faults.finish()
    report.finish(summary, labels, faults.count)
    return 1 if faults.count or summary.fails(options.fail_on) else 0


def _take(outcome: Outcome, summary: Summary, labels: Labels | None, faults: Faults) -> None:
    if isinstance(outcome, Fault):
        faults.add(outcome)
        return
    summary.add(outcome)
    if labels is not None and isinstance(outcome, Judged):
        labels.add(outcome)


def _jobs(paths: Sequence[Path], wanted: int | None) -> int:
    if wanted is not None:
        return wanted
    return 1 if stored_bytes(paths) <= SMALL_BYTES else os.cpu_count() or 1
