"""Files of a time-keyed table: read at the current version, written, and merged.

All files are sorted by key hash, rows of equal hash in the order they were inserted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.hash_kernels import Hashes
from penstock.core.ids import Epoch, TableName
from penstock.errors import ErrorCode, SchemaError
from penstock.state.files.migration import (
    MigrationStep,
    as_declared,
    migrate_rows,
    plan_migration,
)
from penstock.state.files.parquet import KEY_HASH
from penstock.state.files.reader import StateFileReader, rows_in_range
from penstock.state.files.state_file import StateFile
from penstock.state.files.writer import FileDescription, StateFileWriter, write_state_file
from penstock.state.tables.columns import (
    EXPIRES_AT,
    TIME_BOOKKEEPING_FIELDS,
    TimeKeyedSchema,
    live_rows,
)
from penstock.state.tables.compaction import CompactionPlan
from penstock.state.tables.expiry import clock_after_epoch
from penstock.state.tables.sorted_rows import stable_order
from penstock.state.tables.table import CompactionConfig, TableEnvironment
from penstock.state.tables.time_keyed_rows import Chunk

_BOOKKEEPING = [field.name for field in TIME_BOOKKEEPING_FIELDS]
_ONE_FILE_SHARE = 2
"""Epochs that inserted more than the memory budget divided by this are written as several files."""


@dataclass(frozen=True, slots=True)
class VersionedReader:
    """Reads files of one table and brings their rows to the current version."""

    schema: TimeKeyedSchema
    environment: TableEnvironment
    state_version: int
    state_type: Any = None

    def read_chunks(self, files: Sequence[StateFile]) -> list[Chunk]:
        """Return the visible rows of files, in order."""
        chunks: list[Chunk] = []
        for file in files:
            rows = StateFileReader(
                self.environment.store, self.environment.cache, file
            ).read()
            batches = rows.to_batches()
            chunks += [
                Chunk(self._current(b, file), self.schema, is_mapped=True)
                for b in batches
                if b.num_rows
            ]
        return chunks

    def read_segments(self, file: StateFile) -> Iterator[pa.RecordBatch]:
        """Yield the visible rows of a file in order of hash, a row group at a time."""
        reader = StateFileReader(self.environment.store, self.environment.cache, file)
        for segment in reader.visible_segments:
            rows = rows_in_range(reader.read_segment(segment.index), file.visible)
            if rows.num_rows:
                yield self._current(rows, file)

    def _current(self, rows: pa.RecordBatch, file: StateFile) -> pa.RecordBatch:
        table = self.schema.table_name
        steps: tuple[MigrationStep, ...] = ()
        if file.state_version != self.state_version:
            steps = plan_migration(file.state_version, self.state_type, table=table)
        if not steps and rows.schema.equals(self.schema.stored):
            return rows
        values = rows.select([n for n in rows.schema.names if n not in _BOOKKEEPING])
        if steps:
            values = migrate_rows(
                as_declared(values, steps[0].from_type, table=table, path=file.path),
                steps,
                key_columns=self.schema.key_columns,
                table=table,
                path=file.path,
            )
        try:
            columns = self.schema.to_stored(values)
            columns += [rows.column(name) for name in _BOOKKEEPING]
        except (SchemaError, KeyError) as error:
            raise SchemaError(
                f"{file.path} does not fit table {table!r} in the same state version "
                f"{file.state_version}: {error}. Give the new columns a state class of the next "
                "version with a migration, or restore the old declaration",
                code=ErrorCode.SCHEMA_MISMATCH,
                table=table,
                path=file.path,
            ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.stored)


def write_rows(
    rows: pa.Table,
    schema: TimeKeyedSchema,
    environment: TableEnvironment,
    epoch: Epoch,
    *,
    state_version: int,
) -> tuple[StateFile, ...]:
    """Write one epoch's rows sorted by key hash: one file, or several if they are many."""
    order = stable_order(rows.column(KEY_HASH).to_numpy())
    ordered = rows.take(pa.array(order, pa.int64()))
    name = TableName(schema.table_name)
    description = FileDescription(
        epoch=epoch,
        subtask_index=environment.task.subtask.index,
        state_version=state_version,
        visible=environment.task.key_range,
        time_column=schema.time_column,
        expiry_column=EXPIRES_AT,
    )
    one_file_bytes = environment.memory_budget_bytes // _ONE_FILE_SHARE
    if ordered.nbytes <= one_file_bytes:
        path = environment.path_for(name, epoch)
        cache = environment.cache
        return (
            write_state_file(environment.store, path, ordered, description, cache=cache),
        )
    writer = StateFileWriter(
        environment.store,
        lambda part: environment.path_for(name, epoch, part=part),
        schema.stored,
        description,
        target_bytes=one_file_bytes,
        cut_anywhere=not schema.key_columns,
    )
    writer.write(ordered)
    return writer.finish()


def compact_files(
    plan: CompactionPlan, reader: VersionedReader, compaction: CompactionConfig
) -> tuple[StateFile, ...]:
    """Write the live rows of a plan's inputs as one sorted run, in bounded memory."""
    schema, environment = reader.schema, compaction.environment
    clock = clock_after_epoch(schema.domain, compaction.frontier)
    writer = StateFileWriter(
        environment.store,
        lambda part: environment.path_for(
            TableName(schema.table_name), compaction.epoch, compacted=True, part=part
        ),
        schema.stored,
        plan.describe(
            reader.state_version, time_column=schema.time_column, expiry_column=EXPIRES_AT
        ),
        target_bytes=compaction.target_file_bytes,
        cut_anywhere=not schema.key_columns,
    )
    inputs = [file for file in plan.inputs if not is_expired(file, clock)]
    for rows in merge_by_hash([reader.read_segments(file) for file in inputs]):
        live = live_rows(rows, clock)
        writer.write(rows if live is None else rows.filter(pa.array(live)))
    return writer.finish()


def is_expired(file: StateFile, clock_micros: int | None) -> bool:
    """Tell from the list entry alone that a file holds no live row."""
    if file.row_count == 0:
        return True
    last = file.last_expiry_micros
    return clock_micros is not None and last is not None and last <= clock_micros


def merge_by_hash(sources: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Merge sorted streams of rows; equal hashes in the order of the sources.

    Holds one batch per source, however many rows share a hash.
    """
    cursors = [_Cursor(source) for source in sources]
    while cursors := [cursor for cursor in cursors if cursor.fill()]:
        bound = min(cursor.last_hash for cursor in cursors)
        below = [rows for cursor in cursors if (rows := cursor.take_below(bound)).num_rows]
        if below:
            joined = pa.Table.from_batches(below)
            order = stable_order(joined.column(KEY_HASH).to_numpy())
            yield from joined.take(pa.array(order, pa.int64())).to_batches()
        for cursor in cursors:
            yield from cursor.take_equal(bound)


class _Cursor:
    """How far one sorted stream has been merged."""

    def __init__(self, source: Iterator[pa.RecordBatch]) -> None:
        self._source = source
        self._rows = pa.RecordBatch.from_pydict({KEY_HASH: pa.array([], pa.uint64())})

    def fill(self) -> bool:
        """Have some rows at hand; False at the end of the stream."""
        while self._rows.num_rows == 0:
            following = next(self._source, None)
            if following is None:
                return False
            self._rows = following
        return True

    @property
    def last_hash(self) -> int:
        """The last hash at hand."""
        return int(self._hashes()[-1])

    def take_below(self, bound: int) -> pa.RecordBatch:
        """Hand out the rows at hand with hashes below `bound`."""
        return self._take(int(np.searchsorted(self._hashes(), np.uint64(bound), "left")))

    def take_equal(self, bound: int) -> Iterator[pa.RecordBatch]:
        """Hand out all rows that come next with the hash `bound`, at hand or not."""
        while self.fill():
            count = int(np.searchsorted(self._hashes(), np.uint64(bound), "right"))
            if count == 0:
                return
            yield self._take(count)

    def _hashes(self) -> Hashes:
        return self._rows.column(KEY_HASH).to_numpy()

    def _take(self, count: int) -> pa.RecordBatch:
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        return taken
