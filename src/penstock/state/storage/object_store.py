"""What Penstock needs of an object store, and what an implementer owes it.

Paths are relative, `/`-separated and never start or end with `/`. Objects are immutable
by convention: only `put` replaces, and nothing but tests and probes overwrites.

Consistency owed: a read, `size` or `create` that starts after a write was answered sees
that write. `list` is only a hint: it may lag behind, so no safety decision rests on it.

Errors: `StorageError` means the call changed nothing (a read failed, a write was refused).
`UnknownOutcomeError` means a write may have landed or may still land; the caller reads
back. Absence is a value (`None`), never an error.

Which object paths a store accepts: one rule for every implementation.

A path that one store takes and another refuses, or that leads out of the store's root,
would make a checkpoint unportable or unsafe; so all of them ask here first. Pure.

What a failed storage call tells its caller: the two kinds of error and their words.

    StorageError         nothing was changed; the code says what to do about it
    UnknownOutcomeError  a write may have landed, or may land later

Stores decide which of the two it is; this file makes them read alike. Pure.
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
    """Read, put, create-if-absent, list, delete, size, checksum, copy. Safe for threads."""

    @property
    def url(self) -> str:
        """Where the store is, for messages; it never holds credentials."""

    def read(self, path: str) -> bytes | None:
        """Return the whole object, or None if there is none."""

    def read_range(self, path: str, start: int, length: int) -> bytes | None:
        """Return `length` bytes from `start` (fewer at the end), or None if there is no object."""

    def put(self, path: str, data: bytes) -> None:
        """Write the object whole, replacing what was there. Readers see the old or the new bytes."""

    def create(self, path: str, data: bytes) -> bool:
        """Write the object iff it is absent, atomically; tell whether this call wrote it.

        False proves only that an object exists. It may hold this caller's own bytes: a
        client that retries a request whose answer was lost meets its own write.
        """

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below the folder `prefix` at any depth, in order of path. A hint."""

    def delete(self, path: str) -> None:
        """Remove the object; an absent one is fine."""

    def size(self, path: str) -> int | None:
        """Return the size in bytes, or None if there is no object. One HEAD request."""

    def checksum(self, path: str) -> int | None:
        """Return `checksum_of` the whole object, or None if there is none. Reads it all."""

    def copy(self, source: str, target: str) -> bool | None:
        """Copy an object inside the store iff `target` is absent; tell whether this call did.

        False if there is a target already, None if there is neither a target nor a source.
        The bytes do not pass through this process. Where a store cannot copy conditionally
        (S3), absence is looked up first and two callers at one instant may both copy: use
        it only where both would write the same bytes.
        """


# Empty, `.` and `..` segments; separators of other systems; `#`, which the local store
# uses for what is not an object; control characters; what UTF-8 cannot encode.
_FORBIDDEN = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)|[\\#\x00-\x1f\x7f\ud800-\udfff]")


def is_object_path(path: str) -> bool:
    """Tell whether `path` can name an object in every store."""
    return _FORBIDDEN.search(path) is None and len(path.encode()) <= 1024


@lru_cache(maxsize=8192)
def check_path(path: str) -> str:
    """Return `path` if it can name an object in every store, else raise `UserError`.

    Remembers recent answers: stores call this once per request.
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
    """Return what every path below the folder `prefix` starts with; '' is the whole store.

    The separator is part of it, so that the folder `a` does not contain `ab/c`.
    """
    return f"{check_path(prefix)}/" if prefix else ""


def check_range(start: int, length: int) -> None:
    """Raise `UserError` for a byte range no object can have."""
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
    """One call to a store: what an error about it must name."""

    verb: str
    """What was tried, as in "could not <verb> <path>"."""
    path: str
    url: str

    def refused(
        self, reason: str, code: ErrorCode = ErrorCode.STORAGE_FAILED
    ) -> StorageError:
        """Make the error of a call that certainly changed nothing."""
        return StorageError(
            f"could not {self.verb} {self.path!r} in {self.url}: {reason}. Nothing was "
            f"changed. {_ADVICE[code]}",
            code=code,
            path=self.path,
            url=self.url,
        )

    def unanswered(self, reason: str) -> UnknownOutcomeError:
        """Make the error of a write that may have landed or may still land."""
        return UnknownOutcomeError(
            f"no certain answer to {self.verb} {self.path!r} in {self.url}: {reason}. It may "
            "have landed or may still land; read it back before deciding anything.",
            path=self.path,
            url=self.url,
        )
