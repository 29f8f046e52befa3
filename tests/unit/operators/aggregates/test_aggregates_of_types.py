"""Aggregates that keep values take every type of column that has an order, through state and back."""

import datetime as dt
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.aggregates.frames import columns_to_frame, to_batch

DAY = dt.date(2026, 1, 1)
NOON = dt.datetime(2026, 1, 1, 12)  # noqa: DTZ001 (instants have no zone here)
UTC_NOON = NOON.replace(tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
TYPES: list[tuple[Any, Any, Any]] = [
    *((kind, 1, 100) for kind in (pa.int8(), pa.int32(), pa.int64(), pa.uint64())),
    (pa.float32(), 0.5, 1.5),
    (pa.float64(), -0.5, 1.5),
    (pa.decimal128(9, 2), Decimal("-1.25"), Decimal("1.25")),
    (pa.decimal128(38, 4), Decimal("-1.2500"), Decimal("1.2500")),
    (pa.string(), "", "ä"),
    (pa.large_string(), "a", "b" * 200),
    (pa.dictionary(pa.int32(), pa.string()), "a", "b"),
    (pa.binary(), b"", b"\x00\xff"),
    (pa.bool_(), False, True),
    (pa.date32(), DAY, DAY.replace(day=2)),
    (pa.time64("us"), dt.time(1), dt.time(2)),
    (pa.timestamp("s"), NOON, NOON + SECOND),
    (pa.timestamp("us", "UTC"), UTC_NOON, UTC_NOON + SECOND),
    (pa.duration("ms"), SECOND, 2 * SECOND),
]
"""A type, and two values of it in order."""
EVERY = {
    "first": pen.first("x", order_by="place"),
    "arg_max": pen.arg_max("x", "x"),
    "discrete": pen.quantile("x", [0.0, 1.0], discrete=True),
    "list": pen.collect_list("x", order_by="place"),
    "by_itself": pen.collect_list("place", order_by="x"),
    "set": pen.collect_set("x"),
    "distinct": pen.approx_distinct("x"),
    "top": pen.approx_top_k("x", 5, by="place"),
    "top_by": pen.approx_top_k("place", 1, by="x"),
    "function": pen.aggregate_rows(
        lambda rows: rows["x"].n_unique(), returns=pa.int64(), columns=["x", "place"]
    ),
}


@pytest.mark.parametrize(("kind", "low", "high"), TYPES, ids=lambda value: str(value)[:20])
def test_values_of_every_type_are_kept_and_given_back(
    kind: Any, low: Any, high: Any
) -> None:
    columns: dict[str, Any] = {"k": pa.int8(), "x": kind, "place": pa.int64()}
    stream = pen.StreamSchema(pa.schema(columns))
    plan = compile_aggregates("step", EVERY, stream)
    stored = pa.schema([stream.arrow.field("k"), *plan.partials])
    pieces: list[pl.DataFrame] = []
    for piece in ([high, None, low], [high, None]):
        places = [len(pieces) * 3 + at for at in range(len(piece))]
        arrays = [pa.array([0] * len(piece), pa.int8()), pa.array(piece, kind), places]
        batch = pa.RecordBatch.from_arrays(
            [*arrays[:2], pa.array(places, pa.int64())], schema=stream.arrow
        )
        partials = plan.partials_of(columns_to_frame([batch], stream.arrow.names), ["k"])
        pieces.append(columns_to_frame([to_batch(partials, stored)], stored.names))
    results = plan.results_of(plan.merge(pl.concat(pieces), ["k"]), ())
    (found,) = to_batch(results, pa.schema(list(plan.results))).to_pylist()
    assert found == {
        "first": high,
        "arg_max": high,
        "discrete": [low, high],
        "list": [high, low, high],
        "by_itself": [2, 0, 3, 1, 4],
        "set": [low, high],
        "distinct": 2,
        "top": [{"value": high, "count": 2}, {"value": low, "count": 1}],
        "top_by": [{"value": 0, "count": 1}],
        "function": 3,
    }


def test_nested_values_reach_a_function_over_rows_in_an_order_of_their_own() -> None:
    columns: dict[str, Any] = {
        "tags": pa.list_(pa.string()),
        "point": pa.struct([("x", pa.int64()), ("y", pa.float64())]),
    }
    stream = pen.StreamSchema(pa.schema(columns))
    rows = [
        {"tags": [str(n), None], "point": {"x": n, "y": 0.5} if n % 3 else None}
        for n in range(10)
    ] + [{"tags": None, "point": None}]
    listed = pen.aggregate_rows(
        lambda frame: str(frame.rows()), returns=pa.string(), columns=["tags", "point"]
    )
    plan = compile_aggregates("step", {"rows": listed}, stream)

    def result(given: list[dict[str, Any]]) -> str:
        batch = pa.RecordBatch.from_pylist(given, stream.arrow)
        partials = plan.partials_of(columns_to_frame([batch], stream.arrow.names), [])
        text: str = plan.results_of(partials, ()).item()
        return text

    assert result(rows) == result(rows[::-1])
    assert all(f"['{n}', None]" in result(rows) for n in range(10))


@pytest.mark.parametrize(
    ("aggregate", "text"),
    [
        (pen.median("t"), "median(t): column 't' is string, but it takes numbers"),
        (pen.quantile("t", 0.5), "it takes numbers; others have discrete quantiles"),
        (pen.bool_and("n"), "column 'n' is int64, but it takes booleans"),
        (pen.bit_or("t"), "column 't' is string, but it takes integers"),
        (pen.corr("n", "t"), "corr(n, t): column 't' is string, but it takes numbers"),
        (pen.string_agg("n"), "column 'n' is int64, but it takes text: cast it"),
        (pen.collect_set("l"), "column 'l' is list<item: int64>, but it takes numbers"),
        (pen.arg_min("n", "m"), "there is no column 'm'"),
        (pen.approx_top_k("n", by="l"), "column 'l' is list<item: int64>"),
        (
            pen.aggregate_rows(len, returns=pa.int64(), columns="m"),
            "aggregate_rows(len, columns=['m']): there is no column 'm'",
        ),
    ],
)
def test_columns_that_do_not_fit_are_named(aggregate: pen.Aggregate, text: str) -> None:
    columns: dict[str, Any] = {
        "n": pa.int64(),
        "t": pa.string(),
        "l": pa.list_(pa.int64()),
        "at": pa.timestamp("us"),
    }
    stream = pen.StreamSchema(pa.schema(columns), "at")
    with pytest.raises(pen.PenstockError) as caught:
        compile_aggregates("step", {"r": aggregate}, stream)
    assert text in str(caught.value)
