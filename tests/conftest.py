"""The test's environment, and the proxies that live as long as the session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.harness.gateways import Gateway, Gateways, guardrail
from tests.harness.upstream import ScriptedUpstream

# Before anything imports litellm: without it the import tries the network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"


# Files that take long and have few tests. They come first, so that none is left for one process alone at the end.
_LONGEST = (
    *("test_mutants", "test_refusal_gateway", "test_rungs", "test_ledger_gateway"),
    *("test_store_gateway", "test_demo", "test_samples"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of those files first; the others stay in their order."""
    rank = {name: number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(scope="session")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    """Every proxy that the session's tests asked for, over one upstream."""
    with ScriptedUpstream() as upstream, ExitStack() as stack:
        yield Gateways(upstream, tmp_path_factory.mktemp("gateways"), stack)


@pytest.fixture
def bare(gateways: Gateways) -> Gateway:
    """A proxy without the guard."""
    return gateways.get("bare")


@pytest.fixture
def guarded(gateways: Gateways) -> Gateway:
    """A proxy with the guard and its default policy."""
    return gateways.get("guarded", guardrails=[guardrail()])
