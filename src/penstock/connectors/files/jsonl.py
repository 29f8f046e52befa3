"""JSON lines: an object a line; a key that is absent is null. Parsed by Arrow."""

import io
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.json as pa_json
from typing_extensions import override

from penstock.connectors.files.formats import SourceFile
from penstock.connectors.files.text import (
    NEWLINE,
    SAMPLE_BYTES,
    Ends,
    Heading,
    TextFormat,
    mark_length,
    widen_inferred,
)
from penstock.errors import ErrorCode, UserError

_TIME_OF_DAY = "%H:%M:%S%.f"
_OPENING, _CLOSING, _CARRIAGE_RETURN = b"{}\r"


class JsonLinesFormat(TextFormat):
    """Reads JSON lines, in the forms that the files sink writes.

    Dates, times and timestamps are text of ISO form, decimals may be text, binary values are
    base64, durations whole numbers of their unit.
    """

    @override
    def row_without_values(self) -> bytes:
        return b"{}\n"

    @override
    def find_row_ends(self, text: bytes) -> Ends:
        return np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == NEWLINE) + 1

    @override
    def count_rows(self, text: bytes) -> int:
        """Return how many lines are not blank; each must look like an object.

        Arrow takes a newline for any other white space, but after an object that is not
        closed no line can begin with a brace. So as many rows as such lines means one each.
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
        carried = pa.schema(
            [field.with_type(_carrier(field.type)) for field in self.schema]
        )
        unexpected = "ignore" if self.ignores_extra else "error"
        table = _read(text, carried, unexpected).select(self.schema.names)
        if carried == self.schema:
            return table
        columns = [_to_type(table.column(f.name), f.type) for f in self.schema]
        return pa.table(columns, schema=_nullable(self.schema))

    @override
    def read_heading(self, file: SourceFile) -> Heading:
        """Return nothing, or a byte order mark."""
        return Heading(mark_length(file.read_range(0, min(3, file.size_bytes))))


def infer_json_lines(file: SourceFile) -> pa.Schema:
    """Return the columns that the first lines of a file suggest."""
    text = file.read_range(0, min(SAMPLE_BYTES, file.size_bytes))
    text = text[mark_length(text) :]
    if len(text) < file.size_bytes:
        text = text[: text.rfind(b"\n") + 1] or text
    try:
        return widen_inferred(file, _read(text, None, "infer").schema)
    except pa.ArrowException as error:
        raise UserError(
            f"the columns of {file} cannot be told from its first lines: {error}. Pass "
            "schema=",
            code=ErrorCode.INVALID_CONFIG,
            path=file.path,
        ) from error


def _read(text: bytes, schema: pa.Schema | None, unexpected: Any) -> pa.Table:
    return pa_json.read_json(
        io.BytesIO(text),
        read_options=pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pa_json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior=unexpected
        ),
    )


def _carrier(kind: pa.DataType) -> pa.DataType:
    """Return the type to parse a column as before it is brought into its own."""
    types = pa.types
    if types.is_date(kind) or types.is_time(kind) or types.is_binary(kind):
        return pa.string()
    return pa.int64() if types.is_duration(kind) else kind


def _to_type(column: Any, kind: pa.DataType) -> Any:
    """Bring a column from what carried it into its type; binary values are base64."""
    if not (pa.types.is_binary(kind) or pa.types.is_time(kind)):
        return column.cast(kind)
    text = pl.Series(column, dtype=pl.String).str
    try:
        values = (
            text.decode("base64")
            if pa.types.is_binary(kind)
            else text.to_time(_TIME_OF_DAY)
        )
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"a text is no {kind}: {error}") from error
    return pa.chunked_array([values.to_arrow().cast(kind)])


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])
