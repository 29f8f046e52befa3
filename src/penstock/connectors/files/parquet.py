"""Reads and writes Parquet files: positions are row groups, sizes come from the footer.

A row group is fetched with one request and decoded batch by batch, so a reader holds one
row group in its encoded form and one batch. A writer holds the encoded bytes of its file.

Arrow passes text on that is no UTF-8, and nulls in columns that must have values; whatever comes
later may fail on them without a name. So both are checked here, and such rows are bad rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from penstock.connectors.files.folders import Folders, add_folders
from penstock.connectors.files.formats import (
    Allowance,
    BadRow,
    FileFormat,
    FileOffset,
    Piece,
    Reach,
    SourceFile,
    fill_missing,
    widen_numbers,
)
from penstock.connectors.files.parquet_input import RowGroup, open_parquet, unreadable
from penstock.core.arrow_types import is_bytes, is_narrower, is_text, relay, stored_type
from penstock.errors import ErrorCode, UserError

_KEPT_FOOTERS = 256


class ParquetFormat(FileFormat):
    """Reads whole row groups. Keeps what it needs of recent footers."""

    unit = "row"
    widens = True

    def __init__(self, schema: pa.Schema, **options: Any) -> None:
        super().__init__(schema, **options)
        # By path and size, not by file: a file would keep its store alive after `release`.
        self._groups: dict[tuple[str, int], list[RowGroup]] = {}

    @override
    @classmethod
    def infer(cls, file: SourceFile) -> pa.Schema:
        """Return the columns that a file's footer names, in their usual layouts."""
        with open_parquet(file) as opened:
            fields = [f.with_type(_to_plain_layout(f.type)) for f in opened.schema]
            return pa.schema(fields)

    @override
    def check_types(self) -> None:
        """Accept all types."""

    @override
    def reach(
        self, file: SourceFile, start: FileOffset, allowance: Allowance
    ) -> Reach | None:
        """Take row groups as long as their rows and their decoded size fit."""
        groups = self._groups_of(file)
        end, rows, size_bytes = start.position, 0, 0
        for group in groups[start.position :]:
            more_rows, more_bytes = rows + group.rows, size_bytes + group.size_bytes
            fits = more_rows <= allowance.rows and more_bytes <= allowance.size_bytes
            if not fits and not (allowance.is_first and end == start.position):
                break
            end, rows, size_bytes = end + 1, more_rows, more_bytes
        is_whole = end == len(groups)
        if end == start.position and not is_whole:
            return None
        return Reach(end, rows, size_bytes, is_whole)

    @override
    def read(self, file: SourceFile, start: FileOffset, end: int) -> Iterator[Piece]:
        """Read row groups in batches; the offset moves only behind the last batch of a group."""
        with open_parquet(file) as opened:
            self.check_columns(file, opened.schema)
            found = set(opened.schema.names)
            names = [name for name in self.schema.names if name in found]
            folders = self.folders_of(file, names)
            required = [name for name in names if not self.schema.field(name).nullable]
            types = [opened.schema.field(name).type for name in names]
            wanted = [self.schema.field(name).type for name in names]
            narrower = [
                names[index]
                for index, kind in enumerate(types)
                if is_narrower(kind, wanted[index])
            ]
            checked = [n for n, kind in zip(names, types, strict=True) if _is_checked(kind)]
            count = len(opened.groups)
            if end > count:
                raise unreadable(file, f"it has {count} row groups, and had {end} before")
            at = start
            yield Piece((), (), at, is_last=at.position >= count)
            for index in range(start.position, end):
                row = at.lines
                for batch in opened.read_group(index, names):
                    rows, bad = _split_bad(batch, row + 1, required, checked)
                    row += batch.num_rows
                    if narrower:
                        rows = [widen_numbers(part, narrower, self.schema) for part in rows]
                    if self.fills_missing:
                        rows = [fill_missing(part, self.schema) for part in rows]
                    if folders:
                        rows = [self._add_folders(file, part, folders) for part in rows]
                    yield Piece(rows, bad, None, is_last=False)
                at = FileOffset(file.size_bytes, index + 1, row)
                yield Piece((), (), at, is_last=index + 1 == count)

    def _add_folders(
        self, file: SourceFile, rows: pa.RecordBatch | pa.Table, folders: Folders
    ) -> pa.Table:
        try:
            return add_folders(rows, folders, self.schema)
        except ValueError as error:
            raise UserError(
                f"{file} cannot be read: {error}. Rename the folder, or correct the schema",
                code=ErrorCode.UNREADABLE_INPUT,
                path=file.path,
            ) from error

    def _groups_of(self, file: SourceFile) -> list[RowGroup]:
        """Return what the footer says about row groups, after checking the columns."""
        key = (file.path, file.size_bytes)
        if key not in self._groups:
            with open_parquet(file) as opened:
                self.check_columns(file, opened.schema)
                self._groups[key] = opened.groups
            if len(self._groups) > _KEPT_FOOTERS:
                del self._groups[next(iter(self._groups))]
        return self._groups[key]


def _split_bad(
    batch: pa.RecordBatch, first_row: int, required: Sequence[str], checked: Sequence[str]
) -> tuple[list[pa.RecordBatch | pa.Table], list[BadRow]]:
    """Return rows, in stretches as long as possible, and bad rows apart."""
    good: list[pa.RecordBatch | pa.Table] = []
    bad: list[BadRow] = []
    waiting = [(0, batch.num_rows)]
    while waiting:
        first, stop = waiting.pop()
        stretch = batch.slice(first, stop - first)
        missing = next((n for n in required if stretch.column(n).null_count), None)
        name = _find_broken_text(stretch, checked) if missing is None else missing
        if name is None:
            good.append(stretch)
        elif stop - first > 1:
            middle = (first + stop) // 2
            waiting += [(middle, stop), (first, middle)]
        else:
            value = stretch.column(name)
            text = value.cast(pa.binary())[0].as_py() if is_text(value.type) else b""
            reason = "holds text that is no UTF-8"
            if missing is not None:
                text, reason = b"", "is null, and the schema does not allow that"
            bad.append(BadRow(first_row + first, text, f"column {name!r} {reason}"))
    return good, bad


def _find_broken_text(rows: pa.RecordBatch, checked: Sequence[str]) -> str | None:
    """Return the first of these columns that holds text which is no UTF-8."""
    for name in checked:
        column: Any = rows.column(name)
        if _is_ascii(column) or _is_valid(column):
            continue
        # Only values that occur in these rows count: a slice of nested values shares them
        # with others, and so does one of a dictionary. A value that its dictionary does not
        # have raises here.
        own = column.take(np.arange(len(column)))
        if not _is_valid(relay(own, stored_type(column.type))):
            return name
    return None


def _is_ascii(column: Any) -> bool:
    """Return whether text is ASCII for sure. Ten times as fast as a look at each value."""
    is_large = pa.types.is_large_string(column.type)
    if not (is_large or pa.types.is_string(column.type)):
        return False
    _, offsets, values = column.buffers()
    if values is None or not len(column):
        return True
    ends: Any = np.frombuffer(offsets, np.int64 if is_large else np.int32)
    first, last = ends[column.offset], ends[column.offset + len(column)]
    return bool(np.frombuffer(values, np.int8)[first:last].min(initial=0) >= 0)


def _is_valid(column: Any) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_checked(kind: Any) -> bool:
    """Return whether values may be broken: text, and entries that a dictionary does not have."""
    parts = (kind.field(index).type for index in range(kind.num_fields))
    return is_text(kind) or pa.types.is_dictionary(kind) or any(map(_is_checked, parts))


def _to_plain_layout(kind: Any) -> pa.DataType:
    """Return the usual layout of a type; writers may choose another for the same values."""
    if pa.types.is_dictionary(kind):
        return _to_plain_layout(kind.value_type)
    if is_text(kind):
        return pa.string()
    return pa.binary() if is_bytes(kind) else kind


class ParquetPart:
    """A Parquet file being written in memory. Used by one thread, closed once.

    Files use Zstd at its fastest level, dictionaries for text and differences for numbers.
    """

    def __init__(self, schema: pa.Schema) -> None:
        types = pa.types
        # A dictionary of numbers rarely makes a file smaller, and trying it halves the speed.
        has_text = (types.is_string, types.is_large_string, types.is_dictionary)
        text: Any = [c.name for c in schema if any(has(c.type) for has in has_text)]
        # Differences are smaller than the numbers: writing takes half the time and less space.
        has_differences = (types.is_integer, types.is_timestamp, types.is_date)
        numbers = [c.name for c in schema if any(has(c.type) for has in has_differences)]
        self._out = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._out,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=text,
            column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        )

    def write(self, rows: pa.Table) -> int:
        """Add rows as a row group; return how many bytes the file has."""
        try:
            self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        except pa.ArrowInvalid as error:
            raise UserError(
                f"a value has no form in Parquet, where times are in milliseconds or finer: {error}. "
                "Change it before the sink",
                code=ErrorCode.VALUE_OUT_OF_RANGE,
            ) from error
        return int(self._out.tell())

    def close(self) -> bytes:
        """Return the whole file."""
        self._writer.close()
        return self._out.getvalue().to_pybytes()


def check_parquet_values(rows: pa.Table) -> None:
    """Raise `UserError` for a value that has no form in Parquet."""
    # Only times in seconds may have none. A type's text tells those inside of lists, too.
    coarse = [c.name for c in rows.schema if "timestamp[s" in str(c.type)]
    if coarse:
        chosen = rows.select(coarse)
        ParquetPart(chosen.schema).write(chosen)


def find_parquet_problems(schema: pa.Schema) -> list[str]:
    """Return the columns that Parquet cannot hold, with the reason."""
    problems = []
    for field in schema:
        column = pa.schema([field])
        try:
            part = ParquetPart(column)
            part.write(column.empty_table())
            part.close()
        except (pa.ArrowException, NotImplementedError, OSError) as error:
            problems.append(
                f"column {field.name!r} of type {field.type} cannot be written to Parquet: "
                f"{error}"
            )
    return problems
