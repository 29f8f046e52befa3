"""Part files while they are written: rows in, the bytes of one file out.

Rows are encoded a row group at a time, so what is held of a file is its encoded bytes.

Years in JSON lines: dates and timestamps are text there, which has four digits for a year.

What is outside could be written and not read back, so it is refused before it is written.

Rows ↔ JSON lines: what each Arrow type looks like in JSON.

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
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
from typing_extensions import override

from penstock.core.arrow_types import is_held_by_polars
from penstock.errors import ErrorCode, UserError

_FIRST_SECOND = -62_167_219_200
"""0000-01-01."""
_END_SECOND = 253_402_300_800
"""10000-01-01."""
_FIRST_NANO_SECOND = -9_223_286_400
"""1677-09-22: the first whole day that nanoseconds reach."""
_DAY_SECONDS = 86_400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def check_years(name: str, column: "pa.ChunkedArray[Any]") -> None:
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
    found: Any = pc.min_max(times)
    ends: Any = pa.array([found["min"], found["max"]], times.type)
    if ends.null_count:
        return True
    start, end, day = _bounds_of(times.type)
    if not pa.types.is_timestamp(times.type) or times.type.tz is None:
        return _are_within(ends, start, end)
    # The text is in local time, which has no meaning where local years have no bounds.
    return _are_within(ends, start - day, end + day) and _are_within(
        pc.local_timestamp(ends), start, end
    )


def _are_within(ends: Any, start: int, end: int) -> bool:
    return all(start <= scalar.value < end for scalar in ends)


def _bounds_of(kind: Any) -> tuple[int, int, int]:
    """Return the first value with a text, the first after it without one, and how long a day is."""
    if pa.types.is_date32(kind):
        return _FIRST_SECOND // _DAY_SECONDS, _END_SECOND // _DAY_SECONDS, 1
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    first = _FIRST_NANO_SECOND if unit == "ns" else _FIRST_SECOND
    per_second = _PER_SECOND[unit]
    return first * per_second, _END_SECOND * per_second, _DAY_SECONDS * per_second


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


Format: TypeAlias = Literal["parquet", "jsonl"]


class PartWriter(ABC):
    """One file being written in memory. Used by one thread, closed once."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """How much is encoded so far."""

    @abstractmethod
    def write(self, rows: pa.Table) -> None:
        """Add rows; in Parquet they are a row group."""

    @abstractmethod
    def close(self) -> bytes:
        """Return the whole file."""


class ParquetPart(PartWriter):
    """A Parquet file: Zstd at its fastest level, dictionaries for text, differences for numbers."""

    def __init__(self, schema: pa.Schema) -> None:
        self._out = pa.BufferOutputStream()
        self._writer = _parquet_writer(self._out, schema)

    @property
    @override
    def size_bytes(self) -> int:
        return int(self._out.tell())

    @override
    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))

    @override
    def close(self) -> bytes:
        self._writer.close()
        return self._out.getvalue().to_pybytes()


class JsonLinesPart(PartWriter):
    """A file of JSON lines; `files_json_types` says what types look like."""

    def __init__(self) -> None:
        self._out = io.BytesIO()

    @property
    @override
    def size_bytes(self) -> int:
        return self._out.tell()

    @override
    def write(self, rows: pa.Table) -> None:
        self._out.write(to_json_lines(rows))

    @override
    def close(self) -> bytes:
        return self._out.getvalue()


def open_part(form: Format, schema: pa.Schema) -> PartWriter:
    """Begin a file of rows of this schema."""
    return ParquetPart(schema) if form == "parquet" else JsonLinesPart()


def find_format_problems(form: Format, schema: pa.Schema) -> list[str]:
    """Return what of this schema the format cannot hold."""
    if not schema.names:
        return ["the rows have no columns: a file needs one at least"]
    if form == "jsonl":
        return find_json_problems(schema)
    return [
        f"column {field.name!r} of type {field.type} cannot be written to Parquet: {reason}"
        for field in schema
        if (reason := _find_parquet_problem(field)) is not None
    ]


def _find_parquet_problem(field: "pa.Field[Any]") -> str | None:
    schema = pa.schema([field])
    try:
        with _parquet_writer(pa.BufferOutputStream(), schema) as writer:
            writer.write_table(schema.empty_table())
    except (pa.ArrowException, NotImplementedError, OSError) as error:
        return str(error)
    return None


def _parquet_writer(out: pa.BufferOutputStream, schema: pa.Schema) -> pq.ParquetWriter:
    # A dictionary of numbers rarely pays, and finding that out halves the speed.
    text: Any = [column.name for column in schema if _has_dictionary(column.type)]
    # Differences are smaller than numbers: half the time and less to compress.
    numbers = {c.name: "DELTA_BINARY_PACKED" for c in schema if _has_differences(c.type)}
    return pq.ParquetWriter(
        out,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=text,
        column_encoding=numbers,
    )


def _has_differences(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    )


def _has_dictionary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_dictionary(kind)
    )
