"""Windows by processing time: which rows they hold, when they close, and what comes behind."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.clock import new_token
from penstock.errors import StateError
from penstock.runtime.driver.decide import JobStatus
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import EOF, PAUSE, LocalJob, ScriptedSource
from tests.builders.graphs import schema_of
from tests.builders.windows import Stamp, micros

NOON = datetime.fromisoformat("2026-01-01T12:00")
SCHEMA = schema_of(key=pa.string(), value=pa.int64())


def by_clock(width: str, slide: str | None = None) -> Any:
    """Return tumbling or sliding windows by processing time."""
    if slide is None:
        return pen.tumbling(width, time_domain="processing-time")
    return pen.sliding(width, slide, time_domain=pen.TimeDomain.PROCESSING_TIME)


class ClockJob:
    """A scripted job that starts at noon; its clock moves only while it waits."""

    def __init__(self, script: Sequence[Any], window: Any) -> None:
        self.pipeline = pen.Pipeline("by-clock", parallelism=2)
        self.rows: pen.Stream = self.pipeline.read("rows", ScriptedSource(script, SCHEMA))
        windows = self.rows.key_by("key").window("w", window)
        self.counts = windows.aggregate(n=pen.count(), total=pen.sum("value"))
        stamped = self.counts.process("stamp", Stamp())
        self.out = pen.list_sink(f"clock-{new_token()}")
        stamped.write("out", self.out)

    def start(self) -> LocalJob:
        return LocalJob(self.pipeline, now=NOON)

    def run(self) -> JobStatus:
        return self.start().run()

    def found(self) -> list[tuple[Any, ...]]:
        """Return key, first and last second, count and sum of all windows so far, in order."""
        rows = sorted(self.out.rows(), key=lambda row: (row["window_end"], row["key"]))
        return [
            (
                found["key"],
                (found["window_start"] - NOON).total_seconds(),
                (found["window_end"] - NOON).total_seconds(),
                found["n"],
                found["total"],
            )
            for found in rows
        ]

    def seconds(self) -> list[float]:
        """Return the second after noon at which each window came out, in the same order."""
        rows = sorted(self.out.rows(), key=lambda row: (row["window_end"], row["key"]))
        return [(found["instant"] - micros(NOON)) / 1_000_000 for found in rows]


def row(key: str, value: int) -> dict[str, Any]:
    return {"key": key, "value": value}


def test_a_row_is_in_the_window_in_which_its_epoch_began() -> None:
    rows = [row("a", 1), row("b", 2)]
    script = [rows, PAUSE("4s"), row("a", 3), PAUSE("7s"), row("a", 4)]
    job = ClockJob(script, by_clock("10s"))
    status = job.run()
    assert job.found() == [("a", 0, 10, 2, 4), ("b", 0, 10, 1, 2), ("a", 10, 20, 1, 4)]
    for found in job.out.rows():
        assert found["window_time"] == found["window_end"] - timedelta(microseconds=1)
    assert status.rows_aside == {}


def test_sliding_windows_hold_a_row_as_often_as_they_overlap() -> None:
    job = ClockJob([row("a", 1), PAUSE("5s"), row("a", 2)], by_clock("10s", "4s"))
    job.run()
    expected = [(-8, 2, 1, 1), (-4, 6, 2, 3), (0, 10, 2, 3), (4, 14, 1, 2)]
    assert job.found() == [("a", *window) for window in expected]


def test_windows_close_on_time_although_no_row_comes() -> None:
    """The driver wakes up for the end of a window: the source would pause for a minute."""
    script = [row("a", 1), PAUSE("1m"), row("b", 1)]
    job = ClockJob(script, by_clock("10s"))
    job.run()
    assert job.found() == [("a", 0, 10, 1, 1), ("b", 60, 70, 1, 1)]
    # The end of data closes what is open, before its time.
    assert job.seconds()[0] == 10
    assert 60 <= job.seconds()[1] < 70


def test_an_epoch_between_two_windows_counts_its_rows_as_outside() -> None:
    script = [row("a", 1), PAUSE("4s"), [row("a", 2), row("a", 3)]]
    job = ClockJob(script, by_clock("3s", "5s"))
    status = job.run()
    assert job.found() == [("a", 0, 3, 1, 1)]
    combiner = next(one for one in status.operators if one.operator == "w-combiner")
    assert combiner.counters == {"rows_outside_windows": 2}


def test_a_stop_closes_nothing_and_the_next_run_closes_what_ended_meanwhile() -> None:
    job = ClockJob([row("a", 1), EOF, row("a", 2)], by_clock("10s"))
    started = job.start()
    started.run()
    assert job.found() == []
    started.clock.advance("25s")
    started.run()
    assert job.found() == [("a", 0, 10, 1, 1), ("a", 20, 30, 1, 2)]


def test_a_driver_whose_clock_is_behind_goes_on_where_the_last_one_was() -> None:
    """Processing time never goes back: rows are in the window of the last epoch, each once."""
    script = [PAUSE("12s"), row("a", 1), EOF, row("a", 2), EOF, row("a", 4)]
    job = ClockJob(script, by_clock("10s"))
    started = job.start()
    started.run()
    started.clock.micros -= 600_000_000
    started.run()
    assert job.found() == []
    started.clock.micros += 610_000_000
    started.run()
    assert job.found() == [("a", 10, 20, 2, 3), ("a", 20, 30, 1, 4)]


def test_results_have_event_time_and_are_cut_into_windows_again() -> None:
    script = [row("a", 1), PAUSE("8s"), row("a", 2), PAUSE("12s"), row("b", 3)]
    job = ClockJob([*script, PAUSE("1m"), row("c", 4)], by_clock("5s"))
    per_minute = job.counts.window("per-minute", pen.tumbling("1m"))
    minutes = per_minute.aggregate(windows=pen.count(), rows=pen.sum("n"))
    out = pen.list_sink(f"minutes-{new_token()}")
    minutes.process("when", Stamp()).write("minutes", out)
    assert job.counts.schema.time_column == "window_time"
    job.run()
    found, last = sorted(out.rows(), key=lambda row: row["window_end"])
    assert (found["windows"], found["rows"]) == (3, 3)
    assert (last["windows"], last["rows"]) == (1, 1)
    # Event time goes on with the clock, so the minute is not held until the next row.
    assert found["instant"] == micros(NOON + timedelta(minutes=1))


def test_aggregates_of_equal_windows_are_joined() -> None:
    script = [row("a", 1), PAUSE("12s"), [row("a", 2), row("b", 3)], PAUSE("1m")]
    job = ClockJob(script, by_clock("10s"))
    others = job.rows.key_by("key").window("largest", by_clock("10s"))
    largest = others.aggregate(largest=pen.max("value"))
    out = pen.list_sink(f"joined-{new_token()}")
    job.counts.join("both", largest, on="key", window=pen.same_window()).write(
        "joined", out
    )
    job.run()
    found = [(row["key"], row["n"], row["largest"]) for row in out.rows()]
    assert sorted(found) == [("a", 1, 1), ("a", 1, 2), ("b", 1, 3)]


def test_windows_of_all_rows_take_no_key_and_no_column() -> None:
    job = ClockJob([[row("a", 1), row("b", 2)], PAUSE("20s"), row("b", 3)], by_clock("10s"))
    out = pen.list_sink(f"all-{new_token()}")
    job.rows.window("all", by_clock("10s")).aggregate(n=pen.count()).write("all-out", out)
    job.run()
    assert [found["n"] for found in out.rows()] == [2, 1]


def test_the_first_rows_of_windows_by_the_clock_are_ranked() -> None:
    script = [[row("a", 1), row("a", 7), row("b", 2)], PAUSE("20s"), row("a", 3)]
    job = ClockJob(script, by_clock("10s"))
    out = pen.list_sink(f"top-{new_token()}")
    windows = job.rows.key_by("key").window("best", by_clock("10s"))
    windows.top(1, by="value").write("top", out)
    job.run()
    found = sorted((row["window_start"], row["key"], row["value"]) for row in out.rows())
    assert [one[1:] for one in found] == [("a", 7), ("b", 2), ("a", 3)]


def test_a_window_cannot_change_its_clock_under_the_same_name() -> None:
    at = pa.schema([("at", pa.timestamp("us"))])
    rows = [{"at": NOON}]
    stores: list[ObjectStore] = []
    for domain in ("event-time", "processing-time"):
        pipeline = pen.Pipeline("changed")
        source = ScriptedSource([rows, EOF, rows], at, time_column="at")
        window = pen.tumbling("10s", time_domain=domain)
        counts = pipeline.read("rows", source).window("w", window).aggregate(n=pen.count())
        counts.write("out", pen.blackhole())
        job = LocalJob(pipeline, store=stores[0] if stores else None)
        stores.append(job.store)
        if domain == "event-time":
            job.run()
            continue
        with pytest.raises(StateError, match="expired by EVENT_TIME"):
            job.run()
