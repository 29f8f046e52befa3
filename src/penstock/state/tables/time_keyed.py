"""TimeKeyedTable: rows by time, kept until the time their operator gave them.

What windows (panes), joins and timers keep: append-only, duplicates legal. A row expires by its own
`expires_at`, the end of the last window it serves, by event time or processing time. Files whose rows have all expired leave
the list at the next checkpoint without being read; single rows are hidden when read and
dropped by compaction. A compaction whose input expired meanwhile is void like any other
whose inputs have changed: nothing is lost but its work.

Without key columns a row belongs to the subtask that wrote it: its hash is the start of the
writer's key range, so that after a rescale exactly one subtask sees it.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import pyarrow as pa
from google.protobuf.message import Message
from typing_extensions import override

from penstock.core.ids import Epoch
from penstock.errors import ErrorCode, StateError
from penstock.state.files.state_file import StateFile, restrict
from penstock.state.proto import state_pb2
from penstock.state.tables.columns import TimeKeyedSchema, live_rows
from penstock.state.tables.compaction import for_expiring, plan_compaction
from penstock.state.tables.expiry import clock_after_epoch
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
from penstock.state.tables.time_keyed_files import (
    VersionedReader,
    compact_files,
    is_expired,
    write_rows,
)
from penstock.state.tables.time_keyed_view import KeyTimeView, TimeKeyedView

TableMessage = state_pb2.TimeKeyedTableCheckpointMetadata
SubtaskMessage = state_pb2.TimeKeyedTableSubtaskCheckpointMetadata


class TimeKeyedTable(Table[state_pb2.TimeKeyedTableConfig, TableMessage, SubtaskMessage]):
    """One subtask's part of a time-keyed table."""

    table_type = state_pb2.TIME_KEYED_TABLE
    config_message: ClassVar[type[Message]] = state_pb2.TimeKeyedTableConfig
    table_message: ClassVar[type[Any]] = TableMessage
    subtask_message: ClassVar[type[Any]] = SubtaskMessage

    def __init__(
        self,
        schema: TimeKeyedSchema,
        environment: TableEnvironment,
        files: Sequence[StateFile],
        *,
        state_version: int,
        state_type: Any = None,
    ) -> None:
        self.schema = schema
        self._environment = environment
        self._files = tuple(files)
        self._state_version = state_version
        self._reader = VersionedReader(schema, environment, state_version, state_type)

    @classmethod
    @override
    def from_config(
        cls,
        config: state_pb2.TimeKeyedTableConfig,
        environment: TableEnvironment,
        checkpoint_message: TableMessage | None,
        state_version: int,
        state_type: Any = None,
    ) -> Self:
        """Bind the table to the files that hold rows of this subtask's range."""
        return cls(
            TimeKeyedSchema.from_config(config),
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
    def view(self) -> TimeKeyedView:
        return TimeKeyedView(self.schema, self._environment, self._files, self._reader)

    def key_time_view(self) -> KeyTimeView:
        """Return the rows by key and time."""
        return self.view().by_key()

    @override
    def epoch_checkpointer(
        self, epoch: Epoch, previous_metadata: SubtaskMessage | None
    ) -> "TimeKeyedTableCheckpointer":
        """Return the checkpointer of one epoch."""
        return TimeKeyedTableCheckpointer(
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
        config: state_pb2.TimeKeyedTableConfig,
        compaction: CompactionConfig,
        table_metadata: TableMessage,
        state_version: int,
        state_type: Any = None,
    ) -> TableMessage | None:
        """Concatenate files of the compaction's subtask, without the rows that have expired."""
        environment = compaction.environment
        files = restrict(files_of(table_metadata), environment.task.key_range)
        plan = plan_compaction(files, for_expiring(compaction))
        if plan is None:
            return None
        schema = TimeKeyedSchema.from_config(config)
        reader = VersionedReader(schema, environment, state_version, state_type)
        outputs = compact_files(plan, reader, compaction)
        return message_of(TableMessage, outputs)


class TimeKeyedTableCheckpointer(TableEpochCheckpointer[SubtaskMessage]):
    """Writes the rows that one subtask inserted in one epoch. Used once."""

    def __init__(
        self,
        schema: TimeKeyedSchema,
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
        self._state_version = state_version
        self._batches: list[pa.RecordBatch] = []

    @override
    def insert_data(self, data: TableData) -> None:
        if not isinstance(data, pa.RecordBatch):
            raise StateError(
                f"time-keyed table {self._schema.table_name!r} stores record batches, not "
                f"{type(data).__name__}; use a global table for values and commit data",
                code=ErrorCode.WRONG_TABLE_KIND,
                table=self._schema.table_name,
            )
        self._batches.append(data)

    @override
    def finish(self, checkpoint: CheckpointMessage) -> tuple[SubtaskMessage, int] | None:
        """Write the rows that are live, behind the earlier files that hold such rows."""
        clock = clock_after_epoch(self._schema.domain, checkpoint.frontier)
        kept = tuple(file for file in self._previous if not is_expired(file, clock))
        written = self._write(clock)
        if not kept and not written:
            return None
        message = message_of(SubtaskMessage, (*kept, *written))
        return message, sum(file.size_bytes for file in written)

    def _write(self, clock_micros: int | None) -> tuple[StateFile, ...]:
        live = []
        for batch in self._batches:
            picked = live_rows(batch, clock_micros)
            live.append(batch if picked is None else batch.filter(pa.array(picked)))
        rows = pa.Table.from_batches(live, schema=self._schema.stored)
        if rows.num_rows == 0:
            return ()
        return write_rows(
            rows,
            self._schema,
            self._environment,
            self._epoch,
            state_version=self._state_version,
        )
