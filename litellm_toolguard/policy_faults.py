"""What is wrong with a policy, in words: the path of each fault, and the key or value that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError

from litellm_toolguard.errors import ConfigProblem
from litellm_toolguard.policy import Policy


def problems(error: ValidationError) -> Iterator[ConfigProblem]:
    """The faults of a policy that was refused, each with the dotted path of its key."""
    faults = [(tuple(fault["loc"]), fault) for fault in error.errors(include_url=False)]
    for path, fault in faults:
        # A list whose only entry is refused counts as empty too; the entry's own fault says what is wrong.
        if fault["type"] == "too_short" and any(_is_below(other, path) for other, _ in faults):
            continue
        yield ConfigProblem(_dotted(path), _message(fault["type"], fault, path))


def _is_below(path: tuple[int | str, ...], key: tuple[int | str, ...]) -> bool:
    return len(path) > len(key) and path[: len(key)] == key


def _message(kind: str, fault: Mapping[str, Any], path: tuple[int | str, ...]) -> str:
    if kind == "extra_forbidden":
        return "unknown key" + _did_you_mean(str(path[-1]), _keys_at(path[:-1]))
    if kind == "greater_than_equal":
        return f"must be at least {fault['ctx']['ge']}, not {fault['input']!r}"
    if kind == "less_than_equal":
        return f"must be at most {fault['ctx']['le']}, not {fault['input']!r}"
    if kind == "literal_error":
        expected = str(fault["ctx"]["expected"])
        names = tuple(expected.replace(" or ", ", ").replace("'", "").split(", "))
        return f"{fault['input']!r} is none of {expected}" + _nearest(str(fault["input"]), names)
    if kind == "string_too_long":
        return f"must have at most {fault['ctx']['max_length']} characters"
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}, not {kind_of(fault['input'])}"
    if kind in ("too_short", "string_too_short"):
        return "is empty"
    if kind == "missing":
        return "is missing"
    return str(fault["msg"]).removeprefix("Value error, ")


_WANTED: Final[Mapping[str, str]] = {
    "int_type": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
}


def _did_you_mean(name: str, known: tuple[str, ...]) -> str:
    return _nearest(name, known) or (f"; known are {', '.join(known)}" if known else "")


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean `{near[0]}`?" if near else ""


def _keys_at(path: tuple[int | str, ...]) -> tuple[str, ...]:
    """The keys that are known at a place of the policy."""
    model: type[BaseModel] | None = Policy
    for step in path:
        if isinstance(step, int) or model is None:
            continue
        model = _model_at(model, step)
    return () if model is None else tuple(field.alias or name for name, field in model.model_fields.items())


def _model_at(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    for name, field in model.model_fields.items():
        if key in (name, field.alias):
            return next(_models_in(field.annotation), None)
    return None


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    # Python 3.10 takes `tuple[X, ...]` for a class.
    if get_origin(annotation) is None and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _dotted(path: tuple[int | str, ...]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def kind_of(value: Any) -> str:
    """The kind of a value in the words of YAML."""
    names = {type(None): "nothing", bool: "true or false", str: "text", list: "a list", dict: "a mapping"}
    return names.get(type(value), type(value).__name__)
