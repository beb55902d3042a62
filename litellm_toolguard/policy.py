"""The policy: every threshold, the presets, and what holds for a tool.

A policy is frozen. `policy_reading` makes one out of plain data or a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from litellm_toolguard.operator_texts import OperatorText
from litellm_toolguard.roles import Role, builtin_role

DetectorName: TypeAlias = Literal[
    "denied-call",
    "unknown-tool",
    "invalid-arguments",
    "stuck-range",
    "failing-call",
    "failing-tool",
    "repeated-call",
    "call-cycle",
    "same-answer",
    "idle-wait",
    "reread",
    "call-budget",
]
EndAction: TypeAlias = Literal["stop", "reject"]

DETECTORS: Final[tuple[DetectorName, ...]] = get_args(DetectorName)
"""All detectors. Their order breaks ties between findings of the same severity: the one that names the cause best
stands first."""

MIN_LIMIT: Final = 2
"""Nothing is a repetition at its first occurrence; a limit of 1 would make every call a finding."""
MAX_LIMIT: Final = 10_000

TRANSIENT_FACTOR: Final = 2
"""Failures that pass by themselves count at double bounds: trying again is the right answer to them, for a while."""
RERUN_HINT: Final = 12
"""A command that is run again after a change and fails alike is a new experiment; from this count on, one hint."""
READ_WINDOW: Final = 24
"""Calls without a write over which re-reading is judged."""
DISTINCT_SHARE: Final = 3
"""Re-reading is one distinct read in so many, or fewer: in the run that this comes from, 20 of 27 were re-reads."""
CYCLE_PERIODS: Final = (2, 3, 4, 5)
"""Lengths of the cycles that are looked for, in rounds. A cycle of one is a repeated call."""
STREAK_IDLE_ROUNDS: Final = 20
"""A streak that no round touched for this many rounds is dropped: the model went on to something else."""

FACTS_MAX_ENTRIES: Final = 100_000
"""Facts that a store keeps; one takes about 200 bytes."""
FACTS_TTL_S: Final = 24 * 3600
"""Seconds that a fact is kept. A conversation that pauses longer gets one more hint."""
FACTS_REFRESH_SHARE: Final = 24
"""A use of a fact is written down when this share of its time has passed, so that reading is no write as a rule."""
FACTS_PURGE_EVERY: Final = 256
"""Facts that a process writes into a file before it removes old ones from it."""
FACTS_PURGE_MAX: Final = 4 * FACTS_PURGE_EVERY
"""Facts that are removed at a time: more than were written since, few enough to take milliseconds."""
STORE_READ_WAIT_MS: Final = 10
"""How long reading waits for another process. It holds up the event loop, and is needed only while a file is recovered
after a crash: writers do not hold up readers."""
STORE_WRITE_WAIT_MS: Final = 1000
"""How long writing waits for another process. It is done in a thread; the request waits, nobody else."""

MAX_SAMPLES: Final = 16
"""Samples that a policy may allow for one request: each is paid for."""

Limit = Annotated[int, Field(ge=MIN_LIMIT, le=MAX_LIMIT, strict=True)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ladder(_Frozen):
    """From which count which action is taken: hint <= ask or block <= stop or reject. The end is required."""

    hint: Limit | None = Field(None, description="a note to the model, once at this count")
    ask: Limit | None = Field(None, description="a question to the user; belongs to proposed calls")
    block: Limit | None = Field(None, description="the proposed calls are withheld; belongs to proposed calls")
    stop: Limit | None = Field(None, description="the run ends in words")
    reject: Limit | None = Field(None, description="the request is answered by HTTP 400")

    @model_validator(mode="after")
    def _in_order(self) -> Ladder:
        if (self.stop is None) == (self.reject is None):
            raise ValueError("a ladder ends in `stop` or in `reject`: give exactly one of them")
        if self.ask is not None and self.block is not None:
            raise ValueError("give `ask` or `block`, not both")
        named = (("hint", self.hint), ("ask", self.ask), ("block", self.block), (self.end_action, self.end))
        rungs = [(name, at) for name, at in named if at is not None]
        for (lower, at), (upper, limit) in pairwise(rungs):
            if at > limit:
                raise ValueError(f"`{lower}` ({at}) is above `{upper}` ({limit})")
        return self

    @property
    def end(self) -> int:
        """The count that ends the run."""
        end = self.stop if self.stop is not None else self.reject
        if end is None:
            raise AssertionError("a validated ladder has an end")
        return end

    @property
    def end_action(self) -> EndAction:
        """What the end is."""
        return "stop" if self.stop is not None else "reject"

    def scaled(self, factor: int) -> Ladder:
        """The ladder with every limit multiplied."""
        limits = {name: at * factor for name, at in self.model_dump(exclude_none=True).items()}
        return Ladder.model_construct(**{**dict.fromkeys(Ladder.model_fields), **limits})


class DeniedLadder(Ladder):
    """The ladder of `denied-call`: its own rungs count denials of one tool or target, `any_tool` those of one category
    across all tools."""

    any_tool: Ladder | None = Field(None, description="denials of one category across all tools of the turn")
    block_resend: bool = Field(
        True, strict=True, description="hold back the very call that was refused for good, when it is proposed again"
    )


class WaitLadder(Ladder):
    """The ladder of `idle-wait`: its own rungs count waits whose answer stays the same, `changing` equal calls of any
    other kind whose answer is another one each time."""

    changing: Ladder | None = Field(None, description="the same call, with another answer each time")


class HintLadder(_Frozen):
    """A ladder of a detector that only tells."""

    hint: Limit = Field(description="a note to the model, once at this count")


SQLITE_STORE: Final = "sqlite:///"
"""How a file store is named; the path follows."""


def _store(value: str) -> str:
    path = value.removeprefix(SQLITE_STORE)
    if value != "memory" and (path in ("", value) or path.endswith("/") or "\0" in path):
        raise ValueError(
            f"is `memory` or `{SQLITE_STORE}path`, with a path from the folder of the config or, with one more slash, "
            f"from the root; not {value!r}"
        )
    return value


RecordPath = Annotated[str, Field(min_length=1)]
StoreName = Annotated[str, AfterValidator(_store)]


def _off(value: Any) -> Any:
    """YAML reads a bare `off` as False; a key without a value is a line that was not finished."""
    if value is None:
        raise ValueError("is empty: give a ladder, or `off`")
    return None if value is False or value == "off" else value


def _one(value: Any) -> Any:
    """One name may stand without a list."""
    return (value,) if isinstance(value, str) else value


OptionalLadder = Annotated[Ladder | None, BeforeValidator(_off)]
OptionalDeniedLadder = Annotated[DeniedLadder | None, BeforeValidator(_off)]
OptionalWaitLadder = Annotated[WaitLadder | None, BeforeValidator(_off)]
OptionalHintLadder = Annotated[HintLadder | None, BeforeValidator(_off)]

_LADDER_NOTE = "a ladder, or `off`"


AnyLadder: TypeAlias = Ladder | HintLadder


class Detectors(_Frozen):
    """A ladder per detector; `off` switches a detector off. A ladder that is given replaces the preset's as a whole."""

    denied_call: OptionalDeniedLadder = Field(None, alias="denied-call", description=_LADDER_NOTE)
    unknown_tool: OptionalLadder = Field(None, alias="unknown-tool", description=_LADDER_NOTE)
    invalid_arguments: OptionalLadder = Field(None, alias="invalid-arguments", description=_LADDER_NOTE)
    stuck_range: OptionalLadder = Field(None, alias="stuck-range", description=_LADDER_NOTE)
    failing_call: OptionalLadder = Field(None, alias="failing-call", description=_LADDER_NOTE)
    failing_tool: OptionalLadder = Field(None, alias="failing-tool", description=_LADDER_NOTE)
    repeated_call: OptionalLadder = Field(None, alias="repeated-call", description=_LADDER_NOTE)
    call_cycle: OptionalLadder = Field(None, alias="call-cycle", description=_LADDER_NOTE)
    same_answer: OptionalLadder = Field(None, alias="same-answer", description=_LADDER_NOTE)
    idle_wait: OptionalWaitLadder = Field(None, alias="idle-wait", description=_LADDER_NOTE)
    reread: OptionalHintLadder = Field(None, description="a ladder with a hint alone, or `off`")
    call_budget: OptionalLadder = Field(
        None, alias="call-budget", description="calls of one tool in one turn; off unless given"
    )

    def given(self, name: DetectorName) -> bool:
        """Whether the policy says anything about this detector, `off` included."""
        return name.replace("-", "_") in self.model_fields_set

    def ladder(self, name: DetectorName) -> AnyLadder | None:
        """The ladder as it stands here; None when it is off or not given."""
        found: AnyLadder | None = getattr(self, name.replace("-", "_"))
        return found


class Identity(_Frozen):
    """Which top-level arguments belong to the identity of a call: `only` these, or all but those to `ignore`."""

    only: tuple[str, ...] | None = Field(None, min_length=1)
    ignore: tuple[str, ...] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _one_of_both(self) -> Identity:
        if (self.only is None) == (self.ignore is None):
            raise ValueError("give `only` or `ignore`")
        return self

    def of(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that count."""
        if self.only is not None:
            return {name: arguments[name] for name in self.only if name in arguments}
        return {name: value for name, value in arguments.items() if name not in (self.ignore or ())}


class ToolRule(_Frozen):
    """What holds for the tools whose name matches one of the globs. The first rule that says a thing decides it."""

    match: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_one)] = Field(
        min_length=1, description="globs over tool names"
    )
    role: Literal["read", "write", "wait", "think", "shell"] | None = Field(None, description="what the tool does")
    identity: Identity | None = Field(None, description="which arguments tell two calls apart")
    allow: Annotated[tuple[DetectorName, ...], BeforeValidator(_one)] = Field(
        (), description="detectors that count and record, but never act"
    )
    detectors: Detectors = Field(default_factory=Detectors, description="ladders for these tools only")
    results: tuple[OperatorText, ...] = Field(
        (), min_length=1, description="texts and shapes of results, and how a call ended that returned them"
    )

    @model_validator(mode="after")
    def _says_something(self) -> ToolRule:
        if self.model_fields_set <= {"match"}:
            raise ValueError(
                "says nothing about these tools: give `role`, `identity`, `allow`, `detectors` or `results`"
            )
        return self


class StreamPolicy(_Frozen):
    """How the stream of an armed request is held until its calls are judged."""

    hold: Literal["start"] = Field("start", description="an armed stream is held from its start; others never are")
    keep_alive_s: Annotated[float, Field(ge=1, le=600)] = Field(
        15, description="seconds between signs of life while a stream is held, where the dialect has one"
    )


def _on_off(value: Any) -> Any:
    """YAML reads a bare `on` as True; in quotes it is a word."""
    return {"on": True, "off": False}.get(value, value) if isinstance(value, str) else value


def _ledger(value: str) -> str:
    if _store(value) == "memory":
        raise ValueError(f"is `{SQLITE_STORE}path`: what is withheld outlives the process")
    return value


class Retention(_Frozen):
    """How long originals are kept. That a result is withheld is kept for ever."""

    days: Annotated[float, Field(gt=0)] = Field(30, description="days that an original is kept")
    max_mb: Annotated[float, Field(ge=1)] = Field(512, description="megabytes of the ledger's file, at most")


class RefusalPolicy(_Frozen):
    """What happens when the provider refuses a request because of a tool's output."""

    recover: Annotated[bool, BeforeValidator(_on_off), Field(strict=True)] = Field(
        False, description="`on`: withhold the newest results, keep them in the ledger, and ask once more"
    )
    hold: Literal["all", "until_tool_call", "none"] = Field(
        "all",
        description="streams that answer a tool's result: held whole; up to the end from the first call on; or as they "
        "come, but for the end of each call. Only `all` can recover from a refusal within a stream",
    )
    possible: Literal["surface", "recover"] = Field(
        "surface", description="an answer that stops with neither a word nor a call behind a tool's result"
    )
    ledger: Annotated[str, AfterValidator(_ledger)] = Field(
        f"{SQLITE_STORE}toolguard-withheld.db", description="where originals are kept: `sqlite:///path`"
    )
    store_unreadable: Literal["reject", "allow"] = Field(
        "reject", description="requests with tool results while the ledger cannot be read: 503, or let through"
    )
    retention: Retention = Field(default_factory=Retention, description="how long originals are kept")

    def recovers_from(self, certain: bool) -> bool:
        """Whether a refusal is recovered from; one that is not certain only may be one."""
        return certain or self.possible == "recover"


Preset: TypeAlias = Literal["balanced", "strict", "lenient"]


class Policy(_Frozen):
    """The content of the `toolguard:` key, or of a policy file."""

    enforcement: Literal["enforce", "observe"] = Field("enforce", description="observe decides and records only")
    preset: Preset = Field("balanced", description="the ladders of the detectors that are not given")
    detectors: Detectors = Field(default_factory=Detectors)
    tools: tuple[ToolRule, ...] = Field(())
    on_error: Literal["allow", "reject"] = Field("allow", description="after an error inside the guard")
    not_inspected: Literal["pass", "reject"] = Field("pass", description="requests with parts that cannot be read")
    block_samples: Annotated[int, Field(ge=0, le=MAX_SAMPLES - 1, strict=True)] = Field(
        1, description="further samples of the model after a block, within one request; then the run ends"
    )
    max_samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES, strict=True)] = Field(
        4, description="samples of the model that one request may cause, the first included"
    )
    stream: StreamPolicy = Field(default_factory=StreamPolicy, description="how answers are held")
    store: StoreName = Field("memory", description="where facts are kept: `memory`, or `sqlite:///path`")
    refusals: RefusalPolicy = Field(default_factory=RefusalPolicy, description="refusals after tool output")

    record: RecordPath | None = Field(
        None, description="a file to which live traffic is recorded, relative to the config; content is hashed"
    )
    record_content: Annotated[bool, Field(strict=True)] = Field(
        False, description="record prompts, arguments and outputs as they are"
    )

    @model_validator(mode="after")
    def _content_of_something(self) -> Policy:
        if self.record_content and self.record is None:
            raise ValueError("`record_content` says what is recorded, and nothing is: give `record` a path")
        if self.record_content and self.refusals.recover:
            raise ValueError("`record_content` would record what `refusals.recover` withholds: switch one of them off")
        return self

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Looked up for every call of a history; hashing all fields each time would cost more than the verdict. What is
        switched off differs from what is not given."""
        return hash(self.model_dump_json(exclude_unset=True))

    def ladder(self, detector: DetectorName, kind: str, tool: str) -> AnyLadder | None:
        """The ladder that holds for a streak; None when its detector is off for this tool.

        Args:
            detector: the detector's name.
            kind: the kind of its key, as the detector names it.
            tool: the tool's name.
        """
        base = _base_ladder(self, detector, tool)
        if base is None:
            return None
        return _LADDER_OF_KIND.get(kind, _own)(self, base)

    def role(self, tool: str) -> Role:
        """The tool's role: the first rule that names one, else the built-in table."""
        return _role(self, tool)

    def identity(self, tool: str) -> Identity | None:
        """Which arguments tell two calls of the tool apart; None for all of them."""
        return next((rule.identity for rule in _rules(self, tool) if rule.identity is not None), None)

    def results(self, tool: str) -> tuple[OperatorText, ...]:
        """What the operator knows about the tool's results: the entries of every rule for it, in their order."""
        return _results(self, tool)

    def allows(self, detector: DetectorName, tool: str) -> bool:
        """Whether findings of the detector on this tool are recorded without acting."""
        return any(detector in rule.allow for rule in _rules(self, tool))


_PRESETS: Final[Mapping[Preset, Detectors]] = {
    # Measured on 557 recorded agent sessions with 17,700 calls: on those without a loop no end and four notes, three of
    # them about a dozen polls without news. A repeat hint at 2, or a failing-tool hint below 6, begins to hint at work.
    "balanced": Detectors.model_validate(
        {
            "denied-call": {"hint": 2, "stop": 6, "any_tool": {"hint": 6, "stop": 12}},
            "failing-call": {"hint": 4, "stop": 6},
            "failing-tool": {"hint": 6, "stop": 12},
            "repeated-call": {"hint": 3, "block": 5, "stop": 8},
            "unknown-tool": {"hint": 2, "stop": 6},
            "invalid-arguments": {"hint": 2, "block": 4, "stop": 6},
            "stuck-range": {"hint": 3, "block": 4, "stop": 6},
            "call-cycle": {"hint": 3, "stop": 5},
            "same-answer": {"hint": 8, "stop": 16},
            "idle-wait": {"hint": 12, "stop": 100, "changing": {"hint": 40, "stop": 400}},
            "reread": {"hint": 24},
        }
    ),
    "strict": Detectors.model_validate(
        {
            "denied-call": {"hint": 2, "stop": 4, "any_tool": {"hint": 4, "stop": 8}},
            "failing-call": {"hint": 3, "stop": 5},
            "failing-tool": {"hint": 5, "stop": 9},
            "repeated-call": {"hint": 3, "block": 4, "stop": 5},
            "unknown-tool": {"hint": 2, "stop": 4},
            "invalid-arguments": {"hint": 2, "block": 3, "stop": 5},
            "stuck-range": {"hint": 2, "block": 3, "stop": 5},
            "call-cycle": {"hint": 3, "stop": 4},
            "same-answer": {"hint": 6, "stop": 12},
            "idle-wait": {"hint": 12, "stop": 60, "changing": {"hint": 30, "stop": 200}},
            "reread": {"hint": 24},
        }
    ),
    "lenient": Detectors.model_validate(
        {
            "denied-call": {"hint": 3, "stop": 10, "any_tool": {"hint": 10, "stop": 20}},
            "failing-call": {"hint": 6, "stop": 10},
            "failing-tool": {"hint": 10, "stop": 20},
            "repeated-call": {"hint": 5, "block": 8, "stop": 12},
            "unknown-tool": {"hint": 3, "stop": 10},
            "invalid-arguments": {"hint": 3, "block": 6, "stop": 10},
            "stuck-range": {"hint": 4, "block": 6, "stop": 10},
            "call-cycle": {"hint": 4, "stop": 8},
            "same-answer": {"hint": 12, "stop": 24},
            "idle-wait": {"hint": 20, "stop": 200, "changing": {"hint": 80, "stop": 800}},
            "reread": {"hint": 48},
        }
    ),
}


@lru_cache(maxsize=4096)
def _rules(policy: Policy, tool: str) -> tuple[ToolRule, ...]:
    return tuple(rule for rule in policy.tools if any(fnmatchcase(tool, glob) for glob in rule.match))


@lru_cache(maxsize=4096)
def _role(policy: Policy, tool: str) -> Role:
    named = (rule.role for rule in _rules(policy, tool) if rule.role is not None)
    return next(named, builtin_role(tool))


@lru_cache(maxsize=4096)
def _results(policy: Policy, tool: str) -> tuple[OperatorText, ...]:
    return tuple(entry for rule in _rules(policy, tool) for entry in rule.results)


@lru_cache(maxsize=4096)
def _base_ladder(policy: Policy, detector: DetectorName, tool: str) -> AnyLadder | None:
    for rule in _rules(policy, tool):
        if rule.detectors.given(detector):
            return rule.detectors.ladder(detector)
    if policy.detectors.given(detector):
        return policy.detectors.ladder(detector)
    return _PRESETS[policy.preset].ladder(detector)


def _own(_policy: Policy, base: AnyLadder) -> AnyLadder | None:
    return base


def _transient(_policy: Policy, base: AnyLadder) -> AnyLadder | None:
    return base.scaled(TRANSIENT_FACTOR) if isinstance(base, Ladder) else base


def _across_tools(policy: Policy, base: AnyLadder) -> AnyLadder | None:
    given = base.any_tool if isinstance(base, DeniedLadder) else None
    preset = _PRESETS[policy.preset].denied_call
    return given or (preset.any_tool if preset is not None else None)


def _changing(policy: Policy, base: AnyLadder) -> AnyLadder | None:
    given = base.changing if isinstance(base, WaitLadder) else None
    preset = _PRESETS[policy.preset].idle_wait
    return given or (preset.changing if preset is not None else None)


def _rerun(_policy: Policy, _base: AnyLadder) -> AnyLadder | None:
    return HintLadder(hint=RERUN_HINT)


_LADDER_OF_KIND: Final[Mapping[str, Callable[[Policy, AnyLadder], AnyLadder | None]]] = {
    "transient": _transient,
    "category": _across_tools,
    "changing": _changing,
    "rerun": _rerun,
}
