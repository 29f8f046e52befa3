"""Reads CSV as RFC 4180 has it: a header, commas, quotes that may hold newlines.

How fields are parsed is said in `formats/csv_text`. A quote that neither begins nor ends a
field breaks the format: it makes its row bad, and all rows up to the next such quote.

A row ends at a newline. For Arrow a carriage return outside of quotes ends a row too: one
before or after a row does no harm, and one inside makes the row bad, because Arrow would read
two rows.
"""

import csv
import io
from collections import Counter
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.connectors.files.compressed import TextInput
from penstock.connectors.files.formats import SourceFile
from penstock.connectors.files.parsed_text import ParsedText
from penstock.connectors.files.text import NEWLINE, Ends, Heading, mark_length
from penstock.connectors.formats.csv_text import (
    CsvParser,
    check_quotes,
    find_row_ends,
    read_rows,
)
from penstock.errors import ErrorCode, SchemaError, UserError

_CARRIAGE_RETURN = ord("\r")


class CsvFormat(ParsedText):
    """Reads CSV files with a header."""

    def __init__(self, schema: pa.Schema, **options: Any) -> None:
        super().__init__(schema, **options)
        self._parser = CsvParser()

    @override
    def row_without_values(self) -> bytes:
        """Return empty fields, in quotes: a single empty field would be a blank line."""
        return b",".join([b'""'] * len(self.schema)) + b"\n"

    @override
    def find_row_ends(self, text: bytes) -> Ends:
        """Return where the rows end: newlines that an even number of quotes precedes."""
        return find_row_ends(np.frombuffer(text, dtype=np.uint8))

    @override
    def count_rows(self, text: bytes) -> int:
        """Return how many rows are not blank; raise if a quote is in a wrong place.

        With all quotes in their places, quotes that are open at a newline are open for Arrow
        too. Arrow gives no row for a blank line and at least one for any other, so if it gives
        as many rows as counted here, each line gave exactly one.
        """
        characters = np.frombuffer(text, dtype=np.uint8)
        check_quotes(characters)
        starts = np.concatenate([[0], find_row_ends(characters)])
        starts = starts[starts < len(text)]
        firsts = characters[starts]
        if not (firsts == _CARRIAGE_RETURN).any():
            return int(np.count_nonzero(firsts != NEWLINE))
        is_content = (characters != NEWLINE) & (characters != _CARRIAGE_RETURN)
        return int(np.count_nonzero(np.logical_or.reduceat(is_content, starts)))

    @override
    def parse(self, text: bytes, heading: Heading) -> pa.Table:
        names = set(heading.columns)
        types = {field.name: field.type for field in self.schema if field.name in names}
        return self._parser.parse(text, heading.columns, types)

    @override
    def parse_sample(self, text: bytes, heading: Heading) -> pa.Table:
        found = read_rows(text, heading.columns, None)
        for index, column in enumerate(found.columns):
            # Arrow takes nanoseconds for any fraction, and their years end in 2262.
            kind: Any = column.type
            if pa.types.is_timestamp(kind) and kind.unit == "ns":
                with suppress(pa.ArrowInvalid):
                    micros = column.cast(pa.timestamp("us", kind.tz))
                    found = found.set_column(index, found.column_names[index], micros)
        return found

    @override
    def read_heading(self, file: SourceFile, source: TextInput) -> Heading:
        """Return the header, after comparing its columns with the schema's."""
        length = min(64 << 10, self._max_row_bytes)
        complaint = "has no header: its first {length} bytes are one line"
        text, ends = self._read_window(file, source, 0, length, complaint)
        line = text[mark_length(text) : ends[0]]
        columns = _read_columns(file, line)
        problems = [
            f"column {name!r} occurs more than once"
            for name, count in Counter(columns).items()
            if count > 1
        ]
        if problems:
            raise SchemaError(
                f"the header of {file} cannot be used: {'; '.join(problems)}. Rename them",
                path=file.path,
            )
        fields = {field.name: field for field in self.schema}
        found = [fields.get(name, pa.field(name, pa.string())) for name in columns]
        self.check_columns(file, pa.schema(found))
        folders = self.folders_of(file, columns)
        return Heading(int(ends[0]), line.count(b"\n"), columns, folders)


def _read_columns(file: SourceFile, line: bytes) -> tuple[str, ...]:
    """Return the names in a header; refuse a header that holds more than one row."""
    try:
        text = io.StringIO(line.decode(), newline="")
        parts = filter(None, csv.reader(text, strict=True))
        found = list(islice(parts, 2))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"the header of {file} cannot be read: {error}",
            code=ErrorCode.UNREADABLE_INPUT,
            path=file.path,
        ) from error
    if len(found) > 1:
        more = ",".join(found[1])[:80]
        raise UserError(
            f"the header of {file} goes on with {more!r}: a quote in it is not closed, or "
            "lines end with a carriage return alone. Correct the header, or end lines with a "
            "newline",
            code=ErrorCode.UNREADABLE_INPUT,
            path=file.path,
        )
    return tuple(found[0]) if found else ()
