"""Stops runaway agents at a LiteLLM gateway.

Importing this package imports no litellm. `ToolGuard`, `callback` and `scripted_models`, which LiteLLM loads by their
dotted names, are made when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from litellm_toolguard.demo.scripted import scripted_models
    from litellm_toolguard.proxy import ToolGuard
    from litellm_toolguard.proxy_callback import callback

__version__: Final = "0.1.0"

_PROXY_NAMES: Final = frozenset({"ToolGuard", "callback"})
_LAZY: Final = {
    "ToolGuard": "litellm_toolguard.proxy",
    "callback": "litellm_toolguard.proxy_callback",
    "scripted_models": "litellm_toolguard.demo.scripted",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _PROXY_NAMES:
        _require_litellm()
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def _require_litellm() -> None:
    """Checked before the proxy layer is imported: an older LiteLLM lacks what it imports, and would name only that."""
    from importlib.metadata import version

    from litellm_toolguard.config import version_problem
    from litellm_toolguard.errors import ConfigError

    problem = version_problem(version("litellm"))
    if problem is not None:
        raise ConfigError((problem,))


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


__all__ = ["ToolGuard", "__version__", "callback", "scripted_models"]
