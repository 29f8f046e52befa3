"""Opens Parquet files through their store, so that damage is an error that names the file.

How it works: pyarrow's Python objects for the parts of a footer call C++ code that may throw,
and some do not catch that: one flipped bit in the statistics of a column would abort the
process. Its readers catch everything. So of a footer only the counts of row groups are looked
at here, which cannot throw, and all else is left to a reader.

Where the columns of a large row group lie is asked of a reader, too: it is given a file that
holds nothing but zeros, and is seen to ask for the columns before it fails. The zeros are never
looked at but for the first, so they take no memory. Then all columns are fetched with one
request. Of small row groups, whose columns are read sooner than asked for, many are fetched
with one request. A range that was not fetched is requested when it is read, so a wrong range
costs a request and no row.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from penstock.connectors.files.formats import SourceFile
from penstock.errors import ErrorCode, UserError

BATCH_ROWS = 65_536
_FOOTER_BYTES = 64 << 10
_AHEAD_BYTES = 1 << 20
"""How much is fetched when less is read, and the size up to which a row group is small."""
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError)
"""What readers raise for bytes that are no Parquet. Errors of the store are none of these."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """What a footer says about a row group."""

    rows: int
    size_bytes: int
    """The size of all columns when they are decompressed."""


class ParquetInput:
    """A Parquet file that is open. Used by one thread, within `open_parquet`."""

    def __init__(self, file: SourceFile) -> None:
        self._window = _Window(file)
        length = min(_FOOTER_BYTES, file.size_bytes)
        self._window.fetch(file.size_bytes - length, length)
        self._reader = _open(self._window)
        self._zeros = _Zeros(file.size_bytes)
        self._prober: pq.ParquetFile | None = None
        self._file = file
        self.schema: pa.Schema = self._reader.schema_arrow
        self.groups = self._read_groups()

    def read_group(self, index: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read these columns of a row group, which is fetched at once, in batches."""
        self._fetch_columns(index, names)
        rows = 0
        try:
            for batch in _read(self._reader, index, names):
                rows += batch.num_rows
                yield batch
        except _DAMAGE as error:
            column = self._find_damaged(index, names)
            where = f"row group {index}" + (f", column {column!r}" if column else "")
            raise unreadable(self._file, f"{where}: {error}") from error
        if rows != self.groups[index].rows:
            raise unreadable(
                self._file,
                f"row group {index} has {rows} rows, and {self.groups[index].rows} by the "
                "footer",
            )

    def close(self) -> None:
        """Drop the bytes that were fetched."""
        self._window.close()

    def _read_groups(self) -> list[RowGroup]:
        metadata = self._reader.metadata
        found = map(metadata.row_group, range(metadata.num_row_groups))
        groups = [RowGroup(g.num_rows, max(0, g.total_byte_size)) for g in found]
        rows = sum(group.rows for group in groups)
        if rows != metadata.num_rows or any(group.rows < 0 for group in groups):
            raise unreadable(
                self._file,
                f"its footer says {metadata.num_rows} rows, and {rows} by row group",
            )
        return groups

    def _find_damaged(self, index: int, names: Sequence[str]) -> str | None:
        """Return the first column of a row group that cannot be read by itself."""
        for name in names:
            try:
                for _ in _read(self._reader, index, [name]):
                    pass
            except _DAMAGE:
                return name
        return None

    def _fetch_columns(self, index: int, names: Sequence[str]) -> None:
        """Fetch the bytes from the first of these columns of a row group to the last."""
        if self.groups[index].size_bytes <= _AHEAD_BYTES:
            return
        asked = self._zeros.asked
        asked.clear()
        # What is wrong with the footer is raised again when the columns are read.
        with suppress(*_DAMAGE, MemoryError):
            if self._prober is None:
                self._prober = _open(self._zeros, self._reader.metadata)
            next(_read(self._prober, index, names), None)
        if asked:
            start = min(start for start, _ in asked)
            end = max(start + length for start, length in asked)
            self._window.fetch(start, end - start)


@contextmanager
def open_parquet(file: SourceFile) -> Iterator[ParquetInput]:
    """Open a file by its footer; whatever in it cannot be read is an error that names it."""
    try:
        opened = ParquetInput(file)
        try:
            yield opened
        finally:
            opened.close()
    except _DAMAGE as error:
        raise unreadable(file, str(error)) from error


def unreadable(file: SourceFile, reason: str) -> UserError:
    """Return the error for a file that is no Parquet, or no longer."""
    return UserError(
        f"{file} cannot be read as Parquet: {reason}. It is damaged, was not written to its "
        "end, or is something else: replace it before the job has begun it, or move it away",
        code=ErrorCode.UNREADABLE_INPUT,
        path=file.path,
    )


def _open(source: "_Bytes", metadata: Any = None) -> pq.ParquetFile:
    return pq.ParquetFile(
        pa.PythonFile(source, mode="r"),
        metadata=metadata,
        pre_buffer=False,
        page_checksum_verification=True,
    )


def _read(
    reader: pq.ParquetFile, index: int, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    yield from reader.iter_batches(
        BATCH_ROWS, row_groups=[index], columns=list(names), use_threads=False
    )


class _Bytes(io.RawIOBase):
    """A file of a known size, for Arrow."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self._size_bytes = size_bytes
        self._at = 0

    def bytes_at(self, start: int, length: int) -> Any:
        """Return bytes of the file; the range lies in it."""
        raise NotImplementedError

    @override
    def read(self, size: int = -1, /) -> Any:
        rest = max(0, self._size_bytes - self._at)
        length = rest if size < 0 else min(size, rest)
        data = self.bytes_at(self._at, length) if length else b""
        self._at += length
        return data

    @override
    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = offset + (0, self._at, self._size_bytes)[whence]
        return self._at

    @override
    def tell(self) -> int:
        return self._at

    @override
    def readable(self) -> bool:
        return True


class _Window(_Bytes):
    """The bytes fetched last; what else is read takes a request, which reads ahead."""

    def __init__(self, file: SourceFile) -> None:
        super().__init__(file.size_bytes)
        self._file = file
        self._start = 0
        self._bytes = b""

    def fetch(self, start: int, length: int) -> None:
        """Fetch these bytes and hold them, instead of those before."""
        self._bytes = b""
        self._start, self._bytes = start, self._file.read_range(start, length)

    @override
    def bytes_at(self, start: int, length: int) -> Any:
        if not self._holds(start, length):
            if length > _AHEAD_BYTES:
                return self._file.read_range(start, length)
            self.fetch(start, min(_AHEAD_BYTES, self._size_bytes - start))
        first = start - self._start
        return memoryview(self._bytes)[first : first + length]

    def _holds(self, start: int, length: int) -> bool:
        return self._start <= start and start + length <= self._start + len(self._bytes)


class _Zeros(_Bytes):
    """Zeros, and what was asked for."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.asked: list[tuple[int, int]] = []

    @override
    def bytes_at(self, start: int, length: int) -> Any:
        self.asked.append((start, length))
        return bytes(length)
