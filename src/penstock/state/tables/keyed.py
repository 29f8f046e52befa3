"""KeyedTable: key → row state for any number of keys.

    schema = KeyedSchema("sessions", arrow_schema, ("user",), TimeToLive(hour, "last_seen"))
    table = KeyedTable.from_config(schema.to_config(), environment, None, state_version=0)
    view = table.view()
    view.put(rows); view.get(keys).found; view.delete(keys)

A file holds the user's columns plus `_key_hash` (ascending), `_operation` and `_expires_at`,
one row per key. The newest version of a key decides: if it is a tombstone or expired, older
ones stay hidden.

Compaction of keyed files: neighbours of a list become one sorted run of equal meaning.

Works in bounded memory: all inputs are sorted by hash, so they are merged slice by slice.
The newest version of a key survives. If that is a tombstone or an expired row it goes too,
but only where the inputs hold the oldest files of their key range; anywhere else it stays
and keeps hiding what is older.

The checkpointer of a keyed table: one sorted delta per epoch, and what it carries forward.

A delta is one file, or several parts with disjoint visible ranges when it is large. A put
that equals the stored row is written like any other: comparing would cost more than the
row.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Self

import pyarrow as pa
from google.protobuf.message import Message
from typing_extensions import override

from penstock.core.ids import Epoch, KeyRange, TableName
from penstock.errors import ErrorCode, InternalError, StateError
from penstock.state.files.state_file import StateFile, restrict
from penstock.state.files.writer import FileDescription, StateFileWriter, write_state_file
from penstock.state.proto import state_pb2
from penstock.state.tables.columns import EXPIRES_AT, KeyedSchema
from penstock.state.tables.compaction import CompactionPlan, plan_compaction
from penstock.state.tables.expiry import frontier_micros
from penstock.state.tables.keyed_runs import FileRun, OpenSegments, live_only, merge_runs
from penstock.state.tables.keyed_view import KeyedView
from penstock.state.tables.sorted_rows import hashes_of
from penstock.state.tables.table import (
    CheckpointMessage,
    CompactionConfig,
    Table,
    TableData,
    TableEnvironment,
    TableEpochCheckpointer,
    files_of,
    message_of,
)


def compact_files(
    plan: CompactionPlan,
    schema: KeyedSchema,
    compaction: CompactionConfig,
    *,
    state_version: int,
    state_type: type | None = None,
) -> tuple[StateFile, ...]:
    """Write the fold of the plan's inputs as files of the current version.

    Together the outputs see exactly the hashes that the inputs saw. There is at least one
    output, even if no row survives, because the list must say what was replaced.
    """
    environment = compaction.environment
    instant = frontier_micros(schema.ttl, compaction.frontier)
    outputs: list[StateFile] = []
    for stretch in join_ranges([file.visible for file in plan.inputs]):
        writer = StateFileWriter(
            environment.store,
            partial(_output_path, schema, compaction, len(outputs)),
            schema.stored,
            plan.describe(
                state_version,
                visible=stretch,
                time_column=None if schema.ttl is None else schema.ttl.time_column,
                expiry_column=EXPIRES_AT,
            ),
            target_bytes=compaction.target_file_bytes,
        )
        runs = [
            FileRun(
                file,
                schema,
                environment,
                OpenSegments(limit_bytes=0),
                state_version=state_version,
                state_type=state_type,
            )
            for file in restrict(plan.inputs, stretch)
        ]
        for rows in merge_runs(runs, schema.key_columns):
            writer.write(live_only(rows, instant) if plan.drops_deleted else rows)
        outputs += writer.finish()
    return tuple(outputs)


def _output_path(
    schema: KeyedSchema, compaction: CompactionConfig, first: int, part: int
) -> str:
    name = TableName(schema.table_name)
    return compaction.environment.path_for(
        name, compaction.epoch, compacted=True, part=first + part
    )


def join_ranges(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """Return the union of some ranges as disjoint ones that do not touch, ascending."""
    joined: list[KeyRange] = []
    for part in sorted(ranges):
        if joined and part.start <= joined[-1].end:
            joined[-1] = KeyRange(joined[-1].start, max(joined[-1].end, part.end))
        else:
            joined.append(part)
    return joined


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

    @override
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

    @override
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


TableMessage = state_pb2.KeyedTableCheckpointMetadata
SubtaskMessage = state_pb2.KeyedTableSubtaskCheckpointMetadata


class KeyedTable(Table[state_pb2.KeyedTableConfig, TableMessage, SubtaskMessage]):
    """One subtask's part of a keyed table."""

    table_type = state_pb2.KEYED_TABLE
    config_message: ClassVar[type[Message]] = state_pb2.KeyedTableConfig
    table_message: ClassVar[type[Any]] = TableMessage
    subtask_message: ClassVar[type[Any]] = SubtaskMessage

    def __init__(
        self,
        schema: KeyedSchema,
        environment: TableEnvironment,
        files: Sequence[StateFile],
        *,
        state_version: int,
        state_type: type | None = None,
    ) -> None:
        self.schema = schema
        self._environment = environment
        self._files = tuple(files)
        self._state_version = state_version
        self._state_type = state_type

    @classmethod
    @override
    def from_config(
        cls,
        config: state_pb2.KeyedTableConfig,
        environment: TableEnvironment,
        checkpoint_message: TableMessage | None,
        state_version: int,
        state_type: type | None = None,
    ) -> Self:
        """Bind the table to the files that hold keys of this subtask's range."""
        return cls(
            KeyedSchema.from_config(config),
            environment,
            restrict(files_of(checkpoint_message), environment.task.key_range),
            state_version=state_version,
            state_type=state_type,
        )

    @property
    @override
    def files(self) -> tuple[StateFile, ...]:
        """The files this subtask's view folds, oldest first."""
        return self._files

    @override
    def view(self) -> KeyedView:
        """Return a view of the files. Nothing is read before the first lookup."""
        return KeyedView(
            self.schema,
            self._environment,
            self._files,
            state_version=self._state_version,
            state_type=self._state_type,
        )

    @override
    def epoch_checkpointer(
        self,
        epoch: Epoch,
        previous_metadata: SubtaskMessage | None,
    ) -> KeyedTableCheckpointer:
        """Return the checkpointer of one epoch."""
        return KeyedTableCheckpointer(
            self.schema,
            self._environment,
            epoch,
            files_of(previous_metadata),
            state_version=self._state_version,
        )

    @override
    def subtask_metadata_from_table(
        self, table_metadata: TableMessage
    ) -> SubtaskMessage | None:
        """Return the files of a whole table as seen by this subtask."""
        files = restrict(files_of(table_metadata), self._environment.task.key_range)
        return message_of(SubtaskMessage, files) if files else None

    @classmethod
    @override
    def compact_data(
        cls,
        config: state_pb2.KeyedTableConfig,
        compaction: CompactionConfig,
        table_metadata: TableMessage,
        state_version: int,
        state_type: type | None = None,
    ) -> TableMessage | None:
        """Merge the files of the compaction's subtask as `plan_compaction` says."""
        owned = compaction.environment.task.key_range
        plan = plan_compaction(restrict(files_of(table_metadata), owned), compaction)
        if plan is None:
            return None
        outputs = compact_files(
            plan,
            KeyedSchema.from_config(config),
            compaction,
            state_version=state_version,
            state_type=state_type,
        )
        return message_of(TableMessage, outputs)
