"""What clients write into results: every template, its flag, its anchors, and what must not match."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_toolguard.client_texts import (
    CLIENT_TEXTS,
    MAX_FLOATING,
    MAX_JSON,
    ClientText,
    DenialCategory,
    OutcomeKind,
    match_client_text,
)


def instance(entry: ClientText) -> str:
    """The text of an entry with invented variable parts."""
    if entry.json_fields:
        return json.dumps({name: template.replace("*", " deploy-9") for name, template in entry.json_fields})
    return entry.template.replace("*", "deploy-9")


def name_of(entry: ClientText) -> str:
    return f"{entry.client}-{(entry.template or str(entry.json_fields))[:40]!r}"


TEXTS = pytest.mark.parametrize("entry", CLIENT_TEXTS, ids=name_of)
FLAGGED = pytest.mark.parametrize("entry", [e for e in CLIENT_TEXTS if e.flagged], ids=name_of)
UNFLAGGED = pytest.mark.parametrize("entry", [e for e in CLIENT_TEXTS if not e.flagged], ids=name_of)
PLAIN = pytest.mark.parametrize("entry", [e for e in CLIENT_TEXTS if e.template], ids=name_of)
ANCHORED = pytest.mark.parametrize(
    "entry", [e for e in CLIENT_TEXTS if e.template and not e.template.startswith("*")], ids=name_of
)
CLOSED = pytest.mark.parametrize(
    "entry", [e for e in CLIENT_TEXTS if e.template and not e.template.endswith("*")], ids=name_of
)
JSON_ERRORS = pytest.mark.parametrize("entry", [e for e in CLIENT_TEXTS if e.json_error], ids=name_of)


@TEXTS
def test_every_entry_is_found_by_its_own_text(entry: ClientText) -> None:
    assert match_client_text(instance(entry), is_error=True, has_flag=True) is entry
    assert match_client_text(instance(entry), is_error=None, has_flag=False) is entry


@TEXTS
def test_space_around_a_text_changes_nothing(entry: ClientText) -> None:
    assert match_client_text(f"\n{instance(entry)} \n", is_error=True, has_flag=True) is entry


@FLAGGED
@pytest.mark.parametrize("is_error", [False, None])
def test_a_flagged_text_without_the_flag_does_not_count(entry: ClientText, is_error: bool | None) -> None:
    found = match_client_text(instance(entry), is_error=is_error, has_flag=True)
    assert found is None or not found.flagged


@UNFLAGGED
@pytest.mark.parametrize("is_error", [False, None, True])
def test_an_unflagged_text_counts_with_any_flag(entry: ClientText, is_error: bool | None) -> None:
    assert match_client_text(instance(entry), is_error=is_error, has_flag=True) is entry


@ANCHORED
def test_a_text_inside_a_longer_output_does_not_count(entry: ClientText) -> None:
    output = f"3 files changed\n{instance(entry)}\ndone"
    assert match_client_text(output, is_error=True, has_flag=True) is None
    assert match_client_text(output, is_error=None, has_flag=False) is None


@CLOSED
def test_a_closed_text_with_more_lines_behind_it_does_not_count(entry: ClientText) -> None:
    found = match_client_text(f"{instance(entry)}\n# the next line of the file", is_error=True, has_flag=True)
    assert found is None or found.template.endswith("*")


@PLAIN
def test_a_source_file_that_quotes_a_text_does_not_count(entry: ClientText) -> None:
    source = f"const MESSAGE = {instance(entry)!r}\nexport default MESSAGE\n"
    assert match_client_text(source, is_error=True, has_flag=True) is None


@PLAIN
def test_the_wrapper_of_claude_code_is_taken_off(entry: ClientText) -> None:
    wrapped = f"<tool_use_error>{instance(entry)}</tool_use_error>"
    found = match_client_text(wrapped, is_error=True, has_flag=True)
    assert found is entry or entry.template.startswith("*")


@JSON_ERRORS
def test_the_error_of_a_json_body_counts(entry: ClientText) -> None:
    for body in ({"error": instance(entry)}, {"error": {"message": instance(entry)}, "id": 4}):
        assert match_client_text(json.dumps(body), is_error=True, has_flag=True) is entry


CASES: list[tuple[str, OutcomeKind, DenialCategory | None, bool]] = [
    (
        "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, "
        "the new_string was NOT written to the file). To tell you how to proceed, the user said:\nuse the other branch",
        "denied",
        "user_rejected",
        True,
    ),
    (
        "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, "
        "the new_string was NOT written to the file). STOP what you are doing and wait for the user to tell you how "
        "to proceed.",
        "denied",
        "user_rejected",
        False,
    ),
    ("Permission to use Bash with command rm -rf build has been denied.", "denied", "permission_denied", False),
    ("Permission for this action has been denied. Reason: it pushes to main", "denied", "policy_blocked", False),
    (
        "Claude requested permissions to write to /srv/a, but you haven't granted it yet.",
        "denied",
        "permission_denied",
        False,
    ),
    ("PreToolUse:Bash hook error: run the tests first", "denied", "hook_blocked", False),
    ("<tool_use_error>Error: No such tool available: Deploy</tool_use_error>", "unknown_tool", None, False),
    (
        "<tool_use_error>InputValidationError: Read failed due to the following issue:\nno file_path</tool_use_error>",
        "invalid_arguments",
        None,
        False,
    ),
    ("<tool_use_error>Sibling tool call errored</tool_use_error>", "cancelled", None, False),
    ("<tool_use_error>Cancelled: parallel tool call Bash(make) errored</tool_use_error>", "cancelled", None, False),
    ("Exit code 137\n[Request interrupted by user for tool use]\nrunning", "cancelled", None, False),
    ("exec_command failed: exec command rejected by user", "denied", "user_rejected", False),
    ("exec_command failed for `git push`: rejected by user", "denied", "user_rejected", False),
    ("`rm -rf /` rejected: blocked by policy", "denied", "policy_blocked", False),
    ("aborted by user after 2.5s", "failed", None, False),
    ("Wall time: 3 seconds\naborted by user", "failed", None, False),
    (
        "The action was not executed because automatic approval review could not be completed. Try later.",
        "transient",
        None,
        False,
    ),
    ("command timed out after 5000 milliseconds", "failed", None, False),
    ("unsupported call: deploy", "unknown_tool", None, False),
    (
        "The user rejected permission to use this specific tool call with the following feedback: not on Fridays",
        "denied",
        "user_rejected",
        True,
    ),
    (
        "The bash tool was called with invalid arguments: command is missing.\n"
        "Please rewrite the input so it satisfies the expected schema.",
        "invalid_arguments",
        None,
        False,
    ),
    ("half of it\n\n<metadata>\nUser aborted the command\n</metadata>", "failed", None, False),
    (
        "1..2\n<bash_metadata>\nshell tool terminated command after exceeding timeout 9000 ms.\n</bash_metadata>",
        "failed",
        None,
        False,
    ),
    ('{"error": "[Operation Cancelled] Reason: User denied execution."}', "denied", "user_rejected", False),
    ('{"error": "[Operation Cancelled] Reason: User cancelled operation"}', "cancelled", None, False),
    ('{"error": "Tool execution denied by policy."}', "denied", "policy_blocked", False),
    ('{"error": "Tool \\"x\\" not found in registry."}', "unknown_tool", None, False),
    ('{"status":"denied","message":"The user denied this operation."}', "denied", "user_rejected", False),
    ('{"status":"denied","feedback":"ask me first"}', "denied", "user_rejected", True),
    ('{"status":"error","type":"access_denied","path":"a"}', "denied", "policy_blocked", False),
    (
        "The user denied this operation and provided the following feedback:\n<feedback>\nno\n</feedback>",
        "denied",
        "user_rejected",
        True,
    ),
    (
        '{"output":"","exit_code":-1,"error":"BLOCKED (hardline): rm. This command is on the list","status":"blocked"}',
        "denied",
        "policy_blocked",
        False,
    ),
    ("Exec denied (gateway id=g, user-denied): rm a", "denied", "user_rejected", False),
    ("Exec denied (gateway id=g, approval-timeout): rm a", "denied", "permission_denied", False),
    ("Action rejected: User rejected the action", "denied", "user_rejected", False),
    ("User rejected the tool call for `pay` with reason: too much", "denied", "user_rejected", True),
    ("The tool call was denied.", "denied", "user_rejected", False),
    ('{"error": "This tool call requires confirmation, please approve or reject."}', "pending", None, False),
    ("Error:\nUnknown tool deploy, should be one of: a, b\nNow let's retry", "unknown_tool", None, False),
    (
        "Tool 'search' has reached its usage limit of 3 times and cannot be used anymore.",
        "denied",
        "tool_disabled",
        False,
    ),
    ("Error executing tool query: timeout", "failed", None, False),
    ("Unknown tool: query", "unknown_tool", None, False),
]


@pytest.mark.parametrize(("text", "outcome", "category", "words"), CASES, ids=[case[0][:50] for case in CASES])
def test_a_text_has_its_outcome(text: str, outcome: OutcomeKind, category: DenialCategory | None, words: bool) -> None:
    found = match_client_text(text, is_error=True, has_flag=True)
    assert found is not None
    assert (found.outcome, found.category, found.user_words) == (outcome, category, words)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "ok",
        "{",
        "{}",
        "[]",
        "{" * 5_000,
        '{"a":' * 4_000,
        '{"error": null}',
        '{"error": 3, "status": "denied"}',
        '{"error": "connection refused"}',
        '{"status": "denied", "application": "loan"}',
        '{"status": "denied", "message": "insufficient income"}',
        '{"log": "[Operation Cancelled] Reason: User denied execution."}',
        '{"error": "' + "x" * MAX_JSON + '"}',
        "bash: /srv/a: Permission denied",
        "ERROR: permission denied for table orders",
        "permission denied: /srv/a",
        "cat: /srv/a: Operation not permitted",
        "Permission to use the camera is asked for by the app.",
        "Tool calls are counted per minute.",
        "Exit code 1\nAssertionError: [Request interrupted by user for tool use]",
        "Exit code 1\n[Request interrupted by user for tool use]",
        "Process exited with code 1\nOutput:\nexec command rejected by user",
        "Error: ENOENT: no such file",
        "<tool_use_error>File does not exist.</tool_use_error>",
        "<tool_use_error>Sibling tool call errored",
        "<tool_use_error>",
        "Error: Error: Error: Error: Error: patch rejected by user",
        "exec_command failed for `ls",
        "x" * MAX_FLOATING + "\n<metadata>\nUser aborted the command\n</metadata>",
        "The user rejected the offer in 2021.",
        "the tool call was denied.",
        "# Notes\nThe tool call was denied.",
    ],
    ids=lambda text: text[:40],
)
def test_an_ordinary_result_is_no_client_text(text: str) -> None:
    assert match_client_text(text, is_error=True, has_flag=True) is None
    assert match_client_text(text, is_error=None, has_flag=False) is None


def test_denials_and_only_denials_have_a_category() -> None:
    assert [e for e in CLIENT_TEXTS if (e.outcome == "denied") != (e.category is not None)] == []


def test_words_of_the_user_need_a_variable_part() -> None:
    assert all("*" in (e.template or str(e.json_fields)) for e in CLIENT_TEXTS if e.user_words)


def test_no_template_stands_twice() -> None:
    keys = [(entry.template, entry.json_fields) for entry in CLIENT_TEXTS]
    assert len(keys) == len(set(keys))


def test_the_table_covers_many_clients() -> None:
    assert len({entry.client for entry in CLIENT_TEXTS}) >= 30


def test_every_entry_has_enough_of_a_literal() -> None:
    for entry in CLIENT_TEXTS:
        assert entry.json_fields or len(entry.template.replace("*", "")) >= 13, entry
        assert "**" not in entry.template


def test_a_text_can_be_told_from_its_more_specific_sibling() -> None:
    plain = "The arguments provided to the tool are invalid: no command"
    unknown = "The arguments provided to the tool are invalid: Model tried to call unavailable tool 'x'."
    assert [
        getattr(match_client_text(t, is_error=None, has_flag=False), "outcome", None) for t in (plain, unknown)
    ] == [
        "invalid_arguments",
        "unknown_tool",
    ]


FRAGMENTS = [
    *sorted({part for e in CLIENT_TEXTS for part in e.template.split("*")}),
    "{",
    '"error": ',
    "}",
    "<tool_use_error>",
]


@given(st.text(), st.sampled_from([True, False, None]), st.booleans())
def test_no_text_raises(text: str, is_error: bool | None, has_flag: bool) -> None:
    match_client_text(text, is_error=is_error, has_flag=has_flag)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=6))
def test_no_mixture_of_templates_raises(parts: list[str]) -> None:
    match_client_text("".join(parts), is_error=True, has_flag=True)


@given(
    st.dictionaries(
        st.sampled_from(["error", "status", "type", "message"]), st.recursive(st.none() | st.text(), st.lists)
    )
)
def test_no_json_body_raises(body: dict[str, object]) -> None:
    match_client_text(json.dumps(body), is_error=True, has_flag=True)


@pytest.mark.parametrize("start", ["", "Permission to use ", "The ", "`", "Tool '", "{", "Error: "])
def test_a_long_result_costs_little(start: str) -> None:
    text = start + "some line of output\n" * 1_000
    match_client_text(text, is_error=None, has_flag=False)
    begin = time.perf_counter()
    for _ in range(100):
        match_client_text(text, is_error=None, has_flag=False)
    assert time.perf_counter() - begin < 0.5
