"""A keyed table as an operator uses it: get, put and delete many keys or prefixes at once.

The view is the fold of a list of files plus the epoch's own writes. It holds few rows:
files are mapped from the executor's cache a row group at a time, and writes beyond a share
of the memory budget go to local disk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.hash_kernels import Hashes
from penstock.core.key_hash import hash_keys
from penstock.core.rows import RowsLike
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.state.files.state_file import StateFile
from penstock.state.tables.columns import KeyedSchema
from penstock.state.tables.expiry import (
    expiry_of_deletions,
    expiry_of_rows,
    frontier_micros,
)
from penstock.state.tables.keyed_lookup import (
    Matches,
    PrefixMatches,
    look_up,
    look_up_prefixes,
)
from penstock.state.tables.keyed_runs import (
    FileRun,
    OpenSegments,
    PendingRows,
    Run,
    live_only,
    merge_runs,
)
from penstock.state.tables.sorted_rows import Flags, GroupedRows, sort_rows
from penstock.state.tables.table import (
    DataOperation,
    Files,
    Frontier,
    TableEpochCheckpointer,
    View,
)
from penstock.state.tables.typed_files import TypedTable

_OPEN_SHARE = 4
"""Open segments may take the memory budget divided by this."""
_PENDING_SHARE = 4
"""Writes of the epoch may take the budget divided by this; lookups and merges use the rest."""
_PENDING_LIMIT_BYTES = 1 << 30
"""Writes in memory must also fit one Arrow array with 32-bit offsets."""


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """The result of a lookup: one row per key, in the order of the keys."""

    rows: pa.RecordBatch
    """The live row of each key, keys included; all null for a key without one."""
    found: Flags
    """Whether the key has a live row."""


class KeyedView(View):
    """Key → row state of one subtask. Made by `KeyedTable.view`, used by one thread."""

    def __init__(self, table: TypedTable[Any, KeyedSchema], frontier: Frontier) -> None:
        self.schema = table.schema
        self.table_name = table.schema.table_name
        budget = table.environment.memory_budget_bytes
        self._open_segments = OpenSegments(budget // _OPEN_SHARE)
        self._key_order = self.schema.key_columns, self.schema.order
        self._pending = PendingRows(
            *self._key_order,
            limit_bytes=min(budget // _PENDING_SHARE, _PENDING_LIMIT_BYTES),
            spill_folder=table.environment.cache.root,
        )
        self._runs: tuple[FileRun, ...] = ()
        self.fold_again(table, frontier)

    @property
    def bytes_read(self) -> int:
        """Bytes fetched from the store for the files in use; cache hits are not counted."""
        return sum(run.reader.bytes_read for run in self._runs)

    @override
    def advance(self, frontier: Frontier) -> None:
        """Start an epoch: `frontier` decides the expiry of new rows and which rows are live."""
        self._frontier = frontier

    def get(
        self, keys: RowsLike, *, columns: str | Sequence[str] | None = None
    ) -> KeyedRows:
        """Look up the keys in the key columns of `keys`, which may have other columns too.

        The result includes all earlier puts and deletes. `columns` limits what is fetched of
        each row. Keys and rows are record batches, Arrow tables, Polars or pandas frames,
        columns by name or lists of dictionaries; of one key column a list or an array of its
        values will do.
        """
        keys = self.schema.key_rows_of(keys)
        returned = self.schema.returned(columns)
        try:
            matches = self._find(self.schema.keys_of(keys), keys.num_rows, returned.names)
            aligned = matches.aligned(self.schema.stored_columns, returned.names)
            rows = self.schema.lay_out(aligned, returned)
        except pa.ArrowException as error:
            raise self._too_large(keys.num_rows, error) from error
        return KeyedRows(rows, matches.found)

    def get_all(
        self,
        prefixes: RowsLike,
        *,
        columns: str | Sequence[str] | None = None,
        limit: int | None = None,
        last: bool = False,
    ) -> GroupedRows:
        """Return all rows of each prefix: of equal values in the columns of `routed_by`.

        They are grouped in the order of the prefixes, a repeated prefix once each time. The
        rows of a prefix are in order of the other key columns, as `penstock.core.key_order`
        defines it. With a `limit` only the first rows of each prefix are returned, or the
        `last` ones, in the same order. `columns` limits what is fetched of each row.

        The cost grows with the rows returned and the runs that hold them, not with the table.
        All forms of rows that `get` takes are prefixes, too.
        """
        is_number = isinstance(limit, int) and not isinstance(limit, bool)
        if limit is not None and not (is_number and limit >= 1):
            raise UserError(
                f"table {self.table_name!r} was asked for at most {limit!r} rows per prefix: ask "
                "for 1 or more, or leave the limit out",
                code=ErrorCode.INVALID_NUMBER,
                table=self.table_name,
            )
        keys, count = self.schema.prefixes_of(prefixes)
        returned = pa.schema(
            [
                self.schema.declared.field(name)
                for name in self.schema.returned(columns).names
            ]
        )
        try:
            matches = self._find_all(keys, count, returned.names, limit, last=last)
            batches = [self.schema.lay_out(rows, returned) for rows in matches.batches()]
            rows = pa.Table.from_batches(batches, returned)
        except pa.ArrowException as error:
            raise self._too_large(count, error) from error
        return GroupedRows(rows, matches.offsets)

    def delete_all(self, prefixes: RowsLike) -> None:
        """Delete all rows of each prefix; one without rows is fine. See `get_all`."""
        found = self.get_all(prefixes, columns=self.schema.key_columns)
        for rows in found.rows.to_batches():
            self.delete(rows)

    def put(self, rows: RowsLike) -> None:
        """Insert rows or replace those of equal key; the last row of a key in `rows` counts."""
        rows = self.schema.rows_of(rows)
        columns = self.schema.columns_of(rows)
        expires_at = expiry_of_rows(rows, self.schema.ttl, self._frontier)
        self._write(columns, rows.num_rows, DataOperation.UPSERT, expires_at)

    def delete(self, keys: RowsLike) -> None:
        """Delete the keys in the key columns of `keys`; a missing key is fine."""
        keys = self.schema.key_rows_of(keys)
        found = dict(zip(self.schema.key_columns, self.schema.keys_of(keys), strict=True))
        count = keys.num_rows
        columns: list[Any] = [
            found[field.name] if field.name in found else pa.nulls(count, field.type)
            for field in self.schema.stored_columns
        ]
        expires_at = expiry_of_deletions(count, self.schema.ttl, self._frontier)
        self._write(columns, count, DataOperation.TOMBSTONE, expires_at)

    def scan(self) -> Iterator[pa.RecordBatch]:
        """Yield all live rows in order of key hash, in bounded memory.

        The scan sees the writes made before it started, and judges expiry by the frontier at
        its start.
        """
        self.check_usable()
        runs: list[Run] = [*self._runs, *self._pending.runs()]
        instant = frontier_micros(self.schema.ttl, self._frontier)
        return self._live_batches(runs, instant)

    def load(self) -> int:
        """Fetch, verify and cache every row now instead of on lookup; return their number."""
        self.check_usable()
        return sum(
            run.read_segment(index).rows.num_rows
            for run in self._runs
            for index in range(len(run.first_hashes))
        )

    @override
    def flush(self, checkpointer: TableEpochCheckpointer[Any]) -> None:
        """Insert the epoch's writes in order of key hash, one row per key."""
        self.check_usable()
        for rows in merge_runs(self._pending.runs(), *self._key_order):
            checkpointer.insert_data(rows)

    @override
    def checkpointed(self, files: Sequence[StateFile]) -> None:
        """Drop the epoch's writes, which are in `files`, and become the fold of `files`."""
        self._pending.clear()
        self._adopt(files)

    @override
    def catch_up(self, missing: Sequence[StateFile], files: Sequence[StateFile]) -> None:
        """Become the fold of `files`. Nothing is read until it is looked up."""
        self.check_settled(has_writes=bool(self._pending))
        self._adopt(files)

    @override
    def release(self) -> None:
        self._pending.clear()
        self._open_segments.clear()
        self._runs = ()
        self.is_released = True

    @override
    def fold_again(self, table: TypedTable[Any, KeyedSchema], frontier: Frontier) -> None:
        self._table = table
        self._frontier = frontier
        self._adopt(table.files)
        self.is_released = False

    def _live_batches(
        self, runs: Sequence[Run], instant: int | None
    ) -> Iterator[pa.RecordBatch]:
        for rows in merge_runs(runs, *self._key_order):
            live = live_only(rows, instant)
            if live.num_rows:
                yield from self._declared_batches(live)

    def _declared_batches(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield rows as declared, in halves if a dictionary's index type is too small for all."""
        try:
            yield self.schema.lay_out(rows, self.schema.declared)
        except pa.ArrowInvalid:
            if rows.num_rows == 1:
                raise
            half = rows.num_rows // 2
            yield from self._declared_batches(rows.slice(0, half))
            yield from self._declared_batches(rows.slice(half))

    def _find(self, keys: Sequence[Any], count: int, columns: Sequence[str]) -> Matches:
        """Look keys up. The search's own memory is freed before the caller copies the result."""
        hashes = self._owned_hashes(keys, count)
        return look_up(
            self._runs_with(hashes),
            hashes,
            keys,
            key_columns=self.schema.key_columns,
            columns=columns,
            instant=frontier_micros(self.schema.ttl, self._frontier),
            rest=self.schema.order,
        )

    def _find_all(
        self,
        prefixes: Sequence[Any],
        count: int,
        columns: Sequence[str],
        limit: int | None,
        *,
        last: bool,
    ) -> PrefixMatches:
        """Look prefixes up. The search's own memory is freed before the caller copies the result."""
        self.check_usable()
        schema = self.schema
        names = schema.routing_columns
        hashes = hash_keys(prefixes, row_count=count)
        task = self._table.environment.task
        schema.check_owned(hashes, dict(zip(names, prefixes, strict=True)), task)
        copied = dict.fromkeys([*(schema.rest or names[:1]), *columns])
        return look_up_prefixes(
            self._runs_with(hashes),
            hashes,
            prefixes,
            prefix_columns=names,
            rest=schema.rest,
            stored=pa.schema([schema.stored.field(name) for name in copied]),
            instant=frontier_micros(schema.ttl, self._frontier),
            limit=limit,
            last=last,
        )

    def _runs_with(self, hashes: Hashes) -> list[Run]:
        """Return the runs that may hold some of the hashes, newest first."""
        if not len(hashes):
            return []
        first, last = int(hashes.min()), int(hashes.max())
        files = [run for run in self._runs if run.may_hold(first, last)]
        return [*reversed(self._pending.runs()), *reversed(files)]

    def _too_large(self, count: int, error: Exception) -> SchemaError:
        return SchemaError(
            f"the rows that table {self.schema.table_name!r} holds for these {count} keys do not "
            f"fit into one record batch ({error}): look up fewer keys at a time, or declare "
            "larger types: large_string, large_binary, or a dictionary with a wider index",
            table=self.schema.table_name,
        )

    def _write(
        self, columns: list[Any], count: int, operation: DataOperation, expires_at: Any
    ) -> None:
        stored = self.schema.stored
        keys = [columns[stored.get_field_index(name)] for name in self.schema.key_columns]
        hashes = self._owned_hashes(keys, count)
        operations = np.full(count, operation.value, dtype=np.int8)
        rows = pa.RecordBatch.from_arrays(
            [*columns, pa.array(hashes), pa.array(operations), expires_at], schema=stored
        )
        self._pending.add(sort_rows(rows, *self._key_order))

    def _owned_hashes(self, keys: Sequence[Any], count: int) -> Hashes:
        """Return the key hashes; a key that another subtask owns is refused."""
        self.check_usable()
        return self.schema.owned_hashes(keys, count, self._table.environment.task)

    def _adopt(self, files: Sequence[StateFile]) -> None:
        """Make the view the fold of `files`; runs of files that stay are kept open."""
        known = {run.identity: run for run in self._runs}
        runs = []
        for file in files:
            run = known.pop(file.identity, None)
            runs.append(run or FileRun(file, self._table, self._open_segments))
        self._runs = tuple(runs)
        for identity in known:
            self._open_segments.close(identity)
        self.files: Files = tuple(files)
