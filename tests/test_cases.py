"""The verdicts as data: every case of `tests/cases/*.yaml`, in every dialect, judged as a live gateway would."""

from __future__ import annotations

import pytest

from litellm_toolguard.transcript import Dialect
from tests.verdict_cases import Case, cases

EACH = [
    pytest.param(case, dialect, id=f"{case.id} [{dialect}]") for case in cases().values() for dialect in case.dialects
]


@pytest.mark.parametrize(("case", "dialect"), EACH)
def test_case(case: Case, dialect: Dialect) -> None:
    """The guard says exactly what the case expects, at exactly these rounds; nothing where nothing is expected."""
    assert case.difference(dialect) == ""


def test_silence_is_tested_as_hard_as_voice() -> None:
    """At least as many cases stay silent as fire."""
    silent = [case for case in cases().values() if not case.expect]

    assert 2 * len(silent) >= len(cases())
