"""Ways to break one thing of the core while it runs: a rung, a constant, one line of a function."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, reduce
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import pytest
from pydantic import BaseModel

from litellm_toolguard import policy

PACKAGE = "litellm_toolguard"
Change: TypeAlias = Callable[[pytest.MonkeyPatch], None]


@contextmanager
def broken(change: Change) -> Iterator[None]:
    """The core with the change, and whole again behind it."""
    with pytest.MonkeyPatch.context() as patch:
        _forget()
        change(patch)
        try:
            yield
        finally:
            _forget()


def _core() -> list[ModuleType]:
    return [module for name, module in sorted(sys.modules.items()) if name.startswith(f"{PACKAGE}.")]


def _forget() -> None:
    """Empty what the core keeps of earlier answers."""
    for module in _core():
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()


# ---------------------------------------------------------------------------------------------------------------- rungs


def rungs(preset: policy.Preset) -> dict[str, int]:
    """Every rung of a preset by its dotted path."""
    found: dict[str, int] = {}
    ladders = policy._PRESETS[preset].model_dump(by_alias=True, exclude_none=True)
    for detector, ladder in ladders.items():
        for name, at in ladder.items():
            nested = at if isinstance(at, dict) else {"": at}
            limits = {inner: limit for inner, limit in nested.items() if not isinstance(limit, bool)}
            found |= {".".join(filter(None, (detector, name, inner))): limit for inner, limit in limits.items()}
    return found


def rung(preset: policy.Preset, path: str, by: int) -> Change:
    """One rung of a preset, moved; the ladder is not checked again."""

    def change(patch: pytest.MonkeyPatch) -> None:
        patch.setitem(policy._PRESETS, preset, _moved(policy._PRESETS[preset], path.replace("-", "_").split("."), by))

    return change


def _moved(model: Any, path: list[str], by: int) -> Any:
    if not path:
        return model + by
    assert isinstance(model, BaseModel)
    return model.model_copy(update={path[0]: _moved(getattr(model, path[0]), path[1:], by)})


# ------------------------------------------------------------------------------------------------------------ constants


def constant(where: str, value: Any) -> Change:
    """A constant with another value, in its module and in those that import it.

    Args:
        where: module within the package and name, `policy.READ_WINDOW`.
    """
    module, _, name = where.rpartition(".")

    def change(patch: pytest.MonkeyPatch) -> None:
        before = getattr(import_module(f"{PACKAGE}.{module}"), name)
        for each in _core():
            if vars(each).get(name, change) is before:
                patch.setattr(each, name, value)

    return change


# ---------------------------------------------------------------------------------------------------------------- lines


def line(where: str, text: str, becomes: str) -> Change:
    """A text of one function, replaced; it stands there exactly once.

    Args:
        where: module within the package, `:`, and the function's dotted name, `walk:Walk.newest`.
    """
    function = _function(where)
    code = _compiled(function, text, becomes)

    def change(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(function, "__code__", code)

    return change


def _function(where: str) -> FunctionType:
    module, _, path = where.partition(":")
    found: Any = reduce(inspect.getattr_static, path.split("."), import_module(f"{PACKAGE}.{module}"))
    found = getattr(found, "fget", getattr(found, "__func__", getattr(found, "__wrapped__", found)))
    assert isinstance(found, FunctionType)
    return found


def _compiled(function: FunctionType, text: str, becomes: str) -> Any:
    source = _source(function)
    assert source.count(text) == 1, f"`{text}` stands {source.count(text)} times in {function.__qualname__}"
    tree = ast.parse(source.replace(text, becomes))
    (defined,) = tree.body
    assert isinstance(defined, ast.FunctionDef)
    defined.decorator_list = []
    made: dict[str, Any] = {}
    exec(compile(tree, function.__code__.co_filename, "exec"), dict(function.__globals__), made)
    return made[function.__name__].__code__


@cache
def _source(function: FunctionType) -> str:
    return textwrap.dedent(inspect.getsource(function))


def constants(module: str, of: tuple[type, ...]) -> Mapping[str, Any]:
    """The constants that a module defines itself, of the given types: names in upper case."""
    found = vars(import_module(f"{PACKAGE}.{module}"))
    source = inspect.getsource(import_module(f"{PACKAGE}.{module}"))
    own = {
        target.id
        for node in ast.parse(source).body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    return {name: found[name] for name in sorted(own) if name.isupper() and isinstance(found[name], of)}


def numbers(module: str) -> list[str]:
    """The names of the module's own constants that are numbers, or tuples of numbers."""
    found = constants(module, (int, tuple)).items()
    return [name for name, value in found if isinstance(value, int) or all(isinstance(each, int) for each in value)]
