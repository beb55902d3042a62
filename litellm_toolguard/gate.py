"""One request in, one ruling out: what an edge has to do, as a value.

Pure. Parses, decides, and says what is to be edited, stored, recorded and sent back; the edges only carry it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from litellm_toolguard import notes
from litellm_toolguard.dialects import parse, with_notes
from litellm_toolguard.engine import SEVERITY, Action, Decision, FactLookup, Finding, decide
from litellm_toolguard.errors import PayloadError
from litellm_toolguard.policy import Policy
from litellm_toolguard.transcript import Dialect
from litellm_toolguard.walk import Facts

Inspection: TypeAlias = Literal["whole", "part", "none"]

CODE_REJECTED: Final = "toolguard_rejected"
CODE_NOT_INSPECTED: Final = "toolguard_not_inspected"
CODE_GUARD_ERROR: Final = "toolguard_error"

HEADER: Final = "x-toolguard"
BAD_REQUEST: Final = 400
UNAVAILABLE: Final = 503

_HISTORY_KEYS: Final[Mapping[Dialect, str]] = {"chat": "messages", "messages": "messages", "responses": "input"}


@dataclass(frozen=True, slots=True)
class Ruling:
    """What an edge has to do with a request.

    Args:
        action: what is enforced: `pass`, `hint`, `stop` or `reject`.
        edits: top-level keys of the request and their new values; empty when nothing changes.
        words: the last words of a run that is stopped, or the message of a rejection.
        code: machine-readable code of a rejection.
        status: HTTP status of a rejection.
        inspected: whether the history could be read as a whole, in part, or not at all.
        report: the decision in plain values (action, detector, tool, count, decision_id, ...), never content; None for
        a
            request on which there is nothing to say.
        remember: facts to store before the request goes on.
    """

    action: Action
    inspected: Inspection = "whole"
    edits: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""
    code: str = ""
    status: int = BAD_REQUEST
    report: Mapping[str, Any] | None = None
    remember: Facts = field(default_factory=dict)

    @property
    def end(self) -> Mapping[str, Any]:
        """The machine-readable end of the run: action, detector, tool, count, decision_id."""
        report = self.report or {}
        return {name: report[name] for name in ("action", "detector", "tool", "count", "decision_id") if name in report}

    @property
    def header(self) -> str:
        """The value of the `x-toolguard` header; empty when there is nothing to say."""
        report = self.report or {}
        shown = ("action", "enforced", "detector", "tool", "count", "decision_id", "not_inspected", "error", "store")
        pairs = [f"{name}={_header_value(report[name])}" for name in shown if name in report]
        return "; ".join(pairs)


def rule(dialect: Dialect, request: Mapping[str, Any], policy: Policy, lookup: FactLookup) -> Ruling:
    """The ruling on one request.

    Args:
        dialect: the request's wire format.
        request: its body, left as it is.
        policy: the policy.
        lookup: the stored facts, see `engine.decide`.
    """
    try:
        transcript = parse(dialect, request)
    except PayloadError as error:
        return unreadable(str(error), policy)
    decision = decide(transcript, policy, lookup)
    if decision.not_inspected and policy.not_inspected == "reject":
        return unreadable(decision.not_inspected[0], policy)
    report = _report(decision, policy)
    inspected: Inspection = "part" if decision.not_inspected else "whole"
    if policy.enforcement == "observe":
        return Ruling("pass", inspected, report=report, remember=decision.remember)
    edits = {}
    if decision.notes:
        key = _HISTORY_KEYS[dialect]
        edits = {key: with_notes(dialect, request, decision.notes)[key]}
    return Ruling(
        action=decision.action,
        inspected=inspected,
        edits=edits,
        words=decision.words,
        code=CODE_REJECTED if decision.action == "reject" else "",
        report=report,
        remember=decision.remember,
    )


def unreadable(reason: str, policy: Policy) -> Ruling:
    """The ruling on a request whose history cannot be read. `reason` holds no content."""
    rejects = policy.not_inspected == "reject" and policy.enforcement == "enforce"
    action: Action = "reject" if rejects else "pass"
    return Ruling(
        action=action,
        inspected="none",
        words=notes.not_inspected(reason),
        code=CODE_NOT_INSPECTED,
        report={"action": action, "not_inspected": 1, "reason": reason},
    )


def failed(error: BaseException, policy: Policy) -> Ruling:
    """The ruling after an error inside the guard. Only the error's type is reported: its text may hold content."""
    rejects = policy.on_error == "reject" and policy.enforcement == "enforce"
    action: Action = "reject" if rejects else "pass"
    return Ruling(
        action=action,
        inspected="none",
        words=notes.guard_error(),
        code=CODE_GUARD_ERROR,
        status=UNAVAILABLE,
        report={"action": action, "error": type(error).__name__},
    )


def without_store(ruling: Ruling) -> Ruling:
    """The same ruling, made while the store could not be read or written; its report says so."""
    return replace(ruling, report={**(ruling.report or {"action": ruling.action}), "store": "unavailable"})


def ended_by_rejection(ruling: Ruling) -> Ruling:
    """A stop where no words can be said: the same decision as a rejection."""
    report = {**(ruling.report or {}), "action": "reject"}
    return Ruling("reject", ruling.inspected, words=ruling.words, code=CODE_REJECTED, report=report)


def _report(decision: Decision, policy: Policy) -> Mapping[str, Any] | None:
    if decision.finding is None and not decision.also and not decision.not_inspected:
        return None
    report: dict[str, Any] = {"action": decision.action}
    if decision.finding is not None:
        report |= {"enforced": policy.enforcement == "enforce", **_plain(decision.finding)}
        report["decision_id"] = decision.decision_id
    if decision.also:
        report["also"] = [{"action": finding.action, **_plain(finding)} for finding in decision.also]
    if decision.not_inspected:
        report["not_inspected"] = len(decision.not_inspected)
        report["reason"] = decision.not_inspected[0]
    return report


def _plain(finding: Finding) -> dict[str, Any]:
    plain = {"detector": finding.detector, "tool": notes.safe_name(finding.tool), "count": finding.count}
    if finding.kind:
        plain["kind"] = finding.kind
    if finding.allowed:
        plain["allowed"] = True
    return plain


def _header_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def ends_run(action: Action) -> bool:
    """Whether the action ends the run."""
    return SEVERITY[action] >= SEVERITY["stop"]
