"""`toolguard check`: ok, or every error with its path and exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from litellm_toolguard.cli import main
from litellm_toolguard.policy import Policy
from litellm_toolguard.policy_reading import load_policy

GUARDRAIL = """
model_list: []
guardrails:
  - guardrail_name: other
    litellm_params: {guardrail: litellm_content_filter, mode: pre_call}
  - guardrail_name: toolguard
    litellm_params:
      guardrail: litellm_toolguard.ToolGuard
      mode: [pre_call, post_call]
      default_on: true
"""


def check(text: str | bytes, folder: Path, **files: str) -> Result:
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    file = folder / "file.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return CliRunner().invoke(main, ["check", str(file)])


GOOD = {
    "an empty policy": "",
    "a policy of one key": "enforcement: observe\n",
    "everything there is": """
enforcement: enforce
preset: lenient
on_error: reject
not_inspected: reject
detectors:
  repeated-call: {hint: 3, block: 5, stop: 8}
  failing-call: {hint: 4, reject: 6}
  failing-tool: off
  denied-call: {hint: 2, ask: 4, stop: 6, any_tool: {hint: 6, stop: 12}}
tools:
  - {match: ["*_status", write_stdin], role: wait}
  - {match: "deploy_*", allow: repeated-call, detectors: {failing-call: {stop: 3}}}
  - match: release
    results:
      - {starts_with: "FREEZE: ", outcome: denied, category: hook_blocked, with_error_flag: true}
      - {glob: "* is locked by ?*", outcome: transient}
      - {field: answer.ok, equals: true, outcome: succeeded}
""",
    "a store in a file": "store: sqlite:///toolguard.db\n",
    "a recording": "record: traffic.jsonl\nrecord_content: true\n",
    "a ladder whose rungs are equal": "detectors: {repeated-call: {hint: 3, stop: 3}}\n",
    "a config with the guardrail": GUARDRAIL,
    "a config with the guardrail and a policy": GUARDRAIL + "      toolguard: {enforcement: observe}\n",
    "a config with the callback": "litellm_settings: {callbacks: [litellm_toolguard.callback]}\n",
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_a_good_file_is_ok(text: str, tmp_path: Path) -> None:
    """Exit code 0, and the last word is ok."""
    result = check(text, tmp_path)

    assert (result.exit_code, result.output.splitlines()[-1]) == (0, f"{tmp_path / 'file.yaml'}: ok")


def result(entry: str) -> str:
    return f"tools: [{{match: a, results: [{entry}]}}]\n"


BAD = {
    "content of no recording": ("record_content: true\n", ["`record_content` says what is recorded, and nothing is"]),
    "a recording without a name": ("record: ''\n", ["record: "]),
    "a misspelt key": ("enforcment: observe\n", ["enforcment: unknown key; did you mean `enforcement`?"]),
    "a store that is none": ("store: redis://localhost\n", ["store: is `memory` or `sqlite:///path`"]),
    "a store without its path": ("store: sqlite:///\n", ["not 'sqlite:///'"]),
    "a store with a slash too few": ("store: sqlite://toolguard.db\n", ["not 'sqlite://toolguard.db'"]),
    "a store that is a folder": ("store: sqlite:///data/\n", ["not 'sqlite:///data/'"]),
    "a store that is a number": ("store: 3\n", ["store: must be text, not int"]),
    "a misspelt detector": (
        "detectors: {repeat-call: {stop: 8}}\n",
        ["detectors.repeat-call: unknown key; did you mean `repeated-call`?"],
    ),
    "a misspelt rung": (
        "detectors: {repeated-call: {hnt: 3, stop: 8}}\n",
        ["detectors.repeated-call.hnt: unknown key; did you mean `hint`?"],
    ),
    "a misspelt key of a tool": (
        "tools: [{match: a, rol: wait}]\n",
        ["tools[0].rol: unknown key; did you mean `role`?"],
    ),
    "a limit below two": (
        "detectors: {repeated-call: {hint: 1, stop: 8}}\n",
        ["detectors.repeated-call.hint: must be at least 2, not 1"],
    ),
    "a limit that is text": (
        "detectors: {repeated-call: {hint: '3', stop: 8}}\n",
        ["detectors.repeated-call.hint: must be a whole number, not text"],
    ),
    "a limit that is true": (
        "detectors: {repeated-call: {stop: true}}\n",
        ["detectors.repeated-call.stop: must be a whole number, not true or false"],
    ),
    "a ladder out of order": (
        "detectors: {failing-tool: {hint: 9, stop: 6}}\n",
        ["detectors.failing-tool: `hint` (9) is above `stop` (6)"],
    ),
    "a ladder without an end": (
        "detectors: {failing-tool: {hint: 9}}\n",
        ["detectors.failing-tool: a ladder ends in `stop` or in `reject`: give exactly one of them"],
    ),
    "a ladder with two ends": (
        "detectors: {failing-tool: {stop: 9, reject: 9}}\n",
        ["detectors.failing-tool: a ladder ends in `stop` or in `reject`: give exactly one of them"],
    ),
    "a ladder that is a number": (
        "detectors: {failing-tool: 9}\n",
        ["detectors.failing-tool: must be a mapping, not int"],
    ),
    "an unknown role": (
        "tools: [{match: a, role: polling}]\n",
        ["tools[0].role: 'polling' is none of 'read', 'write', 'wait', 'think' or 'shell'"],
    ),
    "a tool rule without a match": ("tools: [{role: wait}]\n", ["tools[0].match: is missing"]),
    "an unknown preset": ("preset: strikt\n", ["preset: 'strikt' is none of"]),
    "a tool rule that says nothing": (
        "tools: [{match: a}]\n",
        ["tools[0]: says nothing about these tools: give `role`, `identity`, `allow`, `detectors` or `results`"],
    ),
    "a detector without a value": (
        "detectors:\n  repeated-call:\n",
        ["detectors.repeated-call: is empty: give a ladder, or `off`"],
    ),
    "a key that is given twice": ("preset: strict\npreset: lenient\n", ["the key 'preset' is given twice at line 2"]),
    "an identity with both lists": (
        "tools: [{match: a, identity: {only: [x], ignore: [y]}}]\n",
        ["tools[0].identity: give `only` or `ignore`"],
    ),
    "a misspelt key of a result": (
        result("{glob: a, outcom: failed}"),
        ["tools[0].results[0].outcome: is missing", "tools[0].results[0].outcom: unknown key; did you mean `outcome`?"],
    ),
    "a result without an outcome": (result("{glob: a}"), ["tools[0].results[0].outcome: is missing"]),
    "a misspelt outcome": (
        result("{glob: a, outcome: denid}"),
        ["'invalid_arguments', 'unknown_tool' or 'denied'; did you mean `denied`?"],
    ),
    "an outcome that no text can say": (
        result("{glob: a, outcome: pending}"),
        ["tools[0].results[0].outcome: 'pending' is none of 'succeeded',"],
    ),
    "a misspelt category": (
        result("{glob: a, outcome: denied, category: policy_block}"),
        ["'policy_blocked' or 'tool_disabled'; did you mean `policy_blocked`?"],
    ),
    "a category of a failure": (
        result("{glob: a, outcome: failed, category: hook_blocked}"),
        ["tools[0].results[0]: `category` belongs to `outcome: denied`"],
    ),
    "an empty start": (result("{starts_with: '', outcome: failed}"), ["tools[0].results[0].starts_with: is empty"]),
    "a start of white space": (
        result("{starts_with: ' ', outcome: failed}"),
        ["tools[0].results[0].starts_with: starts with white space, which is left out of the comparison"],
    ),
    "a start that is a number": (
        result("{starts_with: 404, outcome: failed}"),
        ["tools[0].results[0].starts_with: must be text, not int"],
    ),
    "a start without an end": (
        result("{starts_with: " + 1001 * "a" + ", outcome: failed}"),
        ["tools[0].results[0].starts_with: must have at most 1000 characters"],
    ),
    "an empty glob": (result("{glob: '', outcome: failed}"), ["tools[0].results[0].glob: is empty"]),
    "a glob of wildcards": (
        result("{glob: '*? *', outcome: failed}"),
        ["tools[0].results[0].glob: holds nothing but wildcards, so it would match everything"],
    ),
    "a glob of two lines": (
        result('{glob: "a\\nb*", outcome: failed}'),
        ["tools[0].results[0].glob: holds a line break; a glob is compared with the first line only"],
    ),
    "a glob without an end": (
        result("{glob: " + 201 * "a" + ", outcome: failed}"),
        ["tools[0].results[0].glob: must have at most 200 characters"],
    ),
    "a result that nothing describes": (
        result("{outcome: failed}"),
        ["tools[0].results[0]: give exactly one of `starts_with`, `glob` and `field`"],
    ),
    "a result that two things describe": (
        result("{glob: a, starts_with: b, outcome: failed}"),
        ["tools[0].results[0]: give exactly one of `starts_with`, `glob` and `field`"],
    ),
    "a field without its value": (
        result("{field: ok, outcome: failed}"),
        ["tools[0].results[0]: `field` and `equals` belong together"],
    ),
    "a field whose value is not finished": (
        result("{field: ok, equals: , outcome: failed}"),
        ["tools[0].results[0].equals: must be text, a number, true or false"],
    ),
    "a field whose path has a hole": (
        result("{field: a..b, equals: 1, outcome: failed}"),
        ["tools[0].results[0].field: has an empty name in its path"],
    ),
    "a flag that is a word": (
        result("{glob: a, outcome: failed, with_error_flag: sometimes}"),
        ["tools[0].results[0].with_error_flag: must be true or false, not text"],
    ),
    "a list of no results": ("tools: [{match: a, results: []}]\n", ["tools[0].results: is empty"]),
    "results that are no list": (
        "tools: [{match: a, results: {glob: a, outcome: failed}}]\n",
        ["tools[0].results: must be a list, not a mapping"],
    ),
    "a match that is empty text": ("tools: [{match: '', role: wait}]\n", ["tools[0].match[0]: is empty"]),
    "several faults at once": (
        "preset: strikt\nwait: 3\non_error: ignore\n",
        ["preset: 'strikt'", "wait: unknown key; known are enforcement, preset,", "on_error: 'ignore' is none of"],
    ),
    "a list": ("- a\n", ["a policy is a mapping, not a list"]),
    "no YAML": ("a: [b\n", ["is not YAML:", "line 2"]),
    "no UTF-8": (b"\xff\xfe", ["is not UTF-8 text"]),
    "a config without the guard": ("model_list: []\n", ["guardrails: no entry loads litellm_toolguard.ToolGuard"]),
    "a config with a bad policy": (
        GUARDRAIL + "      toolguard: {detectors: {repeated-call: {hnt: 3, stop: 8}}}\n",
        ["guardrails[1].litellm_params.toolguard.detectors.repeated-call.hnt: unknown key; did you mean `hint`?"],
    ),
    "a config with a wrong mode": (
        GUARDRAIL.replace("[pre_call, post_call]", "during_call"),
        ["guardrails[1].litellm_params.mode: 'during_call' is not supported"],
    ),
    "a config without a mode": (
        GUARDRAIL.replace("mode: [pre_call, post_call]", ""),
        ["guardrails[1].litellm_params.mode: must be [pre_call, post_call]"],
    ),
    "a config that loads the class by a deeper name": (
        GUARDRAIL.replace("litellm_toolguard.ToolGuard", "litellm_toolguard.proxy.ToolGuard"),
        ["guardrails[1].litellm_params.guardrail: must be litellm_toolguard.ToolGuard"],
    ),
    "a config whose policy file is missing": (
        GUARDRAIL + "      toolguard: {policy: nowhere.yaml}\n",
        ["nowhere.yaml: cannot be read: No such file or directory"],
    ),
    "a config with a misspelt toolguard key": (
        GUARDRAIL + "      toolgard: {enforcement: observe}\n",
        ["guardrails[1].litellm_params.toolgard: unknown key; did you mean `toolguard`?"],
    ),
    "a config with a policy beside its key": (
        GUARDRAIL + "      enforcement: observe\n",
        ["guardrails[1].litellm_params.enforcement: is a key of the policy: put it under `toolguard:`"],
    ),
    "a config with a word for default_on": (
        GUARDRAIL.replace("default_on: true", "default_on: maybe"),
        ["guardrails[1].litellm_params.default_on: must be true or false; LiteLLM would start without it"],
    ),
    "a config with two guards that are always on": (
        GUARDRAIL + GUARDRAIL.partition("mode: pre_call}\n")[2].replace("name: toolguard", "name: second"),
        ["guardrails[2].litellm_params.default_on: guardrails[1] is always on already and judges first"],
    ),
    "a config with a guardrail in parallel": (
        GUARDRAIL + "      run_in_parallel: true\n",
        ["guardrails[1].litellm_params.run_in_parallel: LiteLLM discards"],
    ),
}


@pytest.mark.parametrize(("text", "says"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_with_the_path_of_every_fault(text: str | bytes, says: list[str], tmp_path: Path) -> None:
    """Exit code 2, a line per fault, nothing else."""
    result = check(text, tmp_path)

    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == (1 if "YAML" in says[0] else len(says))
    for line in says:
        assert line in result.stderr
    assert result.stdout == ""


def test_a_policy_file_is_found_beside_the_config(tmp_path: Path) -> None:
    """Relative to the config, not to the working directory; its faults name the file."""
    config = GUARDRAIL + "      toolguard: {policy: policy.yaml}\n"

    good = check(config, tmp_path, **{"policy.yaml": "preset: strict\n"})
    bad = check(config, tmp_path, **{"policy.yaml": "preset: strikt\n"})

    assert good.exit_code == 0
    assert bad.exit_code == 2
    assert f"{tmp_path / 'policy.yaml'}: preset: 'strikt' is none of" in bad.stderr


def test_a_policy_file_holds_the_whole_policy(tmp_path: Path) -> None:
    """Keys beside `policy` would be a second place for the same thing."""
    result = check(GUARDRAIL + "      toolguard: {policy: p.yaml, preset: strict}\n", tmp_path)

    assert result.exit_code == 2
    assert "toolguard.policy: `policy` names a file that holds the whole policy; move preset into it" in result.stderr


def test_a_file_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    """Exit code 2, no traceback."""
    result = CliRunner().invoke(main, ["check", str(tmp_path / "none.yaml")])

    assert (result.exit_code, result.stderr) == (
        2,
        f"{tmp_path / 'none.yaml'}: cannot be read: No such file or directory\n",
    )


def test_remarks_do_not_spoil_an_ok(tmp_path: Path) -> None:
    """What is allowed and worth knowing."""
    result = check(GUARDRAIL.replace("default_on: true", "default_on: false"), tmp_path)

    assert result.exit_code == 0
    assert "note: guardrails[1].litellm_params.default_on is not true" in result.stdout


def test_the_schema_is_json_and_knows_every_key() -> None:
    """`--schema` prints a JSON Schema that editors can use."""
    result = CliRunner().invoke(main, ["check", "--schema"])
    schema = json.loads(result.stdout)

    assert result.exit_code == 0
    assert set(schema["properties"]) == set(Policy.model_fields)
    assert "repeated-call" in schema["$defs"]["Detectors"]["properties"]


def test_without_a_file_it_says_what_is_missing() -> None:
    """Exit code 2, as for any bad input."""
    result = CliRunner().invoke(main, ["check"])

    assert result.exit_code == 2
    assert "give the FILE to check" in result.stderr


def test_the_module_and_the_command_line_import_no_litellm() -> None:
    """Importing litellm costs seconds; nothing but the edges does it."""
    program = (
        "import sys, litellm_toolguard, litellm_toolguard.cli, litellm_toolguard.gate\n"
        "assert not any(name.partition('.')[0] == 'litellm' for name in sys.modules), 'litellm was imported'\n"
        "assert {'ToolGuard', 'callback', 'scripted_models'} <= set(dir(litellm_toolguard))\n"
        "try:\n    litellm_toolguard.nothing\nexcept AttributeError as error:\n    print(error)\n"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "module 'litellm_toolguard' has no attribute 'nothing'\n"


def test_what_is_off_differs_from_what_is_not_given() -> None:
    """Two policies that differ in nothing else are told apart, also behind the look-ups that are remembered."""
    given, off = load_policy({}), load_policy({"detectors": {"repeated-call": "off"}})

    assert given.ladder("repeated-call", "", "read_file") is not None
    assert off.ladder("repeated-call", "", "read_file") is None
    assert given.ladder("repeated-call", "", "read_file") is not None


@pytest.mark.parametrize("content", [False, True])
def test_what_a_recording_keeps_is_said(tmp_path: Path, content: bool) -> None:
    """Before it is switched on."""
    result = check(f"record: traffic.jsonl\nrecord_content: {str(content).lower()}\n", tmp_path)

    (note, _) = result.stdout.splitlines()
    assert "writes every request and answer to traffic.jsonl" in note
    assert ("prompts, arguments and outputs as they are" in note) == content
    assert ("no content" in note) != content
