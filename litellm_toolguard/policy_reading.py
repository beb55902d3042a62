"""How a policy is read: from plain data, from a YAML file, or from the `toolguard:` key of a LiteLLM config.

Every reader raises `ConfigError` with every fault and its path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from litellm_toolguard.errors import ConfigError, ConfigProblem
from litellm_toolguard.policy import Policy
from litellm_toolguard.policy_faults import kind_of, problems


def load_policy(data: Any, source: str = "toolguard") -> Policy:
    """A policy out of plain data (None is the empty policy).

    Raises:
        ConfigError: with every fault and the dotted path of its key.
    """
    if data is None:
        return Policy()
    if not isinstance(data, Mapping):
        raise ConfigError((ConfigProblem("", f"a policy is a mapping, not {kind_of(data)}"),), source)
    try:
        return Policy.model_validate(data)
    except ValidationError as error:
        raise ConfigError(tuple(problems(error)), source) from error


def load_policy_file(path: Path) -> Policy:
    """A policy out of a YAML (or JSON) file.

    Raises:
        ConfigError: when the file cannot be read, is no YAML, or holds a bad policy.
    """
    return load_policy(read_yaml(path), str(path))


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key that is given twice is an error and not a choice."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
        if key is not None and key != "<<" and key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        ConfigError: when it cannot be read or is no YAML; the message names the line.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except OSError as error:
        raise ConfigError((ConfigProblem("", f"cannot be read: {error.strerror}"),), str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError((ConfigProblem("", "is not UTF-8 text"),), str(path)) from error
    except yaml.YAMLError as error:
        raise ConfigError((ConfigProblem("", f"is not YAML: {_where(error)}"),), str(path)) from error


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or "unreadable"
    return what if mark is None else f"{what} at line {mark.line + 1}, column {mark.column + 1}"


def load_policy_key(value: Any, base: Path | None) -> Policy:
    """The policy of a `toolguard:` key: the policy itself, or `{policy: path}` alone.

    Args:
        value: the key's value.
        base: folder that a relative path starts from; None where it is not known.

    Raises:
        ConfigError: as `load_policy`.
    """
    if not isinstance(value, Mapping) or "policy" not in value:
        return load_policy(value)
    path, others = value["policy"], sorted(str(key) for key in value if key != "policy")
    if others:
        message = f"`policy` names a file that holds the whole policy; move {', '.join(others)} into it"
        raise ConfigError((ConfigProblem("policy", message),))
    if not isinstance(path, str) or not path:
        raise ConfigError((ConfigProblem("policy", "is the path of a policy file"),))
    file = Path(path).expanduser()
    if not file.is_absolute():
        if base is None:
            raise ConfigError((ConfigProblem("policy", "is relative, and the folder of the config is not known"),))
        file = base / file
    return load_policy_file(file)


def policy_schema() -> dict[str, Any]:
    """The JSON Schema of a policy."""
    return Policy.model_json_schema(by_alias=True)
