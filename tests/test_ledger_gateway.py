"""What is withheld stays withheld: over restarts, workers, deaths in the middle, and whatever is switched off."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from litellm_toolguard import notes
from litellm_toolguard.store.sqlite_ledger import SqliteLedger
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, Step
from tests.harness.gateways import Gateway, Gateways, guardrail
from tests.harness.proxy import config, start_proxy
from tests.harness.upstream import FINAL_WORDS, Reply
from tests.test_refusal_gateway import MARKED, WORD, page, refusing, request, two

pytestmark = [pytest.mark.proxy, pytest.mark.long]

# A guard that dies at a point of the protocol: before the originals are kept, behind it, or when it is told to.
DYING = """
import os, signal
from litellm_toolguard import ToolGuard

class Dying(ToolGuard):
    async def _withhold(self, *args, **kwargs):
        if os.environ["DIES"] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        stored = await super()._withhold(*args, **kwargs)
        if os.environ["DIES"] == "behind":
            os.kill(os.getpid(), signal.SIGKILL)
        return stored
"""


REFUSALS: Mapping[str, Any] = {"recover": True, "ledger": "sqlite:///../withheld.db"}
STEPS: list[Step] = [{"user": "Read it."}, page(MARKED, "kept")]
BEHIND: list[Step] = [*STEPS, {"assistant": FINAL_WORDS}, {"user": "And now?"}]


@dataclass(frozen=True)
class Kept:
    """Proxies over one ledger, each in a folder of its own."""

    gateways: Gateways
    folder: Path

    @property
    def ledger(self) -> Path:
        """The ledger's file."""
        return self.folder / "withheld.db"

    @contextmanager
    def serving(self, name: str, *guardrails: dict[str, Any], dies: str = "", workers: int = 1) -> Iterator[Gateway]:
        """One of them."""
        workdir = self.folder / name
        workdir.mkdir()
        made = config(self.gateways.upstream.url, guardrails=list(guardrails))
        files, env = {"dying.py": DYING}, {"DIES": dies}
        with start_proxy(made, workdir=workdir, files=files, env=env, workers=workers) as proxy:
            yield Gateway(self.gateways.upstream, proxy, workdir)

    def originals(self) -> list[str]:
        """The texts that the ledger keeps."""
        ledger = SqliteLedger(self.ledger, create=False)
        kept = [ledger.original(entry.id) for entry in ledger.entries()]
        ledger.close()
        return [json.loads(each.payload)["text"] for each in kept if each is not None and each.payload is not None]


@pytest.fixture
def kept(gateways: Gateways, tmp_path: Path) -> Kept:
    """An empty folder."""
    return Kept(gateways, tmp_path)


def sent_by(gateway: Gateway, dialect: Dialect, steps: list[Step], guard: str = "") -> list[str]:
    """What the provider got for a request."""
    gateway.upstream.clear()
    named = {"guardrails": [guard]} if guard else {}
    answer = gateway.post(dialect, {**request(dialect, steps), **named})
    assert answer.status_code == 200, answer.text
    return [each.body.decode() for each in gateway.upstream.requests]


SWITCHED: Mapping[str, Mapping[str, Any]] = {
    "off": {"refusals": {**REFUSALS, "recover": False}},
    "observing": {"refusals": REFUSALS, "enforcement": "observe"},
}


def test_what_is_withheld_outlives_restarts_and_switches(kept: Kept) -> None:
    """On another worker; with recovery off; when observing. Until it is released, or the ledger is gone."""
    refusal: Reply = next(iter(two("chat").values()))
    with kept.serving("first", guardrail({"refusals": REFUSALS}), workers=2) as gateway:
        with refusing(gateway, refusal):
            assert gateway.post("chat", request("chat", STEPS)).status_code == 200
        # Whichever worker takes them, each over a connection of its own.
        for _ in range(8):
            (sent,) = sent_by(gateway, "messages", BEHIND)
            assert (WORD in sent, notes.WITHHELD in sent) == (False, True)
    assert kept.originals() == [MARKED]
    assert kept.ledger.stat().st_mode & 0o777 == 0o600

    guards = [
        {**guardrail(dict(policy), default_on=False), "guardrail_name": name} for name, policy in SWITCHED.items()
    ]
    with kept.serving("second", *guards) as gateway:
        for name in SWITCHED:
            for dialect in ("chat", "responses"):
                (sent,) = sent_by(gateway, dialect, BEHIND, name)
                assert (WORD in sent, notes.WITHHELD in sent) == (False, True)
            with refusing(gateway, refusal, "new text"):
                body = request("chat", [STEPS[0], page("new text", "b")])
                gateway.post("chat", {**body, "guardrails": [name]})
                assert len(gateway.upstream.requests) == 1
        ledger = SqliteLedger(kept.ledger, create=False)
        ledger.release(ledger.entries()[0].id)
        ledger.close()
        (sent,) = sent_by(gateway, "chat", BEHIND, "off")
        assert (WORD in sent, notes.WITHHELD in sent) == (True, False)

        for file in kept.folder.glob("withheld.db*"):
            file.unlink()
        answers = [gateway.post(each, {**request(each, STEPS), "guardrails": ["observing"]}) for each in DIALECTS]
        fine = gateway.post("chat", {**request("chat", [STEPS[0]]), "guardrails": ["observing"]})
        assert [answer.status_code for answer in answers] == [503] * 3
        assert fine.status_code == 200


def test_a_guard_that_is_killed_loses_and_leaks_nothing(kept: Kept) -> None:
    """Before the original is kept, the client's next try begins anew; behind that, and while the second attempt is on
    its way, the result is withheld from the first attempt on, and the original is there."""
    answer, error = two("chat").values()
    with kept.serving("survivor", guardrail({"refusals": REFUSALS})) as survivor:
        for number, (dies, refusal, stored) in enumerate(
            [("before", answer, False), ("behind", answer, True), ("behind", error, True)]
        ):
            steps = [STEPS[0], page(MARKED, f"killed {number}")]
            known = len(kept.originals())
            dying = guardrail({"refusals": REFUSALS}, loaded="dying.Dying")
            with kept.serving(f"dying-{number}", dying, dies=dies) as gateway, refusing(gateway, refusal):
                with pytest.raises(httpx.HTTPError):
                    gateway.post("chat", request("chat", steps))
                assert len(gateway.upstream.requests) == 1
            assert len(kept.originals()) == known + stored
            with refusing(survivor, refusal):
                recovered = survivor.post("chat", request("chat", steps))
                sent = [each.body.decode() for each in survivor.upstream.requests]
                assert FINAL_WORDS in recovered.text
                assert [WORD in each for each in sent] == ([False] if stored else [True, False])
            assert kept.originals() == [MARKED] * (number + 1)
