"""Runs: sorted rows of a keyed table in segments that are opened one at a time.

A run holds one row per key, in order of key hash. Several segments may share a hash at
their border. A run says between which hashes each segment lies, so that readers open only
those they need; whoever reads a segment drops it again, and what stays open is decided by
`OpenSegments` alone.

A state file as a run: only its visible rows, in the current version, a row group at a time.

Merging runs: one stream of rows in order of hash, the newest version of each key only.

Needs memory for about one segment per run, however large the runs are. Tombstones and
expired rows come out too: whether they may be dropped is not for a merge to decide.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import have_same_values, relay
from penstock.core.hash_kernels import Hashes
from penstock.errors import CorruptStateError, ErrorCode, SchemaError
from penstock.state.files.cache import CacheKey
from penstock.state.files.migration import (
    MigrationStep,
    as_declared,
    migrate_rows,
    plan_migration,
)
from penstock.state.files.reader import StateFileReader, rows_in_range
from penstock.state.files.state_file import StateFile
from penstock.state.tables.columns import (
    EXPIRES_AT,
    OPERATION,
    RESERVED_COLUMNS,
    KeyedSchema,
)
from penstock.state.tables.expiry import live_rows
from penstock.state.tables.sorted_rows import (
    Positions,
    hashes_of,
    join_rows,
    merge_rows,
    take_rows,
)
from penstock.state.tables.table import DataOperation, TableEnvironment


class Segment:
    """Rows of one segment as lookups need them: with their bookkeeping at hand."""

    __slots__ = ("expires_at", "hashes", "operations", "rows", "size_bytes")

    def __init__(self, rows: pa.RecordBatch) -> None:
        """Look at stored rows without copying them."""
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


class Run(ABC):
    """Immutable sorted rows, in segments."""

    @property
    @abstractmethod
    def first_hashes(self) -> Hashes:
        """The lowest key hash of each segment, ascending."""

    @property
    @abstractmethod
    def last_hashes(self) -> Hashes:
        """The highest key hash of each segment, ascending."""

    @abstractmethod
    def read_segment(self, index: int) -> Segment:
        """Return one segment with the rows that belong to the run."""


class MemoryRun(Run):
    """A run of one segment that is held in memory."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        """Take sorted stored rows, one per key."""
        self._segment = Segment(rows)
        hashes = self._segment.hashes
        self._first, self._last = hashes[:1], hashes[-1:]

    @property
    def rows(self) -> pa.RecordBatch:
        """All rows."""
        return self._segment.rows

    @property
    def size_bytes(self) -> int:
        """The memory the rows take."""
        return self._segment.size_bytes

    @property
    @override
    def first_hashes(self) -> Hashes:
        """The lowest hash, or nothing if there are no rows."""
        return self._first

    @property
    @override
    def last_hashes(self) -> Hashes:
        """The highest hash, or nothing if there are no rows."""
        return self._last

    @override
    def read_segment(self, index: int) -> Segment:
        return self._segment


class OpenSegments:
    """The segments a view keeps open: the last used ones, up to a number of bytes.

    Bytes are counted as mapped or held, whether the system has them in memory or not.
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


def clip_hashes(hashes: Hashes, first: int, last: int) -> Hashes:
    """Return hashes moved into `[first, last]`."""
    return np.clip(hashes, np.uint64(first), np.uint64(last))


class FileRun(Run):
    """One entry of a table's file list. Opens lazily and keeps only the footer."""

    def __init__(
        self,
        file: StateFile,
        schema: KeyedSchema,
        environment: TableEnvironment,
        open_segments: OpenSegments,
        *,
        state_version: int,
        state_type: type | None = None,
    ) -> None:
        """Bind the entry; a version that cannot be migrated is refused here."""
        self.file = file
        self.identity = file.identity
        self.reader = StateFileReader(environment.store, environment.cache, file)
        self._cache = environment.cache
        self._schema = schema
        self._open_segments = open_segments
        self._steps: tuple[MigrationStep, ...] = ()
        if file.state_version != state_version:
            self._steps = plan_migration(
                file.state_version, state_type, table=schema.table_name
            )

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
        """The lowest visible hash of each row group, or a little less."""
        return self._clipped([low for _, low, _ in self._segments])

    @cached_property
    def last_hashes(self) -> Hashes:
        """The highest visible hash of each row group, or a little more."""
        return self._clipped([high for _, _, high in self._segments])

    def may_hold(self, first: int, last: int) -> bool:
        """Tell from the list entry alone whether hashes in `[first, last]` may be found here."""
        file = self.file
        if file.min_key_hash is None or file.max_key_hash is None:
            return file.row_count > 0
        lowest = max(file.min_key_hash, file.visible.start)
        return lowest <= last and first <= min(file.max_key_hash, file.visible.end - 1)

    @override
    def read_segment(self, index: int) -> Segment:
        """Return the visible rows of one row group at the current version."""
        key = (self.identity, index)
        found = self._open_segments.find(key)
        if found is None:
            fetched = self.reader.bytes_read
            found = Segment(self._read(index))
            if self.reader.bytes_read == fetched or not self._is_cached(index):
                self._open_segments.keep(key, found)
        return found

    def _is_cached(self, index: int) -> bool:
        """Tell whether the next read maps the rows: then no copy of them should be kept."""
        number = self._segments[index][0]
        return not self._steps and self._cache.holds(CacheKey(self.file.checksum, number))

    def _clipped(self, hashes: Sequence[int]) -> Hashes:
        visible = self.file.visible
        return clip_hashes(np.array(hashes, np.uint64), visible.start, visible.end - 1)

    def _read(self, index: int) -> pa.RecordBatch:
        number, low, high = self._segments[index]
        rows = self.reader.read_segment(number)
        if low not in self.file.visible or high not in self.file.visible:
            rows = rows_in_range(rows, self.file.visible)
        if self._steps:
            return self._migrated(rows)
        if rows.schema.equals(self._schema.stored):
            return rows
        return self._relaid(rows)

    def _migrated(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Bring rows to the current version. The user's code never sees a tombstone."""
        operations = rows.column(OPERATION).to_numpy()
        puts: Positions = np.flatnonzero(operations == DataOperation.UPSERT.value)
        values = rows.select([n for n in rows.schema.names if n not in RESERVED_COLUMNS])
        migrated = migrate_rows(
            as_declared(
                take_rows(values, puts),
                self._steps[0].from_type,
                table=self._schema.table_name,
                path=self.file.path,
            ),
            self._steps,
            key_columns=self._schema.key_columns,
            table=self._schema.table_name,
            path=self.file.path,
        )
        columns: list[Any] = self._schema.columns_of(migrated)
        if len(puts) < rows.num_rows:
            columns = self._with_tombstones(rows, columns, puts)
        columns += [rows.column(name) for name in RESERVED_COLUMNS]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema.stored)

    def _with_tombstones(
        self, rows: pa.RecordBatch, columns: list[Any], puts: Positions
    ) -> list[Any]:
        """Put migrated rows back to their places among tombstones, which keep only their keys."""
        source = np.full(rows.num_rows, -1, dtype=np.int64)
        source[puts] = np.arange(len(puts))
        picked = pa.array(source, mask=source < 0)
        return [
            rows.column(field.name)
            if field.name in self._schema.key_columns
            else column.take(picked)
            for field, column in zip(self._schema.declared, columns, strict=True)
        ]

    def _relaid(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Adapt rows whose columns are the declared ones in another order or layout."""
        stored = self._schema.stored
        columns = []
        for field in stored:
            index = rows.schema.get_field_index(field.name)
            if index < 0 or not have_same_values(rows.schema.field(index).type, field.type):
                raise self._changed(rows.schema)
            columns.append(relay(rows.column(index), field.type))
        if rows.num_columns != len(stored):
            raise self._changed(rows.schema)
        return pa.RecordBatch.from_arrays(columns, schema=stored)

    def _changed(self, found: pa.Schema) -> SchemaError:
        def listed(schema: pa.Schema) -> str:
            return ", ".join(
                f"{f.name}: {f.type}" for f in schema if f.name not in RESERVED_COLUMNS
            )

        return SchemaError(
            f"table {self._schema.table_name!r} is declared with the columns "
            f"({listed(self._schema.stored)}), but {self.file.path} holds ({listed(found)}) in "
            f"the same state version {self.file.state_version}: give the new columns a state "
            "class of the next version with a migration, or restore the old declaration",
            code=ErrorCode.SCHEMA_MISMATCH,
            table=self._schema.table_name,
            path=self.file.path,
        )


def merge_runs(runs: Sequence[Run], key_columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the merged rows of `runs`, oldest run first.

    No hash is split over two batches that are yielded.
    """
    cursors = [_Cursor(run) for run in runs if len(run.first_hashes)]
    while cursors := [cursor for cursor in cursors if cursor.fill()]:
        # Every cursor holds all rows of its run up to its own last hash, so up to the
        # lowest of these nothing is missing.
        bound = min(cursor.last_hash for cursor in cursors)
        yield merge_rows([cursor.take_up_to(bound) for cursor in cursors], key_columns)


def live_only(rows: pa.RecordBatch, instant: int | None) -> pa.RecordBatch:
    """Return the rows that are neither tombstones nor expired at `instant`."""
    is_live = rows.column(OPERATION).to_numpy() == DataOperation.UPSERT.value
    alive = live_rows(rows.column(EXPIRES_AT), instant)
    if alive is not None:
        is_live &= alive
    return rows if is_live.all() else rows.filter(pa.array(is_live))


class _Cursor:
    """How far one run, which has segments, has been merged."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._next = 0
        self._rows = self._read()

    @property
    def last_hash(self) -> int:
        """The hash up to which all rows of the run are at hand."""
        return int(hashes_of(self._rows)[-1])

    def fill(self) -> bool:
        """Have some rows at hand, whole hashes only; False at the end of the run."""
        while self._rows.num_rows == 0:
            if self._next == len(self._run.first_hashes):
                return False
            self._rows = self._read()
        return True

    def take_up_to(self, bound: int) -> pa.RecordBatch:
        """Hand out the rows with hashes up to `bound`."""
        cut = int(np.searchsorted(hashes_of(self._rows), np.uint64(bound), "right"))
        taken, self._rows = self._rows.slice(0, cut), self._rows.slice(cut)
        return taken

    def _read(self) -> pa.RecordBatch:
        """Read the next segment, and those after it that go on with its last hash."""
        firsts, lasts = self._run.first_hashes, self._run.last_hashes
        parts = [self._run.read_segment(self._next).rows]
        self._next += 1
        while self._next < len(firsts) and firsts[self._next] <= lasts[self._next - 1]:
            parts.append(self._run.read_segment(self._next).rows)
            self._next += 1
        return join_rows(parts)
