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
from litellm_toolguard.replay_formats import Judged as Judged
from litellm_toolguard.replay_recording import RecordingReader
from litellm_toolguard.review import review
from litellm_toolguard.transcript import ToolCall, Transcript

# Longer texts are not tried: reading them as Python takes many times their size.
_MAX_LITERAL_CHARS: Final = 1_000_000
_DEFAULT_POLICY: Final = Policy()


Outcome: TypeAlias = Judged | Fault | Skipped


def judge_values(found: Iterable[Value | Fault], policy: Policy | None) -> Iterator[Outcome | Entry]:
    """The outcome of every value; an entry of a session log comes back as it is."""
    for value in found:
        recognised = value if isinstance(value, Fault) else recognise(value)
        if isinstance(recognised, Record):
            yield from judge_record(recognised, policy)
        elif recognised is not None:
            yield recognised


@dataclass(slots=True)
class Gathering:
    """What is spread over the lines of one file.

    Args:
        logs: its session logs.
        recording: its recording of live traffic.
    """

    logs: Gatherer
    recording: RecordingReader

    @classmethod
    def of(cls, source: str, policy: Policy | None) -> Gathering:
        """Nothing yet."""
        return cls(Gatherer(source), RecordingReader(policy))


def gathered(found: Iterable[Outcome | Entry], gathering: Gathering) -> Iterator[Outcome]:
    """The outcomes; the entries among them are gathered."""
    for outcome in found:
        if not isinstance(outcome, Entry):
            yield outcome
        elif outcome.log == "recording":
            yield from gathering.recording.add(outcome.value)
        elif (fault := gathering.logs.add(outcome)) is not None:
            yield fault


def judge_gathered(gathering: Gathering, policy: Policy | None) -> Iterator[Outcome]:
    """The outcomes of the transcripts that session logs made up, and of recorded conversations."""
    for record in gathering.logs.records():
        yield from judge_record(record, policy)
    yield from gathering.recording.finish()


def judge_file(path: Path, policy: Policy | None) -> Iterator[Outcome]:
    """The outcomes of a whole file. No policy is the default policy; for a recording, the recorded one."""
    gathering = Gathering.of(str(path), policy)
    yield from gathered(judge_values(file_values(path), policy), gathering)
    yield from judge_gathered(gathering, policy)


def judge_record(record: Record, policy: Policy | None) -> Iterator[Judged | Fault]:
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
    seen = review(transcript, policy or _DEFAULT_POLICY)
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
