"""Objects in a dictionary of this process: the store of tests and of the protocol explorer.

It gives the strongest guarantees that the contract allows: every call is atomic and `list` is
exact. The explorer makes millions of calls, so a call must be cheap: a few hundred
nanoseconds.

    MemoryStore()          private: only code that has the value sees its objects
    open_store("memory:")  the same, by URL
    open_store("memory:x") shared in this process by all that open this name

Objects stay in this process and end with it: a private store refuses to be pickled, and a
shared one refuses to be loaded in another process, where it would silently be empty.
"""

import os
from collections.abc import Iterator, Mapping
from operator import attrgetter
from threading import Lock
from typing import Any

from penstock.core.ids import checksum_of
from penstock.errors import ErrorCode, UserError
from penstock.state.storage.object_store import (
    ObjectInfo,
    check_path,
    check_range,
    folder_start,
)

_SHARED: dict[str, "MemoryStore"] = {}
_SHARED_LOCK = Lock()


class MemoryStore:
    """A thread-safe `ObjectStore` on a dict. Reads take no lock: a dict lookup is atomic."""

    __slots__ = ("_lock", "_name", "_objects")

    def __init__(self, objects: Mapping[str, bytes] | None = None) -> None:
        """Make a private store that starts with a copy of `objects`."""
        self._objects = {
            check_path(path): bytes(data) for path, data in (objects or {}).items()
        }
        self._lock = Lock()
        self._name: str | None = None

    @property
    def url(self) -> str:
        """`memory:` and the shared name, if the store has one."""
        return f"memory:{self._name or ''}"

    def contents(self) -> dict[str, bytes]:
        """Return a copy of all objects by path; `MemoryStore(contents)` makes the same store."""
        with self._lock:
            return self._objects.copy()

    def read(self, path: str) -> bytes | None:
        """Return the whole object, or None."""
        return self._objects.get(check_path(path))

    def read_range(self, path: str, start: int, length: int) -> bytes | None:
        """Return the part of the object that lies in the range, or None without an object."""
        check_range(start, length)
        data = self._objects.get(check_path(path))
        return None if data is None else data[start : start + length]

    def put(self, path: str, data: bytes) -> None:
        """Write or replace the object."""
        check_path(path)
        with self._lock:
            self._objects[path] = bytes(data)

    def create(self, path: str, data: bytes) -> bool:
        """Write the object if there is none; tell whether this call did."""
        check_path(path)
        with self._lock:
            if path in self._objects:
                return False
            self._objects[path] = bytes(data)
            return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List the folder as it is at the moment of the call."""
        start = folder_start(prefix)
        with self._lock:
            found = [
                ObjectInfo(path, len(data))
                for path, data in self._objects.items()
                if path.startswith(start)
            ]
        found.sort(key=attrgetter("path"))
        return iter(found)

    def folders(self, prefix: str) -> Iterator[str]:
        """Name the folders as they are at the moment of the call."""
        start = folder_start(prefix)
        with self._lock:
            below = [path[len(start) :] for path in self._objects if path.startswith(start)]
        return iter(sorted({path.partition("/")[0] for path in below if "/" in path}))

    def delete(self, path: str) -> None:
        """Remove the object if it is there."""
        check_path(path)
        with self._lock:
            self._objects.pop(path, None)

    def size(self, path: str) -> int | None:
        """Return the size, or None without an object."""
        data = self._objects.get(check_path(path))
        return None if data is None else len(data)

    def checksum(self, path: str) -> int | None:
        """Return the checksum, or None without an object."""
        data = self._objects.get(check_path(path))
        return None if data is None else checksum_of(data)

    def copy(self, source: str, target: str) -> bool | None:
        """Give the object a second name if that is free; None without an object."""
        check_path(source)
        check_path(target)
        with self._lock:
            if target in self._objects:
                return False
            if source not in self._objects:
                return None
            self._objects[target] = self._objects[source]
            return True

    def __repr__(self) -> str:
        return f"MemoryStore({self.url!r}, {len(self._objects)} objects)"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._name is None:
            raise UserError(
                "a private memory: store cannot be sent to another process; open "
                "'memory:<name>' to share it inside this one, or use file:, s3:, gs: or az:",
                code=ErrorCode.INVALID_URL,
            )
        return _load_shared, (self._name, os.getpid())


def shared_memory_store(name: str) -> MemoryStore:
    """Return the one store of that name in this process, made on first use and never dropped."""
    with _SHARED_LOCK:
        store = _SHARED.get(name)
        if store is None:
            store = _SHARED[name] = MemoryStore()
            store._name = name  # noqa: SLF001 - the name is given here and nowhere else
        return store


def _load_shared(name: str, process: int) -> MemoryStore:
    """Return the pickled store; refuse in another process, which has none of its objects."""
    if os.getpid() != process:
        raise UserError(
            f"memory:{name} holds its objects in process {process} and cannot be used in "
            f"process {os.getpid()}; use a file:, s3:, gs: or az: URL instead",
            code=ErrorCode.INVALID_URL,
            url=f"memory:{name}",
        )
    return shared_memory_store(name)
