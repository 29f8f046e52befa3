"""The contract of an object store: its calls, its paths, its consistency and its errors.

Pure. Every implementation owes these rules:

Paths are relative, `/`-separated and never start or end with `/`. All stores accept the same
paths (`check_path`): a path that only some stores accept would make a checkpoint unportable,
and one that leads out of the store's root would be unsafe.

Objects are immutable by convention: only `put` replaces, and only tests and probes overwrite.

Consistency: a read, `size` or `create` that starts after a write was answered sees that
write. `list` may lag behind, so no safety decision relies on it.

A missing object is the value `None`, never an error. There are two errors, and `StorageCall`
makes their messages for all stores:

    StorageError         the call changed nothing (a read failed, a write was refused); the
                         code says what to do about it
    UnknownOutcomeError  a write may have landed, or may land later; the caller reads back
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

from penstock.errors import ErrorCode, StorageError, UnknownOutcomeError, UserError


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One line of a listing."""

    path: str
    size_bytes: int


@runtime_checkable
class ObjectStore(Protocol):
    """An object store. Threads may share it."""

    @property
    def url(self) -> str:
        """The store's address for messages, without credentials."""

    def read(self, path: str) -> bytes | None:
        """Return the whole object, or None if there is none."""

    def read_range(self, path: str, start: int, length: int) -> bytes | None:
        """Return `length` bytes from `start` (fewer at the end), or None if there is no object."""

    def put(self, path: str, data: bytes) -> None:
        """Write or replace the whole object. Readers see either the old or the new bytes."""

    def create(self, path: str, data: bytes) -> bool:
        """Write the object iff it is absent, atomically; tell whether this call wrote it.

        False proves only that an object exists. It may hold this caller's own bytes: a client
        that repeats a request after a lost answer finds its own write.
        """

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below the folder `prefix` at any depth, by path. It may be stale."""

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders right below the folder `prefix`, in order.

        It asks for no more than that, however many objects lie in them. It may be stale.
        """

    def delete(self, path: str) -> None:
        """Remove the object; an absent one is fine."""

    def size(self, path: str) -> int | None:
        """Return the size in bytes, or None if there is no object. One HEAD request."""

    def checksum(self, path: str) -> int | None:
        """Return `checksum_of` the whole object, or None if there is none. Reads it all."""

    def copy(self, source: str, target: str) -> bool | None:
        """Copy an object inside the store iff `target` is absent; tell whether this call did.

        The result is False if there is a target already, and None if there is neither a target
        nor a source. The bytes do not pass through this process. A store that cannot copy
        conditionally (S3) looks for the target first, so two callers at one instant may both
        copy: use this only if both would write the same bytes.
        """


# This matches empty, `.` and `..` segments; separators of other systems; `#`, which marks
# files of the local store that are no objects; control characters; what UTF-8 cannot encode.
_FORBIDDEN = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)|[\\#\x00-\x1f\x7f\ud800-\udfff]")


def is_object_path(path: str) -> bool:
    """Tell whether `path` can name an object in every store."""
    return _FORBIDDEN.search(path) is None and len(path.encode()) <= 1024


@lru_cache(maxsize=8192)
def check_path(path: str) -> str:
    """Return `path` if it can name an object in every store, else raise `UserError`.

    Results are cached, because stores call this once per request.
    """
    if not is_object_path(path):
        raise UserError(
            f"{path!r} is not a valid object path: use at most 1024 bytes of segments "
            "joined by single '/', none of them '.' or '..', without '\\', '#' or control "
            "characters",
            code=ErrorCode.INVALID_NAME,
            path=path,
        )
    return path


def folder_start(prefix: str) -> str:
    """Return the start of every path below the folder `prefix`; '' is the whole store.

    The separator is part of it, so that the folder `a` does not contain `ab/c`.
    """
    return f"{check_path(prefix)}/" if prefix else ""


def check_range(start: int, length: int) -> None:
    """Raise `UserError` for a byte range that no object can have."""
    if start < 0 or length < 0:
        raise UserError(
            f"a byte range cannot start at {start} and be {length} bytes long: neither may "
            "be negative",
            code=ErrorCode.INVALID_NUMBER,
        )


_ADVICE = {
    ErrorCode.STORAGE_FAILED: "Check that the store can be reached, then run again.",
    ErrorCode.STORAGE_PERMISSION: (
        "Give this process the right to read, write, list and delete there, or check its "
        "credentials."
    ),
    ErrorCode.STORAGE_READ_ONLY: "Make the store writable or choose another one.",
    ErrorCode.STORAGE_FULL: (
        "Free space or raise the quota, then run again; what was stored before is intact."
    ),
    ErrorCode.STORAGE_UNSAFE: "Choose a store that can create an object atomically.",
}


@dataclass(frozen=True, slots=True)
class StorageCall:
    """One call to a store, as error messages name it."""

    verb: str
    """The verb in "could not <verb> <path>"."""
    path: str
    url: str

    def refused(
        self, reason: str, code: ErrorCode = ErrorCode.STORAGE_FAILED
    ) -> StorageError:
        """Return the error of a call that certainly changed nothing."""
        return StorageError(
            f"could not {self.verb} {self.path!r} in {self.url}: {reason}. Nothing was "
            f"changed. {_ADVICE[code]}",
            code=code,
            path=self.path,
            url=self.url,
        )

    def unanswered(self, reason: str) -> UnknownOutcomeError:
        """Return the error of a write that may have landed or may still land."""
        return UnknownOutcomeError(
            f"no certain answer to {self.verb} {self.path!r} in {self.url}: {reason}. It may "
            "have landed or may still land; read it back before deciding anything.",
            path=self.path,
            url=self.url,
        )
