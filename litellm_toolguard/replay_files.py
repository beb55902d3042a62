"""Reading of recorded files: JSON, JSONL, and either of them gzipped; one value after the other.

A fault names the file and the line and holds nothing of the content. Files of lines are never held as a whole.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

CHUNK_BYTES: Final = 1 << 20
"""So much of a file of lines is read, and handed to one process, at a time."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_UTF8_MARK: Final = b"\xef\xbb\xbf"
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_SPACE: Final = " \t\r\n"

Line: TypeAlias = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that could not be read.

    Args:
        source: the file, as it was named.
        line: the line, from 1; 0 for the whole file.
        message: what is wrong, without any content.
    """

    source: str
    line: int
    message: str

    def __str__(self) -> str:
        where = f"{self.source}:{self.line}" if self.line else self.source
        return f"{printable(where)}: {self.message}"


@dataclass(frozen=True, slots=True)
class Value:
    """One JSON value of a file.

    Args:
        source: the file, as it was named.
        line: the line on which it begins, from 1.
        part: its index where it is an element of a list; None where it stands for itself.
        data: the value.
    """

    source: str
    line: int
    part: int | None
    data: Any

    @property
    def name(self) -> str:
        """The name of a transcript that has none of its own."""
        return f"{self.source}:{self.line}" + ("" if self.part is None else f"[{self.part}]")

    def fault(self, message: str) -> Fault:
        """A fault of this value."""
        return Fault(self.source, self.line, message)


def printable(text: str) -> str:
    """The text without characters that steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


@dataclass(slots=True)
class OpenFile:
    """An opened file. `held` is where the stored (perhaps compressed) bytes have been read to."""

    source: str
    raw: BinaryIO
    content: BinaryIO

    @property
    def held(self) -> int:
        """Stored bytes that were read so far."""
        return self.raw.tell()

    def lines(self) -> Iterator[Line | Fault]:
        """The lines that are not blank; a fault at the end where the file breaks off."""
        number = 0
        try:
            for raw in self.content:
                number += 1
                if number == 1 and raw.startswith(_UTF16_MARKS):
                    yield Fault(self.source, 1, "is UTF-16 text; it must be UTF-8")
                    return
                line = raw.removeprefix(_UTF8_MARK) if number == 1 else raw
                if line.strip():
                    yield number, line
        except (OSError, EOFError, zlib.error) as error:
            yield Fault(self.source, number + 1, f"cannot be read: {_reason(error)}")


@contextmanager
def open_file(path: Path) -> Iterator[OpenFile]:
    """The file, unpacked if it is gzipped (by its content, not by its name).

    Raises:
        OSError: when it cannot be opened.
    """
    with path.open("rb") as raw:
        # A peek, not a read: a pipe cannot be wound back.
        packed = raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
        if not packed:
            yield OpenFile(str(path), raw, raw)
            return
        with gzip.GzipFile(fileobj=raw) as content:
            yield OpenFile(str(path), raw, content)  # type: ignore[arg-type]


def open_fault(path: Path, error: OSError) -> Fault:
    """The fault for a file that cannot be opened."""
    return Fault(str(path), 0, f"cannot be read: {_reason(error)}")


def _reason(error: OSError | EOFError | zlib.error) -> str:
    if isinstance(error, gzip.BadGzipFile) or not isinstance(error, OSError):
        return "the gzip data is broken or ends too early"
    return error.strerror or type(error).__name__


def is_document(path: Path, first: bytes) -> bool:
    """Whether the file is one JSON value over many lines, by its name and its first line that is not blank."""
    if first.strip() in (b"{", b"["):
        return True
    name = path.name.removesuffix(".gz")
    return name.endswith(".json") and isinstance(decoded("", 1, first), Fault)


def file_values(path: Path) -> Iterator[Value | Fault]:
    """All values of a file."""
    try:
        with open_file(path) as file:
            lines = file.lines()
            first = next(lines, None)
            if first is None:
                return
            if isinstance(first, Fault):
                yield first
            elif is_document(path, first[1]):
                yield from _document_values(file.source, first, lines)
            else:
                yield from values(file.source, _again(first, lines))
    except OSError as error:
        yield open_fault(path, error)


def _again(first: Line, rest: Iterator[Line | Fault]) -> Iterator[Line | Fault]:
    yield first
    yield from rest


def values(source: str, lines: Iterable[Line | Fault]) -> Iterator[Value | Fault]:
    """The values of lines. A list on one line gives its elements."""
    for line in lines:
        if isinstance(line, Fault):
            yield line
            continue
        data = decoded(source, *line)
        if isinstance(data, Fault):
            yield data
        elif isinstance(data, list):
            yield from (Value(source, line[0], part, element) for part, element in enumerate(data))
        else:
            yield Value(source, line[0], None, data)


def decoded(source: str, number: int, line: bytes) -> Any | Fault:
    """The value of a line, or why there is none."""
    try:
        return json.loads(line.rstrip(b"\r\n").decode("utf-8"))
    except UnicodeDecodeError:
        return Fault(source, number, "is not UTF-8 text")
    except json.JSONDecodeError as error:
        return Fault(source, number, f"is not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError):
        return Fault(source, number, "is JSON that is nested too deeply or holds too long a number")


# ---------------------------------------------------------------------------------------------------------- documents


def _document_values(source: str, first: Line, rest: Iterator[Line | Fault]) -> Iterator[Value | Fault]:
    """The value of a file of many lines, or the elements of its list."""
    lines = [b"\n" * (first[0] - 1), first[1]]
    number = first[0]
    for line in rest:
        if isinstance(line, Fault):
            yield line
            return
        lines.append(b"\n" * (line[0] - number - 1) + line[1])
        number = line[0]
    try:
        text = b"".join(lines).decode("utf-8")
    except UnicodeDecodeError as error:
        yield Fault(source, b"".join(lines).count(b"\n", 0, error.start) + 1, "is not UTF-8 text")
        return
    yield from _checked_values(source, text)


def _checked_values(source: str, text: str) -> Iterator[Value | Fault]:
    part: int | None = None
    try:
        for line, part, data in _parts(text):
            yield Value(source, line, part, data)
    except json.JSONDecodeError as error:
        yield Fault(source, error.lineno, f"is not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError):
        where = "" if part is None else f" behind element {part}"
        yield Fault(source, 0, f"is JSON that is nested too deeply or holds too long a number{where}")


def _parts(text: str) -> Iterator[tuple[int, int | None, Any]]:
    """Line, index and value of every element; a document that is no list has one part without an index."""
    decoder = json.JSONDecoder()
    at = _past_space(text, 0)
    if text[at] != "[":
        data, end = decoder.raw_decode(text, at)
        _expect(text, _past_space(text, end), "")
        yield text.count("\n", 0, at) + 1, None, data
        return
    line, counted, part = 1, 0, 0
    at = _past_space(text, at + 1)
    while not text.startswith("]", at):
        if part:
            _expect(text, at, ",")
            at = _past_space(text, at + 1)
        line, counted = line + text.count("\n", counted, at), at
        data, end = decoder.raw_decode(text, at)
        yield line, part, data
        at, part = _past_space(text, end), part + 1
    _expect(text, _past_space(text, at + 1), "")


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _expect(text: str, at: int, wanted: str) -> None:
    """The next sign, or the end of the text where `wanted` is empty."""
    if wanted and not text.startswith(wanted, at):
        raise json.JSONDecodeError(f"Expecting '{wanted}' delimiter", text, at)
    if not wanted and at < len(text):
        raise json.JSONDecodeError("Extra data", text, at)
