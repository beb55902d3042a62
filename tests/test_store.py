"""Facts: one contract for every home, and what a file has to stand beyond it."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litellm_toolguard.errors import ConfigError, StoreError
from litellm_toolguard.facts import Block
from litellm_toolguard.policy import FACTS_PURGE_EVERY
from litellm_toolguard.store import FactStore
from litellm_toolguard.store.access import StoreAccess
from litellm_toolguard.store.memory import MemoryFactStore
from litellm_toolguard.store.opening import open_store
from litellm_toolguard.store.sqlite import APPLICATION_ID, SCHEMA_VERSION, SqliteFactStore


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Home(FactStore, Protocol):
    """A store that knows its size."""

    def __len__(self) -> int: ...


@pytest.fixture(params=["memory", "sqlite"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Home]]:
    """Makes an empty store of one kind; the arguments are those that both kinds have."""
    made: list[Home] = []

    def make(**options: Any) -> Home:
        path = tmp_path / f"{len(made)}.db"
        made.append(MemoryFactStore(**options) if request.param == "memory" else SqliteFactStore(path, **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


class TestContract:
    """What holds in every home."""

    def test_the_first_count_of_an_instance_stands(self, home: Callable[..., Home]) -> None:
        """A retry or a later request does not move the place where a note was first sent."""
        store = home()
        store.remember("t", {b"a": 3})
        store.remember("t", {b"a": 7, b"b": 2})

        assert store.counts("t", [b"a", b"b", b"c"]) == {b"a": 3, b"b": 2}

    def test_the_largest_number_of_a_block_stands(self, home: Callable[..., Home]) -> None:
        """It is set, never added up, so a retry adds nothing and a late answer takes nothing away."""
        store = home()
        store.remember_block("t", b"p", [Block(b"s", 2)])
        store.remember_block("t", b"p", [Block(b"s", 2)])
        store.remember_block("t", b"p", [Block(b"s", 3), Block(b"r", 1)])
        store.remember_block("t", b"p", [Block(b"s", 1)])
        store.remember_block("t", b"q", [])

        assert store.blocks("t", [b"p", b"q"]) == {b"p": (Block(b"r", 1), Block(b"s", 3))}

    def test_tenants_do_not_see_each_other(self, home: Callable[..., Home]) -> None:
        """The same instance or position under another key is unknown."""
        store = home()
        store.remember("one", {b"a": 3})
        store.remember_block("one", b"a", [Block(b"s", 2)])

        assert (store.counts("two", [b"a"]), store.blocks("two", [b"a"])) == ({}, {})

    def test_the_two_kinds_do_not_mix(self, home: Callable[..., Home]) -> None:
        """A position is no instance, even where their bytes are equal."""
        store = home()
        store.remember("t", {b"a": 3})

        assert store.blocks("t", [b"a"]) == {}
        store.remember_block("t", b"a", [Block(b"", 2)])
        assert store.counts("t", [b"a"]) == {b"a": 3}

    def test_nothing_is_asked_and_nothing_is_said(self, home: Callable[..., Home]) -> None:
        """Empty in, empty out; and more keys than one query takes."""
        store = home()
        store.remember("t", {})
        many = {number.to_bytes(4, "big"): 2 for number in range(1300)}
        store.remember("t", many)

        assert (store.counts("t", []), store.blocks("t", [])) == ({}, {})
        assert store.counts("t", iter(many)) == many

    def test_a_fact_ends_its_time_after_its_last_use(self, home: Callable[..., Home]) -> None:
        """A conversation that goes on keeps its facts; one that pauses too long gets one more hint."""
        clock = Clock()
        store = home(ttl_s=10, clock=clock)
        store.remember("t", {b"a": 3})
        store.remember_block("t", b"p", [Block(b"s", 2), Block(b"r", 1)])
        seen = []
        for now in (1009.0, 1018.0, 1029.0):
            clock.now = now
            seen.append((store.counts("t", [b"a"]), store.blocks("t", [b"p"])))
        store.remember("t", {b"a": 5})
        store.remember_block("t", b"p", [Block(b"s", 1)])

        kept = ({b"a": 3}, {b"p": (Block(b"r", 1), Block(b"s", 2))})
        assert seen == [kept, kept, ({}, {})]
        assert (store.counts("t", [b"a"]), store.blocks("t", [b"p"])) == ({b"a": 5}, {b"p": (Block(b"s", 1),)})

    def test_a_clock_that_was_set_back_keeps_no_fact_for_ever(self, home: Callable[..., Home]) -> None:
        """A fact from far in the future is gone, as one from far in the past is."""
        clock = Clock()
        store = home(ttl_s=10, clock=clock)
        store.remember("t", {b"a": 3})
        clock.now = 900

        assert store.counts("t", [b"a"]) == {}

    def test_the_facts_that_were_not_used_for_longest_go_first(self, home: Callable[..., Home]) -> None:
        """The bound holds, and a fact that is in use stays."""
        clock = Clock()
        store = home(max_entries=300, ttl_s=1000, clock=clock)
        store.remember("t", {b"old": 3, b"used": 3})
        store.remember_block("t", b"old", [Block(b"s", 1)])
        store.remember_block("t", b"used", [Block(b"s", 1)])
        clock.now += 100
        store.remember("t", {number.to_bytes(4, "big"): 3 for number in range(FACTS_PURGE_EVERY)})
        clock.now += 100
        store.counts("t", [b"used"])
        store.blocks("t", [b"used"])
        for start in range(1000, 1000 + FACTS_PURGE_EVERY, 64):
            clock.now += 1
            store.remember("t", {(start + number).to_bytes(4, "big"): 3 for number in range(64)})

        assert len(store) <= 300 + FACTS_PURGE_EVERY
        assert store.counts("t", [b"old", b"used"]) == {b"used": 3}
        assert store.blocks("t", [b"old", b"used"]) == {b"used": (Block(b"s", 1),)}

    def test_a_closed_store_can_be_used_again(self, home: Callable[..., Home]) -> None:
        """Closing lets go of files, not of facts."""
        store = home()
        store.remember("t", {b"a": 3})
        store.close()
        store.close()

        assert store.counts("t", [b"a"]) == {b"a": 3}


def test_a_block_stands_for_one_sample_at_least() -> None:
    """None would be no block."""
    with pytest.raises(ValueError, match="one sample or more"):
        Block(b"s", 0)


IDS = st.sampled_from([b"a", b"b", b"c", b""])
TENANTS = st.sampled_from(["one", "two"])
NUMBERS = st.integers(1, 5)
ACTIONS = st.one_of(
    st.tuples(st.just("remember"), TENANTS, st.dictionaries(IDS, NUMBERS, max_size=3)),
    st.tuples(st.just("counts"), TENANTS, st.lists(IDS, max_size=4)),
    st.tuples(st.just("block"), TENANTS, IDS, st.dictionaries(IDS, NUMBERS, max_size=3)),
    st.tuples(st.just("blocks"), TENANTS, st.lists(IDS, max_size=4)),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 0.5, 4.0, 9.0, 11.0, -3.0, -12.0])),
    st.tuples(st.just("reopen")),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTIONS, max_size=30))
def test_both_homes_answer_alike(actions: list[tuple[Any, ...]], tmp_path: Path) -> None:
    """Whatever is done, in whatever order, with pauses, clocks set back, and restarts of the one with a file."""
    clock = Clock()
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        path = Path(folder) / "facts.db"
        memory: FactStore = MemoryFactStore(ttl_s=10, clock=clock)
        file: FactStore = SqliteFactStore(path, ttl_s=10, clock=clock)
        for action in actions:
            if action[0] == "wait":
                clock.now += action[1]
            elif action[0] == "reopen":
                file.close()
                file = SqliteFactStore(path, ttl_s=10, clock=clock)
            else:
                assert _done(memory, action) == _done(file, action)
        file.close()


def _done(store: FactStore, action: tuple[Any, ...]) -> Mapping[bytes, Any] | None:
    name, tenant, *given = action
    if name == "counts":
        return store.counts(tenant, given[0])
    if name == "blocks":
        return store.blocks(tenant, given[0])
    if name == "remember":
        store.remember(tenant, given[0])
    else:
        store.remember_block(tenant, given[0], [Block(instance, samples) for instance, samples in given[1].items()])
    return None


# ----------------------------------------------------------------------------------------------------------- the file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "facts.db"


def test_nobody_else_may_read_the_file(path: Path) -> None:
    """Nor what SQLite puts beside it; a file that others may read is taken away from them."""
    path.touch(0o644)
    store = SqliteFactStore(path)
    store.remember("t", {b"a": 3})
    modes = _modes(path)
    store.close()
    path.chmod(0o664)
    again = SqliteFactStore(path)
    again.remember("t", {b"b": 3})

    assert modes == _modes(path) == {"facts.db": 0o600, "facts.db-wal": 0o600, "facts.db-shm": 0o600}
    again.close()


def _modes(path: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}


def test_the_file_holds_digests_and_numbers(path: Path) -> None:
    """A tenant may be a key in plain text: it is not written down, and neither is an instance."""
    store = SqliteFactStore(path)
    store.remember("enforce:sk-plain-key", {b"an instance in words": 3})
    store.remember_block("enforce:sk-plain-key", b"a position in words", [Block(b"s" * 16, 2)])
    written = b"".join(file.read_bytes() for file in path.parent.iterdir())
    store.close()

    assert b"sk-plain-key" not in written
    assert b"in words" not in written


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE theirs (x)")


def _newer(path: Path) -> None:
    SqliteFactStore(path).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")


def _half(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};")


UNUSABLE: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "no database": (lambda path: path.write_text("model_list: []\n" * 100), "no SQLite database"),
    "cut off": (lambda path: path.write_bytes(b"SQLite format 3\0" + b"\1" * 30), "no SQLite database"),
    "another program's": (_foreign, "the database of another program"),
    "a newer version's": (_newer, "made by a newer version (its format is 2, known are formats up to 1)"),
    "without its table": (_half, "damaged"),
    "a folder": (lambda path: path.mkdir(), "cannot be opened"),
}


@pytest.mark.parametrize(("make", "reason"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_file_that_is_not_ours_is_refused_and_left_alone(
    path: Path, make: Callable[[Path], object], reason: str
) -> None:
    """At the start, with the reason; nothing in it is changed."""
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(ConfigError) as refused:
        SqliteFactStore(path)

    (problem,) = refused.value.problems
    assert (problem.path, problem.message) == ("store", f"{path} cannot be used: {reason}")
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_folder_that_is_not_there_is_refused(path: Path) -> None:
    """It is named; nothing is made in places that nobody meant."""
    with pytest.raises(ConfigError, match="cannot be used: no such file or directory"):
        SqliteFactStore(path.parent / "nowhere" / "facts.db")


def test_a_path_through_a_link_is_the_file_behind_it(path: Path) -> None:
    """Even where that is not there yet."""
    link = path.with_name("link.db")
    link.symlink_to(path)
    store = SqliteFactStore(link)
    store.remember("t", {b"a": 3})
    other = SqliteFactStore(path)

    assert other.counts("t", [b"a"]) == {b"a": 3}
    assert link.is_symlink()
    store.close()
    other.close()


def test_a_deleted_file_is_made_anew(path: Path) -> None:
    """What was in it is unknown; what others left beside it is not taken for the new one's."""
    one, other = SqliteFactStore(path), SqliteFactStore(path)
    one.remember("t", {b"a": 3})
    path.unlink()

    assert one.counts("t", [b"a"]) == {}
    one.remember("t", {b"b": 3})
    other.remember("t", {b"c": 3})
    assert [store.counts("t", [b"a", b"b", b"c"]) for store in (one, other)] == [{b"b": 3, b"c": 3}] * 2
    one.close()
    other.close()


def test_a_file_that_broke_is_a_store_error_until_it_is_gone(path: Path) -> None:
    """The error holds nothing of what was asked."""
    store = SqliteFactStore(path)
    store.remember("t", {b"a": 3})
    store.close()
    path.write_bytes(b"no database any more" * 100)

    with pytest.raises(StoreError, match=r"^no SQLite database$"):
        store.counts("t", [b"a"])
    with pytest.raises(StoreError, match=r"^no SQLite database$"):
        store.remember("t", {b"a": 3})
    path.unlink()
    store.remember("t", {b"a": 4})
    assert store.counts("t", [b"a"]) == {b"a": 4}
    store.close()


def test_a_folder_that_went_away_is_a_store_error(tmp_path: Path) -> None:
    """Until it is back."""
    folder = tmp_path / "folder"
    folder.mkdir()
    store = SqliteFactStore(folder / "facts.db")
    store.remember("t", {b"a": 3})
    folder.rename(tmp_path / "away")

    with pytest.raises(StoreError, match=r"^no such file or directory$"):
        store.remember("t", {b"b": 3})
    with pytest.raises(StoreError, match=r"^no such file or directory$"):
        store.counts("t", [b"a"])
    (tmp_path / "away").rename(folder)
    store.remember("t", {b"b": 3})
    assert store.counts("t", [b"a", b"b"]) == {b"a": 3, b"b": 3}
    store.close()


def test_who_holds_the_file_delays_writers_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading goes on; a write is refused after its wait, and works when the other has let go."""
    monkeypatch.setattr("litellm_toolguard.store.sqlite.STORE_WRITE_WAIT_MS", 1)
    clock = Clock()
    store = SqliteFactStore(path, ttl_s=100, clock=clock)
    store.remember("t", {b"a": 3})
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"^locked$"):
            store.remember("t", {b"b": 3})
        clock.now += 50
        assert store.counts("t", [b"a", b"b"]) == {b"a": 3}
        # A start is not refused for it either.
        SqliteFactStore(path, ttl_s=100, clock=clock).close()
        other.execute("ROLLBACK")
    store.remember("t", {b"b": 3})

    assert store.counts("t", [b"a", b"b"]) == {b"a": 3, b"b": 3}
    store.close()


# ---------------------------------------------------------------------------------------------------------- processes

_IMPORTS = """
import os, resource, sys
from pathlib import Path
from litellm_toolguard.errors import ConfigError, StoreError
from litellm_toolguard.facts import Block
from litellm_toolguard.store.sqlite import SqliteFactStore
path = Path(sys.argv[1])
"""

WRITER = """
store = SqliteFactStore(path)
first = int(sys.argv[2])
for number in range(first, first + int(sys.argv[3])):
    store.remember("t", {number.to_bytes(4, "big"): 3})
    store.remember_block("t", b"shared", [Block(b"s", number % 1000 + 1), Block(b"%d" % first, 1)])
    print(number, flush=True)
"""

FORKS = """
store = SqliteFactStore(path)
store.remember("t", {b"before": 3})
children = []
for child in range(3):
    pid = os.fork()
    if pid == 0:
        for number in range(50):
            store.remember("t", {b"%d-%d" % (child, number): 3})
        os._exit(0 if store.counts("t", [b"before"]) else 1)
    children.append(pid)
store.remember("t", {b"parent": 3})
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)

# A parent that closes takes itself for the last one if it and its child share locks, and drops what the child writes.
ready, go_on = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    store.remember("t", {b"early": 3})
    os.write(ready[1], b"x")
    os.read(go_on[0], 1)
    store.remember("t", {b"late": 3})
    os._exit(0)
os.read(ready[0], 1)
store.counts("t", [b"early"])
store.close()
os.write(go_on[1], b"x")
assert os.waitpid(pid, 0)[1] == 0
print(len(SqliteFactStore(path)))
"""

FULL = """
store = SqliteFactStore(path)
store.remember("t", {b"first": 3})
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
kept, failed = [b"first"], 0
for number in range(400):
    fact = number.to_bytes(4, "big")
    try:
        store.remember("t", {fact: 3})
        kept.append(fact)
    except StoreError as error:
        failed += 1
        reason = str(error)
assert failed and len(store.counts("t", kept)) == len(kept), (failed, len(kept))
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
store.remember("t", {b"last": 3})
assert len(SqliteFactStore(path).counts("t", [*kept, b"last"])) == len(kept) + 1
print(reason)
"""

READ_ONLY = """
SqliteFactStore(path).close()
running = SqliteFactStore(path)
path.parent.chmod(0o555)
path.chmod(0o400)
if os.geteuid() == 0:
    os.chown(path.parent, 65534, -1)
    os.chown(path, 65534, -1)
    os.seteuid(65534)
running.close()
try:
    running.remember("t", {b"a": 3})
except StoreError as error:
    print(error)
for name in ("facts.db", "new.db"):
    try:
        SqliteFactStore(path.with_name(name))
    except ConfigError as error:
        print(error.problems[0].message.partition(": ")[2])
"""


def _start(script: str, path: Path, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _IMPORTS + script, str(path), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _output(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output.split("\n")[:-1]


def test_two_processes_write_one_file_at_once(path: Path) -> None:
    """From the first moment on, in which both want to make it; nothing is lost, and the largest number stands."""
    writers = [_start(WRITER, path, first, 300) for first in (0, 1000)]
    for writer in writers:
        assert len(_output(writer)) == 300

    with closing(SqliteFactStore(path)) as store:
        facts = [number.to_bytes(4, "big") for first in (0, 1000) for number in range(first, first + 300)]
        assert len(store.counts("t", facts)) == 600
        assert store.blocks("t", [b"shared"])[b"shared"] == (Block(b"0", 1), Block(b"1000", 1), Block(b"s", 300))


def test_a_writer_that_is_killed_leaves_a_whole_file(path: Path) -> None:
    """Every fact that was stored is there, and the file takes more."""
    for first in (0, 100_000, 200_000):
        with _start(WRITER, path, first, 100_000) as writer:
            assert writer.stdout is not None
            stored = [writer.stdout.readline() for _ in range(200)]
            writer.send_signal(signal.SIGKILL)
            stored += [line for line in writer.stdout if line.endswith("\n")]
        with closing(SqliteFactStore(path)) as store:
            facts = [int(line).to_bytes(4, "big") for line in stored]
            assert len(store.counts("t", facts)) == len(facts) >= 200


def test_a_store_that_was_opened_before_a_fork_serves_all_sides(path: Path) -> None:
    """Workers are forked from a process that opened it; SQLite's own connections do not survive that."""
    assert _output(_start(FORKS, path)) == ["154"]


def test_a_full_disk_loses_no_fact_that_was_stored(path: Path) -> None:
    """What does not fit is an error; what was stored stays readable, and writing goes on when there is room."""
    (reason,) = _output(_start(FULL, path))

    assert reason in ("disk error", "full")


def test_a_file_or_folder_that_may_not_be_written_is_refused() -> None:
    """At the start with a reason; a running store says so as well."""
    with tempfile.TemporaryDirectory() as folder:
        said = _output(_start(READ_ONLY, Path(folder) / "facts.db"))
        os.chmod(folder, 0o700)

    known = {"read-only", "cannot be opened", "permission denied", "operation not permitted"}
    assert len(said) == 3
    assert set(said) <= known


# -------------------------------------------------------------------------------------------------- opening, failures


def test_stores_are_shared_in_a_process(tmp_path: Path) -> None:
    """By their path, however it is written."""
    relative = open_store("sqlite:///facts.db", tmp_path)

    assert relative is open_store(f"sqlite:///{tmp_path}/./facts.db", None)
    assert (tmp_path / "facts.db").exists()
    assert open_store("memory", None) is open_store("memory", tmp_path)
    relative.close()


def test_a_relative_path_needs_a_folder_to_start_from() -> None:
    """The working directory of a proxy is no place that an operator chose."""
    with pytest.raises(ConfigError, match="store: is relative"):
        open_store("sqlite:///facts.db", None)


def test_a_store_that_is_down_costs_no_fact_that_this_process_knows(tmp_path: Path) -> None:
    """What it does not take is known here; a request in the meantime says that it failed; later both are one."""
    folder, spare = tmp_path / "folder", MemoryFactStore()
    folder.mkdir()
    store = SqliteFactStore(folder / "facts.db")
    before = StoreAccess(store, spare, "t")
    before.remember({b"a": 3})
    before.remember_block(b"p", [Block(b"s", 2), Block(b"r", 1)])
    folder.rename(tmp_path / "away")
    down = StoreAccess(store, spare, "t")
    down.remember({b"a": 4, b"b": 5})
    down.remember_block(b"p", [Block(b"s", 3)])
    seen = (down.counts([b"a", b"b"]), down.blocks([b"p"]))
    (tmp_path / "away").rename(folder)
    after = StoreAccess(store, spare, "t")

    assert seen == ({b"a": 4, b"b": 5}, {b"p": (Block(b"s", 3),)})
    assert after.counts([b"a", b"b"]) == {b"a": 3, b"b": 5}
    assert after.blocks([b"p"]) == {b"p": (Block(b"r", 1), Block(b"s", 3))}
    assert (before.failure, down.failure, after.failure) == ("", "no such file or directory", "")
    store.close()
