"""TimeKeyedTable: rows by time, each kept until the expiry that its operator gave it.

Windows (panes), joins and timers use it. It is append-only and may hold duplicates. A row
expires at its own `expires_at`, the end of the last window that needs it, by event time or
processing time. Files whose rows have all expired leave the list at the next checkpoint
without being read; single expired rows are hidden when read and dropped by compaction. A
compaction of which some inputs expired meanwhile takes the place of the others.

Without key columns a row belongs to the subtask that wrote it: its hash is the start of the
writer's key range, so that after a rescale exactly one subtask sees it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
from google.protobuf.message import Message
from typing_extensions import override

from penstock.state.files.reader import rows_in_range
from penstock.state.files.state_file import StateFile
from penstock.state.proto import state_pb2
from penstock.state.tables.columns import EXPIRES_AT, TimeKeyedSchema
from penstock.state.tables.compaction import CompactionPlan
from penstock.state.tables.expiry import clock_after_epoch, is_expired, live_rows
from penstock.state.tables.sorted_rows import hashes_of, stable_order, take_rows
from penstock.state.tables.table import (
    CompactionConfig,
    Files,
    Frontier,
    TableData,
    TableEpochCheckpointer,
)
from penstock.state.tables.time_keyed_view import TimeKeyedView
from penstock.state.tables.typed_files import Cursor, TypedFile, TypedTable

_ONE_FILE_SHARE = 2
"""A delta larger than the memory budget divided by this is written as several files."""


@dataclass(eq=False)
class TimeKeyedTableCheckpointer(TableEpochCheckpointer["TimeKeyedTable"]):
    """Writes the rows that one subtask inserted in one epoch. Used once."""

    _batches: list[pa.RecordBatch] = field(default_factory=list, init=False)

    @override
    def insert_data(self, data: TableData) -> None:
        self._batches.append(self.table.checked_rows(data))

    @override
    def write(self, frontier: Frontier) -> Files:
        """Write the live rows sorted by key hash: one file, or several if they are large."""
        table, schema = self.table, self.table.schema
        clock = clock_after_epoch(schema.domain, frontier)
        live = [_live(batch, clock) for batch in self._batches]
        rows = pa.Table.from_batches(live, schema=schema.stored)
        if rows.num_rows == 0:
            return ()
        ordered = take_rows(rows, stable_order(hashes_of(rows)))
        one_file_bytes = table.environment.memory_budget_bytes // _ONE_FILE_SHARE
        if ordered.nbytes <= one_file_bytes:
            return table.write_delta(ordered, self.epoch)
        is_keyless = not schema.key_columns
        writer = table.delta_writer(self.epoch, one_file_bytes, cut_anywhere=is_keyless)
        writer.write(ordered)
        return writer.finish()


class TimeKeyedTable(TypedTable[state_pb2.TimeKeyedTableConfig, TimeKeyedSchema]):
    """One subtask's part of a time-keyed table."""

    table_type = state_pb2.TIME_KEYED_TABLE
    config_message: ClassVar[type[Message]] = state_pb2.TimeKeyedTableConfig
    checkpointer_type = TimeKeyedTableCheckpointer
    schema_type = TimeKeyedSchema
    kind = "time-keyed"
    all_rows_expire = True

    @override
    def view(self, frontier: Frontier | None = None) -> TimeKeyedView:
        """Read all files except those whose rows have all expired."""
        return TimeKeyedView(self, frontier or Frontier())

    @override
    def still_needed(self, files: Files, frontier: Frontier) -> Files:
        """Return the files with live rows."""
        clock = clock_after_epoch(self.schema.domain, frontier)
        return tuple(file for file in files if not is_expired(file, clock))

    @override
    def compact_data(self, plan: CompactionPlan, config: CompactionConfig) -> Files:
        """Write the live rows of a plan's inputs as one sorted run, in bounded memory."""
        clock = clock_after_epoch(self.schema.domain, config.frontier)
        is_keyless = not self.schema.key_columns
        writer = self.merged_writer(plan, config, cut_anywhere=is_keyless)
        inputs = [file for file in plan.inputs if not is_expired(file, clock)]
        for rows in merge_by_hash([self._read_segments(file) for file in inputs]):
            writer.write(_live(rows, clock))
        return writer.finish()

    def _read_segments(self, file: StateFile) -> Iterator[pa.RecordBatch]:
        """Yield the visible rows of a file in order of hash, a row group at a time."""
        opened = TypedFile(file, self)
        for segment in opened.reader.visible_segments:
            rows = rows_in_range(opened.reader.read_segment(segment.index), file.visible)
            if rows.num_rows:
                yield opened.current(rows)


def _live(rows: pa.RecordBatch, clock_micros: int | None) -> pa.RecordBatch:
    live = live_rows(rows.column(EXPIRES_AT), clock_micros)
    return rows if live is None else rows.filter(pa.array(live))


def merge_by_hash(sources: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Merge sorted streams of rows; rows of equal hash come in the order of the sources.

    The merge holds one batch per source, however many rows share a hash.
    """
    cursors = [Cursor(source) for source in sources]
    while cursors := [cursor for cursor in cursors if cursor.fill()]:
        bound = min(cursor.last_hash for cursor in cursors)
        below = [
            rows for cursor in cursors if (rows := cursor.take(bound, "left")).num_rows
        ]
        if below:
            joined = pa.Table.from_batches(below)
            yield from take_rows(joined, stable_order(hashes_of(joined))).to_batches()
        for cursor in cursors:
            # A hash may go on in the next batches of its source: yield them one by one.
            while cursor.fill() and (rows := cursor.take(bound, "right")).num_rows:
                yield rows
