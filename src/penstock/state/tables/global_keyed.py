"""GlobalKeyedTable: small key → value state of a whole operator (offsets, counters, sets).

Every subtask sees the whole table; it sees what others wrote one epoch later. Each subtask's
metadata lists the files it wrote, and the table is the fold of all of them. Keys name what
the state is about (a split, a file), never the subtask, because the number of subtasks may
change.

Files have two Binary columns and are folded in order of epoch and subtask. The order spans
*all* subtasks' files, because any subtask may write any key and the last write wins. For the
same reason compaction merges whole epochs from the oldest on: merging the files of one
subtask alone, say of epochs 3 and 7, would move its version of epoch 3 after what another
subtask wrote in epoch 5, or its version of epoch 7 before it.

In epoch n a subtask sees everything that any subtask wrote up to epoch n - 1, folded in order
of epoch, then subtask, and its own writes of epoch n on top. A kept view and a new one show
the same, because a kept view holds its own writes apart until it catches up, and then folds
them at their place among the others.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa
from google.protobuf.message import Message
from typing_extensions import override

from penstock.core.ids import TaskInfo
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.files.migration import MigrationStep, migrate_value, plan_migration
from penstock.state.files.reader import StateFileReader
from penstock.state.files.state_file import StateFile, apply_swap, merge_lists
from penstock.state.files.writer import FileDescription, StateFileWriter, write_state_file
from penstock.state.proto import state_pb2
from penstock.state.tables.compaction import CompactionPlan
from penstock.state.tables.specs import KeyValueTypes, ValueCodec
from penstock.state.tables.table import (
    BlindDataTuple,
    CommitData,
    CompactionConfig,
    DataOperation,
    DataTuple,
    Files,
    Frontier,
    Table,
    TableData,
    TableEpochCheckpointer,
    View,
    admit_commit_data,
    swap_groups,
)

GLOBAL_KEY_VALUE_SCHEMA = pa.schema(
    [pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())]
)
"""Key and value are msgpack; a null value is a tombstone."""
_CHEAP_SHARE = 4
"""Deltas are merged once they hold the bytes of the base divided by this."""
_EPOCH_LIMIT = 16
"""Deltas are also merged once they are of this many epochs."""


K = TypeVar("K")
V = TypeVar("V")


@dataclass(eq=False)
class GlobalKeyedTableCheckpointer(TableEpochCheckpointer["GlobalKeyedTable"]):
    """Writes the keys that one subtask changed in one epoch, as one file. Used once."""

    _changes: dict[bytes, bytes | None] = field(default_factory=dict, init=False)

    @override
    def insert_data(self, data: TableData) -> None:
        """Take one changed key (the last change counts), or the data for the sink's commit."""
        name = self.table.config.table_name
        match data:
            case BlindDataTuple(key=key, value=value, operation=operation):
                self._changes[key] = None if operation is DataOperation.TOMBSTONE else value
            case DataTuple(key=key, value=value, operation=operation):
                keys, values = self.table.codecs
                is_removed = operation is DataOperation.TOMBSTONE
                self._changes[keys.encode_key(key)] = (
                    None if is_removed else values.encode(value)
                )
            case CommitData(data=commit_data):
                self.commit_data = admit_commit_data(
                    self.table, self.commit_data, commit_data
                )
            case _:
                raise StateError(
                    f"global table {name!r} stores keys and values, not "
                    f"{type(data).__name__}; use a keyed or time-keyed table for rows",
                    code=ErrorCode.WRONG_TABLE_KIND,
                    table=name,
                )

    @override
    def write(self, frontier: Frontier) -> Files:
        if not self._changes:
            return ()
        environment = self.table.environment
        subtask = environment.task.subtask
        written = write_state_file(
            environment.store,
            self.table.path_for(self.epoch),
            _to_rows(self._changes),
            FileDescription(
                epoch=self.epoch,
                subtask_index=subtask.index,
                state_version=self.table.state_version,
            ),
            # A view keeps its own writes in memory: only other subtasks would read the file.
            cache=environment.cache if subtask.parallelism > 1 else None,
        )
        return (written,)


def _to_rows(changes: Mapping[bytes, bytes | None]) -> pa.Table:
    """Return changes as rows of a file, in order of key."""
    keys = sorted(changes)
    values = [changes[key] for key in keys]
    columns: list[Any] = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
    return pa.table(columns, schema=GLOBAL_KEY_VALUE_SCHEMA)


class GlobalKeyedTable(Table[state_pb2.GlobalKeyedTableConfig]):
    """One subtask's access to a global table."""

    table_type = state_pb2.GLOBAL_KEYED_TABLE
    config_message: ClassVar[type[Message]] = state_pb2.GlobalKeyedTableConfig
    checkpointer_type = GlobalKeyedTableCheckpointer
    is_shared = True

    @cached_property
    def codecs(self) -> tuple[ValueCodec, ValueCodec]:
        """The codecs of keys and values, which are of any type if none is declared."""
        name, types = self.config.table_name, self.state_type or KeyValueTypes()
        return (
            ValueCodec(types.key_type, what=f"key of table {name!r}"),
            ValueCodec(types.value_type, what=f"value of table {name!r}"),
        )

    @override
    def view(self, frontier: Frontier | None = None) -> "GlobalKeyedView[Any, Any]":
        return GlobalKeyedView(self)

    def fold(
        self,
        files: Sequence[StateFile],
        base: Mapping[bytes, bytes] | None = None,
        *,
        known: Mapping[str, Mapping[bytes, bytes | None]] | None = None,
    ) -> dict[bytes, bytes]:
        """Fold files in order on top of `base`: the last write of a key counts.

        `known` holds the contents of some files by path, so that these are not read.
        """
        folded = dict(base or {})
        for file in files:
            written = (known or {}).get(file.path)
            rows = self.load_with_version(file) if written is None else written.items()
            for key, value in rows:
                if value is None:
                    folded.pop(key, None)
                else:
                    folded[key] = value
        return folded

    def load_with_version(self, file: StateFile) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield keys and values of one file at the current version, tombstones as None.

        A file of an older version is migrated value by value; keys never change.
        """
        name = self.config.table_name
        rows = StateFileReader(self.environment.store, self.environment.cache, file).read()
        if not rows.schema.equals(GLOBAL_KEY_VALUE_SCHEMA):
            raise CorruptStateError(
                f"{file.path} does not hold the state of a global table: its columns are "
                f"{rows.schema.names}. Table {name!r} cannot be read from it: put the original "
                "back or restore an older epoch. Nothing was changed",
                code=ErrorCode.WRONG_TABLE_KIND,
                table=name,
                path=file.path,
            )
        names = {"table": name, "path": file.path}
        codec = self.codecs[1]
        steps: tuple[MigrationStep, ...] = ()
        if file.state_version != self.state_version:
            steps = plan_migration(file.state_version, codec.value_type, table=name)
        old = (
            ValueCodec(steps[0].from_type, what=f"value of table {name!r}")
            if steps
            else None
        )
        keys: list[Any] = rows.column("key").to_pylist()
        values: list[Any] = rows.column("value").to_pylist()
        for key, value in zip(keys, values, strict=True):
            if old is None or value is None:
                yield key, value
            else:
                yield key, codec.encode(migrate_value(old.decode(value), steps, **names))

    @override
    def still_needed(self, files: Files, frontier: Frontier) -> Files:
        """Return all files: nothing in a global table expires."""
        return files

    @classmethod
    @override
    def subtask_metadata_from_table(
        cls, files: Sequence[StateFile], task: TaskInfo
    ) -> Files:
        """Return the files a subtask wrote; subtask 0 also gets those of removed subtasks."""
        index, count = task.subtask.index, task.subtask.parallelism
        return tuple(
            file
            for file in files
            if index == (file.subtask_index if file.subtask_index < count else 0)
        )

    @classmethod
    @override
    def plan_compaction(
        cls, files: Sequence[StateFile], config: CompactionConfig
    ) -> CompactionPlan | None:
        """Plan to merge the whole list, if its deltas are large or old enough for that."""
        deltas = [file for file in files if file.level == 0]
        epochs = {file.epoch for file in deltas}
        if len(epochs) < max(2, config.min_compaction_epochs):
            return None
        levels = config.compact_generations
        if levels is not None and any(file.level not in levels for file in files):
            return None
        base_bytes = sum(file.size_bytes for file in files if file.level > 0)
        delta_bytes = sum(file.size_bytes for file in deltas)
        if delta_bytes * _CHEAP_SHARE < base_bytes and len(epochs) < _EPOCH_LIMIT:
            return None
        return CompactionPlan(tuple(files), drops_deleted=True)

    @override
    def compact_data(self, plan: CompactionPlan, config: CompactionConfig) -> Files:
        """Fold the whole table into one file."""
        writer = StateFileWriter(
            self.environment.store,
            lambda part: self.path_for(config.epoch, compacted=True, part=part),
            GLOBAL_KEY_VALUE_SCHEMA,
            # Whole epochs are merged, so no other file of the newest epoch is left whose order
            # would matter. The output belongs to subtask 0, because that always exists.
            plan.describe(self.state_version, subtask_index=0),
            target_bytes=config.target_file_bytes,
            cut_anywhere=True,
        )
        writer.write(_to_rows({**self.fold(plan.inputs)}))
        return writer.finish()

    @classmethod
    @override
    def apply_compacted_checkpoint(
        cls,
        compacted: Sequence[StateFile],
        current: Mapping[int, Files],
        expired: Collection[str] = (),
    ) -> dict[int, Files]:
        """Swap in all subtasks' lists at once, or in none if any input is gone.

        The output goes to subtask 0, which is added if it had no list. The replaced files
        leave all lists. Files written since then stay where they are, as newer ones.
        """
        lists = dict(current)
        for group in swap_groups(compacted):
            swapped = apply_swap(merge_lists(lists.values()), group)
            if swapped is None or swapped[: len(group)] != tuple(group):
                return dict(current)
            replaced = set(group[0].replaces)
            lists = {
                index: tuple(file for file in files if file.identity not in replaced)
                for index, files in lists.items()
            }
            lists[0] = (*group, *lists.get(0, ()))
        return lists


class GlobalKeyedView(View, Generic[K, V]):
    """Key → value state. Each read decodes a new value: changing it changes no state.

    Two keys are the same if they encode to the same bytes, so 1 and 1.0 are one key of a
    float table, and 0.0 and -0.0 are two keys. To change a value, insert it again. Inserting
    the value that a key already has is not written.
    """

    def __init__(self, table: GlobalKeyedTable) -> None:
        """Fold the table's files, which are those of all subtasks."""
        self.table_name = table.config.table_name
        self._keys, self._values = table.codecs
        self._folded: dict[bytes, bytes] = {}
        self._unmerged: dict[bytes, bytes | None] = {}
        """Own writes of earlier epochs, in files that this view has not folded yet."""
        self._written: dict[str, dict[bytes, bytes | None]] = {}
        """The same writes by file, so that catching up does not read them back."""
        self._changes: dict[bytes, bytes | None] = {}
        """Own writes of this epoch; None for a removed key."""
        self.fold_again(table, Frontier())

    def get(self, key: K, default: V | None = None) -> V | None:
        """Return a new copy of the key's value, or `default`."""
        data = self._find(self._keys.encode_key(key))
        return default if data is None else self._values.decode(data)

    def insert(self, key: K, value: V) -> None:
        """Set the key's value, also if another subtask wrote it before."""
        self._change(self._keys.encode_key(key), self._values.encode(value))

    def remove(self, key: K) -> V | None:
        """Remove the key, also if another subtask wrote it, and return the value it had."""
        encoded = self._keys.encode_key(key)
        data = self._find(encoded)
        if data is None:
            return None
        self._change(encoded, None)
        return self._values.decode(data)  # type: ignore[no-any-return]  # decoded by type

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield keys and new copies of their values, in an order that only depends on the keys."""
        for key in sorted(self._known_keys()):
            data = self._find(key)
            if data is not None:
                yield self._keys.decode(key), self._values.decode(data)

    def __contains__(self, key: K) -> bool:
        return self._find(self._keys.encode_key(key)) is not None

    def __len__(self) -> int:
        return sum(self._find(key) is not None for key in self._known_keys())

    @override
    def advance(self, frontier: Frontier) -> None:
        """Start an epoch; nothing in a global table expires."""

    @override
    def flush(self, checkpointer: TableEpochCheckpointer[Any]) -> None:
        """Insert the keys whose value this epoch changed."""
        for key, value in self._changes.items():
            operation = DataOperation.TOMBSTONE if value is None else DataOperation.UPSERT
            checkpointer.insert_data(BlindDataTuple(None, key, value, operation))

    @override
    def checkpointed(self, files: Sequence[StateFile]) -> None:
        """Note that the writes are durable; the files stay unfolded until `catch_up`."""
        if self._changes and files:
            # The changes of an epoch are one file, the newest of the subtask's own list.
            self._written[files[-1].path] = self._changes
        self._unmerged.update(self._changes)
        self._changes = {}

    @override
    def catch_up(self, missing: Sequence[StateFile], files: Sequence[StateFile]) -> None:
        """Fold what all subtasks, including this one, have written since."""
        self.check_settled(has_writes=bool(self._changes))
        self._folded = self._table.fold(missing, self._folded, known=self._written)
        self._unmerged, self._written = {}, {}
        self.files = tuple(files)

    @override
    def release(self) -> None:
        self._folded, self._unmerged, self._changes, self._written = {}, {}, {}, {}
        self.is_released = True

    @override
    def fold_again(self, table: GlobalKeyedTable, frontier: Frontier) -> None:
        self._table = table
        self._folded = table.fold(table.files)
        self.files: Files = table.files
        self.is_released = False

    def _known_keys(self) -> set[bytes]:
        self.check_usable()
        return {*self._folded, *self._unmerged, *self._changes}

    def _find(self, key: bytes, *, before: bool = False) -> bytes | None:
        """Return the key's encoded value, or the one it had `before` the epoch started."""
        self.check_usable()
        if not before and key in self._changes:
            return self._changes[key]
        return self._unmerged[key] if key in self._unmerged else self._folded.get(key)

    def _change(self, key: bytes, value: bytes | None) -> None:
        if value == self._find(key, before=True):
            self._changes.pop(key, None)
        else:
            self._changes[key] = value
