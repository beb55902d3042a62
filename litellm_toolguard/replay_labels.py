"""Labels of transcripts, and how the verdicts compare with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from litellm_toolguard.replay_files import Fault, Value, file_values
from litellm_toolguard.replay_judge import Judged
from litellm_toolguard.review import OVER

if TYPE_CHECKING:
    from litellm_toolguard.replay_report import Faults

LabelName: TypeAlias = Literal["loop", "benign"]
Verdict: TypeAlias = Literal["right", "false_stops", "false_hints", "missed_loops"]
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)


@dataclass(frozen=True, slots=True)
class Label:
    """One judgement of a person.

    Args:
        label: `loop` or `benign`.
        scope: set where a loop need not be seen, because it runs over several turns or ends as it begins.
        kind: its kind, in the words of whoever wrote it.
        tool: the tool, likewise.
    """

    label: LabelName
    scope: str = ""
    kind: str = ""
    tool: str = ""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A transcript that was judged wrongly."""

    id: str
    verdict: Verdict
    labels: tuple[Label, ...]
    interventions: int


@dataclass(slots=True)
class Labels:
    """The labels and, as transcripts are added, the comparison.

    Args:
        by_id: the labels of each transcript; there can be several.
        transcripts: transcripts by verdict. One can stand under both `false_stops` and `false_hints`.
        interventions: interventions by verdict.
        wrong: what was judged wrongly, in order.
        seen: ids of labels whose transcript came.
    """

    by_id: Mapping[str, Sequence[Label]]
    transcripts: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(VERDICTS, 0))
    interventions: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(VERDICTS, 0))
    wrong: list[Wrong] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    @property
    def without_transcript(self) -> int:
        """Labelled ids that no transcript has."""
        return len(self.by_id.keys() - self.seen)

    def add(self, judged: Judged) -> None:
        """Compare one transcript."""
        labels = tuple(self.by_id.get(judged.id, ()))
        if labels:
            self.seen.add(judged.id)
        found = tuple(_verdicts(judged, labels))
        for verdict, number in found or (("right", len(judged.interventions)),):
            self.transcripts[verdict] += 1
            self.interventions[verdict] += number
        self.wrong += [Wrong(judged.id, verdict, labels, number) for verdict, number in found]


def _verdicts(judged: Judged, labels: Sequence[Label]) -> Iterator[tuple[Verdict, int]]:
    """What is wrong, with the number of interventions that are."""
    loops = [label for label in labels if label.label == "loop"]
    if loops:
        if not judged.interventions and any(not label.scope for label in loops):
            yield "missed_loops", 0
        return
    stops = sum(each.action in OVER for each in judged.interventions)
    if stops:
        yield "false_stops", stops
    if stops < len(judged.interventions):
        yield "false_hints", len(judged.interventions) - stops


def read_labels(path: Path, faults: Faults) -> Labels:
    """The labels of a file; what cannot be read of it is a fault."""
    by_id: dict[str, list[Label]] = {}
    for value in file_values(path):
        named = value if isinstance(value, Fault) else _label(value)
        if isinstance(named, Fault):
            faults.add(named)
        else:
            by_id.setdefault(named[0], []).append(named[1])
    return Labels(by_id)


def _label(value: Value) -> tuple[str, Label] | Fault:
    data = value.data if isinstance(value.data, dict) else {}
    name, label = data.get("id"), data.get("label")
    if not isinstance(name, str) or label not in get_args(LabelName):
        return value.fault(f"is no label: it needs `id`, and `label` as one of {', '.join(get_args(LabelName))}")
    more = {key: data[key] for key in ("scope", "kind", "tool") if isinstance(data.get(key), str)}
    return name, Label("loop" if label == "loop" else "benign", **more)
