"""Storage requests as values: how workflows read, create once, and find a newest number.

Pure. A workflow is a generator that yields one request at a time and is sent the answer, or
has the storage error thrown in. `storage.create` answers from a real store. The explorer in
the tests answers from a shared dictionary; it switches between drivers and fails any call.
One request is one atomic storage call: between two of them only other processes act.

Create-once sequences make it possible to find the newest number without trusting a listing.
Claims, epoch records and retention records are numbered without gaps from a known first
number, and a writer creates a number only after it has seen the one before. Old numbers may
be thinned out, but never a *waypoint* (every `stride`-th number), and never a number in the
newest waypoint's block:

    first                                 newest
      W . . . W . . . W . . . W x x x W x x x
      ^ kept for ever ^                ^ last block: complete

So waypoints exist exactly up to the newest one, and after it numbers exist exactly up to the
newest. Two binary searches find it, each over a predicate that turns from true to false once.
The number of HEAD requests grows with the logarithm of the length.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from penstock.errors import PenstockError, UnknownOutcomeError

CREATE_ATTEMPTS = 3
"""How often a create with an unknown outcome is tried before the error is raised."""


@dataclass(frozen=True, slots=True)
class Read:
    """Request a whole object; the answer is `bytes`, or None."""

    path: str


@dataclass(frozen=True, slots=True)
class Exists:
    """Request whether an object exists: one HEAD."""

    path: str


@dataclass(frozen=True, slots=True)
class Create:
    """Request a conditional create; the answer is True iff this call wrote the object."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Request a deletion; an absent object is fine."""

    path: str


@dataclass(frozen=True, slots=True)
class ListPaths:
    """Request the paths below a folder. The answer may be stale, so no decision relies on it."""

    prefix: str


Request: TypeAlias = Read | Exists | Create | Delete | ListPaths

T = TypeVar("T")
Steps: TypeAlias = Generator[Request, Any, T]


S = TypeVar("S")


def leave_off(steps: Steps[T], is_over: Callable[[], bool], instead: S) -> Steps[T | S]:
    """Go through a workflow until it is over, and return `instead` in that case.

    It then makes no further request, as after a crash.
    """
    try:
        request = next(steps)
        while not is_over():
            try:
                answer = yield request
            except PenstockError as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result
    steps.close()
    return instead


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
    """List the paths below a folder; the list may be stale."""
    paths: list[str] = yield ListPaths(prefix)
    return paths


def create_once(path: str, data: bytes) -> Steps[bytes | None]:
    """Create an object; return None if it is ours, else the bytes that were there first.

    `data` must identify its writer. Equal bytes read back then prove that an earlier try of
    ours landed, even if its answer was lost; other bytes are another writer's. If the object
    is still absent after an unknown outcome, the create is tried again: should the first try
    land after all, it lands with the same bytes.
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

    `seen` is a number that certainly existed once; the search starts there. Other writers may
    append meanwhile: the result was the newest number at some moment of the search.
    """
    if seen is None and not (yield from exists(path_of(first))):
        return None
    block = 0 if seen is None else (seen - first) // stride
    while True:
        block = yield from _last_existing(path_of, first, stride, known=block)
        start = first + block * stride
        known = max(0, (seen or first) - start)
        offset = yield from _last_existing(path_of, start, 1, known=known, bound=stride)
        # A block certainly has no gaps only while it is the last one.
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

    Number `known` exists, and from some number on, at most `bound`, none exists. The search
    doubles its step until it finds an absent number, then halves the gap.
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
    """Return the first waypoint above a number; until that exists, the number is not thinned."""
    return number - (number - first) % stride + stride


def may_thin(number: int, *, first: int, newest: int, stride: int) -> bool:
    """Tell whether a number may be removed without breaking `find_newest`."""
    block_start = newest - (newest - first) % stride
    return number < block_start and (number - first) % stride != 0
