"""The ledger of withheld results: one contract for memory and SQLite, and what only a file can break."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from litellm_toolguard.cli import main
from litellm_toolguard.errors import ConfigError, StoreError
from litellm_toolguard.store.ledger import Ledger, MemoryLedger
from litellm_toolguard.store.sqlite_ledger import SqliteLedger
from litellm_toolguard.withheld import Withheld

DAY_S = 86_400


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock."""
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Ledger:
    """Each home of a ledger."""
    return MemoryLedger(clock) if request.param == "memory" else SqliteLedger(tmp_path / "w.db", clock=clock)


def result(name: str, *more: str, payload: str = "secret") -> Withheld:
    """A result that is known by its name and by further names."""
    keys = tuple(each.encode() for each in (name, *more))
    body = json.dumps({"text": payload, "opaque": ""}).encode()
    return Withheld(keys, "read_page", f"call-{name}", "content_filter", "cyber", f"it says {payload}", body)


# ------------------------------------------------------------------------------------------------------------ contract


def test_what_is_withheld_is_known_by_all_its_keys(ledger: Ledger) -> None:
    """To its tenant alone."""
    assert ledger.is_empty()
    ledger.withhold("t", [result("a", "b"), result("c")])

    assert not ledger.is_empty()
    assert ledger.known("t", [b"a", b"b", b"c", b"d"]) == {b"a", b"b", b"c"}
    assert ledger.known("t", []) == frozenset()
    assert ledger.known("other", [b"a", b"b", b"c"]) == frozenset()


def test_the_same_result_is_one_entry(ledger: Ledger, clock: Clock) -> None:
    """And is known under its new key too."""
    ledger.withhold("t", [result("a", "b")])
    clock.now += 10
    ledger.withhold("t", [result("a", "c")])

    (entry,) = ledger.entries()
    assert (entry.withheld_at, entry.size) == (clock.now - 10, len(result("a").payload))
    assert ledger.known("t", [b"a", b"b", b"c"]) == {b"a", b"b", b"c"}


def test_entries_come_newest_first_and_originals_by_the_beginning_of_an_id(ledger: Ledger, clock: Clock) -> None:
    """An unknown id is none."""
    ledger.withhold("t", [result("a")])
    clock.now += 1
    ledger.withhold("t", [result("b", payload="another")])

    newest, oldest = ledger.entries()
    assert (newest.call_id, oldest.call_id) == ("call-b", "call-a")
    found = ledger.original(newest.id[:6])
    assert found is not None
    assert (found.entry, found.explanation) == (newest, "it says another")
    assert json.loads(found.payload or b"")["text"] == "another"
    assert [ledger.original(each) for each in ("", "zz", "0123456789ab")] == [None] * 3


def test_what_is_released_is_not_known_until_it_is_withheld_again(ledger: Ledger, clock: Clock) -> None:
    """That it was withheld stays on record."""
    ledger.withhold("t", [result("a", "b"), result("c", "b")])
    name = next(entry.id for entry in ledger.entries() if entry.call_id == "call-a")
    clock.now += 5
    released = ledger.release(name)

    assert released is not None
    assert released.released_at == clock.now
    assert ledger.known("t", [b"a", b"b", b"c"]) == {b"b", b"c"}
    assert len(ledger.entries()) == 2
    ledger.withhold("t", [result("a")])
    assert ledger.known("t", [b"a"]) == {b"a"}
    assert [entry.released_at for entry in ledger.entries()] == [None, None]
    assert ledger.release("0123456789ab") is None


STEPS = st.lists(
    st.tuples(st.sampled_from(["withhold", "release"]), st.sampled_from("ab"), st.sampled_from("xyz"), st.booleans()),
    max_size=12,
)


@given(STEPS)
@settings(max_examples=40, deadline=None)
def test_the_file_knows_what_memory_knows(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    """Whatever is withheld and released in whatever order."""
    clock = Clock()
    memory, file = MemoryLedger(clock), SqliteLedger(tmp_path_factory.mktemp("l") / "w.db", clock=clock)
    for what, tenant, name, more in steps:
        clock.now += 1
        for ledger in (memory, file):
            if what == "withhold":
                ledger.withhold(tenant, [result(name, *("shared" if more else ""))])
            elif ledger.entries():
                ledger.release(memory.entries()[0].id)
    keys = [letter.encode() for letter in "xyzshared"]
    assert memory.entries() == file.entries()
    assert memory.is_empty() == file.is_empty()
    for tenant in "ab":
        assert memory.known(tenant, keys) == file.known(tenant, keys)
    file.close()


# ---------------------------------------------------------------------------------------------------------------- files


def test_originals_expire_and_facts_stay(tmp_path: Path, clock: Clock) -> None:
    """The explanation goes with the original."""
    ledger = SqliteLedger(tmp_path / "w.db", days=30, clock=clock)
    ledger.withhold("t", [result("a")])
    clock.now += 31 * DAY_S
    assert ledger.purge() == 1

    (entry,) = ledger.entries()
    found = ledger.original(entry.id)
    assert found is not None
    assert (entry.has_payload, found.payload, found.explanation) == (False, None, "")
    assert ledger.known("t", [b"a"]) == {b"a"}
    assert b"secret" not in (tmp_path / "w.db").read_bytes()


def test_an_original_that_expired_is_kept_again_when_it_is_refused_again(tmp_path: Path, clock: Clock) -> None:
    """As one entry, with its explanation, and for the whole time."""
    ledger = SqliteLedger(tmp_path / "w.db", days=30, clock=clock)
    ledger.withhold("t", [result("a")])
    clock.now += 31 * DAY_S
    ledger.purge()
    ledger.withhold("t", [result("a")])
    clock.now += 29 * DAY_S

    assert ledger.purge() == 0
    (entry,) = ledger.entries()
    found = ledger.original(entry.id)
    assert found is not None
    assert (entry.has_payload, found.payload) == (True, result("a").payload)
    assert found.explanation == result("a").explanation != ""


def test_ten_thousand_results_stay_below_the_bound(tmp_path: Path, clock: Clock) -> None:
    """The file with its log; the newest originals are kept and everything is known."""
    path = tmp_path / "w.db"
    ledger = SqliteLedger(path, max_mb=20, clock=clock)
    largest = 0
    for batch in range(100):
        clock.now += 1
        ledger.withhold(
            "t", [result(f"{batch}-{number}", payload=f"{batch}-{number} " * 1_000) for number in range(100)]
        )
        largest = max(largest, sum(file.stat().st_size for file in tmp_path.iterdir() if file.suffix != ".db-shm"))

    assert largest < 20_000_000
    assert len(ledger.entries()) == 10_000
    assert len(ledger.known("t", [f"{batch}-7".encode() for batch in range(100)])) == 100
    newest = next(entry for entry in ledger.entries() if entry.call_id == "call-99-7")
    assert newest.has_payload
    assert not next(entry for entry in ledger.entries() if entry.call_id == "call-0-7").has_payload


def test_an_original_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Nothing of its batch is stored."""
    ledger = SqliteLedger(tmp_path / "w.db", max_mb=1)
    with pytest.raises(StoreError, match="larger than the ledger may be"):
        ledger.withhold("t", [result("a"), result("b", payload="x" * 1_000_000)])
    assert ledger.is_empty()


def test_the_file_is_private_and_its_own(tmp_path: Path) -> None:
    """Mode 0600 with what stands beside it; a file of facts, of another program, or of a newer version is refused."""
    ledger = SqliteLedger(tmp_path / "w.db")
    ledger.withhold("t", [result("a")])
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    ledger.close()

    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE entries (entry)")
    with pytest.raises(ConfigError, match="another program"):
        SqliteLedger(other)
    with sqlite3.connect(tmp_path / "w.db") as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="newer version"):
        SqliteLedger(tmp_path / "w.db")


def test_a_ledger_that_is_gone_or_damaged_is_not_empty(tmp_path: Path) -> None:
    """It says so: nobody knows then what is withheld."""
    path = tmp_path / "w.db"
    ledger = SqliteLedger(path)
    ledger.withhold("t", [result("a")])
    ledger.close()
    path.write_bytes(b"no database at all" * 500)
    asks: list[Callable[[], Any]] = [ledger.is_empty, lambda: ledger.known("t", [b"a"]), ledger.entries]
    for ask in asks:
        with pytest.raises(StoreError):
            ask()
    for file in tmp_path.iterdir():
        file.unlink()
    for ask in asks:
        with pytest.raises(StoreError, match="gone"):
            ask()


# Withholds batch after batch, and tells of each that is durable.
WRITER = """
import sys
from pathlib import Path
from litellm_toolguard.store.sqlite_ledger import SqliteLedger
from tests.test_ledger import result

ledger = SqliteLedger(Path(sys.argv[1]))
for batch in range(1_000_000):
    ledger.withhold("t", [result(f"{sys.argv[2]}-{batch}-{n}", payload=f"{batch}-{n} " * 2_000) for n in range(5)])
    print(batch, flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_batches(tmp_path: Path) -> None:
    """Two processes on one file, one of them killed again and again: what it said was durable is there, and of each
    batch all or nothing."""
    path = tmp_path / "w.db"
    other = start(path, "other")
    for turn in range(4):
        writer = start(path, f"turn{turn}")
        assert writer.stdout is not None
        said = [int(writer.stdout.readline()) for _ in range(3 + turn)]
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        reader = SqliteLedger(path)
        for batch in range(said[-1] + 3):
            keys = [f"turn{turn}-{batch}-{number}".encode() for number in range(5)]
            known = len(reader.known("t", keys))
            assert known == 5 if batch in said else known in (0, 5)
        reader.close()
    other.kill()
    other.wait()


def start(path: Path, name: str) -> subprocess.Popen[str]:
    """A process that writes."""
    root = str(Path(__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name],
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        text=True,
    )


# --------------------------------------------------------------------------------------------------------- command line


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A ledger with two results, one of a tool with an odd name."""
    ledger = SqliteLedger(tmp_path / "w.db")
    ledger.withhold("t", [result("a")])
    odd = Withheld((b"o",), "od\x1b[31md | tool", "call-o", "content_filter", payload=result("o").payload)
    ledger.withhold("t", [odd])
    ledger.close()
    return tmp_path / "w.db"


def run(*arguments: object) -> tuple[int, str]:
    """Exit code and output of a command."""
    done = CliRunner().invoke(main, ["withheld", *map(str, arguments)])
    return done.exit_code, done.output


def test_the_list_shows_no_content(filled: Path) -> None:
    """In a table for people and as JSON; names are made safe."""
    code, table = run("--ledger", filled, "list")
    json_code, text = run("--ledger", filled, "list", "--format", "json")

    assert (code, json_code) == (0, 0)
    assert "secret" not in table + text
    assert "\x1b" not in table
    assert "read_page" in table
    assert {entry["state"] for entry in json.loads(text)} == {"withheld"}


def test_show_release_and_purge(filled: Path) -> None:
    """The original is in `show` alone."""
    entries = json.loads(run("--ledger", filled, "list", "--format", "json")[1])
    name = next(entry["id"] for entry in entries if entry["call_id"] == "call-a")
    shown, as_json = run("--ledger", filled, "show", name), run("--ledger", filled, "show", name, "--format", "json")
    released = run("--ledger", filled, "release", name[:8])

    assert shown[0] == 0
    assert "secret" in shown[1]
    assert json.loads(as_json[1])["original"]["text"] == "secret"
    assert released == (0, f"{name}: released, read_page\n")
    assert SqliteLedger(filled).known("t", [b"a", b"o"]) == {b"o"}
    assert run("--ledger", filled, "purge") == (0, "0 originals dropped\n")


def test_what_is_not_there_is_an_error(filled: Path, tmp_path: Path) -> None:
    """Exit code 2, and what is wrong."""
    assert run("--ledger", filled, "show", "0123456789ab")[0] == 2
    assert run("--ledger", filled, "release", "0123456789ab")[0] == 2
    assert run("--ledger", tmp_path / "none.db", "list")[0] == 2
    assert run("list")[0] == 2
    (tmp_path / "bad.db").write_bytes(b"x" * 5_000)
    assert run("--ledger", tmp_path / "bad.db", "list")[0] == 2


def test_the_ledger_is_found_by_a_policy(filled: Path, tmp_path: Path) -> None:
    """Relative to the file."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("refusals: {recover: on, ledger: 'sqlite:///w.db'}\n", encoding="utf-8")
    code, table = run("--config", policy, "list")

    assert filled.exists()
    assert (code, "read_page" in table) == (0, True)
