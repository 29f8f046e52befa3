"""Stores in front of another store, and the one that watches the calls of a worker.

`WatchedStore` counts calls and keeps the first failed read. A table read that failed half-way
leaves an operator with the wrong answer, and user code that catches the error could hide it.
Only reads are kept: writes are the framework's own, and it handles a lost answer itself.
"""

from collections.abc import Callable, Iterator
from operator import add, sub
from typing import TypeVar

import msgspec
from msgspec.structs import astuple
from typing_extensions import override

from penstock.errors import PenstockError
from penstock.state.storage.object_store import ObjectInfo, ObjectStore

T = TypeVar("T")


class StoreUsage(msgspec.Struct, frozen=True, array_like=True):
    """What was asked of a store, and what the cache in front of it spared."""

    requests: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    def __add__(self, other: "StoreUsage") -> "StoreUsage":
        return StoreUsage(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: "StoreUsage") -> "StoreUsage":
        return StoreUsage(*map(sub, astuple(self), astuple(other)))


NO_USAGE = StoreUsage()


class ForwardingStore(ObjectStore):
    """Any object store, with one method of a subclass in front of each of its calls."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        """The store that is really there."""

    def _forward(self, operation: str, path: str, act: Callable[[ObjectStore], T]) -> T:
        """Make one call; `act` makes it on the store that it is given."""
        raise NotImplementedError

    @property
    @override
    def url(self) -> str:
        return self.store.url

    @override
    def read(self, path: str) -> bytes | None:
        return self._forward("read", path, lambda store: store.read(path))

    @override
    def read_range(self, path: str, start: int, length: int) -> bytes | None:
        return self._forward(
            "read_range", path, lambda store: store.read_range(path, start, length)
        )

    @override
    def put(self, path: str, data: bytes) -> None:
        self._forward("put", path, lambda store: store.put(path, data))

    @override
    def create(self, path: str, data: bytes) -> bool:
        return self._forward("create", path, lambda store: store.create(path, data))

    @override
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        # Exhausted inside the call, so that whatever a listing meets belongs to this call.
        return self._forward("list", prefix, lambda store: iter([*store.list(prefix)]))

    @override
    def delete(self, path: str) -> None:
        self._forward("delete", path, lambda store: store.delete(path))

    @override
    def size(self, path: str) -> int | None:
        return self._forward("size", path, lambda store: store.size(path))

    @override
    def checksum(self, path: str) -> int | None:
        return self._forward("checksum", path, lambda store: store.checksum(path))

    @override
    def copy(self, source: str, target: str) -> bool | None:
        return self._forward("copy", target, lambda store: store.copy(source, target))


class WatchedStore(ForwardingStore):
    """Any object store, watched by the one worker or driver that uses it."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.requests = 0
        """How many calls were made; with threads about as many, which is enough for figures."""
        self.failure: PenstockError | None = None
        """The first failed read since it was last set to None."""

    def raise_failure(self) -> None:
        """Raise the first failed read, should there have been one."""
        if self.failure is not None:
            raise self.failure

    @override
    def _forward(self, operation: str, path: str, act: Callable[[ObjectStore], T]) -> T:
        self.requests += 1
        try:
            return act(self.store)
        except PenstockError as error:
            if operation in {"read", "read_range"}:
                self.failure = self.failure or error
            raise
