"""The contract of a state table, its views and checkpointers.

A table is the fold of an ordered list of state files. `Table` is what each kind
implements; `erased` bridges it to protobuf so that nothing above knows a kind's messages.

One epoch of one table in one subtask:

    view = table.view()            restore: fold the files (or reuse a cached view)
    view.advance(frontier)         the epoch's watermark and processing time are fixed
    … the operator reads and writes the view …
    checkpointer = table.epoch_checkpointer(epoch, previous)
    view.flush(checkpointer)       hands over what changed, through insert_data
    checkpointer.finish(message)   writes at most a few files → (metadata, size) or None
    view.checkpointed(files)       the view is now the fold of exactly these files

File lists ↔ the messages that hold them. All table kinds keep the same: a list of files.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar

import pyarrow as pa
from google.protobuf.message import Message

from penstock.core.ids import Epoch, Generation, TableName, TaskInfo, Token
from penstock.state.files.cache import FileCache, Recent
from penstock.state.files.state_file import StateFile, apply_swap, merge_lists
from penstock.state.proto import state_pb2
from penstock.state.protocol.paths import table_checkpoint_path
from penstock.state.protocol.records import CheckpointRef
from penstock.state.storage.object_store import ObjectStore


class FileListMessage(Protocol):
    """A message with a list of files."""

    def __init__(self, *, files: Iterable[state_pb2.StateFile] = ...) -> None:
        """Make a message that holds `files`."""

    @property
    def files(self) -> Iterable[state_pb2.StateFile]:
        """The files, oldest first."""


MessageT = TypeVar("MessageT", bound=FileListMessage)

# Lists are read and written many times while their entries never change.
_decoded: Recent[bytes, StateFile] = Recent(16_384)
_encoded: Recent[StateFile, state_pb2.StateFile] = Recent(16_384)


def files_of(message: FileListMessage | None) -> tuple[StateFile, ...]:
    """Return the files of a message; none for no message."""
    if message is None:
        return ()
    return tuple(_file_of(file.SerializeToString()) for file in message.files)


def _file_of(data: bytes) -> StateFile:
    """Return the decoded entry."""
    known = _decoded.get(data)
    if known is not None:
        return known
    return _decoded.put(data, StateFile.from_proto(state_pb2.StateFile.FromString(data)))


def message_of(kind: type[MessageT], files: Iterable[StateFile]) -> MessageT:
    """Return a message of `kind` that holds `files`."""
    return kind(files=[_entry_of(file) for file in files])


def _entry_of(file: StateFile) -> state_pb2.StateFile:
    """Return the encoded entry; making a message copies it, so nobody changes this one."""
    known = _encoded.get(file)
    return _encoded.put(file, file.to_proto()) if known is None else known


def groups_of(outputs: Sequence[StateFile]) -> list[list[StateFile]]:
    """Sort compacted files by what they replace: each group is swapped in as a whole."""
    groups: dict[tuple[str, ...], list[StateFile]] = {}
    for file in outputs:
        groups.setdefault(file.replaces, []).append(file)
    return list(groups.values())


def apply_swaps(
    files: Sequence[StateFile], outputs: Sequence[StateFile]
) -> tuple[StateFile, ...]:
    """Swap in every compacted group whose exact inputs still stand; leave the rest as it is."""
    current = tuple(files)
    for group in groups_of(outputs):
        current = apply_swap(current, group) or current
    return current


ConfigT = TypeVar("ConfigT", bound=Message)
TableMessageT = TypeVar("TableMessageT", bound=FileListMessage)
SubtaskMessageT = TypeVar("SubtaskMessageT", bound=FileListMessage)


class DataOperation(Enum):
    """What a row of a keyed table does to its key."""

    UPSERT = 0
    TOMBSTONE = 1


@dataclass(frozen=True, slots=True)
class DataTuple:
    """One decoded keyed change: what a checkpointer is told about one key."""

    timestamp_micros: int | None
    key: Any
    value: Any
    operation: DataOperation = DataOperation.UPSERT


@dataclass(frozen=True, slots=True)
class BlindDataTuple:
    """The same change with key and value still encoded; `value` is None for a tombstone."""

    timestamp_micros: int | None
    key: bytes
    value: bytes | None
    operation: DataOperation = DataOperation.UPSERT


@dataclass(frozen=True, slots=True)
class CommitData:
    """What a sink must commit once this epoch is acknowledged. At most one per table and epoch."""

    data: bytes


TableData: TypeAlias = pa.RecordBatch | DataTuple | BlindDataTuple | CommitData
"""What `insert_data` takes: typed rows, one keyed change, or data for the sink's commit."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """How far time has come in the epoch that reads a table: what expiry is judged by."""

    watermark_micros: int | None = None
    processing_time_micros: int = 0
    previous_processing_time_micros: int | None = None
    """That of the epoch before; None before the first. Time-keyed tables by processing time
    hide what had expired by then: what expires in an epoch is still seen in it."""

    def is_after(self, other: "Frontier") -> bool:
        """Tell whether time would go back, by either clock, on the way to `other`."""
        return (
            self.processing_time_micros > other.processing_time_micros
            or _is_later(self.watermark_micros, other.watermark_micros)
            or _is_later(
                self.previous_processing_time_micros, other.previous_processing_time_micros
            )
        )

    def at_end(self, watermark_micros: int | None) -> "Frontier":
        """Return how far time has come when an epoch begun here ends: its now has passed."""
        now, previous = self.processing_time_micros, self.previous_processing_time_micros
        return Frontier(watermark_micros, now, None if previous is None else now)


def _is_later(instant: int | None, other: int | None) -> bool:
    return instant is not None and (other is None or instant > other)


@dataclass(frozen=True, slots=True)
class CheckpointMessage:
    """A barrier as a table sees it."""

    epoch: Epoch
    frontier: Frontier
    min_epoch: Epoch
    """The oldest epoch still retained; what only older ones need may be dropped locally."""
    then_stop: bool = False


@dataclass(frozen=True, slots=True)
class TableEnvironment:
    """Where a table lives: whose it is, where its files go, and which attempt writes them."""

    task: TaskInfo
    generation: Generation
    token: Token
    store: ObjectStore
    cache: FileCache
    memory_budget_bytes: int = 256 << 20
    """How much of a keyed table one subtask may hold in memory at a time."""

    def path_for(
        self, table: TableName, epoch: Epoch, *, compacted: bool = False, part: int = 0
    ) -> str:
        """Name a file that this attempt writes for `table` in `epoch`."""
        ref = CheckpointRef(self.task.job, self.generation, epoch)
        return table_checkpoint_path(
            ref,
            self.task.operator,
            table,
            self.task.subtask.index,
            self.token,
            compacted=compacted,
            part=part,
        )


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """How a compaction runs: where, which levels may merge, and how many files it takes."""

    environment: TableEnvironment
    epoch: Epoch
    """The slot the outputs are written to: the epoch after the one it was planned from."""
    frontier: Frontier
    """Rows expired at this frontier may be dropped. So the result may be swapped only into
    lists of epochs that follow the one it was planned from, never into a restored older one."""
    compact_generations: frozenset[int] | None = None
    """The levels that may be merged; None for any."""
    min_compaction_epochs: int = 4
    """How many neighbouring files of one tier make a merge worth while."""
    min_expiring_epochs: int | None = None
    """The same for tables whose rows all expire: waiting may spare the merge. None: the same."""
    max_runs: int = 16
    """How many runs a list may have before an epoch waits; merging begins well below."""
    target_file_bytes: int = 128 << 20


class TableEpochCheckpointer(ABC, Generic[SubtaskMessageT]):
    """Collects one epoch's changes of one table and writes them. Used once."""

    @property
    def commit_data(self) -> bytes | None:
        """What the sink must commit once the epoch is acknowledged; None for most tables."""
        return None

    @abstractmethod
    def insert_data(self, data: TableData) -> None:
        """Take a change; data of a kind this table does not store is a `StateError`."""

    @abstractmethod
    def finish(self, checkpoint: CheckpointMessage) -> tuple[SubtaskMessageT, int] | None:
        """Write what changed; return the subtask's metadata and the bytes written.

        Nothing is written for an unchanged table: its metadata carries the earlier files
        and the size is 0. None means that there is nothing to restore.
        """


class View(ABC):
    """A table as an operator uses it: the fold of `files` plus this epoch's own writes."""

    files: tuple[StateFile, ...]
    """The list that `derive_missing` compares with the one wanted in the next epoch."""

    @abstractmethod
    def advance(self, frontier: Frontier) -> None:
        """Start an epoch: judge expiry by `frontier` from now on."""

    @abstractmethod
    def flush(self, checkpointer: TableEpochCheckpointer[Any]) -> None:
        """Hand this epoch's changes to the checkpointer, each once."""

    @abstractmethod
    def checkpointed(self, files: Sequence[StateFile]) -> None:
        """Note that everything written so far is in `files`, the subtask's own list.

        A view that folds other subtasks' files too (the global table) keeps its own `files`:
        where its writes come among theirs is known only when it catches up.
        """

    @abstractmethod
    def catch_up(self, missing: Sequence[StateFile], files: Sequence[StateFile]) -> None:
        """Fold `missing` on top; the view is then the fold of `files`. No writes may be pending."""

    @abstractmethod
    def release(self) -> None:
        """Let go of memory and mappings; the view is not used again."""


class Table(ABC, Generic[ConfigT, TableMessageT, SubtaskMessageT]):
    """One table of one subtask, bound to its files. Knows how to fold, write and compact them."""

    table_type: ClassVar[state_pb2.TableEnum]
    config_message: ClassVar[type[Message]]
    table_message: ClassVar[type[Any]]
    subtask_message: ClassVar[type[Any]]

    @classmethod
    @abstractmethod
    def from_config(
        cls,
        config: ConfigT,
        environment: TableEnvironment,
        checkpoint_message: TableMessageT | None,
        state_version: int,
        state_type: Any = None,
    ) -> Self:
        """Bind a table to the part of `checkpoint_message` that this subtask owns.

        `state_type` is the operator's state class, for decoding and migration; for a global
        table its `KeyValueTypes`.
        """

    @property
    @abstractmethod
    def files(self) -> tuple[StateFile, ...]:
        """The files this subtask's view folds, oldest first."""

    @abstractmethod
    def view(self) -> View:
        """Fold the files into a new view."""

    @abstractmethod
    def epoch_checkpointer(
        self, epoch: Epoch, previous_metadata: SubtaskMessageT | None
    ) -> TableEpochCheckpointer[SubtaskMessageT]:
        """Return the checkpointer of one epoch; `previous_metadata` is what it carries forward."""

    @classmethod
    def merge_checkpoint_metadata(
        cls,
        config: ConfigT,  # noqa: ARG003 (part of the contract; a kind may need it)
        subtask_metadata: Mapping[int, SubtaskMessageT],
    ) -> TableMessageT | None:
        """Merge all subtasks' metadata into the whole table's; None if there is no state."""
        files = merge_lists(files_of(part) for part in subtask_metadata.values())
        return message_of(cls.table_message, files) if files else None

    @abstractmethod
    def subtask_metadata_from_table(
        self, table_metadata: TableMessageT
    ) -> SubtaskMessageT | None:
        """Return the part of a whole table that this subtask carries after a restore."""

    @classmethod
    @abstractmethod
    def compact_data(
        cls,
        config: ConfigT,
        compaction: CompactionConfig,
        table_metadata: TableMessageT,
        state_version: int,
        state_type: Any = None,
    ) -> TableMessageT | None:
        """Merge files as `plan_compaction` says; return the new files, or None if none is due.

        The result holds only the outputs; each names in `replaces` what it stands for.
        Run again with the same inputs, it writes other objects with equal contents.
        """

    @classmethod
    def apply_compacted_checkpoint(
        cls, compacted: TableMessageT, current: SubtaskMessageT
    ) -> SubtaskMessageT:
        """Swap compacted files into a subtask's list wherever their exact inputs still stand."""
        files = apply_swaps(files_of(current), files_of(compacted))
        return message_of(type(current), files)

    @classmethod
    def apply_compacted_checkpoints(
        cls, compacted: TableMessageT, current: Mapping[int, SubtaskMessageT]
    ) -> dict[int, SubtaskMessageT]:
        """Swap compacted files into the lists of all subtasks, by index. Pure.

        What the driver calls. A kind whose swaps span subtasks changes all lists or none.
        """
        return {
            index: cls.apply_compacted_checkpoint(compacted, part)
            for index, part in current.items()
        }

    @classmethod
    def files_to_keep(
        cls,
        config: ConfigT,  # noqa: ARG003 (part of the contract; a kind may need it)
        table_metadata: TableMessageT,
    ) -> frozenset[str]:
        """Return the path of every file the table needs."""
        return frozenset(file.path for file in files_of(table_metadata))
