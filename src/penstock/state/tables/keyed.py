"""KeyedTable: key → row state for any number of keys.

    schema = KeyedSchema("sessions", arrow_schema, ("user",), TimeToLive(hour, "last_seen"))
    table = KeyedTable.from_config(schema.to_config(), environment, None, state_version=0)
    view = table.view()
    view.put(rows); view.get(keys).found; view.delete(keys)

A file holds the user's columns plus `_key_hash` (ascending), `_operation` and `_expires_at`,
one row per key. The newest version of a key decides: if it is a tombstone or expired, older
ones stay hidden.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from google.protobuf.message import Message

from penstock.core.ids import Epoch
from penstock.state.files.state_file import StateFile, restrict
from penstock.state.proto import state_pb2
from penstock.state.tables.compaction import plan_compaction
from penstock.state.tables.file_lists import files_of, message_of
from penstock.state.tables.keyed_checkpointer import KeyedTableCheckpointer
from penstock.state.tables.keyed_compaction import compact_files
from penstock.state.tables.keyed_schema import KeyedSchema
from penstock.state.tables.keyed_view import KeyedView
from penstock.state.tables.table import CompactionConfig, Table, TableEnvironment

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
    def files(self) -> tuple[StateFile, ...]:
        """The files this subtask's view folds, oldest first."""
        return self._files

    def view(self) -> KeyedView:
        """Return a view of the files. Nothing is read before the first lookup."""
        return KeyedView(
            self.schema,
            self._environment,
            self._files,
            state_version=self._state_version,
            state_type=self._state_type,
        )

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

    def subtask_metadata_from_table(
        self, table_metadata: TableMessage
    ) -> SubtaskMessage | None:
        """Return the files of a whole table as seen by this subtask."""
        files = restrict(files_of(table_metadata), self._environment.task.key_range)
        return message_of(SubtaskMessage, files) if files else None

    @classmethod
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
