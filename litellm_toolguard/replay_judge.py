"""The verdict on the values of recorded files. Pure but for the reading of a file that is judged as a whole."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from litellm_toolguard.canonical import parse_arguments
from litellm_toolguard.dialects import parse
from litellm_toolguard.errors import PayloadError
from litellm_toolguard.policy import Policy
from litellm_toolguard.replay_files import Fault, Value, file_values
from litellm_toolguard.replay_formats import Entry, Gatherer, Record, Skipped, recognise
from litellm_toolguard.review import Intervention, review
from litellm_toolguard.transcript import Dialect, ToolCall, Transcript

# Longer texts are not tried: reading them as Python takes many times their size.
_MAX_LITERAL_CHARS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Judged:
    """One transcript and what the guard would have done.

    Args:
        id: its id.
        dialect: its dialect.
        rounds: assistant messages with calls.
        calls: calls in them.
        interventions: in order.
        saved: calls that would not have run.
        not_inspected: parts that could not be read.
    """

    id: str
    dialect: Dialect
    rounds: int
    calls: int
    interventions: tuple[Intervention, ...]
    saved: int
    not_inspected: int


Outcome: TypeAlias = Judged | Fault | Skipped


def judge_values(found: Iterable[Value | Fault], policy: Policy) -> Iterator[Outcome | Entry]:
    """The outcome of every value; an entry of a session log comes back as it is."""
    for value in found:
        recognised = value if isinstance(value, Fault) else recognise(value)
        if isinstance(recognised, Record):
            yield from judge_record(recognised, policy)
        elif recognised is not None:
            yield recognised


def gathered(found: Iterable[Outcome | Entry], gatherer: Gatherer) -> Iterator[Outcome]:
    """The outcomes; the entries among them go to the gatherer."""
    for outcome in found:
        if not isinstance(outcome, Entry):
            yield outcome
        elif (fault := gatherer.add(outcome)) is not None:
            yield fault


def judge_gathered(gatherer: Gatherer, policy: Policy) -> Iterator[Outcome]:
    """The outcomes of the transcripts that session logs made up."""
    for record in gatherer.records():
        yield from judge_record(record, policy)


def judge_file(path: Path, policy: Policy) -> Iterator[Outcome]:
    """The outcomes of a whole file."""
    gatherer = Gatherer(str(path))
    yield from gathered(judge_values(file_values(path), policy), gatherer)
    yield from judge_gathered(gatherer, policy)


def judge_record(record: Record, policy: Policy) -> Iterator[Judged | Fault]:
    """The verdict on one transcript, and the faults in it. Arguments that are Python literals are compared as the text
    that they are, as a gateway would, and are said to be so: whoever wrote the file may have spoilt them."""
    try:
        transcript = parse(record.dialect, record.request)
    except PayloadError as error:
        yield record.fault(f"cannot be read: {error}")
        return
    if _is_unreadable(transcript):
        yield record.fault(f"is no transcript: {transcript.problems[0].reason}")
        return
    literals = [call for call in _calls(transcript) if _is_python_literal(call.arguments)]
    if literals:
        message = f"the arguments of {len(literals)} calls are Python literals, not JSON; they are compared as text"
        yield record.fault(message, literals[0].location)
    seen = review(transcript, policy)
    yield Judged(record.id, record.dialect, seen.rounds, seen.calls, seen.interventions, seen.saved, seen.not_inspected)


def _is_unreadable(transcript: Transcript) -> bool:
    return not transcript.events and any(problem.location is not None for problem in transcript.problems)


def _calls(transcript: Transcript) -> Iterator[ToolCall]:
    return (exchange.call for round_ in transcript.rounds for exchange in round_.exchanges)


def _is_python_literal(arguments: object) -> bool:
    """Whether the arguments are the text of a Python dict that is no JSON."""
    if not isinstance(arguments, str) or not arguments.lstrip().startswith("{") or len(arguments) > _MAX_LITERAL_CHARS:
        return False
    if not isinstance(parse_arguments(arguments), str):
        return False
    try:
        with warnings.catch_warnings():
            # The compiler warns of odd escapes and quotes the text.
            warnings.simplefilter("ignore")
            return isinstance(ast.literal_eval(arguments.strip()), dict)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
