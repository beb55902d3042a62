"""The runs of the demo, what one row of its table says, and what the rows must say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from litellm_toolguard.demo.agents import AgentDialect, ToolSpec
from litellm_toolguard.demo.scripts import HEALTHY_CALLS
from litellm_toolguard.demo.workshop import APPEND_LINE, CREATE_FILE, RUN_COMMAND

Guard: TypeAlias = Literal["observe", "enforce"]
Ended: TypeAlias = Literal["cap", "guard", "model", "error"]

GUARDS: Final[tuple[Guard, ...]] = get_args(Guard)
CAP: Final = 16
"""Requests after which the demo itself ends a run; more than any guarded run takes."""


@dataclass(frozen=True, slots=True)
class Expected:
    """How a run must end: by whom, and after how many executed tools."""

    ended: Ended
    least: int
    most: int

    def __str__(self) -> str:
        count = str(self.most) if self.least == self.most else f"{self.least} to {self.most}"
        return f"{self.ended} after {count}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One agent, run once under each guard.

    Args:
        model: the scripted model.
        dialect: the client's wire format.
        stream: whether its answers are streamed.
        tools: the tools it is offered.
        prompt: what it is asked to do.
        observed: how it must end when the guard observes.
        enforced: how it must end when the guard enforces.
    """

    model: str
    dialect: AgentDialect
    stream: bool
    tools: tuple[ToolSpec, ...]
    prompt: str
    observed: Expected
    enforced: Expected


@dataclass(frozen=True, slots=True)
class Row:
    """How one run went.

    Args:
        executed: tools that ran, counted in the folder they work in.
        ended: `cap` for the demo's cap on requests, `guard` and `model` for the words of one of them, `error` for an
            error of the client.
        text: what the user read; empty at the cap.
        folder: the files that the tools left, with their text.
    """

    model: str
    dialect: AgentDialect
    stream: bool
    guard: Guard
    requests: int
    executed: int
    ended: Ended
    text: str
    folder: tuple[tuple[str, str], ...]


_UNTIL_THE_CAP: Final = Expected("cap", CAP, CAP)
_ALL_ITS_WORK: Final = Expected("model", HEALTHY_CALLS, HEALTHY_CALLS)


def _looping(dialect: AgentDialect, *, stream: bool) -> Scenario:
    enforced = Expected("guard", 1, 4)
    return Scenario("looping-agent", dialect, stream, (APPEND_LINE,), "Note what we decided.", _UNTIL_THE_CAP, enforced)


SCENARIOS: Final = (
    _looping("chat", stream=False),
    _looping("messages", stream=True),
    _looping("responses", stream=False),
    Scenario(
        model="learning-agent",
        dialect="messages",
        stream=False,
        tools=(APPEND_LINE,),
        prompt="Note what we decided.",
        observed=_UNTIL_THE_CAP,
        enforced=Expected("model", 3, 3),
    ),
    Scenario(
        model="denied-agent",
        dialect="responses",
        stream=True,
        tools=(RUN_COMMAND,),
        prompt="Clean up.",
        observed=_UNTIL_THE_CAP,
        enforced=Expected("guard", 1, 6),
    ),
    Scenario(
        model="healthy-agent",
        dialect="chat",
        stream=True,
        tools=(APPEND_LINE, CREATE_FILE),
        prompt="Write the report.",
        observed=_ALL_ITS_WORK,
        enforced=_ALL_ITS_WORK,
    ),
)


def wrong_rows(rows: Sequence[Row]) -> list[str]:
    """A line for every row that is not what its scenario says.

    Args:
        rows: for each of `SCENARIOS` in turn, its row under each of `GUARDS`.
    """
    pairs = zip(SCENARIOS, rows[::2], rows[1::2], strict=True)
    return [line for scenario, observed, enforced in pairs for line in _wrong(scenario, observed, enforced)]


def _wrong(scenario: Scenario, observed: Row, enforced: Row) -> Iterator[str]:
    for row, expected in ((observed, scenario.observed), (enforced, scenario.enforced)):
        if row.ended != expected.ended or not expected.least <= row.executed <= expected.most:
            yield f"{_name(row)}: ended by {row.ended} after {row.executed} executions, not by {expected}"
    if scenario.observed == scenario.enforced and replace(enforced, guard=observed.guard) != observed:
        yield f"{_name(enforced)}: the guard changed a run that it should leave alone"


def _name(row: Row) -> str:
    return f"{row.model}, {row.dialect}, {row.guard}"
