"""The demo's job finds what batch finds, and its proof would notice if it did not."""

import io
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

import penstock as pen
from examples.demo import __main__ as demo
from examples.demo import run_job
from examples.demo.job import (
    TOP,
    WINDOWS_PER_BID,
    build,
    read_output,
    recompute,
    rows_of,
)
from examples.demo.proof import compare
from tests.architecture.project import ROOT

EVENTS = 20_000
DIES = """
import time
from dataclasses import replace
from examples.demo.run_job import SuddenDeath
from penstock.runtime.driver.decide import JobPhase, JobStatus
from penstock.runtime.driver.progress import EpochProgress
status = JobStatus("job", JobPhase.RUNNING, last=EpochProgress(1, True, 0, 1_000, 9, 0, 0, 0))
death = SuddenDeath(10, lambda status: print(status.rows_read, flush=True))
death(status)
death(replace(status, rows_read=10))
time.sleep(60)
print("still here", flush=True)
"""
"""The sleep is cut short by death; only a failure would wait for it."""


def answers(written: pl.DataFrame, events: int = EVENTS) -> list[bool]:
    return [found.is_equal for found in compare(written, recompute(events))]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """Return what the job found, run in this process."""
    folder = tmp_path_factory.mktemp("demo")
    status = build(EVENTS, folder / "parquet").run_in_process(str(folder / "checkpoints"))
    assert status.phase is pen.JobPhase.FINISHED
    assert status.rows_read == rows_of(EVENTS)
    return read_output(folder / "parquet")


def test_the_job_finds_what_batch_finds(written: pl.DataFrame) -> None:
    assert answers(written) == [True] * 5
    assert written["bids"].sum() == rows_of(EVENTS) * WINDOWS_PER_BID


@pytest.mark.slow
def test_windows_close_while_bids_come_in(tmp_path: Path) -> None:
    """Else a crash half-way would lose nothing because there was nothing yet."""
    output = tmp_path / "parquet"
    events = 2_400_000
    build(events, output, parallelism=1).run_in_process(str(tmp_path / "checkpoints"))
    files = pen.committed_files(str(output))
    assert len({file.epoch for file in files}) > 1
    assert answers(read_output(output), events) == [True] * 5


def test_the_hottest_come_first_and_of_equal_ones_the_last(written: pl.DataFrame) -> None:
    for window in written["hottest"].to_list():
        ranked = [(item["bids"], item["auction"]) for item in window]
        assert ranked == sorted(ranked, reverse=True)
        assert len(ranked) == TOP


def test_a_window_that_is_lost_is_noticed(written: pl.DataFrame) -> None:
    assert answers(written[1:]) == [False] * 5


def test_a_window_that_is_written_twice_is_noticed(written: pl.DataFrame) -> None:
    assert answers(pl.concat([written, written[2:3]])) == [False] * 5


def test_a_bid_that_is_counted_in_another_window_is_noticed(written: pl.DataFrame) -> None:
    """Sums alone would not see it."""
    row = pl.int_range(pl.len())
    moved = written.with_columns(
        bids=pl.col("bids") + (row == 3).cast(pl.Int64) - (row == 4).cast(pl.Int64)
    )
    assert answers(moved) == [True, False, True, True, True]


def test_another_ranking_with_as_many_bids_is_noticed(written: pl.DataFrame) -> None:
    turned = written.with_columns(hottest=pl.col("hottest").list.reverse())
    assert answers(turned) == [True, True, True, True, False]


@pytest.mark.slow
def test_death_comes_by_sigkill_once_enough_was_read() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIES],
        cwd=ROOT,
        process_group=0,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout == "0\n10\n"


def test_nobody_else_s_process_group_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getpgrp", lambda: 1)
    with pytest.raises(SystemExit) as raised:
        run_job.run([str(tmp_path), "--events", "10", "--die-after", "5"])
    assert raised.value.code == 2
    assert "a process group of its own" in capsys.readouterr().err


def test_what_an_earlier_demo_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("parquet", "checkpoints", "tmp", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    demo.clean(tmp_path)
    kept = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")]
    assert sorted(kept) == ["mine", "mine/file", "tmp"]


def test_a_wrong_answer_is_shown_as_one(written: pl.DataFrame) -> None:
    console = Console(record=True, width=100, file=io.StringIO())
    demo.tell_of_proof(console, compare(written[1:], recompute(EVENTS)))
    assert "1 differ" in console.export_text()


def test_the_hottest_window_of_all_is_shown(written: pl.DataFrame) -> None:
    console = Console(record=True, width=100, file=io.StringIO())
    demo.tell_of_hot_items(console, written)
    most = max(window[0]["bids"] for window in written["hottest"].to_list())
    assert f"({most} bids)" in console.export_text()
