"""A store that counts its calls and remembers its first failed read, for who may not see it.

A table read that failed half-way leaves an operator with the wrong answer, and user code that
catches the error could hide it. Only reads are remembered: writes are the framework's own,
and it knows what to do about a lost answer.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from penstock.errors import PenstockError
from penstock.state.storage.object_store import ObjectInfo, ObjectStore

T = TypeVar("T")


class StoreUsage(msgspec.Struct, frozen=True, array_like=True):
    """What was asked of a store, and what the cache in front of it spared."""

    requests: int = 0
    cache_hits: int = 0
    cache_misses: int = 0

    def __add__(self, other: "StoreUsage") -> "StoreUsage":
        return StoreUsage(
            self.requests + other.requests,
            self.cache_hits + other.cache_hits,
            self.cache_misses + other.cache_misses,
        )

    def __sub__(self, other: "StoreUsage") -> "StoreUsage":
        return StoreUsage(
            self.requests - other.requests,
            self.cache_hits - other.cache_hits,
            self.cache_misses - other.cache_misses,
        )


NO_USAGE = StoreUsage()


class WatchedStore:
    """Any object store, watched by the one worker or driver that uses it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.requests = 0
        """How many calls were made; with threads about as many, which is enough for figures."""
        self.failure: PenstockError | None = None
        """The first failed read since it was last set to None."""

    @property
    def url(self) -> str:
        """Where the store is."""
        return self._store.url

    def read(self, path: str) -> bytes | None:
        """Return the whole object, or None if there is none."""
        return self._noted(lambda: self._store.read(path))

    def read_range(self, path: str, start: int, length: int) -> bytes | None:
        """Return a part of an object, or None if there is none."""
        return self._noted(lambda: self._store.read_range(path, start, length))

    def put(self, path: str, data: bytes) -> None:
        """Write the object whole."""
        self.requests += 1
        self._store.put(path, data)

    def create(self, path: str, data: bytes) -> bool:
        """Write the object iff it is absent."""
        self.requests += 1
        return self._store.create(path, data)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a folder."""
        self.requests += 1
        return self._store.list(prefix)

    def delete(self, path: str) -> None:
        """Remove the object."""
        self.requests += 1
        self._store.delete(path)

    def size(self, path: str) -> int | None:
        """Return the size in bytes, or None if there is no object."""
        self.requests += 1
        return self._store.size(path)

    def checksum(self, path: str) -> int | None:
        """Return the checksum of the whole object, or None if there is none."""
        self.requests += 1
        return self._store.checksum(path)

    def copy(self, source: str, target: str) -> bool | None:
        """Copy an object iff the target is absent."""
        self.requests += 1
        return self._store.copy(source, target)

    def raise_failure(self) -> None:
        """Raise the first failed read, should there have been one."""
        if self.failure is not None:
            raise self.failure

    def _noted(self, call: Callable[[], T]) -> T:
        self.requests += 1
        try:
            return call()
        except PenstockError as error:
            self.failure = self.failure or error
            raise
