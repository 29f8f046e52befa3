"""Reads CSV as RFC 4180 has it: a header, commas, quotes that may hold newlines.

Arrow parses the rows. For Arrow all times of a column have a zone, or none has. As in JSON
lines, others are read, too: what has a zone is an instant, what has none is in UTC, and a
column without a zone holds the times in UTC. An empty field is null, except in a column of text, where it is empty
text. A quote that neither begins nor ends a field breaks the format: it makes its row bad, and
all rows up to the next such quote.

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
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from typing_extensions import override

from penstock.connectors.files.formats import SourceFile
from penstock.connectors.files.text import NEWLINE, Ends, Heading, TextFormat, mark_length
from penstock.errors import ErrorCode, SchemaError, UserError

_QUOTE, _CARRIAGE_RETURN = b'"\r'
_BESIDE_FIELDS = np.frombuffer(b',\r\n"', dtype=np.uint8)
"""The characters that may stand before an opening or behind a closing quote. A doubled quote
stands beside another one."""


_ZONE = r"^[\d-]+[T ].*(Z|[+-]\d\d(:?\d\d)?)$"
"""Matches times that have a zone; a date alone has none, though it ends like one."""


class CsvFormat(TextFormat):
    """Reads CSV files with a header."""

    _has_odd_times = False
    """Times were found whose zone, or lack of it, is not that of their column."""

    @override
    def row_without_values(self) -> bytes:
        """Return empty fields, in quotes: a single empty field would be a blank line."""
        return b",".join([b'""'] * len(self.schema)) + b"\n"

    @override
    def find_row_ends(self, text: bytes) -> Ends:
        """Return where the rows end: newlines that an even number of quotes precedes."""
        characters = np.frombuffer(text, dtype=np.uint8)
        ends = np.flatnonzero(characters == NEWLINE) + 1
        quotes = np.flatnonzero(characters == _QUOTE)
        if not len(quotes):
            return ends
        is_outside = np.searchsorted(quotes, ends) % 2 == 0
        return np.compress(is_outside, ends)

    @override
    def count_rows(self, text: bytes) -> int:
        """Return how many rows are not blank; raise if a quote is in a wrong place.

        With all quotes in their places, quotes that are open at a newline are open for Arrow
        too. Arrow gives no row for a blank line and at least one for any other, so if it gives
        as many rows as counted here, each line gave exactly one.
        """
        characters = np.frombuffer(text, dtype=np.uint8)
        _check_quotes(characters)
        starts = np.concatenate([[0], self.find_row_ends(text)])
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
        if not self._has_odd_times:
            try:
                return _read(text, heading.columns, types)
            except pa.ArrowInvalid:
                if not any(map(pa.types.is_timestamp, types.values())):
                    raise
        table = _read_odd_times(text, heading.columns, types)
        # The next text is likely to hold such times, too: it is not parsed twice.
        self._has_odd_times = True
        return table

    @override
    def parse_sample(self, text: bytes, heading: Heading) -> pa.Table:
        found = _read(text, heading.columns, None)
        for index, column in enumerate(found.columns):
            # Arrow takes nanoseconds for any fraction, and their years end in 2262.
            kind: Any = column.type
            if pa.types.is_timestamp(kind) and kind.unit == "ns":
                with suppress(pa.ArrowInvalid):
                    micros = column.cast(pa.timestamp("us", kind.tz))
                    found = found.set_column(index, found.column_names[index], micros)
        return found

    @override
    def read_heading(self, file: SourceFile) -> Heading:
        """Return the header, after comparing its columns with the schema's."""
        length = min(64 << 10, self._max_row_bytes)
        complaint = "has no header: its first {length} bytes are one line"
        text, ends = self._read_window(file, 0, length, complaint)
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


def _check_quotes(characters: npt.NDArray[np.uint8]) -> None:
    """Refuse quotes that neither stand around a field nor are doubled inside of one."""
    quotes = np.flatnonzero(characters == _QUOTE)
    if not len(quotes):
        return
    if len(quotes) % 2:
        raise ValueError("a quote is not closed")
    # A newline before and behind the text gives every character two neighbours.
    padded = np.concatenate([[NEWLINE], characters, [NEWLINE]])
    before, after = padded[quotes[0::2]], padded[quotes[1::2] + 2]
    if not (np.isin(before, _BESIDE_FIELDS).all() and np.isin(after, _BESIDE_FIELDS).all()):
        raise ValueError("a quote stands inside of a field, and is not doubled")


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


def _read(
    text: bytes, columns: tuple[str, ...], types: dict[str, pa.DataType] | None
) -> pa.Table:
    if not text.strip(b"\r\n"):
        fields = [pa.field(name, (types or {}).get(name, pa.null())) for name in columns]
        return pa.schema(fields).empty_table()
    if mark_length(text):
        # Arrow drops a byte order mark at the start of a text, which here may be part of a
        # row. Behind an empty line it is kept.
        text = b"\n" + text
    return pa_csv.read_csv(
        io.BytesIO(text),
        read_options=pa_csv.ReadOptions(
            use_threads=False, block_size=len(text) + 1, column_names=list(columns)
        ),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=types,
            include_columns=None if types is None else list(types),
            null_values=[""],
            strings_can_be_null=False,
        ),
    )


def _read_odd_times(
    text: bytes, columns: tuple[str, ...], types: dict[str, pa.DataType]
) -> pa.Table:
    """Read columns of times as text, and convert what has a zone and what has none apart."""
    is_time = pa.types.is_timestamp
    as_text = {name: pa.string() if is_time(t) else t for name, t in types.items()}
    table = _read(text, columns, as_text)
    for index, (name, kind) in enumerate(types.items()):
        if is_time(kind):
            times = _parse_times(table.column(name), kind)
            table = table.set_column(index, name, times)
    return table


def _parse_times(texts: Any, kind: Any) -> Any:
    """Return timestamps of a column's type, from text with and without a zone."""
    has_zone = pc.match_substring_regex(texts, _ZONE)
    is_empty: Any = pc.equal(texts, pa.scalar(""))
    instants = pc.if_else(has_zone, texts, None).cast(pa.timestamp(kind.unit, "UTC"))
    rest = pc.if_else(pc.or_(has_zone, is_empty), None, texts)
    local = rest.cast(pa.timestamp(kind.unit))
    return pc.coalesce(instants.cast(local.type), local).cast(kind)
