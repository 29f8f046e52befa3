"""Windows at the ends of time: years 1 and 9999, watermarks beyond them, offsets, time zones."""

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as pen
from penstock.core.watermark import MAX_MICROS, MIN_MICROS
from penstock.errors import PenstockError
from penstock.operators.windows.assignment import END_MICROS, FIRST_MICROS, WindowGrid
from penstock.testing import PAUSE, ScriptedSource, run_pipeline
from tests.builders.pipelines import a_list
from tests.builders.windows import ROWS, WindowJob

FIRST_DAY = datetime(1, 1, 1, tzinfo=UTC).replace(tzinfo=None)
LAST_DAY = datetime(9999, 12, 31, tzinfo=UTC).replace(tzinfo=None)
LAST_INSTANT = LAST_DAY + timedelta(days=1, microseconds=-1)
NOON = timedelta(hours=12)
WINDOWS = [pen.tumbling("7d"), pen.sliding("7d", "3d"), pen.session("3d")]


def a_row(at: datetime, key: int = 1) -> dict[str, Any]:
    return {"key": key, "at": at, "value": 1}


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_rows_whose_pane_begins_before_the_year_1_count_while_the_watermark_is_unknown(
    window: Any,
) -> None:
    p, out = pen.Pipeline("early"), a_list()
    schema = ROWS
    first = p.read("first", pen.list_source([a_row(FIRST_DAY)], schema), event_time="at")
    script = [PAUSE("60s"), [a_row(FIRST_DAY + timedelta(days=900))]]
    silent = p.read("silent", ScriptedSource(script, schema), event_time="at")
    counts = first.union(silent).key_by("key").window("w", window)
    counts.aggregate(n=pen.count(), first=pen.min("at")).write("out", out)
    run_pipeline(p)
    assert FIRST_DAY in [row["first"] for row in out.rows()]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo", "America/New_York", "+05:30"])
def test_a_window_that_ends_after_9999_or_starts_before_1_has_ends_that_python_holds(
    window: Any, zone: str | None
) -> None:
    schema = ROWS.set(1, pa.field("at", pa.timestamp("us", zone)))
    days = [FIRST_DAY + timedelta(days=1), LAST_DAY - timedelta(days=1)]
    rows = [a_row((day + NOON).replace(tzinfo=UTC)) for day in days]
    job = WindowJob(rows, window, schema=schema, watermark_delay="4000000d")
    run_pipeline(job.pipeline)
    ends = [
        instant.replace(tzinfo=None)
        for row in job.out.rows()
        for instant in (row["window_start"], row["window_end"], row["window_time"])
    ]
    assert min(ends).year == 1
    assert max(ends).year == 9999
    assert all(row["window_start"] < row["window_end"] for row in job.out.rows())
    assert sum(row["rows"] for row in job.out.rows()) >= 2


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_window_behind_a_window_at_the_end_of_9999_counts_it(window: Any) -> None:
    p, out, late = pen.Pipeline("twice"), a_list(), a_list()
    source = pen.list_source([a_row(LAST_DAY + NOON), a_row(LAST_INSTANT)], ROWS)
    rows = p.read("rows", source, event_time="at").key_by("key")
    weeks = rows.window("weeks", window).aggregate(n=pen.count())
    days = weeks.window("days", pen.tumbling("1d")).aggregate(n=pen.sum("n"))
    days.write("out", out)
    days.side_output(pen.LATE).write("late", late)
    run_pipeline(p)
    assert sum(row["n"] for row in out.rows()) >= 2
    assert {row["window_end"] for row in out.rows()} == {LAST_INSTANT}
    assert late.rows() == []


@pytest.mark.parametrize("watermark", [MIN_MICROS, FIRST_MICROS, END_MICROS, MAX_MICROS])
@given(width=st.integers(1, 10**17), slide=st.integers(1, 10**17))
def test_what_is_open_is_an_instant_whatever_the_watermark(
    watermark: int, width: int, slide: int
) -> None:
    grid = WindowGrid(width, slide)
    assert MIN_MICROS <= grid.open_from(watermark) <= END_MICROS


@given(
    width=st.integers(1, 10**17), slide=st.integers(1, 10**17), ahead=st.integers(0, 10**17)
)
def test_behind_the_last_instant_of_9999_every_window_has_closed(
    width: int, slide: int, ahead: int
) -> None:
    grid = WindowGrid(width, slide)
    last = grid.last_starts(END_MICROS - 1) + width
    closing = grid.closing(END_MICROS - 1, END_MICROS + ahead)
    if last > END_MICROS - 1:
        assert closing is not None
        assert closing[1] >= last
    assert grid.closing(END_MICROS + ahead, MAX_MICROS) is None
    assert grid.open_from(END_MICROS + ahead) == END_MICROS


@pytest.mark.parametrize("offset", ["-15m", timedelta(minutes=-15), -15 * 60 * 1_000_000])
def test_windows_can_be_shifted_back(offset: Any) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC).replace(tzinfo=None)
    job = WindowJob([a_row(noon)], pen.tumbling("1h", offset=offset))
    run_pipeline(job.pipeline)
    (row,) = job.out.rows()
    assert row["window_start"] == noon - timedelta(minutes=15)
    same = WindowJob([a_row(noon)], pen.tumbling("1h", offset="45m"))
    run_pipeline(same.pipeline)
    assert same.found() == job.found()


def test_a_width_cannot_be_negative() -> None:
    p = pen.Pipeline("p")
    rows = p.read("rows", pen.list_source([], ROWS), event_time="at")
    rows.window("w", pen.tumbling("-1h")).aggregate(n=pen.count()).write("o", a_list())
    with pytest.raises(PenstockError, match="'-1h' is not a valid width"):
        p.graph()


OFFSET = pa.schema([("key", pa.int64()), ("at", pa.timestamp("us", "+05:30"))])


def an_offset_stream() -> tuple[pen.Pipeline, Any]:
    p = pen.Pipeline("offset")
    return p, p.read(
        "rows", pen.list_source([{"key": 1, "at": 5}], OFFSET), event_time="at"
    )


def test_event_times_in_a_zone_given_as_an_offset_are_cut_into_windows() -> None:
    p, rows = an_offset_stream()
    out = a_list()
    rows.key_by("key").window("w", pen.tumbling("1s")).aggregate(n=pen.count()).write(
        "o", out
    )
    run_pipeline(p)
    (row,) = out.rows()
    assert row["window_start"] == datetime(1970, 1, 1, tzinfo=UTC)
    assert row["window_start"].utcoffset() == timedelta(hours=5, minutes=30)


@pytest.mark.parametrize(
    "step",
    [
        lambda rows: rows.filter(pl.col("at").is_not_null()),
        lambda rows: rows.with_columns(hour=pl.col("at").dt.hour()),
        lambda rows: rows.key_by("at").aggregate("a", n=pen.count()),
        lambda rows: rows.key_by("at").window("w", WINDOWS[0]).aggregate(n=pen.count()),
        lambda rows: rows.window("w", WINDOWS[0]).aggregate(n=pen.max("at")),
        lambda rows: rows.key_by("key").aggregate("a", ttl="1h", n=pen.count()),
    ],
    ids=["filter", "with_columns", "key_by", "windows by it", "max", "ttl"],
)
def test_what_polars_cannot_compute_of_a_zone_given_as_an_offset_is_refused_with_a_way_out(
    step: Any,
) -> None:
    p, rows = an_offset_stream()
    step(rows).write("o", a_list())
    with pytest.raises(PenstockError, match=r"'\+05:30' of .* is an offset.*'UTC'"):
        p.graph()
