"""GlobalKeyedTable: small key → value state of a whole operator (offsets, counters, sets).

Every subtask sees all of it, after a delay of one epoch for what others wrote. Each
subtask's metadata lists the files it wrote; the table is the fold of all of them. Keys name
what the state is about (a split, a file), never the subtask: that may change.

Files have two Binary columns and are folded in order of epoch and subtask. The order is one
over *all* subtasks' files, because any subtask may write any key and the last writer wins.
For the same reason compaction merges whole epochs from the oldest on: merging the files of
one subtask alone, say of epochs 3 and 7, would carry its version of epoch 3 past what another
subtask wrote in epoch 5, or its version of 7 before it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from google.protobuf.message import Message
from typing_extensions import override

from penstock.core.ids import Epoch, TaskInfo
from penstock.errors import ErrorCode, StateError
from penstock.state.files.state_file import StateFile, apply_swap, merge_lists
from penstock.state.files.writer import FileDescription, StateFileWriter, write_state_file
from penstock.state.proto import state_pb2
from penstock.state.tables.compaction import CompactionPlan
from penstock.state.tables.global_keyed_view import (
    GLOBAL_KEY_VALUE_SCHEMA,
    GlobalFileReader,
    GlobalKeyedView,
    KeyValueTypes,
    ValueCodec,
)
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
    swap_groups,
)

_CHEAP_SHARE = 4
"""Deltas are merged once they hold the base's bytes divided by this, …"""
_EPOCH_LIMIT = 16
"""… or once there are this many epochs of them."""


class GlobalKeyedTable(Table[state_pb2.GlobalKeyedTableConfig]):
    """One subtask's access to a global table."""

    table_type = state_pb2.GLOBAL_KEYED_TABLE
    config_message: ClassVar[type[Message]] = state_pb2.GlobalKeyedTableConfig
    is_shared = True

    @property
    def types(self) -> KeyValueTypes:
        """What keys and values are decoded as."""
        if isinstance(self.state_type, KeyValueTypes):
            return self.state_type
        is_known = self.state_type is not None
        return KeyValueTypes(value_type=self.state_type) if is_known else KeyValueTypes()

    @property
    def reader(self) -> GlobalFileReader:
        """What views and compaction read files with."""
        name = self.config.table_name
        return GlobalFileReader(name, self.environment, self.types, self.state_version)

    @override
    def view(self, frontier: Frontier | None = None) -> GlobalKeyedView[Any, Any]:
        return GlobalKeyedView(self.reader, self.files)

    @override
    def epoch_checkpointer(
        self, epoch: Epoch, carried: Files
    ) -> "GlobalKeyedTableCheckpointer":
        return GlobalKeyedTableCheckpointer(self, epoch, carried)

    @override
    def still_needed(self, files: Files, frontier: Frontier) -> Files:
        """Return all files: nothing in a global table expires."""
        return files

    @classmethod
    @override
    def subtask_metadata_from_table(
        cls, files: Sequence[StateFile], task: TaskInfo
    ) -> Files:
        """Return the files a subtask wrote; subtask 0 carries those of subtasks that are gone."""
        subtask = task.subtask
        carriers = (
            f.subtask_index if f.subtask_index < subtask.parallelism else 0 for f in files
        )
        return tuple(
            f
            for f, carrier in zip(files, carriers, strict=True)
            if carrier == subtask.index
        )

    @classmethod
    @override
    def plan_compaction(
        cls, files: Sequence[StateFile], config: CompactionConfig
    ) -> CompactionPlan | None:
        """Plan to merge the whole list, if its deltas are worth rewriting the base for."""
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
            # Whole epochs are merged, so nothing else of the newest one is left to keep an
            # order with, and the output can belong to the subtask that always exists.
            plan.describe(self.state_version, subtask_index=0),
            target_bytes=config.target_file_bytes,
            cut_anywhere=True,
        )
        writer.write(_to_rows({**self.reader.fold(plan.inputs)}))
        return writer.finish()

    @classmethod
    @override
    def apply_compacted_checkpoint(
        cls, compacted: Sequence[StateFile], current: Mapping[int, Files]
    ) -> dict[int, Files]:
        """Swap in all subtasks' lists at once, or in none if any input is gone.

        The output goes to subtask 0, which is added if it had no list; the others lose what
        was replaced. Whatever was written since stays where it is, and newer.
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


class GlobalKeyedTableCheckpointer(TableEpochCheckpointer[GlobalKeyedTable]):
    """Writes the keys that one subtask changed in one epoch, as one file. Used once."""

    def __init__(self, table: GlobalKeyedTable, epoch: Epoch, previous: Files) -> None:
        super().__init__(table, epoch, previous)
        self._changes: dict[bytes, bytes | None] = {}

    @override
    def insert_data(self, data: TableData) -> None:
        """Take one changed key, the last one counting, or the epoch's data for the sink's commit."""
        name = self.table.config.table_name
        match data:
            case BlindDataTuple(key=key, value=value, operation=operation):
                self._changes[key] = None if operation is DataOperation.TOMBSTONE else value
            case DataTuple():
                self.insert_data(self._encoded(data))
            case CommitData(data=commit_data):
                self._take_commit_data(commit_data)
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
            # A view remembers its own writes: only other subtasks would read the file.
            cache=environment.cache if subtask.parallelism > 1 else None,
        )
        return (written,)

    def _encoded(self, data: DataTuple) -> BlindDataTuple:
        name, types = self.table.config.table_name, self.table.types
        key = ValueCodec(types.key_type, what=f"key of table {name!r}")
        value = ValueCodec(types.value_type, what=f"value of table {name!r}")
        is_removed = data.operation is DataOperation.TOMBSTONE
        return BlindDataTuple(
            data.timestamp_micros,
            key.encode_key(data.key),
            None if is_removed else value.encode(data.value),
            data.operation,
        )

    def _take_commit_data(self, data: bytes) -> None:
        name = self.table.config.table_name
        if not self.table.config.uses_two_phase_commit:
            raise StateError(
                f"table {name!r} was given commit data but is not declared with "
                "uses_two_phase_commit=True",
                code=ErrorCode.WRONG_TABLE_KIND,
                table=name,
            )
        if self.commit_data is not None:
            raise StateError(
                f"table {name!r} was given commit data twice in epoch {self.epoch}: gather all "
                "of an epoch's data and hand it over once",
                code=ErrorCode.COMMIT_DATA_ALREADY_SET,
                table=name,
                epoch=self.epoch,
            )
        self.commit_data = data


def _to_rows(changes: Mapping[bytes, bytes | None]) -> pa.Table:
    """Return changes as rows of a file, in order of key."""
    keys = sorted(changes)
    values = [changes[key] for key in keys]
    columns: list[Any] = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
    return pa.table(columns, schema=GLOBAL_KEY_VALUE_SCHEMA)
