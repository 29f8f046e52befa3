"""Reads and writes Parquet files: positions are row groups, sizes come from the footer.

A row group is fetched with one request and decoded batch by batch, so a reader holds one
row group in its encoded form and one batch. A writer holds the encoded bytes of its file.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from penstock.connectors.files.formats import (
    Allowance,
    FileFormat,
    FileOffset,
    Piece,
    Reach,
    SourceFile,
)
from penstock.core.arrow_types import is_bytes, is_text
from penstock.errors import ErrorCode, UserError

_FOOTER_BYTES = 64 << 10
_BATCH_ROWS = 65_536
_KEPT_FOOTERS = 256


class ParquetFormat(FileFormat):
    """Reads whole row groups. Keeps what it needs of recent footers."""

    def __init__(self, schema: pa.Schema, *, ignores_extra: bool) -> None:
        super().__init__(schema, ignores_extra=ignores_extra)
        # By path and size, not by file: a file would keep its store alive after `release`.
        self._groups: dict[tuple[str, int], list[tuple[int, int]]] = {}

    @override
    @classmethod
    def infer(cls, file: SourceFile) -> pa.Schema:
        """Return the columns that a file's footer names, in their usual layouts."""
        with _open(file) as (reader, _):
            found = reader.schema_arrow
            return pa.schema([f.with_type(_to_plain_layout(f.type)) for f in found])

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
        for group_rows, group_bytes in groups[start.position :]:
            fits = (
                rows + group_rows <= allowance.rows
                and size_bytes + group_bytes <= allowance.size_bytes
            )
            if not fits and not (allowance.is_first and end == start.position):
                break
            end, rows, size_bytes = end + 1, rows + group_rows, size_bytes + group_bytes
        is_whole = end == len(groups)
        if end == start.position and not is_whole:
            return None
        return Reach(end, rows, size_bytes, is_whole)

    @override
    def read(self, file: SourceFile, start: FileOffset, end: int) -> Iterator[Piece]:
        """Read row groups in batches; the offset moves only behind the last batch of a group."""
        with _open(file) as (reader, window):
            self.check_columns(file, reader.schema_arrow)
            group_count = reader.metadata.num_row_groups
            at = start
            yield Piece((), (), at, is_last=at.position >= group_count)
            for index in range(start.position, end):
                group = reader.metadata.row_group(index)
                window.fetch(*_range_of(group, self.schema.names))
                for batch in self._batches(file, reader, index):
                    yield Piece((batch,), (), None, is_last=False)
                rows = at.lines + group.num_rows
                at = FileOffset(file.size_bytes, index + 1, rows)
                yield Piece((), (), at, is_last=index + 1 == group_count)

    def _batches(
        self, file: SourceFile, reader: pq.ParquetFile, index: int
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield from reader.iter_batches(
                _BATCH_ROWS,
                row_groups=[index],
                columns=self.schema.names,
                use_threads=False,
            )
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(file, f"row group {index}: {error}") from error

    def _groups_of(self, file: SourceFile) -> list[tuple[int, int]]:
        """Return rows and decoded bytes of every row group, after checking the columns."""
        key = (file.path, file.size_bytes)
        if key not in self._groups:
            with _open(file) as (reader, _):
                self.check_columns(file, reader.schema_arrow)
                metadata = reader.metadata
                self._groups[key] = [
                    (group.num_rows, group.total_byte_size)
                    for group in map(metadata.row_group, range(metadata.num_row_groups))
                ]
            if len(self._groups) > _KEPT_FOOTERS:
                del self._groups[next(iter(self._groups))]
        return self._groups[key]


def _to_plain_layout(kind: Any) -> pa.DataType:
    """Return the usual layout of a type; writers may choose another for the same values."""
    if pa.types.is_dictionary(kind):
        return _to_plain_layout(kind.value_type)
    if is_text(kind):
        return pa.string()
    return pa.binary() if is_bytes(kind) else kind


@contextmanager
def _open(file: SourceFile) -> Iterator[tuple[pq.ParquetFile, "_Window"]]:
    """Open a file by its footer; yield the reader, and the window that it reads through."""
    window = _Window(file)
    length = min(_FOOTER_BYTES, file.size_bytes)
    window.fetch(file.size_bytes - length, length)
    try:
        reader = pq.ParquetFile(pa.PythonFile(window, mode="r"), pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, str(error)) from error
    try:
        yield reader, window
    finally:
        window.close()


class _Window(io.RawIOBase):
    """A file for Arrow: a read is served from the bytes fetched last, else by a request."""

    def __init__(self, file: SourceFile) -> None:
        super().__init__()
        self._file = file
        self._start = 0
        self._bytes = b""
        self._at = 0

    def fetch(self, start: int, length: int) -> None:
        """Fetch these bytes and hold them, instead of those before."""
        self._bytes = b""
        self._start, self._bytes = start, self._file.read_range(start, length)

    @override
    def read(self, size: int = -1, /) -> bytes:
        rest = max(0, self._file.size_bytes - self._at)
        length = rest if size < 0 else min(size, rest)
        first = self._at - self._start
        if first >= 0 and first + length <= len(self._bytes):
            data = self._bytes[first : first + length]
        else:
            data = self._file.read_range(self._at, length)
        self._at += len(data)
        return data

    @override
    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = offset + (0, self._at, self._file.size_bytes)[whence]
        return self._at

    @override
    def tell(self) -> int:
        return self._at

    @override
    def readable(self) -> bool:
        return True


def _range_of(group: Any, names: Sequence[str]) -> tuple[int, int]:
    """Return where the wanted columns of a row group lie in the file: first byte, length."""
    starts, ends = [], []
    for column in map(group.column, range(group.num_columns)):
        if column.path_in_schema not in names and (
            column.path_in_schema.partition(".")[0] not in names
        ):
            continue
        start = column.data_page_offset
        if column.has_dictionary_page and column.dictionary_page_offset is not None:
            start = min(start, column.dictionary_page_offset)
        starts.append(start)
        ends.append(start + column.total_compressed_size)
    return (min(starts), max(ends) - min(starts)) if starts else (0, 0)


def _unreadable(file: SourceFile, reason: str) -> UserError:
    return UserError(
        f"{file} cannot be read as Parquet: {reason}. It is damaged, was not written to its "
        "end, or is something else: replace it before the job has begun it, or move it away",
        code=ErrorCode.UNREADABLE_INPUT,
        path=file.path,
    )


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
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        return int(self._out.tell())

    def close(self) -> bytes:
        """Return the whole file."""
        self._writer.close()
        return self._out.getvalue().to_pybytes()


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
