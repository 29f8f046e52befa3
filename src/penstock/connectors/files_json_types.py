"""Rows ↔ JSON lines: what each Arrow type looks like in JSON.

| Arrow type                | JSON                                                            |
|---------------------------|-----------------------------------------------------------------|
| booleans, numbers         | as they are; NaN and infinities, which JSON lacks, as null      |
| text, dictionary of text  | string                                                          |
| timestamp                 | string `2026-01-01 12:00:00.5`, with a zone `…T12:00:00+00:00`  |
| date, time                | strings `2026-01-01`, `12:00:00`                                |
| duration                  | whole number of its unit                                        |
| decimal                   | string with all its digits: `"1.20"`                            |
| binary                    | string, base64                                                  |
| list, struct              | array, object                                                   |
| null                      | null; every column is there in every line                       |

Inside lists and structs there may be booleans, numbers, text, timestamps, dates, times and
decimals. Years are 0000 to 9999: see `files_json_years`.
"""

import io
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.connectors.files_json_years import check_years
from penstock.connectors.polars_types import is_held_by_polars

_PLAIN = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_timestamp,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_decimal,
    pa.types.is_null,
)
_LISTS = (pa.types.is_list, pa.types.is_large_list)
_LARGEST_BLOCK = 2**31 - 1


def find_json_problems(schema: pa.Schema) -> list[str]:
    """Return the columns that have no form in JSON lines, with what to do about them."""
    return [
        f"column {field.name!r} of type {field.type} has no form in JSON lines: cast it "
        "before the sink, or write Parquet"
        for field in schema
        if not _is_writable(field.type)
    ]


def to_json_lines(rows: pa.Table) -> bytes:
    """Return one line per row, in UTF-8; a value without a form is an error of the user."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        check_years(name, column)
    columns = [column.cast(_written_type(column.type)) for column in rows.columns]
    frame = pl.DataFrame(pa.Table.from_arrays(columns, rows.column_names))
    binary = [name for name, kind in frame.schema.items() if kind == pl.Binary]
    frame = frame.with_columns(pl.col(binary).bin.encode("base64")) if binary else frame
    out = io.BytesIO()
    frame.write_ndjson(out)
    return out.getvalue()


def from_json_lines(data: bytes, schema: pa.Schema) -> pa.Table:
    """Return the rows again. Dates and times inside lists and structs stay text."""
    if not data:
        return schema.empty_table()
    raw = pa.schema([pa.field(field.name, _raw_type(field.type)) for field in schema])
    table = pj.read_json(
        io.BytesIO(data),
        read_options=pj.ReadOptions(
            use_threads=False, block_size=min(len(data) + 1, _LARGEST_BLOCK)
        ),
        parse_options=pj.ParseOptions(
            explicit_schema=raw, unexpected_field_behavior="error"
        ),
    )
    columns = [
        _from_raw(table.column(field.name), field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema.names)


def _is_writable(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return bool(pa.types.is_string(kind.value_type))
    if pa.types.is_duration(kind) or _is_binary(kind):
        return True
    return _is_nestable(kind)


def _is_nestable(kind: Any) -> bool:
    if any(is_list(kind) for is_list in _LISTS):
        return _is_nestable(kind.value_type)
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_nestable(field.type) for field in kind)
    return any(is_plain(kind) for is_plain in _PLAIN) and is_held_by_polars(kind)


def _written_type(kind: Any) -> Any:
    """Return the type that Polars writes in the form that a column of this type has."""
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_list(kind):
        return pa.list_(_written_type(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_written_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _written_type(f.type)) for f in kind])
    return kind


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _raw_type(kind: Any) -> Any:
    """Return the type that the JSON reader is to give for a column of this type."""
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_float16(kind):
        return pa.float32()
    if any(is_list(kind) for is_list in _LISTS):
        return pa.list_(_raw_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _raw_type(f.type)) for f in kind])
    is_text = pa.types.is_date(kind) or pa.types.is_time(kind) or _is_binary(kind)
    return pa.string() if is_text or pa.types.is_dictionary(kind) else kind


def _from_raw(column: Any, kind: pa.DataType) -> Any:
    if _is_binary(kind):
        text = pl.Series(column.combine_chunks()).cast(pl.String)
        return pc.cast(text.str.decode("base64").to_arrow().cast(pa.binary()), kind)
    if pa.types.is_time(kind):
        day: Any = pa.scalar("1970-01-01")
        instant = pc.binary_join_element_wise(day, column, pa.scalar(" "))
        return instant.cast(pa.timestamp("ns")).cast(kind)
    if pa.types.is_dictionary(kind):
        return column.dictionary_encode().cast(kind)
    nested = any(is_list(kind) for is_list in _LISTS) or pa.types.is_struct(kind)
    return column if nested else column.cast(kind)
