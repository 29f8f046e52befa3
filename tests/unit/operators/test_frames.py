"""Rows that go through Polars come back in the types that the stream declares."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd  # type: ignore[import-untyped]  # it has no stubs here
import polars as pl
import pyarrow as pa
import pytest

from penstock.core.schema import StreamSchema
from penstock.errors import PenstockError, SchemaError
from penstock.operators.stateless import flat_map_spec, map_batches_spec
from tests.builders.chain_rig import run_stateless

DAY = dt.date(2024, 1, 2)
NOON = dt.datetime(2024, 1, 2, 12, tzinfo=dt.UTC).replace(tzinfo=None)
LACKING: list[tuple[Any, Any]] = [
    (pa.timestamp("s"), NOON),
    (pa.timestamp("s", "Europe/Berlin"), NOON),
    (pa.timestamp("us", "+01:00"), NOON),
    (pa.date64(), DAY),
    (pa.time32("s"), dt.time(12)),
    (pa.time32("ms"), dt.time(12)),
    (pa.time64("us"), dt.time(12)),
    (pa.duration("s"), dt.timedelta(hours=1)),
    (pa.dictionary(pa.int8(), pa.string()), "a"),
    (pa.dictionary(pa.int32(), pa.int64()), 5),
    (pa.binary(4), b"abcd"),
    (pa.decimal128(5, 2), Decimal("1.50")),
    (pa.struct([pa.field("at", pa.timestamp("s"))]), {"at": NOON}),
    (pa.list_(pa.date64()), [DAY]),
    (pa.map_(pa.string(), pa.int8()), [("a", 1)]),
    (pa.string_view(), "a"),
]


def identity(rows: pl.DataFrame) -> pl.DataFrame:
    return rows


@pytest.mark.parametrize(("kind", "value"), LACKING, ids=str)
def test_an_identity_in_polars_gives_the_rows_as_they_were(kind: Any, value: Any) -> None:
    values = pa.array([value, None], kind)
    batch = pa.RecordBatch.from_arrays([values], names=["x"])
    stream = StreamSchema(batch.schema)
    for spec in (map_batches_spec(identity), flat_map_spec(lambda b: [pl.DataFrame(b)])):
        emitted = run_stateless(spec, stream, batch).table()
        assert emitted.schema.equals(batch.schema)
        assert emitted.column("x").to_pylist() == values.to_pylist()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 2**53 + 1),
        (pa.uint64(), 2**64 - 1),
        (pa.int8(), -128),
        (pa.list_(pa.int64()), [2**53 + 1, None]),
        (pa.struct([pa.field("n", pa.int64())]), {"n": 2**53 + 1}),
    ],
    ids=str,
)
def test_integers_beside_nulls_go_through_pandas_without_being_rounded(
    kind: Any, value: Any
) -> None:
    def through_pandas(rows: pd.DataFrame) -> pd.DataFrame:
        return rows

    empty = {"n": None} if pa.types.is_struct(kind) else None
    values = pa.array([value, empty, None], kind)
    batch = pa.RecordBatch.from_arrays([values], names=["x"])
    spec = map_batches_spec(through_pandas)
    emitted = run_stateless(spec, StreamSchema(batch.schema), batch).table()
    assert emitted.schema.equals(batch.schema)
    assert emitted.column("x").to_pylist() == values.to_pylist()


def test_integers_in_pandas_can_be_computed_with_beside_nulls() -> None:
    def doubled(rows: pd.DataFrame) -> pd.DataFrame:
        return rows[rows["x"] > 1].assign(x=lambda r: r["x"] * 2)

    batch = pa.RecordBatch.from_arrays([pa.array([1, None, 2, 3])], names=["x"])
    spec = map_batches_spec(doubled)
    emitted = run_stateless(spec, StreamSchema(batch.schema), batch).table()
    assert emitted.column("x").to_pylist() == [4, 6]


def test_what_does_not_fit_the_declared_type_is_refused_and_named() -> None:
    def half_a_second_later(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(pl.col("at") + pl.duration(milliseconds=500))

    batch = pa.RecordBatch.from_arrays([pa.array([NOON], pa.timestamp("s"))], names=["at"])
    with pytest.raises(PenstockError, match=r"column 'at'.*timestamp\[s\].*lose data"):
        run_stateless(
            map_batches_spec(half_a_second_later), StreamSchema(batch.schema), batch
        )


def test_another_type_than_polars_makes_of_the_declared_one_is_refused() -> None:
    def as_text(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(pl.col("at").cast(pl.String))

    batch = pa.RecordBatch.from_arrays([pa.array([DAY], pa.date64())], names=["at"])
    with pytest.raises(SchemaError, match="column 'at' is large_string, expected date64"):
        run_stateless(map_batches_spec(as_text), StreamSchema(batch.schema), batch)


def test_rows_that_polars_cannot_hold_are_refused_when_the_pipeline_is_built() -> None:
    schema = pa.schema([pa.field("x", pa.decimal256(40, 2))])
    with pytest.raises(
        SchemaError, match=r"column 'x': Polars has no type decimal256"
    ) as it:
        run_stateless(map_batches_spec(identity), StreamSchema(schema))
    assert "annotate its parameter with pa.Table" in it.value.message
