"""What kind of work a tool does: one table by agent, a few conventions for polls, and what one call adds to it.

`builtin_role` goes by the name alone, `call_role` by the name and the arguments. A wrong `read` may end a healthy
session and a wrong `write` or `unknown` only delays a note, so names in doubt are left out.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["read", "write", "wait", "think", "shell", "unknown"]

MAX_NAME = 256
MAX_COMMAND = 4_000
MAX_PATH = 4_096

AGENT_TOOLS: Mapping[str, Mapping[Role, tuple[str, ...]]] = MappingProxyType(
    {
        "claude-code": {
            "read": (
                "Read",
                "Grep",
                "Glob",
                "LS",
                "LSP",
                "NotebookRead",
                "WebFetch",
                "WebSearch",
                "TodoRead",
                "TaskList",
                "TaskGet",
                "ListMcpResourcesTool",
                "ReadMcpResourceTool",
                "ToolSearch",
            ),
            "write": ("Edit", "MultiEdit", "Write", "NotebookEdit", "TodoWrite", "TaskCreate", "TaskUpdate"),
            "wait": ("TaskOutput", "BashOutput", "AgentOutputTool", "AgentOutput"),
            "shell": ("Bash", "PowerShell"),
        },
        "codex": {
            "read": (
                "view_image",
                "list_mcp_resources",
                "list_mcp_resource_templates",
                "read_mcp_resource",
                "tool_search",
            ),
            "write": ("apply_patch", "update_plan"),
            "wait": ("wait_agent", "wait", "list_agents"),
            "shell": ("exec_command", "shell", "shell_command", "local_shell", "container.exec", "write_stdin"),
        },
        "opencode": {
            "read": ("read", "grep", "glob", "list", "webfetch", "websearch", "codesearch", "todoread", "lsp"),
            "write": ("edit", "write", "multiedit", "patch", "todowrite"),
            "shell": ("bash",),
        },
        "gemini-cli": {
            "read": (
                "read_file",
                "read_many_files",
                "list_directory",
                "glob",
                "search_file_content",
                "grep_search",
                "web_fetch",
                "google_web_search",
                "get_internal_docs",
            ),
            "write": ("write_file", "replace", "save_memory", "write_todos"),
            "shell": ("run_shell_command",),
        },
        "qwen-code": {
            "read": ("read_file", "read_many_files", "list_directory", "grep_search", "web_search", "web_fetch"),
            "write": ("edit", "write_file", "todo_write", "save_memory"),
            "shell": ("run_shell_command",),
        },
        "cline": {
            "read": (
                "read_file",
                "list_files",
                "search_files",
                "list_code_definition_names",
                "access_mcp_resource",
                "web_fetch",
                "web_search",
                "load_mcp_documentation",
            ),
            "write": ("write_to_file", "replace_in_file", "apply_patch"),
            "shell": ("execute_command",),
        },
        "roo-code": {
            "read": (
                "read_file",
                "list_files",
                "search_files",
                "codebase_search",
                "list_code_definition_names",
                "fetch_instructions",
                "access_mcp_resource",
            ),
            "write": (
                "write_to_file",
                "apply_diff",
                "insert_content",
                "search_and_replace",
                "search_replace",
                "edit_file",
                "update_todo_list",
            ),
            "wait": ("read_command_output",),
            "shell": ("execute_command",),
        },
        "goose": {
            "read": (
                "developer__list_windows",
                "developer__screen_capture",
                "developer__image_processor",
                "developer__analyze",
                "platform__read_resource",
                "platform__list_resources",
            ),
            "write": (
                "developer__text_editor",
                "developer__write",
                "developer__edit",
                "todo__write",
                "todo__todo_write",
            ),
            "shell": ("developer__shell",),
        },
        "copilot-cli": {
            "read": ("view", "grep", "glob", "web_fetch", "web_search", "list_bash", "list_powershell"),
            "write": ("create", "edit", "update_todo", "store_memory"),
            "wait": ("read_bash", "read_powershell", "read_agent"),
            "think": ("report_intent",),
            "shell": ("bash", "powershell", "write_bash", "write_powershell"),
        },
        "vscode-copilot": {
            "read": (
                "read_file",
                "file_search",
                "grep_search",
                "semantic_search",
                "list_dir",
                "get_errors",
                "get_changed_files",
                "list_code_usages",
                "fetch_webpage",
                "github_repo",
                "get_search_view_results",
                "read_project_structure",
                "get_vscode_api",
                "terminal_last_command",
                "terminal_selection",
                "get_project_setup_info",
            ),
            "write": (
                "create_file",
                "create_directory",
                "insert_edit_into_file",
                "replace_string_in_file",
                "multi_replace_string_in_file",
                "apply_patch",
                "edit_notebook_file",
                "manage_todo_list",
                "create_new_jupyter_notebook",
                "install_extension",
            ),
            "wait": ("get_terminal_output", "await_terminal", "get_task_output"),
            "shell": ("run_in_terminal",),
        },
        "openhands": {
            "write": ("str_replace_editor", "file_editor", "task_tracker", "edit_file"),
            "think": ("think",),
            "shell": ("execute_bash", "terminal", "execute_ipython_cell"),
        },
        "kimi-cli": {
            "read": ("ReadFile", "ReadMediaFile", "Glob", "Grep", "SearchWeb", "FetchURL"),
            "write": ("WriteFile", "StrReplaceFile", "PatchFile", "SetTodoList", "TodoList"),
            "think": ("Think",),
            "shell": ("Bash", "Shell"),
        },
        "swe-agent": {
            "read": ("find_file", "search_dir", "search_file", "scroll_up", "scroll_down", "goto"),
            "write": ("create", "edit", "insert", "str_replace_editor"),
            "shell": ("bash",),
        },
        "cursor": {
            "read": (
                "read_file",
                "list_dir",
                "grep_search",
                "file_search",
                "codebase_search",
                "web_search",
                "read_lints",
                "glob_file_search",
                "fetch_rules",
                "fetch_pull_request",
                "ReadLints",
                "SemanticSearch",
            ),
            "write": (
                "edit_file",
                "search_replace",
                "delete_file",
                "todo_write",
                "update_memory",
                "StrReplace",
                "Delete",
            ),
            "wait": ("Await",),
            "shell": ("run_terminal_cmd", "run_terminal_command_v2", "Shell"),
        },
        "zed": {
            "read": (
                "read_file",
                "grep",
                "find_path",
                "list_directory",
                "diagnostics",
                "fetch",
                "web_search",
                "now",
                "project_notifications",
            ),
            "write": ("edit_file", "create_directory", "copy_path", "move_path", "delete_path", "save_file"),
            "think": ("thinking",),
            "shell": ("terminal",),
        },
        "crush": {
            "read": (
                "view",
                "ls",
                "glob",
                "grep",
                "fetch",
                "agentic_fetch",
                "sourcegraph",
                "lsp_diagnostics",
                "lsp_references",
                "web_search",
            ),
            "write": ("edit", "multiedit", "write", "download", "todos"),
            "wait": ("job_output",),
            "shell": ("bash",),
        },
        "continue": {
            "read": (
                "read_file",
                "read_currently_open_file",
                "read_file_range",
                "grep_search",
                "file_glob_search",
                "ls",
                "view_diff",
                "view_repo_map",
                "view_subdirectory",
                "search_web",
                "fetch_url_content",
                "codebase",
            ),
            "write": (
                "edit_existing_file",
                "single_find_and_replace",
                "multi_edit",
                "create_new_file",
                "create_rule_block",
            ),
            "shell": ("run_terminal_command",),
        },
        "anthropic-tools": {
            "read": (
                "web_search",
                "web_fetch",
                "tool_search_tool_regex",
                "tool_search_tool_bm25",
            ),
            "write": (
                "str_replace_editor",
                "str_replace_based_edit_tool",
                "text_editor_code_execution",
                "memory",
                "computer",
            ),
            "shell": ("bash", "bash_code_execution", "code_execution"),
        },
        "openai-tools": {
            "read": ("file_search", "web_search", "web_search_preview", "web_search_call"),
            "write": ("apply_patch", "image_generation", "computer_use_preview"),
            "shell": ("local_shell", "shell", "code_interpreter"),
        },
        "mcp-filesystem": {
            "read": (
                "read_file",
                "read_text_file",
                "read_media_file",
                "read_multiple_files",
                "list_directory",
                "list_directory_with_sizes",
                "directory_tree",
                "search_files",
                "get_file_info",
                "list_allowed_directories",
            ),
            "write": ("write_file", "edit_file", "create_directory", "move_file"),
        },
        "mcp-git": {
            "read": (
                "git_status",
                "git_diff",
                "git_diff_unstaged",
                "git_diff_staged",
                "git_log",
                "git_show",
                "git_branch",
            ),
            "write": (
                "git_add",
                "git_commit",
                "git_reset",
                "git_checkout",
                "git_create_branch",
                "git_init",
            ),
        },
        "mcp-fetch": {"read": ("fetch",)},
        "mcp-memory": {
            "read": ("read_graph", "search_nodes", "open_nodes"),
            "write": (
                "create_entities",
                "create_relations",
                "add_observations",
                "delete_entities",
                "delete_observations",
                "delete_relations",
            ),
        },
        "mcp-sequential-thinking": {"think": ("sequentialthinking", "sequential_thinking")},
        "mcp-time": {"read": ("get_current_time", "convert_time")},
    }
)

WAIT_GLOBS: tuple[str, ...] = (
    "*_status",
    "poll",
    "poll_*",
    "*_poll",
    "wait",
    "wait_*",
    "*_wait",
    "*_wait_for",
    "await_*",
    "sleep",
    "sleep_*",
    "get_*_progress",
    "check_*_progress",
    "waitfor*",
    "get*status",
    "check*status",
)
"""Conventional names of polls, tried in lower case with `_` for `-`, after the exact names."""

SETTERS: frozenset[str] = frozenset(
    (
        "set",
        "update",
        "change",
        "modify",
        "edit",
        "patch",
        "put",
        "post",
        "mark",
        "reset",
        "toggle",
        "clear",
        "write",
        "send",
        "create",
        "add",
        "remove",
        "delete",
        "save",
        "publish",
        "transition",
    )
)
"""First words of names that change a status, which no glob of WAIT_GLOBS may turn into a poll."""

_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "fish", "powershell", "pwsh", "cmd"})
_COMMAND_FLAGS = frozenset({"-c", "-lc", "-ic", "-cl", "-ilc", "-lic", "-command", "/c"})
_COMMAND_KEYS = ("command", "cmd", "CommandLine", "shell_command", "bash_command")
_PATH_KEYS = (
    "file_path",
    "path",
    "filename",
    "file",
    "notebook_path",
    "target_file",
    "filePath",
    "absolute_path",
    "relative_workspace_path",
    "filepath",
    "file_name",
    "notebookPath",
    "directory",
    "dir_path",
    "uri",
)
_VIEWERS = frozenset({"str_replace_editor", "str_replace_based_edit_tool", "file_editor", "developer__text_editor"})
_DURATION_UNITS = "smhd"


def _exact_roles(only_mcp: bool) -> dict[str, Role]:
    return {
        name: role
        for agent, roles in AGENT_TOOLS.items()
        if agent.startswith("mcp-") or not only_mcp
        for role, names in roles.items()
        for name in names
    }


_ROLES: Mapping[str, Role] = _exact_roles(only_mcp=False)
_MCP_ROLES: Mapping[str, Role] = _exact_roles(only_mcp=True)


def builtin_role(name: str) -> Role:
    """The role of a tool by its name alone.

    Args:
        name: the name as the call carries it, also `mcp__server__tool` or `server__tool`.

    Returns:
        The role of the table, else `wait` for a conventional name of a poll, else `unknown`.
    """
    return "unknown" if len(name) > MAX_NAME else _role_of(name)


@lru_cache(maxsize=4096)
def _role_of(name: str) -> Role:
    exact = _ROLES.get(name) or _ROLES.get(name.lower())
    if exact is not None:
        return exact
    segment = name.rpartition("__")[2]
    if segment != name and segment in _MCP_ROLES:
        return _MCP_ROLES[segment]
    return "wait" if _names_a_poll(segment) else "unknown"


def _names_a_poll(segment: str) -> bool:
    plain = segment.lower().replace("-", "_")
    if plain.partition("_")[0] in SETTERS:
        return False
    return any(fnmatchcase(plain, pattern) for pattern in WAIT_GLOBS)


def call_role(role: Role, name: str, arguments: Mapping[str, object] | None) -> Role:
    """The role of one call, where its arguments say more than the name.

    Args:
        role: the role of the tool (see `builtin_role`, or the policy's own).
        name: the tool's name.
        arguments: the parsed arguments; None where they are not an object.

    Returns:
        `wait` for a shell command that only waits and for `write_stdin` without input, `read` for the view command of
        an editor tool, else `role`.
    """
    given = arguments or {}
    if name == "write_stdin":
        return "shell" if given.get("chars") else "wait"
    if role == "write" and name in _VIEWERS and given.get("command") == "view":
        return "read"
    if role != "shell":
        return role
    command = shell_command(given)
    return "wait" if command is not None and _only_waits(command[:MAX_COMMAND]) else "shell"


def shell_command(arguments: Mapping[str, object]) -> str | None:
    """The command text of a call, out of the argument keys that shell tools use.

    Args:
        arguments: the parsed arguments. A list such as `["bash", "-lc", "make"]` yields its script, another list its
            words joined by spaces; `{"action": {"command": ..}}` (local shell) is looked into.

    Returns:
        The text as written, or None where there is none.
    """
    for key in _COMMAND_KEYS:
        text = _command_text(arguments.get(key))
        if text is not None:
            return text
    action = arguments.get("action")
    return _command_text(action.get("command")) if isinstance(action, Mapping) else None


def _command_text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)) or not value:
        return None
    words = [word for word in value if isinstance(word, str)]
    if len(words) != len(value):
        return None
    if len(words) >= 3 and posixpath.basename(words[0]) in _SHELLS and words[1].lower() in _COMMAND_FLAGS:
        return words[2]
    return " ".join(words)


def _only_waits(command: str) -> bool:
    head = command.lstrip()
    word = _first_word(head)
    rest = head[len(word) :].lstrip(" \t")
    if word == "sleep":
        return _is_duration(_first_word(rest))
    if word == "wait":
        return True
    return word in ("while", "until") and _first_word(_loop_body(rest)) in ("sleep", "wait")


def _first_word(text: str) -> str:
    end = 0
    while end < len(text) and not text[end].isspace() and text[end] not in ";&|()<>":
        end += 1
    return text[:end]


def _loop_body(text: str) -> str:
    """What follows the first `do` that stands where a command may start; empty where there is none."""
    start = 0
    while (at := text.find("do", start)) != -1:
        before, after = text[:at].rstrip(" \t")[-1:], text[at + 2 : at + 3]
        if before in (";", "\n", "&") and after.isspace():
            return text[at + 3 :].lstrip()
        start = at + 2
    return ""


def _is_duration(word: str) -> bool:
    digits = word[:-1] if word[-1:] and word[-1] in _DURATION_UNITS else word
    whole, _, fraction = digits.partition(".")
    return (whole + fraction).isdecimal()


def target_path(arguments: Mapping[str, object]) -> str | None:
    """The file or directory that a call is about.

    Args:
        arguments: the parsed arguments.

    Returns:
        The first path-like argument, normalised with `posixpath.normpath`, case kept; a `file://` prefix is dropped and
        any other address stays as it is. None where no argument names a path.
    """
    for key in _PATH_KEYS:
        value = arguments.get(key)
        if isinstance(value, str) and value.strip():
            return _normal_path(value.strip()[:MAX_PATH])
    return None


def _normal_path(path: str) -> str:
    local = path[len("file://") :] if path.startswith("file://") else path
    return local if "://" in local else posixpath.normpath(local)
