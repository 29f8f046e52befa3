"""KeyedTable: key → row state for any number of keys.

    schema = KeyedSchema("sessions", arrow_schema, ("user",), TimeToLive(hour, "last_seen"))
    table = KeyedTable.from_config(schema.to_config(), environment, None, state_version=0)
    view = table.view()
    view.put(rows); view.get(keys).found; view.delete(keys)

A file holds the user's columns plus `_key_hash` (ascending), `_operation` and `_expires_at`,
one row per key. The newest version of a key decides: if it is a tombstone or expired, older
ones stay hidden.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Self

from google.protobuf.message import Message

from penstock.core.ids import Epoch
from penstock.state.files.state_file import StateFile, apply_swap, merge_lists, restrict
from penstock.state.proto import state_pb2
from penstock.state.tables.compaction import plan_compaction
from penstock.state.tables.keyed_checkpointer import KeyedTableCheckpointer
from penstock.state.tables.keyed_compaction import compact_files
from penstock.state.tables.keyed_schema import KeyedSchema
from penstock.state.tables.keyed_view import KeyedView
from penstock.state.tables.table import CompactionConfig, Table, TableEnvironment


class KeyedTable(
    Table[
        state_pb2.KeyedTableConfig,
        state_pb2.KeyedTableCheckpointMetadata,
        state_pb2.KeyedTableSubtaskCheckpointMetadata,
    ]
):
    """One subtask's part of a keyed table."""

    table_type = state_pb2.KEYED_TABLE
    config_message: ClassVar[type[Message]] = state_pb2.KeyedTableConfig
    table_message: ClassVar[type[Message]] = state_pb2.KeyedTableCheckpointMetadata
    subtask_message: ClassVar[type[Message]] = state_pb2.KeyedTableSubtaskCheckpointMetadata

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
        checkpoint_message: state_pb2.KeyedTableCheckpointMetadata | None,
        state_version: int,
        state_type: type | None = None,
    ) -> Self:
        """Bind the table to the files that hold keys of this subtask's range."""
        files = () if checkpoint_message is None else _files_of(checkpoint_message.files)
        return cls(
            KeyedSchema.from_config(config),
            environment,
            restrict(files, environment.task.key_range),
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
        previous_metadata: state_pb2.KeyedTableSubtaskCheckpointMetadata | None,
    ) -> KeyedTableCheckpointer:
        """Return the checkpointer of one epoch."""
        previous = () if previous_metadata is None else _files_of(previous_metadata.files)
        return KeyedTableCheckpointer(
            self.schema,
            self._environment,
            epoch,
            previous,
            state_version=self._state_version,
        )

    @classmethod
    def merge_checkpoint_metadata(
        cls,
        config: state_pb2.KeyedTableConfig,
        subtask_metadata: Mapping[int, state_pb2.KeyedTableSubtaskCheckpointMetadata],
    ) -> state_pb2.KeyedTableCheckpointMetadata | None:
        """Merge the subtasks' lists; their key ranges are disjoint, so order is kept."""
        del config
        files = merge_lists(_files_of(part.files) for part in subtask_metadata.values())
        return _table_message(files) if files else None

    def subtask_metadata_from_table(
        self, table_metadata: state_pb2.KeyedTableCheckpointMetadata
    ) -> state_pb2.KeyedTableSubtaskCheckpointMetadata | None:
        """Return the files of a whole table as seen by this subtask."""
        files = restrict(_files_of(table_metadata.files), self._environment.task.key_range)
        return _subtask_message(files) if files else None

    @classmethod
    def compact_data(
        cls,
        config: state_pb2.KeyedTableConfig,
        compaction: CompactionConfig,
        table_metadata: state_pb2.KeyedTableCheckpointMetadata,
        state_version: int,
        state_type: type | None = None,
    ) -> state_pb2.KeyedTableCheckpointMetadata | None:
        """Merge the files of the compaction's subtask as `plan_compaction` says."""
        owned = compaction.environment.task.key_range
        plan = plan_compaction(restrict(_files_of(table_metadata.files), owned), compaction)
        if plan is None:
            return None
        outputs = compact_files(
            plan,
            KeyedSchema.from_config(config),
            compaction,
            state_version=state_version,
            state_type=state_type,
        )
        return _table_message(outputs)

    @classmethod
    def apply_compacted_checkpoint(
        cls,
        compacted: state_pb2.KeyedTableCheckpointMetadata,
        current: state_pb2.KeyedTableSubtaskCheckpointMetadata,
    ) -> state_pb2.KeyedTableSubtaskCheckpointMetadata:
        """Swap compacted groups in wherever their exact inputs still stand."""
        groups: dict[tuple[str, ...], list[StateFile]] = {}
        for file in _files_of(compacted.files):
            groups.setdefault(file.replaces, []).append(file)
        files = _files_of(current.files)
        for outputs in groups.values():
            files = apply_swap(files, outputs) or files
        return _subtask_message(files)

    @classmethod
    def files_to_keep(
        cls,
        config: state_pb2.KeyedTableConfig,
        table_metadata: state_pb2.KeyedTableCheckpointMetadata,
    ) -> frozenset[str]:
        """Return the path of every file in the list."""
        del config
        return frozenset(file.path for file in table_metadata.files)


def _files_of(messages: Iterable[state_pb2.StateFile]) -> tuple[StateFile, ...]:
    return tuple(StateFile.from_proto(message) for message in messages)


def _table_message(
    files: Sequence[StateFile],
) -> state_pb2.KeyedTableCheckpointMetadata:
    return state_pb2.KeyedTableCheckpointMetadata(files=[file.to_proto() for file in files])


def _subtask_message(
    files: Sequence[StateFile],
) -> state_pb2.KeyedTableSubtaskCheckpointMetadata:
    return state_pb2.KeyedTableSubtaskCheckpointMetadata(
        files=[file.to_proto() for file in files]
    )
