"""One request in, one ruling out: what an edge has to do, as a value.

Pure. Parses, decides, and says what is to be edited, stored, recorded and sent back; the edges only carry it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from litellm_toolguard import notes
from litellm_toolguard.dialects import HISTORY_KEYS, parse, with_notes
from litellm_toolguard.engine import (
    SEVERITY,
    Action,
    Decision,
    FactLookup,
    Finding,
    Standing,
    decide,
    decision_id,
)
from litellm_toolguard.errors import PayloadError
from litellm_toolguard.facts import Block
from litellm_toolguard.policy import Policy
from litellm_toolguard.proposals import Objection, Stored, is_armed
from litellm_toolguard.refusals import Refusal
from litellm_toolguard.session import End, Release, Watch
from litellm_toolguard.transcript import Dialect
from litellm_toolguard.walk import Facts
from litellm_toolguard.withholding import Cleared, Known, Submission, submission, without_withheld

Inspection: TypeAlias = Literal["whole", "part", "none"]

CODE_REJECTED: Final = "toolguard_rejected"
CODE_NOT_INSPECTED: Final = "toolguard_not_inspected"
CODE_GUARD_ERROR: Final = "toolguard_error"
CODE_LEDGER_UNREADABLE: Final = "toolguard_ledger_unreadable"

HEADER: Final = "x-toolguard"
_SHOWN: Final = (
    *("action", "enforced", "detector", "tool", "count", "decision_id"),
    *("refusal", "withheld", "not_inspected", "error", "store", "ledger"),
)
BAD_REQUEST: Final = 400
UNAVAILABLE: Final = 503


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
        watch: what the answer is to be judged by; None for a request that is not armed.
        basis: the decision behind it and where the conversation stands; None for a history that was not read.
        submission: the results that a refusal would withhold; None where it would withhold none.
        row: the request's row in a recording; empty where there is none.
    """

    action: Action
    inspected: Inspection = "whole"
    edits: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""
    code: str = ""
    status: int = BAD_REQUEST
    report: Mapping[str, Any] | None = None
    remember: Facts = field(default_factory=dict)
    watch: Watch | None = field(default=None, repr=False, compare=False)
    basis: tuple[Decision, Standing] | None = field(default=None, repr=False, compare=False)
    submission: Submission | None = field(default=None, repr=False, compare=False)
    row: str = ""

    @property
    def end(self) -> Mapping[str, Any]:
        """The machine-readable end of the run: action, detector, tool, count, decision_id."""
        report = self.report or {}
        return {name: report[name] for name in ("action", "detector", "tool", "count", "decision_id") if name in report}

    @property
    def header(self) -> str:
        """The value of the `x-toolguard` header; empty when there is nothing to say."""
        report = self.report or {}
        pairs = [f"{name}={_header_value(report[name])}" for name in _SHOWN if name in report]
        return "; ".join(pairs)


BlockLookup: TypeAlias = Callable[[Iterable[bytes]], Mapping[bytes, Iterable[Block]]]


def _no_blocks(_positions: Iterable[bytes]) -> Mapping[bytes, Iterable[Block]]:
    return {}


def _nothing_known(_keys: Callable[[], Iterable[bytes]]) -> frozenset[bytes]:
    return frozenset()


def rule(
    dialect: Dialect,
    request: Mapping[str, Any],
    policy: Policy,
    lookup: FactLookup,
    blocks: BlockLookup = _no_blocks,
    secret: bytes = b"",
    known: Known = _nothing_known,
) -> Ruling:
    """The ruling on one request.

    Args:
        dialect: the request's wire format.
        request: its body, left as it is.
        policy: the policy.
        lookup: the stored facts, see `engine.decide`.
        blocks: what was held back at the given positions; called at most once, and only for an armed request.
        secret: key of the digests that the decision is made on; empty for plain ones.
        known: which results are withheld.
    """
    try:
        transcript = parse(dialect, request)
    except PayloadError as error:
        return unreadable(str(error), policy)
    found = without_withheld(dialect, request, transcript, known)
    decision, standing = decide(found.transcript, policy, lookup, secret)
    ruling = _recovering(ruled(decision, standing, policy, blocks), found, standing, policy)
    silent = not decision.notes or policy.enforcement == "observe" or ruling.inspected == "none"
    edited = found.request if silent else with_notes(dialect, found.request, decision.notes)
    if edited is request:
        return ruling
    return _told_of_withheld(_edited(ruling, dialect, edited), found.replaced)


def cleared(ruling: Ruling, dialect: Dialect, request: Mapping[str, Any], known: Known) -> Ruling:
    """A ruling that was made without the history, on a request without what is withheld."""
    try:
        transcript = parse(dialect, request)
    except PayloadError:
        return ruling
    found = without_withheld(dialect, request, transcript, known)
    return _told_of_withheld(_edited(ruling, dialect, found.request), found.replaced) if found.replaced else ruling


def _edited(ruling: Ruling, dialect: Dialect, request: Mapping[str, Any]) -> Ruling:
    key = HISTORY_KEYS[dialect]
    return replace(ruling, edits={key: request[key]})


def _recovering(ruling: Ruling, found: Cleared, standing: Standing, policy: Policy) -> Ruling:
    """The ruling on a request whose refusal is to be recovered from, if it is one."""
    recovers = policy.refusals.recover and policy.enforcement == "enforce" and not ends_run(ruling.action)
    submitted = submission(standing.dialect, found.request, found.transcript) if recovers else None
    if submitted is None:
        return ruling
    watch = ruling.watch or Watch(standing, Stored(standing.told), armed=False)
    return replace(ruling, watch=replace(watch, recovers=True), submission=submitted)


def _told_of_withheld(ruling: Ruling, replaced: int) -> Ruling:
    if not replaced:
        return ruling
    return replace(ruling, report={**(ruling.report or {"action": ruling.action}), "withheld": replaced})


def ruled(decision: Decision, standing: Standing, policy: Policy, blocks: BlockLookup) -> Ruling:
    """The ruling that follows from a decision, without the edits of the request."""
    basis = (decision, standing)
    if decision.not_inspected and policy.not_inspected == "reject":
        return replace(unreadable(decision.not_inspected[0], policy), basis=basis)
    report = _report(decision, policy)
    inspected: Inspection = "part" if decision.not_inspected else "whole"
    watch = None if ends_run(decision.action) and policy.enforcement == "enforce" else _watch(standing, blocks)
    if policy.enforcement == "observe":
        return Ruling("pass", inspected, report=report, remember=decision.remember, watch=watch, basis=basis)
    return Ruling(
        action=decision.action,
        inspected=inspected,
        words=decision.words,
        code=CODE_REJECTED if decision.action == "reject" else "",
        report=report,
        remember=decision.remember,
        watch=watch,
        basis=basis,
    )


def _watch(standing: Standing, blocks: BlockLookup) -> Watch | None:
    """What the answer is judged by, where the next round could trip anything."""
    stored = Stored(standing.told)
    if not is_armed(standing.walk, stored):
        return None
    blocked: Counter[bytes] = Counter()
    # What was held back at this very place belongs to this request, and a retry of it repeats no count.
    for found in blocks(standing.walk.positions()[:-1]).values():
        for block in found:
            blocked[block.instance] += block.samples
    return Watch(standing, Stored(standing.told, blocked))


def answered(ruling: Ruling, effect: Release | End) -> Ruling:
    """The ruling after the answer to an armed request was judged."""
    objection = effect.objection
    if objection is None:
        unread = isinstance(effect, Release) and not effect.inspected
        return replace(ruling, inspected="part") if unread else ruling
    enforced = ruling.watch is not None and ruling.watch.policy.enforcement == "enforce"
    report = {
        "action": objection.action,
        "enforced": enforced,
        **_plain(objection),
        "decision_id": decision_id(objection),
        "proposed": True,
        "samples": effect.samples,
    }
    before = ruling.report
    also = [] if before is None or before.get("action") == "pass" else [{**before, "proposed": False}]
    return replace(
        ruling,
        words=effect.words if isinstance(effect, End) else "",
        code=CODE_REJECTED if isinstance(effect, End) and effect.action == "reject" else "",
        report={**report, **({"also": also} if also else {})},
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


def ledger_unreadable(policy: Policy) -> Ruling | None:
    """The ruling on a request with results while it is not known which are withheld; None where it may pass."""
    if policy.refusals.store_unreadable == "allow":
        return None
    return Ruling(
        action="reject",
        inspected="none",
        words=notes.ledger_unreadable(),
        code=CODE_LEDGER_UNREADABLE,
        status=UNAVAILABLE,
        report={"action": "reject", "reason": "the ledger of withheld results cannot be read"},
    )


def recovered(ruling: Ruling, refusal: Refusal, *, stored: bool) -> Ruling:
    """The ruling after the provider refused its results.

    Args:
        ruling: the ruling on the request, or on the answer that came in the end.
        refusal: the refusal.
        stored: whether they are withheld now.
    """
    report = {
        "action": "withhold" if stored else "pass",
        "enforced": True,
        "refusal": refusal.kind,
        **({"category": refusal.category} if refusal.category else {}),
        **({"guardrail": notes.safe_name(refusal.guardrail)} if refusal.guardrail else {}),
        "proposed": True,
        **({} if stored else {"ledger": "unavailable"}),
    }
    before = ruling.report
    if before is None or before.get("action") == "pass":
        return replace(ruling, report={**(before or {}), **report})
    also = {key: value for key, value in report.items() if key != "proposed"}
    return replace(ruling, report={**before, "also": [*before.get("also", ()), also]})


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


def _plain(finding: Finding | Objection) -> dict[str, Any]:
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
