"""One request's conversation with the model: what is sent, what is judged, and how it ends. Pure.

A session is a generator. It yields effects and is sent what came of them:

| effect | what the driver does | what it sends back |
|---|---|---|
| `Withhold` | keeps the originals of the newest results, so that no crash can lose them | a `Kept` |
| `Send` | sends the client's request with the held answers behind its history | a `Proposal` or a `Failed` |
| `Remember` | stores what was held back | nothing |
| `Release` | delivers the newest answer as it came; the session is over | - |
| `End` | ends the run in words, or by an error; the session is over | - |

The first `Send` holds nothing: it is the client's own request. A proxy has sent it already and gives the answer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from litellm_toolguard import notes
from litellm_toolguard.dialects import answered, not_executed, read_answer
from litellm_toolguard.engine import Finding, Standing, verdicts
from litellm_toolguard.errors import PayloadError
from litellm_toolguard.evidence import JudgedRound, Reader, proposed_call
from litellm_toolguard.facts import Block
from litellm_toolguard.policy import Policy
from litellm_toolguard.proposals import Objection, Stored, judge_proposal
from litellm_toolguard.refusals import Refusal, in_answer
from litellm_toolguard.transcript import Round
from litellm_toolguard.walk import Walk

EndKind: TypeAlias = Literal["ask", "stop", "reject"]


@dataclass(frozen=True, slots=True)
class Watch:
    """What the answer to an armed request is judged by.

    Args:
        standing: where the conversation stands.
        stored: what is stored about its streaks.
        recovers: whether the newest results are withheld when the request is refused.
        armed: whether the next round could trip anything.
    """

    standing: Standing
    stored: Stored
    recovers: bool = False
    armed: bool = True

    @property
    def policy(self) -> Policy:
        """The policy that the conversation was judged by."""
        return self.standing.walk.policy

    def behind_refusal(self) -> Watch:
        """What the answer is judged by when the newest results are withheld. A second refusal is not recovered from."""
        walk = self.standing.walk.with_newest_withheld()
        return replace(self, standing=replace(self.standing, walk=walk), recovers=False)


@dataclass(frozen=True, slots=True)
class Held:
    """An answer that the client never sees.

    Args:
        items: what it adds to the history.
        results: the results that say that its calls did not run.
    """

    items: tuple[Any, ...]
    results: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Send the request, with the held answers behind its history.

    Args:
        held: the held answers.
        withheld: whether notices stand in the place of its newest results.
    """

    held: tuple[Held, ...] = ()
    withheld: bool = False


@dataclass(frozen=True, slots=True)
class Withhold:
    """Keep the originals of the newest results: from here on they are withheld.

    Args:
        refusal: why.
    """

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Kept:
    """What came of `Withhold`.

    Args:
        stored: whether the originals are kept. Without that nothing more is sent.
    """

    stored: bool


@dataclass(frozen=True, slots=True)
class Remember:
    """Store what was held back at a place of the conversation."""

    position: bytes
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Deliver the newest answer.

    Args:
        objection: what was held back before it, or, where nothing is enforced, what would have been; None for nothing.
        samples: samples that were taken, besides one whose results were withheld.
        inspected: whether the answer could be read.
        first: whether the first answer is to be delivered instead: none came behind it.
    """

    objection: Objection | None = None
    samples: int = 1
    inspected: bool = True
    first: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """End the run.

    Args:
        action: a question, words, or an error.
        words: what is said.
        objection: why.
        samples: samples that were taken.
    """

    action: EndKind
    words: str
    objection: Objection
    samples: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """A whole answer of the model in the dialect's form."""

    answer: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """What is read of one choice of an answer.

    Args:
        kind: `calls`; or that it is clean of them, without a call or a word, or not to be read.
        rounds: its calls, in the order in which they run.
    """

    kind: Literal["calls", "clean", "empty", "unread"]
    rounds: tuple[JudgedRound, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """A whole answer as far as the verdict goes.

    Args:
        choices: its choices; none where it could not be read.
        can_be_held: whether a further request can carry it.
        refusal: the refusal that it is.
    """

    choices: tuple[Choice, ...]
    can_be_held: bool
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer came, or none may be asked for. `reason` is a fixed word without content."""

    reason: str


Effect: TypeAlias = Send | Withhold | Remember | Release | End
Reply: TypeAlias = Proposal | Seen | Failed | Kept | None
Session: TypeAlias = Generator[Effect, Reply, None]


def session(watch: Watch) -> Session:
    """The session of one request whose answer is to be judged."""
    reply = yield Send()
    refusal = _refusal_of(watch, reply)
    if refusal is None:
        yield from _verdicts(watch, reply)
        return
    kept = yield Withhold(refusal)
    if not isinstance(kept, Kept) or not kept.stored:
        yield Release()
        return
    reply = yield Send(withheld=True)
    if isinstance(reply, Failed) or _refusal_of(watch, reply) is not None:
        yield Release(first=isinstance(reply, Failed))
        return
    yield from _verdicts(watch.behind_refusal(), reply, withheld=True)


def _refusal_of(watch: Watch, reply: Reply) -> Refusal | None:
    """The refusal that is to be recovered from."""
    if not watch.recovers or watch.policy.max_samples < 2:
        return None
    if isinstance(reply, Proposal):
        refusal = in_answer(watch.standing.dialect, reply.answer)
    else:
        refusal = reply.refusal if isinstance(reply, Seen) else None
    return refusal if refusal is not None and watch.policy.refusals.recovers_from(refusal.certain) else None


def _verdicts(watch: Watch, reply: Reply, *, withheld: bool = False) -> Session:
    """The verdict on an answer, and on those that are asked for in its place.

    Args:
        watch: what they are judged by.
        reply: the answer.
        withheld: whether the newest results were withheld before.
    """
    policy = watch.policy
    enforced = policy.enforcement == "enforce"
    held: tuple[Held, ...] = ()
    blocked: Objection | None = None
    while True:
        if blocked is not None:
            yield Remember(watch.standing.walk.positions()[-1], (Block(blocked.instance, len(held)),))
        verdict = _judge(watch, reply)
        if verdict == "unread" or (blocked is not None and verdict == "empty"):
            yield Release(inspected=False) if blocked is None else _end(blocked, blocked.end, len(held) + 1)
            return
        if not isinstance(verdict, Objection) or not enforced:
            objection = verdict if isinstance(verdict, Objection) else blocked
            yield Release(objection, len(held) + 1)
            return
        may = verdict.action == "block" and _may_ask_again(policy, len(held), withheld=withheld)
        more = _held(watch, reply, verdict) if may else None
        if more is None:
            yield _end(verdict, verdict.end if verdict.action == "block" else verdict.action, len(held) + 1)
            return
        held, blocked = (*held, more), verdict
        reply = yield Send(held, withheld)


def _may_ask_again(policy: Policy, held: int, *, withheld: bool) -> bool:
    return held < policy.block_samples and held + 1 + withheld < policy.max_samples


def _end(objection: Objection, action: EndKind, samples: int) -> End:
    say = {"ask": notes.question, "stop": notes.end, "reject": notes.rejection}[action]
    return End(action, say(objection.sentence), replace(objection, action=action), samples)


def _held(watch: Watch, reply: Reply, objection: Objection) -> Held | None:
    """The answer as the next request carries it; None where it cannot: of several choices, or of calls whose results
    hold no text."""
    if isinstance(reply, Seen):
        return Held((), ()) if reply.can_be_held else None
    if not isinstance(reply, Proposal):
        return None
    dialect = watch.standing.dialect
    choices = answered(dialect, reply.answer)
    if len(choices) != 1:
        return None
    results = not_executed(dialect, choices[0], notes.not_executed(objection.sentence))
    return None if results is None else Held(choices[0], results)


Judged: TypeAlias = Objection | Literal["clean", "empty", "unread"]


def look(standing: Standing, answer: Mapping[str, Any]) -> Seen:
    """What the verdict on an answer needs of it."""
    dialect = standing.dialect
    choices = answered(dialect, answer)
    can_be_held = len(choices) == 1 and not_executed(dialect, choices[0], "") is not None
    seen = tuple(_look_at(standing, items) for items in choices)
    refusal = in_answer(dialect, answer)
    # Nor is it an answer when the provider failed in the middle of it.
    failed = dialect == "responses" and answer.get("status") == "failed"
    if failed or (refusal is not None and refusal.certain):
        seen = tuple(Choice("empty") if choice.kind == "clean" else choice for choice in seen)
    return Seen(seen, can_be_held, refusal)


def _look_at(standing: Standing, items: Sequence[Any]) -> Choice:
    try:
        transcript = read_answer(standing.dialect, items)
    except PayloadError:
        return Choice("unread")
    if not transcript.rounds:
        return Choice("unread" if transcript.problems else "clean" if _says_something(items) else "empty")
    reader = standing.reader.copy()
    return Choice("calls", tuple(_look_at_round(reader, event) for event in transcript.rounds))


def _look_at_round(reader: Reader, event: Round) -> JudgedRound:
    """What the provider ran has run and is counted; what the client would run stays unread."""
    step = reader.step(event) if event.exchanges[0].call.executed_by == "provider" else None
    return step if isinstance(step, JudgedRound) else reader.look(event)


def _judge(watch: Watch, reply: Reply) -> Judged:
    """The objection to an answer, or what else it is: clean, without a call or a word, or not to be read."""
    seen = look(watch.standing, reply.answer) if isinstance(reply, Proposal) else reply
    if not isinstance(seen, Seen) or not seen.choices:
        return "unread"
    found = [_judge_choice(watch, choice) for choice in seen.choices]
    objections = [each for each in found if isinstance(each, Objection)]
    # One choice that trips holds back all of them: the client may take any.
    if objections:
        return objections[0]
    return next((kind for kind in ("unread", "empty") if kind in found), "clean")


def _judge_choice(watch: Watch, choice: Choice) -> Judged:
    if choice.kind != "calls":
        return choice.kind
    walk = watch.standing.walk.copy()
    for judged in choice.rounds:
        objection = _judge_round(watch, walk, judged)
        if objection is not None:
            return objection
    return "clean"


def _judge_round(watch: Watch, walk: Walk, judged: JudgedRound) -> Objection | None:
    """The objection to one round of an answer. What the provider ran has run and is counted; what the client would run
    is judged before."""
    if judged.by_provider:
        walk.add(judged)
        return next(_ended(watch, walk), None)
    calls = [proposed_call(each) for each in judged.exchanges]
    return judge_proposal(walk, calls, watch.stored, words_allowed=watch.standing.words_allowed)


def _ended(watch: Watch, walk: Walk) -> Iterator[Objection]:
    for finding in verdicts(walk, watch.stored.told, words_allowed=watch.standing.words_allowed):
        if finding.action in ("stop", "reject") and not finding.allowed:
            yield _of_finding(finding)


def _of_finding(finding: Finding) -> Objection:
    action: Literal["stop", "reject"] = "reject" if finding.action == "reject" else "stop"
    return Objection(
        action=action,
        detector=finding.detector,
        kind=finding.kind,
        tool=finding.tool,
        count=finding.count,
        call_id=finding.call_id,
        allowed=finding.allowed,
        instance=finding.instance,
        sentence=finding.sentence,
        end=action,
    )


def _says_something(items: Sequence[Any]) -> bool:
    """Whether an answer without calls holds any text at all."""
    pending: list[Any] = [item.get("content") for item in items if isinstance(item, Mapping)]
    while pending:
        value = pending.pop()
        if isinstance(value, str) and value.strip():
            return True
        if isinstance(value, list):
            pending += [part.get("text") for part in value if isinstance(part, Mapping)]
    return False
