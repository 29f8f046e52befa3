"""Sweeps: one workflow, run once for every fault at every storage call it makes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from penstock.errors import PenstockError
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing.fault_modes import STORAGE_FAULTS, Fault
from penstock.testing.faults import CrashError, FaultyStore


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of the workflow with one fault."""

    fault: Fault
    store: FaultyStore
    """The store the workflow used, with its log; `store.store` is what is left of it."""
    result: object
    """What the workflow returned; None if it raised."""
    error: PenstockError | CrashError | None


def sweep(
    run: Callable[[FaultyStore], object],
    faults: Iterable[Fault] = STORAGE_FAULTS,
    *,
    make_store: Callable[[], ObjectStore] = MemoryStore,
) -> Iterator[Trial]:
    """Run the workflow with each fault at its first matching call, its second, … its last.

    Every trial starts from a fresh `make_store()`. It may end by itself, with an error of
    Penstock's, or with a crash; any other exception is a bug and comes out of the sweep.
    The caller then checks what `trial.store.store` holds, or recovers from it.

    >>> def workflow(store):
    ...     store.create("data", b"1")
    ...     store.create("pointer-to-data", b"data")
    >>> trials = list(sweep(workflow))
    >>> len(trials)
    14
    >>> all(
    ...     trial.store.store.read("data") or not trial.store.store.read("pointer-to-data")
    ...     for trial in trials
    ... )
    True
    """
    for fault in faults:
        at = 1
        while True:
            trial = _run(run, replace(fault, at=at), make_store())
            if not trial.store.has_fired:
                break
            yield trial
            at += 1


def _run(run: Callable[[FaultyStore], object], fault: Fault, store: ObjectStore) -> Trial:
    faulty = FaultyStore(store, fault)
    try:
        return Trial(fault, faulty, run(faulty), None)
    except (PenstockError, CrashError) as error:
        return Trial(fault, faulty, None, error)
