"""A failed read is remembered until the next task, whoever caught it; calls are counted."""

import contextlib

import pytest

from penstock.errors import StorageError
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.watched import StoreUsage, WatchedStore
from penstock.testing import Fault, FaultMode, FaultyStore


def a_store_whose_next_call_fails() -> WatchedStore:
    inner = MemoryStore()
    inner.put("a", b"1")
    return WatchedStore(FaultyStore(inner, Fault(FaultMode.FAIL_BEFORE)))


def test_a_read_that_failed_and_was_caught_is_raised_later() -> None:
    store = a_store_whose_next_call_fails()
    with contextlib.suppress(StorageError):
        store.read("a")
    assert store.read("a") == b"1"
    with pytest.raises(StorageError):
        store.raise_failure()


def test_a_write_that_failed_is_the_writers_business() -> None:
    store = a_store_whose_next_call_fails()
    with contextlib.suppress(StorageError):
        store.create("b", b"2")
    store.raise_failure()
    assert store.failure is None


def test_every_call_is_counted_also_one_that_fails() -> None:
    store = a_store_whose_next_call_fails()
    with contextlib.suppress(StorageError):
        store.read("a")
    store.put("b", b"2")
    store.create("c", b"3")
    store.read_range("a", 0, 1)
    list(store.list(""))
    store.size("a")
    store.checksum("a")
    store.copy("a", "d")
    store.delete("a")
    assert store.requests == 9


def test_usage_adds_up_and_is_told_apart() -> None:
    one, two = StoreUsage(3, 1, 0), StoreUsage(10, 4, 2)
    assert two - one == StoreUsage(7, 3, 2)
    assert (two - one) + one == two
