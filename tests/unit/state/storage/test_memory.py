"""What is special about a store in memory: who shares it, and where it cannot go."""

import os
import pickle
from typing import Any

import pytest

from penstock.core.clock import new_token
from penstock.errors import ErrorCode, UserError
from penstock.state.storage.memory import MemoryStore, _load_shared, shared_memory_store


def test_a_store_starts_with_a_copy_of_the_objects_it_is_given() -> None:
    objects = {"a": b"1", "b/c": b"2"}
    store = MemoryStore(objects)
    store.put("a", b"changed")
    assert objects["a"] == b"1"
    assert store.contents() == {"a": b"changed", "b/c": b"2"}
    assert MemoryStore(store.contents()).contents() == store.contents()


def test_contents_are_a_copy() -> None:
    store = MemoryStore({"a": b"1"})
    store.contents().clear()
    assert store.read("a") == b"1"


def test_an_invalid_path_cannot_be_smuggled_in_at_the_start() -> None:
    with pytest.raises(UserError):
        MemoryStore({"../a": b"1"})


def test_a_mutable_buffer_is_copied_when_it_is_written() -> None:
    store = MemoryStore()
    buffer = bytearray(b"before")
    data: Any = buffer
    store.put("put", data)
    assert store.create("created", data)
    buffer[:] = b"after!"
    assert store.read("put") == store.read("created") == b"before"


def test_a_listing_is_what_was_there_when_it_was_asked_for() -> None:
    store = MemoryStore({"a/1": b"", "a/2": b""})
    listing = store.list("a")
    store.delete("a/2")
    store.put("a/3", b"")
    assert [info.path for info in listing] == ["a/1", "a/2"]


def test_a_private_store_refuses_to_be_pickled() -> None:
    with pytest.raises(UserError, match="private memory: store") as caught:
        pickle.dumps(MemoryStore())
    assert caught.value.code is ErrorCode.INVALID_URL


def test_a_shared_store_is_the_same_one_after_pickling() -> None:
    store = shared_memory_store(new_token())
    assert pickle.loads(pickle.dumps(store)) is store


def test_a_shared_store_refuses_to_appear_empty_in_another_process() -> None:
    with pytest.raises(UserError, match="holds its objects in process") as caught:
        _load_shared("name", os.getpid() + 1)
    assert caught.value.code is ErrorCode.INVALID_URL
    assert "memory:name" in caught.value.message
