"""Rankings in windows: emitted once when they close, late rows aside, any kind of column."""

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.clock import new_token
from penstock.errors import SchemaError, UserError
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import LocalJob

_COLUMNS: dict[str, Any] = {
    "key": pa.dictionary(pa.int8(), pa.string()),
    "price": pa.decimal128(10, 2),
    "tags": pa.list_(pa.string()),
    "where": pa.struct([pa.field("x", pa.int32())]),
    "at": pa.timestamp("s", "UTC"),
}


def a_row(second: int, price: int | None, key: str = "k") -> dict[str, Any]:
    return {
        "key": key,
        "price": price,
        "tags": ["a", None],
        "where": {"x": second},
        "at": second,
    }


def a_stream(*rows: dict[str, Any], **options: Any) -> tuple[pen.Pipeline, Any]:
    pipeline = pen.Pipeline("p")
    source = pen.list_source(list(rows), pa.schema(_COLUMNS))
    return pipeline, pipeline.read("rows", source, event_time="at", **options)


@pytest.mark.parametrize(
    "window", [pen.tumbling("10s"), pen.sliding("10s", "10s"), pen.session("2s")], ids=str
)
@pytest.mark.parametrize("is_keyed", [True, False])
def test_columns_of_all_kinds_come_through_windows(window: Any, *, is_keyed: bool) -> None:
    rows = [a_row(1, 5), a_row(2, 7), a_row(3, None), a_row(4, 6)]
    pipeline, stream = a_stream(*rows)
    out = pen.list_sink(f"out-{new_token()}")
    cut = (stream.key_by("key") if is_keyed else stream).window("w", window)
    cut.top(2, by="price", rank="place").write("out", out)
    pipeline.run_in_process("memory:")
    found = out.rows()
    assert [(row["place"], row["where"]["x"]) for row in found] == [(1, 2), (2, 4)]
    assert [row["tags"] for row in found] == [["a", None]] * 2
    assert [row["key"] for row in found] == ["k", "k"]


def test_late_rows_are_in_the_side_output() -> None:
    pipeline, stream = a_stream(a_row(1, 5), a_row(40, 7), a_row(2, 9))
    out, late = (pen.list_sink(f"{name}-{new_token()}") for name in ("out", "late"))
    top = stream.window("w", pen.tumbling("10s")).top(1, by="price")
    top.write("out", out)
    top.side_output(pen.LATE).write("late", late)
    one_row = DriverSettings(budget=SourceBudget(rows=1), adapts_budget=False)
    LocalJob(pipeline, settings=one_row).run()
    assert [row["where"]["x"] for row in out.rows()] == [1, 40]
    assert [row["where"]["x"] for row in late.rows()] == [2]


def test_rows_of_closed_windows_are_cut_into_windows_again() -> None:
    _, stream = a_stream(a_row(1, 5))
    top = stream.window("w", pen.tumbling("10s")).top(1, by="price")
    assert top.schema.time_column == "window_time"
    assert not top.schema.is_changelog


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"n": 1, "by": "prize"}, "did you mean 'price'"),
        ({"n": 0, "by": "price"}, "a whole number from 1"),
        ({"n": 1, "by": "price", "rank": "at"}, "is a column of the rows already"),
        ({"n": 1, "by": "price", "rank": "window_end"}, "top in windows adds"),
    ],
)
def test_what_cannot_be_ranked_in_windows_is_refused(
    options: dict[str, Any], problem: str
) -> None:
    pipeline, stream = a_stream(a_row(1, 5))
    windows = stream.window("w", pen.tumbling("10s"))
    windows.top(**options).write("out", pen.blackhole())
    with pytest.raises(UserError, match=problem):
        pipeline.graph()


def test_a_column_with_the_name_of_one_that_windows_add_is_refused() -> None:
    pipeline, stream = a_stream(a_row(1, 5))
    renamed = stream.with_columns(window_end=pl.col("price"))
    windows = renamed.window("w", pen.tumbling("10s"))
    windows.top(1, by="price").write("out", pen.blackhole())
    with pytest.raises(SchemaError, match=r"window_end.*rename them"):
        pipeline.graph()


def test_rows_that_are_all_key_are_refused() -> None:
    pipeline, stream = a_stream(a_row(1, 5))
    keyed = stream.select("price", "at").key_by("price", "at")
    keyed.window("w", pen.tumbling("10s")).top(1, by="price").write("out", pen.blackhole())
    with pytest.raises(SchemaError, match="all columns are the key"):
        pipeline.graph()
