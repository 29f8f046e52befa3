"""What Penstock needs of an object store, and what an implementer owes it.

Paths are relative, `/`-separated and never start or end with `/`. Objects are immutable
by convention: only `put` replaces, and nothing but tests and probes overwrites.

Consistency owed: a read, `size` or `create` that starts after a write was answered sees
that write. `list` is only a hint: it may lag behind, so no safety decision rests on it.

Errors: `StorageError` means the call changed nothing (a read failed, a write was refused).
`UnknownOutcomeError` means a write may have landed or may still land; the caller reads
back. Absence is a value (`None`), never an error.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


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
        ...

    def read(self, path: str) -> bytes | None:
        """Return the whole object, or None if there is none."""
        ...

    def read_range(self, path: str, start: int, length: int) -> bytes | None:
        """Return `length` bytes from `start` (fewer at the end), or None if there is no object."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write the object whole, replacing what was there. Readers see the old or the new bytes."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Write the object iff it is absent, atomically; tell whether this call wrote it.

        False proves only that an object exists. It may hold this caller's own bytes: a
        client that retries a request whose answer was lost meets its own write.
        """
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below the folder `prefix` at any depth, in order of path. A hint."""
        ...

    def delete(self, path: str) -> None:
        """Remove the object; an absent one is fine."""
        ...

    def size(self, path: str) -> int | None:
        """Return the size in bytes, or None if there is no object. One HEAD request."""
        ...

    def checksum(self, path: str) -> int | None:
        """Return `checksum_of` the whole object, or None if there is none. Reads it all."""
        ...

    def copy(self, source: str, target: str) -> bool | None:
        """Copy an object inside the store iff `target` is absent; tell whether this call did.

        False if there is a target already, None if there is neither a target nor a source.
        The bytes do not pass through this process. Where a store cannot copy conditionally
        (S3), absence is looked up first and two callers at one instant may both copy: use
        it only where both would write the same bytes.
        """
        ...
