"""The contract of a state table: one generic table over a list of files, views, checkpointers.

A table is the fold of an ordered list of state files. The work on lists is the same for all
kinds of table and is in this file. A kind adds its view, the delta of an epoch, which earlier
files a fold still needs, and how files are merged.

One epoch of one table in one subtask:

    view = table.view(frontier)    restore: fold the files (or `view.advance` a cached view)
    … the operator reads and writes the view …
    checkpointer = table.epoch_checkpointer(epoch, carried)
    view.flush(checkpointer)       passes what changed to insert_data
    checkpointer.finish(message)   writes at most a few files → (the new list, size) or None
    view.checkpointed(files)       from here on the view is the fold of exactly these files
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from penstock.core.ids import Epoch, Generation, TableName, TaskInfo, Token
from penstock.errors import CorruptStateError, ErrorCode, InternalError, StateError
from penstock.state.files.cache import FileCache, Recent
from penstock.state.files.state_file import StateFile, apply_swap, merge_lists, restrict
from penstock.state.proto import state_pb2
from penstock.state.protocol.paths import table_checkpoint_path
from penstock.state.protocol.records import CheckpointRef
from penstock.state.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from penstock.state.tables.compaction import CompactionPlan

Files: TypeAlias = tuple[StateFile, ...]
"""A table's list, oldest first."""
TableMetadata: TypeAlias = (
    state_pb2.TableCheckpointMetadata | state_pb2.TableSubtaskCheckpointMetadata
)
MessageT = TypeVar("MessageT", bound=Message)
ConfigT = TypeVar("ConfigT", bound=Message)
TableT = TypeVar("TableT", bound="Table[Any]")

FileList: TypeAlias = state_pb2.KeyedTableCheckpointMetadata
"""The durable form of every list: the messages of all kinds are `repeated StateFile files = 1`."""

# Lists are read and written many times while their entries never change.
_decoded: Recent[bytes, StateFile] = Recent(16_384)
_encoded: Recent[StateFile, state_pb2.StateFile] = Recent(16_384)


def checked_proto_decode(
    message_type: type[MessageT],
    data: bytes,
    *,
    expected: state_pb2.TableEnum,
    found: state_pb2.TableEnum,
    table: str,
) -> MessageT:
    """Decode the message of a table's kind; the stored kind `found` must be `expected`."""
    if found != expected:
        raise StateError(
            f"table {table!r} is declared as {kind_name(expected)}, but its checkpoint holds a "
            f"{kind_name(found)}: give the new table another name, or restore the old declaration",
            code=ErrorCode.TABLE_TYPE_MISMATCH,
            table=table,
            expected=kind_name(expected),
            found=kind_name(found),
        )
    message = message_type()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        what = "file list" if message_type is FileList else message_type.DESCRIPTOR.name
        raise CorruptStateError(
            f"the {what} of table {table!r} cannot be decoded: {error}. "
            "Restore an older epoch or a savepoint",
            code=ErrorCode.UNDECODABLE,
            table=table,
        ) from error
    return message


def kind_name(table_type: state_pb2.TableEnum) -> str:
    """Return the durable name of a kind; its number if only a newer Penstock has it."""
    names = {value: name for name, value in state_pb2.TableEnum.items()}
    return names.get(table_type, str(table_type))


def files_of(
    metadata: TableMetadata, *, table: str, expected: state_pb2.TableEnum | None = None
) -> Files:
    """Return the list in the metadata of a table, which must be of the kind `expected`."""
    found = metadata.table_type
    message = checked_proto_decode(
        FileList,
        metadata.data,
        expected=found if expected is None else expected,
        found=found,
        table=table,
    )
    files = []
    for entry in message.files:
        data = entry.SerializeToString()
        known = _decoded.get(data)
        files.append(known or _decoded.put(data, StateFile.from_proto(entry)))
    return tuple(files)


def encode_list(files: Iterable[StateFile]) -> bytes:
    """Return the durable form of a list."""
    # FileList copies its entries, so the cached messages never change.
    entries = [_encoded.get(f) or _encoded.put(f, f.to_proto()) for f in files]
    return FileList(files=entries).SerializeToString(deterministic=True)


class DataOperation(Enum):
    """What a row of a keyed table does to its key."""

    UPSERT = 0
    TOMBSTONE = 1


@dataclass(frozen=True, slots=True)
class DataTuple:
    """One decoded keyed change: what happened to one key."""

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
    """The watermark and processing time by which an epoch judges expiry."""

    watermark_micros: int | None = None
    processing_time_micros: int = 0
    previous_processing_time_micros: int | None = None
    """The processing time of the epoch before; None before the first epoch. Time-keyed tables
    by processing time hide only what had expired by then: a row that expires in an epoch is
    still seen in it."""

    def is_after(self, other: "Frontier") -> bool:
        """Tell whether any clock of this frontier is ahead of `other`: time would go back."""
        clocks = (
            (self.processing_time_micros, other.processing_time_micros),
            (self.watermark_micros, other.watermark_micros),
            (self.previous_processing_time_micros, other.previous_processing_time_micros),
        )
        return any(mine is not None and (its is None or mine > its) for mine, its in clocks)

    def at_end(self, watermark_micros: int | None) -> "Frontier":
        """Return the frontier at the end of an epoch that began at this one."""
        now, previous = self.processing_time_micros, self.previous_processing_time_micros
        return Frontier(watermark_micros, now, None if previous is None else now)


@dataclass(frozen=True, slots=True)
class CheckpointMessage:
    """A barrier as a table sees it."""

    epoch: Epoch
    frontier: Frontier
    min_epoch: Epoch
    """The oldest epoch still retained; local data that only older epochs need may be dropped."""
    then_stop: bool = False


@dataclass(frozen=True, slots=True)
class TableEnvironment:
    """The surroundings of a table: its subtask, the attempt that writes, store and cache."""

    task: TaskInfo
    generation: Generation
    token: Token
    store: ObjectStore
    cache: FileCache
    memory_budget_bytes: int = 256 << 20
    """How much of a keyed table one subtask may hold in memory at a time."""


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """What may be merged, and when merged rows count as expired. Made once, by the driver."""

    epoch: Epoch
    """The slot the outputs are written to: the epoch after the one it was planned from."""
    frontier: Frontier
    """Rows expired at this frontier may be dropped. So the result may only be swapped into
    lists of epochs after the one it was planned from, never into a restored older one."""
    compact_generations: frozenset[int] | None = None
    """The levels that may be merged; None for any."""
    min_compaction_epochs: int = 4
    """How many neighbouring files of one tier are needed for a merge."""
    min_expiring_epochs: int | None = None
    """The same for tables whose rows all expire, as files may expire before a merge pays. None
    means `min_compaction_epochs`."""
    max_runs: int = 16
    """How many runs a list may have before an epoch waits; merging begins well below."""
    target_file_bytes: int = 128 << 20


@dataclass(eq=False)
class TableEpochCheckpointer(ABC, Generic[TableT]):
    """Collects one epoch's changes of one table and writes them. Used once."""

    table: TableT
    epoch: Epoch
    previous: Files
    """The list that the epoch goes on from."""
    commit_data: bytes | None = field(default=None, init=False)
    """The data that the sink must commit once the epoch is acknowledged; None for most tables."""

    @abstractmethod
    def insert_data(self, data: TableData) -> None:
        """Take a change; data of a kind this table does not store is a `StateError`."""

    @abstractmethod
    def write(self, frontier: Frontier) -> Files:
        """Write the inserted changes as files of this epoch; without changes write no file."""

    def finish(self, checkpoint: CheckpointMessage) -> tuple[Files, int] | None:
        """Write what changed; return the subtask's list and the bytes written.

        For an unchanged table nothing is written: its list holds the earlier files that are
        still needed, and the size is 0. None means that there is nothing to restore.
        """
        written = self.write(checkpoint.frontier)
        needed = self.table.still_needed(self.previous, checkpoint.frontier)
        files = (*needed, *written)
        return (files, sum(file.size_bytes for file in written)) if files else None


class View(ABC):
    """A table as an operator uses it: the fold of `files` plus this epoch's own writes."""

    table_name: str
    files: Files
    """The list that `derive_missing` compares with the list of the next epoch."""
    is_released = False

    def check_usable(self) -> None:
        """Raise `InternalError` if the view was released."""
        if self.is_released:
            raise InternalError(f"table {self.table_name!r} was used after it was released")

    def check_settled(self, *, has_writes: bool) -> None:
        """Raise `InternalError` if the view has own writes that are not checkpointed."""
        if has_writes:
            raise InternalError(
                f"table {self.table_name!r} was to catch up with other writes while its own are "
                "not checkpointed"
            )

    @abstractmethod
    def advance(self, frontier: Frontier) -> None:
        """Start an epoch, which judges expiry by `frontier`."""

    @abstractmethod
    def flush(self, checkpointer: TableEpochCheckpointer[Any]) -> None:
        """Pass this epoch's changes to the checkpointer, each once."""

    @abstractmethod
    def checkpointed(self, files: Sequence[StateFile]) -> None:
        """Note that everything written so far is in `files`, the subtask's own list.

        A view that folds other subtasks' files too (the global table) keeps its own `files`,
        because the place of its writes among theirs is only known when it catches up.
        """

    @abstractmethod
    def catch_up(self, missing: Sequence[StateFile], files: Sequence[StateFile]) -> None:
        """Fold `missing` on top; the view is then the fold of `files`. No writes may be pending."""

    @abstractmethod
    def release(self) -> None:
        """Free memory and mappings; the view is not used again unless it is folded again."""

    @abstractmethod
    def fold_again(self, table: Any, frontier: Frontier) -> None:
        """Become the fold of a table's files for an epoch that begins at `frontier`.

        An operator may keep a view in an attribute, so a view is folded again in place. It was
        released before, or is new.
        """


@dataclass(eq=False)
class Table(ABC, Generic[ConfigT]):
    """One table of one subtask, bound to the files that its view folds.

    A kind implements the abstract methods. A kind whose subtasks all fold the same files
    (`is_shared`) also decides which subtask lists a file, and swaps in all lists at once.
    """

    table_type: ClassVar[state_pb2.TableEnum]
    config_message: ClassVar[type[Message]]
    checkpointer_type: ClassVar[type[Any]]
    is_shared: ClassVar[bool] = False
    """Whether every subtask folds the files of all of them."""

    config: ConfigT
    environment: TableEnvironment
    files: Files
    state_version: int
    state_type: Any = None
    """The operator's state class; for a global table its `KeyValueTypes`. None for any."""

    @classmethod
    def from_config(
        cls,
        config: ConfigT,
        environment: TableEnvironment,
        files: Sequence[StateFile],
        state_version: int,
        state_type: Any = None,
    ) -> Self:
        """Bind a table to the part of a whole table's files that this subtask folds."""
        if not cls.is_shared:
            files = restrict(files, environment.task.key_range)
        return cls(config, environment, tuple(files), state_version, state_type)

    @abstractmethod
    def view(self, frontier: Frontier | None = None) -> View:
        """Fold the files into a new view, for an epoch that begins at `frontier`."""

    def epoch_checkpointer(
        self, epoch: Epoch, carried: Files
    ) -> TableEpochCheckpointer[Any]:
        """Return the checkpointer of one epoch; `carried` is the list of the epoch before."""
        checkpointer: TableEpochCheckpointer[Any] = self.checkpointer_type(
            self, epoch, carried
        )
        return checkpointer

    @abstractmethod
    def still_needed(self, files: Files, frontier: Frontier) -> Files:
        """Return those of the files that a fold at `frontier` or later needs."""

    @classmethod
    @abstractmethod
    def plan_compaction(
        cls, files: Sequence[StateFile], config: CompactionConfig
    ) -> "CompactionPlan | None":
        """Return the next merge that is due in the list of one subtask, or None. Pure."""

    @abstractmethod
    def compact_data(self, plan: "CompactionPlan", config: CompactionConfig) -> Files:
        """Merge a plan's inputs; return only the outputs.

        Each output names in `replaces` the entries that it replaces. A second run with the same
        inputs writes other objects with equal contents.
        """

    merge_checkpoint_metadata = staticmethod(merge_lists)
    """Merges all subtasks' lists into the whole table's."""

    @classmethod
    def subtask_metadata_from_table(
        cls, files: Sequence[StateFile], task: TaskInfo
    ) -> Files:
        """Return the part of a whole table that a subtask lists after a restore."""
        return restrict(files, task.key_range)

    @classmethod
    def apply_compacted_checkpoint(
        cls,
        compacted: Sequence[StateFile],
        current: Mapping[int, Files],
        expired: Collection[str] = (),
    ) -> dict[int, Files]:
        """Swap compacted files into every subtask's list that still holds their exact inputs.

        Inputs named in `expired` may be gone.
        """
        lists = dict(current)
        for group in swap_groups(compacted):
            for index, files in lists.items():
                lists[index] = apply_swap(files, group, expired) or files
        return lists

    def path_for(self, epoch: Epoch, *, compacted: bool = False, part: int = 0) -> str:
        """Name a file that this attempt writes in `epoch`."""
        environment, task = self.environment, self.environment.task
        return table_checkpoint_path(
            CheckpointRef(task.job, environment.generation, epoch),
            task.operator,
            TableName(self.config.table_name),  # type: ignore[attr-defined]  # of all kinds
            task.subtask.index,
            environment.token,
            compacted=compacted,
            part=part,
        )


def admit_commit_data(table: Table[Any], held: bytes | None, data: bytes) -> bytes:
    """Return data for a sink's commit; `held` is what the table was given in this epoch.

    Only a table that is declared for it takes such data, and once per epoch.
    """
    name = table.config.table_name
    where = f"table {name!r} of operator {table.environment.task.operator!r}"
    if not getattr(table.config, "uses_two_phase_commit", False):
        raise StateError(
            f"{where} cannot hold commit data: declare a global table with "
            "uses_two_phase_commit=True for it",
            code=ErrorCode.WRONG_TABLE_KIND,
            table=name,
        )
    if held is not None:
        raise StateError(
            f"{where} already has commit data for this epoch; put everything into one value",
            code=ErrorCode.COMMIT_DATA_ALREADY_SET,
            table=name,
        )
    return data


def swap_groups(outputs: Iterable[StateFile]) -> list[list[StateFile]]:
    """Group compacted files by what they replace: each group is swapped in as a whole."""
    groups: dict[tuple[str, ...], list[StateFile]] = {}
    for file in outputs:
        groups.setdefault(file.replaces, []).append(file)
    return list(groups.values())
