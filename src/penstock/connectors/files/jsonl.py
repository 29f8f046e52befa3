"""Reads and writes JSON lines: one object per line, all columns in each.

Which form a value has is said in `json_types`. A key that is absent is null. Years are 0000 to
9999, because the text of dates and timestamps has four digits for them: other values could be
written and not read back, so they are refused.
"""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
from typing_extensions import override

from penstock.connectors.files.formats import SourceFile
from penstock.connectors.files.json_types import (
    carrier_of,
    from_carriers,
    is_writable,
    tell_times,
    to_text_times,
    writer_of,
)
from penstock.connectors.files.text import NEWLINE, Ends, Heading, TextFormat, mark_length
from penstock.errors import ErrorCode, UserError

_OPENING, _CLOSING, _CARRIAGE_RETURN = b"{}\r"
_LARGEST_BLOCK = 2**31 - 1

_FIRST_DAY, _END_DAY = -719_528, 2_932_897
"""0000-01-01 and 10000-01-01."""
_FIRST_NANO_DAY = -106_751
"""1677-09-22: the first whole day that nanoseconds reach."""
_PER_DAY = {
    unit: 86_400 * 1_000**power for power, unit in enumerate(("s", "ms", "us", "ns"))
}


class JsonLinesFormat(TextFormat):
    """Reads JSON lines, in the forms that the files sink writes."""

    @override
    def row_without_values(self) -> bytes:
        return b"{}\n"

    @override
    def find_row_ends(self, text: bytes) -> Ends:
        return np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == NEWLINE) + 1

    @override
    def count_rows(self, text: bytes) -> int:
        """Return how many lines are not blank; each must look like an object.

        Arrow treats a newline as any other white space, but inside an object that is not
        closed no line can begin with a brace. So if Arrow gives as many rows as there are such
        lines, each line gave exactly one.
        """
        characters = np.frombuffer(text, dtype=np.uint8)
        newlines = np.flatnonzero(characters == NEWLINE)
        starts = np.concatenate([[0], newlines + 1])
        lasts = np.append(newlines, len(text)) - 1
        if starts[-1] == len(text):
            starts, lasts = starts[:-1], lasts[:-1]
        lasts -= characters[lasts] == _CARRIAGE_RETURN
        is_odd = (characters[starts] != _OPENING) | (characters[lasts] != _CLOSING)
        blank = 0
        for index in np.flatnonzero(is_odd | (lasts < starts)):
            line = text[starts[index] : lasts[index] + 1].strip()
            blank += not line
            if line and not (line.startswith(b"{") and line.endswith(b"}")):
                raise ValueError("it is not one JSON object")
        return len(starts) - blank

    @override
    def parse(self, text: bytes, heading: Heading) -> pa.Table:
        unexpected = "ignore" if self.ignores_extra else "error"
        return _read_as(text, self.schema, unexpected)

    @override
    def parse_sample(self, text: bytes, heading: Heading) -> pa.Table:
        _refuse_document(text)
        found = _read(text, None, "infer")
        fields = [(field.name, to_text_times(field.type)) for field in found.schema]
        if not fields:
            return found
        # Arrow drops zones when it infers, and takes times with fractions for text.
        as_text = _read(text, pa.schema(fields), "ignore")
        told = [
            (name, tell_times(as_text.column(name).combine_chunks())) for name, _ in fields
        ]
        return pa.schema(told).empty_table()

    @override
    def read_heading(self, file: SourceFile) -> Heading:
        """Return nothing, or a byte order mark."""
        length = mark_length(file.read_range(0, min(3, file.size_bytes)))
        return Heading(length, folders=self.folders_of(file, ()))


class JsonLinesPart:
    """A file of JSON lines being written in memory. Used by one thread, closed once."""

    def __init__(self) -> None:
        self._out = io.BytesIO()

    def write(self, rows: pa.Table) -> int:
        """Add a line per row; return how many bytes the file has."""
        self._out.write(to_json_lines(rows))
        return self._out.tell()

    def close(self) -> bytes:
        """Return the whole file."""
        return self._out.getvalue()


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
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        _check_years(name, column)
    columns = [column.cast(writer_of(column.type)) for column in rows.columns]
    frame = pl.DataFrame(pa.Table.from_arrays(columns, rows.column_names))
    binary = [name for name, kind in frame.schema.items() if kind == pl.Binary]
    frame = frame.with_columns(pl.col(binary).bin.encode("base64")) if binary else frame
    out = io.BytesIO()
    frame.write_ndjson(out)
    return out.getvalue()


def from_json_lines(data: bytes, schema: pa.Schema) -> pa.Table:
    """Return rows that `to_json_lines` wrote."""
    return _read_as(data, schema, "error") if data else schema.empty_table()


def _refuse_document(text: bytes) -> None:
    """Raise ValueError for an array, or an object over several lines: both are no JSON lines."""
    line = text.strip().partition(b"\n")[0].rstrip()
    if line.startswith(b"[") or (line.startswith(b"{") and not line.endswith(b"}")):
        begun = "an array" if line.startswith(b"[") else "an object of several lines"
        raise ValueError(
            f"it begins with {begun}, and JSON lines hold one object per line. Convert it, for "
            "instance with `jq -c '.[]'` for an array, or `jq -c .` for objects"
        )


def _read_as(text: bytes, schema: pa.Schema, unexpected: str) -> pa.Table:
    carried = pa.schema([(field.name, carrier_of(field.type)) for field in schema])
    return from_carriers(_read(text, carried, unexpected), schema)


def _read(text: bytes, schema: pa.Schema | None, unexpected: Any) -> pa.Table:
    block_size = min(len(text) + 1, _LARGEST_BLOCK)
    return pa_json.read_json(
        io.BytesIO(text),
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
