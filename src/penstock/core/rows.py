"""Rows and instants as people give them: frames, columns, dictionaries, lists and arrays.

Pure. Typed data (Arrow, Polars) keeps its types, and whoever takes it checks them. Plain values
(lists, NumPy, pandas) are read as the declared types. Text may stand for a timestamp. Nothing
is dropped or made null in silence: unknown and missing columns are named.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.watermark import EventTime
from penstock.errors import SchemaError, did_you_mean

RowsLike: TypeAlias = Any
"""A `pyarrow.RecordBatch` or `Table`, a Polars or pandas `DataFrame`, columns by name, or a list
of dictionaries."""
InstantsLike: TypeAlias = Any
"""One instant for all rows: microseconds since 1970, a `datetime` (UTC without a zone of its
own) or an `EventTime`. Or one per row: a list, a NumPy array, an Arrow array or a Polars series
of these."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_table(rows: RowsLike, schema: pa.Schema) -> pa.Table:
    """Return rows as a table; the types of Arrow and Polars data are still to be checked."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    columns = _columns_of(rows, schema)
    if columns is not None:
        return _from_columns(columns, schema)
    converted = rows.to_arrow() if hasattr(rows, "to_arrow") else None
    if isinstance(converted, pa.Table):
        return converted
    raise SchemaError(
        "expected rows as a pyarrow.RecordBatch or Table, a Polars or pandas DataFrame, columns "
        f"by name or a list of dictionaries, got {_named(rows)}"
    )


def _columns_of(rows: RowsLike, schema: pa.Schema) -> Mapping[str, Any] | None:
    """Return plain rows as columns by name; None if they are of another form."""
    if isinstance(rows, Mapping):
        return rows
    if is_pandas(rows) and hasattr(rows, "columns"):
        return {str(name): rows[name] for name in rows.columns}
    if isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row) or schema.names
        return {name: [row.get(name) for row in rows] for name in names}
    return None


def to_column(values: Any, data_type: Any) -> Any:
    """Return values as an Arrow array; plain ones are read as `data_type`, None for any."""
    if hasattr(values, "to_arrow"):
        values = values.to_arrow()
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
        raise TypeError(f"{values!r:.80} is one value; give a list with one per row")
    if is_pandas(values):
        return pa.array(values, data_type, from_pandas=True)
    if isinstance(values, np.ndarray):
        return pa.array(values, data_type)
    listed = list(values)
    is_timestamp = data_type is not None and pa.types.is_timestamp(data_type)
    if is_timestamp and any(isinstance(value, str) for value in listed):
        texts: Any = pa.array(listed, pa.string())
        return texts.cast(data_type)
    return pa.array(listed, data_type)


def is_column(values: Any) -> bool:
    """Tell whether these are the values of one column, not rows."""
    if isinstance(values, pa.Array | pa.ChunkedArray | np.ndarray):
        return True
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return not any(isinstance(value, Mapping) for value in values)
    is_series = hasattr(values, "to_arrow") or is_pandas(values)
    return is_series and hasattr(values, "__len__") and not hasattr(values, "columns")


def is_pandas(values: Any) -> bool:
    """Tell whether this is an object of pandas, without importing pandas."""
    return type(values).__module__.partition(".")[0] == "pandas"


def to_instant(given: Any) -> int:
    """Return one instant in microseconds since 1970; what is none is a `ValueError`."""
    if isinstance(given, EventTime):
        return given.micros
    if isinstance(given, datetime | np.datetime64) and str(given) == "NaT":
        raise ValueError("NaT is no instant")  # NumPy would make it the earliest of all
    if isinstance(given, datetime):
        aware = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
        return (aware - _EPOCH) // timedelta(microseconds=1)
    if isinstance(given, np.datetime64):
        return int(given.astype("datetime64[us]").astype(np.int64))
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        if not -(1 << 63) <= int(given) < 1 << 63:
            raise ValueError(f"{given} microseconds do not fit 64 bits")
        return int(given)
    raise ValueError(f"{_named(given)} is no instant")


def to_instants(given: InstantsLike, row_count: int) -> Any:
    """Return one instant per row, as an Arrow array of int64 (microseconds) or timestamps.

    What are no instants, or not one per row, is a `ValueError`, which says why.
    """
    if not is_column(given):
        return pa.array(np.full(row_count, to_instant(given), np.int64))
    try:
        column = to_column(given, None)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ValueError(f"{_named(given)} holds no instants: {error}") from error
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if len(column) != row_count:
        raise ValueError(f"{row_count} rows were given with {len(column)} instants")
    if pa.types.is_timestamp(column.type):
        return column
    if pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise ValueError(str(error)) from error
    raise ValueError(f"the instants are of type {column.type}")


def _from_columns(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Return columns by name as rows of exactly this schema; all problems are named at once."""
    names = set(schema.names)
    problems = [
        f"column {name!r} is not in the schema{did_you_mean(name, names)}"
        for name in columns
        if name not in names
    ]
    problems += [
        f"column {name!r} is missing" for name in schema.names if name not in columns
    ]
    arrays: list[Any] = []
    for field in schema:
        if field.name in columns:
            try:
                array = to_column(columns[field.name], field.type)
                arrays.append(array.cast(field.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                problems.append(f"column {field.name!r} is no {field.type}: {error}")
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1:
        problems.append(f"columns have different lengths: {sorted(lengths)}")
    if problems:
        raise SchemaError(
            f"rows do not fit their schema ({', '.join(schema.names)}): "
            + "; ".join(problems)
        )
    return pa.Table.from_arrays(arrays, schema=schema)


def _named(given: Any) -> str:
    """Name the type of what was given; of a list also that of its first value."""
    name = type(given).__name__
    if isinstance(given, list | tuple) and given:
        return f"{name} of {type(given[0]).__name__}"
    return name
