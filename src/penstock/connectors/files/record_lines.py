"""RecordLines: files whose lines are records, each decoded by a `RecordFormat` as Kafka's values are.

A line is the value of a record, without its newline and a carriage return before that. It has no key,
so formats that read keys are refused. Of Debezium's records a blank line and `null` are
tombstones, as those who copy topics to files write them. To all other formats every line is a value.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.connectors.files.compressed import TextInput
from penstock.connectors.files.folders import Folders, add_folders
from penstock.connectors.files.formats import BadRow, FileOffset, Piece, SourceFile
from penstock.connectors.files.text import Ends, Heading, TextFormat, mark_length
from penstock.connectors.formats.record_format import (
    BadRecord,
    Bytes,
    Decoded,
    RecordFormat,
)
from penstock.connectors.formats.registry import record_format
from penstock.connectors.formats.values import cut_lines
from penstock.errors import ErrorCode, InternalError, UserError

RECORD_FORMATS: Final = ("debezium", "bytes")
"""The formats of records that lines have by name; others are named by their module."""
_WITH_TOMBSTONES: Final = frozenset({"debezium"})
_TOMBSTONE: Final = r"\A[ \t\r]*(null[ \t\r]*)?\z"
_LINES_AT_ONCE: Final = 10_000
"""Where most lines are bad, so many take about a second: what is decoded is given on then."""

UPSERTS_NEED_KEYS: Final = (
    "the format 'upsert' reads the keys of records, and a line has none: read lines of JSON with "
    "format='jsonl', and tell the key behind it, as from_upserts(name, key=…, deleted=…)"
)


def is_record_format(name: str) -> bool:
    """Tell whether lines of a format are handed to a `RecordFormat`."""
    return name in RECORD_FORMATS or ":" in name


def record_lines(
    name: str, schema: pa.Schema | None, options: Mapping[str, Any]
) -> "RecordLines":
    """Return what reads lines of a format by its name; refuse one that needs keys."""
    records = record_format(name, schema, options)
    if records.reads_keys:
        raise UserError(
            f"the format {name!r} reads the keys of records, and a line has none: name a format "
            "that reads values alone",
            code=ErrorCode.INVALID_CONFIG,
        )
    return RecordLines(records, has_tombstones=name in _WITH_TOMBSTONES)


class RecordLines(TextFormat):
    """Lines that are records of a format; bad ones are as it tells them."""

    def __init__(
        self, records: RecordFormat, *, has_tombstones: bool = False, **options: Any
    ) -> None:
        super().__init__(records.schema, ignores_extra=True, **options)
        self._records = records
        self._has_tombstones = has_tombstones

    @override
    @classmethod
    def infer(cls, file: SourceFile) -> pa.Schema:
        raise InternalError(f"the columns of {file} are those of its format")

    @override
    def check_types(self) -> None:
        """The format has refused what it cannot read."""

    @override
    def read_heading(self, file: SourceFile, source: TextInput) -> Heading:
        """Return nothing, or a byte order mark."""
        length = mark_length(source.read(0, 3))
        return Heading(length, folders=self.folders_of(file, ()))

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
        whole = text if text.endswith(b"\n") else text + b"\n"
        lines = _without_returns(cut_lines(whole, self.find_row_ends(whole)))
        for first in range(0, len(lines), _LINES_AT_ONCE):
            some = lines.slice(first, _LINES_AT_ONCE)
            stop = first + len(some)
            decoded = self._records.decode(self._values_of(some))
            if heading.folders:
                decoded = _with_folders(decoded, heading.folders, self.schema, len(some))
            bad = [
                BadRow(
                    at.lines + first + one.index + 1,
                    some[one.index].as_py(),
                    one.reason,
                    one.fails,
                )
                for one in decoded.bad
            ]
            position = at.position + int(ends[stop - 1])
            yield Piece(
                (decoded.rows,),
                bad,
                FileOffset(at.size_bytes, position, at.lines + stop),
                is_last=is_last and stop == len(lines),
            )

    def _values_of(self, lines: Bytes) -> Bytes:
        if not self._has_tombstones:
            return lines
        is_tombstone = pc.match_substring_regex(lines, _TOMBSTONE)
        return pc.if_else(is_tombstone, pa.scalar(None, lines.type), lines)


def _without_returns(lines: Any) -> Bytes:
    """Return lines without the carriage return that some systems write before a newline."""
    has_return: Any = pc.ends_with(lines, "\r")
    if not has_return.true_count:
        return lines
    return pc.if_else(has_return, pc.binary_slice(lines, 0, -1), lines)


def _with_folders(
    decoded: Decoded, folders: Folders, schema: pa.Schema, count: int
) -> Decoded:
    """Return rows with what folders tell; if that is no value of its column, all are bad."""
    try:
        rows = add_folders(decoded.rows, folders, schema)
        return Decoded(rows.cast(schema), decoded.taken, decoded.bad)
    except ValueError as error:
        taken = np.arange(count) if decoded.taken is None else np.unique(decoded.taken)
        told = [BadRecord(int(place), str(error)) for place in taken]
        every = sorted([*decoded.bad, *told], key=lambda one: one.index)
        return Decoded(schema.empty_table(), taken[:0], tuple(every))
