"""Environments in which nothing of the user's shell leads a proxy or a client anywhere but to loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

# What a Python process needs to run. LiteLLM reads far more (keys, databases, caches, addresses, configs, its port),
# under names without a common beginning, so that only a list of what is kept holds.
_KEPT: Final = frozenset(
    {
        "HOME",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "LOGNAME",
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONPYCACHEPREFIX",
        "TMPDIR",
        "TZ",
        "USER",
        "VIRTUAL_ENV",
    }
)
_LOOPBACK: Final = "127.0.0.1,localhost"
# What the official clients read: keys, headers, addresses.
_CLIENT_PREFIXES: Final = ("OPENAI_", "ANTHROPIC_")
_CLIENT_PROXIES: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})


def proxy_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a proxy process.

    Args:
        extra: variables that are added, or take the place of others.
    """
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("LC_")}
    paths = [*_source_root(), *filter(None, [kept.get("PYTHONPATH")])]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY_DISABLED": "True",
        # Otherwise LiteLLM reads the .env files above the folder that it is installed in.
        "LITELLM_MODE": "PRODUCTION",
        "NO_PROXY": _LOOPBACK,
        **extra,
    }


@contextmanager
def client_environment() -> Iterator[None]:
    """While it is open, the official clients find nothing in this process's environment and use no HTTP proxy."""
    before = dict(os.environ)
    for name in [name for name in before if _is_read_by_clients(name)]:
        del os.environ[name]
    # With it, proxies out of the settings of the system are left out too.
    os.environ["NO_PROXY"] = _LOOPBACK
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _is_read_by_clients(name: str) -> bool:
    upper = name.upper()
    return upper.startswith(_CLIENT_PREFIXES) or upper in _CLIENT_PROXIES


def _source_root() -> list[str]:
    """The folder of the checkout that this package is imported from; nothing where it is installed."""
    spec = find_spec("litellm_toolguard")
    places = list(spec.submodule_search_locations or ()) if spec else []
    roots = [str(Path(place).parent) for place in places[:1]]
    return [root for root in roots if "site-packages" not in root]
