"""ParsedText: text that is parsed a piece at a time; bad rows are found by halving pieces.

How it works: a piece of some megabytes is parsed at once. Only if that fails, or gives
another number of rows than the text has, it is halved: see `formats/halving`.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.connectors.files.compressed import open_text
from penstock.connectors.files.folders import add_folders
from penstock.connectors.files.formats import (
    BadRow,
    FileOffset,
    Piece,
    SourceFile,
    fill_missing,
)
from penstock.connectors.files.text import NEWLINE, Ends, Heading, TextFormat
from penstock.connectors.formats.halving import check_nulls, parse_stretches
from penstock.errors import ErrorCode, SchemaError, UserError

SAMPLE_BYTES = 1 << 20
_BAD_ROWS_OF_PIECE = 256


class ParsedText(TextFormat):
    """Rows of text that are parsed many at once. Subclasses parse them."""

    @override
    @classmethod
    def infer(cls, file: SourceFile) -> pa.Schema:
        """Return the columns that the first rows suggest, in types wide enough for others.

        Timestamps get microseconds, or nanoseconds if the sample has them. A column of nulls
        has no known type.
        """
        reader = cls(pa.schema([]), ignores_extra=True, max_row_bytes=SAMPLE_BYTES)
        source = open_text(file)
        heading = reader.read_heading(file, source)
        text = source.read(heading.length, SAMPLE_BYTES)
        ends = reader.find_row_ends(text)
        if not source.is_end(heading.length + len(text)) and len(ends):
            text = text[: ends[-1]]
        try:
            found = reader.parse_sample(text, heading).schema
        except pa.ArrowException as error:
            raise UserError(
                f"the columns of {file} cannot be told from its first rows: {error}. Pass "
                "schema=",
                code=ErrorCode.INVALID_CONFIG,
                path=file.path,
            ) from error
        except ValueError as error:
            raise UserError(
                f"{file} cannot be read: {error}",
                code=ErrorCode.UNREADABLE_INPUT,
                path=file.path,
            ) from error
        unknown = [each.name for each in found if pa.types.is_null(each.type)]
        if unknown or not len(found):
            what = f"the types of {', '.join(map(repr, unknown))}" if unknown else "columns"
            raise UserError(
                f"{file} does not tell {what}: its first rows have no values. Pass schema=",
                code=ErrorCode.INVALID_CONFIG,
                path=file.path,
            )
        return pa.schema([(each.name, _widened(each.type)) for each in found])

    @abstractmethod
    def row_without_values(self) -> bytes:
        """Return a row in which all columns are null."""

    @override
    def check_types(self) -> None:
        """Refuse a schema with types that have no form in this kind of text."""
        try:
            self.parse(self.row_without_values(), Heading(columns=tuple(self.schema.names)))
        except pa.ArrowNotImplementedError as error:
            raise SchemaError(
                f"the schema has a type that text is not read as: {error}. Read the column as "
                "text and convert it in a later step, or use Parquet"
            ) from error
        except pa.ArrowInvalid:
            return  # the type can be parsed; only a null was refused

    @abstractmethod
    def count_rows(self, text: bytes) -> int:
        """Return how many rows there are in whole lines, without blank ones.

        Raises ValueError for text that a parser would cut into other rows than `find_row_ends`
        does: a bad row could then pass for a good one together with the rows beside it.
        """

    @abstractmethod
    def parse(self, text: bytes, heading: Heading) -> pa.Table:
        """Return the rows of a text; raise an Arrow error or ValueError if one is bad."""

    @abstractmethod
    def parse_sample(self, text: bytes, heading: Heading) -> pa.Table:
        """Return the rows of a text in the columns and types that Arrow finds in it.

        Raises ValueError for text that no schema could make readable.
        """

    @override
    def parse_rows(
        self,
        text: bytes,
        ends: Ends,
        heading: Heading,
        at: FileOffset,
        *,
        is_last: bool,
    ) -> Iterator[Piece]:
        """Parse rows; those that cannot be parsed become bad rows with the reason.

        A stretch costs a fraction of a millisecond however short it is, so where most rows
        are bad this takes seconds: what is parsed is yielded from time to time.
        """
        starts = np.concatenate([[0], ends[:-1]])
        newlines = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == NEWLINE)
        good: list[pa.Table] = [self.schema.empty_table()]
        bad: list[BadRow] = []

        def parse(first: int, stop: int) -> pa.Table:
            return self._parse_stretch(text[starts[first] : ends[stop - 1]], heading)

        for stretch in parse_stretches([0, len(ends)], parse):
            first, stop = stretch.first, stretch.stop
            if stretch.rows is not None:
                good.append(stretch.rows)
            else:
                line = at.lines + int(np.searchsorted(newlines, starts[first])) + 1
                row = text[starts[first] : ends[stop - 1]].rstrip(b"\r\n")
                bad.append(BadRow(line, row, stretch.reason, stretch.fails))
            if stop == len(ends) or len(bad) >= _BAD_ROWS_OF_PIECE:
                end = ends[stop - 1]
                position = at.position + int(end)
                lines = at.lines + int(np.searchsorted(newlines, end))
                yield Piece(
                    (pa.concat_tables(good),),
                    tuple(bad),
                    FileOffset(at.size_bytes, position, lines),
                    is_last=is_last and stop == len(ends),
                )
                good, bad = [self.schema.empty_table()], []

    def _parse_stretch(self, stretch: bytes, heading: Heading) -> pa.Table:
        stretch.decode()  # a parser would pass wrong UTF-8 on
        row_count = self.count_rows(stretch)
        if row_count == 0:
            return self.schema.empty_table()
        table = self.parse(stretch, heading)
        if table.num_rows != row_count:
            raise ValueError(f"it holds {table.num_rows} rows instead of one")
        if self.fills_missing:
            table = fill_missing(table, self.schema)
        if heading.folders:
            table = add_folders(table, heading.folders, self.schema)
        check_nulls(table, self.schema)
        return table.cast(self.schema) if table.schema != self.schema else table


def _widened(kind: Any) -> pa.DataType:
    is_coarse = pa.types.is_timestamp(kind) and kind.unit in ("s", "ms")
    return pa.timestamp("us", kind.tz) if is_coarse else kind
