"""Every detector is a page: its docstring says the same five things."""

from __future__ import annotations

from importlib import import_module

import pytest

from litellm_toolguard.detectors import FOLDS
from litellm_toolguard.policy import DETECTORS

SECTIONS = ("What it detects:", "Why it matters:", "Example:", "Not reported:", "Settings:")


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_is_a_page(name: str) -> None:
    """The sections stand in order in the docstring of the file that is named like the detector."""
    page = import_module(f"litellm_toolguard.detectors.{name.replace('-', '_')}").__doc__ or ""
    places = [page.find(section) for section in SECTIONS]

    assert -1 not in places
    assert places == sorted(places)


def test_every_detector_of_the_policy_has_a_fold() -> None:
    """In the same order, which breaks ties."""
    assert tuple(FOLDS) == DETECTORS
