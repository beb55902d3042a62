"""A store in a file behind real proxies: shared by workers, kept over a restart, and down without harm."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conversation import Conversation, expand
from tests.harness.gateways import Gateway, Gateways, guardrail
from tests.harness.proxy import config, start_proxy

pytestmark = pytest.mark.proxy

# A guard that says which process judged.
WITH_PID = """
import os
from litellm_toolguard import ToolGuard

class WithPid(ToolGuard):
    async def async_post_call_response_headers_hook(self, *args, **kwargs):
        headers = await super().async_post_call_response_headers_hook(*args, **kwargs)
        return {**(headers or {}), "x-pid": str(os.getpid())}
"""
STORE = "data/facts.db"
PROCESSES_SEEN_AFTER = 20
"""Rounds of conversations after which both workers must have served; one alone could hide that they share nothing."""


@dataclass(frozen=True)
class Stored:
    """Proxies that are started one after the other with the same config and the same file."""

    gateways: Gateways
    workdir: Path
    config: Mapping[str, Any]

    @contextmanager
    def serving(self, workers: int = 1) -> Iterator[Gateway]:
        """One of them."""
        files = {"ours.py": WITH_PID}
        with start_proxy(self.config, workdir=self.workdir, files=files, workers=workers) as proxy:
            yield Gateway(self.gateways.upstream, proxy, self.workdir)


@pytest.fixture
def stored(gateways: Gateways, tmp_path: Path) -> Stored:
    """A config whose store is a file below its folder."""
    (tmp_path / STORE).parent.mkdir()
    policy = {"store": f"sqlite:///{STORE}"}
    made = config(gateways.upstream.url, guardrails=[guardrail(policy, loaded="ours.WithPid")])
    return Stored(gateways, tmp_path, made)


def test_workers_and_restarts_share_what_a_store_keeps(stored: Stored) -> None:
    """Two workers on one file end every loop at its rung, and so does the proxy that is started after them: the note
    was sent before. Then the file's folder goes away: the loop is ended all the same, and the header says so."""
    with stored.serving(workers=2) as gateway, ThreadPoolExecutor(4) as pool:
        served: set[str] = set()
        for start in range(PROCESSES_SEEN_AFTER):
            for pids, header in pool.map(lambda name: looped(gateway, name), [f"{start}/{n}" for n in range(4)]):
                served |= pids
                assert header.startswith("action=stop; enforced=true; detector=repeated-call; tool=read_file; count=8")
            if len(served) > 1:
                break
        assert len(served) == 2
        assert "action=hint" in post(gateway, "restart", 7).headers["x-toolguard"]
    assert os.stat(stored.workdir / STORE).st_mode & 0o777 == 0o600

    with stored.serving() as gateway:
        assert "action=stop" in post(gateway, "restart", 8).headers["x-toolguard"]

        (stored.workdir / STORE).parent.rename(stored.workdir / "away")
        told = [post(gateway, "down", count).headers["x-toolguard"] for count in (3, 7)]
        ended = post(gateway, "down", 8).headers["x-toolguard"]
        assert [header.partition(";")[0] for header in (*told, ended)] == ["action=hint", "action=hint", "action=stop"]
        assert [header.rpartition("; ")[2] for header in told] == ["store=unavailable"] * 2
        assert gateway.proxy.log().count("toolguard: store unavailable: no such file or directory") == 1


def looped(gateway: Gateway, name: str) -> tuple[set[str], str]:
    """Who judged a conversation at its hint, before its end and at its end; and the header of the last."""
    answers = [post(gateway, name, count) for count in (3, 7, 8)]
    return {answer.headers["x-pid"] for answer in answers}, answers[-1].headers["x-toolguard"]


def post(gateway: Gateway, name: str, count: int) -> Any:
    """The request of a conversation of that name after so many equal calls."""
    conversation = Conversation("chat")
    call = {"tool": "read_file", "args": {"path": "a"}, "result": "x"}
    for step in expand([{"user": f"conversation {name}"}, {"times": count, "steps": [call]}]):
        conversation.add(step)
    answer = gateway.post("chat", {**conversation.request(), "model": "native-chat/words"})
    assert answer.status_code == 200, answer.text
    return answer
