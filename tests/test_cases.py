"""The verdicts as data: every case of `tests/cases/*.yaml`, in every dialect, judged as a live gateway would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from litellm_toolguard.policy_reading import load_policy
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, live

FOLDER = Path(__file__).parent / "cases"
FILES = sorted(FOLDER.glob("*.yaml"))


def _cases() -> Iterator[Any]:
    for file in FILES:
        for case in yaml.safe_load(file.read_text(encoding="utf-8")):
            for dialect in case.get("dialects", DIALECTS):
                yield pytest.param(case, file.stem, dialect, id=f"{file.stem}: {case['name']} [{dialect}]")


def _expected(line: str, detector: str) -> tuple[int, str, str]:
    number, action, *named = line.split()
    return int(number), action, named[0] if named else detector


# A case names its detector where its file does not.
DEFAULT_DETECTOR = {
    "turns": "repeated-call",
    "failing": "",
    "situations": "",
    "repeated-call": "",
    "operator-texts": "denied-call",
}


@pytest.mark.parametrize(("case", "file", "dialect"), list(_cases()))
def test_case(case: dict[str, Any], file: str, dialect: Dialect) -> None:
    """The guard says exactly what the case expects, at exactly these rounds; nothing where nothing is expected."""
    seen = live(dialect, case["steps"], load_policy(case.get("policy")), case.get("request"))

    default = DEFAULT_DETECTOR.get(file, file)
    expected = [_expected(line, default) for line in case.get("expect", [])]
    assert [_named(event, want) for event, want in _aligned(seen.events, expected)] == expected


def _aligned(events: list[tuple[int, str, str]], expected: list[tuple[int, str, str]]) -> Iterator[tuple[Any, Any]]:
    padding = [None] * max(0, len(events) - len(expected))
    return zip(events, [*expected, *padding], strict=False)


def _named(event: tuple[int, str, str], want: tuple[int, str, str] | None) -> tuple[int, str, str]:
    """A case that names no detector leaves it open."""
    return (*event[:2], "") if want is not None and not want[2] else event


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_silence_is_tested_as_hard_as_voice(file: Path) -> None:
    """At least as many cases stay silent as fire, over all files, and every name is said once."""
    cases = [case for each in FILES for case in yaml.safe_load(each.read_text(encoding="utf-8"))]
    names = [case["name"] for case in yaml.safe_load(file.read_text(encoding="utf-8"))]

    assert sum("expect" not in case for case in cases) >= sum("expect" in case for case in cases)
    assert len(names) == len(set(names))
