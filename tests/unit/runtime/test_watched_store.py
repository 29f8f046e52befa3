"""A failed read is remembered until the next task, whoever caught it."""

import contextlib

import pytest

from penstock.errors import StorageError
from penstock.runtime.watched_store import WatchedStore
from penstock.state.storage.memory import MemoryStore
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
