"""A store in a file behind real proxies: shared by workers, kept over a restart, and down without harm."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conversation import Conversation, expand
from tests.harness.gateways import PATHS, Gateway, Gateways, guardrail
from tests.harness.proxy import config, start_proxy
from tests.harness.upstream import Calls

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
READ = {"tool": "read_file", "args": {"path": "a"}, "result": "x"}
TRIES = 20
"""Which worker takes a connection is up to the kernel: so often connections are opened until both have one."""


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
    """A worker ends the loop of which another one told, and so does a proxy that is started after both. Then the file's
    folder goes away: a loop is ended all the same, and the header says so."""
    with stored.serving(workers=2) as gateway:
        told, ended = judged_by_two(gateway)
        assert [action(answer) for answer in told] == ["action=hint", "action=hint"]
        assert action(ended) == "action=stop"
        with client(gateway) as one:
            assert action(post(one, "restart", 7)) == "action=hint"
            assert action(post(one, "blocks", 3)) == "action=hint"
        # Whichever worker takes them.
        assert [held_back(gateway, between) for between in (0, 1)] == [("block", 5, 2), ("block", 6, 2)]
    assert os.stat(stored.workdir / STORE).st_mode & 0o777 == 0o600

    with stored.serving() as gateway, client(gateway) as one:
        # Four calls ran; what was held back at earlier places counts, and a retry of the same request adds nothing.
        assert [held_back(gateway, 2) for _ in range(2)] == [("block", 7, 2)] * 2
        assert held_back(gateway, 3) == ("stop", 8, 1)
        assert action(post(one, "restart", 8)) == "action=stop"

        (stored.workdir / STORE).parent.rename(stored.workdir / "away")
        answers = [post(one, "down", count) for count in (3, 7, 8)]
        assert [action(answer) for answer in answers] == ["action=hint", "action=hint", "action=stop"]
        assert all(answer.headers["x-toolguard"].endswith("; store=unavailable") for answer in answers)
        assert gateway.proxy.log().count("toolguard: store unavailable: no such file or directory") == 1


def judged_by_two(gateway: Gateway) -> tuple[list[httpx.Response], httpx.Response]:
    """The answers of one worker that told of a loop twice, and that of the other at its end."""
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        clients: dict[str, httpx.Client] = {}
        for number in range(TRIES):
            opened = [stack.enter_context(client(gateway)) for _ in range(4)]
            # At once, so that one worker cannot take them all.
            for one, answer in zip(opened, pool.map(lambda one: post(one, "warm up", 1), opened), strict=True):
                clients[answer.headers["x-pid"]] = one
            if len(clients) == 2:
                teller, ender = clients.values()
                told = [post(teller, f"shared {number}", count) for count in (3, 7)]
                ended = post(ender, f"shared {number}", 8)
                # A connection that was idle for too long was opened again, perhaps to the other one.
                if ended.headers["x-pid"] not in {answer.headers["x-pid"] for answer in told}:
                    return told, ended
    raise AssertionError("one worker served everything")


def held_back(gateway: Gateway, between: int) -> tuple[str, int, int]:
    """Action, count and samples where a model that has read `a` four times, and another file each time that it was held
    back, proposes to read `a` once more and takes the next file when it is told that this was not executed."""
    upstream = gateway.upstream
    steps: list[dict[str, Any]] = [
        {"user": "conversation blocks"},
        {"times": 4, "steps": [READ]},
        *({**READ, "args": {"path": f"b{number}"}, "result": f"y{number}"} for number in range(between)),
    ]
    conversation = Conversation("chat")
    for step in expand(steps):
        conversation.add(step)
    upstream.clear()
    again, other = (Calls([("read_file", {"path": path})]) for path in ("a", f"b{between}"))
    upstream.script = [again, other]
    with client(gateway) as one:
        answer = one.post(PATHS["chat"], json={**conversation.request(), "model": "native-chat/script"})
    upstream.script = []
    assert answer.status_code == 200, answer.text
    said = dict(pair.split("=") for pair in answer.headers["x-toolguard"].split("; "))
    message = answer.json()["choices"][0]["message"]
    called = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    assert called == ([] if said["action"] == "stop" else [f'{{"path": "b{between}"}}'])
    return said["action"], int(said["count"]), len(upstream.requests)


def client(gateway: Gateway) -> httpx.Client:
    """A client that keeps its connection, and so its worker."""
    headers = {"Authorization": f"Bearer {gateway.proxy.key}"}
    return httpx.Client(base_url=gateway.proxy.url, headers=headers, trust_env=False, timeout=60)


def post(client: httpx.Client, name: str, count: int) -> httpx.Response:
    """The request of a conversation of that name after so many equal calls."""
    conversation = Conversation("chat")
    for step in expand([{"user": f"conversation {name}"}, {"times": count, "steps": [READ]}]):
        conversation.add(step)
    answer = client.post(PATHS["chat"], json={**conversation.request(), "model": "native-chat/words"})
    assert answer.status_code == 200, answer.text
    return answer


def action(answer: httpx.Response) -> str:
    """What was done with the request."""
    return answer.headers["x-toolguard"].partition(";")[0]
