"""The package's exceptions, one tree."""

from __future__ import annotations

from dataclasses import dataclass


class ToolGuardError(Exception):
    """Base of every exception that this package raises on its own account."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One fault of a configuration: `path` is the dotted path of the key ('' for the whole), `message` a sentence."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(ToolGuardError, RuntimeError):
    """A policy or a guardrail entry that cannot be used.

    A RuntimeError, because LiteLLM answers ValueError and TypeError of a guardrail's constructor by starting the proxy
    without it.
    """

    def __init__(self, problems: tuple[ConfigProblem, ...], source: str = "toolguard") -> None:
        self.problems = problems
        self.source = source
        super().__init__(f"{source}: " + "; ".join(str(problem) for problem in problems))


class PayloadError(ToolGuardError):
    """A request whose history cannot be read at all. The message holds no content of the payload."""


class StoreError(ToolGuardError):
    """A store that cannot be read or written now. The message is a reason of a few fixed words, never content."""


class RecordingError(ToolGuardError):
    """A row of a recording that cannot be read. The message holds no content of it."""
