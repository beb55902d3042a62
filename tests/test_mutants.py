"""Each fact that the guard stands on is broken once: a test of a real request through a real proxy must go red."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.proxy

ROOT = Path(__file__).parents[1]
PYTEST_FAILED = 1


@dataclass(frozen=True)
class Mutant:
    """One line, what it becomes, and the test that must notice."""

    file: str
    line: str
    becomes: str
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
        "return len(held) < policy.block_samples and len(held) + 1 < policy.max_samples",
        "return False",
        "test_a_looping_agent_is_told_and_then_ended[whole-responses]",
    ),
    "what was held back is forgotten": Mutant(
        "proxy.py",
        "await asyncio.to_thread(facts.remember_block, effect.position, effect.blocks)",
        "pass",
        "test_workers_and_restarts_share_what_a_store_keeps",
        "test_store_gateway.py",
    ),
    "no budget is looked at": Mutant(
        "proxy_answers.py",
        " or _is_over_budget(self.key, spent)",
        "",
        "test_a_key_without_money_gets_no_second_sample[streamed-chat]",
        "test_answers.py",
    ),
    "input of the user resets nothing": Mutant(
        "evidence.py",
        "return Cleared(by_user=True, turn=self._turn.anchor)",
        "return None",
        "test_after_the_end_the_users_next_message_continues[whole-chat]",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_broken_line_turns_a_test_through_the_proxy_red(mutant: Mutant, tmp_path: Path) -> None:
    """The mutated copy of the package and of the tests, run for itself: that test fails, and by an assertion."""
    for folder in ("litellm_toolguard", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file = tmp_path / "litellm_toolguard" / mutant.file
    text = file.read_text(encoding="utf-8")
    assert text.count(mutant.line) == 1
    file.write_text(text.replace(mutant.line, mutant.becomes), encoding="utf-8")

    options = ["-q", "-p", "no:cacheprovider", "-n", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"tests/{mutant.stands_in}::{mutant.noticed_by}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == PYTEST_FAILED, done.stdout
    assert "AssertionError" in done.stdout or "assert " in done.stdout
