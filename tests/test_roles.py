"""Tool roles: every entry of the table, the conventions for polls, and what one call adds."""

from __future__ import annotations

import pytest

from litellm_toolguard.roles import (
    AGENT_TOOLS,
    MAX_COMMAND,
    MAX_NAME,
    Role,
    builtin_role,
    call_role,
    shell_command,
    target_path,
)

ENTRIES = [
    (agent, name, role) for agent, roles in AGENT_TOOLS.items() for role, names in roles.items() for name in names
]
NAMES = {name for _, name, _ in ENTRIES}


@pytest.mark.parametrize(("agent", "name", "role"), ENTRIES, ids=[f"{agent}-{name}" for agent, name, _ in ENTRIES])
def test_every_tool_of_the_table_has_its_role(agent: str, name: str, role: Role) -> None:
    assert agent
    assert builtin_role(name) == role


def test_the_table_covers_the_common_agents() -> None:
    assert len(NAMES) >= 100
    assert len(AGENT_TOOLS) >= 10


def test_no_name_has_two_roles() -> None:
    roles: dict[str, set[Role]] = {}
    for _, name, role in ENTRIES:
        roles.setdefault(name, set()).add(role)
    assert {name: found for name, found in roles.items() if len(found) > 1} == {}


def test_no_name_changes_its_role_in_lower_case() -> None:
    by_name = {name: role for _, name, role in ENTRIES}
    clashes = {name for name, role in by_name.items() if by_name.get(name.lower(), role) != role}
    assert clashes == set()


def test_a_name_is_listed_once_per_agent() -> None:
    for agent, roles in AGENT_TOOLS.items():
        names = [name for names in roles.values() for name in names]
        assert len(names) == len(set(names)), agent


@pytest.mark.parametrize(
    "name",
    [
        "get_job_status",
        "job_status",
        "get-job-status",
        "getJobStatus",
        "checkBuildStatus",
        "poll_job",
        "poll",
        "queue_poll",
        "wait_for_deploy",
        "wait",
        "browser_wait_for",
        "mcp__playwright__browser_wait_for",
        "mcp__ci__wait_for_run",
        "mcp__ci__get_run_status",
        "sleep",
        "await_result",
        "get_upload_progress",
        "waitForNavigation",
    ],
)
def test_a_conventional_name_of_a_poll_waits(name: str) -> None:
    assert builtin_role(name) == "wait"


@pytest.mark.parametrize(
    "name",
    [
        "set_status",
        "update_order_status",
        "mcp__linear__update_issue_status",
        "mark_read_status",
        "status_page_create",
        "waiter_list",
        "waitlist_add",
        "sleeping_bags",
        "polling_station",
        "pollute",
        "execute_sql",
        "Task",
        "Agent",
        "AskUserQuestion",
        "book_reservation",
        "calculate",
        "",
        "__",
        "mcp__x__",
    ],
)
def test_a_name_that_only_resembles_one_is_unknown(name: str) -> None:
    assert builtin_role(name) == "unknown"


def test_exact_names_come_before_the_globs() -> None:
    assert builtin_role("git_status") == "read"
    assert builtin_role("mcp__git__git_status") == "read"


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("mcp__filesystem__read_text_file", "read"),
        ("filesystem__write_file", "write"),
        ("mcp__thinking__sequentialthinking", "think"),
        ("mcp__memory__create_entities", "write"),
        ("mcp__linear-server__list_issues", "unknown"),
        ("mcp__linear-server__create_issue", "unknown"),
        ("mcp__db__insert", "unknown"),
        ("mcp__shop__view", "unknown"),
    ],
)
def test_the_last_part_of_an_mcp_name_counts_for_reference_servers_only(name: str, role: Role) -> None:
    assert builtin_role(name) == role


def test_the_case_of_a_name_is_forgiven() -> None:
    assert builtin_role("READ_FILE") == "read"
    assert builtin_role("GREP") == "read"
    assert builtin_role("ReadFIle") == "unknown"


def test_a_name_of_absurd_length_is_unknown() -> None:
    assert builtin_role("poll_" + "x" * MAX_NAME) == "unknown"


WAITING = [
    "sleep 60",
    "sleep 60; cat log",
    "sleep 5 && tail x",
    "  sleep 0.5\ncat log",
    "sleep 2m | true",
    "sleep 1h",
    "while ! curl -s localhost; do sleep 1; done",
    "until test -f done.txt; do sleep 5; done",
    "while true\ndo\n  sleep 5\ndone",
    "while kill -0 42; do wait 42; done",
    "wait",
    "wait 4242",
    "wait; echo done",
]
WORKING = [
    "make",
    "cat log; sleep 60",
    "sleeper 60",
    "sleep",
    "sleep $SECONDS",
    "sleep infinity",
    "sleep 1x2",
    "sleep .",
    "echo sleep 60",
    "wait-on http://localhost:3000",
    "waitress-serve app:app",
    "while read line; do echo $line; done < file",
    "while read line; do echo $line; sleep 1; done < file",
    "while docker ps; date; true",
    "for i in 1 2; do sleep 1; done",
    "",
    "whiled; do sleep 1",
]


@pytest.mark.parametrize("command", WAITING)
def test_a_command_that_only_waits_is_a_wait(command: str) -> None:
    assert call_role("shell", "Bash", {"command": command}) == "wait"


@pytest.mark.parametrize("command", WORKING)
def test_a_command_that_works_stays_a_shell_command(command: str) -> None:
    assert call_role("shell", "Bash", {"command": command}) == "shell"


def test_a_sleep_is_found_behind_every_usual_key() -> None:
    assert call_role("shell", "exec_command", {"cmd": "sleep 9"}) == "wait"
    assert call_role("shell", "shell", {"command": ["bash", "-lc", "sleep 60"]}) == "wait"
    assert call_role("shell", "shell", {"command": ["sleep", "60"]}) == "wait"
    assert call_role("shell", "local_shell", {"action": {"type": "exec", "command": ["sleep", "3"]}}) == "wait"


def test_only_shell_tools_are_looked_into() -> None:
    assert call_role("unknown", "deploy", {"command": "sleep 60"}) == "unknown"
    assert call_role("read", "Read", {"command": "sleep 60"}) == "read"
    assert call_role("write", "Edit", {"command": "sleep 60"}) == "write"


def test_a_call_without_readable_arguments_keeps_its_role() -> None:
    assert call_role("shell", "Bash", None) == "shell"
    assert call_role("shell", "Bash", {}) == "shell"
    assert call_role("shell", "Bash", {"command": 7}) == "shell"
    assert call_role("shell", "Bash", {"command": ["sleep", 60]}) == "shell"
    assert call_role("write", "Edit", None) == "write"


def test_a_loop_beyond_the_bound_is_not_looked_for() -> None:
    far = "while " + "x" * MAX_COMMAND + "; do sleep 1; done"
    assert call_role("shell", "Bash", {"command": far}) == "shell"


@pytest.mark.parametrize("arguments", [{}, {"chars": ""}, {"chars": None}, {"session_id": 4}])
def test_an_empty_write_to_a_running_command_is_a_wait(arguments: dict[str, object]) -> None:
    assert call_role("shell", "write_stdin", arguments) == "wait"


@pytest.mark.parametrize("chars", ["y", "\n", "\x03", " "])
def test_input_to_a_running_command_is_a_shell_command(chars: str) -> None:
    assert call_role("shell", "write_stdin", {"chars": chars}) == "shell"


def test_an_editor_that_only_views_reads() -> None:
    assert call_role("write", "str_replace_editor", {"command": "view", "path": "/a"}) == "read"
    assert call_role("write", "str_replace_based_edit_tool", {"command": "view"}) == "read"


def test_an_editor_that_edits_writes() -> None:
    assert call_role("write", "str_replace_editor", {"command": "str_replace", "path": "/a"}) == "write"
    assert call_role("write", "str_replace_editor", None) == "write"
    assert call_role("write", "memory_palace", {"command": "view"}) == "write"


def test_the_command_text_is_taken_as_written() -> None:
    assert shell_command({"command": " ls -l "}) == " ls -l "
    assert shell_command({"cmd": "ls"}) == "ls"
    assert shell_command({"command": ["/bin/bash", "-lc", "ls -l"]}) == "ls -l"
    assert shell_command({"command": ["git", "-c", "a=b", "log"]}) == "git -c a=b log"
    assert shell_command({"command": ["ls", "-l"]}) == "ls -l"


@pytest.mark.parametrize("arguments", [{}, {"command": None}, {"command": []}, {"command": [1]}, {"action": "ls"}])
def test_no_command_text_is_none(arguments: dict[str, object]) -> None:
    assert shell_command(arguments) is None


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"file_path": "/a/b.py"}, "/a/b.py"),
        ({"path": "./src//x/../Main.py"}, "src/Main.py"),
        ({"filePath": " a.py "}, "a.py"),
        ({"target_file": "A.PY"}, "A.PY"),
        ({"uri": "file:///a/./b"}, "/a/b"),
        ({"uri": "https://example.org//a/../b"}, "https://example.org//a/../b"),
        ({"notebook_path": "n.ipynb", "cell": 3}, "n.ipynb"),
        ({"file_path": "", "path": "x"}, "x"),
    ],
)
def test_the_path_of_a_call_is_normalised(arguments: dict[str, object], path: str) -> None:
    assert target_path(arguments) == path


@pytest.mark.parametrize("arguments", [{}, {"path": ""}, {"path": 3}, {"paths": ["a"]}, {"command": "cat a"}])
def test_a_call_without_a_path_has_none(arguments: dict[str, object]) -> None:
    assert target_path(arguments) is None
