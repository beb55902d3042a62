"""Every detector that can hold back a call, in every dialect, streamed and not, through one real proxy: the call that
would reach its `block` rung is held and the model asked once more; a call that is new is delivered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from litellm_toolguard.policy import DETECTORS
from litellm_toolguard.proposals import _BELONGS
from litellm_toolguard.transcript import Dialect
from tests.conversation import Step, expand
from tests.harness.gateways import Gateway, Gateways, guardrail
from tests.harness.upstream import FINAL_WORDS, Calls, Words
from tests.test_answers import script, without_ids
from tests.test_gateway_detectors import BEYOND, CAUSES, Talk, call, in_each, said, times

pytestmark = [pytest.mark.proxy, pytest.mark.long]

FAR = 100
LADDER = {"hint": 2, "block": 4, "stop": FAR}
NEVER = {"stop": FAR}
LAP = [call("find_word", "two hits", q="alpha"), call("find_word", "three hits", q="beta")]
FORBIDDEN = [{"starts_with": "forbidden", "outcome": "denied", "category": "permission_denied"}]


@dataclass(frozen=True)
class Held:
    """A call that would reach the rung of one detector, behind the rounds right below it.

    Args:
        steps: the rounds. Their tools are no other case's: a rule for them switches every other detector off.
        again: the call that is held back: a tool and its arguments.
        new: a call that is delivered.
        rule: what the rule says besides the ladder.
        ladder: the detector's ladder.
        hint: number of the round, from 1, whose request gets the note; None where none is needed.
    """

    steps: Sequence[Step]
    again: tuple[str, Mapping[str, Any]]
    new: tuple[str, Mapping[str, Any]]
    rule: Mapping[str, Any] = field(default_factory=dict)
    ladder: Mapping[str, Any] = field(default_factory=lambda: LADDER)
    hint: int | None = 2

    @property
    def tools(self) -> list[str]:
        """The tools that the rounds call, and the one that is held back."""
        called = {made["tool"] for step in expand(self.steps) for made in step["round"]}
        return sorted({*called, self.again[0]})

    def policy(self, detector: str) -> dict[str, Any]:
        """The rule for its tools."""
        off = dict.fromkeys(DETECTORS, "off")
        return {"match": self.tools, "detectors": {**off, detector: dict(self.ladder)}, **self.rule}


HELD: Mapping[str, Held] = {
    "denied-call": Held(
        [call("sign_form", "Permission denied by user", error=True, form="lease")],
        *(("sign_form", {"form": "lease"}), ("sign_form", {"form": "receipt"})),
        ladder={**NEVER, "any_tool": NEVER},
        hint=None,
    ),
    "denied-call/tool": Held(
        times(3, call("drop_table", "forbidden", error=True, path="t{i}")),
        *(("drop_table", {"path": "t1"}), ("drop_table", {"path": "t9"})),
        rule={"results": FORBIDDEN},
        ladder={**LADDER, "any_tool": NEVER},
    ),
    "denied-call/target": Held(
        [call(f"{verb}_host", "forbidden", error=True, path="db1") for verb in ("stop", "halt", "kill")],
        *(("stop_host", {"path": "db1"}), ("stop_host", {"path": "db2"})),
        rule={"results": FORBIDDEN},
        ladder={**LADDER, "any_tool": NEVER},
    ),
    "denied-call/category": Held(
        [call(f"{verb}_mail", "forbidden", error=True, path=verb) for verb in ("send", "move", "bin")],
        *(("send_mail", {"path": "send"}), ("send_mail", {"path": "more"})),
        rule={"results": FORBIDDEN},
        ladder={**NEVER, "any_tool": LADDER},
    ),
    "unknown-tool": Held(
        times(3, call("helper_{i}", "Unknown tool: helper_{i}", error=True, x=1)),
        *(("helper_1", {"x": 1}), ("helper_9", {"x": 1})),
    ),
    "invalid-arguments": Held(
        times(3, call("exec_cell", "Error: missing 'cell' parameter", error=True, why="{i}")),
        *(("exec_cell", {"why": "1"}), ("exec_cell", {"cell": "7"})),
    ),
    "stuck-range": Held(
        times(3, call("view_page", BEYOND, path="a.py", offset="4{i}0")),
        *(("view_page", {"path": "a.py", "offset": "410"}), ("view_page", {"path": "a.py", "offset": "10"})),
        rule={"role": "read"},
    ),
    "failing-call": Held(
        times(3, call("open_app", "Error: application not found", error=True, name="App{i}")),
        *(("open_app", {"name": "App1"}), ("open_app", {"name": "App9"})),
    ),
    "failing-tool": Held(
        [call("run_query", f"Error: cause {cause}", error=True, q=cause) for cause in CAUSES[:3]],
        *(("run_query", {"q": "blue"}), ("run_query", {"q": "pink"})),
    ),
    "failing-tool/transient": Held(
        times(5, call("ask_model", "Error: rate limit reached", error=True, q="no. {i}")),
        *(("ask_model", {"q": "no. 1"}), ("ask_model", {"q": "no. 9"})),
        ladder={"hint": 2, "block": 3, "stop": FAR},
        hint=4,
    ),
    "repeated-call": Held(
        times(3, call("get_page", "x = 1", path="a.py")),
        *(("get_page", {"path": "a.py"}), ("get_page", {"path": "b.py"})),
        rule={"role": "read"},
    ),
    "call-cycle": Held(
        [*LAP, *LAP, LAP[0]],
        *(("find_word", {"q": "beta"}), ("find_word", {"q": "gamma"})),
        rule={"role": "read"},
        ladder={"hint": 2, "block": 3, "stop": FAR},
        hint=4,
    ),
    "idle-wait": Held(
        times(3, call("poll_job", "running", id=7)),
        *(("poll_job", {"id": 7}), ("poll_job", {"id": 8})),
        rule={"role": "wait"},
    ),
    "call-budget": Held(
        times(3, call("post_card", "sent {i}", to="guest{i}")),
        *(("post_card", {"to": "guest9"}), ("read_card", {"to": "guest9"})),
    ),
}


@pytest.fixture
def holding(gateways: Gateways) -> Gateway:
    """A proxy with a rule for each case."""
    rules = [held.policy(detector_of(name)) for name, held in HELD.items()]
    return gateways.get("holding", guardrails=[guardrail({"tools": rules})])


def detector_of(name: str) -> str:
    """The detector of a case."""
    return name.partition("/")[0]


def test_every_way_to_hold_a_call_has_a_case() -> None:
    """And a refused call that is made again, which is held back without a count."""
    ways = {f"{detector}/{kind}" if kind else detector for detector, kind in _BELONGS}
    assert set(HELD) == ways | {"denied-call"}


@dataclass(frozen=True)
class Seen:
    """What came of a proposed call.

    Args:
        asked: requests that the provider got.
        called: whether the client sees the call.
        words: the start of the text that the client sees.
        told: whether the newest request says that the call was not executed.
    """

    asked: int
    called: bool
    words: str
    told: bool


@in_each(HELD)
def test_the_call_that_reaches_the_rung_is_held_back(
    holding: Gateway, detector: str, dialect: Dialect, stream: bool
) -> None:
    """The client sees the words of the second sample and nothing of the call; the provider is asked twice, and the
    second time told that the call did not run."""
    held, talk = HELD[detector], Talk(f"{detector}, held", dialect, stream)
    announce(holding, detector, talk)
    holding.upstream.clear()
    holding.upstream.script = [Calls([held.again]), Words()]
    answer = holding.post(dialect, talk.request(held.steps, model="script"))

    requests = holding.upstream.requests
    seen = Seen(
        asked=len(requests),
        called=calls(answer.text, held.again[0]),
        words=talk.words(answer)[:40],
        told="was not executed" in requests[-1].body.decode(),
    )
    assert seen == Seen(asked=2, called=False, words=FINAL_WORDS, told=True), seen


@in_each(HELD)
def test_a_new_call_is_delivered_as_it_is(
    bare: Gateway, holding: Gateway, detector: str, dialect: Dialect, stream: bool
) -> None:
    """Behind the same rounds, asked for once, and the same lines as without the guard but for ids and times."""
    held, talk = HELD[detector], Talk(f"{detector}, delivered", dialect, stream)
    announce(holding, detector, talk)
    body = talk.request(held.steps, model="script")
    holding.upstream.clear()
    with script(holding, Calls([held.new])):
        answer = holding.post(dialect, body)
    asked = len(holding.upstream.requests)
    with script(bare, Calls([held.new])):
        plain = bare.post(dialect, body)

    assert asked == 1
    assert calls(answer.text, held.new[0])
    assert lines_of(answer.text) == lines_of(plain.text)


def announce(gateway: Gateway, name: str, talk: Talk) -> None:
    """Let the guard tell of the rounds, where nothing is held back before that."""
    held = HELD[name]
    if held.hint is None:
        return
    told = gateway.post(talk.dialect, talk.request(held.steps, held.hint))
    assert (told.status_code, said(told)) == (200, ("hint", "true", detector_of(name)))


def calls(text: str, name: str) -> bool:
    """Whether an answer holds a call of the tool."""
    return re.search(f'"name": ?"{name}"', text) is not None


def lines_of(text: str) -> list[str]:
    """The lines of an answer, without what no two answers share."""
    return [re.sub(r'"call_id": ?"[^"]*"', '"call_id"', without_ids(line)) for line in text.splitlines()]
