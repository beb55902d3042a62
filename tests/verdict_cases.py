"""The cases of `tests/cases/*.yaml`: what a guard says over a conversation, and when.

A case is a mapping:

- `name`: a sentence, told once in its file;
- `steps`: see `tests/conversation.py`;
- `expect`: lines `<round> <action> [<detector>]`, one for each request on which a live guard says something; a case
  without it is silent;
- `proposed`: lines of the same form for what a guard that also judges proposals would have done; not checked where it
  is missing;
- `judged`: numbers of the rounds whose requests are judged, for a conversation that is long; all of them otherwise;
- `policy`, `request`: the policy and more keys of the request;
- `dialects`: where it is not the same in all three.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from litellm_toolguard.dialects import parse
from litellm_toolguard.policy import DETECTORS, DeniedLadder, Ladder, Policy
from litellm_toolguard.policy_reading import load_policy
from litellm_toolguard.review import review
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, Conversation, Step, expand, live

FOLDER = Path(__file__).parent / "cases"
# The detector that a line means where it names none; the other files are named like their detector.
_DETECTORS = {
    "turns": "repeated-call",
    "operator-texts": "denied-call",
    **dict.fromkeys(("failing", "situations", "repeated-call"), ""),
}

Said: TypeAlias = tuple[int, str, str]
"""Round from 1, action, detector; an expectation with an empty detector leaves it open."""


@dataclass(frozen=True)
class Case:
    """One case; `file` is the stem of the file that it stands in."""

    file: str
    name: str
    steps: tuple[Step, ...]
    expect: tuple[Said, ...] = ()
    proposed: tuple[Said, ...] | None = None
    judged: frozenset[int] | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    dialects: tuple[Dialect, ...] = DIALECTS

    @property
    def id(self) -> str:
        """File and name."""
        return f"{self.file}: {self.name}"

    def difference(self, dialect: Dialect) -> str:
        """What a guard says otherwise than expected; empty when it says exactly that."""
        seen = tuple(live(dialect, self.steps, load_policy(dict(self.policy)), self.request, self.judged).events)
        told = _difference("live", seen, self.expect)
        if told or self.proposed is None:
            return told
        return _difference("proposed", self._reviewed(dialect, load_policy(dict(self.policy))), self.proposed)

    def replayed_difference(self, dialect: Dialect) -> str:
        """What the review of the whole conversation says otherwise than the guard that judged its requests, proposals
        apart. A note that stands at several requests of one round is one in the review."""
        first = {said[0]: said for said in reversed(self.expect)}
        expected = tuple(first[number] for number in sorted(first))
        return _difference("replayed", self._reviewed(dialect, _without_proposals(self.policy)), expected)

    def _reviewed(self, dialect: Dialect, policy: Policy) -> tuple[Said, ...]:
        conversation = Conversation(dialect)
        for step in expand(self.steps):
            conversation.add(step)
        done = review(parse(dialect, {**conversation.request(), **self.request}), policy).interventions
        return tuple((each.round, each.action, each.detector) for each in done)


def _without_proposals(data: Mapping[str, Any]) -> Policy:
    """The policy with every rung taken out that judges proposals, which a live gateway sees in its answers."""
    policy = load_policy(dict(data))
    ladders = {name: policy.ladder(name, "own", "any") for name in DETECTORS}
    stripped = {
        name: _without_rungs(ladder)
        for name, ladder in ladders.items()
        if isinstance(ladder, DeniedLadder)
        or (isinstance(ladder, Ladder) and (ladder.block is not None or ladder.ask is not None))
    }
    return load_policy({**data, "detectors": {**data.get("detectors", {}), **stripped}})


def _without_rungs(ladder: Ladder) -> dict[str, Any]:
    kept = ladder.model_dump(exclude_none=True, exclude={"block", "ask"})
    return {**kept, "block_resend": False} if isinstance(ladder, DeniedLadder) else kept


def _difference(how: str, seen: tuple[Said, ...], expected: tuple[Said, ...]) -> str:
    padding = ((0, "", "-"),) * max(0, len(seen) - len(expected))
    named = tuple(
        (*event[:2], event[2] if want[2] else "") for event, want in zip(seen, (*expected, *padding), strict=False)
    )
    return "" if named == expected else f"{how}: {list(seen)}, expected {list(expected)}"


@cache
def cases() -> Mapping[str, Case]:
    """Every case by its id.

    Raises:
        AssertionError: when two cases have the same id.
    """
    found = [case for file in sorted(FOLDER.glob("*.yaml")) for case in _read(file)]
    by_id = {case.id: case for case in found}
    assert len(by_id) == len(found), "a name is said twice in one file"
    return by_id


def _read(file: Path) -> Iterator[Case]:
    for entry in yaml.safe_load(file.read_text(encoding="utf-8")):
        data = {"dialects": DIALECTS, **entry}
        data.pop("situation", None)
        for key in ("expect", "proposed"):
            if key in data:
                data[key] = tuple(_said(line, _DETECTORS.get(file.stem, file.stem)) for line in data[key])
        if "judged" in data:
            data["judged"] = frozenset(data["judged"])
        yield Case(
            file.stem, **{**data, "steps": tuple(data["steps"]), "dialects": tuple(data.get("dialects", DIALECTS))}
        )


def _said(line: str, detector: str) -> Said:
    number, action, *named = line.split()
    return int(number), action, named[0] if named else detector
