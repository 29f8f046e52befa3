"""Merges of changelogs into Delta tables under every failure: the table is that of whole epochs.

A job keeps the number of rows per day in a table. It meets one fault at one call, dies or goes on,
and another process finishes it. At every moment the table is the one after some whole epoch.
"""

from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import penstock as pen
from penstock.errors import PenstockError
from penstock.testing import CrashError, FaultMode, LocalJob
from tests.builders.delta_job import TABLE_FAULTS, DeltaJob, TableCalls, days_in, whole_days
from tests.builders.files_job import ROUNDS
from tests.builders.profile import a_start, by_profile

CASES = by_profile(default=8, ci=16, nightly=1_000_000)


def look(folder: Path, call: str) -> None:
    """Check that the table is that of whole epochs."""
    del call
    assert days_in(folder) in [whole_days(count) for count in range(ROUNDS + 1)]


def watched(folder: Path, mode: FaultMode | None = None, at: int = 0) -> TableCalls:
    calls = TableCalls(mode, at)
    calls.hook = partial(look, folder)
    return calls


@pytest.mark.slow
def test_whatever_call_fails_the_table_is_that_of_all_epochs(tmp_path: Path) -> None:
    undisturbed = DeltaJob(tmp_path / "first", merges=True)
    undisturbed.run(calls=watched(undisturbed.folder))
    assert days_in(undisturbed.folder) == whole_days(ROUNDS)
    assert undisturbed.calls.names.count("merge") == ROUNDS
    every = len(undisturbed.calls.names) * len(TABLE_FAULTS)
    step = max(1, every // CASES) | 1
    for number in range(a_start(step), every, step):
        mode = TABLE_FAULTS[number % len(TABLE_FAULTS)]
        job = DeltaJob(tmp_path / str(number), merges=True)
        with suppress(CrashError, PenstockError):
            job.run(calls=watched(job.folder, mode, number // len(TABLE_FAULTS) + 1))
        status = job.run(parallelism=1 + number % 3, calls=watched(job.folder))
        assert status.phase is pen.JobPhase.FINISHED
        assert days_in(job.folder) == whole_days(ROUNDS)
        assert not list((job.folder / "_staging").rglob("*.parquet"))


def test_a_merge_that_others_overtake_is_made_again(tmp_path: Path) -> None:
    job = DeltaJob(tmp_path / "table", merges=True)
    calls = TableCalls()
    others: list[str] = []

    def write_too(name: str) -> None:
        if name == "merge" and len(others) < 5:
            others.append(f"other-{len(others)}")
            row = pa.table({"day": [others[-1]], "n": [1]})
            write_deltalake(str(job.folder), row, mode="append")

    calls.hook = write_too
    job.run(calls=calls)
    assert days_in(job.folder) == {**whole_days(ROUNDS), **dict.fromkeys(others, 1)}


def test_two_drivers_that_merge_the_same_epoch_at_once_merge_it_once(
    tmp_path: Path,
) -> None:
    job = DeltaJob(tmp_path / "table", merges=True)
    other = DeltaJob(tmp_path / "table", merges=True)
    other.job = LocalJob(other.job.graph, registry=other.job.registry, store=job.job.store)
    calls = TableCalls()
    ran = [0]

    def run_another_driver(name: str) -> None:
        if name == "merge" and not ran[0]:
            ran[0] += 1
            other.run(parallelism=1)

    calls.hook = run_another_driver
    with pytest.raises(PenstockError):
        job.run(calls=calls)
    assert days_in(job.folder) == whole_days(ROUNDS)


def test_a_restore_undoes_the_merges_of_abandoned_epochs(tmp_path: Path) -> None:
    job = DeltaJob(tmp_path / "table", merges=True)
    job.run()
    calls = TableCalls()
    seen: list[dict[str, int]] = []

    def look_before_merges(name: str) -> None:
        if name == "merge":
            seen.append(days_in(job.folder))

    calls.hook = look_before_merges
    job.run(restore=1, calls=calls)
    # The first merge after the restore finds the table as it was at that epoch.
    assert seen[0] == whole_days(1)
    assert days_in(job.folder) == whole_days(ROUNDS)


@pytest.mark.slow
def test_a_restore_that_dies_at_any_call_leads_to_the_table_of_all_epochs(
    tmp_path: Path,
) -> None:
    for at in range(1, 12, by_profile(default=3, ci=2, nightly=1)):
        for mode in (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER, FaultMode.FAIL_AFTER):
            job = DeltaJob(tmp_path / f"{at}-{mode}", merges=True)
            job.run()
            with suppress(CrashError, PenstockError):
                job.run(restore=1, calls=watched(job.folder, mode, at))
            job.run(parallelism=1, calls=watched(job.folder))
            assert days_in(job.folder) == whole_days(ROUNDS)


def test_merges_that_were_compacted_are_not_undone_and_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = DeltaJob(tmp_path / "table", merges=True)
    job.run()
    row = pa.table({"day": ["other"], "n": [1]})
    write_deltalake(str(job.folder), row, mode="append")
    DeltaTable(str(job.folder)).optimize.compact()
    job.run(restore=1)
    assert "rows of the abandoned epochs 2 to" in caplog.text
    assert days_in(job.folder) == {**whole_days(ROUNDS), "other": 1}
