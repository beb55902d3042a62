"""Every reported situation stands in docs/situations.md with a case of our own, or with the reason why it has none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

TESTS = Path(__file__).parent
TABLE = (TESTS.parent / "docs" / "situations.md").read_text(encoding="utf-8")

# fmt: off
NUMBERS = (
    1, 2, 3, 5, 6, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19, 20, 22, 23, 24, 26, 27, 29, 30, 31, 32, 34, 35, 36, 37,
    39, 40, 41, 43, 44, 45, 46, 48, 49, 50, 51, 53, 54, 55, 56, 57, 59, 60, 61, 63, 64, 66, 67, 68, 70, 71, 72, 73, 75,
    76, 78, 79, 80, 82, 83, 85,
)
# fmt: on
REASON = re.compile(r"(out of reach|not yet): \w.{10,}")
PROOF = re.compile(r"`([\w-]+)`: (\S.*)")


def _rows() -> Iterator[tuple[int, list[str]]]:
    """The number and the other cells of each row."""
    for line in TABLE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].isdecimal():
            yield int(cells[0]), cells[1:]


ROWS = dict(_rows())
CASES = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in (TESTS / "cases").glob("*.yaml")}


def _exists(file: str, name: str) -> bool:
    if file in CASES:
        return any(case["name"] == name for case in CASES[file])
    module = TESTS / f"{file}.py"
    return module.is_file() and f"def {name}(" in module.read_text(encoding="utf-8")


def test_every_situation_has_one_row() -> None:
    """All sixty-six, in order, none twice."""
    assert len(NUMBERS) == 66
    assert [number for number, _ in _rows()] == list(NUMBERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_row_is_whole(number: int) -> None:
    """It says what happens, what the guard does, and which cases show it; they exist."""
    situation, behaviour, proofs = ROWS[number]

    assert situation
    assert behaviour
    for proof in proofs.split("<br>"):
        found = PROOF.fullmatch(proof)
        assert found or REASON.fullmatch(proof), proof
        assert found is None or _exists(*found.groups()), proof


def test_every_case_of_a_situation_stands_in_its_row() -> None:
    """A case that names a situation is named by it."""
    named = [
        (case["situation"], f"`{file}`: {case['name']}")
        for file, cases in CASES.items()
        for case in cases
        if "situation" in case
    ]

    assert [(number, proof) for number, proof in named if proof not in ROWS[number][-1].split("<br>")] == []
