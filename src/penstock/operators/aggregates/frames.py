"""Rows of Arrow as Polars frames and back: in the types of the stream, dictionaries as values.

Polars has fewer types than Arrow (no seconds, one kind of text). What is computed goes back
into the declared type, whose values it holds.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.errors import SchemaError
from penstock.operators.expression_types import derive_types
from penstock.state.tables.arrow_layout import relay, stored_type


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
        shown = ", ".join(f"{name!r} ({schema.field(name).type})" for name in opaque)
        raise SchemaError(
            f"rows cannot be grouped by {shown}: Polars has no such type. Cast the column "
            "before key_by",
            columns=tuple(opaque),
        )


def to_frame(batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> pl.DataFrame:
    """Return some columns of batches of one schema, without a copy where layouts allow it.

    A frame without columns has no height, so at least one is taken.
    """
    rows = pa.Table.from_batches(batches)
    names = list(columns) or rows.column_names[:1]
    return pl.DataFrame([_series(name, rows.column(name)) for name in names])


def relayed(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
    """Return rows in plain layouts, the same object if they are: dictionaries become values."""
    schema = decoded(rows.schema)
    if schema.equals(rows.schema):
        return rows
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    columns = [_relayed_column(column) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=schema)


def to_batch(frame: pl.DataFrame, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema in exactly its types."""
    arrays = [to_array(frame.get_column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_array(column: pl.Series, data_type: pa.DataType) -> Any:
    """Return a column in a type that holds its values."""
    array = column.rechunk().to_arrow()
    return array if array.type.equals(data_type) else array.cast(data_type)


def _series(name: str, column: "pa.ChunkedArray[Any]") -> pl.Series:
    return pl.Series(name, _relayed_column(column))


def _relayed_column(column: "pa.ChunkedArray[Any]") -> "pa.ChunkedArray[Any]":
    plain = stored_type(column.type)
    if plain.equals(column.type):
        return column
    return pa.chunked_array([relay(chunk, plain) for chunk in column.chunks], plain)
