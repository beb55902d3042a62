"""Recordings of live traffic, decided again row by row.

Every request is decided with the policy and the stored facts that the proxy had, and so are the answers to the armed
ones. What comes out otherwise than it was recorded is a fault. With a policy of one's own the requests alone are
decided, each with the facts that this policy would have stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, get_args

from litellm_toolguard import gate, recording
from litellm_toolguard.engine import Finding, decide_on
from litellm_toolguard.errors import RecordingError
from litellm_toolguard.evidence import JudgedRound, Reader, Step
from litellm_toolguard.facts import Block
from litellm_toolguard.policy import Policy
from litellm_toolguard.proposals import Objection
from litellm_toolguard.replay_files import Fault, Value
from litellm_toolguard.replay_formats import Judged
from litellm_toolguard.review import Intervention
from litellm_toolguard.session import End, Failed, Proposal, Release, Remember, Reply, session
from litellm_toolguard.transcript import Dialect

_K = TypeVar("_K")
_V = TypeVar("_V")

_NO_HEAD: Final = "belongs to rows whose first one is not in this file"


@dataclass(frozen=True, slots=True)
class _Run:
    """The rows of one writer.

    Args:
        policy: the policy that judges them here.
        same_calls: whether that policy tells calls apart as the recorded one did.
    """

    policy: Policy
    same_calls: bool


@dataclass(slots=True)
class _Conversation:
    """The requests of which each carries on the one before."""

    id: str
    dialect: Dialect
    rounds: int = 0
    calls: int = 0
    not_inspected: int = 0
    interventions: list[Intervention] = field(default_factory=list)

    def judged(self) -> Judged:
        """The whole of it."""
        found = tuple(self.interventions)
        return Judged(self.id, self.dialect, self.rounds, self.calls, found, 0, self.not_inspected)


@dataclass(slots=True)
class _Request:
    """A request whose answers may still come."""

    ruling: gate.Ruling
    conversation: _Conversation
    round: int
    replies: list[Reply] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The steps of a row: so many of another one's, and its own."""

    before: str | None
    start: int
    own: tuple[Step, ...]


class RecordingReader:
    """The recording in one file.

    Args:
        policy: a policy to judge by; None for the recorded one.
    """

    def __init__(self, policy: Policy | None) -> None:
        self._given = policy
        self._runs: dict[str, _Run] = {}
        self._kept: dict[str, _Kept] = {}
        self._open: dict[str, _Request] = {}
        self._tips: dict[tuple[str, Dialect, bytes], _Conversation] = {}
        self._conversations: list[_Conversation] = []
        self._facts: dict[str, dict[bytes, int]] = {}

    def add(self, value: Value) -> Iterator[Fault]:
        """Read one row; what is wrong with it."""
        readers: dict[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
            "recording": self._head,
            "request": self._request,
            "answer": self._answer,
            "verdict": self._verdict,
        }
        try:
            for message in readers[value.data[recording.KIND]](value.data):
                yield value.fault(message)
        except RecordingError:
            yield value.fault("is no row of a recording")

    def finish(self) -> Iterator[Judged]:
        """The conversations, in the order of their first requests."""
        return (conversation.judged() for conversation in self._conversations)

    # ------------------------------------------------------------------------------------------------------------ rows

    def _head(self, row: Mapping[str, Any]) -> Iterator[str]:
        if row.get("format") != recording.FORMAT:
            yield f"is a recording of another format than {recording.FORMAT}"
            return
        recorded = recording.read_policy(row.get("policy"))
        same = self._given is None or row.get("content") is True or _calls_alike(self._given, recorded)
        self._runs[_text(row, "run")] = _Run(self._given or recorded, same)
        if not same:
            yield "holds no content: a policy with other rules for tools than the recorded one cannot judge its rows"

    def _request(self, row: Mapping[str, Any]) -> Iterator[str]:
        name, dialect, run = _text(row, "id"), _dialect(row), self._runs.get(_text(row, "run"))
        if run is None:
            yield _NO_HEAD
            return
        if not run.same_calls:
            return
        if "steps" in row and not self._keep(name, dialect, row):
            yield "carries on a row that is not in this file"
            return
        ruling = self._decided(name, dialect, run.policy, row)
        recorded = row.get("decision")
        if ruling is not None and self._given is None:
            yield from _differences(recorded, recording.plain_decision(ruling))
        self._take(name, dialect, _text(row, "tenant"), ruling)

    def _answer(self, row: Mapping[str, Any]) -> Iterator[str]:
        request = self._open.get(_text(row, "of"))
        if request is not None:
            request.replies.append(_reply(row))
        return iter(())

    def _verdict(self, row: Mapping[str, Any]) -> Iterator[str]:
        request = self._open.pop(_text(row, "of"), None)
        if request is None or request.ruling.watch is None:
            return
        effect = _judged(request)
        yield from _differences(row.get("verdict"), recording.plain_verdict(effect))
        if effect.objection is not None:
            request.conversation.interventions.append(_of_objection(effect.objection, request.round))

    # -------------------------------------------------------------------------------------------------------- requests

    def _keep(self, name: str, dialect: Dialect, row: Mapping[str, Any]) -> bool:
        before = row.get("continues")
        if before is not None and before not in self._kept:
            return False
        own = recording.read_evidence(dialect, (), row).steps
        self._kept[name] = _Kept(before, _number(row, "from") if before is not None else 0, own)
        return True

    def _steps(self, name: str) -> tuple[Step, ...]:
        parts: list[tuple[Step, ...]] = []
        at: str | None = name
        end: int | None = None
        while at is not None:
            kept = self._kept[at]
            parts.append(kept.own if end is None else kept.own[: max(end - kept.start, 0)])
            end = kept.start if end is None else min(end, kept.start)
            at = kept.before
        return tuple(step for part in reversed(parts) for step in part)

    def _decided(self, name: str, dialect: Dialect, policy: Policy, row: Mapping[str, Any]) -> gate.Ruling | None:
        """The ruling; None where the row does not hold what it was made on."""
        tenant = _text(row, "tenant")
        facts = recording.read_counts(row.get("facts"))
        blocks = recording.read_blocks(row.get("blocks"))
        own = self._facts.setdefault(tenant, {})
        known: Mapping[bytes, int] = facts if self._given is None else own
        held: Mapping[bytes, tuple[Block, ...]] = blocks if self._given is None else {}
        body = row.get("body")
        if isinstance(body, Mapping):
            ruling = gate.rule(dialect, body, policy, _lookup(known), _lookup(held))
        elif name in self._kept:
            evidence = recording.read_evidence(dialect, (), {**row, "steps": []})
            whole = recording.with_steps(evidence, self._steps(name))
            decision, standing = decide_on(whole, policy, _lookup(known), Reader(dialect, policy))
            ruling = gate.ruled(decision, standing, policy, _lookup(held))
        else:
            return None
        for instance, count in ruling.remember.items():
            own.setdefault(instance, count)
        return ruling

    def _take(self, name: str, dialect: Dialect, tenant: str, ruling: gate.Ruling | None) -> None:
        """Add the request to the conversation that it carries on, or begin one."""
        if ruling is None or ruling.basis is None:
            self._conversations.append(_Conversation(name, dialect, not_inspected=1))
            return
        decision, standing = ruling.basis
        steps = standing.evidence.steps
        keys = [(tenant, dialect, end) for end in recording.chain(steps)]
        tip = next((key for key in reversed(keys) if key in self._tips), None)
        again = tip is not None and tip == keys[-1]
        conversation = _Conversation(name, dialect) if tip is None else self._tips.pop(tip)
        if tip is None:
            self._conversations.append(conversation)
        if keys:
            self._tips[keys[-1]] = conversation
        rounds = [step for step in steps if isinstance(step, JudgedRound)]
        conversation.rounds = _messages(steps)
        conversation.calls = sum(len(each.exchanges) for each in rounds)
        conversation.not_inspected = len(standing.evidence.problems)
        if decision.finding is not None:
            found = _of_finding(decision.finding, conversation.rounds)
            # The same request once more is a retry of the client's.
            if found is not None and not (again and found in conversation.interventions):
                conversation.interventions.append(found)
        if self._given is None and ruling.watch is not None:
            self._open[name] = _Request(ruling, conversation, conversation.rounds + 1)


# -------------------------------------------------------------------------------------------------------------- helpers


def _judged(request: _Request) -> Release | End:
    """The last effect of the session, with the recorded answers."""
    watch, replies = request.ruling.watch, iter(request.replies)
    if watch is None:
        return Release()
    steps = session(watch)
    effect = next(steps)
    while not isinstance(effect, (Release, End)):
        effect = steps.send(None if isinstance(effect, Remember) else next(replies, Failed("not recorded")))
    steps.close()
    return effect


def _reply(row: Mapping[str, Any]) -> Reply:
    if isinstance(row.get("answer"), Mapping):
        return Proposal(row["answer"])
    return recording.read_seen(row["seen"]) if "seen" in row else Failed("broken")


def _of_finding(finding: Finding, round_: int) -> Intervention | None:
    if finding.action == "pass":
        return None
    return Intervention(round_, finding.call_id, finding.detector, finding.action, finding.tool, finding.count)


def _of_objection(objection: Objection, round_: int) -> Intervention:
    return Intervention(
        round_, objection.call_id, objection.detector, objection.action, objection.tool, objection.count
    )


def _messages(steps: Iterable[Step]) -> int:
    """Messages of the assistant with calls."""
    number, goes_on = 0, False
    for step in steps:
        number += isinstance(step, JudgedRound) and not goes_on
        goes_on = isinstance(step, JudgedRound) and step.round.is_open
    return number


def _calls_alike(one: Policy, other: Policy) -> bool:
    """Whether two policies read calls and results alike; their ladders may differ."""
    mine, theirs = (
        [rule.model_dump(exclude={"detectors", "allow"}, exclude_unset=True) for rule in policy.tools]
        for policy in (one, other)
    )
    return [rule for rule in mine if len(rule) > 1] == [rule for rule in theirs if len(rule) > 1]


def _differences(recorded: Any, now: Mapping[str, Any]) -> Iterator[str]:
    if recorded != now:
        before, after = _said(recorded), _said(now)
        detail = " (in its details)" if before == after else ""
        yield f"replays to another decision: recorded {before}, now {after}{detail}"


def _said(decision: Any) -> str:
    found = decision if isinstance(decision, Mapping) else {}
    report = found.get("report")
    named = report if isinstance(report, Mapping) and report else found
    words = [str(named.get("action", found.get("action", "pass")))]
    if "detector" in named:
        words.append(f"by {named['detector']} at {named.get('count')}")
    return " ".join(words)


def _lookup(known: Mapping[_K, _V]) -> Callable[[Iterable[_K]], dict[_K, _V]]:
    return lambda wanted: {name: known[name] for name in wanted if name in known}


def _text(row: Mapping[str, Any], name: str) -> str:
    found = row.get(name)
    if not isinstance(found, str):
        raise RecordingError(f"`{name}` is no text")
    return found


def _number(row: Mapping[str, Any], name: str) -> int:
    found = row.get(name)
    if not isinstance(found, int) or found < 0:
        raise RecordingError(f"`{name}` is no number")
    return found


def _dialect(row: Mapping[str, Any]) -> Dialect:
    found: Dialect | None = next((name for name in get_args(Dialect) if name == row.get("dialect")), None)
    if found is None:
        raise RecordingError("`dialect` is unknown")
    return found
