"""Converts Arrow rows to Polars frames and back, and groups frames by key and instant. Pure.

Polars has fewer types than Arrow (no seconds, one kind of text, no dictionary of numbers). A
frame holds the values of a stream in plain layouts; results are converted back into the
declared type, which can hold their values.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.core.arrow_types import relay, stored_type, why_not_in_polars
from penstock.errors import SchemaError
from penstock.operators.expression_checks import derive_types
from penstock.operators.expressions import to_array

ALL_ROWS = "all_rows"
"""The key column that a stream without a key gets: every row has the same value."""
PLACES_PER_ROW = 4
"""The most places per row of an array by key: with more, most of it would be empty."""
WHOLE = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)
"""Whole numbers that fit into 64 bits with a sign."""
_PLACE = "_penstock_place"
KEY_OF_ALL_ROWS = 0x61C8864680B583EB
"""The value of that column. It hashes to 0, so the first subtask owns it at any parallelism."""


def decoded(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose columns hold the same values, in plain layouts."""
    return pa.schema([field.with_type(stored_type(field.type)) for field in schema])


def frame_schema(schema: pa.Schema) -> pl.Schema:
    """Return the types that the columns of a stream have in Polars; Object for those it lacks."""
    columns = [pl.col(name) for name in schema.names]
    return derive_types("the stream", decoded(schema), columns)


def check_groupable(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Refuse columns that rows cannot be grouped by."""
    types = frame_schema(pa.schema([schema.field(name) for name in columns]))
    opaque = [name for name, dtype in types.items() if dtype == pl.Object]
    if opaque:
        shown = "; ".join(
            f"{name!r}: {why_not_in_polars(schema.field(name).type)}" for name in opaque
        )
        raise SchemaError(
            f"rows cannot be grouped by {shown}",
            columns=tuple(opaque),
        )


def to_frame(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    """Return rows as a frame, dictionaries as values, without a copy where layouts allow it."""
    if not decoded(rows.schema).equals(rows.schema):
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        rows = in_plain_layouts(table)
    return pl.DataFrame(pl.from_arrow(rows, rechunk=False))


def in_plain_layouts(rows: pa.Table) -> pa.Table:
    """Return the same rows, dictionaries as values; the same table if there are none.

    Rows of several batches cannot be picked or joined while each has a dictionary of its own:
    the index type that holds each of them may be too small for all.
    """
    schema = decoded(rows.schema)
    if schema.equals(rows.schema):
        return rows
    return pa.Table.from_arrays(list(map(_decoded_column, rows.columns)), schema=schema)


def columns_to_frame(
    batches: Sequence[pa.RecordBatch], columns: Sequence[str]
) -> pl.DataFrame:
    """Return some columns of batches of one schema, each in one piece.

    A frame without columns has no height, so at least one is taken.
    """
    rows = pa.Table.from_batches(batches)
    names = list(columns) or rows.column_names[:1]
    return pl.DataFrame(
        [pl.Series(name, _decoded_column(rows.column(name))) for name in names]
    )


def _decoded_column(column: "pa.ChunkedArray[Any]") -> "pa.ChunkedArray[Any]":
    plain = stored_type(column.type)
    if plain.equals(column.type):
        return column
    return pa.chunked_array([relay(chunk, plain) for chunk in column.chunks], plain)


def first_equal(keys: pl.DataFrame) -> "npt.NDArray[np.int64]":
    """Return for each row the place of the first one that is equal to it, as groups are.

    Whole numbers close together, as ids mostly are, need no hashing: they index an array.
    """
    numbers = keys.to_series(0)
    if keys.width == 1 and numbers.dtype in WHOLE and not numbers.null_count():
        least, most = whole_bounds(numbers)
        if most - least < PLACES_PER_ROW * len(numbers):
            places = numbers.cast(pl.Int64).to_numpy() - least
            firsts = np.full(most - least + 1, len(numbers))
            np.minimum.at(firsts, places, np.arange(len(numbers)))
            found: npt.NDArray[np.int64] = firsts[places]
            return found
    positions = keys.with_row_index(_PLACE)
    grouped = positions.select(pl.col(_PLACE).first().over(*keys.columns)).to_series()
    return grouped.cast(pl.Int64).to_numpy()


def number_equal(
    keys: pl.DataFrame,
) -> "tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]":
    """Number keys from 0 as they come; return the number of each row, and each key's first row."""
    firsts = first_equal(keys)
    is_first = firsts == np.arange(len(firsts))
    return (np.cumsum(is_first) - 1)[firsts], np.flatnonzero(is_first)


def whole_bounds(numbers: pl.Series) -> tuple[int, int]:
    """Return the least and the greatest of some whole numbers; 0 and -1 if there are none."""
    least: Any = numbers.min()
    most: Any = numbers.max()
    return (0, -1) if least is None else (int(least), int(most))


def to_table(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema in exactly its types."""
    table = frame.to_arrow()
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for field, column in ((f, table.column(f.name)) for f in schema)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def to_batch(frame: pl.DataFrame, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema in exactly its types, each in one piece."""
    arrays = [to_array(frame.get_column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


Compute: TypeAlias = Callable[[pl.DataFrame, Sequence[str]], pl.DataFrame]
"""Computes one row per group, given rows and the columns to group by."""

ROWS_WORTH_A_PASS = 20_000
"""An instant with fewer rows gets no pass of its own, because a pass has a fixed cost."""


def group_by_instant(
    frame: pl.DataFrame, instant: str, keys: Sequence[str], compute: Compute
) -> Iterator[pl.DataFrame]:
    """Yield one row per key and instant, in any number of frames.

    `instant` names a column of microseconds without nulls. Grouping by one column is several
    times as fast as by two. So the rows of an instant that has many of them are grouped by
    key alone, in a pass of their own; all other rows are grouped at once.
    """
    if not frame.height:
        return
    moments = frame[instant]
    if moments.min() == moments.max():
        moment = pl.lit(moments.item(0), pl.Int64).alias(instant)
        yield compute(frame, keys).with_columns(moment)
        return
    if frame.height < ROWS_WORTH_A_PASS:
        yield compute(frame, [*keys, instant])
        return
    counts = moments.value_counts(name="rows")
    is_dense = pl.col("rows") >= ROWS_WORTH_A_PASS
    for micros in counts.filter(is_dense)[instant].sort().to_list():
        moment = pl.lit(micros, pl.Int64).alias(instant)
        yield compute(frame.filter(moments == micros), keys).with_columns(moment)
    scattered = counts.filter(~is_dense)[instant]
    if len(scattered):
        rest = frame.filter(moments.is_in(scattered.implode()))
        yield compute(rest, [*keys, instant])
