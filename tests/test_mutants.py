"""Each fact that the guard stands on is broken once: a test of a real request through a real proxy must go red.

What every detector stands on (its outcome, what clears its count, the hold of a call, the second sample) is broken for
all of them at once, a kind at a time, and is noticed in each dialect, streamed and not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from litellm_toolguard import notes
from litellm_toolguard.policy import DETECTORS, DetectorName
from tests.conversation import DIALECTS

pytestmark = pytest.mark.proxy
mutant = pytest.mark.mutant

IN_EVERY_RUN = frozenset({"the hint is not added", "no answer is judged", "nothing is written into the ledger"})
"""The others take minutes and are run by `pytest -m mutant`."""

ROOT = Path(__file__).parents[1]
PYTEST_FAILED = 1


@dataclass(frozen=True)
class Line:
    """One line, and what it becomes."""

    file: str
    line: str
    becomes: str


@dataclass(frozen=True)
class Mutant(Line):
    """One line that is broken for itself, and the test that must notice."""

    noticed_by: str
    stands_in: str = "test_gateway.py"


MUTANTS = {
    "denials are not counted": Mutant(
        "detectors/denied_call.py",
        'return member.judged.outcome.kind == "denied" and not member.judged.steered',
        "return False",
        "test_a_denied_agent_is_ended_at_the_sixth_refusal[whole-chat]",
    ),
    "the hint is not added": Mutant(
        "proxy.py",
        "data.update(ruling.edits)",
        "pass",
        "test_a_learning_agent_recovers_after_the_hint[whole-messages]",
    ),
    "the stop is not carried out": Mutant(
        "proxy.py",
        'if ruling is None or ruling.action != "stop":',
        "if True:",
        "test_a_denied_agent_is_ended_at_the_sixth_refusal[whole-responses]",
    ),
    "no answer is judged": Mutant(
        "session.py",
        "if not isinstance(verdict, Objection) or not enforced:",
        "if True:",
        "test_a_looping_agent_is_told_and_then_ended[streamed-messages]",
    ),
    "nobody is asked a second time": Mutant(
        "session.py",
        "if more is None:",
        "if True:",
        "test_a_looping_agent_is_told_and_then_ended[whole-responses]",
    ),
    "what was held back is forgotten": Mutant(
        "proxy.py",
        "await asyncio.to_thread(self.facts.remember_block, effect.position, effect.blocks)",
        "pass",
        "test_workers_and_restarts_share_what_a_store_keeps",
        "test_store_gateway.py",
    ),
    "no budget is looked at": Mutant(
        "proxy_answers.py",
        " or _is_over_budget(self.key, spent)",
        "",
        "test_a_key_without_money_gets_no_second_sample[streamed-chat]",
        "test_samples.py",
    ),
    "the second sample is not told why": Mutant(
        "proxy_answers.py",
        "key: [*items, *added],",
        "key: items,",
        "test_a_blocked_call_does_not_run[whole-chat]",
        "test_answers.py",
    ),
    "nothing is written into the ledger": Mutant(
        "proxy.py",
        "await asyncio.to_thread(self.ledger.withhold, attempts.tenant, attempts.submission.originals(refusal))",
        "pass",
        "test_the_client_gets_the_recovered_answer[chat, a 400 of a filter, whole]",
        "test_refusal_gateway.py",
    ),
    "what is withheld is not replaced": Mutant(
        "withholding.py",
        "return Cleared(edited, _marked(transcript, gone), len(hidden))",
        "return Cleared(request, transcript)",
        "test_the_client_gets_the_recovered_answer[messages, a refusal, streamed]",
        "test_refusal_gateway.py",
    ),
    "a stream that may be refused is not held": Mutant(
        "gate.py",
        "return replace(ruling, watch=replace(watch, recovers=True), submission=found)",
        "return replace(ruling, submission=found)",
        "test_the_client_gets_the_recovered_answer[responses, a filter, streamed]",
        "test_refusal_gateway.py",
    ),
    "a second refusal is recovered from again": Mutant(
        "proxy_refusals.py",
        'if self.phase == "over":',
        "if False:",
        "test_our_attempts_are_two_where_the_operator_has_refusals_tried_again",
        "test_refusal_gateway.py",
    ),
    "input of the user resets nothing": Mutant(
        "evidence.py",
        "return Cleared(by_user=True, turn=self._turn.anchor)",
        "return None",
        "test_after_the_end_the_users_next_message_continues[whole-chat]",
    ),
}


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, id=name, marks=[] if name in IN_EVERY_RUN else [pytest.mark.mutant])
        for name, each in MUTANTS.items()
    ],
)
def test_a_broken_line_turns_a_test_through_the_proxy_red(mutant: Mutant, tmp_path: Path) -> None:
    """The mutated copy of the package and of the tests, run for itself: that test fails, and by an assertion."""
    break_lines(tmp_path, [mutant])

    done = run_tests(tmp_path, f"tests/{mutant.stands_in}::{mutant.noticed_by}")

    assert done.returncode == PYTEST_FAILED, done.stdout
    assert "AssertionError" in done.stdout or "assert " in done.stdout


def break_lines(folder: Path, lines: Iterable[Line]) -> None:
    """Copy the package and the tests into a folder, and break lines of the package, each of which stands there once."""
    for name in ("litellm_toolguard", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for broken in lines:
        file = folder / "litellm_toolguard" / broken.file
        text = file.read_text(encoding="utf-8")
        assert text.count(broken.line) == 1, f"`{broken.line}` stands {text.count(broken.line)} times in {broken.file}"
        file.write_text(text.replace(broken.line, broken.becomes), encoding="utf-8")


def run_tests(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Tests of the copy in a folder, in a process of their own."""
    options = ["-q", "-p", "no:cacheprovider", "-n", "0", "-m", ""]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


# ---------------------------------------------------------------------------------------------------- every detector


@dataclass(frozen=True)
class Breakage:
    """One kind of breaking, done to every detector at once, each by lines of its own.

    Args:
        lines: what is broken, by the name of the test's cases; the part of a name before a slash is the detector.
        noticed_by: the test that must notice, in every case.
        says: what its failure says, `{detector}` filled in: it failed for this reason and no other.
        spared: detectors, or (detector, dialect), to which it cannot be done, and why.
    """

    lines: Mapping[str, tuple[Line, ...]]
    noticed_by: str
    says: str
    spared: Mapping[DetectorName | tuple[DetectorName, str], str] = field(default_factory=dict)


TOLD: Final = "test_gateway_detectors.py::test_a_loop_is_told_and_ended"
CLEARED: Final = "test_gateway_detectors.py::test_a_count_that_was_cleared_starts_anew"
HELD_BACK: Final = "test_gateway_proposals.py::test_the_call_that_reaches_the_rung_is_held_back"


def of_detector(detector: DetectorName, line: str, becomes: str) -> tuple[Line, ...]:
    """A line of the detector's own file."""
    return (Line(f"detectors/{detector.replace('-', '_')}.py", line, becomes),)


OUTCOMES: Final[Mapping[str, tuple[Line, ...]]] = {
    "denied-call": of_detector(
        "denied-call", 'return member.judged.outcome.kind == "denied" and not member.judged.steered', "return False"
    ),
    "unknown-tool": of_detector("unknown-tool", 'if member.judged.outcome.kind == "unknown_tool"', "if False"),
    "invalid-arguments": of_detector(
        "invalid-arguments", 'if member.judged.outcome.kind == "invalid_arguments"', "if False"
    ),
    "stuck-range": of_detector("stuck-range", "if member.judged.beyond is not None", "if False"),
    "failing-call": of_detector("failing-call", 'if member.judged.outcome.kind == "failed"', "if False"),
    "failing-tool": of_detector(
        "failing-tool",
        'return kind in ("denied", "transient") or (judged.failed and not judged.rerun)',
        "return False",
    ),
    "repeated-call": of_detector("repeated-call", 'return ran and judged.role != "wait"', "return False"),
    "call-cycle": (
        Line(
            "evidence.py", "same = newest >= period and turn.prints[newest] == turn.prints[newest - period]", "same = 0"
        ),
    ),
    "same-answer": (Line("traces.py", 'return said if counts else ""', 'return ""'),),
    "idle-wait": of_detector("idle-wait", "if member.judged.outcome.kind in _ANSWERED", "if False"),
    "reread": (
        Line(
            "evidence.py",
            "return READ_WINDOW if full and len(set(turn.reads)) * DISTINCT_SHARE <= READ_WINDOW else 0",
            "return 0",
        ),
    ),
    "call-budget": of_detector("call-budget", "if member.judged.outcome.kind not in _NEVER_RAN", "if False"),
}

RESETS: Final[Mapping[str, tuple[Line, ...]]] = {
    "denied-call": of_detector("denied-call", "return streak.tool in recovered", "return False"),
    "unknown-tool": of_detector(
        "unknown-tool", "if any(exchange.outcome.kind not in _NEVER_REACHED_A_TOOL for", "if any(False for"
    ),
    "invalid-arguments": of_detector(
        "invalid-arguments", "draft.clear(lambda streak: streak.tool in recovered)", "pass"
    ),
    "stuck-range": of_detector("stuck-range", "draft.clear(lambda streak: streak.key.parts[0] in touched)", "pass"),
    "failing-call": of_detector("failing-call", "draft.clear(lambda streak: streak.tool in recovered)", "pass"),
    "failing-tool": of_detector("failing-tool", "draft.clear(lambda streak: streak.tool in recovered)", "pass"),
    "repeated-call": of_detector("repeated-call", "bool(changing - {streak.key.parts[0]})", "False"),
    "call-cycle": (
        Line(
            "evidence.py",
            "turn.equal_run[period] = turn.equal_run[period] + 1 if same else 0",
            "turn.equal_run[period] += same",
        ),
    ),
    # In Messages a result without the error flag is marked as a success: that is what keeps it from being counted.
    "same-answer": (
        *of_detector("same-answer", "bool(heard.get(streak.tool, set()) - {streak.key.parts[1]})", "False"),
        Line("traces.py", 'if self._outcome.kind != "unclear" or ', "if "),
    ),
    "idle-wait": of_detector("idle-wait", "or again == (key.kind == CHANGING) or", "or"),
    "reread": (Line("evidence.py", "turn.reads.clear()", "pass"),),
    # Nothing but input of the user clears a budget.
    "call-budget": (
        Line("walk.py", "cleared = DETECTORS if step.by_user else CLEARED_BY_EVENTS", "cleared = CLEARED_BY_EVENTS"),
    ),
}

HOLDS: Final[Mapping[str, tuple[Line, ...]]] = {
    "denied-call": (Line("proposals.py", "if call.key in walk.refused and (", "if False and ("),),
    "denied-call/tool": (Line("proposals.py", '("denied-call", "tool"): _a_member,', ""),),
    "denied-call/target": (Line("proposals.py", '("denied-call", "target"): _a_member,', ""),),
    "denied-call/category": (Line("proposals.py", '("denied-call", "category"): _a_member,', ""),),
    "unknown-tool": (Line("proposals.py", '("unknown-tool", ""): _a_member,', ""),),
    "invalid-arguments": (Line("proposals.py", '("invalid-arguments", ""): _a_member,', ""),),
    "stuck-range": (Line("proposals.py", '("stuck-range", ""): _a_member,', ""),),
    "failing-call": (Line("proposals.py", '("failing-call", ""): _a_member,', ""),),
    "failing-tool": (Line("proposals.py", '("failing-tool", ""): _a_member,', ""),),
    "failing-tool/transient": (Line("proposals.py", '("failing-tool", TRANSIENT): _a_member,', ""),),
    "repeated-call": (Line("proposals.py", '("repeated-call", ""): _same_working_call,', ""),),
    "call-cycle": (Line("proposals.py", '("call-cycle", ""): _closes_a_lap,', ""),),
    "idle-wait": (Line("proposals.py", '("idle-wait", ""): _same_wait,', ""),),
    "call-budget": (Line("proposals.py", '("call-budget", ""): _same_tool,', ""),),
}
NEVER_HELD: Final[Mapping[DetectorName | tuple[DetectorName, str], str]] = {
    "same-answer": "it counts calls with other arguments, and what a new call will answer is not known",
    "reread": "it only tells and has no rung at which a call could be held back",
}
ASKED_AGAIN: Final = (Line("session.py", "if more is None:", "if True:"),)

BREAKAGES: Final = {
    "the outcome is not known": Breakage(
        OUTCOMES,
        TOLD,
        "AssertionError: (None, None, None)\n",
        {("same-answer", "messages"): "a result without the error flag is marked as a success: nothing is counted"},
    ),
    "the count is not cleared": Breakage(RESETS, CLEARED, "AssertionError: ('hint', 'true', '{detector}')\n"),
    "the call is not held": Breakage(HOLDS, HELD_BACK, "Seen(asked=1, called=True, words='', told=False)", NEVER_HELD),
    "nobody is asked again": Breakage(
        dict.fromkeys(HOLDS, ASKED_AGAIN),
        HELD_BACK,
        f"Seen(asked=1, called=False, words={notes.END_PREFIX[:40]!r}, told=False)",
        NEVER_HELD,
    ),
}


@pytest.mark.parametrize("breakage", BREAKAGES.values(), ids=BREAKAGES)
def test_no_detector_is_left_out(breakage: Breakage) -> None:
    """Each is broken, or it is said why it cannot be."""
    broken = {name.partition("/")[0] for name in breakage.lines}
    assert broken | {each for each in breakage.spared if isinstance(each, str)} == set(DETECTORS)


def cases(breakage: Breakage) -> Iterator[tuple[str, str]]:
    """Each case of a breakage's test, and what its failure must say."""
    for name in breakage.lines:
        detector = name.partition("/")[0]
        for dialect in DIALECTS:
            if (detector, dialect) not in breakage.spared:
                for form in ("whole", "streamed"):
                    yield f"{name}-{dialect}-{form}", breakage.says.format(detector=detector)


CASES: Final = [
    pytest.param(kind, case, says, id=f"{kind}-{case}")
    for kind, breakage in BREAKAGES.items()
    for case, says in cases(breakage)
]


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Mapping[str, str]]:
    """What each case of a breakage's test says in the copy in which all detectors are broken; nothing where it did not
    fail, or while something was set up. Each copy is run once."""

    @cache
    def run(kind: str) -> Mapping[str, str]:
        breakage, folder = BREAKAGES[kind], tmp_path_factory.mktemp("broken")
        break_lines(folder, dict.fromkeys(line for lines in breakage.lines.values() for line in lines))
        report = folder / "report.xml"
        done = run_tests(folder, "--tb=line", f"--junitxml={report}", f"tests/{breakage.noticed_by}")
        assert done.returncode == PYTEST_FAILED, done.stdout
        return dict(failures_in(report))

    return run


def failures_in(report: Path) -> Iterator[tuple[str, str]]:
    """Each case of a JUnit report, and what its failure says."""
    for case in ET.parse(report).getroot().iter("testcase"):
        failure = case.find("failure")
        name = case.attrib["name"].partition("[")[2].removesuffix("]")
        yield name, "" if failure is None else failure.attrib["message"]


@mutant
@pytest.mark.parametrize("kind", BREAKAGES)
def test_no_case_is_left_out(kind: str, failures: Callable[[str], Mapping[str, str]]) -> None:
    """The test has the cases that are looked at below, and no others."""
    assert set(failures(kind)) == {case for case, _ in cases(BREAKAGES[kind])}


@mutant
@pytest.mark.parametrize(("kind", "case", "says"), CASES)
def test_a_broken_detector_is_noticed_in_every_dialect_and_form(
    kind: str, case: str, says: str, failures: Callable[[str], Mapping[str, str]]
) -> None:
    """Its case through the proxy fails, by the assertion that is meant."""
    assert says in failures(kind)[case]
