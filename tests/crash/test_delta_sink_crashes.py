"""The Delta sink under every failure of its files, its table and the checkpoints: each row once.

A job runs and meets one fault at one call. It dies there or goes on. Another process, perhaps at
another parallelism, finishes it. The table then has every row once, whoever reads it.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import penstock as pen
from penstock.errors import PenstockError
from penstock.testing import (
    STORAGE_FAULTS,
    CrashError,
    Fault,
    FaultMode,
    assert_job_is_whole,
)
from tests.builders.delta_job import TABLE_FAULTS, DeltaJob, TableCalls, numbers_in
from tests.builders.files_job import ROUNDS, whole_epochs
from tests.builders.profile import a_start, by_profile

CASES = by_profile(default=8, ci=20, nightly=1_000_000)
"""How many cases of a sweep are run, by profile: another part each time, the same in CI."""
PARALLELISMS = (2, 1, 3)


def cases(calls: int, kinds: int) -> Iterator[tuple[int, int, int]]:
    """Yield a number, a call and a kind of fault, as many as the profile allows."""
    every = calls * kinds
    step = max(1, every // CASES) | 1
    for number in range(a_start(step), every, step):
        yield number, number // kinds + 1, number % kinds


def check_epochs(folder: Path, call: str) -> None:
    """Check that a reader sees whole epochs, each once."""
    del call
    numbers = numbers_in(folder)
    assert numbers in [whole_epochs(count) for count in range(ROUNDS + 1)]


def watched(folder: Path, mode: FaultMode | None = None, at: int = 0) -> TableCalls:
    """Return calls between which a reader looks at the table."""
    calls = TableCalls(mode, at)
    calls.hook = partial(check_epochs, folder)
    return calls


def finish(job: DeltaJob, number: int) -> None:
    """Let another process run the job to its end, and check everything."""
    status = job.run(
        parallelism=PARALLELISMS[number % len(PARALLELISMS)], calls=watched(job.folder)
    )
    assert status.phase is pen.JobPhase.FINISHED
    assert job.numbers() == whole_epochs(ROUNDS)
    assert_job_is_whole(job.job.checkpoints)


def test_a_run_without_faults_makes_a_version_for_each_epoch_with_rows(
    tmp_path: Path,
) -> None:
    job = DeltaJob(tmp_path / "table")
    job.run(calls=watched(job.folder))
    assert job.numbers() == whole_epochs(ROUNDS)
    assert job.calls.names.count("commit") == ROUNDS
    entries = sorted(path.name for path in (job.folder / "_delta_log").glob("*.json"))
    assert len(entries) == ROUNDS + 1  # the first makes the table


@pytest.mark.slow
def test_whatever_call_to_the_table_fails_every_row_is_there_once(tmp_path: Path) -> None:
    undisturbed = DeltaJob(tmp_path / "first", {"partition_by": ["day"]})
    undisturbed.run()
    calls = len(undisturbed.calls.names)
    died = 0
    for number, at, kind in cases(calls, len(TABLE_FAULTS)):
        job = DeltaJob(tmp_path / str(number), {"partition_by": ["day"]})
        try:
            job.run(calls=watched(job.folder, TABLE_FAULTS[kind], at))
        except CrashError:
            died += 1
        except PenstockError:
            pass  # the start may fail before anything is claimed
        finish(job, number)
    assert died > 0


@pytest.mark.slow
def test_whatever_call_to_the_output_fails_every_row_is_there_once(tmp_path: Path) -> None:
    died = survived = 0
    # Each of three epochs writes two to four files; a restart looks at them.
    for number, at, kind in cases(10, len(STORAGE_FAULTS)):
        job = DeltaJob(tmp_path / str(number))
        try:
            job.run(output_faults=[replace(STORAGE_FAULTS[kind], at=at)])
            survived += 1
        except CrashError:
            died += 1
        finish(job, number)
    assert died + survived > 3


@pytest.mark.slow
def test_whatever_call_to_the_checkpoints_fails_every_row_is_there_once(
    tmp_path: Path,
) -> None:
    undisturbed = DeltaJob(tmp_path / "first")
    undisturbed.run()
    died = 0
    for number, at, kind in cases(len(undisturbed.job.calls), len(STORAGE_FAULTS)):
        job = DeltaJob(tmp_path / str(number))
        try:
            job.run(replace(STORAGE_FAULTS[kind], at=at))
        except CrashError:
            died += 1
        finish(job, number)
    assert died > 0


@pytest.mark.slow
def test_a_job_that_dies_at_every_call_to_its_table_gets_to_its_end(tmp_path: Path) -> None:
    job = DeltaJob(tmp_path / "table")
    deaths = 0
    for at in range(1, 1000):
        mode = (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER)[at % 2]
        try:
            job.run(
                calls=watched(job.folder, mode, at),
                parallelism=PARALLELISMS[at % len(PARALLELISMS)],
            )
            break
        except CrashError:
            deaths += 1
    assert deaths > 3
    assert job.numbers() == whole_epochs(ROUNDS)


def test_a_table_that_is_away_for_good_stops_the_job_and_loses_nothing(
    tmp_path: Path,
) -> None:
    job = DeltaJob(tmp_path / "table")
    job.run()
    broken = DeltaJob(tmp_path / "other")
    away = Fault(FaultMode.FAIL_BEFORE, at=None, operation="create")
    with pytest.raises(PenstockError):
        broken.run(output_faults=[away])
    assert broken.numbers() == []
    finish(broken, 0)
