"""One epoch with every storage call failing in every way: it happens entirely or not at all.

The epoch under test takes the job over, merges files, writes tables in both subtasks, swaps
merged files in, publishes, commits, collects and sweeps. After each failure the next driver
has to find either epoch whole, with its output committed once, and go on.
"""

from collections.abc import Iterable
from functools import cache

import pytest

from penstock.errors import FencedError, UnknownOutcomeError
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import CrashError, Fault, FaultMode, FaultyStore, Lands, sweep
from tests.builders.kept_epochs import load_epoch
from tests.builders.profile import a_start, by_profile
from tests.builders.shop import (
    SHOP,
    Operation,
    ShopEpoch,
    ShopModel,
    check_contents,
    shop_specs,
)
from tests.builders.state_job import Committed, StateJob

BEFORE, AFTER = 3, 4
"""The last epoch of the prepared job, and the epoch under test."""
KEEP = 2
PARALLELISM = 2
WRITES = ("create", "delete")


def of_writes(mode: FaultMode, **options: object) -> list[Fault]:
    return [Fault(mode, operation=name, **options) for name in WRITES]  # type: ignore[arg-type]  # passed on


FAULTS = [
    # A read that fails changes nothing, and no caller tries again: one way stands for all.
    Fault(FaultMode.FAIL_BEFORE),
    Fault(FaultMode.STALE_LIST),
    *of_writes(FaultMode.FAIL_AFTER),
    *of_writes(FaultMode.CRASH_BEFORE),
    *of_writes(FaultMode.CRASH_AFTER),
    *of_writes(FaultMode.LOSE_RESPONSE, lands=Lands.NEVER),
    *of_writes(FaultMode.LOSE_RESPONSE, lands=Lands.LATER, late_calls=1),
]
"""Each half of them has writes that come to pass and writes that do not."""
HALF = len(FAULTS) // 2
CHOSEN = by_profile([FAULTS[:HALF], FAULTS[HALF:]][a_start(2)], FAULTS, FAULTS)
MANY = by_profile(default=100, ci=300, nightly=300)


def operations(number: int) -> list[Operation]:
    """What epoch `number` does: puts, deletes, inserts and counts in both subtasks."""
    rows = [(key, number, 10 * number) for key in "abcdef"]
    return [
        ("put", "totals", rows),
        ("delete", "totals", ["a", "c"] if number % 2 else ["b"]),
        ("put", "lines", [*rows, *((key, number, 5 * number) for key in "ace")]),
        ("delete", "lines", ["b", "e"] if number % 2 else ["a"]),
        ("insert_panes", rows[:4], 10 * number + 15),
        ("insert_marks", number, rows[:1], 10 * number + 15),
        ("count", 0, f"of {number}", number),
        ("count", 1, "shared", number),
        ("count", number, f"of {number - 2}", None),
        ("commit", number, f"output of {number}"),
    ]


def run_epoch(job: StateJob, history: dict[int, ShopModel]) -> None:
    """Run an epoch, next to the model that it should make true."""
    number = int(job.epoch)
    epoch = ShopEpoch(job, history[number - 1], 1)
    epoch.apply(operations(number))
    work = job.checkpoint_subtasks(10 * number)
    history[number] = epoch.finished(10 * number)
    permit = job.publish(work)
    assert permit is not None
    job.commit(permit)


def run_epoch_and_clean_up(job: StateJob, history: dict[int, ShopModel]) -> None:
    """Everything a driver does around one epoch."""
    for index in range(PARALLELISM):
        job.compact(SHOP, index)
    run_epoch(job, history)
    job.checkpoints.collect(job.claim, keep_epochs=KEEP)
    job.checkpoints.sweep(job.claim)


@cache
def prepared() -> tuple[dict[str, bytes], dict[int, ShopModel], list[Committed]]:
    """A job of three epochs: its objects, its output, and what each epoch held and would hold."""
    job = StateJob(shop_specs(), parallelism=PARALLELISM)
    history = {0: ShopModel()}
    for _ in range(BEFORE):
        run_epoch(job, history)
    assert isinstance(job.store, MemoryStore)
    objects, sink = job.store.contents(), list(job.sink)
    run_epoch(job, history)
    return objects, history, sink


def check_kept_epochs(job: StateJob, history: dict[int, ShopModel]) -> set[int]:
    """Every kept epoch folds to what it held; return their numbers."""
    kept = {int(one.record.ref.epoch) for one in job.checkpoints.epochs()}
    for epoch in kept:
        managers = load_epoch(job.checkpoints, SHOP, job.specs[SHOP], epoch)
        check_contents(managers, history[epoch], 1)
    return kept


def check_committed_once(sink: Iterable[Committed], newest: int) -> None:
    """Each epoch up to the newest committed its own output, and nothing else was committed."""
    assert set(sink) == {
        (number, SHOP, number % 2, "counts", f"output of {number}".encode())
        for number in range(1, newest + 1)
    }


def next_driver(store: ObjectStore, sink: list[Committed]) -> tuple[StateJob, int]:
    """Take over what a failed driver left; it holds one epoch or the other, and it whole."""
    job = StateJob(shop_specs(), store=store, parallelism=PARALLELISM, sink=sink)
    assert job.base is not None
    newest = int(job.base.ref.epoch)
    assert newest in (BEFORE, AFTER)
    check_committed_once(sink, newest)
    assert {BEFORE, newest} <= check_kept_epochs(job, prepared()[1])
    return job, newest


def check_going_on(job: StateJob, sink: list[Committed], newest: int) -> None:
    """The next driver runs the next epoch, cleans up, and keeps what it should."""
    history = dict(prepared()[1])
    run_epoch_and_clean_up(job, history)
    check_committed_once(sink, newest + 1)
    assert check_kept_epochs(job, history) == {newest, newest + 1}


class Attempt:
    """The epoch under test, to be run on one store after the other."""

    def __init__(self) -> None:
        self.sink: list[Committed] = []

    def make_store(self) -> MemoryStore:
        objects, _, committed = prepared()
        self.sink[:] = committed
        return MemoryStore(objects)

    def run(self, store: ObjectStore) -> None:
        job = StateJob(shop_specs(), store=store, parallelism=PARALLELISM, sink=self.sink)
        run_epoch_and_clean_up(job, dict(prepared()[1]))


@pytest.mark.slow
def test_whatever_fails_the_epoch_happens_entirely_or_not_at_all() -> None:
    attempt = Attempt()
    trials, known, found = 0, set(), set()
    for trial in sweep(attempt.run, CHOSEN, make_store=attempt.make_store):
        trials += 1
        assert isinstance(trial.store.store, MemoryStore)
        # Objects are written once, so stores with the same names are in the same state.
        state = (frozenset(trial.store.store.contents()), len(attempt.sink))
        if state in known:
            continue
        known.add(state)
        job, newest = next_driver(trial.store.store, attempt.sink)
        assert newest == AFTER or trial.error is not None
        check_going_on(job, attempt.sink, newest)
        found.add(newest)
    assert trials > MANY
    assert found == {BEFORE, AFTER}


@pytest.mark.slow
def test_a_dead_drivers_write_may_land_under_its_successor() -> None:
    attempt = Attempt()
    undisturbed = FaultyStore(attempt.make_store())
    attempt.run(undisturbed)
    writes = [n for n, call in enumerate(undisturbed.calls, 1) if call.operation in WRITES]
    adopted_late = 0
    for number in writes:
        store = FaultyStore(
            attempt.make_store(),
            Fault(FaultMode.LOSE_RESPONSE, at=number, lands=Lands.LATER),
            Fault(FaultMode.CRASH_BEFORE, at=number + 1),
        )
        with pytest.raises((CrashError, UnknownOutcomeError)):
            attempt.run(store)
        job, newest = next_driver(store.store, attempt.sink)
        store.deliver_late()
        try:
            check_going_on(job, attempt.sink, newest)
        except FencedError:
            # The write was the epoch record: the successor adopts what it acknowledges.
            job, found = next_driver(store.store, attempt.sink)
            assert (newest, found) == (BEFORE, AFTER)
            check_going_on(job, attempt.sink, found)
            adopted_late += 1
    assert len(writes) > 30
    assert adopted_late == 1
