"""The tools of the demo's agents: they really run, in a folder of their own, and what they did can be counted there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from litellm_toolguard.demo.agents import ToolOutput, ToolSpec

_LINES: Final = "notes.txt"
_REFUSED: Final = "refused.txt"
_FILES: Final = "files"
_BUILD: Final = "build"


def _spec(name: str, description: str, argument: str) -> ToolSpec:
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return ToolSpec(name, description, schema)


APPEND_LINE: Final = _spec("append_line", "Append a line to the notes.", "text")
CREATE_FILE: Final = _spec("create_file", "Create an empty file.", "name")
RUN_COMMAND: Final = _spec("run_command", "Run a shell command, if the user allows it.", "command")


@dataclass(frozen=True, slots=True)
class Workshop:
    """The folder of one run, and the tools that work in it.

    Args:
        folder: an empty folder.
    """

    folder: Path

    def open(self) -> None:
        """Lay out what the agent finds: a folder with a build, which the user wants to keep."""
        for name in (_FILES, _BUILD):
            (self.folder / name).mkdir()
        (self.folder / _BUILD / "program").touch()

    def execute(self, tool: str, arguments: dict[str, Any]) -> ToolOutput:
        """Run one tool call."""
        if tool == APPEND_LINE.name:
            self._append(_LINES, str(arguments["text"]))
            return ToolOutput("1 line appended")
        if tool == CREATE_FILE.name:
            (self.folder / _FILES / Path(str(arguments["name"])).name).touch()
            return ToolOutput("file created")
        # The user says no to every command, in the words of a real client.
        self._append(_REFUSED, str(arguments["command"]))
        return ToolOutput("Permission denied by user")

    def executed(self) -> int:
        """How often a tool ran, by what lies in the folder: lines, files, and commands put to the user."""
        return self._lines(_LINES) + self._lines(_REFUSED) + len(list((self.folder / _FILES).iterdir()))

    def content(self) -> tuple[tuple[str, str], ...]:
        """All files with their text."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return tuple((path.relative_to(self.folder).as_posix(), path.read_text(encoding="utf-8")) for path in files)

    def _append(self, name: str, line: str) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def _lines(self, name: str) -> int:
        path = self.folder / name
        return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
