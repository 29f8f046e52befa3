"""Stores in front of another store: one that forwards every call, and one that counts them.

`WatchedStore` counts calls and keeps the first failed read, so that user code that catches the
error cannot hide it: after a failed table read an operator would go on with a wrong result.
Failed writes are not kept: only Penstock writes, and it handles a lost answer itself.
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
    """The number of calls to a store, and of hits and misses of the cache in front of it."""

    requests: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    def __add__(self, other: "StoreUsage") -> "StoreUsage":
        return StoreUsage(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: "StoreUsage") -> "StoreUsage":
        return StoreUsage(*map(sub, astuple(self), astuple(other)))


NO_USAGE = StoreUsage()


class ForwardingStore(ObjectStore):
    """A store that passes every call to another one through the method `_forward`."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        """The store behind this one."""

    def _forward(self, operation: str, path: str, act: Callable[[ObjectStore], T]) -> T:
        """Make one call by calling `act` with a store."""
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
        # The listing is read to its end inside the call, so that its errors belong to it.
        return self._forward("list", prefix, lambda store: iter([*store.list(prefix)]))

    @override
    def folders(self, prefix: str) -> Iterator[str]:
        return self._forward("list", prefix, lambda store: iter([*store.folders(prefix)]))

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
    """A store that counts its calls and keeps the first failed read, for one worker or driver."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.requests = 0
        """How many calls were made. With threads the number may be a little too low."""
        self.failure: PenstockError | None = None
        """The first failed read since it was last set to None."""

    def raise_failure(self) -> None:
        """Raise the first failed read, if there was one."""
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
