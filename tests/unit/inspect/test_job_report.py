"""A report says how a job is from its URL and name alone, and why it is not well."""

import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import penstock as pen
from penstock.core.clock import ManualClock, SystemClock
from penstock.core.ids import JobId
from penstock.errors import StateError, UserCodeError
from penstock.inspect.job_report import (
    Health,
    find_jobs,
    read_report,
    report_job,
    report_jobs,
)
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.urls import to_store
from tests.builders.pipelines import CountLate

MINUTE = 60_000_000


def counting(name: str = "numbers", **source: object) -> pen.Pipeline:
    pipeline = pen.Pipeline(name)
    pipeline.read("in", pen.impulse(**source)).write("out", pen.blackhole())  # type: ignore[arg-type] # as given
    return pipeline


def await_until(holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def test_a_job_that_runs_and_one_that_was_stopped_are_told_apart(tmp_path: Path) -> None:
    with counting(rate=1_000).start_in_process(str(tmp_path)) as job:
        await_until(lambda: report_job(str(tmp_path), "numbers").health is Health.RUNNING)
        await_until(lambda: job.status.rows_read > 1_000)
    report = report_job(str(tmp_path), "numbers")
    assert (report.health, report.problems) == (Health.STOPPED, ())
    assert report.epoch == job.status.epoch
    assert report.status is not None
    assert report.status.rows_read > 0
    assert "stopped" in str(report)


def test_the_source_that_holds_the_watermark_back_is_named(tmp_path: Path) -> None:
    counting(count=1_000, splits=2).run_in_process(str(tmp_path))
    with counting("endless", rate=1_000, splits=2).start_in_process(str(tmp_path)) as job:
        await_until(lambda: job.status.rows_read > 1_000)
    ended, endless = (report_job(str(tmp_path), each) for each in ("numbers", "endless"))
    assert ended.held_back_by is None
    assert endless.held_back_by is not None
    assert endless.held_back_by.operator == "in"
    assert endless.held_back_by.split is not None
    assert endless.held_back_by.watermark_micros is not None


def test_a_job_that_failed_says_why(tmp_path: Path) -> None:
    def explode(row: dict[str, object]) -> dict[str, object]:
        raise ValueError("no such country")

    pipeline = pen.Pipeline("numbers")
    pipeline.read("in", pen.impulse(count=3)).map(explode).write("out", pen.blackhole())
    with pytest.raises(UserCodeError):
        pipeline.run_in_process(str(tmp_path))
    report = report_job(str(tmp_path), "numbers")
    assert report.health is Health.FAILED
    assert "no such country" in report.problems[0]


def test_a_driver_that_says_nothing_any_more_is_silent() -> None:
    store, clock = MemoryStore(), ManualClock(10**15)
    checkpoints = JobCheckpoints(store, JobId("numbers"), clock)
    checkpoints.take_over()
    assert read_report(store, JobId("numbers"), clock).health is Health.STARTING
    clock.advance("3m")
    report = read_report(store, JobId("numbers"), clock)
    assert report.health is Health.SILENT
    assert "has said nothing for" in report.problems[0]
    assert report.event is None


def test_a_job_of_a_penstock_without_a_journal_is_unknown_but_its_epochs_are_not() -> None:
    store, clock = MemoryStore(), ManualClock(10**15)
    checkpoints = JobCheckpoints(store, JobId("numbers"), clock)
    taken = checkpoints.take_over()
    checkpoints.leave(taken.claim)  # type: ignore[union-attr] # nobody else runs
    assert read_report(store, JobId("numbers"), clock).health is Health.UNKNOWN


def test_a_journal_that_is_damaged_is_a_problem_and_no_failure(tmp_path: Path) -> None:
    counting(count=10).run_in_process(str(tmp_path))
    for event in tmp_path.rglob("events/**/*.json"):
        event.write_bytes(b"{")
    report = report_job(str(tmp_path), "numbers")
    assert "journal cannot be read" in report.problems[-1]
    assert report.epoch is not None


def test_all_jobs_of_a_store_are_found_and_other_folders_are_not(tmp_path: Path) -> None:
    for name in ("b-job", "a-job"):
        counting(name, count=10).run_in_process(str(tmp_path))
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "part-0.parquet").write_bytes(b"x")
    assert list(find_jobs(to_store(str(tmp_path)))) == ["a-job", "b-job"]
    assert [report.job for report in report_jobs(str(tmp_path))] == ["a-job", "b-job"]


def test_a_job_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no job 'nobody'"):
        report_job(str(tmp_path), "nobody")
    assert report_jobs(str(tmp_path)) == ()


def test_looking_at_a_job_writes_nothing(tmp_path: Path) -> None:
    counting(count=10).run_in_process(str(tmp_path))
    before = sorted(path for path in tmp_path.rglob("*"))
    read_report(to_store(str(tmp_path)), JobId("numbers"), SystemClock())
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_key_with_many_of_the_rows_is_called_hot(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("numbers")
    rows = [{"user": "ada" if number % 3 else f"u{number}"} for number in range(300)]
    read = pipeline.read("in", pen.list_source(rows))
    read.filter(pl.col("user") != "").key_by("user").process("count", CountLate()).write(
        "out", pen.blackhole()
    )
    pipeline.run_in_process(str(tmp_path))
    (hot,) = report_job(str(tmp_path), "numbers").hot_keys
    assert (hot.operator, hot.key) == ("count", '"ada"')
    assert 0.5 < hot.share < 0.8
    assert '"ada" has ' in str(report_job(str(tmp_path), "numbers"))
