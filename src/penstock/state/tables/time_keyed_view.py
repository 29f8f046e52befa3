"""A time-keyed table as an operator uses it: by time (panes) or by key and time (joins).

Both views show the same rows. Rows are only added, duplicates are kept, and expired rows are
hidden.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import Micros
from penstock.core.rows import RowsLike, to_instant
from penstock.core.watermark import EventTime
from penstock.errors import SchemaError
from penstock.state.files.state_file import StateFile
from penstock.state.tables.columns import TimeKeyedSchema
from penstock.state.tables.expiry import (
    ExpiresAt,
    clock_after_epoch,
    clock_within_epoch,
    given_expiry,
    is_expired,
)
from penstock.state.tables.sorted_rows import (
    GroupedRows,
    Positions,
    stable_order,
    take_rows,
)
from penstock.state.tables.table import Files, Frontier, TableEpochCheckpointer, View
from penstock.state.tables.time_keyed_rows import (
    Chunk,
    Probes,
    join_chunks,
    settle_chunks,
)
from penstock.state.tables.typed_files import TypedFile, TypedTable

Bound: TypeAlias = int | datetime | EventTime | None
"""One end of a range of instants; None is no bound."""
_PENDING_CHUNKS = 64
"""Batches written in one epoch are joined when there are this many."""
_OWN_SHARE = 4
"""Own rows of earlier epochs beyond the memory budget divided by this are mapped from files."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Some pairs of a looked-up key and a row: `places[i]` of `rows` is a match of `probes[i]`."""

    probes: Positions
    """The positions of the keys."""
    rows: pa.RecordBatch
    """Stored rows, of which some match: the declared columns in their stored types, and others."""
    places: Positions
    """The positions of the rows that match."""
    times: Micros
    """The time of each of `rows`."""


class TimeKeyedView(View):
    """Rows by time. Made by `TimeKeyedTable.view`, used by one thread.

    Instants are microseconds since 1970, `datetime`s or watermarks, ranges are `[start, end)`
    and None is no bound.
    """

    def __init__(self, table: TypedTable[Any, TimeKeyedSchema], frontier: Frontier) -> None:
        """Fold the files, whose rows are mapped from the cache if possible."""
        self.schema = table.schema
        self.table_name = table.schema.table_name
        self._chunks: list[Chunk] = []
        """The rows of files."""
        self._pending: list[Chunk] = []
        """The rows of this epoch."""
        self._own_files: list[StateFile] = []
        """The files whose rows are held in memory, because they were written here."""
        self.fold_again(table, frontier)

    def insert(self, rows: RowsLike, expires_at: ExpiresAt) -> None:
        """Add rows that live until the clock reaches `expires_at`: one instant, or one each.

        Rows that have all expired already are not kept. A row whose key belongs to another
        subtask is refused: after a restore no subtask would see it.
        """
        self.check_usable()
        rows = self.schema.rows_of(rows)
        columns = self.schema.columns_of(rows)
        if rows.num_rows == 0:
            return
        keys = [
            columns[self.schema.declared.get_field_index(n)]
            for n in self.schema.key_columns
        ]
        task = self._table.environment.task
        hashes = pa.array(self.schema.owned_hashes(keys, rows.num_rows, task))
        expiry = given_expiry(expires_at, rows.num_rows, table=self.schema.table_name)
        batch = pa.RecordBatch.from_arrays(
            [*columns, hashes, expiry], schema=self.schema.stored
        )
        self.schema.stream.event_times_of(batch)  # refuses rows without one
        chunk = Chunk(batch, self.schema)
        if not chunk.is_dead(self._clock_micros):
            self._pending.append(chunk)
        if len(self._pending) >= _PENDING_CHUNKS:
            self._pending = join_chunks(self._pending, self.schema)

    def batches(self, start: Bound = None, end: Bound = None) -> list[pa.RecordBatch]:
        """Return the live rows with a time in `[start, end)`, oldest file first, in batches."""
        found = self.rows(start, end)
        return [batch for batch in found.to_batches() if batch.num_rows]

    def rows(self, start: Bound = None, end: Bound = None) -> pa.Table:
        """Return the live rows with a time in `[start, end)`, oldest file first."""
        first, last = self._micros(start), self._micros(end)
        parts = [
            chunk.live(self._clock_micros, first, last) for chunk in self._all_chunks()
        ]
        return self.schema.to_declared(
            pa.Table.from_batches(parts, schema=self.schema.stored)
        )

    def min_time(self, start: Bound = None) -> int | None:
        """Return the earliest time of a live row, at `start` or later; None without one."""
        first = self._micros(start)
        earliest: int | None = None
        for chunk in self._all_chunks():
            if earliest is None or chunk.time_bounds[0] < earliest:
                found = chunk.min_time(self._clock_micros, first)
                if found is not None and (earliest is None or found < earliest):
                    earliest = found
        return earliest

    def expire(self) -> int:
        """Free rows that have expired, and return how many; they are hidden in any case."""
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
        keys = self.schema.key_rows_of(keys)
        probes = self.schema.keys_of(keys)
        task = self._table.environment.task
        hashes = self.schema.owned_hashes(probes, keys.num_rows, task)
        matched, parts = [np.empty(0, np.int64)], []
        for chunk in self._all_chunks():
            found, rows = chunk.match(hashes, probes, self._clock_micros)
            if len(rows):
                matched.append(found)
                parts.append(take_rows(chunk.rows, rows))
        table = pa.Table.from_batches(parts, schema=self.schema.stored)
        owners = np.concatenate(matched)
        grouped = take_rows(table, np.argsort(owners, kind="stable"))
        counts = np.bincount(owners, minlength=keys.num_rows)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return GroupedRows(self.schema.to_declared(grouped), offsets)

    def get_between(
        self, keys: RowsLike, starts: Micros, ends: Micros, *, first_only: bool = False
    ) -> Iterator[Matches]:
        """Yield the live rows of each key with a time in the key's own `[start, end)`.

        They come in no order, a bounded number at a time, and are not copied. The cost follows
        the rows that are found, however many a key has at other times. With `first_only` any
        one of them may stand for all, for those who ask whether there are some.
        """
        keys = self.schema.key_rows_of(keys)
        if keys.num_rows == 0:
            return
        task = self._table.environment.task
        columns = self.schema.keys_of(keys)
        hashes = self.schema.owned_hashes(columns, keys.num_rows, task)
        probes = Probes(columns, hashes, stable_order(hashes), first_only)
        first, last = int(starts.min()), int(ends.max())
        for chunk in self._all_chunks():
            low, high = chunk.time_bounds
            if low >= last or high < first:
                continue
            clock = self._clock_micros
            for found, rows in chunk.match_between(probes, clock, starts, ends):
                yield Matches(found, chunk.rows, rows, chunk.times)

    @override
    def advance(self, frontier: Frontier) -> None:
        """Start an epoch: expiry is judged by its clock, which never goes back."""
        self._frontier = frontier
        self._clock_micros = clock_within_epoch(self.schema.domain, frontier)
        self._chunks = [
            chunk for chunk in self._chunks if not chunk.is_dead(self._clock_micros)
        ]

    @override
    def flush(self, checkpointer: TableEpochCheckpointer[Any]) -> None:
        """Insert the rows of this epoch in the order they came."""
        for chunk in self._pending:
            checkpointer.insert_data(chunk.rows)

    @override
    def checkpointed(self, files: Sequence[StateFile]) -> None:
        """Keep this epoch's rows, which are in `files`, as rows of files."""
        # Rows that expire with this epoch were not written to its files.
        clock = clock_after_epoch(self.schema.domain, self._frontier)
        written = self._live_chunks(self._pending, clock)
        joined = [*self._chunks, *join_chunks(written, self.schema)]
        self._chunks = settle_chunks(joined, self.schema, clock)
        self._pending = []
        known = {file.path for file in self.files}
        self._own_files += [file for file in files if file.path not in known]
        self.files = tuple(files)
        self._map_own_rows()

    def _map_own_rows(self) -> None:
        """Replace rows in memory by those of their files, if they take more than their share."""
        own = [chunk for chunk in self._chunks if not chunk.is_mapped]
        limit = self._table.environment.memory_budget_bytes // _OWN_SHARE
        if sum(chunk.rows.nbytes for chunk in own) <= limit:
            return
        listed = {file.path for file in self.files}
        written = [file for file in self._own_files if file.path in listed]
        mapped = [chunk for chunk in self._chunks if chunk.is_mapped]
        self._chunks = [*mapped, *self._read_chunks(written)]
        self._own_files = []

    @override
    def catch_up(self, missing: Sequence[StateFile], files: Sequence[StateFile]) -> None:
        self.check_settled(has_writes=bool(self._pending))
        self._chunks += self._read_chunks(missing)
        self.files = tuple(files)

    @override
    def release(self) -> None:
        self._chunks, self._pending, self._own_files = [], [], []
        self.is_released = True

    @override
    def fold_again(
        self, table: TypedTable[Any, TimeKeyedSchema], frontier: Frontier
    ) -> None:
        self._table = table
        self._frontier = frontier
        self._clock_micros = clock_within_epoch(self.schema.domain, frontier)
        self._chunks = self._read_chunks(table.files)
        self._own_files = []
        self.files: Files = table.files
        self.is_released = False

    def _micros(self, bound: Bound) -> int | None:
        try:
            return None if bound is None else to_instant(bound)
        except ValueError as error:
            raise SchemaError(
                f"table {self.schema.table_name!r} was asked for rows by time, but {error}: give "
                "microseconds since 1970, a datetime, a watermark, or None for no bound",
                table=self.schema.table_name,
            ) from error

    def _all_chunks(self) -> list[Chunk]:
        self.check_usable()
        return [*self._chunks, *self._pending]

    def _live_chunks(
        self, chunks: Sequence[Chunk], clock_micros: int | None
    ) -> list[Chunk]:
        live = []
        for chunk in chunks:
            rows = chunk.live(clock_micros)
            if rows is chunk.rows:
                live.append(chunk)
            elif rows.num_rows:
                live.append(Chunk(rows, self.schema))
        return live

    def _read_chunks(self, files: Sequence[StateFile]) -> list[Chunk]:
        """Return the visible rows of files, in order; files of expired rows only are skipped."""
        chunks: list[Chunk] = []
        for file in files:
            if is_expired(file, self._clock_micros):
                continue
            opened = TypedFile(file, self._table)
            chunks += [
                Chunk(opened.current(rows), self.schema, is_mapped=True)
                for rows in opened.reader.read().to_batches()
                if rows.num_rows
            ]
        return chunks


class KeyTimeView:
    """The rows of a `TimeKeyedView` by key, for joins. Both views share all rows."""

    def __init__(self, view: TimeKeyedView) -> None:
        self.by_time = view

    def get(self, keys: RowsLike) -> GroupedRows:
        """Return the live rows of each key, in the order they were inserted."""
        return self.by_time.get(keys)

    def get_between(
        self, keys: RowsLike, starts: Micros, ends: Micros, *, first_only: bool = False
    ) -> Iterator[Matches]:
        """Yield the live rows of each key in a range of time; see `TimeKeyedView.get_between`."""
        return self.by_time.get_between(keys, starts, ends, first_only=first_only)

    def insert(self, rows: RowsLike, expires_at: ExpiresAt) -> None:
        """Add rows; see `TimeKeyedView.insert`."""
        self.by_time.insert(rows, expires_at)
