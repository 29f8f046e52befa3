"""The checkpointer of a global table: one file of changed keys per epoch and subtask."""

from collections.abc import Sequence

from penstock.core.ids import Epoch, TableName
from penstock.errors import ErrorCode, StateError
from penstock.state.files.state_file import StateFile
from penstock.state.files.writer import FileDescription, write_state_file
from penstock.state.proto import state_pb2
from penstock.state.tables.file_lists import message_of
from penstock.state.tables.global_keyed_files import KeyValueTypes, to_rows
from penstock.state.tables.table import (
    BlindDataTuple,
    CheckpointMessage,
    CommitData,
    DataOperation,
    DataTuple,
    TableData,
    TableEnvironment,
    TableEpochCheckpointer,
)
from penstock.state.tables.value_codec import ValueCodec

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
    def commit_data(self) -> bytes | None:
        """What the sink must commit once the epoch is acknowledged."""
        return self._commit_data

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

    def finish(self, checkpoint: CheckpointMessage) -> tuple[SubtaskMessage, int] | None:
        """Write the changed keys, if any, as one file behind the earlier ones."""
        del checkpoint
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
