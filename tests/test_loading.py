"""A guard that is silently missing is the worst fault: what does not load stops the proxy, and says why."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS
from tests.harness.gateways import Gateways, guardrail
from tests.harness.proxy import Start, config, refused_start, refused_starts

pytestmark = pytest.mark.proxy

CHECKOUT = Path(__file__).parents[1]
CALLBACKS = {"callbacks": ["litellm_toolguard.callback"]}
# Found first on the path, it stands for an installed version.
OLD_LITELLM = {"old/litellm-1.105.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: litellm\nVersion: 1.105.0\n"}

# Another guardrail, of LiteLLM's own, that reads answers.
WORDS: dict[str, Any] = {
    "guardrail_name": "words",
    "litellm_params": {
        "guardrail": "litellm_content_filter",
        "mode": "post_call",
        "default_on": True,
        "blocked_words": [{"keyword": "BADWORD", "action": "BLOCK", "description": "a test"}],
    },
}


@dataclass(frozen=True)
class Refusal:
    """A configuration that must not start, and what it must say."""

    name: str
    says: str
    guardrails: list[dict[str, Any]] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


REFUSALS = [
    Refusal(
        "a bad policy",
        "toolguard: toolguard.detectors.repeated-call.hnt: unknown key; did you mean `hint`?",
        [guardrail({"detectors": {"repeated-call": {"hnt": 3, "stop": 8}}})],
    ),
    Refusal(
        "a policy of the wrong type",
        "toolguard: toolguard: a policy is a mapping, not a list",
        [guardrail(["observe"])],
    ),
    Refusal(
        "a policy file that is not there",
        "nowhere.yaml: cannot be read: No such file or directory",
        [guardrail({"policy": "nowhere.yaml"})],
    ),
    Refusal(
        "a bad policy file",
        "detectors.failing-call: `hint` (9) is above `stop` (6)",
        [guardrail({"policy": "policies/bad.yaml"})],
        files={"policies/bad.yaml": "detectors: {failing-call: {hint: 9, stop: 6}}\n"},
    ),
    Refusal(
        "a guardrail before it that would see what is withheld",
        "must stand before every other guardrail with mode pre_call; move it above words",
        [
            {**WORDS, "litellm_params": {**WORDS["litellm_params"], "mode": "pre_call"}},
            guardrail({"refusals": {"recover": True}}),
        ],
    ),
    Refusal(
        "a ledger in a folder that is not there",
        "toolguard.refusals.ledger: ",
        [guardrail({"refusals": {"recover": True, "ledger": "sqlite:///nowhere/w.db"}})],
    ),
    Refusal(
        "content that is recorded and withheld",
        "switch one of them off",
        [guardrail({"refusals": {"recover": True}, "record": "r.jsonl", "record_content": True})],
    ),
    Refusal(
        "a way to hold streams that there is not",
        "toolguard.stream.hold: 'tool_call' is none of 'start'",
        [guardrail({"stream": {"hold": "tool_call"}})],
    ),
    Refusal(
        "a store that is no database",
        "facts.db cannot be used: no SQLite database",
        [guardrail({"store": "sqlite:///data/facts.db"})],
        files={"data/facts.db": "this is no database\n" * 100},
    ),
    Refusal(
        "a recording in a folder that is not there",
        "toolguard: toolguard.record: ",
        [guardrail({"record": "nowhere/traffic.jsonl"})],
    ),
    Refusal("a wrong mode", "toolguard: mode: 'during_call' is not supported", [guardrail(mode="during_call")]),
    Refusal(
        "behind a guardrail that reads answers",
        "must stand before every other guardrail with mode post_call; move it above words",
        [WORDS, guardrail()],
    ),
    Refusal("a mode without pre_call", "toolguard: mode: must hold pre_call", [guardrail(mode="post_call")]),
    Refusal(
        "a guardrail in parallel",
        "toolguard: run_in_parallel: LiteLLM discards the notes",
        [guardrail(run_in_parallel=True)],
    ),
    Refusal(
        "a guardrail on the raw request",
        "toolguard: scan_raw_request: LiteLLM discards the notes",
        [guardrail(scan_raw_request=True)],
    ),
    Refusal(
        "a policy beside its key",
        "toolguard: enforcement: is a key of the policy: put it under `toolguard:`",
        [guardrail(enforcement="observe")],
    ),
    Refusal(
        "a misspelt key",
        "toolguard: toolgard: unknown key; did you mean `toolguard`?",
        [guardrail(toolgard={"enforcement": "observe"})],
    ),
    Refusal(
        "an old litellm, by the guardrail",
        "the proxy needs litellm >= 1.106.12, this is 1.105.0",
        [guardrail()],
        env={"PYTHONPATH": "old"},
        files=OLD_LITELLM,
    ),
    Refusal(
        "an old litellm, by the callback",
        "the proxy needs litellm >= 1.106.12, this is 1.105.0",
        settings=CALLBACKS,
        env={"PYTHONPATH": "old"},
        files=OLD_LITELLM,
    ),
    Refusal(
        "a callback with a bad policy",
        "policy.yaml: enforcement: 'off' is none of 'enforce' or 'observe'",
        settings=CALLBACKS,
        env={"TOOLGUARD_POLICY": "policy.yaml"},
        files={"policy.yaml": "enforcement: 'off'\n"},
    ),
    Refusal(
        "a callback whose policy is not there",
        "nowhere.yaml: cannot be read",
        settings=CALLBACKS,
        env={"TOOLGUARD_POLICY": "nowhere.yaml"},
    ),
]


# Started whole, import and all: one of each way to be loaded, and those of which the import is the point.
WHOLE = {
    "a bad policy",
    "a callback with a bad policy",
    "an old litellm, by the guardrail",
    "an old litellm, by the callback",
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and output of every start. Each takes seconds of pure import, so most are forked behind it."""

    def start(refusal: Refusal) -> Start:
        workdir = tmp_path_factory.mktemp("refused")
        env = {name: _in(workdir, value) for name, value in refusal.env.items()}
        made = config("http://127.0.0.1:9", guardrails=refusal.guardrails, litellm_settings=refusal.settings)
        return Start(made, workdir, env, refusal.files)

    def whole(start: Start) -> tuple[int, str]:
        return refused_start(start.config, workdir=start.workdir, env=start.env, files=start.files)

    starts = {refusal.name: start(refusal) for refusal in REFUSALS}
    forked = [name for name in starts if name not in WHOLE]
    with ThreadPoolExecutor(2) as pool:
        behind = pool.submit(refused_starts, [starts[name] for name in forked])
        done = {name: pool.submit(whole, starts[name]) for name in WHOLE}
        ended = {name: future.result() for name, future in done.items()}
        return ended | dict(zip(forked, behind.result(), strict=True))


def _in(workdir: Path, value: str) -> str:
    """A folder that comes before the checkout on the path of imports."""
    return os.pathsep.join([str(workdir / value), str(CHECKOUT)]) if value == "old" else value


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)
def test_the_proxy_refuses_to_start_and_says_why(refusal: Refusal, refusals: dict[str, tuple[int, str]]) -> None:
    """It exits with an error, and the fault with its path stands in its output."""
    code, output = refusals[refusal.name]

    assert code > 0
    assert refusal.says in output


SUBCLASS = """
from litellm_toolguard import ToolGuard

class Ours(ToolGuard):
    pass
"""


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_subclass_that_overrides_nothing_guards_as_well(gateways: Gateways, dialect: Dialect, stream: bool) -> None:
    """LiteLLM looks hooks up in the class itself; a policy file is found beside the config."""
    ours = gateways.get(
        "subclass",
        guardrails=[guardrail({"policy": "policies/strict.yaml"}, loaded="ours.Ours")],
        files={"ours.py": SUBCLASS, "policies/strict.yaml": "preset: strict\n"},
    )
    run = ours.run(dialect, "looping", stream=stream)

    assert (run.ended, len(run.executions)) == ("words", 3)
    assert run.toolguard is not None
    assert run.toolguard["count"] == 4


def test_a_valid_guard_says_what_it_does(gateways: Gateways) -> None:
    """Remarks on the policy and on `default_on` stand in the proxy's log."""
    talking = gateways.get(
        "talking",
        guardrails=[guardrail({"enforcement": "observe"}, default_on=False)],
    )

    assert "enforcement is `observe`: decisions are recorded, nothing is enforced" in talking.proxy.log()
    assert "`default_on` is not true: only requests that name toolguard are guarded" in talking.proxy.log()
    assert "x-litellm-applied-guardrails" not in talking.run("chat", "words").headers
    named = talking.run("chat", "words", extra={"extra_body": {"guardrails": ["toolguard"]}})
    assert named.headers["x-litellm-applied-guardrails"] == "toolguard"
