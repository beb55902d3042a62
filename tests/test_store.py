"""Facts in memory: bounded in number and in time, apart for every tenant."""

from __future__ import annotations

from litellm_toolguard.store.memory import MemoryFactStore


class Clock:
    """Seconds that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_count_of_an_instance_stands() -> None:
    """A retry or a later request does not move the place where a note was first sent."""
    store = MemoryFactStore()
    store.remember("t", {b"a": 3})
    store.remember("t", {b"a": 7, b"b": 2})

    assert store.counts("t", [b"a", b"b", b"c"]) == {b"a": 3, b"b": 2}


def test_tenants_do_not_see_each_other() -> None:
    """The same instance under another key is unknown."""
    store = MemoryFactStore()
    store.remember("one", {b"a": 3})

    assert store.counts("two", [b"a"]) == {}


def test_the_least_recently_used_fact_goes_first() -> None:
    """The bound holds, and a fact that is in use stays."""
    store = MemoryFactStore(max_entries=3)
    for number in range(3):
        store.remember("t", {bytes([number]): 3})
    store.counts("t", [b"\x00"])
    store.remember("t", {b"new": 3})

    assert len(store) == 3
    assert store.counts("t", [b"\x00", b"\x01", b"\x02", b"new"]) == {b"\x00": 3, b"\x02": 3, b"new": 3}


def test_a_fact_ends_its_time_after_its_last_use() -> None:
    """A conversation that goes on keeps its facts; one that pauses too long gets one more hint."""
    clock = Clock()
    store = MemoryFactStore(ttl_s=10, clock=clock)
    store.remember("t", {b"a": 3})
    clock.now = 9
    used = store.counts("t", [b"a"])
    clock.now = 18
    kept = store.counts("t", [b"a"])
    clock.now = 29
    gone = store.counts("t", [b"a"])
    store.remember("t", {b"a": 5})

    assert (used, kept, gone) == ({b"a": 3}, {b"a": 3}, {})
    assert store.counts("t", [b"a"]) == {b"a": 5}
