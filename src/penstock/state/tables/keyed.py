"""KeyedTable: key → row state for any number of keys.

    schema = KeyedSchema("sessions", arrow_schema, ("user",), TimeToLive(hour, "last_seen"))
    table = KeyedTable.from_config(schema.to_config(), environment, (), state_version=0)
    view = table.view()
    view.put(rows); view.get(keys).found; view.delete(keys)

A file holds the user's columns plus `_key_hash` (ascending), `_operation` and `_expires_at`,
one row per key. Of a table that is routed by some of its key columns, rows of equal hash are in
order of the others. The newest version of a key decides: if it is a tombstone or expired, it hides
the older ones.

A delta is one file, or several parts with disjoint visible ranges when it is large. A put
that equals the stored row is written like any other: comparing would cost more than writing.

Compaction turns neighbours of a list into one sorted run with an equal fold, in bounded
memory: all inputs are sorted by hash, so they are merged slice by slice. The newest version
of a key is kept. A tombstone or an expired row is dropped, but only if the inputs hold the
oldest files of their key range; otherwise it stays, because it hides older rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
from google.protobuf.message import Message
from typing_extensions import override

from penstock.core.ids import KeyRange
from penstock.errors import InternalError
from penstock.state.files.state_file import StateFile, restrict
from penstock.state.files.writer import StateFileWriter
from penstock.state.proto import state_pb2
from penstock.state.tables.columns import KeyedSchema
from penstock.state.tables.compaction import CompactionPlan
from penstock.state.tables.expiry import frontier_micros, is_expired
from penstock.state.tables.keyed_runs import FileRun, live_only, merge_runs
from penstock.state.tables.keyed_view import KeyedView
from penstock.state.tables.sorted_rows import hashes_of
from penstock.state.tables.table import (
    CompactionConfig,
    Files,
    Frontier,
    TableData,
    TableEpochCheckpointer,
)
from penstock.state.tables.typed_files import TypedTable

PART_BYTES = 128 << 20
_HELD_SHARE = 8
"""Deltas up to the memory budget divided by this are written as one file, and cached."""


@dataclass(eq=False)
class KeyedTableCheckpointer(TableEpochCheckpointer["KeyedTable"]):
    """Writes one epoch's changes of one keyed table. Used once."""

    _held: list[pa.RecordBatch] = field(default_factory=list, init=False)
    _held_bytes: int = field(default=0, init=False)
    _writer: StateFileWriter | None = field(default=None, init=False)
    _last_hash: int = field(default=-1, init=False)

    @override
    def insert_data(self, data: TableData) -> None:
        """Take stored rows, ascending by key hash over all calls, one row per key."""
        rows = self.table.checked_rows(data)
        if rows.num_rows == 0:
            return
        self._check_order(rows)
        if self._writer is not None:
            self._writer.write(rows)
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        limit_bytes = self.table.environment.memory_budget_bytes // _HELD_SHARE
        if self._held_bytes > limit_bytes:
            # From here on parts are written while rows come in, so that memory stays bounded.
            self._writer = self.table.delta_writer(self.epoch, min(PART_BYTES, limit_bytes))
            for held in self._held:
                self._writer.write(held)
            self._held = []

    @override
    def write(self, frontier: Frontier) -> Files:
        if self._writer is not None:
            return self._writer.finish()
        if not self._held:
            return ()
        return self.table.write_delta(pa.Table.from_batches(self._held), self.epoch)

    def _check_order(self, rows: pa.RecordBatch) -> None:
        schema = self.table.schema
        if not rows.schema.equals(schema.stored):
            raise InternalError(
                f"table {schema.table_name!r} was handed columns {rows.schema.names}, not its "
                f"stored ones {schema.stored.names}"
            )
        hashes = hashes_of(rows)
        if int(hashes[0]) < self._last_hash or bool((hashes[1:] < hashes[:-1]).any()):
            raise InternalError(
                f"table {schema.table_name!r} was handed rows out of order of key hash"
            )
        self._last_hash = int(hashes[-1])


class KeyedTable(TypedTable[state_pb2.KeyedTableConfig, KeyedSchema]):
    """One subtask's part of a keyed table."""

    table_type = state_pb2.KEYED_TABLE
    config_message: ClassVar[type[Message]] = state_pb2.KeyedTableConfig
    checkpointer_type = KeyedTableCheckpointer
    schema_type = KeyedSchema
    kind = "keyed"

    @override
    def view(self, frontier: Frontier | None = None) -> KeyedView:
        """Return a view of the files. Nothing is read before the first lookup."""
        return KeyedView(self, frontier or Frontier())

    @override
    def still_needed(self, files: Files, frontier: Frontier) -> Files:
        """Return the files with live rows, and files of expired rows that hide older rows."""
        instant = frontier_micros(self.schema.ttl, frontier)
        kept: list[StateFile] = []
        for file in files:
            hides_something = any(file.visible.overlaps(older.visible) for older in kept)
            if hides_something or not is_expired(file, instant):
                kept.append(file)
        return tuple(kept)

    @override
    def compact_data(self, plan: CompactionPlan, config: CompactionConfig) -> Files:
        """Write the fold of the plan's inputs as files of the current version.

        Together the outputs see exactly the hashes that the inputs saw. There is at least one
        output, even without rows, because the list must name what was replaced.
        """
        instant = frontier_micros(self.schema.ttl, config.frontier)
        outputs: list[StateFile] = []
        for stretch in join_ranges([file.visible for file in plan.inputs]):
            writer = self.merged_writer(
                plan, config, first_part=len(outputs), visible=stretch
            )
            runs = [FileRun(file, self) for file in restrict(plan.inputs, stretch)]
            for rows in merge_runs(runs, self.schema.key_columns, self.schema.order):
                writer.write(live_only(rows, instant) if plan.drops_deleted else rows)
            outputs += writer.finish()
        return tuple(outputs)


def join_ranges(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Return the union of ranges as disjoint ranges that do not touch, ascending."""
    joined: list[KeyRange] = []
    for part in sorted(ranges):
        if joined and part.start <= joined[-1].end:
            joined[-1] = KeyRange(joined[-1].start, max(joined[-1].end, part.end))
        else:
            joined.append(part)
    return joined
