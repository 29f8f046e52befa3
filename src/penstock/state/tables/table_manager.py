"""TableManager: all tables of one subtask, from restore to checkpoint.

One epoch:

    manager = TableManager.load(environment, specs, restored)    the first time
    manager.catch_up(environment, restored)                      in later epochs
    manager.begin_epoch(frontier)
    manager.get_keyed_state("sessions").put(rows) …
    checkpoint = manager.checkpoint(epoch, min_epoch, watermark, then_stop=False)

The manager writes state files only. The metadata it returns goes to the driver, which alone
publishes. After an error in `checkpoint` or `catch_up` the manager is not used again: its
views may have given up writes that never became durable, or be of different epochs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.core.ids import Epoch
from penstock.errors import ErrorCode, InternalError, StateError
from penstock.state.files.reader import drop_cached
from penstock.state.files.state_file import derive_missing
from penstock.state.proto import state_pb2
from penstock.state.tables.fit import check_restorable, plan_table_restore
from penstock.state.tables.global_keyed import GlobalKeyedView
from penstock.state.tables.keyed_view import KeyedView
from penstock.state.tables.operator_tables import (
    check_complete,
    follow_stored,
    merge_table,
    open_table,
    set_list,
    tables_by_name,
    unlisted,
)
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import (
    CheckpointMessage,
    CommitData,
    Files,
    Frontier,
    Table,
    TableEnvironment,
    View,
    admit_commit_data,
)
from penstock.state.tables.time_keyed_view import KeyTimeView, TimeKeyedView

Metadata = state_pb2.OperatorCheckpointMetadata
ViewT = TypeVar("ViewT", bound=View)


@dataclass(frozen=True, slots=True)
class SubtaskCheckpoint:
    """The part of an epoch's checkpoint that one subtask wrote."""

    metadata: Metadata
    changed: bool
    """False if the parent's metadata restores the same state: the driver may refer to that."""
    bytes_written: int


@dataclass(slots=True)
class OpenTable:
    """One table with its view and the list that the next epoch goes on from."""

    spec: TableSpec
    table: Table[Any]
    carried: Files
    view: View | None = None
    commit_data: bytes | None = None


class TableManager:
    """All tables of one subtask. Owned by one task, used by one thread."""

    def __init__(
        self,
        environment: TableEnvironment,
        specs: Mapping[str, TableSpec],
        restored: Mapping[int, Metadata],
    ) -> None:
        self._specs = specs
        self._latest = Frontier()
        """The latest time by which views, or files written from them, have dropped rows."""
        self._open(environment, restored)
        self._is_usable = True

    def _open(
        self, environment: TableEnvironment, restored: Mapping[int, Metadata]
    ) -> None:
        """Bind each declared table to its part of the checkpoint, which may be empty."""
        task, tables = environment.task, {}
        for name, declared in self._specs.items():
            spec = follow_stored(declared, restored.values())
            whole = merge_table(spec, task, restored)
            table = open_table(spec, environment, whole)
            carried = table.subtask_metadata_from_table(whole, task)
            tables[name] = OpenTable(spec, table, carried)
        self._tables = tables
        self.environment = environment
        """The subtask and the attempt that use the tables."""
        has_parent = len(restored) == task.subtask.parallelism
        self._parent = restored[task.subtask.index] if has_parent else None
        """The metadata that the checkpoint holds for this very subtask."""
        self._frontier: Frontier | None = None
        """None between epochs: without a time, a row that is put would expire at once."""
        self._written_epoch = 0
        """The epoch of the last checkpoint since the tables were opened; 0 before the first."""

    @classmethod
    def load(
        cls,
        environment: TableEnvironment,
        specs: Iterable[TableSpec],
        restored: Mapping[int, Metadata],
        *,
        allow_dropped: bool = False,
    ) -> "TableManager":
        """Open the declared tables on a checkpoint of the operator, at any parallelism.

        `restored` holds the metadata of *every* subtask the checkpoint was made with, by
        index; empty for a fresh start. Nothing is read before a table is used.
        """
        declared = tables_by_name(specs)
        operator = environment.task.operator
        check_complete(operator, restored)
        plans = plan_table_restore(declared.values(), restored)
        check_restorable(operator, plans, allow_dropped=allow_dropped)
        return cls(environment, declared, restored)

    def catch_up(
        self, environment: TableEnvironment, restored: Mapping[int, Metadata]
    ) -> None:
        """Go on with open views after an epoch was published, reading only what is new.

        `environment` holds the new attempt's token. A view that the checkpoint does not extend,
        or of another subtask, is released, and folded again when the epoch begins.
        """
        self._check_usable()
        self._is_usable = False
        check_complete(environment.task.operator, restored)
        before, is_same_task = self._tables, environment.task == self.environment.task
        self._open(environment, restored)
        for name, table in self._tables.items():
            # All views are taken over first: if one of them fails, `close` releases the others.
            table.view = before[name].view
        for name, table in self._tables.items():
            view, wanted = table.view, table.table.files
            if view is None:
                continue
            missing = None
            if is_same_task:
                missing = derive_missing(view.files, wanted)
                # Files that expired or were merged into others leave the cache.
                known = (*before[name].table.files, *view.files)
                for checksum in unlisted(table.spec, known, wanted, restored):
                    drop_cached(environment.cache, checksum)
            if missing is None:
                view.release()
            else:
                view.catch_up(missing, wanted)
        self._is_usable = True

    def begin_epoch(self, frontier: Frontier) -> None:
        """Fix the time that expiry is judged by until the next epoch.

        The time may be earlier than before: after a restore, or if this subtask was ahead of
        the others behind a forward edge. Views whose rows expire may have dropped rows that
        are live again at that time, so they are folded again.
        """
        self._check_usable()
        if self._latest.is_after(frontier):
            if self._frontier is not None:
                raise InternalError(
                    f"time goes back from {self._frontier} to {frontier} within an epoch of "
                    f"operator {self._operator!r}"
                )
            for table in self._tables.values():
                if table.view is not None and table.spec.expires_by is not None:
                    table.view.release()
        self._frontier = self._latest = frontier
        for table in self._tables.values():
            if table.view is None:
                continue
            if table.view.is_released:
                table.view.fold_again(table.table, frontier)
            else:
                table.view.advance(frontier)

    # A view is the same object as long as the manager is open, so an operator may keep it.

    def get_global_keyed_state(self, name: str) -> GlobalKeyedView[Any, Any]:
        """Return the view of a global table."""
        return self._view(name, GlobalKeyedView)

    def get_time_keyed_state(self, name: str) -> TimeKeyedView:
        """Return the view of a time-keyed table by time."""
        return self._view(name, TimeKeyedView)

    def get_key_time_state(self, name: str) -> KeyTimeView:
        """Return the view of a time-keyed table by key and time."""
        return self.get_time_keyed_state(name).by_key()

    def get_keyed_state(self, name: str) -> KeyedView:
        """Return the view of a keyed table."""
        return self._view(name, KeyedView)

    def insert_committing_data(self, name: str, data: bytes) -> None:
        """Store the data that the sink commits once this epoch is acknowledged; once per epoch."""
        self._check_usable()
        table = self._table(name)
        table.commit_data = admit_commit_data(table.table, table.commit_data, data)

    def checkpoint(
        self,
        epoch: Epoch,
        min_epoch: Epoch,
        watermark: int | None,
        *,
        then_stop: bool = False,
    ) -> SubtaskCheckpoint:
        """Write what changed in every table and return the metadata for the driver.

        `watermark` is the operator's watermark at the barrier: files that expired by it are
        dropped from the lists. With `then_stop` the views are released.
        """
        begun = self._begun()
        files = (file for table in self._tables.values() for file in table.table.files)
        newest = max((self._written_epoch, *(file.epoch for file in files)))
        if epoch <= newest:
            raise InternalError(
                f"epoch {epoch} of operator {self._operator!r} cannot be built on files of epoch "
                f"{newest}: epoch numbers only grow",
                code=ErrorCode.PROTOCOL_VIOLATION,
            )
        self._is_usable = False
        frontier = begun.at_end(watermark)
        message = CheckpointMessage(epoch, frontier, min_epoch, then_stop)
        task = self.environment.task
        metadata = Metadata(
            operator_metadata=state_pb2.OperatorMetadata(
                job_id=task.job,
                operator_id=task.operator,
                epoch=epoch,
                subtask_index=task.subtask.index,
                parallelism=task.subtask.parallelism,
                watermark_micros=watermark,
            )
        )
        for name, table in self._tables.items():
            metadata.table_configs[name].CopyFrom(table.spec.to_config())
            checkpointer = table.table.epoch_checkpointer(epoch, table.carried)
            if table.view is not None:
                table.view.flush(checkpointer)
            if table.commit_data is not None:
                checkpointer.insert_data(CommitData(table.commit_data))
            finished = checkpointer.finish(message)
            table.carried, written = finished or ((), 0)
            metadata.bytes_written += written
            if checkpointer.commit_data is not None:
                metadata.commit_data[name] = checkpointer.commit_data
                table.commit_data = None
            if finished is not None:
                set_list(metadata, name, table.spec.table_type, table.carried)
            if table.view is not None:
                table.view.checkpointed(table.carried)
        self._written_epoch = epoch
        self._latest = self._latest if self._latest.is_after(frontier) else frontier
        self._is_usable = True
        if then_stop:
            self.close()
        parent, self._parent = self._parent, metadata
        changed = (
            parent is None
            or bool(metadata.commit_data or parent.commit_data)
            or dict(metadata.table_configs) != dict(parent.table_configs)
            or dict(metadata.table_checkpoint_metadata)
            != dict(parent.table_checkpoint_metadata)
        )
        return SubtaskCheckpoint(metadata, changed, metadata.bytes_written)

    def close(self) -> None:
        """Release every view; the manager is not used again."""
        self._is_usable = False
        for table in self._tables.values():
            if table.view is not None:
                table.view.release()
                table.view = None

    @property
    def _operator(self) -> str:
        return self.environment.task.operator

    def _view(self, name: str, kind: type[ViewT]) -> ViewT:
        frontier = self._begun()
        table = self._table(name)
        if table.view is None:
            table.view = table.table.view(frontier)
        if not isinstance(table.view, kind):
            raise StateError(
                f"table {name!r} of operator {self._operator!r} is a "
                f"{type(table.table).__name__}; ask for that kind of state",
                code=ErrorCode.WRONG_TABLE_KIND,
                table=name,
            )
        return table.view

    def _table(self, name: str) -> OpenTable:
        table = self._tables.get(name)
        if table is None:
            known = ", ".join(sorted(self._tables)) or "none"
            raise StateError(
                f"operator {self._operator!r} declares no table {name!r}; it "
                f"declares: {known}. Add it to tables()",
                code=ErrorCode.NO_REGISTERED_TABLE,
                table=name,
            )
        return table

    def _begun(self) -> Frontier:
        """Return the epoch's frontier; before `begin_epoch` nothing may be read or written."""
        self._check_usable()
        if self._frontier is None:
            raise InternalError(
                f"the tables of {self._operator!r} were used before begin_epoch "
                "said by which time their rows are judged"
            )
        return self._frontier

    def _check_usable(self) -> None:
        if not self._is_usable:
            raise InternalError(
                f"the tables of {self._operator!r} were used after they were "
                "closed, or after an error in them: load them anew"
            )
