"""Storage requests as values: how the protocol asks for I/O without doing any.

A workflow is a generator that yields one request at a time and is sent the answer, or has
the storage error thrown in. `storage.create` answers from a real store; the explorer in
the tests answers from a shared dictionary, switching between drivers and failing calls at
will. One request is one atomic storage call: nothing happens between two of them but what
other processes do.

Create-once sequences: finding the newest number without trusting a listing.

Claims, epoch records and retention records are numbered from a known first number without
gaps, each created only by someone who saw the one before. Old numbers may be thinned out,
but never a *waypoint* (every `stride`-th number), and never one in the newest waypoint's
block:

    first                                 newest
      W . . . W . . . W . . . W x x x W x x x
      ^ kept for ever ^                ^ last block: complete

So waypoints exist exactly up to the newest one, and after it numbers exist exactly up to
the newest: two searches over a predicate that turns from true to false once. Each takes
a handful of HEAD requests whatever the length. Pure.
"""

from collections.abc import Callable, Generator
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
    """Create an object; return None if it is now ours, else the bytes that were there first.

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


def find_newest(
    path_of: Callable[[int], str], *, first: int, stride: int, seen: int | None = None
) -> Steps[int | None]:
    """Return the newest number that exists, or None for an empty sequence.

    `seen` is a number known to have existed once; the search starts there. Others may
    append meanwhile: the answer was the newest number at some moment of the search.
    """
    if seen is None and not (yield from exists(path_of(first))):
        return None
    block = 0 if seen is None else (seen - first) // stride
    while True:
        block = yield from _last_existing(path_of, first, stride, known=block)
        start = first + block * stride
        known = max(0, (seen or first) - start)
        offset = yield from _last_existing(path_of, start, 1, known=known, bound=stride)
        # Only while this block is still the last one is it known to have no holes.
        if stride == 1 or not (yield from exists(path_of(start + stride))):
            return start + offset
        block += 1


def _last_existing(
    path_of: Callable[[int], str],
    origin: int,
    spacing: int,
    *,
    known: int,
    bound: int | None = None,
) -> Steps[int]:
    """Return the last `n` such that number `origin + n * spacing` exists.

    Number `known` exists; existence ends once, before `bound`. Doubles the stride until
    it finds an absent number, then halves the gap.
    """
    low, step, high = known, 1, bound
    while high is None or low + step < high:
        if not (yield from exists(path_of(origin + (low + step) * spacing))):
            high = low + step
            break
        low += step
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if (yield from exists(path_of(origin + middle * spacing))):
            low = middle
        else:
            high = middle
    return low


def waypoint_after(number: int, *, first: int, stride: int) -> int:
    """Return the first waypoint above a number; until it exists, the number is never thinned."""
    return number - (number - first) % stride + stride


def may_thin(number: int, *, first: int, newest: int, stride: int) -> bool:
    """Tell whether a number may be removed without breaking `find_newest`."""
    block_start = newest - (newest - first) % stride
    return number < block_start and (number - first) % stride != 0
