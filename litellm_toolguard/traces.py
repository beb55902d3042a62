"""What the detectors read out of a call and its result, as digests.

No detector sees arguments or outputs. What it compares is a digest, so that evidence can be written down without
content and judged again. Error signatures and answers cost more than everything else that is known of an exchange;
they are made when a detector asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

from litellm_toolguard.canonical import digest, error_signature, has_words, keyed, without_echo
from litellm_toolguard.outcomes import Outcome
from litellm_toolguard.roles import Role, shell_command, target_path

# What a tool says that has nothing to say.
_ACKNOWLEDGEMENTS = frozenset(
    {
        "all done",
        "command executed",
        "command executed successfully",
        "completed successfully",
        "finished successfully",
        "no output",
        "operation completed successfully",
        '{"ok": true}',
        '{"status": "ok"}',
        '{"status": "success"}',
        '{"success": true}',
    }
)
# A refusal or an error is short; the same long text for other arguments is a document.
_MAX_ANSWER_CHARS = 300
# One word says too little to be an answer that a model should have understood.
_MIN_ANSWER_WORDS = 2
# "Opened @", "navigated to @": what names the thing that was asked for is an acknowledgement, unless it says no.
_NEGATIVE_WORDS = (
    *("not", "no ", "n't", "cannot", "unable", "error", "fail", "denied", "deny", "refus", "forbid", "block", "reject"),
    *("invalid", "unavailable", "permission", "allowed", "policy", "disabled", "missing", "never", "without"),
)
_SILENT_ROLES = frozenset({"write", "think", "wait"})
# What tools say of a range outside of the file, in lower case, within the first 400 characters of a result.
RANGE_TEXTS: Final = (
    "shorter than the provided offset",
    "is out of range for this file",
    "offset is beyond the end of the file",
    "offset beyond end of file",
    "exceeds the total number of lines",
    "exceeds the number of lines",
    "beyond the end of the file",
    "beyond end of file",
    "line number out of range",
    "invalid `view_range`",
    "offset exceeds file length",
    "start line is greater than the total",
)
_TEXT_CHARS = 400
_ENDED = frozenset({"succeeded", "unclear", "failed", "invalid_arguments"})

# Words of a command that are read: a program, options and an argument.
_COMMAND_WORDS: Final = 6


class Traces(Protocol):
    """What is asked of one exchange."""

    @property
    def error(self) -> bytes:
        """What its text says as an error, see `canonical.error_signature`."""

    @property
    def has_words(self) -> bool:
        """Whether that is more than an exit code."""

    @property
    def answer(self) -> bytes:
        """Its unmarked short answer without the arguments that it echoes; empty for one that says nothing."""

    @property
    def target(self) -> bytes:
        """A path, or the program and first argument of a command that is no option; empty where there is none."""


@dataclass(frozen=True, slots=True)
class KeptTraces:
    """Traces that were written down."""

    error: bytes = b""
    has_words: bool = False
    answer: bytes = b""
    target: bytes = b""


class ReadTraces:
    """Traces that are read when they are asked for.

    Args:
        text: the text of the result; empty while it is pending.
        parsed: the arguments, see `canonical.parse_arguments`.
        outcome: how the exchange ended.
        role: the tool's role, refined by the call.
        secret: key of the digests; empty for plain ones.
    """

    def __init__(self, text: str, parsed: Any, outcome: Outcome, role: Role, secret: bytes) -> None:
        self._text = text
        self._parsed = parsed
        self._outcome = outcome
        self._role: Role = role
        self._secret = secret

    @cached_property
    def _signature(self) -> str:
        return error_signature(self._text, self._parsed)

    @cached_property
    def error(self) -> bytes:
        """See `Traces.error`."""
        return self._digest("error", self._signature)

    @property
    def has_words(self) -> bool:
        """See `Traces.has_words`."""
        return has_words(self._signature)

    @cached_property
    def answer(self) -> bytes:
        """See `Traces.answer`."""
        said = self._said()
        return self._digest("answer", said) if said else b""

    @cached_property
    def target(self) -> bytes:
        """See `Traces.target`."""
        if not isinstance(self._parsed, Mapping):
            return b""
        command = shell_command(self._parsed)
        if command is not None:
            program, *words = command.split(maxsplit=_COMMAND_WORDS)[:_COMMAND_WORDS] or [""]
            argument = next((word for word in words if not word.startswith("-")), "")
            return self._digest("target", f"command:{program} {argument}".rstrip())
        path = target_path(self._parsed)
        return b"" if path is None else self._digest("target", "path:" + path)

    def _said(self) -> str:
        """What is compared; empty for an answer that does not count."""
        text = self._text
        if self._outcome.kind != "unclear" or self._role in _SILENT_ROLES or len(text) > _MAX_ANSWER_CHARS:
            return ""
        said = " ".join(without_echo(text, self._parsed, numbers=False).split())
        if said != " ".join(text.split()) and not any(word in said.lower() for word in _NEGATIVE_WORDS):
            return ""
        counts = len(said.split()) >= _MIN_ANSWER_WORDS and said.lower().rstrip(".!") not in _ACKNOWLEDGEMENTS
        return said if counts else ""

    def _digest(self, *parts: str) -> bytes:
        return keyed(digest(*parts), self._secret)


@dataclass(frozen=True, slots=True)
class Beyond:
    """A read beyond the end of a file.

    Args:
        path: the file.
        lines: the numbers that the error names and the call does not hold.
    """

    path: str
    lines: str


def read_beyond(text: str, parsed: Any, outcome: Outcome) -> Beyond | None:
    """The read that an exchange made beyond the end of a file, if it is one."""
    path = target_path(parsed) if isinstance(parsed, Mapping) else None
    start = text[:_TEXT_CHARS].lower()
    if path is None or outcome.kind not in _ENDED or not any(mark in start for mark in RANGE_TEXTS):
        return None
    asked = {str(value) for value in parsed.values()}
    numbers = "".join(letter if letter.isdecimal() else " " for letter in start).split()
    return Beyond(path, " ".join(number for number in numbers if number not in asked))


def touched_text(parsed: Any) -> str:
    """The text in which a changed path would stand: the path written to, or the command."""
    if not isinstance(parsed, Mapping):
        return str(parsed)
    return shell_command(parsed) or target_path(parsed) or ""
