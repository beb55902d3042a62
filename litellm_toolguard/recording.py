"""Rows of a recording: what a proxy decided and on what, as plain values, and back. Pure.

A recording is a file of JSON lines, each an object with its kind under `toolguard`:

| kind | what it holds |
|---|---|
| `recording` | format, version, the policy that judged, whether content is kept; `run` names the writer of the rows |
| `request` | the body, or the evidence without content; the stored facts that were looked up; the decision |
| `answer` | an answer of the provider (`of`: its request): as it came, or its calls and what the verdict needs |
| `verdict` | what became of the answers to an armed request |

Without content a row holds names of tools, ids of calls, fixed words and digests. The evidence of a request mostly
begins as that of an earlier one does; then it `continues` that row behind its first `from` steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar, get_args

from litellm_toolguard.canonical import digest
from litellm_toolguard.client_texts import DenialCategory, OutcomeKind
from litellm_toolguard.dialects import HISTORY_KEYS, answered, read_answer
from litellm_toolguard.engine import Evidence, Finding
from litellm_toolguard.errors import PayloadError, RecordingError
from litellm_toolguard.evidence import Cleared, JudgedExchange, JudgedRound, Lap, Step
from litellm_toolguard.facts import Block
from litellm_toolguard.gate import Ruling
from litellm_toolguard.outcomes import Outcome, Provenance
from litellm_toolguard.policy import Policy
from litellm_toolguard.policy_reading import load_policy
from litellm_toolguard.roles import Role
from litellm_toolguard.session import Choice, End, Release, Seen
from litellm_toolguard.traces import KeptTraces
from litellm_toolguard.transcript import Dialect, Exchange, Location, Round, RunEnd, ToolCall, ToolResult

KIND: Final = "toolguard"
KINDS: Final = frozenset({"recording", "request", "answer", "verdict"})
FORMAT: Final = 1

_BODY_KEYS: Final = frozenset(
    {
        *HISTORY_KEYS.values(),
        *("tools", "tool_choice", "response_format", "function_call", "output_config", "output_format", "text"),
        *("previous_response_id", "conversation", "thread"),
    }
)
"""What is read of a request. Everything else, headers and keys above all, stays out of a recording."""

# An error is asked for of what is no success, an answer of what is not marked, see `traces.py`.
_WITHOUT_ERROR: Final = frozenset({"succeeded", "pending", "cancelled"})

Plain = dict[str, Any]
_T = TypeVar("_T")


# --------------------------------------------------------------------------------------------------------------- policy


def plain_policy(policy: Policy) -> Plain:
    """A policy as it would be written. Where it is kept and recorded is left out."""
    given = policy.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude={"record", "record_content", "store"}
    )
    for holder in (given, *given.get("tools", ())):
        if "detectors" in holder:
            holder["detectors"] = {
                name: "off" if ladder is None else ladder for name, ladder in holder["detectors"].items()
            }
    return given


def read_policy(value: Any) -> Policy:
    """The policy again.

    Raises:
        RecordingError: it is none.
    """
    return _read(lambda: load_policy(value))


# ------------------------------------------------------------------------------------------------------------- requests


def body_of(request: Mapping[str, Any]) -> Plain:
    """The part of a request that is read."""
    return {name: value for name, value in request.items() if name in _BODY_KEYS}


def plain_evidence(evidence: Evidence, start: int) -> Plain:
    """The evidence behind its first `start` steps."""
    return {
        "steps": [plain_step(step) for step in evidence.steps[start:]],
        "tools": list(evidence.tools),
        "words_allowed": evidence.words_allowed,
        "problems": list(evidence.problems),
    }


def read_evidence(dialect: Dialect, before: tuple[Step, ...], value: Mapping[str, Any]) -> Evidence:
    """The evidence again, behind the steps before it.

    Raises:
        RecordingError: it is none.
    """
    return _read(
        lambda: Evidence(
            dialect,
            (*before, *(read_step(step) for step in value["steps"])),
            dict.fromkeys(map(str, value["tools"])),
            bool(value["words_allowed"]),
            tuple(map(str, value["problems"])),
        )
    )


def with_steps(evidence: Evidence, steps: tuple[Step, ...]) -> Evidence:
    """The evidence with other steps."""
    return replace(evidence, steps=steps)


def chain(steps: Sequence[Step]) -> list[bytes]:
    """One value behind each step: equal where two histories are equal up to there."""
    found: list[bytes] = []
    last = digest("chain")
    for step in steps:
        last = digest("chain", last, *_print(step))
        found.append(last)
    return found


def _print(step: Step) -> tuple[str | bytes, ...]:
    if isinstance(step, JudgedRound):
        return "round", step.turn, step.print
    return ("end",) if isinstance(step, RunEnd) else ("input", str(step.by_user), step.turn)


def plain_counts(facts: Mapping[bytes, int]) -> Plain:
    """Facts by their instance in hex digits."""
    return {instance.hex(): count for instance, count in facts.items()}


def read_counts(value: Any) -> dict[bytes, int]:
    """The facts again.

    Raises:
        RecordingError: they are none.
    """
    return _read(lambda: {bytes.fromhex(name): int(count) for name, count in value.items()})


def plain_blocks(blocks: Mapping[bytes, Iterable[Block]]) -> Plain:
    """What was held back, by position and instance in hex digits."""
    return {at.hex(): {block.instance.hex(): block.samples for block in found} for at, found in blocks.items()}


def read_blocks(value: Any) -> dict[bytes, tuple[Block, ...]]:
    """What was held back again.

    Raises:
        RecordingError: it is none.
    """
    return _read(
        lambda: {
            bytes.fromhex(at): tuple(Block(bytes.fromhex(name), samples) for name, samples in found.items())
            for at, found in value.items()
        }
    )


def plain_decision(ruling: Ruling) -> Plain:
    """What was decided on a request, in full and without content."""
    decision = ruling.basis[0] if ruling.basis is not None else None
    plain: Plain = {"action": ruling.action, "report": dict(ruling.report or {}), "armed": ruling.watch is not None}
    if decision is None:
        return plain
    findings = [] if decision.finding is None else [decision.finding]
    return {
        **plain,
        "findings": [_plain_finding(finding) for finding in (*findings, *decision.also)],
        "remember": plain_counts(decision.remember),
    }


def _plain_finding(finding: Finding) -> Plain:
    return {
        "detector": finding.detector,
        "kind": finding.kind,
        "action": finding.action,
        "tool": finding.tool,
        "count": finding.count,
        "allowed": finding.allowed,
        "instance": finding.instance.hex(),
        "call_id": finding.call_id,
    }


# -------------------------------------------------------------------------------------------------------------- answers


def plain_verdict(effect: Release | End) -> Plain:
    """What became of the answers to an armed request."""
    objection = effect.objection
    plain: Plain = {
        "effect": "end" if isinstance(effect, End) else "release",
        "samples": effect.samples,
        "inspected": effect.inspected if isinstance(effect, Release) else True,
    }
    if objection is None:
        return plain
    return {
        **plain,
        "action": objection.action,
        "detector": objection.detector,
        "kind": objection.kind,
        "tool": objection.tool,
        "count": objection.count,
        "instance": objection.instance.hex(),
        "call_id": objection.call_id,
    }


def calls_of(dialect: Dialect, answer: Mapping[str, Any]) -> list[Plain]:
    """The calls of an answer by tool and id."""
    calls: list[Plain] = []
    for items in answered(dialect, answer):
        try:
            rounds = read_answer(dialect, items).rounds
        except PayloadError:
            continue
        calls += [{"tool": pair.call.name, "id": pair.call.id} for each in rounds for pair in each.exchanges]
    return calls


def plain_seen(seen: Seen) -> Plain:
    """What the verdict on an answer needs of it."""
    choices = [{"kind": each.kind, "rounds": [plain_step(round_) for round_ in each.rounds]} for each in seen.choices]
    return {"choices": choices, "can_be_held": seen.can_be_held}


def read_seen(value: Any) -> Seen:
    """The same again.

    Raises:
        RecordingError: it is none.
    """
    return _read(lambda: Seen(tuple(_read_choice(each) for each in value["choices"]), bool(value["can_be_held"])))


def _read_choice(value: Mapping[str, Any]) -> Choice:
    rounds = tuple(step for each in value["rounds"] if isinstance(step := read_step(each), JudgedRound))
    return Choice(_one_of(value["kind"], ("calls", "clean", "empty", "unread")), rounds)


# ---------------------------------------------------------------------------------------------------------------- steps


def plain_step(step: Step) -> Plain:
    """One step of the evidence. What is empty or false is left out."""
    if isinstance(step, RunEnd):
        return {"end": True}
    if isinstance(step, Cleared):
        return {"input": "user" if step.by_user else "event", "turn": step.turn.hex()}
    item = step.exchanges[0].exchange.call.location.item
    return _short(
        {
            "round": step.index,
            "turn": step.turn.hex(),
            "item": item,
            "complete": step.complete,
            "lap": None if step.lap is None else _plain_lap(step.lap),
            "rereading": step.rereading,
            "provider": step.by_provider,
            "calls": [_plain_exchange(each) for each in step.exchanges],
        }
    )


def read_step(value: Mapping[str, Any]) -> Step:
    """The step again.

    Raises:
        RecordingError: it is none.
    """
    return _read(lambda: _read_step(value))


def _read_step(value: Mapping[str, Any]) -> Step:
    if "end" in value:
        return RunEnd(Location(0))
    if "input" in value:
        return Cleared(value["input"] == "user", _hex(value, "turn"))
    item = int(value.get("item", 0))
    exchanges = tuple(_read_exchange(each, item, bool(value.get("provider"))) for each in value["calls"])
    if not exchanges:
        raise ValueError("a round holds a call")
    lap = value.get("lap")
    return JudgedRound(
        index=int(value.get("round", 0)),
        turn=_hex(value, "turn"),
        round=Round(tuple(each.exchange for each in exchanges), item),
        exchanges=exchanges,
        complete=bool(value.get("complete")),
        lap=None
        if lap is None
        else Lap(int(lap["period"]), int(lap["laps"]), tuple(map(bytes.fromhex, lap["members"]))),
        rereading=int(value.get("rereading", 0)),
    )


def _plain_lap(lap: Lap) -> Plain:
    return {"period": lap.period, "laps": lap.laps, "members": [member.hex() for member in lap.members]}


def _plain_exchange(judged: JudgedExchange) -> Plain:
    outcome, traces = judged.outcome, judged.traces
    fails = outcome.kind not in _WITHOUT_ERROR
    return _short(
        {
            "tool": judged.tool,
            "id": judged.exchange.call.id,
            "pending": judged.exchange.result is None,
            "key": judged.key.hex(),
            "result": judged.result.hex(),
            "outcome": outcome.kind,
            "provenance": outcome.provenance,
            "category": outcome.category,
            "user_words": outcome.user_words,
            "role": judged.role,
            "novel": judged.novel,
            "may_change": judged.may_change,
            "rerun": judged.rerun,
            "again": judged.again,
            "loose": None if judged.loose is None else judged.loose.hex(),
            "unseen": judged.unseen,
            "beyond": None if judged.beyond is None else [part.hex() for part in judged.beyond],
            "touched": sorted(path.hex() for path in judged.touched),
            "error": traces.error.hex() if fails else "",
            "has_words": fails and traces.has_words,
            "answer": traces.answer.hex() if outcome.kind == "unclear" else "",
            "target": traces.target.hex(),
        }
    )


def _read_exchange(value: Mapping[str, Any], item: int, by_provider: bool) -> JudgedExchange:
    at = Location(item)
    call = ToolCall(_text(value, "id"), _text(value, "tool"), None, at, "provider" if by_provider else "client")
    result = None if value.get("pending") else ToolResult("", None, "", at, carries_text=False)
    category = value.get("category")
    outcome = Outcome(
        _one_of(value["outcome"], get_args(OutcomeKind)),
        _one_of(value["provenance"], get_args(Provenance)),
        None if category is None else _one_of(category, get_args(DenialCategory)),
        bool(value.get("user_words")),
    )
    beyond = value.get("beyond")
    return JudgedExchange(
        exchange=Exchange(call, result),
        key=_hex(value, "key"),
        result=_hex(value, "result"),
        outcome=outcome,
        role=_one_of(value["role"], get_args(Role)),
        novel=bool(value.get("novel")),
        may_change=bool(value.get("may_change")),
        rerun=bool(value.get("rerun")),
        again=bool(value.get("again")),
        traces=KeptTraces(
            _hex(value, "error"), bool(value.get("has_words")), _hex(value, "answer"), _hex(value, "target")
        ),
        loose=_hex(value, "loose") if "loose" in value else None,
        unseen=bool(value.get("unseen")),
        beyond=None if beyond is None else (bytes.fromhex(beyond[0]), bytes.fromhex(beyond[1])),
        touched=frozenset(map(bytes.fromhex, value.get("touched", ()))),
    )


def _short(plain: Plain) -> Plain:
    return {name: value for name, value in plain.items() if value}


def _hex(value: Mapping[str, Any], name: str) -> bytes:
    return bytes.fromhex(value.get(name, ""))


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value.get(name, "")
    if not isinstance(found, str):
        raise TypeError(f"{name} is text")
    return found


def _one_of(value: Any, known: Sequence[Any]) -> Any:
    if value not in known:
        raise ValueError("an unknown word")
    return value


def _read(make: Callable[[], _T]) -> _T:
    try:
        return make()
    except RecordingError:
        raise
    # ConfigError is a RuntimeError.
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise RecordingError(f"{type(error).__name__} in a row of a recording") from error
