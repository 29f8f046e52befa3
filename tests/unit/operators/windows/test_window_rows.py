"""What windows do with keys, times and rows that are not as usual."""

from datetime import date, datetime, time, timedelta
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import penstock as pen
from penstock.core.schema import StreamSchema
from penstock.errors import PenstockError
from penstock.operators import EventTime
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.windows.aggregation import WindowAggregation
from penstock.operators.windows.assignment import WindowGrid
from penstock.operators.windows.panes import BUFFERED_ROWS, pane_window_specs
from penstock.testing import OperatorHarness, run_pipeline
from tests.builders.pipelines import a_list
from tests.builders.windows import ROWS, SECOND, WindowJob, batch_windows

WINDOWS = [pen.tumbling("10s"), pen.sliding("10s", "4s"), pen.session("3s")]
NOON = time(12)


def row(key: Any, second: float, value: int = 1) -> dict[str, Any]:
    return {"key": key, "at": int(second * SECOND), "value": value}


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_null_nan_and_both_zeros_are_keys_as_in_sql(window: Any, parallelism: int) -> None:
    schema = ROWS.set(0, pa.field("key", pa.float64()))
    other_nan = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
    keys = [None, float("nan"), 0.0, 1.5, None, other_nan, -0.0, 1.5]
    job = WindowJob(
        [row(key, 1) for key in keys], window, schema=schema, parallelism=parallelism
    )
    run_pipeline(job.pipeline)
    per_key = 3 if "sliding" in str(window) else 1
    found = job.found()
    assert [rows for *_, rows, _ in found] == [2] * 4 * per_key
    assert {repr(key).lstrip("-") for key, *_ in found} == {"None", "nan", "0.0", "1.5"}


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["a", "ä", None]),
        (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a"]),
        (pa.time32("ms"), [0, 1, 1]),
        (pa.binary(2), [b"ab", b"cd", b"ab"]),
        (pa.decimal128(10, 2), [1, 2, 2]),
        (pa.timestamp("s", "Europe/Berlin"), [0, 1, 1]),
        (pa.bool_(), [True, False, True]),
    ],
    ids=str,
)
def test_keys_of_any_type_come_out_as_they_went_in(
    window: Any, kind: Any, values: list[Any]
) -> None:
    schema = ROWS.set(0, pa.field("key", kind))
    job = WindowJob([row(key, 1) for key in values], window, schema=schema)
    run_pipeline(job.pipeline)
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    assert job.results.schema.arrow.field("key").type == plain
    expected = set(pa.array(values, plain).to_pylist())
    assert {found["key"] for found in job.out.rows()} == expected


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_without_a_key_all_rows_are_one_group(window: Any) -> None:
    rows = [row(key, key / 2, key) for key in range(20)]
    job = WindowJob(rows, window, keyed=False, parallelism=2, splits=2)
    run_pipeline(job.pipeline)
    assert "key" not in job.results.schema.arrow.names
    if "session" in str(window):
        assert job.found() == [(None, 0, int(12.5 * SECOND), 20, sum(range(20)))]
    else:
        slide = 4 if "sliding" in str(window) else 10
        alike = [{**one, "key": None} for one in rows]
        assert job.found() == sorted(
            batch_windows(alike, 10 * SECOND, slide * SECOND), key=repr
        )


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_rows_can_be_counted_without_looking_at_any_column(window: Any) -> None:
    p = pen.Pipeline("count")
    rows = p.read("rows", pen.list_source([row(1, 1), row(2, 1)], ROWS), event_time="at")
    out = a_list()
    rows.window("w", window).aggregate(n=pen.count()).write("out", out)
    run_pipeline(p)
    assert {found["n"] for found in out.rows()} == {2}


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_rows_without_a_usable_time_fail_the_job_or_go_aside(window: Any) -> None:
    def spoil(stream: Any) -> Any:
        return stream.map_batches(_spoiled)

    for on_bad in ("fail", "divert"):
        p = pen.Pipeline("bad")
        rows = p.read(
            "rows", pen.list_source([row(1, 1), row(1, 2, -1)], ROWS), event_time="at"
        )
        counts = (spoil(rows).key_by("key").window("w", window, on_bad=on_bad)).aggregate(
            n=pen.count()
        )
        out, bad = a_list(), a_list()
        counts.write("out", out)
        if on_bad == "fail":
            with pytest.raises(PenstockError, match="1 of 2 rows have an event time"):
                run_pipeline(p)
        else:
            counts.side_output(pen.BAD).write("bad", bad)
            run_pipeline(p)
            assert bad.rows() == [{"key": 1, "at": None, "value": -1}]
            assert {found["n"] for found in out.rows()} == {1}


def _spoiled(batch: pa.RecordBatch) -> pa.RecordBatch:
    values: list[Any] = batch.column("value").to_pylist()
    times = batch.column("at").to_pylist()
    spoiled = [
        None if value < 0 else time for value, time in zip(values, times, strict=True)
    ]
    return batch.set_column(1, "at", pa.array(spoiled, pa.timestamp("us")))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_years_1_and_9999_are_ordinary_and_empty_time_costs_nothing(
    window: Any,
) -> None:
    days = [date(1, 1, 2), date(2026, 1, 1), date(9999, 12, 30)]
    rows = [{"key": 1, "at": datetime.combine(day, NOON), "value": 1} for day in days]
    job = WindowJob(rows, window, watermark_delay="4000000d")
    run_pipeline(job.pipeline)
    per_row = len(job.out.rows()) // 3
    found = sorted(found["window_start"].date() for found in job.out.rows())
    assert found == [day for day in days for _ in range(per_row)]
    assert job.late.rows() == []


def test_results_can_be_cut_into_windows_again() -> None:
    p = pen.Pipeline("twice")
    rows = [row(1, second) for second in range(60)]
    source = pen.list_source(rows, ROWS)
    seconds = p.read("rows", source, event_time="at").key_by("key")
    tens = seconds.window("tens", pen.tumbling("10s")).aggregate(n=pen.count())
    thirties = tens.window("thirties", pen.tumbling("30s")).aggregate(
        windows=pen.count(), n=pen.sum("n")
    )
    out = a_list()
    thirties.write("out", out)
    run_pipeline(p)
    found = sorted(out.rows(), key=lambda row: row["window_start"])
    assert [(f["windows"], f["n"]) for f in found] == [(3, 30), (3, 30)]
    assert found[0]["window_time"] == found[0]["window_end"] - timedelta(microseconds=1)


def test_a_row_a_gap_behind_another_is_in_the_same_session_and_a_later_one_is_not() -> None:
    apart = 3 + 1e-6
    rows = [row(1, 0), row(1, 3), row(2, 0), row(2, apart)]
    job = WindowJob(rows, pen.session("3s"))
    run_pipeline(job.pipeline)
    assert [(key, end - start, n) for key, start, end, n, _ in job.found()] == [
        (1, 6 * SECOND, 2),
        (2, 3 * SECOND, 1),
        (2, 3 * SECOND, 1),
    ]


@pytest.mark.parametrize("count", [50_000, BUFFERED_ROWS + 50_000])
@pytest.mark.parametrize("slide", [10, 4, 25], ids=["tumbling", "sliding", "gaps"])
def test_many_rows_are_grouped_in_passes_to_the_same_result(slide: int, count: int) -> None:
    draw = np.random.default_rng(slide)
    # Two panes hold most rows, and some rows are scattered far and wide.
    seconds = np.where(draw.random(count) < 0.01, draw.integers(-999, 999, count), 0)
    rows = pl.DataFrame(
        {
            "key": draw.integers(0, 1_000, count),
            "at": (seconds + draw.random(count) * 15) * SECOND,
            "value": draw.integers(-9, 9, count),
        }
    ).cast({"at": pl.Int64})
    stream = StreamSchema(ROWS, "at", ("key",))
    aggregates = {"rows": pen.count(), "total": pen.sum("value")}
    grid = WindowGrid(10 * SECOND, slide * SECOND)
    specs = pane_window_specs(
        grid,
        WindowAggregation(stream, compile_aggregates("w", aggregates, stream)),
        consumer="operator-2",
        shown="windows",
        diverts_bad=False,
    )
    with OperatorHarness(specs, stream) as harness:
        harness.push(rows.with_columns(pl.col("at").cast(pl.Datetime("us"))))
        harness.watermark(EventTime(2 * SECOND))
        harness.barrier()
        harness.end()
        found = pl.DataFrame(pl.from_arrow(harness.table()))
    assert_frame_equal(
        found.select("key", pl.col("window_start").cast(pl.Int64), "rows", "total"),
        _all_windows(rows, grid),
        check_row_order=False,
    )


def _all_windows(rows: pl.DataFrame, grid: WindowGrid) -> pl.DataFrame:
    """Compute windows as a batch: every row once for each step back that still holds it."""
    last = pl.col("at") // grid.slide_micros * grid.slide_micros
    steps = -(-grid.width_micros // grid.slide_micros)
    each = [
        rows.with_columns(window_start=last - step * grid.slide_micros)
        for step in range(steps)
    ]
    inside = pl.col("at") - pl.col("window_start") < grid.width_micros
    return (
        pl.concat(each)
        .filter(inside)
        .group_by("key", "window_start")
        .agg(rows=pl.len().cast(pl.Int64), total=pl.col("value").sum())
    )
