"""Somebody collects by hand beside a driver that collects: both come to an end, nothing is lost."""

from collections.abc import Callable, Iterator

import pytest

from penstock.core.ids import SavepointName
from penstock.errors import CorruptStateError
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.protocol import paths
from penstock.state.protocol.collection import CollectionDone, SweepDone
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.testing import Call, Fault, FaultMode, FaultyStore, assert_job_is_whole
from tests.builders.small_driver import SmallDriver, a_driver, checkpoints_in

Work = Callable[[JobCheckpoints, SmallDriver], object]


def collecting(checkpoints: JobCheckpoints, driver: SmallDriver) -> object:
    return checkpoints.collect(driver.claim, keep_epochs=1)


def keeping_more(checkpoints: JobCheckpoints, driver: SmallDriver) -> object:
    return checkpoints.collect(driver.claim, keep_epochs=5)


def sweeping(checkpoints: JobCheckpoints, driver: SmallDriver) -> object:
    return checkpoints.sweep(driver.claim)


def interrupted(work: Work, by: Work) -> Iterator[tuple[object, MemoryStore, SmallDriver]]:
    """Do some work as often as it has storage calls, with other work within another call."""
    at = 1
    while True:
        store = MemoryStore()
        driver = a_driver(store, epochs=8)
        driver.checkpoints.pin(SavepointName("kept"), Epochs())
        driver.run_epochs(3)
        seen: list[Call] = []

        def run(call: Call, beside: SmallDriver = driver, seen: list[Call] = seen) -> None:
            seen.append(call)
            by(checkpoints_in(beside.checkpoints.store), beside)

        faulty = FaultyStore(store, Fault(FaultMode.DELAY, at=at, hook=run))
        outcome = work(checkpoints_in(faulty), driver)
        if not seen:
            return
        yield outcome, store, driver
        at += 1


@pytest.mark.parametrize("by", [collecting, sweeping])
@pytest.mark.parametrize("work", [collecting, keeping_more, sweeping])
def test_collectors_of_one_claim_may_work_at_the_same_time(work: Work, by: Work) -> None:
    count = 0
    for outcome, store, driver in interrupted(work, by):
        count += 1
        assert isinstance(outcome, CollectionDone | SweepDone)
        assert_job_is_whole(checkpoints_in(store))
        driver.run_epoch()
        again = checkpoints_in(store).collect(driver.claim, keep_epochs=1)
        assert isinstance(again, CollectionDone)
        kept = {epoch.record.ref.epoch for epoch in driver.checkpoints.epochs()}
        assert kept == {8, 12}
    assert count > 10


@pytest.mark.parametrize("work", [collecting, sweeping])
def test_damage_is_still_damage_if_nobody_else_collects(work: Work) -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=3)
    store.delete(paths.manifest_path(driver.acknowledged[-1]))
    with pytest.raises(CorruptStateError):
        work(checkpoints_in(store), driver)
