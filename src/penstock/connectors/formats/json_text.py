"""Parses and prints text of JSON objects, the same for records and for files.

Which form a value has is said in `json_types`. A key that is absent is null. Years are 0000 to
9999, because the text of dates and timestamps has four digits for them: other values could be
written and not read back, so they are refused.
"""

import io
from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from penstock.connectors.formats.json_types import (
    carrier_of,
    from_carriers,
    is_writable,
    tell_times,
    to_text_times,
    writer_of,
)
from penstock.errors import ErrorCode, UserError

_LARGEST_BLOCK = 2**31 - 1

_FIRST_DAY, _END_DAY = -719_528, 2_932_897
"""0000-01-01 and 10000-01-01."""
_FIRST_NANO_DAY = -106_751
"""1677-09-22: the first whole day that nanoseconds reach."""
_PER_DAY = {
    unit: 86_400 * 1_000**power for power, unit in enumerate(("s", "ms", "us", "ns"))
}


def find_json_problems(schema: pa.Schema) -> list[str]:
    """Return the columns that have no form in JSON lines, with what to do about them."""
    return [
        f"column {field.name!r} of type {field.type} has no form in JSON lines: cast it "
        "before the sink, or write Parquet"
        for field in schema
        if not is_writable(field.type)
    ]


def to_json_lines(rows: pa.Table) -> bytes:
    """Return one line per row, in UTF-8; raise `UserError` for a value without a form."""
    check_json_values(rows)
    columns = [column.cast(writer_of(column.type)) for column in rows.columns]
    frame = pl.DataFrame(pa.Table.from_arrays(columns, rows.column_names))
    frame = frame.with_columns(
        as_text.alias(name)
        for name, kind in frame.schema.items()
        if (as_text := _bytes_as_text(pl.col(name), kind)) is not None
    )
    out = io.BytesIO()
    frame.write_ndjson(out)
    return out.getvalue()


def _bytes_as_text(values: pl.Expr, kind: Any) -> pl.Expr | None:
    """Return values with base64 in the place of bytes; None if there are no bytes in them."""
    if kind == pl.Binary:
        return values.bin.encode("base64")
    if isinstance(kind, pl.List):
        inner = _bytes_as_text(pl.element(), kind.inner)
        return None if inner is None else values.list.eval(inner)
    if isinstance(kind, pl.Struct):
        parts = {
            part.name: _bytes_as_text(pl.field(part.name), part.dtype)
            for part in kind.fields
        }
        changed = [each.alias(name) for name, each in parts.items() if each is not None]
        return values.struct.with_fields(changed) if changed else None
    return None


def check_json_values(rows: pa.Table) -> None:
    """Raise `UserError` for a value that has no form in JSON lines."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        _check_years(name, column)


def from_json_lines(data: bytes, schema: pa.Schema) -> pa.Table:
    """Return rows that `to_json_lines` wrote."""
    return read_objects(data, schema, ignores_extra=False) if data else schema.empty_table()


def read_objects(text: Any, schema: pa.Schema, *, ignores_extra: bool) -> pa.Table:
    """Return a row per object, in the columns of a schema; raise for a wrong value.

    Arrow parses them, and treats a newline as any other white space: whoever calls this
    counts the objects. Keys that the schema does not name are skipped or refused.
    """
    unexpected = "ignore" if ignores_extra else "error"
    carried = pa.schema([(field.name, carrier_of(field.type)) for field in schema])
    return from_carriers(_read(text, carried, unexpected), schema)


def infer_columns(text: bytes) -> pa.Schema:
    """Return the columns that objects have, and the types that all their values fit."""
    found = _read(text, None, "infer")
    fields = [(field.name, to_text_times(field.type)) for field in found.schema]
    if not fields:
        return found.schema
    # Arrow drops zones when it infers, and takes times with fractions for text.
    as_text = _read(text, pa.schema(fields), "ignore")
    return pa.schema(
        [(name, tell_times(as_text.column(name).combine_chunks())) for name, _ in fields]
    )


def _read(text: Any, schema: pa.Schema | None, unexpected: Any) -> pa.Table:
    block_size = min(len(text) + 1, _LARGEST_BLOCK)
    reader: Any = pa.BufferReader(text)
    return pa_json.read_json(
        reader,
        read_options=pa_json.ReadOptions(use_threads=False, block_size=block_size),
        parse_options=pa_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior=unexpected
        ),
    )


def _check_years(name: str, column: "pa.ChunkedArray[Any]") -> None:
    """Raise `UserError` if a date or timestamp in a column has no text that can be read back."""
    for chunk in column.chunks:
        for times in _find_times(chunk):
            if not _have_text(times):
                raise UserError(
                    f"column {name!r} holds a value of type {times.type} that has no form in "
                    "JSON lines, where years are 0000 to 9999: change it before the sink, or "
                    "write Parquet",
                    code=ErrorCode.VALUE_OUT_OF_RANGE,
                    column=name,
                )


def _find_times(array: Any) -> Iterator[Any]:
    """Yield the dates and timestamps in an array, also those inside lists and structs."""
    kind = array.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        yield array
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _find_times(array.flatten())
    elif pa.types.is_struct(kind):
        for part in array.flatten():
            yield from _find_times(part)


def _have_text(times: Any) -> bool:
    kind = times.type
    found: Any = pc.min_max(times)
    ends: Any = pa.array([found["min"], found["max"]], kind)
    if ends.null_count:
        return True
    unit = getattr(kind, "unit", "ms")
    day = 1 if pa.types.is_date32(kind) else _PER_DAY[unit]
    first = (_FIRST_NANO_DAY if unit == "ns" else _FIRST_DAY) * day
    end = _END_DAY * day
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        return all(first <= scalar.value < end for scalar in ends)
    # The text is in local time, which is only defined for instants near the bounds: so the
    # instants are compared first, with a day of tolerance for the offset of the zone.
    return all(first - day <= scalar.value < end + day for scalar in ends) and all(
        first <= scalar.value < end for scalar in pc.local_timestamp(ends)
    )
