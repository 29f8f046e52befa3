"""Runs: sorted rows of a keyed table in segments that are opened one at a time.

A run holds one row per key, in order of key hash. Rows of equal hash are written in order of the
rest, if the table has one; a segment checks that, because old files lack it, and nothing relies
on it beyond one segment. Neighbouring segments may share a hash at their border. A run gives the lowest and highest hash of each segment, so that readers open
only those they need; only `OpenSegments` decides which stay open. A run is a state file (its
visible rows, in the current version), rows in memory, or rows on local disk.

Merging runs gives one stream of rows in order of hash with the newest version of each key. It
needs memory for about one segment per run, however large the runs are. The stream includes
tombstones and expired rows: the caller decides whether they may be dropped.

The writes of an epoch so far are a few runs, too. Every write adds one. The last four are
merged when the oldest of them is smaller than the others together, so a row is copied a
logarithmic number of times and lookups search few runs. Above a size limit all of them become
one run on local disk; such runs are merged in tiers. A spilled file has no name, so nothing
is left behind however the process ends; only the files that a checkpoint writes are durable.
"""

import mmap
import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.hash_kernels import Hashes
from penstock.core.key_order import compare_rows, sort_within
from penstock.errors import CorruptStateError, ErrorCode, StorageError
from penstock.state.files.cache import CacheKey
from penstock.state.files.reader import rows_in_range
from penstock.state.files.state_file import StateFile
from penstock.state.tables.columns import EXPIRES_AT, OPERATION, KeyedSchema
from penstock.state.tables.expiry import live_rows
from penstock.state.tables.sorted_rows import (
    Flags,
    Positions,
    hashes_of,
    join_rows,
    merge_rows,
    take_rows,
)
from penstock.state.tables.table import DataOperation
from penstock.state.tables.typed_files import Cursor, TypedFile, TypedTable

SPILL_SEGMENT_ROWS = 1 << 16
SPILL_SEGMENT_BYTES = 16 << 20
_RUNS_MERGED = 4


class Segment:
    """The rows of one segment, with their hashes, operations and expiry for lookups."""

    def __init__(
        self, rows: pa.RecordBatch, number: int = 0, in_order: set[int] | None = None
    ) -> None:
        """Wrap stored rows without copying them.

        `in_order` are the numbers of a run's segments that were found to be in order of the
        rest. All segments of the run share it, so that none is checked at every opening.
        """
        self.rows = rows
        self.size_bytes = rows.nbytes
        self.hashes = hashes_of(rows)
        operations: Any = rows.column(OPERATION).to_numpy()
        self.operations: npt.NDArray[np.int8] | None = (
            operations if operations.any() else None
        )
        """What each row does to its key; None when all of them are puts."""
        expires_at = rows.column(EXPIRES_AT)
        self.expires_at = None if expires_at.null_count == len(expires_at) else expires_at
        """When each row expires; None when none ever does."""
        self._places: Positions | None = None
        self._known = set() if in_order is None else in_order, number

    def places_by(self, rest: Sequence[str]) -> Positions | None:
        """Return where the rows are in order of hash and rest; None if they lie in that order.

        The order is checked, and computed if need be, when it is first asked for.
        """
        in_order, number = self._known
        if self._places is None and number not in in_order:
            columns = [self.rows.column(name) for name in rest]
            pairs = np.flatnonzero(self.hashes[1:] == self.hashes[:-1])
            if (compare_rows(columns, pairs, columns, pairs + 1) <= 0).all():
                in_order.add(number)
            else:
                self._places = sort_within(self.hashes, columns)
        return self._places

    def are_live(self, positions: Positions, instant: int | None) -> Flags | None:
        """Tell which rows are neither tombstones nor expired; None when all are live."""
        is_live = None
        if self.operations is not None:
            is_live = self.operations[positions] == DataOperation.UPSERT.value
        if self.expires_at is not None and instant is not None:
            unexpired = live_rows(take_rows(self.expires_at, positions), instant)
            if unexpired is not None:
                is_live = unexpired if is_live is None else is_live & unexpired
        return is_live


class Run(Protocol):
    """Immutable sorted rows, in segments."""

    @property
    def first_hashes(self) -> Hashes:
        """The lowest key hash of each segment, ascending."""

    @property
    def last_hashes(self) -> Hashes:
        """The highest key hash of each segment, ascending."""

    def read_segment(self, index: int) -> Segment:
        """Return one segment with the rows that belong to the run."""


class MemoryRun:
    """A run of one segment that is held in memory; it has no segment if it has no rows."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        """Take sorted stored rows, one per key."""
        self._segment = Segment(rows)
        self.rows = rows
        self.size_bytes = self._segment.size_bytes
        self.first_hashes = self._segment.hashes[:1]
        self.last_hashes = self._segment.hashes[-1:]

    def read_segment(self, _index: int) -> Segment:
        """Return all rows."""
        return self._segment


class OpenSegments:
    """The segments a view keeps open: the last used ones, up to a number of bytes.

    Mapped bytes count like held ones, even if the system has not loaded them.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._segments: OrderedDict[tuple[str, int], Segment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments)

    def find(self, key: tuple[str, int]) -> Segment | None:
        """Return an open segment, which is then the last used one."""
        found = self._segments.get(key)
        if found is not None:
            self._segments.move_to_end(key)
        return found

    def keep(self, key: tuple[str, int], segment: Segment) -> None:
        """Keep a segment open, and close the ones unused for longest."""
        if segment.size_bytes > self.limit_bytes:
            return
        self._segments[key] = segment
        self.size_bytes += segment.size_bytes
        while self.size_bytes > self.limit_bytes:
            _, closed = self._segments.popitem(last=False)
            self.size_bytes -= closed.size_bytes

    def close(self, run: str) -> None:
        """Close the segments of one run."""
        for key in [key for key in self._segments if key[0] == run]:
            self.size_bytes -= self._segments.pop(key).size_bytes

    def clear(self) -> None:
        """Close all."""
        self._segments.clear()
        self.size_bytes = 0


class FileRun(TypedFile):
    """One entry of a table's file list. Opens lazily and keeps only the footer."""

    def __init__(
        self,
        file: StateFile,
        table: TypedTable[Any, KeyedSchema],
        open_segments: OpenSegments | None = None,
    ) -> None:
        """Bind the entry; without `open_segments` no segment is kept open."""
        super().__init__(file, table)
        self.identity = file.identity
        self._cache = table.environment.cache
        self._open_segments = open_segments
        self._in_order: set[int] = set()

    @cached_property
    def _segments(self) -> tuple[tuple[int, int, int], ...]:
        """Index, lowest and highest hash of each row group that holds visible rows."""
        found = []
        for segment in self.reader.visible_segments:
            if segment.min_key_hash is not None and segment.max_key_hash is not None:
                found.append((segment.index, segment.min_key_hash, segment.max_key_hash))
            elif segment.row_count:
                raise CorruptStateError(
                    f"row group {segment.index} of {self.file.path} does not say which key "
                    "hashes it holds, so its rows could not be found. Nothing was changed; "
                    "restore an older epoch or a savepoint",
                    path=self.file.path,
                    epoch=self.file.epoch,
                )
        return tuple(found)

    @cached_property
    def first_hashes(self) -> Hashes:
        """A lower bound of the visible hashes of each row group."""
        return self._clipped([low for _, low, _ in self._segments])

    @cached_property
    def last_hashes(self) -> Hashes:
        """An upper bound of the visible hashes of each row group."""
        return self._clipped([high for _, _, high in self._segments])

    def may_hold(self, first: int, last: int) -> bool:
        """Tell from the list entry alone whether hashes in `[first, last]` may be found here."""
        file = self.file
        if file.min_key_hash is None or file.max_key_hash is None:
            return file.row_count > 0
        lowest = max(file.min_key_hash, file.visible.start)
        return lowest <= last and first <= min(file.max_key_hash, file.visible.end - 1)

    def read_segment(self, index: int) -> Segment:
        """Return the visible rows of one row group at the current version."""
        key = (self.identity, index)
        kept = self._open_segments
        found = None if kept is None else kept.find(key)
        if found is not None:
            return found
        number, low, high = self._segments[index]
        fetched = self.reader.bytes_read
        rows = self.reader.read_segment(number)
        if low not in self.file.visible or high not in self.file.visible:
            rows = rows_in_range(rows, self.file.visible)
        found = Segment(self.current(rows), index, self._in_order)
        # A fetched segment is a copy: it is not kept if the next read can map it from the cache.
        if kept is not None and (
            self.reader.bytes_read == fetched
            or self.steps
            or not self._cache.holds(CacheKey(self.file.checksum, number))
        ):
            kept.keep(key, found)
        return found

    def _clipped(self, hashes: Sequence[int]) -> Hashes:
        visible = self.file.visible
        first, last = np.uint64(visible.start), np.uint64(visible.end - 1)
        return np.clip(np.array(hashes, np.uint64), first, last)


def merge_runs(
    runs: Sequence[Run], key_columns: Sequence[str], rest: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the merged rows of `runs`, oldest run first.

    No hash is split over two batches that are yielded.
    """
    cursors = [Cursor(_whole_hashes(run)) for run in runs]
    while cursors := [cursor for cursor in cursors if cursor.fill()]:
        # Every cursor holds all rows of its run up to its own last hash, so no row up to the
        # lowest of these hashes is missing.
        bound = min(cursor.last_hash for cursor in cursors)
        taken = [cursor.take(bound, "right") for cursor in cursors]
        yield merge_rows(taken, key_columns, rest)


def _whole_hashes(run: Run) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a run so that no hash is split.

    If segments share a hash, its rows are joined, and only those: of a table with many rows
    per key all neighbours may share one.
    """
    firsts, lasts = run.first_hashes, run.last_hashes
    shared: list[pa.RecordBatch] = []
    for index in range(len(firsts)):
        rows = run.read_segment(index).rows
        if shared:
            last = hashes_of(shared[0])[-1]
            count = int(np.searchsorted(hashes_of(rows), last, "right"))
            shared.append(rows.slice(0, count))
            rows = rows.slice(count)
            if rows.num_rows == 0:
                continue
            yield join_rows(shared)
        count = rows.num_rows
        if count and index + 1 < len(firsts) and firsts[index + 1] <= lasts[index]:
            count = int(np.searchsorted(hashes_of(rows), hashes_of(rows)[-1]))
        shared = [rows.slice(count)] if count < rows.num_rows else []
        if count:
            yield rows.slice(0, count)
    if shared:
        yield join_rows(shared)


def live_only(rows: pa.RecordBatch, instant: int | None) -> pa.RecordBatch:
    """Return the rows that are neither tombstones nor expired at `instant`."""
    is_live = rows.column(OPERATION).to_numpy() == DataOperation.UPSERT.value
    alive = live_rows(rows.column(EXPIRES_AT), instant)
    if alive is not None:
        is_live &= alive
    return rows if is_live.all() else rows.filter(pa.array(is_live))


class SpilledRun:
    """A run in an unnamed local file, mapped a segment at a time."""

    def __init__(
        self, folder: Path, batches: Iterable[pa.RecordBatch], *, tier: int
    ) -> None:
        """Write sorted rows, one per key, to `folder`; a full or broken disk is a `StorageError`."""
        self.tier = tier
        self._extents: list[tuple[int, int]] = []
        """Where each segment starts, and its size in bytes."""
        bounds: list[tuple[int, int]] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - lives as long as the run
            for batch in batches:
                for rows in _cut(batch):
                    self._append(rows)
                    hashes = hashes_of(rows)
                    bounds.append((int(hashes[0]), int(hashes[-1])))
            self._file.flush()
        except OSError as error:
            raise StorageError(
                f"this epoch wrote more than the memory budget, and {folder} cannot take the "
                f"rest: {error}. Free space there, set another cache folder, raise the memory "
                "budget, or run smaller epochs",
                code=ErrorCode.STORAGE_FULL,
                folder=str(folder),
            ) from error
        self.first_hashes = np.array([first for first, _ in bounds], np.uint64)
        self.last_hashes = np.array([last for _, last in bounds], np.uint64)

    def read_segment(self, index: int) -> Segment:
        """Map one segment."""
        start, size = self._extents[index]
        mapping = mmap.mmap(
            self._file.fileno(), size, access=mmap.ACCESS_READ, offset=start
        )
        with pa.ipc.open_stream(pa.py_buffer(mapping)) as reader:
            return Segment(reader.read_next_batch())

    def __del__(self) -> None:
        # The file is closed with its last reader, as a scan may outlive its epoch. On a full
        # disk closing fails to write buffered bytes, which nothing needs.
        if hasattr(self, "_file"):
            with suppress(OSError):
                self._file.close()

    def _append(self, rows: pa.RecordBatch) -> None:
        """Write one segment at the next offset that can be mapped on its own."""
        unit = mmap.ALLOCATIONGRANULARITY
        start = -(-self._file.tell() // unit) * unit
        self._file.seek(start, os.SEEK_SET)
        with pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), rows.schema) as writer:
            writer.write_batch(rows)
        self._extents.append((start, self._file.tell() - start))


def _cut(rows: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
    """Cut rows into segments by number, and by size if rows are large."""
    if rows.num_rows == 0:
        return
    per_row = rows.nbytes // rows.num_rows + 1
    step = max(1, min(SPILL_SEGMENT_ROWS, SPILL_SEGMENT_BYTES // per_row))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


class PendingRows:
    """The writes of one epoch of one view, newest last."""

    def __init__(
        self,
        key_columns: Sequence[str],
        rest: Sequence[str] = (),
        *,
        limit_bytes: int,
        spill_folder: Path,
    ) -> None:
        self._order = key_columns, rest
        self._limit_bytes = limit_bytes
        self._spill_folder = spill_folder
        self._in_memory: list[MemoryRun] = []
        self._spilled: list[SpilledRun] = []

    def __bool__(self) -> bool:
        return bool(self._in_memory or self._spilled)

    @property
    def size_bytes(self) -> int:
        """The bytes held in memory."""
        return sum(run.size_bytes for run in self._in_memory)

    def runs(self) -> list[Run]:
        """Return the runs, oldest first. Later writes do not change the returned runs."""
        return [*self._spilled, *self._in_memory]

    def add(self, rows: pa.RecordBatch) -> None:
        """Add sorted stored rows, one per key, that are newer than all before."""
        if rows.num_rows == 0:
            return
        if self._in_memory and self.size_bytes + rows.nbytes > self._limit_bytes:
            self._spill()
        self._in_memory.append(MemoryRun(rows))
        while len(self._in_memory) >= _RUNS_MERGED:
            newest = [run.rows for run in self._in_memory[-_RUNS_MERGED:]]
            if newest[0].num_rows >= sum(rows.num_rows for rows in newest[1:]):
                break
            merged = merge_rows(newest, *self._order)
            self._in_memory[-_RUNS_MERGED:] = [MemoryRun(merged)]
        if self.size_bytes > self._limit_bytes:
            self._spill()

    def clear(self) -> None:
        """Drop all rows, after a checkpoint has written them or when the view is released."""
        self._in_memory = []
        self._spilled = []

    def _spill(self) -> None:
        rows = merge_rows([run.rows for run in self._in_memory], *self._order)
        self._spilled.append(SpilledRun(self._spill_folder, [rows], tier=0))
        self._in_memory = []
        while len(newest := self._spilled[-_RUNS_MERGED:]) == _RUNS_MERGED:
            if len({run.tier for run in newest}) > 1:
                break
            merged = SpilledRun(
                self._spill_folder,
                merge_runs(newest, *self._order),
                tier=newest[0].tier + 1,
            )
            self._spilled[-_RUNS_MERGED:] = [merged]
