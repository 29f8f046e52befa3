"""The files sink under every failure of its output and of the checkpoints: each row once.

A job runs and meets one fault at one call. It dies there or goes on. Another process,
perhaps at another parallelism, finishes it. All the time a reader follows the lists of
committed files, and must see whole epochs only; after a restore, too, and each row once.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import polars as pl
import pytest

import penstock as pen
from penstock.connectors.files.committed import committed_files, read_committed
from penstock.errors import FencedError, PenstockError
from penstock.state.storage.memory import MemoryStore
from penstock.testing import (
    STORAGE_FAULTS,
    Call,
    CrashError,
    Fault,
    FaultMode,
    FaultyStore,
    Lands,
    LocalJob,
    assert_job_is_whole,
)
from tests.builders.files_job import FilesJob, sink_on
from tests.builders.profile import a_start, by_profile

CASES = by_profile(default=12, ci=30, nightly=1_000_000)
"""How many cases of a sweep are run, by profile: another part each time, the same in CI."""
STEPS = by_profile(default=8, ci=3, nightly=1)
"""Of how many calls in turn one is tried."""
FEWEST = by_profile(default=1, ci=3, nightly=3)
"""More than so many of a sweep's cases die, and more go on: else the sweep proves nothing."""
OPTIONS = {"partition_by": ["day"], "format": "jsonl"}
PARALLELISMS = (2, 1, 3)


def let_land(store: FaultyStore, call: Call) -> None:
    """Let the writes of a dead process land now."""
    store.deliver_late()


@cache
def calls_of_a_run() -> tuple[int, int]:
    """Count the calls of an undisturbed run: to the output, and to the checkpoints."""
    job = FilesJob(OPTIONS)
    job.run()
    job.check()
    return len(job.output.calls), len(job.job.calls)


def a_finished_job() -> FilesJob:
    """Return a job that has run to its end, to be restored."""
    job = FilesJob(OPTIONS)
    job.run()
    return job


@cache
def calls_of_a_restore() -> tuple[int, int]:
    """Count the calls of a run that goes back to the first epoch."""
    job = a_finished_job()
    job.run(restore=1)
    job.check()
    return len(job.output.calls), len(job.job.calls)


def cases(calls: int) -> Iterator[tuple[int, Fault]]:
    """Yield, by number, every fault at every call, or as many as the profile allows."""
    every = [
        replace(fault, at=at) for at in range(1, calls + 1) for fault in STORAGE_FAULTS
    ]
    step = max(1, len(every) // CASES)
    step |= 1  # odd: in turn every one of the eight faults has its share
    start = a_start(step)
    for number in range(start, len(every), step):
        yield number, every[number]


def finish(job: FilesJob, number: int) -> None:
    """Let another process run the job to its end, and check everything.

    A restore that was once claimed happens, though nobody asks for it again.
    """
    is_claimed = "files/generations/2/claim" in {it.path for it in job.job.store.list("")}
    status = job.run(parallelism=PARALLELISMS[number % len(PARALLELISMS)])
    assert status.phase is pen.JobPhase.FINISHED
    job.check()
    assert_job_is_whole(job.job.checkpoints)
    if job.restored is not None:
        kept = {file.epoch for file in committed_files(job.inner)}
        assert kept == ({1, 5, 6} if is_claimed else {1, 2, 3})


@pytest.mark.slow
def test_whatever_call_to_the_output_fails_every_row_is_committed_once() -> None:
    died = survived = 0
    for number, fault in cases(calls_of_a_run()[0]):
        job = FilesJob(OPTIONS)
        try:
            job.run(output_faults=[fault])
            survived += 1
        except CrashError:
            died += 1
        job.output.deliver_late()
        job.look()
        finish(job, number)
    assert died > FEWEST
    assert survived > FEWEST


@pytest.mark.slow
def test_whatever_call_to_the_checkpoints_fails_every_row_is_committed_once() -> None:
    died = 0
    for number, fault in cases(calls_of_a_run()[1]):
        job = FilesJob(OPTIONS)
        try:
            job.run(fault)
        except CrashError:
            died += 1
        finish(job, number)
    assert died > FEWEST


@pytest.mark.slow
def test_a_job_that_dies_at_every_call_to_its_output_gets_to_its_end() -> None:
    # Each process dies at a call of another number than the one before: recoveries, too.
    job = FilesJob(OPTIONS)
    deaths = 0
    for at in [*range(1, 12), *range(12, 1000, 3)]:
        mode = (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER)[at % 2]
        try:
            job.run(
                output_faults=[Fault(mode, at=at)],
                parallelism=PARALLELISMS[at % len(PARALLELISMS)],
            )
            break
        except CrashError:
            deaths += 1
    assert deaths > 5
    job.check()


@pytest.mark.slow
def test_a_dead_process_may_still_write_while_its_successor_commits() -> None:
    late = Fault(FaultMode.LOSE_RESPONSE, lands=Lands.LATER)
    died = 0
    for at in range(1, calls_of_a_run()[0], STEPS):
        job = FilesJob(OPTIONS)
        die = Fault(FaultMode.CRASH_BEFORE, at=at + 1)
        try:
            job.run(output_faults=[replace(late, at=at), die])
        except CrashError:
            died += 1
        dying = job.output
        deliver = Fault(FaultMode.DELAY, at=1 + at % 7, hook=partial(let_land, dying))
        job.run(output_faults=[deliver])
        dying.deliver_late()
        job.check()
    assert died > FEWEST


@pytest.mark.slow
def test_whatever_call_fails_a_job_without_rows_ends_with_one_list_that_tells_its_columns() -> (
    None
):
    died = 0
    for at in range(1, 12):
        for fault in STORAGE_FAULTS:
            store = MemoryStore()
            outputs = [FaultyStore(store, replace(fault, at=at))]
            spec, registry = sink_on(partial(_last_of, outputs))
            pipeline = pen.Pipeline("empty", registry=registry)
            rows = pipeline.read("rows", pen.list_source([{"n": 1}], splits=2))
            rows.filter(pl.col("n") > 1).write("out", spec)
            job = LocalJob(pipeline, registry=registry)
            try:
                job.run(parallelism=2)
            except CrashError:
                died += 1
            outputs[0].deliver_late()
            outputs.append(FaultyStore(store))
            status = job.run(parallelism=1 + at % 3)
            assert status.phase is pen.JobPhase.FINISHED
            assert read_committed(store).schema.names == ["n"]
            assert [info.path[:11] for info in store.list("")] == ["_committed/"]
    assert died > 3


def _last_of(outputs: list[FaultyStore], url: str) -> FaultyStore:
    del url
    return outputs[-1]


def test_an_output_that_is_away_for_good_stops_the_job_and_loses_nothing() -> None:
    job = FilesJob()
    for operation in ("create", "copy"):
        away = Fault(FaultMode.FAIL_BEFORE, at=None, operation=operation)
        with pytest.raises(PenstockError):
            job.run(output_faults=[away])
        job.look()
    finish(job, 0)


def test_dying_between_acknowledgement_and_commit_commits_at_the_next_start() -> None:
    job = FilesJob()
    with pytest.raises(CrashError):
        job.run(Fault(FaultMode.CRASH_AFTER, operation="create", path="*/epochs/*"))
    job.look()
    assert job.seen == 0
    with pytest.raises(CrashError):
        job.run(output_faults=[Fault(FaultMode.CRASH_AFTER, operation="create")])
    job.look()
    # The first epoch's list is the first thing the next process created.
    assert job.seen == 1
    finish(job, 1)


@pytest.mark.slow
def test_whatever_call_to_the_output_fails_after_a_restore_every_row_is_there_once() -> (
    None
):
    died = survived = 0
    for number, fault in cases(calls_of_a_restore()[0]):
        job = a_finished_job()
        try:
            job.run(output_faults=[fault], restore=1)
            survived += 1
        except CrashError:
            died += 1
        job.output.deliver_late()
        job.look()
        finish(job, number)
    assert died > FEWEST
    assert survived > FEWEST


@pytest.mark.slow
def test_whatever_call_to_the_checkpoints_fails_in_a_restore_every_row_is_there_once() -> (
    None
):
    died = 0
    for number, fault in cases(calls_of_a_restore()[1]):
        job = a_finished_job()
        try:
            job.run(fault, restore=1)
        except CrashError:
            died += 1
        job.look()
        finish(job, number)
    assert died > FEWEST


@pytest.mark.slow
def test_a_restored_job_that_dies_at_every_call_gets_to_its_end() -> None:
    # Of the first ones some die before the restore is asked for: then it is asked for again.
    job = a_finished_job()
    deaths = 0
    for at in range(1, 1000, 5):
        mode = (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER)[at % 2]
        claims = [it.path for it in job.job.store.list("") if it.path.endswith("/claim")]
        try:
            job.run(
                Fault(mode, at=at),
                restore=1 if len(claims) == 1 else None,
                parallelism=PARALLELISMS[at % len(PARALLELISMS)],
            )
            break
        except CrashError:
            deaths += 1
        job.look()
    assert deaths > 5
    job.check()
    assert min(file.epoch for file in committed_files(job.inner, since_epoch=2)) > 3


@pytest.mark.slow
def test_a_restore_that_was_replaced_by_another_one_leaves_no_trace() -> None:
    """A driver that restores sleeps at any call, while another one goes elsewhere and finishes."""
    fenced = 0
    for at in range(1, calls_of_a_restore()[1], 2 * STEPS):
        job = a_finished_job()
        slept: list[Call] = []

        def other_driver(
            call: Call, job: FilesJob = job, slept: list[Call] = slept
        ) -> None:
            if not slept:
                slept.append(call)
                job.run(restore=2)

        try:
            job.run(Fault(FaultMode.DELAY, at=at, hook=other_driver), restore=1)
        except FencedError:
            fenced += 1
        job.check()
        assert slept
    assert fenced > FEWEST
