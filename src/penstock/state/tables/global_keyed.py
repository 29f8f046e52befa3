"""GlobalKeyedTable: small key → value state of a whole operator (offsets, counters, sets).

Every subtask sees all of it, after a delay of one epoch for what others wrote. Each
subtask's metadata lists the files it wrote; the table is the fold of all of them. Keys name
what the state is about (a split, a file), never the subtask: that may change.

The checkpointer of a global table: one file of changed keys per epoch and subtask.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from google.protobuf.message import Message
from typing_extensions import override

from penstock.core.ids import Epoch, TableName
from penstock.errors import ErrorCode, StateError
from penstock.state.files.state_file import StateFile, apply_swap, merge_lists
from penstock.state.files.writer import FileDescription, StateFileWriter, write_state_file
from penstock.state.proto import state_pb2
from penstock.state.tables.global_keyed_view import (
    GLOBAL_KEY_VALUE_SCHEMA,
    GlobalFileReader,
    GlobalKeyedView,
    KeyValueTypes,
    ValueCodec,
    carrier_of,
    plan_global_compaction,
    to_rows,
)
from penstock.state.tables.table import (
    BlindDataTuple,
    CheckpointMessage,
    CommitData,
    CompactionConfig,
    DataOperation,
    DataTuple,
    Table,
    TableData,
    TableEnvironment,
    TableEpochCheckpointer,
    files_of,
    groups_of,
    message_of,
)

SubtaskMessage = state_pb2.GlobalKeyedTableSubtaskCheckpointMetadata


class GlobalKeyedTableCheckpointer(TableEpochCheckpointer[SubtaskMessage]):
    """Writes the keys that one subtask changed in one epoch. Used once."""

    def __init__(
        self,
        config: state_pb2.GlobalKeyedTableConfig,
        environment: TableEnvironment,
        epoch: Epoch,
        previous: Sequence[StateFile],
        *,
        types: KeyValueTypes,
        state_version: int,
    ) -> None:
        self._config = config
        self._environment = environment
        self._epoch = epoch
        self._previous = tuple(previous)
        self._types = types
        self._state_version = state_version
        self._changes: dict[bytes, bytes | None] = {}
        self._commit_data: bytes | None = None

    @property
    @override
    def commit_data(self) -> bytes | None:
        """What the sink must commit once the epoch is acknowledged."""
        return self._commit_data

    @override
    def insert_data(self, data: TableData) -> None:
        """Take one changed key, the last one counting, or the epoch's data for the sink's commit."""
        match data:
            case BlindDataTuple(key=key, value=value, operation=operation):
                self._changes[key] = None if operation is DataOperation.TOMBSTONE else value
            case DataTuple():
                self.insert_data(self._encoded(data))
            case CommitData(data=commit_data):
                self._take_commit_data(commit_data)
            case _:
                raise StateError(
                    f"global table {self._config.table_name!r} stores keys and values, not "
                    f"{type(data).__name__}; use a keyed or time-keyed table for rows",
                    code=ErrorCode.WRONG_TABLE_KIND,
                    table=self._config.table_name,
                )

    @override
    def finish(self, checkpoint: CheckpointMessage) -> tuple[SubtaskMessage, int] | None:
        """Write the changed keys, if any, as one file behind the earlier ones."""
        files, size = self._previous, 0
        if self._changes:
            name = TableName(self._config.table_name)
            subtask = self._environment.task.subtask
            written = write_state_file(
                self._environment.store,
                self._environment.path_for(name, self._epoch),
                to_rows(self._changes),
                FileDescription(
                    epoch=self._epoch,
                    subtask_index=subtask.index,
                    state_version=self._state_version,
                ),
                # A view remembers its own writes: only other subtasks would read the file.
                cache=self._environment.cache if subtask.parallelism > 1 else None,
            )
            files, size = (*files, written), written.size_bytes
        return (message_of(SubtaskMessage, files), size) if files else None

    def _encoded(self, data: DataTuple) -> BlindDataTuple:
        name = self._config.table_name
        key = ValueCodec(self._types.key_type, what=f"key of table {name!r}")
        value = ValueCodec(self._types.value_type, what=f"value of table {name!r}")
        is_removed = data.operation is DataOperation.TOMBSTONE
        return BlindDataTuple(
            data.timestamp_micros,
            key.encode_key(data.key),
            None if is_removed else value.encode(data.value),
            data.operation,
        )

    def _take_commit_data(self, data: bytes) -> None:
        name = self._config.table_name
        if not self._config.uses_two_phase_commit:
            raise StateError(
                f"table {name!r} was given commit data but is not declared with "
                "uses_two_phase_commit=True",
                code=ErrorCode.WRONG_TABLE_KIND,
                table=name,
            )
        if self._commit_data is not None:
            raise StateError(
                f"table {name!r} was given commit data twice in epoch {self._epoch}: gather all "
                "of an epoch's data and hand it over once",
                code=ErrorCode.COMMIT_DATA_ALREADY_SET,
                table=name,
                epoch=self._epoch,
            )
        self._commit_data = data


TableMessage = state_pb2.GlobalKeyedTableCheckpointMetadata


class GlobalKeyedTable(
    Table[state_pb2.GlobalKeyedTableConfig, TableMessage, SubtaskMessage]
):
    """One subtask's access to a global table."""

    table_type = state_pb2.GLOBAL_KEYED_TABLE
    config_message: ClassVar[type[Message]] = state_pb2.GlobalKeyedTableConfig
    table_message: ClassVar[type[Any]] = TableMessage
    subtask_message: ClassVar[type[Any]] = SubtaskMessage

    def __init__(
        self,
        config: state_pb2.GlobalKeyedTableConfig,
        environment: TableEnvironment,
        files: Sequence[StateFile],
        types: KeyValueTypes,
        state_version: int,
    ) -> None:
        self.config = config
        self.types = types
        self._environment = environment
        self._files = tuple(files)
        self._state_version = state_version

    @classmethod
    @override
    def from_config(
        cls,
        config: state_pb2.GlobalKeyedTableConfig,
        environment: TableEnvironment,
        checkpoint_message: TableMessage | None,
        state_version: int,
        state_type: Any = None,
    ) -> Self:
        """Bind the table to the files of all subtasks."""
        files = merge_lists([files_of(checkpoint_message)])
        return cls(config, environment, files, _types_of(state_type), state_version)

    @property
    @override
    def files(self) -> tuple[StateFile, ...]:
        """The files of all subtasks, in order of epoch, then subtask."""
        return self._files

    @override
    def view(self) -> GlobalKeyedView[Any, Any]:
        reader = GlobalFileReader(
            self.config.table_name, self._environment, self.types, self._state_version
        )
        return GlobalKeyedView(reader, self._files)

    @override
    def epoch_checkpointer(
        self, epoch: Epoch, previous_metadata: SubtaskMessage | None
    ) -> GlobalKeyedTableCheckpointer:
        """Return the checkpointer of one epoch, which carries this subtask's earlier files."""
        return GlobalKeyedTableCheckpointer(
            self.config,
            self._environment,
            epoch,
            files_of(previous_metadata),
            types=self.types,
            state_version=self._state_version,
        )

    @override
    def subtask_metadata_from_table(
        self, table_metadata: TableMessage
    ) -> SubtaskMessage | None:
        """Return the files this subtask carries; those of subtasks that are gone go to 0."""
        subtask = self._environment.task.subtask
        carried = [
            file
            for file in files_of(table_metadata)
            if carrier_of(file, subtask.parallelism) == subtask.index
        ]
        return message_of(SubtaskMessage, carried) if carried else None

    @classmethod
    @override
    def compact_data(
        cls,
        config: state_pb2.GlobalKeyedTableConfig,
        compaction: CompactionConfig,
        table_metadata: TableMessage,
        state_version: int,
        state_type: Any = None,
    ) -> TableMessage | None:
        """Fold the whole table into one file. Done once per table, by subtask 0."""
        environment = compaction.environment
        plan = plan_global_compaction(files_of(table_metadata), compaction)
        if plan is None or environment.task.subtask.index != 0:
            return None
        name = TableName(config.table_name)
        reader = GlobalFileReader(name, environment, _types_of(state_type), state_version)
        writer = StateFileWriter(
            environment.store,
            lambda part: environment.path_for(
                name, compaction.epoch, compacted=True, part=part
            ),
            GLOBAL_KEY_VALUE_SCHEMA,
            # Whole epochs are merged, so nothing else of the newest one is left to keep an
            # order with, and the output can belong to the subtask that always exists.
            replace(plan.describe(state_version), subtask_index=0),
            target_bytes=compaction.target_file_bytes,
            cut_anywhere=True,
        )
        writer.write(to_rows({**reader.fold(plan.inputs)}))
        return message_of(TableMessage, writer.finish())

    @classmethod
    @override
    def apply_compacted_checkpoint(
        cls, compacted: TableMessage, current: SubtaskMessage
    ) -> SubtaskMessage:
        """Swap within one list, which must hold all inputs: for an operator of one subtask."""
        return cls.apply_compacted_checkpoints(compacted, {0: current})[0]

    @classmethod
    @override
    def apply_compacted_checkpoints(
        cls, compacted: TableMessage, current: Mapping[int, SubtaskMessage]
    ) -> dict[int, SubtaskMessage]:
        """Swap in all subtasks' lists at once, or in none if any input is gone.

        The output goes to subtask 0, which is added if it had no list; the others lose what
        was replaced. Whatever was written since stays where it is, and newer.
        """
        unchanged = dict(current)
        lists = {index: files_of(part) for index, part in current.items()}
        for group in groups_of(files_of(compacted)):
            merged = merge_lists(lists.values())
            swapped = apply_swap(merged, group)
            if swapped is None or swapped[: len(group)] != tuple(group):
                return unchanged
            replaced = set(group[0].replaces)
            lists = {
                index: tuple(file for file in files if file.identity not in replaced)
                for index, files in lists.items()
            }
            lists[0] = (*group, *lists.get(0, ()))
        return {index: message_of(SubtaskMessage, files) for index, files in lists.items()}


def _types_of(state_type: Any) -> KeyValueTypes:
    if isinstance(state_type, KeyValueTypes):
        return state_type
    return KeyValueTypes() if state_type is None else KeyValueTypes(value_type=state_type)
