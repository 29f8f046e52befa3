"""Two drivers of one job: one sleeps wherever it likes, the other takes over and runs on.

The sleeper wakes up and goes on with what it was doing. It must find out that it was
replaced before it changes anything that counts: its output is never seen, nothing that the
other one needs is deleted, and every row counts once.
"""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock.errors import FencedError, StorageError
from penstock.runtime.driver.decide import JobPhase
from penstock.testing import (
    Call,
    Fault,
    FaultMode,
    FaultyStore,
    assert_job_is_whole,
    stored_objects,
)
from tests.builders.pipeline_graphs import SHAPES, Shape, counting, levels
from tests.builders.pipeline_job import PipelineJob
from tests.builders.profile import by_profile

SHAPE_NAMES = [shape.name for shape in SHAPES]


def sleep_at(job: PipelineJob, fault: Fault, meanwhile: Callable[[], object]) -> str:
    """Run a driver that sleeps at a storage call; return what became of it."""
    slept: list[Call] = []

    def hook(call: Call) -> None:
        if not slept:
            slept.append(call)
            meanwhile()

    store = FaultyStore(
        job.inner,
        Fault(
            FaultMode.DELAY,
            at=fault.at,
            operation=fault.operation,
            path=fault.path,
            hook=hook,
        ),
    )
    driver = job.driver(store, cache="sleeper")
    try:
        driver.run()
    except FencedError:
        assert driver.status.phase is JobPhase.FENCED
    assert slept
    return driver.status.phase


def at(path: str, number: int, operation: str = "create") -> Fault:
    return Fault(FaultMode.DELAY, at=number, operation=operation, path=path)


INSTANTS = {
    "before-a-state-file": at("*.parquet", 6),
    "before-its-metadata": at("*.metadata", 9),
    "before-its-manifest": at("*/manifest.pb", 3),
    "before-it-publishes": at("*/epochs/*", 3),
    "before-it-marks-a-commit": at("*/committed", 3),
    "before-it-compacts": at("*-compacted-*", 1),
    "before-it-collects": at("*/retention/*", 1),
    "before-it-deletes": at("*", 2, "delete"),
}


@pytest.mark.parametrize("epochs", [1, None])
@pytest.mark.parametrize("instant", INSTANTS)
def test_a_driver_sleeps(instant: str, epochs: int | None, tmp_path: Path) -> None:
    job = PipelineJob(counting(), tmp_path)

    def meanwhile() -> None:
        if epochs is None:
            job.finish(parallelism=(1, 2, 2))
        else:
            job.run_epochs(epochs, parallelism=(1, 2, 2))

    phase = sleep_at(job, INSTANTS[instant], meanwhile)
    # Whoever loses an epoch takes over again: its rival may be gone.
    assert phase in (JobPhase.FENCED, JobPhase.FINISHED)
    assert_job_is_whole(job.checkpoints())
    job.finish()


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_a_driver_sleeps_at_any_storage_call(shape: Shape, tmp_path: Path) -> None:
    count = by_profile(default=4, ci=8, nightly=200)
    dice = random.Random(random.getrandbits(32))
    outcomes = set()
    for number in range(count):
        job = PipelineJob(shape, tmp_path / str(number))
        fault = Fault(FaultMode.DELAY, at=dice.randrange(1, 180))
        epochs = dice.randrange(1, 4)
        outcomes.add(sleep_at(job, fault, partial(job.run_epochs, epochs)))
        job.finish(parallelism=(1, 2, 2))
    assert outcomes <= {JobPhase.FENCED, JobPhase.FINISHED}


@pytest.mark.parametrize("superstep", [1, 2, 5, 8])
def test_a_driver_sleeps_between_supersteps(superstep: int, tmp_path: Path) -> None:
    job = PipelineJob(levels(), tmp_path)
    calls = []

    def between(level: int) -> None:
        calls.append(level)
        if len(calls) == superstep:
            job.run_epochs(2, parallelism=(1, 2, 2))

    driver = job.driver(between_supersteps=between, cache="sleeper")
    try:
        driver.run()
    except FencedError:
        assert driver.status.phase is JobPhase.FENCED
    job.finish()


def test_a_sleepers_commit_was_replayed_before_it_woke_up(tmp_path: Path) -> None:
    job = PipelineJob(counting(), tmp_path)
    committed: list[int] = []

    def hook(when: str, epoch: int) -> None:
        if when == "before":
            committed.append(epoch)
            if committed == [1, 2]:
                # The first driver is about to commit epoch 2. The second does it first.
                job.run_epochs(1, parallelism=(1, 2, 2))

    job.book.hook = hook
    driver = job.driver(cache="sleeper")
    with pytest.raises(FencedError):
        driver.run()
    assert committed.count(2) == 2
    assert job.book.calls.count(("out", 2)) == 2
    job.book.hook = None
    job.finish()


def test_a_driver_that_fails_and_was_replaced_does_not_take_the_job_back(
    tmp_path: Path,
) -> None:
    job = PipelineJob(counting(), tmp_path)

    def fail_later(call: Call) -> None:
        job.run_epochs(1, parallelism=(1, 2, 2))
        raise StorageError("the connection was lost while it slept")

    store = FaultyStore(
        job.inner,
        Fault(
            FaultMode.DELAY, at=2, operation="create", path="*/epochs/*", hook=fail_later
        ),
    )
    with pytest.raises(FencedError):
        job.driver(store).run()
    assert max(map(int, generations(job))) == 2
    job.finish()


def generations(job: PipelineJob) -> set[str]:
    return {
        path.split("/")[2] for path in stored_objects(job.inner) if path.endswith("/claim")
    }


def test_two_drivers_in_turn_finish_a_job(tmp_path: Path) -> None:
    # Each claims the job anew as soon as the other one has published an epoch.
    job = PipelineJob(counting(), tmp_path)
    for turn in range(20):
        status = job.run_epochs(1, cache=f"cache-{turn % 2}", seed=turn)
        if status.phase is JobPhase.FINISHED:
            break
    assert turn > 3
    job.check()
