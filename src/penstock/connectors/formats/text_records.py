"""Records of text: rows of CSV, one per value and without a header, or one column as it is.

The columns of a CSV record are those of the schema, in its order, unless `columns` names them: then
the schema may have fewer. Null is an empty field, and in a column of text an empty field is empty
text: a null of text is written as an empty field, and so read back as empty text.
"""

import io
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from typing_extensions import override

from penstock.connectors.formats.csv_text import CsvParser, check_quotes, find_row_ends
from penstock.connectors.formats.halving import (
    check_nulls,
    collect_stretches,
    parse_stretches,
)
from penstock.connectors.formats.record_format import (
    Bytes,
    Decoded,
    RecordFormat,
    find_present,
)
from penstock.connectors.formats.values import NEWLINE, Lines, cut_lines, join_lines
from penstock.errors import ErrorCode, SchemaError, UserError

_CARRIAGE_RETURN = ord("\r")
STRETCH_BYTES = 4 << 20
"""How much text is parsed at once."""

_FORMS = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_timestamp,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_decimal,
)


class CsvRecords(RecordFormat):
    """Rows of CSV as RFC 4180 has them, without a header."""

    def __init__(self, schema: pa.Schema, *, columns: Sequence[str] = ()) -> None:
        self.schema = schema
        self._columns = tuple(columns) or tuple(schema.names)
        self._types = {field.name: field.type for field in schema}
        self._parser = CsvParser()
        problems = find_csv_problems(schema, self._columns)
        if problems:
            raise SchemaError(
                f"records cannot be CSV of these columns: {'; '.join(problems)}"
            )

    @override
    def decode(self, values: Bytes, keys: Bytes | None = None) -> Decoded:
        present, places = find_present(values)
        lines = _without_line_ends(join_lines(present))
        found = parse_stretches(lines.cut(STRETCH_BYTES), partial(self._parse, lines))
        return collect_stretches([*found], self.schema, places, len(values))

    @override
    def encode(self, rows: pa.Table) -> Bytes:
        if len(self._columns) != len(self.schema):
            left_out = set(self._columns) - set(self.schema.names)
            raise UserError(
                f"records cannot be written without {', '.join(sorted(left_out))}: leave "
                "columns= out, or have these columns in the rows",
                code=ErrorCode.INVALID_CONFIG,
            )
        out = io.BytesIO()
        pa_csv.write_csv(
            rows.select(self._columns), out, pa_csv.WriteOptions(include_header=False)
        )
        text = out.getvalue()
        values = cut_lines(text, find_row_ends(np.frombuffer(text, dtype=np.uint8)))
        if len(self._columns) > 1:
            return values
        # A null that stands alone would be an empty record, which is no row.
        is_empty: Any = pc.equal(pc.binary_length(values), pa.scalar(0))
        return pc.if_else(is_empty, pa.scalar(b'""', values.type), values)

    def _parse(self, lines: Lines, first: int, stop: int) -> pa.Table:
        stretch = lines.slice(first, stop)
        str(stretch.text, "utf-8")  # Arrow would pass wrong UTF-8 on
        if not (np.diff(stretch.offsets) > 1).all():
            raise ValueError("it is empty")
        check_quotes(stretch.characters)
        if not np.array_equal(find_row_ends(stretch.characters), stretch.offsets[1:]):
            raise ValueError("it is not one row: a newline stands outside of quotes")
        rows = self._parser.parse(stretch.text.to_pybytes(), self._columns, self._types)
        if len(stretch) != rows.num_rows:
            raise ValueError(f"it holds {rows.num_rows} rows instead of one")
        check_nulls(rows, self.schema)
        return rows.cast(self.schema) if rows.schema != self.schema else rows


def find_csv_problems(schema: pa.Schema, columns: Sequence[str]) -> list[str]:
    """Return why rows of a schema cannot be CSV with some columns."""
    problems = [] if schema.names else ["there are none"]
    if len(set(columns)) < len(columns):
        problems.append(f"columns={list(columns)} names one twice")
    problems += [
        f"column {name!r} is not among columns={list(columns)}"
        for name in schema.names
        if name not in columns
    ]
    return problems + [
        f"column {field.name!r} of type {field.type} has no form in CSV: make it text"
        for field in schema
        if not any(is_form(field.type) for is_form in _FORMS)
    ]


def _without_line_ends(lines: Lines) -> Lines:
    """Return values without the newline that some producers write behind a row."""
    lasts = lines.characters[np.maximum(lines.offsets[1:] - 2, 0)]
    if not ((lasts == NEWLINE) | (lasts == _CARRIAGE_RETURN)).any():
        return lines
    stripped = [value.rstrip(b"\r\n") for value in lines.to_list()]
    return join_lines(pa.array(stripped, pa.large_binary()))


VALUE = "value"
"""The column of records whose schema is not given."""


class PlainRecords(RecordFormat):
    """One column, of bytes or of text: the value of the record; a tombstone is null.

    Text is UTF-8; a value that is not is bad.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        kinds: list[Any] = schema.types
        if len(kinds) != 1 or not (_is_text(kinds[0]) or _is_bytes(kinds[0])):
            raise SchemaError(
                "records as they are have one column, of type binary or string: the schema has "
                f"{', '.join(f'{f.name!r} of type {f.type}' for f in schema) or 'none'}. Give "
                "one such column, or another format"
            )

    @override
    def decode(self, values: Bytes, keys: Bytes | None = None) -> Decoded:
        parse = partial(self._parse, values)
        found = [*parse_stretches([0, len(values)], parse)]
        return collect_stretches(found, self.schema, None, len(values))

    @override
    def encode(self, rows: pa.Table) -> Bytes:
        column: Any = rows.column(0).combine_chunks()
        return column.cast(pa.large_binary() if _is_large(column.type) else pa.binary())

    def _parse(self, values: Any, first: int, stop: int) -> pa.Table:
        # A cast to text checks that the bytes are UTF-8.
        column = values.slice(first, stop - first).cast(self.schema.types[0])
        rows = pa.Table.from_arrays([column], schema=self.schema)
        check_nulls(rows, self.schema)
        return rows


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_large(kind: Any) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))
