"""The checkpointer of a keyed table: one sorted delta per epoch, and what it carries forward.

A delta is one file, or several parts with disjoint visible ranges when it is large. A put
that equals the stored row is written like any other: comparing would cost more than the
row.
"""

from collections.abc import Sequence

import pyarrow as pa

from penstock.core.ids import Epoch, TableName
from penstock.errors import ErrorCode, InternalError, StateError
from penstock.state.files.state_file import StateFile
from penstock.state.files.writer import FileDescription, StateFileWriter, write_state_file
from penstock.state.proto import state_pb2
from penstock.state.tables.file_lists import message_of
from penstock.state.tables.keyed_expiry import frontier_micros
from penstock.state.tables.keyed_rows import hashes_of
from penstock.state.tables.keyed_schema import EXPIRES_AT, KeyedSchema
from penstock.state.tables.table import (
    CheckpointMessage,
    TableData,
    TableEnvironment,
    TableEpochCheckpointer,
)

PART_BYTES = 128 << 20
_HELD_SHARE = 8
"""Deltas up to the memory budget divided by this are written as one file, and cached."""


class KeyedTableCheckpointer(
    TableEpochCheckpointer[state_pb2.KeyedTableSubtaskCheckpointMetadata]
):
    """Writes one epoch's changes of one keyed table. Used once."""

    def __init__(
        self,
        schema: KeyedSchema,
        environment: TableEnvironment,
        epoch: Epoch,
        previous: Sequence[StateFile],
        *,
        state_version: int,
    ) -> None:
        self._schema = schema
        self._environment = environment
        self._epoch = epoch
        self._previous = tuple(previous)
        self._description = FileDescription(
            epoch=epoch,
            subtask_index=environment.task.subtask.index,
            state_version=state_version,
            visible=environment.task.key_range,
            time_column=None if schema.ttl is None else schema.ttl.time_column,
            expiry_column=EXPIRES_AT,
        )
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._writer: StateFileWriter | None = None
        self._last_hash = -1

    def insert_data(self, data: TableData) -> None:
        """Take stored rows, ascending by key hash over all calls, one row per key."""
        if not isinstance(data, pa.RecordBatch):
            raise StateError(
                f"keyed table {self._schema.table_name!r} stores record batches, not "
                f"{type(data).__name__}; use a global table for values and commit data",
                code=ErrorCode.WRONG_TABLE_KIND,
                table=self._schema.table_name,
            )
        if data.num_rows == 0:
            return
        self._check_order(data)
        if self._writer is not None:
            self._writer.write(data)
            return
        self._held.append(data)
        self._held_bytes += data.nbytes
        if self._held_bytes > self._environment.memory_budget_bytes // _HELD_SHARE:
            self._start_streaming()

    def finish(
        self, checkpoint: CheckpointMessage
    ) -> tuple[state_pb2.KeyedTableSubtaskCheckpointMetadata, int] | None:
        """Write the delta, if there is one, behind the files that are still needed."""
        written = self._write()
        instant = frontier_micros(self._schema.ttl, checkpoint.frontier)
        files = (*drop_expired(self._previous, instant), *written)
        if not files:
            return None
        message = message_of(state_pb2.KeyedTableSubtaskCheckpointMetadata, files)
        return message, sum(file.size_bytes for file in written)

    def _check_order(self, rows: pa.RecordBatch) -> None:
        if not rows.schema.equals(self._schema.stored):
            raise InternalError(
                f"table {self._schema.table_name!r} was handed columns {rows.schema.names}, not "
                f"its stored ones {self._schema.stored.names}"
            )
        hashes = hashes_of(rows)
        if int(hashes[0]) < self._last_hash or bool((hashes[1:] < hashes[:-1]).any()):
            raise InternalError(
                f"table {self._schema.table_name!r} was handed rows out of order of key hash"
            )
        self._last_hash = int(hashes[-1])

    def _write(self) -> tuple[StateFile, ...]:
        if self._writer is not None:
            return self._writer.finish()
        if not self._held:
            return ()
        file = write_state_file(
            self._environment.store,
            self._path(0),
            pa.Table.from_batches(self._held),
            self._description,
            cache=self._environment.cache,
        )
        return (file,)

    def _start_streaming(self) -> None:
        """Go over to writing parts as rows come, so that memory stays bounded."""
        self._writer = StateFileWriter(
            self._environment.store,
            self._path,
            self._schema.stored,
            self._description,
            target_bytes=min(
                PART_BYTES, self._environment.memory_budget_bytes // _HELD_SHARE
            ),
        )
        for rows in self._held:
            self._writer.write(rows)
        self._held = []

    def _path(self, part: int) -> str:
        name = TableName(self._schema.table_name)
        return self._environment.path_for(name, self._epoch, part=part)


def drop_expired(files: Sequence[StateFile], instant: int | None) -> tuple[StateFile, ...]:
    """Return the files that a fold at `instant` or later still needs.

    A file of dead rows only is needed as long as an older one could show what it hides.
    """
    kept: list[StateFile] = []
    for file in files:
        hides_something = any(file.visible.overlaps(older.visible) for older in kept)
        if hides_something or not _is_dead(file, instant):
            kept.append(file)
    return tuple(kept)


def _is_dead(file: StateFile, instant: int | None) -> bool:
    if file.row_count == 0:
        return True
    return (
        instant is not None
        and file.last_expiry_micros is not None
        and file.last_expiry_micros <= instant
    )
