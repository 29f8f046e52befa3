"""Progress shows what a job does, in a log and on a terminal, and never gets in its way."""

import datetime as dt
import io
from dataclasses import replace
from pathlib import Path

import pytest

import penstock as pen
from penstock.console import Progress
from penstock.core.clock import ManualClock
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.decide import JobPhase, JobStatus, OperatorStatus
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.progress import EpochProgress
from penstock.testing import LocalJob

SECOND = 1_000_000
START = JobStatus("shop", JobPhase.STARTING)


def after_epoch(number: int, *, phase: JobPhase = JobPhase.RUNNING) -> JobStatus:
    rows = number * 1_000
    operators = (
        OperatorStatus("count", "process", 1, rows, state_bytes=2_048, state_files=2),
        OperatorStatus("out", "stdout", 1, rows // 2, watermark_micros=0, is_sink=True),
    )
    last = EpochProgress(number, True, 0, 500_000, 1_000, 0, 0, 0)
    return JobStatus(
        *("shop", phase, 1, number, number, number, rows), last=last, operators=operators
    )


def lines_of(*statuses: JobStatus, seconds_between: float = 1) -> list[str]:
    clock, file = ManualClock(), io.StringIO()
    progress = Progress(file=file, clock=clock)
    for status in statuses:
        progress(status)
        clock.advance(int(seconds_between * SECOND))
    return file.getvalue().splitlines()


def test_a_log_gets_a_line_at_the_start_now_and_then_and_at_the_end() -> None:
    lines = lines_of(START, *(after_epoch(n) for n in range(1, 7)),
                     after_epoch(6, phase=JobPhase.FINISHED))  # fmt: skip
    assert lines == [
        "shop: starting",
        "shop: running · epoch 2 · 2,000 rows read (1,000/s) · 1,000 written · watermark 1970-01-01 00:00:00.0 · state 2.0 KiB",
        "shop: running · epoch 4 · 4,000 rows read (1,000/s) · 2,000 written · watermark 1970-01-01 00:00:00.0 · state 2.0 KiB",
        "shop: running · epoch 6 · 6,000 rows read (1,000/s) · 3,000 written · watermark 1970-01-01 00:00:00.0 · state 2.0 KiB",
        "shop: finished · epoch 6 · 6,000 rows read (1,000/s) · 3,000 written · watermark 1970-01-01 00:00:00.0 · state 2.0 KiB",
    ]


def test_phases_that_come_with_every_epoch_are_no_news() -> None:
    epoch = after_epoch(1)
    waiting = replace(epoch, phase=JobPhase.WAITING)
    assert len(lines_of(START, epoch, waiting, epoch, waiting, seconds_between=60)) == 2


def test_trouble_is_shown_at_once() -> None:
    epoch = after_epoch(1)
    trouble = replace(
        epoch, phase=JobPhase.RESTARTING, restarts=3, error="the store is gone\nmore"
    )
    lines = lines_of(START, epoch, trouble, seconds_between=0.1)
    assert lines[-1].startswith("shop: restarting · epoch 1")
    assert lines[-1].endswith("· 3 restarts · the store is gone")


@pytest.mark.parametrize("text", ["no [column] in [/data/x]", "", "[red]"])
@pytest.mark.parametrize("is_live", [False, True])
def test_an_error_is_shown_as_it_is_whatever_its_text(text: str, is_live: bool) -> None:
    shown = io.StringIO()
    progress = Progress(file=shown, is_live=is_live)
    progress(JobStatus("shop", JobPhase.STARTING))
    progress(JobStatus("shop", JobPhase.FAILED, error=text))
    assert "failed" in shown.getvalue()
    assert text in shown.getvalue()


def test_a_terminal_gets_a_block_that_is_redrawn_and_stays_at_the_end() -> None:
    clock, file = ManualClock(), io.StringIO()
    progress = Progress(file=file, clock=clock, is_live=True)
    progress(START)
    clock.advance(2 * SECOND)
    progress(after_epoch(4))
    progress(after_epoch(4, phase=JobPhase.FINISHED))
    written = file.getvalue()
    assert "\x1b[?25l" in written
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    last = written[written.rindex("finished") :]
    for figure in ("epoch 4", "4,000", "2,000 rows/s", "1970-01-01 00:00:00.0", "2.0 KiB", "in 2 files"):  # fmt: skip
        assert figure in last


@pytest.mark.parametrize("is_live", [True, False])
def test_a_display_that_breaks_does_not_break_the_job(
    tmp_path: Path, is_live: bool
) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    pipeline = pen.Pipeline("shop")
    pipeline.read("numbers", pen.impulse(count=5)).write("out", pen.blackhole())
    status = pipeline.run_in_process(
        str(tmp_path), on_status=Progress(file=Gone(), is_live=is_live)
    )
    assert status.phase is pen.JobPhase.FINISHED


def test_a_real_job_is_shown_from_start_to_end(tmp_path: Path) -> None:
    file = io.StringIO()
    pipeline = pen.Pipeline("shop")
    pipeline.read("numbers", pen.impulse(count=50)).write("out", pen.blackhole())
    pipeline.run_in_process(str(tmp_path), on_status=pen.Progress(file=file))
    lines = file.getvalue().splitlines()
    assert lines[0] == "shop: starting"
    assert lines[-1].startswith("shop: finished · epoch")
    assert " · 50 rows read (" in lines[-1]
    assert " · 50 written · " in lines[-1]


def with_rows_aside(status: JobStatus, late: int, bad: int) -> JobStatus:
    aside = OperatorStatus("w", "window", 1, rows_emitted={"late": late, "bad": bad})
    return replace(status, operators=(*status.operators, aside))


def test_late_and_bad_rows_are_shown_where_there_are_any() -> None:
    line = lines_of(START, with_rows_aside(after_epoch(2), 3, 1_000), seconds_between=3)[-1]
    assert " · 1,000 written · 3 late · 1,000 bad · watermark" in line
    assert "late" not in lines_of(START, after_epoch(2), seconds_between=3)[-1]
    clock, file = ManualClock(), io.StringIO()
    progress = Progress(file=file, clock=clock, is_live=True)
    progress(with_rows_aside(after_epoch(4, phase=JobPhase.FINISHED), 7, 0))
    assert "rows late" in file.getvalue()
    assert "rows bad" not in file.getvalue()


def test_an_idle_job_writes_no_lines() -> None:
    """Its epochs are run, and even published if time alone changes something."""
    idle = [replace(after_epoch(1), epochs_run=n, epoch=n) for n in range(1, 9)]
    lines = lines_of(START, *idle, after_epoch(12), seconds_between=60)
    assert [line.partition(" · ")[0] for line in lines] == ["shop: starting"] + [
        "shop: running"
    ] * 2


def test_what_takes_its_time_is_shown_at_once() -> None:
    starting = replace(START, doing="starting Spark…")
    assert lines_of(starting, START)[0] == "shop: starting Spark…"


def test_a_printed_status_is_read_at_a_glance() -> None:
    status = with_rows_aside(after_epoch(3), 2, 0)
    assert str(replace(status, restarts=1, error="the store is gone\nmore")) == (
        "job shop: running, epoch 3\n"
        "  rows       3,000 read, 1,500 written, 2 late\n"
        "  watermark  1970-01-01 00:00:00.0\n"
        "  state      2.0 KiB in 2 files\n"
        "  restarts   1\n"
        "  error      the store is gone\n"
        "             more"
    )
    assert str(START) == "job shop: starting"


LATE_ROWS = [
    {"at": dt.datetime(2026, 1, 1, hour, tzinfo=dt.UTC)} for hour in (1, 5, 2, 9, 3)
]


@pytest.mark.parametrize("is_read", [False, True])
def test_late_rows_that_nothing_reads_are_warned_about_once(
    is_read: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = pen.Pipeline("shop")
    source = pen.list_source(LATE_ROWS)
    rows = pipeline.read("rows", source, event_time="at", watermark_delay="0s")
    counts = rows.window("hourly", pen.tumbling("1h")).aggregate(n=pen.count())
    counts.write("out", pen.blackhole())
    if is_read:
        counts.side_output(pen.LATE).write("late", pen.blackhole())
    one_by_one = DriverSettings(budget=SourceBudget(rows=1), adapts_budget=False)
    status = LocalJob(pipeline, settings=one_by_one).run()
    assert status.rows_aside == {"late": 2}
    warned = [text for text in caplog.messages if "dropped" in text]
    expected = (
        "step 'hourly' of job 'shop' has dropped 1 row that came late, and nothing reads them: "
        "read them with side_output(pen.LATE) of its stream. More are only counted"
    )
    assert warned == ([] if is_read else [expected])


def test_a_source_that_is_behind_says_by_how_much() -> None:
    source = OperatorStatus("in", "kafka", 1, lag_rows=1_200, lag_micros=75 * SECOND)
    behind = replace(after_epoch(1), operators=(source,))
    (line,) = lines_of(behind)
    assert "behind by 1,200 rows (1:15)" in line
    assert "behind" in str(behind)
    there = replace(after_epoch(1), operators=(replace(source, lag_rows=0, lag_micros=0),))
    assert "behind" not in str(there) + lines_of(there)[0]
