"""A time-keyed table as an operator uses it: by time (panes) or by key and time (joins).

Both views show one bag of rows: append-only, duplicates kept, gone when expired.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from penstock.core.batch import RowsLike, to_batch
from penstock.core.hash_kernels import Hashes
from penstock.core.key_hash import hash_keys
from penstock.errors import InternalError, SchemaError, StateError
from penstock.state.files.state_file import StateFile
from penstock.state.tables.columns import ExpiresAt, TimeKeyedSchema, expiry_column
from penstock.state.tables.expiry import clock_after_epoch, clock_within_epoch
from penstock.state.tables.table import (
    Frontier,
    TableEnvironment,
    TableEpochCheckpointer,
    View,
)
from penstock.state.tables.time_keyed_files import VersionedReader
from penstock.state.tables.time_keyed_rows import (
    Chunk,
    TimeRange,
    join_chunks,
    settle_chunks,
)

Positions: TypeAlias = npt.NDArray[np.int64]
_PENDING_CHUNKS = 64
"""Batches written in one epoch are joined when there are this many."""


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """The answer of a lookup by key: rows of key i are `rows[offsets[i]:offsets[i + 1]]`."""

    rows: pa.Table
    offsets: Positions

    def rows_of(self, index: int) -> pa.Table:
        """Return the rows of one of the keys asked for, in the order they were inserted."""
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        return self.rows.slice(start, end - start)


class TimeKeyedView(View):
    """Rows by time. Made by `TimeKeyedTable.view`, used by one thread.

    Instants are microseconds since 1970, ranges are `[start, end)` and None is no bound.
    """

    def __init__(
        self,
        schema: TimeKeyedSchema,
        environment: TableEnvironment,
        files: Sequence[StateFile],
        reader: VersionedReader,
    ) -> None:
        """Fold `files`, whose rows are mapped from the cache where they can be."""
        self.schema = schema
        self.files: tuple[StateFile, ...] = tuple(files)
        self._environment = environment
        self._reader = reader
        self._frontier = Frontier()
        self._chunks = reader.read_chunks(files)
        self._pending: list[Chunk] = []
        self._is_released = False

    def insert(self, rows: RowsLike, expires_at: ExpiresAt) -> None:
        """Add rows that live until the clock reaches `expires_at`: one instant, or one each.

        A row that is expired already is not kept. A row whose key belongs to another subtask
        is refused: after a restore nobody would see it.
        """
        self._check_usable()
        rows = to_batch(rows, self.schema.declared)
        columns = self.schema.to_stored(rows)
        if rows.num_rows == 0:
            return
        keys = [
            columns[self.schema.declared.get_field_index(n)]
            for n in self.schema.key_columns
        ]
        hashes = pa.array(self._owned_hashes(keys, rows.num_rows))
        expiry = expiry_column(expires_at, rows.num_rows, table=self.schema.table_name)
        batch = pa.RecordBatch.from_arrays(
            [*columns, hashes, expiry], schema=self.schema.stored
        )
        chunk = Chunk(batch, self.schema)
        chunk.check_times()
        if not chunk.is_dead(self._clock_micros):
            self._pending.append(chunk)
        if len(self._pending) >= _PENDING_CHUNKS:
            self._pending = join_chunks(self._pending, self.schema)

    def batches(
        self, start: int | None = None, end: int | None = None
    ) -> list[pa.RecordBatch]:
        """Return the live rows with a time in `[start, end)`, oldest file first, in batches."""
        found = self.rows(start, end)
        return [batch for batch in found.to_batches() if batch.num_rows]

    def rows(self, start: int | None = None, end: int | None = None) -> pa.Table:
        """Return the live rows with a time in `[start, end)`, oldest file first."""
        times = TimeRange(start, end)
        parts = [chunk.live(self._clock_micros, times) for chunk in self._all_chunks()]
        return self.schema.to_declared(
            pa.Table.from_batches(parts, schema=self.schema.stored)
        )

    def min_time(self, start: int | None = None) -> int | None:
        """Return the earliest time of a live row, at `start` or later; None without one."""
        earliest: int | None = None
        for chunk in self._all_chunks():
            if earliest is None or chunk.time_bounds[0] < earliest:
                found = chunk.min_time(self._clock_micros, start)
                if found is not None and (earliest is None or found < earliest):
                    earliest = found
        return earliest

    def expire(self) -> int:
        """Forget rows that have expired, and return how many; they are hidden in any case."""
        before = sum(chunk.rows.num_rows for chunk in self._all_chunks())
        self._chunks = self._live_chunks(self._chunks, self._clock_micros)
        self._pending = self._live_chunks(self._pending, self._clock_micros)
        return before - sum(chunk.rows.num_rows for chunk in self._all_chunks())

    def by_key(self) -> "KeyTimeView":
        """Return the same rows as a view by key and time."""
        return KeyTimeView(self)

    def get(self, keys: RowsLike) -> GroupedRows:
        """Return the live rows of each of the keys in the key columns of `keys`."""
        if not self.schema.key_columns:
            raise SchemaError(
                f"table {self.schema.table_name!r} has no key columns: read it by time",
                table=self.schema.table_name,
            )
        keys = to_batch(keys, self.schema.declared, self.schema.key_columns)
        probes = self._probes(keys)
        hashes = self._owned_hashes(probes, keys.num_rows)
        matched, parts = [np.empty(0, np.int64)], []
        for chunk in self._all_chunks():
            found, rows = chunk.match(hashes, probes, self._clock_micros)
            if len(rows):
                matched.append(found)
                parts.append(chunk.rows.take(pa.array(rows, pa.int64())))
        table = pa.Table.from_batches(parts, schema=self.schema.stored)
        owners = np.concatenate(matched)
        grouped = table.take(pa.array(np.argsort(owners, kind="stable"), pa.int64()))
        counts = np.bincount(owners, minlength=keys.num_rows)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return GroupedRows(self.schema.to_declared(grouped), offsets)

    @override
    def advance(self, frontier: Frontier) -> None:
        """Start an epoch: rows are judged by its clock, which never goes back."""
        self._frontier = frontier
        self._chunks = [
            chunk for chunk in self._chunks if not chunk.is_dead(self._clock_micros)
        ]

    @override
    def flush(self, checkpointer: TableEpochCheckpointer[Any]) -> None:
        """Hand over the rows inserted in this epoch, as they came."""
        for chunk in self._pending:
            checkpointer.insert_data(chunk.rows)

    @override
    def checkpointed(self, files: Sequence[StateFile]) -> None:
        """Keep this epoch's rows, which are now in `files`."""
        # What dies with this epoch is in none of its files any more.
        clock = clock_after_epoch(self.schema.domain, self._frontier)
        written = self._live_chunks(self._pending, clock)
        joined = [*self._chunks, *join_chunks(written, self.schema)]
        self._chunks = settle_chunks(joined, self.schema, clock)
        self._pending = []
        self.files = tuple(files)

    @override
    def catch_up(self, missing: Sequence[StateFile], files: Sequence[StateFile]) -> None:
        if self._pending:
            raise InternalError(
                f"table {self.schema.table_name!r} was to catch up with other writes while its "
                "own are not checkpointed"
            )
        self._chunks += self._reader.read_chunks(missing)
        self.files = tuple(files)

    @override
    def release(self) -> None:
        self._chunks, self._pending = [], []
        self._is_released = True

    def _check_usable(self) -> None:
        if self._is_released:
            raise InternalError(
                f"table {self.schema.table_name!r} was used after it was released"
            )

    @property
    def _clock_micros(self) -> int | None:
        return clock_within_epoch(self.schema.domain, self._frontier)

    def _all_chunks(self) -> list[Chunk]:
        self._check_usable()
        return [*self._chunks, *self._pending]

    def _live_chunks(
        self, chunks: Sequence[Chunk], clock_micros: int | None
    ) -> list[Chunk]:
        every = TimeRange()
        live = []
        for chunk in chunks:
            rows = chunk.live(clock_micros, every)
            if rows is chunk.rows:
                live.append(chunk)
            elif rows.num_rows:
                live.append(Chunk(rows, self.schema))
        return live

    def _probes(self, keys: pa.RecordBatch) -> list[Any]:
        wanted = [self.schema.stored.field(name) for name in self.schema.key_columns]
        missing = [field.name for field in wanted if field.name not in keys.schema.names]
        if missing:
            raise SchemaError(
                f"keys for table {self.schema.table_name!r} lack the columns {missing}",
                table=self.schema.table_name,
            )
        return [
            self.schema.to_stored_column(keys.column(field.name), field) for field in wanted
        ]

    def _owned_hashes(self, keys: Sequence[Any], row_count: int) -> Hashes:
        """Hash keys, all of which must be this subtask's own; rows without a key always are."""
        task = self._environment.task
        owned = task.key_range
        if not self.schema.key_columns:
            return np.full(row_count, owned.start, np.uint64)
        hashes = hash_keys(keys, row_count=row_count)
        first, last = np.uint64(owned.start), np.uint64(owned.end - 1)
        strays = np.flatnonzero((hashes < first) | (hashes > last))
        if len(strays):
            stray = int(strays[0])
            key = {
                n: c[stray].as_py()
                for n, c in zip(self.schema.key_columns, keys, strict=True)
            }
            raise StateError(
                f"key {key!r} does not belong to subtask {task.subtask.index} of "
                f"{task.subtask.parallelism} of operator {task.operator!r}: its hash "
                f"{int(hashes[stray]):#x} is outside [{owned.start:#x}, {owned.end:#x}). Rows must "
                f"reach table {self.schema.table_name!r} by its own key columns "
                f"({', '.join(self.schema.key_columns)})",
                table=self.schema.table_name,
                operator=task.operator,
            )
        return hashes


class KeyTimeView:
    """The same rows by key: what a join looks up. Shares everything with a `TimeKeyedView`."""

    def __init__(self, view: TimeKeyedView) -> None:
        self.by_time = view

    def get(self, keys: RowsLike) -> GroupedRows:
        """Return the live rows of each key, in the order they were inserted. Vectorised."""
        return self.by_time.get(keys)

    def insert(self, rows: RowsLike, expires_at: ExpiresAt) -> None:
        """Add rows; see `TimeKeyedView.insert`."""
        self.by_time.insert(rows, expires_at)
