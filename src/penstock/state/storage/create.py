"""Create an object and prove that it is ours; refuse a store in which that proof fails.

A conditional create has three answers: it wrote the object, an object was already there, or
the answer is lost. In the last two cases only the bytes read back show whether the object is
ours, because a client that repeats a request may find its own write. `create_once` of the
protocol is that rule, as a generator of storage requests. This module carries requests out
against a store, so the protocol, the state files, the backing store and the sinks all create
by the same rule.

The rule needs two promises of the store: of all `create`s of an object one succeeds, also if
they come at once, and a read sees every write answered before it. A store that breaks one of
them seems to work until two drivers run at once, so `probe_store` tests both before the job
starts: some small requests, the creates of a race all at the same time. A server that looks for
the object and then writes it passes every test that asks one thing after the other.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from typing import TypeVar, assert_never

from penstock.core.ids import Token
from penstock.errors import ErrorCode, PenstockError, StorageError, UnknownOutcomeError
from penstock.state.protocol.steps import (
    Create,
    Delete,
    Exists,
    ListPaths,
    Read,
    Request,
    Steps,
    create_once,
)
from penstock.state.storage.object_store import ObjectStore

T = TypeVar("T")

RACES = 3
RACERS = 8
"""How often, and by how many at once, the probe creates one object: more find a server whose
create is not atomic more surely, and each costs a request."""


def create_own(store: ObjectStore, path: str, data: bytes) -> bytes | None:
    """Create an object; return None if it is ours, else the bytes that were there first.

    `data` must be bytes that no other writer would write there, or bytes for which the writer
    does not matter. After a lost answer the create is tried again; `UnknownOutcomeError` is
    raised only if the store neither confirms the write nor shows an object.
    """
    return run_steps(store, create_once(path, data))


def run_steps(store: ObjectStore, steps: Steps[T]) -> T:
    """Run a workflow to its result; storage errors are thrown into the workflow."""
    try:
        request = next(steps)
        while True:
            try:
                answer = carry_out(store, request)
            except PenstockError as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as finished:
        result: T = finished.value
        return result


def carry_out(store: ObjectStore, request: Request) -> object:
    """Make the one storage call of a request."""
    match request:
        case Read(path):
            return store.read(path)
        case Exists(path):
            return store.size(path) is not None
        case Create(path, data):
            return store.create(path, data)
        case Delete(path):
            store.delete(path)
            return None
        case ListPaths(prefix):
            return [info.path for info in store.list(prefix)]
        case _:
            assert_never(request)


def probe_store(store: ObjectStore, prefix: str, token: Token) -> None:
    """Return if the store keeps its promises below the folder `prefix`, else raise.

    For a broken promise `StorageError` with code STORAGE_UNSAFE is raised, and its message
    names the promise. If the store refuses a request (no permission, full, read-only), its own
    error is raised. The token must be new: it names the probe's objects, which are deleted
    afterwards unless the store cannot delete or the process dies.
    """
    path = f"{prefix}/probe-{token}" if prefix else f"probe-{token}"
    races = [f"{path}-{number}" for number in range(1, RACES + 1)]
    made: list[str] = []
    try:
        made.append(path)
        _probe(store, path)
        with ThreadPoolExecutor(RACERS) as threads:
            for race in races:
                made.append(race)
                _probe_race(store, race, threads)
    except UnknownOutcomeError as error:
        raise _unsafe(
            store, path, "it gave no certain answer to a small write, even after retries"
        ) from error
    except StorageError as error:
        error.add_note(f"This happened while {store.url} was probed before the start.")
        raise
    finally:
        for name in made:
            with suppress(PenstockError):
                store.delete(name)


def _probe_race(store: ObjectStore, path: str, threads: ThreadPoolExecutor) -> None:
    """Create one object with other bytes from each thread, all at the same moment."""
    written = [b"racer %d" % number for number in range(RACERS)]
    start = Barrier(RACERS)

    def create(data: bytes) -> bool:
        start.wait()
        return store.create(path, data)

    answers = list(threads.map(create, written))
    winners = [data for data, has_won in zip(written, answers, strict=True) if has_won]
    found = store.read(path)
    if len(winners) > 1:
        raise _unsafe(
            store,
            path,
            f"of {RACERS} creates of one object at the same time {len(winners)} claimed to "
            "have written it, so its create-if-absent is not atomic",
        )
    # Nobody may have won: a client that repeats a request finds its own write.
    if found not in (winners or written):
        raise _unsafe(
            store,
            path,
            f"of {RACERS} creates of one object at the same time one succeeded, and other "
            "bytes are there",
        )


def _probe(store: ObjectStore, path: str) -> None:
    first, second, third = b"first", b"second, longer", b"3"

    def require(promise_kept: bool, otherwise: str) -> None:  # noqa: FBT001 - reads as a sentence
        if not promise_kept:
            raise _unsafe(store, path, otherwise)

    require(store.read(path) is None, "it returned an object that was never written")
    # False may answer a request that the client library repeated; then the bytes are ours.
    require(
        store.create(path, first) or store.read(path) == first,
        "it would not create an object under a new name",
    )
    require(store.read(path) == first, "a read did not see an object just created")
    require(
        store.size(path) == len(first), "it told a wrong size of an object just created"
    )
    require(
        not store.create(path, second),
        "its create-if-absent claimed to have written over an existing object",
    )
    require(store.read(path) == first, "its create-if-absent wrote over an existing object")
    store.put(path, third)
    require(store.read(path) == third, "a read did not see an object just replaced")
    store.delete(path)
    require(store.read(path) is None, "a read still saw an object just deleted")


def _unsafe(store: ObjectStore, path: str, behaviour: str) -> StorageError:
    return StorageError(
        f"{store.url} is not safe to keep checkpoints in: {behaviour} (tried with {path!r}). "
        "Use a store with strong consistency and an atomic create-if-absent: a local disk, "
        "S3, GCS, Azure, or a server that honours 'If-None-Match: *'; bypass caches in "
        "between",
        code=ErrorCode.STORAGE_UNSAFE,
        url=store.url,
        path=path,
    )
