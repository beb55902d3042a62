"""What clients write into a tool result when a call was denied, cancelled, invalid, unknown or failed.

One table. No wire format says "denied", so these texts are the only evidence, and tools that read logs or source code
return the same sentences: a template is anchored at the start of the result, and a client that sets the error flag
counts only with it.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

OutcomeKind: TypeAlias = Literal[
    "succeeded",
    "unclear",
    "failed",
    "transient",
    "invalid_arguments",
    "unknown_tool",
    "denied",
    "cancelled",
    "pending",
    "withheld",
]
DenialCategory: TypeAlias = Literal[
    "user_rejected",
    "permission_denied",
    "sandbox_denied",
    "hook_blocked",
    "policy_blocked",
    "tool_disabled",
]

MAX_JSON = 20_000
MAX_FLOATING = 2_000


@dataclass(frozen=True, slots=True)
class ClientText:
    """One text that a client writes in place of a tool's own result.

    Args:
        client: the client that writes it.
        template: the whole text, `*` for each variable part; empty where `json_fields` describes the body.
        outcome: how the call ended.
        category: who refused it; only for `denied`.
        flagged: the client sets the error flag where the dialect has one, so there the text counts only with it.
        user_words: a variable part holds words of the user.
        json_error: the text may also stand in `error` or `error.message` of a JSON object.
        json_fields: a JSON object whose fields of these names match these templates.
    """

    client: str
    template: str
    outcome: OutcomeKind
    category: DenialCategory | None = None
    flagged: bool = True
    user_words: bool = False
    json_error: bool = False
    json_fields: tuple[tuple[str, str], ...] = ()


def _denied(
    client: str,
    category: DenialCategory,
    template: str,
    *,
    flagged: bool = True,
    user_words: bool = False,
    json_error: bool = False,
) -> ClientText:
    return ClientText(client, template, "denied", category, flagged, user_words, json_error)


def _ended(
    client: str, outcome: OutcomeKind, template: str, *, flagged: bool = True, json_error: bool = False
) -> ClientText:
    return ClientText(client, template, outcome, None, flagged, json_error=json_error)


def _body(
    client: str,
    outcome: OutcomeKind,
    *fields: tuple[str, str],
    category: DenialCategory | None = None,
    user_words: bool = False,
) -> ClientText:
    return ClientText(client, "", outcome, category, False, user_words, json_fields=fields)


CLIENT_TEXTS: tuple[ClientText, ...] = (
    # Claude Code sets is_error for all of these.
    _denied(
        "claude-code",
        "user_rejected",
        "The user doesn't want to proceed with this tool use. The tool use was rejected *"
        "To tell you how to proceed, the user said:\n*",
        user_words=True,
    ),
    _denied(
        "claude-code",
        "user_rejected",
        "The user doesn't want to proceed with this tool use. The tool use was rejected*",
    ),
    _denied("claude-code", "user_rejected", "The user doesn't want to take this action right now. STOP what you are*"),
    _denied(
        "claude-code",
        "user_rejected",
        "Permission for this tool use was denied. The tool use was rejected *The user said:\n*",
        user_words=True,
    ),
    _denied("claude-code", "permission_denied", "Permission for this tool use was denied. The tool use was rejected *"),
    _denied("claude-code", "permission_denied", "Permission to use * has been denied."),
    _denied("claude-code", "permission_denied", "Permission to use * has been denied. IMPORTANT: *"),
    _denied(
        "claude-code", "permission_denied", "Permission to use * has been denied because Claude Code is running in *"
    ),
    _denied("claude-code", "permission_denied", "Permission to edit * has been denied."),
    _denied("claude-code", "permission_denied", "Permission to read * has been denied."),
    _denied("claude-code", "permission_denied", "WebFetch denied access to *."),
    _denied("claude-code", "permission_denied", "WebSearch denied access to *."),
    _denied("claude-code", "policy_blocked", "Permission for this action has been denied. Reason: *"),
    _denied("claude-code", "permission_denied", "Claude requested permissions to *, but you haven't granted it yet."),
    _denied("claude-code", "permission_denied", "File is in a directory that is denied by your permission settings."),
    _denied("claude-code", "hook_blocked", "PreToolUse:* hook error: *"),
    _denied("claude-code", "hook_blocked", "PermissionRequest:* hook error: *"),
    _denied("claude-code", "hook_blocked", "Execution stopped by PreToolUse hook"),
    _denied("claude-code", "hook_blocked", "Execution stopped by PreToolUse hook: *"),
    _denied("claude-code", "hook_blocked", "Permission denied by hook"),
    _denied("claude-code", "user_rejected", "The agent proposed a plan that was rejected by the user.*"),
    _ended("claude-code", "unknown_tool", "No such tool available: *"),
    _ended("claude-code", "invalid_arguments", "InputValidationError: * failed due to the following issue*"),
    _ended("claude-code", "cancelled", "Sibling tool call errored"),
    _ended("claude-code", "cancelled", "Cancelled: parallel tool call * errored"),
    _ended("claude-code", "cancelled", "Streaming fallback - tool execution discarded"),
    _ended("claude-code", "cancelled", "[Tool result missing due to internal error]"),
    _ended("claude-code", "cancelled", "[Request interrupted by user for tool use]"),
    # The exit codes of a killed command are spelled out: with `*` the output of any failing command could match.
    _ended("claude-code", "cancelled", "Exit code 137\n[Request interrupted by user for tool use]*"),
    _ended("claude-code", "cancelled", "Exit code 143\n[Request interrupted by user for tool use]*"),
    _ended("claude-code", "cancelled", "Exit code 130\n[Request interrupted by user for tool use]*"),
    # Codex speaks Responses, which has no error flag.
    _denied("codex-cli", "user_rejected", "exec command rejected by user"),
    _denied("codex-cli", "user_rejected", "patch rejected by user"),
    _denied("codex-cli", "user_rejected", "rejected by user"),
    _denied("codex-cli", "user_rejected", "user rejected MCP tool call"),
    _ended("codex-cli", "cancelled", "user cancelled MCP tool call"),
    _denied(
        "codex-cli",
        "permission_denied",
        "MCP tool call cancelled: interactive approval is unavailable in exec mode",
    ),
    _denied("codex-cli", "policy_blocked", "`*` rejected: blocked by policy"),
    _denied("codex-cli", "policy_blocked", "`*` rejected: policy forbids commands starting with `*`"),
    _denied("codex-cli", "policy_blocked", "approval required by policy, but AskForApproval::*"),
    _denied(
        "codex-cli",
        "policy_blocked",
        "approval policy is *; reject command — you cannot ask for escalated permissions if the approval policy is *",
    ),
    _denied("codex-cli", "policy_blocked", "This action was rejected due to unacceptable risk.*"),
    _ended(
        "codex-cli",
        "transient",
        "The action was not executed because automatic approval review could not be completed.*",
    ),
    _denied("codex-cli", "policy_blocked", "patch rejected: *"),
    _denied("codex-cli", "policy_blocked", "writing outside of the project; rejected by user approval settings"),
    _denied(
        "codex-cli", "sandbox_denied", "writing is blocked by read-only sandbox; rejected by user approval settings"
    ),
    _denied("codex-cli", "sandbox_denied", "Network access was denied by the Codex sandbox network proxy.*"),
    _denied("codex-cli", "sandbox_denied", "Command denied by sandbox: *"),
    _ended("codex-cli", "failed", "aborted by user after *s"),
    _ended("codex-cli", "failed", "Wall time: * seconds\naborted by user"),
    _ended("codex-cli", "failed", "command timed out after * milliseconds*"),
    _ended("codex-cli", "unknown_tool", "unsupported call: *"),
    _ended("codex-cli", "unknown_tool", "unsupported custom tool call: *"),
    _ended("codex-cli", "invalid_arguments", "failed to parse function arguments: *"),
    _ended("codex-cli", "invalid_arguments", "apply_patch verification failed: *"),
    _ended("codex-cli", "failed", "execution error: *"),
    _ended("codex-cli", "failed", "tool call error: *"),
    _ended("codex-cli", "failed", "MCP tool call error: *"),
    # opencode
    _denied("opencode", "user_rejected", "The user rejected permission to use this specific tool call."),
    _denied(
        "opencode",
        "user_rejected",
        "The user rejected permission to use this specific tool call with the following feedback: *",
        user_words=True,
    ),
    _denied(
        "opencode",
        "permission_denied",
        "The user has specified a rule which prevents you from using this specific tool call.*",
    ),
    _denied("opencode", "user_rejected", "The user dismissed this question"),
    _ended("opencode", "failed", "Tool execution aborted"),
    _ended(
        "opencode", "invalid_arguments", "The * tool was called with invalid arguments: *satisfies the expected schema."
    ),
    _ended(
        "opencode",
        "unknown_tool",
        "The arguments provided to the tool are invalid: Model tried to call unavailable tool *",
        flagged=False,
    ),
    _ended("opencode", "invalid_arguments", "The arguments provided to the tool are invalid: *", flagged=False),
    # Appended to a command's output, which counts as a success on the wire.
    _ended(
        "opencode",
        "failed",
        "*metadata>\nshell tool terminated command after exceeding timeout * ms*metadata>",
        flagged=False,
    ),
    _ended("opencode", "failed", "*metadata>\nUser aborted the command\n</*metadata>", flagged=False),
    _denied("vercel-ai-sdk", "user_rejected", "Tool execution denied.", flagged=False),
    # Gemini CLI and Qwen Code: a functionResponse with `error`.
    _denied(
        "gemini-cli",
        "user_rejected",
        "[Operation Cancelled] Reason: User denied execution.",
        flagged=False,
        json_error=True,
    ),
    _denied(
        "qwen-code",
        "user_rejected",
        "[Operation Cancelled] Reason: User did not allow tool call*",
        flagged=False,
        json_error=True,
    ),
    _ended("gemini-cli", "cancelled", "[Operation Cancelled] *", flagged=False, json_error=True),
    _ended("qwen-code", "cancelled", "Tool call cancelled by user.", flagged=False, json_error=True),
    _ended("qwen-code", "cancelled", "User cancelled tool execution.", flagged=False, json_error=True),
    _denied("gemini-cli", "policy_blocked", "Tool execution denied by policy.*", flagged=False, json_error=True),
    _denied(
        "gemini-cli", "policy_blocked", 'Tool execution for "*" denied by policy.*', flagged=False, json_error=True
    ),
    _ended("gemini-cli", "unknown_tool", 'Tool "*" not found in registry.*', flagged=False, json_error=True),
    _ended(
        "gemini-cli",
        "cancelled",
        "Command was cancelled by user before it could start.",
        flagged=False,
        json_error=True,
    ),
    _denied(
        "qwen-code",
        "permission_denied",
        'Qwen Code requires permission to use "*", but that permission was declined*',
        flagged=False,
        json_error=True,
    ),
    _denied(
        "qwen-code", "permission_denied", 'Tool "*" is denied by permission rules.*', flagged=False, json_error=True
    ),
    _denied(
        "qwen-code", "permission_denied", "Command '*' is blocked by permission rules*", flagged=False, json_error=True
    ),
    # Cline and Roo Code set no flag.
    _denied(
        "cline",
        "user_rejected",
        "The user denied this operation and provided the following feedback:\n<feedback>\n*</feedback>*",
        flagged=False,
        user_words=True,
    ),
    _denied("cline", "user_rejected", "The user denied this operation.", flagged=False),
    _denied("cline", "policy_blocked", "Access to * is blocked by the .clineignore file settings.*", flagged=False),
    _denied("cline", "tool_disabled", "This tool cannot be used in PLAN MODE.*", flagged=False),
    _ended(
        "cline",
        "cancelled",
        "Tool [*] was not executed because a tool has already been used in this message.*",
        flagged=False,
    ),
    _ended(
        "cline",
        "invalid_arguments",
        "Missing value for required parameter '*'. Please retry with complete response.*",
        flagged=False,
    ),
    _ended(
        "cline", "failed", "The tool execution failed with the following error:\n<error>\n*\n</error>", flagged=False
    ),
    _denied(
        "cline-sdk",
        "permission_denied",
        'Tool "*" requires approval but no approval callback is configured*',
        json_error=True,
    ),
    _body("roo-code", "denied", ("status", "denied"), ("feedback", "*"), category="user_rejected", user_words=True),
    _body(
        "roo-code",
        "denied",
        ("status", "denied"),
        ("message", "The user denied this operation*"),
        category="user_rejected",
    ),
    _body("roo-code", "denied", ("status", "error"), ("type", "access_denied"), category="policy_blocked"),
    _body("roo-code", "unknown_tool", ("status", "error"), ("type", "unknown_tool")),
    _body("roo-code", "invalid_arguments", ("status", "error"), ("type", "invalid_argument")),
    _body("roo-code", "failed", ("status", "error"), ("message", "The tool execution failed*")),
    # goose sets the flag only in newer builds.
    _denied(
        "goose",
        "user_rejected",
        "The user has declined to run this tool. DO NOT attempt to call this tool again.*",
        flagged=False,
    ),
    _denied(
        "goose", "tool_disabled", "Let the user know the tool call was skipped in goose chat mode.*", flagged=False
    ),
    _ended("goose", "unknown_tool", "Tool '*' was not advertised for this model turn", flagged=False),
    # Continue
    _denied("continue", "user_rejected", "Permission denied by user", flagged=False),
    _denied("continue", "policy_blocked", "Command blocked by security policy", flagged=False),
    _denied(
        "continue", "user_rejected", "The user skipped the tool call.\nIf the tool call is optional*", flagged=False
    ),
    # Zed
    _denied("zed", "user_rejected", "Permission to run tool action denied by user"),
    # VS Code Copilot
    _ended("vscode-copilot", "cancelled", "The user cancelled the tool call.", flagged=False),
    _denied(
        "vscode-copilot",
        "user_rejected",
        "The user chose to skip the tool call, they want to proceed without running it*",
        flagged=False,
    ),
    _ended("vscode-copilot", "failed", "ERROR while calling tool: *", flagged=False),
    # Crush; its older text is what any program may say, so it is no proof that a human said no.
    _denied("crush", "permission_denied", "permission denied"),
    _denied("crush", "user_rejected", "User denied permission"),
    # Zero
    _denied("zero", "permission_denied", "Error: Permission denied for *: *"),
    _denied("zero", "hook_blocked", 'Error: "*" was blocked by hook "*": *'),
    _denied("zero", "tool_disabled", 'Error: Tool "*" is not enabled for this run*'),
    _denied("zero", "sandbox_denied", "Error: Permission required for *"),
    _denied("zero", "sandbox_denied", "Error: Sandbox block*"),
    _denied("zero", "sandbox_denied", "Error: Sandbox approval required for *"),
    _ended("zero", "unknown_tool", 'Error: Unknown tool "*".*'),
    # Hermes: JSON with `error` and `status: blocked`; it speaks Chat Completions.
    _denied(
        "hermes-agent",
        "user_rejected",
        "BLOCKED: User denied this potentially dangerous action (*",
        flagged=False,
        json_error=True,
    ),
    _denied(
        "hermes-agent",
        "user_rejected",
        "BLOCKED: Action * The user has NOT consented to this action.*",
        flagged=False,
        json_error=True,
    ),
    _denied("hermes-agent", "policy_blocked", "BLOCKED (hardline): *", flagged=False, json_error=True),
    _denied(
        "hermes-agent",
        "permission_denied",
        "BLOCKED: this command matches the user-defined deny rule *",
        flagged=False,
        json_error=True,
    ),
    _denied(
        "hermes-agent",
        "policy_blocked",
        "BLOCKED: You have read this exact file region * times in a row.*",
        flagged=False,
        json_error=True,
    ),
    # OpenClaw names the reason in a token.
    _denied(
        "openclaw", "permission_denied", "Exec denied (approval_required) in worker * permission mode.*", flagged=False
    ),
    _denied("openclaw", "user_rejected", "Exec denied (gateway id=*, user-denied): *", flagged=False),
    _denied("openclaw", "policy_blocked", "Exec denied (gateway id=*, allowlist-miss): *", flagged=False),
    _denied("openclaw", "permission_denied", "Exec denied (gateway id=*): *", flagged=False),
    # OpenHands; hooks use the same event, so its reason is not taken for the user's words.
    _denied("openhands", "user_rejected", "Action rejected: *", flagged=False),
    _denied(
        "openhands",
        "user_rejected",
        "Action has been rejected by the user! Waiting for further user input.",
        flagged=False,
    ),
    _ended("mini-swe-agent", "cancelled", "<exception>action was not executed</exception>*", flagged=False),
    _ended("mini-swe-agent", "cancelled", "<returncode>-1</returncode>*action was not executed*", flagged=False),
    # LangChain
    _denied("langchain", "user_rejected", "User rejected the tool call for `*` with reason: *", user_words=True),
    _denied("langchain", "user_rejected", "User rejected the tool call for `*` with id *"),
    _denied("langchain", "policy_blocked", "The tool call `*` was blocked because it was classified as risky (*"),
    _denied("langchain", "policy_blocked", "Tool call limit exceeded. Do not call '*' again.*"),
    _denied("langchain", "policy_blocked", "Tool call limit exceeded. Do not make additional tool calls.*"),
    # openai-agents
    _denied("openai-agents", "user_rejected", "Tool execution was not approved.", flagged=False),
    _ended("openai-agents", "failed", "Tool '*' timed out after * seconds.", flagged=False),
    _ended("openai-agents", "failed", "An error occurred while running the tool. Please try again.*", flagged=False),
    # pydantic-ai sends denials with is_error false.
    _denied("pydantic-ai", "user_rejected", "The tool call was denied.", flagged=False),
    _ended("pydantic-ai", "unknown_tool", "Unknown tool name: *Fix the errors and try again."),
    _ended("pydantic-ai", "cancelled", "Tool not executed - a final result was already processed.", flagged=False),
    # google-adk
    _denied("google-adk", "user_rejected", "This tool call is rejected.", flagged=False, json_error=True),
    _ended(
        "google-adk",
        "pending",
        "This tool call requires confirmation, please approve or reject.",
        flagged=False,
        json_error=True,
    ),
    _ended(
        "google-adk",
        "unknown_tool",
        "Invoking `*()` failed as no tool with that name is available.*",
        flagged=False,
        json_error=True,
    ),
    _ended(
        "google-adk",
        "invalid_arguments",
        "Invoking `*()` failed as the following mandatory input parameters are not present:*",
        flagged=False,
        json_error=True,
    ),
    # Microsoft Agent Framework and AutoGen
    _denied("agent-framework", "user_rejected", "Error: Tool call invocation was rejected by user.", flagged=False),
    _ended("agent-framework", "unknown_tool", 'Error: Requested function "*" not found.', flagged=False),
    _ended("autogen", "unknown_tool", "Error: tool '*' not found in any workbench", flagged=False),
    # Strands
    _denied("strands", "hook_blocked", "Tool cancelled by hook"),
    _ended("strands", "cancelled", "Tool execution cancelled"),
    # smolagents
    _ended("smolagents", "unknown_tool", "Unknown tool *, should be one of: *", flagged=False),
    _ended(
        "smolagents",
        "failed",
        "Error executing tool '*' with arguments *\nPlease try again or use another tool*",
        flagged=False,
    ),
    # CrewAI
    _denied(
        "crewai",
        "tool_disabled",
        "Tool '*' has reached its usage limit of * times and cannot be used anymore.*",
        flagged=False,
    ),
    _ended("crewai", "unknown_tool", "You tried to use the tool *, but it doesn't exist.*", flagged=False),
    # MCP servers and LiteLLM's MCP gateway
    _ended("mcp-sdk", "unknown_tool", "Unknown tool: *", json_error=True),
    _ended("continue", "failed", "Error executing tool *: *", flagged=False),
    _ended("mcp-sdk", "failed", "Error executing tool *"),
    _denied("litellm-mcp", "permission_denied", "User not allowed to call this tool.*", json_error=True),
    _denied(
        "litellm-mcp",
        "permission_denied",
        "Tool '*' is not allowed for your key/team on server '*'.*",
        json_error=True,
    ),
    _denied(
        "litellm-mcp",
        "tool_disabled",
        "Tool * is not allowed for server *. Contact proxy admin to allow this tool.",
        json_error=True,
    ),
)
"""Tried in this order; the first match counts, so the fuller template of two stands first."""

_WRAPPER_START, _WRAPPER_END = "<tool_use_error>", "</tool_use_error>"
_LEADS = ("Error: ", "Error:\n", "exec_command failed: ", "write_stdin failed: ")
_COMMAND_LEAD, _COMMAND_LEAD_END = "exec_command failed for `", "`: "
_ANY_LEAD = (_WRAPPER_START, _COMMAND_LEAD, *_LEADS)


@dataclass(frozen=True, slots=True)
class _Entry:
    text: ClientText
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    """Entries that begin with the same letter, and their first literals for one quick look."""

    starts: tuple[str, ...]
    entries: tuple[_Entry, ...]


def _entries(texts: Iterable[ClientText]) -> tuple[_Entry, ...]:
    return tuple(_Entry(text, tuple(text.template.split("*"))) for text in texts)


def _by_first_letter(entries: Iterable[_Entry]) -> Mapping[str, _Group]:
    letters: dict[str, list[_Entry]] = {}
    for entry in entries:
        letters.setdefault(entry.parts[0][:1], []).append(entry)
    return {letter: _Group(tuple(entry.parts[0] for entry in group), tuple(group)) for letter, group in letters.items()}


def _json_needle(literal: str) -> str:
    """The beginning of a literal that reads the same inside JSON text, whatever the encoder escapes."""
    end = 0
    while end < len(literal) and literal[end] in _NEVER_ESCAPED:
        end += 1
    return literal[:end]


_NEVER_ESCAPED = frozenset(string.ascii_letters + string.digits + " _-.:,()[]{}")
_PLAIN = _entries(text for text in CLIENT_TEXTS if text.template)
_ANCHORED = _by_first_letter(entry for entry in _PLAIN if entry.parts[0])
_FLOATING = tuple(entry for entry in _PLAIN if not entry.parts[0])
_FLOATING_ENDS = tuple(entry.parts[-1] for entry in _FLOATING)
_ERRORS = _by_first_letter(entry for entry in _PLAIN if entry.text.json_error)
_BODIES = tuple(text for text in CLIENT_TEXTS if text.json_fields)
_NO_GROUP = _Group((), ())
_BODY_NEEDLES = tuple(
    tuple(f'"{part}' for name, template in text.json_fields for part in (f'{name}"', template.partition("*")[0]))
    for text in _BODIES
)
_ERROR_KEY = '"error"'
# An object may hold the text in its `message`.
_ERROR_VALUES = ("{", *{'"' + _json_needle(entry.parts[0]) for entry in _PLAIN if entry.text.json_error})
_LOOK_AHEAD = 20 + max(map(len, _ERROR_VALUES))


def match_client_text(text: str, *, is_error: bool | None, has_flag: bool) -> ClientText | None:
    """The entry of the table that a tool result is an instance of.

    Args:
        text: the text of the result.
        is_error: the wire's error flag; None where it is absent.
        has_flag: whether the dialect has an error flag at all.

    Returns:
        The first entry whose template the whole text matches, as it stands, without a lead-in such as `Error: `, or as
        the error of a JSON object; None for everything else. Never raises.
    """
    body = text.lstrip() if text[:1].isspace() else text
    unflagged_only = has_flag and is_error is not True
    for candidate in _candidates(body):
        found = _first(_ANCHORED.get(candidate[:1], _NO_GROUP), candidate, unflagged_only)
        if found is not None:
            return found
    if body.startswith("{"):
        return _match_json(body, unflagged_only)
    return _match_floating(body, unflagged_only) if len(body) <= MAX_FLOATING else None


def _first(group: _Group, text: str, unflagged_only: bool) -> ClientText | None:
    if not text.startswith(group.starts):
        return None
    stripped = text.rstrip()
    for entry in group.entries:
        if not (unflagged_only and entry.text.flagged) and _fills(entry.parts, stripped):
            return entry.text
    return None


def _match_floating(text: str, unflagged_only: bool) -> ClientText | None:
    stripped = text.rstrip()
    if not stripped.endswith(_FLOATING_ENDS):
        return None
    for entry in _FLOATING:
        if not (unflagged_only and entry.text.flagged) and _fills(entry.parts, stripped):
            return entry.text
    return None


def _fills(parts: tuple[str, ...], text: str) -> bool:
    """Whether the text is the literal parts in order with anything between them. Taking each part as far left as it
    goes is enough, because only the last one is bound to the end."""
    if len(parts) == 1:
        return text == parts[0]
    # The text has lost its trailing space; so may a part that ends in one, where the variable part is empty.
    if not text.startswith(parts[0]) and text != parts[0].rstrip():
        return False
    at = len(parts[0])
    for part in parts[1:-1]:
        found = text.find(part, at)
        if found == -1:
            return False
        at = found + len(part)
    return text.endswith(parts[-1]) and len(text) - len(parts[-1]) >= at if parts[-1] else True


def _candidates(text: str) -> Iterator[str]:
    yield text
    for _ in range(3):
        if not text.startswith(_ANY_LEAD):
            return
        text = _without_lead(text)
        yield text


def _without_lead(text: str) -> str:
    if text.startswith(_WRAPPER_START):
        inner = text.rstrip()
        return inner[len(_WRAPPER_START) : -len(_WRAPPER_END)].strip() if inner.endswith(_WRAPPER_END) else ""
    if text.startswith(_COMMAND_LEAD):
        return text[len(_COMMAND_LEAD) :].partition(_COMMAND_LEAD_END)[2]
    for lead in _LEADS:
        if text.startswith(lead):
            return text[len(lead) :].lstrip()
    return text


def _match_json(text: str, unflagged_only: bool) -> ClientText | None:
    if len(text) > MAX_JSON or not _may_be_a_json_text(text):
        return None
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    error = _error_text(body)
    found = _first(_ERRORS.get(error[:1], _NO_GROUP), error, unflagged_only)
    return found or _first_body(body, unflagged_only)


def _may_be_a_json_text(text: str) -> bool:
    if any(all(needle in text for needle in needles) for needles in _BODY_NEEDLES):
        return True
    at = text.find(_ERROR_KEY)
    while at != -1:
        at += len(_ERROR_KEY)
        if text[at : at + _LOOK_AHEAD].lstrip(" \t\r\n:").startswith(_ERROR_VALUES):
            return True
        at = text.find(_ERROR_KEY, at)
    return False


def _error_text(body: Mapping[str, object]) -> str:
    error = body.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    return error.strip() if isinstance(error, str) else ""


def _first_body(body: Mapping[str, object], unflagged_only: bool) -> ClientText | None:
    for text in _BODIES:
        if not (unflagged_only and text.flagged) and all(_field_fits(body, *field) for field in text.json_fields):
            return text
    return None


def _field_fits(body: Mapping[str, object], name: str, template: str) -> bool:
    value = body.get(name)
    return isinstance(value, str) and _fills(tuple(template.split("*")), value.strip())
