"""Reading state files: verified, through the cache, and no more of a file than is needed.

Every byte that reaches a table has been checked against a checksum of the checkpoint's
metadata: that of the whole file, or that of the footer, which holds the checksum of each
segment. A file that fails is left as it is.
"""

import io
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from penstock.core.ids import KeyRange, Readable, checksum_of
from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.files.cache import CacheKey, FileCache
from penstock.state.files.parquet import (
    FOOTER,
    KEY_HASH,
    Footer,
    Segment,
    as_batch,
    decode_row_groups,
    footer_batch,
)
from penstock.state.files.state_file import StateFile
from penstock.state.storage.object_store import ObjectStore

_ADVICE = (
    "Nothing was changed; epochs that do not use this file stay restorable: restore the job "
    "from an older epoch or a savepoint, or put the original object back"
)


def drop_cached(cache: FileCache, checksum: int) -> None:
    """Remove the pieces of a file that has left its list; a later reader fetches it again.

    Without a readable footer its pieces are not known; they are evicted when the cache is
    full.
    """
    footer = cache.peek(CacheKey(checksum, form=FOOTER))
    if footer is None:
        return
    # The cache holds only copies, so an entry that cannot be read is no error.
    with suppress(pa.ArrowException, OSError):
        parquet = pq.read_metadata(pa.BufferReader(footer.column(0)[0].as_buffer()))
        for index in range(parquet.num_row_groups):
            cache.remove(CacheKey(checksum, index))
    cache.remove(CacheKey(checksum, form=FOOTER))


@dataclass(eq=False)
class StateFileReader:
    """Reads one state file. It opens the file when needed, keeps the footer, and holds no rows."""

    store: ObjectStore
    cache: FileCache
    file: StateFile
    bytes_read: int = field(default=0, init=False)
    """Bytes fetched from the store so far; cache hits are not counted."""
    _footer: Footer | None = field(default=None, init=False)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The file's row groups in order, visible or not."""
        return self._open().segments

    @property
    def visible_segments(self) -> tuple[Segment, ...]:
        """The row groups that may hold rows in the list entry's visible range."""
        return tuple(
            segment for segment in self.segments if segment.may_hold(self.file.visible)
        )

    def read_segment(self, index: int) -> pa.RecordBatch:
        """Return all rows of one row group, visible in the list entry or not.

        The result is one contiguous batch, mapped from the cache: what is not there is fetched by
        one range read, verified, decoded and cached.
        """
        segment = self.segments[index]
        key = CacheKey(self.file.checksum, index)
        cached = self.cache.get(key)
        if cached is not None:
            return cached
        data = self._fetch(segment.start, segment.size_bytes)
        self._require_checksum(f"row group {index}", segment.checksum, data)
        window = _Window(data, segment.start, self.file.size_bytes)
        return self._cached(index, as_batch(self._decode(window, index)))

    def _cached(self, index: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Put rows into the cache and return them mapped from there, so that holding them is free.

        If the cache does not take them they stay in memory.
        """
        key = CacheKey(self.file.checksum, index)
        self.cache.put(key, batch)
        mapped = self.cache.peek(key)
        return batch if mapped is None else mapped

    def read(self) -> pa.Table:
        """Return all rows in the list entry's visible range, in file order.

        Only overlapping row groups are read. If these are the whole file and little of it is
        cached, the file is fetched by a single request and verified as a whole.
        """
        if self._is_read_whole():
            batches = self._read_whole()
        else:
            batches = [
                self.read_segment(segment.index) for segment in self.visible_segments
            ]
        parts = [
            rows
            if segment.lies_in(self.file.visible)
            else rows_in_range(rows, self.file.visible)
            for rows, segment in zip(batches, self.visible_segments, strict=True)
        ]
        return pa.Table.from_batches(parts, schema=self._open().schema)

    def _is_read_whole(self) -> bool:
        """Tell whether one request for the whole file costs less than its row groups do."""
        checksum, visible = self.file.checksum, self.file.visible
        if self._footer is None and not self.cache.holds(CacheKey(checksum, form=FOOTER)):
            low, high = self.file.min_key_hash, self.file.max_key_hash
            if low is None or high is None or (low in visible and high in visible):
                return True
        keys = [CacheKey(checksum, segment.index) for segment in self.segments]
        return len(self.visible_segments) == len(keys) > 1 and 2 * sum(
            self.cache.holds(key) for key in keys
        ) <= len(keys)

    def _open(self) -> Footer:
        if self._footer is None:
            cached = self.cache.get(CacheKey(self.file.checksum, form=FOOTER))
            if cached is not None:
                self._footer = self._decode_footer(cached.column(0)[0].as_py())
            else:
                length = self.file.footer_bytes
                self._accept_footer(self._fetch(self.file.size_bytes - length, length))
        return self._footer  # type: ignore[return-value]  # set by both branches

    def _accept_footer(self, data: Readable) -> None:
        self._require_checksum("the footer", self.file.footer_checksum, data)
        self._footer = self._decode_footer(data)
        self.cache.put(CacheKey(self.file.checksum, form=FOOTER), footer_batch(data))

    def _decode_footer(self, data: Readable) -> Footer:
        try:
            footer = Footer.decode(data, path=self.file.path)
        except (pa.ArrowException, OSError) as error:
            raise self._undecodable("the footer", error) from error
        self._require("the state version", self.file.state_version, footer.state_version)
        return footer

    def _read_whole(self) -> list[pa.RecordBatch]:
        data = self.store.read(self.file.path)
        if data is None:
            raise self._missing()
        self.bytes_read += len(data)
        self._require("the size", self.file.size_bytes, len(data))
        self._require_checksum("the file", self.file.checksum, data)
        if self._footer is None:
            self._accept_footer(memoryview(data)[len(data) - self.file.footer_bytes :])
        rows = self._decode(pa.py_buffer(data), None)
        first_rows = np.cumsum(
            [0, *(segment.row_count for segment in self.segments)]
        ).tolist()
        batches = []
        for segment in self.visible_segments:
            index = segment.index
            batch = as_batch(rows.slice(first_rows[index], segment.row_count))
            batches.append(self._cached(index, batch))
        return batches

    def _fetch(self, start: int, length: int) -> bytes:
        data = self.store.read_range(self.file.path, start, length)
        if data is None:
            raise self._missing()
        self.bytes_read += len(data)
        if len(data) != length:
            self._require("the size", self.file.size_bytes, self.store.size(self.file.path))
        return data

    def _decode(self, source: "pa.Buffer | _Window", group: int | None) -> pa.Table:
        """Decode one row group, or all of them, out of verified bytes."""
        stream: pa.NativeFile = (
            pa.PythonFile(source, mode="r")
            if isinstance(source, _Window)
            else pa.BufferReader(source)
        )
        try:
            return decode_row_groups(stream, self._open().parquet, group)
        except (pa.ArrowException, OSError) as error:
            what = "its rows" if group is None else f"row group {group}"
            raise self._undecodable(what, error) from error

    def _require_checksum(self, part: str, expected: int, data: Readable) -> None:
        self._require(part, f"{expected:016x}", f"{checksum_of(data):016x}")

    def _require(self, part: str, expected: object, found: object) -> None:
        if expected != found:
            raise self._damaged(
                f"is damaged: {part} should be {expected}, found {found}",
                ErrorCode.CHECKSUM_MISMATCH,
                part=part,
                expected=str(expected),
                found=str(found),
            )

    def _missing(self) -> CorruptStateError:
        return self._damaged("is missing", ErrorCode.OBJECT_MISSING)

    def _undecodable(self, part: str, error: Exception) -> CorruptStateError:
        what = f"holds what was written, but {part} cannot be decoded: {error}"
        return self._damaged(what, ErrorCode.UNDECODABLE, part=part)

    def _damaged(self, what: str, code: ErrorCode, **context: str) -> CorruptStateError:
        path, epoch = self.file.path, self.file.epoch
        return CorruptStateError(
            f"state file {self.store.url}/{path} (epoch {epoch}) {what}. {_ADVICE}",
            code=code,
            path=path,
            epoch=epoch,
            **context,
        )


def rows_in_range(rows: pa.RecordBatch, key_range: KeyRange) -> pa.RecordBatch:
    """Return the rows whose key hash lies in `key_range`; neighbouring rows are not copied.

    Rows without a key hash are always returned.
    """
    if KEY_HASH not in rows.schema.names:
        return rows
    hashes = rows.column(KEY_HASH).to_numpy(zero_copy_only=False)
    mask = (hashes >= np.uint64(key_range.start)) & (hashes <= np.uint64(key_range.end - 1))
    picked = np.flatnonzero(mask)
    if len(picked) == 0:
        return rows.slice(0, 0)
    first, last = int(picked[0]), int(picked[-1])
    if last - first + 1 == len(picked):
        return rows.slice(first, len(picked))
    return rows.filter(pa.array(mask))


class _Window(io.RawIOBase):
    """A file of which only one range of bytes is loaded: the one that the Parquet reader needs."""

    def __init__(self, data: bytes, start: int, size_bytes: int) -> None:
        super().__init__()
        self._data = memoryview(data)
        self._start = start
        self._size_bytes = size_bytes
        self._position = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size_bytes)[whence]
        return self._position

    @override
    def tell(self) -> int:
        return self._position

    @override
    def read(self, length: int | None = -1) -> bytes:
        start = self._position - self._start
        end = len(self._data) if length is None or length < 0 else start + length
        if start < 0 or end > len(self._data):
            raise OSError(
                f"the footer points outside its row group, at byte {self._position}"
            )
        self._position = self._start + end
        return bytes(self._data[start:end])
