"""Whole jobs with storage calls failing in every way: every row still counts exactly once.

A driver runs a job and meets one fault at one storage call. It dies there, stops, or goes on
by its restart policy. Another driver, in a new process and perhaps at another parallelism,
takes over and finishes the job. Its output must be that of a job nothing ever happened to,
and every checkpoint it keeps must be whole.

All calls in all modes are thousands of runs. A run of the suite takes a part of them, spread
over the whole job: another part each time on a developer's machine, always the same in CI,
all of them at night.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from penstock.runtime.driver.decide import JobPhase
from penstock.testing import (
    Call,
    CrashError,
    Fault,
    FaultMode,
    FaultyStore,
    Lands,
    assert_job_is_whole,
)
from tests.builders.pipeline_graphs import SHAPES, Shape
from tests.builders.pipeline_job import PipelineJob
from tests.builders.profile import a_start, by_profile

CRASHES = (Fault(FaultMode.CRASH_BEFORE), Fault(FaultMode.CRASH_AFTER))
FAILURES = (
    Fault(FaultMode.FAIL_BEFORE),
    Fault(FaultMode.FAIL_AFTER),
    Fault(FaultMode.LOSE_RESPONSE, lands=Lands.NEVER),
    Fault(FaultMode.LOSE_RESPONSE, lands=Lands.LATER, late_calls=1),
    Fault(FaultMode.LOSE_RESPONSE, lands=Lands.LATER),
)
MODES = (*CRASHES, *FAILURES)
FIRST = (2, 1, 1)
"""The parallelisms of the driver that fails."""
OTHERS = ((2, 1, 1), (2, 1, 1), (1, 2, 2), (3, 1, 2))
"""Those of its successor: the same, or others."""
CASES = by_profile(default=6, ci=12, nightly=1_000_000)
"""How many cases of each pipeline are run, by profile."""
SHAPE_NAMES = [shape.name for shape in SHAPES]


@cache
def calls_of(shape: Shape) -> int:
    """Count the storage calls of an undisturbed run."""
    with TemporaryDirectory() as folder:
        job = PipelineJob(shape, Path(folder))
        store = FaultyStore(job.inner)
        job.driver(store, parallelism=FIRST).run()
    return len(store.calls)


def cases_of(shape: Shape, modes: Sequence[Fault] = MODES) -> Iterator[tuple[int, Fault]]:
    """Yield, by number, the faults to run: as many as the profile says, evenly spread."""
    every = [replace(mode, at=at) for at in range(1, calls_of(shape) + 1) for mode in modes]
    # One more or less, so that in turn every mode has its share.
    step = max(1, len(every) // CASES)
    step += step > 1 and step % len(modes) == 0
    start = a_start(step)
    for number in range(start, len(every), step):
        yield number, every[number]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_whatever_call_fails_every_row_counts_once(shape: Shape, tmp_path: Path) -> None:
    survived = died = 0
    for number, fault in cases_of(shape):
        job = PipelineJob(shape, tmp_path / str(number))
        store = FaultyStore(job.inner, fault)
        try:
            status = job.driver(store, parallelism=FIRST, seed=number).run()
            assert status.phase is JobPhase.FINISHED
            survived += 1
        except CrashError:
            died += 1
        # A write may be on its way while the next driver starts, and may come before it.
        store.deliver_late()
        assert_job_is_whole(job.checkpoints())
        job.finish(
            parallelism=OTHERS[number % len(OTHERS)],
            cache=("cache", "other")[number % 2],
            seed=number + 1,
        )
    assert survived > 0
    assert died > 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_a_job_dies_again_and_again_and_counts_every_row_once(
    shape: Shape, tmp_path: Path
) -> None:
    # Every driver dies a few calls later than the one before: recoveries are cut off, too.
    job = PipelineJob(shape, tmp_path)
    step = by_profile(default=37, ci=23, nightly=1)
    drivers = 0
    calls = random.randrange(1, step + 1)
    while True:
        mode = CRASHES[drivers % 2]
        store = FaultyStore(job.inner, replace(mode, at=calls))
        try:
            job.driver(
                store,
                parallelism=OTHERS[drivers % len(OTHERS)],
                cache=f"cache-{drivers % 3}",
                seed=drivers,
            ).run()
            break
        except CrashError:
            drivers += 1
            calls += step
    assert drivers > 2
    job.check()


def let_land(store: FaultyStore, call: Call) -> None:
    store.deliver_late()


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_a_dead_drivers_write_may_land_under_its_successor(
    shape: Shape, tmp_path: Path
) -> None:
    late = Fault(FaultMode.LOSE_RESPONSE, lands=Lands.LATER)
    for number, fault in cases_of(shape, [late]):
        assert fault.at is not None
        job = PipelineJob(shape, tmp_path / str(number))
        dying = FaultyStore(
            job.inner, fault, Fault(FaultMode.CRASH_BEFORE, at=fault.at + 1)
        )
        try:
            job.driver(dying, parallelism=FIRST, seed=number).run()
            continue  # it was the last call of all
        except CrashError:
            pass
        # It lands after the successor has made some calls.
        after = 1 + number % 60
        store = FaultyStore(
            job.inner,
            Fault(FaultMode.DELAY, at=after, hook=partial(let_land, dying)),
        )
        job.finish(store=store, parallelism=OTHERS[number % len(OTHERS)], seed=number + 1)
