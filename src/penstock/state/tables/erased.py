"""Tables without their kinds: one adapter between protobuf and any `Table`.

Nothing above this module names a kind's messages. Every message says which kind of table
it is of; one of another kind is refused before it is decoded.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from penstock.core.ids import Epoch
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.files.migration import state_version_of
from penstock.state.files.state_file import StateFile
from penstock.state.proto import state_pb2
from penstock.state.tables.global_keyed import GlobalKeyedTable
from penstock.state.tables.global_keyed_view import KeyValueTypes
from penstock.state.tables.keyed import KeyedTable
from penstock.state.tables.table import (
    CheckpointMessage,
    CompactionConfig,
    Table,
    TableData,
    TableEnvironment,
    TableEpochCheckpointer,
    View,
    files_of,
)
from penstock.state.tables.time_keyed import TimeKeyedTable

MessageT = TypeVar("MessageT", bound=Message)

TABLE_KINDS: Mapping[state_pb2.TableEnum, type[Table[Any, Any, Any]]] = {
    kind.table_type: kind for kind in (GlobalKeyedTable, TimeKeyedTable, KeyedTable)
}
"""The kind of table behind each durable type number."""


def checked_proto_decode(
    message_type: type[MessageT],
    data: bytes,
    *,
    expected: state_pb2.TableEnum,
    found: state_pb2.TableEnum,
    table: str,
) -> MessageT:
    """Decode a kind's own message out of one that says which kind it is of."""
    if found != expected:
        raise StateError(
            f"table {table!r} is declared as {_kind_name(expected)}, but its checkpoint holds a "
            f"{_kind_name(found)}: give the new table another name, or restore the old declaration",
            code=ErrorCode.TABLE_TYPE_MISMATCH,
            table=table,
            expected=_kind_name(expected),
            found=_kind_name(found),
        )
    message = message_type()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise CorruptStateError(
            f"the {message_type.DESCRIPTOR.name} of table {table!r} cannot be decoded: {error}. "
            "Restore an older epoch or a savepoint",
            code=ErrorCode.UNDECODABLE,
            table=table,
        ) from error
    return message


def table_kind_of(
    config: state_pb2.TableConfig, *, table: str
) -> type[Table[Any, Any, Any]]:
    """Return the kind that a table is declared as."""
    kind = TABLE_KINDS.get(config.table_type)
    if kind is None:
        raise StateError(
            f"table {table!r} is of the unknown kind {_kind_name(config.table_type)}: a newer "
            "Penstock wrote it; upgrade",
            code=ErrorCode.TABLE_TYPE_MISMATCH,
            table=table,
            found=_kind_name(config.table_type),
        )
    return kind


class ErasedTable:
    """Any table of one subtask, by protobuf. Owned by its subtask's manager."""

    def __init__(
        self, kind: "ErasedKind", table: Table[Any, Any, Any], subtask_index: int
    ) -> None:
        self.kind = kind
        """What can be done with this table's metadata without its files."""
        self.table = table
        self._subtask_index = subtask_index

    @classmethod
    def from_config(
        cls,
        name: str,
        config: state_pb2.TableConfig,
        environment: TableEnvironment,
        checkpoint: state_pb2.TableCheckpointMetadata | None = None,
        *,
        state_type: Any = None,
    ) -> "ErasedTable":
        """Bind a declared table to the checkpoint it is restored from, if any."""
        kind = ErasedKind(name, config)
        _check_version(name, config, state_type)
        table = kind.table_class.from_config(
            kind.config_message,
            environment,
            None if checkpoint is None else kind.open_table(checkpoint),
            config.state_version,
            state_type,
        )
        return cls(kind, table, environment.task.subtask.index)

    @property
    def files(self) -> tuple[StateFile, ...]:
        """The files this subtask's view folds, oldest first."""
        return self.table.files

    def view(self) -> View:
        """Fold the files into a new view."""
        return self.table.view()

    def epoch_checkpointer(
        self, epoch: Epoch, previous: state_pb2.TableSubtaskCheckpointMetadata | None
    ) -> "ErasedCheckpointer":
        """Return the checkpointer of one epoch."""
        metadata = None if previous is None else self.kind.open_subtask(previous)
        checkpointer = self.table.epoch_checkpointer(epoch, metadata)
        return ErasedCheckpointer(self.kind, checkpointer, self._subtask_index)

    def subtask_metadata_from_table(
        self, checkpoint: state_pb2.TableCheckpointMetadata
    ) -> state_pb2.TableSubtaskCheckpointMetadata | None:
        """Return the part of a whole table that this subtask carries after a restore."""
        part = self.table.subtask_metadata_from_table(self.kind.open_table(checkpoint))
        return None if part is None else self.kind.seal_subtask(part, self._subtask_index)


class ErasedCheckpointer:
    """Any table's checkpointer, by protobuf. Used once."""

    def __init__(
        self,
        kind: "ErasedKind",
        checkpointer: TableEpochCheckpointer[Any],
        subtask_index: int,
    ) -> None:
        self._kind = kind
        self._subtask_index = subtask_index
        self.checkpointer = checkpointer
        """What a view's `flush` is given."""

    @property
    def commit_data(self) -> bytes | None:
        """What the sink must commit once the epoch is acknowledged."""
        return self.checkpointer.commit_data

    def insert_data(self, data: TableData) -> None:
        """Take a change."""
        self.checkpointer.insert_data(data)

    def finish(
        self, checkpoint: CheckpointMessage
    ) -> tuple[state_pb2.TableSubtaskCheckpointMetadata, int] | None:
        """Write what changed; return the subtask's metadata and the bytes written."""
        finished = self.checkpointer.finish(checkpoint)
        if finished is None:
            return None
        message, size = finished
        return self._kind.seal_subtask(message, self._subtask_index), size


class ErasedKind:
    """What a driver does with a table's metadata, knowing only its declaration."""

    def __init__(self, name: str, config: state_pb2.TableConfig) -> None:
        """Decode the declaration; an unknown or mismatched kind is refused."""
        self.name = name
        self.config = config
        self.table_class = table_kind_of(config, table=name)
        self.config_message: Any = self._decode(
            self.table_class.config_message, config.config, config.table_type
        )

    def merge_checkpoint_metadata(
        self, parts: Mapping[int, state_pb2.TableSubtaskCheckpointMetadata]
    ) -> state_pb2.TableCheckpointMetadata | None:
        """Merge all subtasks' metadata into the whole table's; None if there is no state."""
        opened = {index: self.open_subtask(part) for index, part in parts.items()}
        merged = self.table_class.merge_checkpoint_metadata(self.config_message, opened)
        return None if merged is None else self.seal_table(merged)

    def compact_data(
        self,
        compaction: CompactionConfig,
        checkpoint: state_pb2.TableCheckpointMetadata,
        *,
        state_type: Any = None,
    ) -> state_pb2.TableCheckpointMetadata | None:
        """Merge files that are due; return only the new ones, or None."""
        compacted = self.table_class.compact_data(
            self.config_message,
            compaction,
            self.open_table(checkpoint),
            self.config.state_version,
            state_type,
        )
        return None if compacted is None else self.seal_table(compacted)

    def apply_compacted_checkpoints(
        self,
        compacted: state_pb2.TableCheckpointMetadata,
        current: Mapping[int, state_pb2.TableSubtaskCheckpointMetadata],
    ) -> dict[int, state_pb2.TableSubtaskCheckpointMetadata]:
        """Swap compacted files into the lists of all subtasks; see `Table`."""
        opened = {index: self.open_subtask(part) for index, part in current.items()}
        swapped = self.table_class.apply_compacted_checkpoints(
            self.open_table(compacted), opened
        )
        return {index: self.seal_subtask(part, index) for index, part in swapped.items()}

    def files_to_keep(
        self, checkpoint: state_pb2.TableCheckpointMetadata
    ) -> frozenset[str]:
        """Return the path of every file the table needs."""
        return self.table_class.files_to_keep(
            self.config_message, self.open_table(checkpoint)
        )

    def files_in(
        self,
        metadata: state_pb2.TableSubtaskCheckpointMetadata
        | state_pb2.TableCheckpointMetadata,
    ) -> tuple[StateFile, ...]:
        """Return the files that metadata of this table lists, oldest first."""
        if isinstance(metadata, state_pb2.TableCheckpointMetadata):
            return files_of(self.open_table(metadata))
        return files_of(self.open_subtask(metadata))

    def open_table(self, metadata: state_pb2.TableCheckpointMetadata) -> Any:
        """Decode a whole table's metadata."""
        return self._decode(
            self.table_class.table_message, metadata.data, metadata.table_type
        )

    def open_subtask(self, metadata: state_pb2.TableSubtaskCheckpointMetadata) -> Any:
        """Decode one subtask's metadata."""
        return self._decode(
            self.table_class.subtask_message, metadata.data, metadata.table_type
        )

    def seal_table(self, message: Message) -> state_pb2.TableCheckpointMetadata:
        """Encode a whole table's metadata."""
        return state_pb2.TableCheckpointMetadata(
            table_type=self.table_class.table_type,
            data=message.SerializeToString(deterministic=True),
        )

    def seal_subtask(
        self, message: Message, subtask_index: int
    ) -> state_pb2.TableSubtaskCheckpointMetadata:
        """Encode one subtask's metadata."""
        return state_pb2.TableSubtaskCheckpointMetadata(
            subtask_index=subtask_index,
            table_type=self.table_class.table_type,
            data=message.SerializeToString(deterministic=True),
        )

    def _decode(
        self, message_type: type[Message], data: bytes, found: state_pb2.TableEnum
    ) -> Any:
        return checked_proto_decode(
            message_type,
            data,
            expected=self.table_class.table_type,
            found=found,
            table=self.name,
        )


def _check_version(name: str, config: state_pb2.TableConfig, state_type: Any) -> None:
    if state_type is None:
        return
    kind = state_type.value_type if isinstance(state_type, KeyValueTypes) else state_type
    version = state_version_of(kind)
    if version != config.state_version:
        raise StateError(
            f"table {name!r} is declared with state version {config.state_version}, but its "
            f"state class has version {version}: build the config from the table's spec",
            code=ErrorCode.UNSUPPORTED_STATE_VERSION,
            table=name,
            found=version,
            expected=config.state_version,
        )


def _kind_name(table_type: state_pb2.TableEnum) -> str:
    names = {value: name for name, value in state_pb2.TableEnum.items()}
    return names.get(table_type, str(table_type))
