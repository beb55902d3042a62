"""What the operator knows about the results of tools: literal prefixes, globs, and fields of JSON bodies.

The entries stand in the policy, the texts they are compared with come from tools. So nothing here compiles a pattern:
the cost is bounded whatever a result holds, and an entry counts at the start of a result only, because tools also
return logs and source code that quote the same words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from litellm_toolguard.client_texts import MAX_JSON, DenialCategory

OperatorOutcome: TypeAlias = Literal["succeeded", "failed", "transient", "invalid_arguments", "unknown_tool", "denied"]
FieldValue: TypeAlias = str | bool | int | float

MAX_LINE_CHARS: Final = 400
"""Characters of the first line of a result that a glob is compared with."""
MAX_GLOB_CHARS: Final = 200
MAX_PREFIX_CHARS: Final = 1_000
DEFAULT_CATEGORY: Final[DenialCategory] = "policy_blocked"


def _literal(value: Any) -> Any:
    """Text, a number, true or false. An empty key is a line that was not finished."""
    if isinstance(value, (str, bool, int, float)):
        return value
    raise ValueError("must be text, a number, true or false")


class OperatorText(BaseModel):
    """One kind of result and how a call ended that returned it. Exactly one of `starts_with`, `glob` and `field` says
    which results are meant."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    starts_with: str | None = Field(
        None, min_length=1, max_length=MAX_PREFIX_CHARS, description="the literal start of the result"
    )
    glob: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_GLOB_CHARS,
        description="the whole first line of the result; `*` is any text, `?` any character, all else is literal",
    )
    field: str | None = Field(
        None, min_length=1, description="a field of a result that is a JSON object, dots lead into objects within it"
    )
    equals: Annotated[
        FieldValue | None,
        BeforeValidator(_literal),
        WithJsonSchema({"type": ["string", "boolean", "integer", "number"]}),
    ] = Field(None, description="the value of `field`: text, a number, true or false")
    outcome: OperatorOutcome = Field(description="how a call with such a result ended")
    category: DenialCategory | None = Field(
        None, description=f"who refused; only with outcome denied, {DEFAULT_CATEGORY} unless given"
    )
    with_error_flag: bool = Field(
        False, strict=True, description="where the dialect has an error flag, count the result only with it"
    )

    @field_validator("starts_with", "glob")
    @classmethod
    def _can_match(cls, text: str | None) -> str | None:
        if text is not None and text[:1].isspace():
            raise ValueError("starts with white space, which is left out of the comparison")
        return text

    @field_validator("glob")
    @classmethod
    def _says_something(cls, glob: str | None) -> str | None:
        if glob is None:
            return None
        if "\n" in glob or "\r" in glob:
            raise ValueError("holds a line break; a glob is compared with the first line only")
        if not glob.translate(_NO_WILDCARDS).strip():
            raise ValueError("holds nothing but wildcards, so it would match everything")
        return glob

    @field_validator("field")
    @classmethod
    def _is_a_path(cls, path: str | None) -> str | None:
        if path is not None and not all(path.split(".")):
            raise ValueError("has an empty name in its path")
        return path

    @model_validator(mode="after")
    def _is_whole(self) -> OperatorText:
        given = [name for name in ("starts_with", "glob", "field") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of `starts_with`, `glob` and `field`")
        if (self.field is None) != (self.equals is None):
            raise ValueError("`field` and `equals` belong together")
        if self.category is not None and self.outcome != "denied":
            raise ValueError("`category` belongs to `outcome: denied`")
        return self

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The glob without its stars."""
        return tuple((self.glob or "").split("*"))


_NO_WILDCARDS = str.maketrans("", "", "*?")


class _Result:
    """A result as the entries compare it; what no entry asks for is not made."""

    def __init__(self, text: str) -> None:
        self.text = text.lstrip() if text[:1].isspace() else text

    @cached_property
    def line(self) -> tuple[str, bool]:
        """The first line without trailing white space, and whether it goes on behind what is compared."""
        line, ended, _ = self.text[: MAX_LINE_CHARS + 1].partition("\n")
        cut = not ended and len(line) > MAX_LINE_CHARS
        return (line[:MAX_LINE_CHARS], True) if cut else (line.rstrip(), False)

    @cached_property
    def body(self) -> Mapping[str, Any]:
        """The JSON object; empty where the result is none."""
        if not self.text.startswith("{") or len(self.text) > MAX_JSON:
            return {}
        try:
            body = json.loads(self.text)
        except (ValueError, RecursionError):
            return {}
        return body if isinstance(body, dict) else {}


def match_operator_text(
    entries: Sequence[OperatorText], text: str, *, is_error: bool | None, has_flag: bool
) -> OperatorText | None:
    """The first entry that a tool result is an instance of.

    Args:
        entries: those of the tool, in the order of the policy.
        text: the text of the result. White space at its start is left out.
        is_error: the wire's error flag; None where it is absent.
        has_flag: whether the dialect has an error flag at all.

    Returns:
        None where no entry fits. Never raises.
    """
    if not entries:
        return None
    result = _Result(text)
    unflagged_only = has_flag and is_error is not True
    for entry in entries:
        if not (unflagged_only and entry.with_error_flag) and _fits(entry, result):
            return entry
    return None


def _fits(entry: OperatorText, result: _Result) -> bool:
    if entry.starts_with is not None:
        return result.text.startswith(entry.starts_with)
    if entry.field is not None:
        return _equal(_value_at(result.body, entry.field), entry.equals)
    line, goes_on = result.line
    # Where the line goes on, its end is not known: only a glob that leaves the end open can be said to fit.
    return not (goes_on and entry.parts[-1]) and _fills(entry.parts, line)


def _value_at(body: Mapping[str, Any], path: str) -> Any:
    value: Any = body
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _equal(value: Any, literal: FieldValue | None) -> bool:
    """Equal as JSON values: `true` is not 1, and 1 is 1.0."""
    if isinstance(value, bool) or isinstance(literal, bool):
        return value is literal
    return isinstance(value, (str, int, float)) and value == literal


def _fills(parts: tuple[str, ...], line: str) -> bool:
    """Whether the line is the parts in order with anything between them. Taking each part as far left as it goes is
    enough, because only the last one is bound to the end. So no part is looked for twice, and the cost is the length of
    the line times that of the glob at most."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return len(line) == len(first) and _stands_at(first, line, 0)
    if not _stands_at(first, line, 0):
        return False
    at = len(first)
    for part in parts[1:-1]:
        found = _find(part, line, at)
        if found == -1:
            return False
        at = found + len(part)
    return len(line) - len(last) >= at and _stands_at(last, line, len(line) - len(last))


def _find(part: str, line: str, start: int) -> int:
    """The leftmost place of a part from there on; -1 where it does not stand."""
    if "?" not in part:
        return line.find(part, start)
    places = range(start, len(line) - len(part) + 1)
    return next((at for at in places if _stands_at(part, line, at)), -1)


def _stands_at(part: str, line: str, at: int) -> bool:
    if "?" not in part:
        return line.startswith(part, at)
    piece = line[at : at + len(part)]
    return len(piece) == len(part) and all(wanted in ("?", found) for wanted, found in zip(part, piece, strict=True))
