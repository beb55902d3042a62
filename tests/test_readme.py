"""The README's examples are what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from litellm_toolguard.cli import main
from litellm_toolguard.policy import DETECTORS

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_config_and_policy_of_the_readme_is_ok(example: str, tmp_path: Path) -> None:
    """`toolguard check` says so."""
    file = tmp_path / "example.yaml"
    file.write_text(example, encoding="utf-8")
    result = CliRunner().invoke(main, ["check", str(file)])

    assert (result.exit_code, result.output.splitlines()[-1]) == (0, f"{file}: ok")


def test_every_detector_stands_in_the_readme() -> None:
    """In the order in which they decide."""
    named = re.findall(r"^\| `([a-z-]+)` \|", README, re.MULTILINE)

    assert [name for name in named if name in DETECTORS] == list(DETECTORS)
