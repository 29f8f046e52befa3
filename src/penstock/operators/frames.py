"""Frames and schemas of other libraries: what they make of Arrow's types, and how results come back.

Functions of users take and return rows as Arrow, Polars or pandas, and schemas are written as
Arrow, Polars or plain Python types. Polars has no form of its own for some Arrow types: seconds
become milliseconds, dates of 64 bits timestamps, fixed-size bytes plain ones. A column of such
a form is cast back to the declared type. What does not fit it, such as half a second, is
refused.
"""

import datetime as dt
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa

from penstock.core.arrow_types import (
    is_bytes,
    is_lossless,
    is_text,
    relay,
    why_not_in_polars,
)
from penstock.core.rows import RowsLike, to_table
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError

SchemaLike: TypeAlias = "StreamSchema | pa.Schema | pl.Schema | Mapping[str, Any] | None"
"""A schema as users write it: of a stream, of Arrow or of Polars, or types by name."""

_PYTHON_TYPES: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.datetime: pa.timestamp("us"),
    dt.date: pa.date32(),
    dt.time: pa.time64("us"),
    dt.timedelta: pa.duration("us"),
}


def column_name(given: Any) -> str | None:
    """Return the name of the one column that a text or `pl.col(…)` names; None for anything else.

    >>> column_name("n"), column_name(pl.col("n")), column_name(pl.col("n") + 1)
    ('n', 'n', None)
    """
    if isinstance(given, str):
        return given
    if not isinstance(given, pl.Expr) or not given.meta.is_column_selection():
        return None
    return None if given.meta.has_multiple_outputs() else given.meta.output_name()


def column_names(given: Any) -> tuple[str, ...] | None:
    """Return the names of one column or of several; None if one of them is none.

    >>> column_names(["n", pl.col("m")]), column_names("n"), column_names(["n", 3])
    (('n', 'm'), ('n',), None)
    """
    listed = given if isinstance(given, list | tuple) else [given]
    names = [column_name(one) for one in listed]
    found = tuple(name for name in names if name is not None)
    return found if len(found) == len(names) else None


def to_names(option: str, given: Any, *, where: str = "") -> tuple[str, ...]:
    """Return the columns that a user names, one or several; they may not exist.

    >>> to_names("key", "user"), to_names("key", ["user", pl.col("day")])
    (('user',), ('user', 'day'))
    >>> to_names("key", 3)
    Traceback (most recent call last):
        ...
    penstock.errors.UserError: key=3 are no names of columns: write key='user' or key=['user', 'day']
    """
    found = column_names(given)
    if found is None:
        raise UserError(
            f"{where}{option}={given!r:.80} are no names of columns: write {option}='user' or "
            f"{option}=['user', 'day']",
            code=ErrorCode.INVALID_CONFIG,
        )
    return found


def to_name(option: str, given: Any, *, where: str = "") -> str | None:
    """Return the column that a user names, which may not exist; None for none.

    >>> to_name("order_by", ["v"])
    Traceback (most recent call last):
        ...
    penstock.errors.UserError: order_by=['v'] is no name of a column: write order_by='user'
    """
    name = column_name(given)
    if name is None and given is not None:
        raise UserError(
            f"{where}{option}={given!r:.80} is no name of a column: write {option}='user'",
            code=ErrorCode.INVALID_CONFIG,
        )
    return name


def to_arrow_schema(given: Any) -> pa.Schema:
    """Return a schema of Arrow, of Polars, or types by name, as an Arrow schema.

    >>> to_arrow_schema({"user": str, "n": pl.Int32, "at": pa.timestamp("ms")}).types
    [DataType(string), DataType(int32), TimestampType(timestamp[ms])]
    """
    if isinstance(given, pa.Schema):
        return given
    if not isinstance(given, Mapping):
        raise SchemaError(
            f"{given!r:.80} is no schema: give a pyarrow.Schema, a polars.Schema, or types by "
            "name, such as {'user': str, 'n': pa.int32()}",
            code=ErrorCode.INVALID_CONFIG,
        )
    return pa.schema([pa.field(str(n), _to_arrow_type(n, k)) for n, k in given.items()])


def as_schema(given: SchemaLike) -> StreamSchema | pa.Schema | None:
    """Return a schema that users gave: that of a stream as it is, others as Arrow's."""
    if given is None or isinstance(given, StreamSchema):
        return given
    return to_arrow_schema(given)


def to_stream_schema(given: SchemaLike, time_column: str | None) -> StreamSchema | None:
    """Return the schema of a stream; rows keep their event time if the schema has its column."""
    if given is None or isinstance(given, StreamSchema):
        return given
    schema = to_arrow_schema(given)
    return StreamSchema(schema, time_column if time_column in schema.names else None)


def _to_arrow_type(name: str, kind: Any) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    if kind in _PYTHON_TYPES:
        return _PYTHON_TYPES[kind]
    cause: Exception | None = None
    found: Any = None
    try:
        empty = pl.Series([], dtype=kind)
        found = None if empty.dtype == pl.Object() else empty.to_arrow().type
    except (pl.exceptions.PolarsError, pa.ArrowException, TypeError, ValueError) as error:
        cause = error
    if found is None:
        known = ", ".join(python.__name__ for python in _PYTHON_TYPES)
        raise SchemaError(
            f"column {name!r} cannot have the type {kind!r:.80}: give a pyarrow type, a Polars "
            f"type, or one of {known}",
            code=ErrorCode.INVALID_CONFIG,
            column=name,
        ) from cause
    plain = pa.binary() if is_bytes(found) else found
    return pa.string() if is_text(found) else plain


def polars_type(data_type: Any) -> pl.DataType:
    """Return the type that Polars reads a column as; Object if it has none for it."""
    if _makes_polars_panic(data_type):
        return pl.Object()
    try:
        return pl.Series("", pa.nulls(0, data_type)).dtype
    except (pl.exceptions.PolarsError, pa.ArrowException):
        return pl.Object()


def _makes_polars_panic(data_type: Any) -> bool:
    """Return whether Polars panics on reading a type: a panic is no Exception to catch."""
    if pa.types.is_decimal(data_type) and not pa.types.is_decimal128(data_type):
        return True
    parts = range(data_type.num_fields)
    return any(_makes_polars_panic(data_type.field(index).type) for index in parts)


Conversion: TypeAlias = Callable[[pa.RecordBatch], RowsLike]


def conversion_for(function: Callable[..., Any]) -> Conversion:
    """Return what converts a batch into the type that a function's first parameter is annotated with."""
    target: Any = function
    if not hasattr(function, "__annotations__"):
        target = type(function).__call__
    try:
        hints = typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        hints = getattr(target, "__annotations__", {})
    first = next((hint for name, hint in hints.items() if name != "return"), None)
    wanted = str(first).strip("'<>")
    if wanted.endswith("DataFrame"):
        is_pandas = "pandas" in wanted or wanted == "pd.DataFrame"
        return _to_pandas if is_pandas else pl.DataFrame
    if wanted.endswith("Table"):
        return lambda batch: pa.Table.from_batches([batch])
    return lambda batch: batch


def _to_pandas(batch: pa.RecordBatch) -> Any:
    """Return a frame of pandas; integers beside nulls in its nullable types.

    By itself pandas makes floats of them, which round what is beyond 2**53.
    """
    columns = zip(batch.schema.types, batch.columns, strict=True)
    kinds = {k for k, c in columns if c.null_count and pa.types.is_integer(k)}
    if not kinds:
        return batch.to_pandas(integer_object_nulls=True)
    # Late: pandas is an extra. It has no stubs here.
    import pandas as pd  # type: ignore[import-untyped]

    names = {k: str(k).replace("uint", "UInt").replace("int", "Int") for k in kinds}
    nullable: Any = {kind: pd.api.types.pandas_dtype(name) for kind, name in names.items()}
    return batch.to_pandas(integer_object_nulls=True, types_mapper=nullable.get)


def check_convertible(conversion: Conversion, schema: pa.Schema, function: str) -> None:
    """Refuse rows that a function cannot get as a Polars frame."""
    if conversion is not pl.DataFrame:
        return
    opaque = [field for field in schema if polars_type(field.type) == pl.Object()]
    if opaque:
        reasons = [f"column {f.name!r}: {why_not_in_polars(f.type)}" for f in opaque]
        raise SchemaError(
            f"{function!r} wants its rows as a polars.DataFrame, which cannot hold all of them: "
            f"{'; '.join(reasons)}. Or annotate its parameter with pa.Table",
            columns=tuple(field.name for field in opaque),
        )


def cast_back(rows: RowsLike, schema: pa.Schema) -> RowsLike:
    """Return a result of Polars with its columns in the declared types that Polars lacks.

    Other results, and columns of any other type than Polars makes of the declared one, are
    returned as they are: whoever takes them says what is wrong.
    """
    if not isinstance(rows, pl.DataFrame):
        return rows
    table = to_table(rows, schema)
    for index, field in enumerate(table.schema):
        at = schema.get_field_index(field.name)
        if at < 0 or is_lossless(field.type, schema.field(at).type):
            continue
        wanted = schema.field(at).type
        if polars_type(wanted) == rows.schema[field.name]:
            table = table.set_column(
                index, field.name, _cast(field.name, table.column(index), wanted)
            )
    return table


def _cast(name: str, column: Any, wanted: Any) -> Any:
    """Return a column in another type; Arrow cannot cast into every dictionary."""
    to_dictionary = pa.types.is_dictionary(wanted)
    try:
        chunks = [
            relay(chunk, wanted) if to_dictionary else chunk.cast(wanted)
            for chunk in column.chunks
        ]
    except pa.ArrowException as error:
        raise SchemaError(
            f"column {name!r} of the result is {column.type} and does not fit the declared type "
            f"{wanted}: {error}",
            column=name,
        ) from error
    return pa.chunked_array(chunks, wanted)
