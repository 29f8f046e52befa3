"""Storage requests as values: how the protocol asks for I/O without doing any.

A workflow is a generator that yields one request at a time and is sent the answer, or has
the storage error thrown in. `checkpoints.runner` answers from a real store; the explorer in
the tests answers from a shared dictionary, switching between drivers and failing calls at
will. One request is one atomic storage call: nothing happens between two of them but what
other processes do.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from penstock.errors import UnknownOutcomeError

CREATE_ATTEMPTS = 3
"""How often a create with an unknown outcome is tried before giving the caller that answer."""


@dataclass(frozen=True, slots=True)
class Read:
    """Ask for a whole object: `bytes`, or None."""

    path: str


@dataclass(frozen=True, slots=True)
class Exists:
    """Ask whether an object exists: one HEAD."""

    path: str


@dataclass(frozen=True, slots=True)
class Create:
    """Ask for a conditional create: True iff this call wrote the object."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Ask for a deletion; an absent object is fine."""

    path: str


@dataclass(frozen=True, slots=True)
class ListPaths:
    """Ask for the paths below a folder. A hint: it may lag, so it decides nothing that matters."""

    prefix: str


Request: TypeAlias = Read | Exists | Create | Delete | ListPaths

T = TypeVar("T")
Steps: TypeAlias = Generator[Request, Any, T]


def read(path: str) -> Steps[bytes | None]:
    """Read an object."""
    data: bytes | None = yield Read(path)
    return data


def exists(path: str) -> Steps[bool]:
    """Tell whether an object exists."""
    found: bool = yield Exists(path)
    return found


def delete(path: str) -> Steps[None]:
    """Delete an object, present or not."""
    yield Delete(path)


def list_paths(prefix: str) -> Steps[list[str]]:
    """List the paths below a folder, as a hint."""
    paths: list[str] = yield ListPaths(prefix)
    return paths


def create_once(path: str, data: bytes) -> Steps[bytes | None]:
    """Create an object; return None if it is now ours, else the bytes of whoever was first.

    `data` must identify its writer. Then equal bytes read back prove that an earlier try of
    ours landed, whatever answer got lost; anything else found is another writer's. An
    object still absent after an unknown outcome is tried again: if the first try lands
    after all, it lands with the same bytes.
    """
    for _ in range(CREATE_ATTEMPTS):
        try:
            created: bool = yield Create(path, data)
        except UnknownOutcomeError:
            created = False
        if created:
            return None
        found = yield from read(path)
        if found is not None:
            return None if found == data else found
    raise UnknownOutcomeError(
        f"could not find out whether {path!r} was created: the store neither confirms the "
        f"write nor shows the object after {CREATE_ATTEMPTS} tries; start again, which "
        "claims a new generation",
        path=path,
    )
