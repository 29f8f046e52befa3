"""Merges the changes of an epoch into a Delta table: rows are updated, inserted and deleted by key.

Subtasks stage changes as files that are no part of the table. After the epoch is acknowledged the
driver reads them back as a stream, a row group at a time, and the client merges them into the
table in one version, with the record of the epoch. The client holds what it joins within
`memory_bytes` and writes the rest to the disk. An epoch has at most one change per key, so the
order of changes does not matter.

A merge looks at the whole table as it is: if another writer changes it meanwhile, the merge fails
with a conflict and is made again. After a restore the versions of abandoned epochs are undone by a
version of their own before the first merge; see `reversal`:

    version    5          6          7                      8          9
    did        epoch 4    epoch 5    undoes epochs 3 to 5   epoch 6    undoes 8 and 7,
                                     for epoch 6                       for epoch 7
    records    4          5          5                      6          6

    after version 6 epoch 2 is restored, and after version 8 epoch 5

A version that undoes records the epoch before, because its own is not merged yet. It belongs to
the epoch for which it undoes, and says so in its mark: with that epoch it is undone. A driver that
dies between the two finds the first among the versions to undo, and both cancel out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.delta.commit import CarryOut, Reversal
from penstock.connectors.delta.marks import Mark
from penstock.connectors.delta.parts import StagedFile
from penstock.connectors.delta.table import CommitOutcome, MergePlan, OpenTable
from penstock.connectors.files.formats import SourceFile
from penstock.connectors.files.output.waiting import Wait
from penstock.connectors.files.parquet_input import open_parquet
from penstock.core.ids import TaskInfo
from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.operators.changes import DELETE, UPDATE_BEFORE
from penstock.state.storage.object_store import ObjectStore

DEFAULT_MERGE_BYTES = 512 * 1024**2


def find_merge_problems(stream: StreamSchema) -> list[str]:
    """Return why a stream cannot be merged into a table."""
    if stream.table_key is None:
        problem = (
            'mode="merge" needs a changelog, and these rows are append-only. Changelogs come from '
            "key_by(…).aggregate(…), to_table(…), from_upserts(…) and from_debezium(…)"
        )
        return [problem]
    if stream.is_bag or not stream.table_key:
        problem = (
            "it is a changelog without a key, whose rows cannot be found again in a table: "
            'aggregate it by key before, or append all changes with mode="append"'
        )
        return [problem]
    return []


def check_nothing_waits(waits: Mapping[int, Wait], task: TaskInfo) -> None:
    """Refuse to merge while rows wait that are to be appended.

    They hold every change of several epochs, and a rescale may have parted those of one key. A
    merge takes one change per key: with more the table would have rows twice.
    """
    if not waits:
        return
    raise StateError(
        f"rows wait in the state of sink {task.operator!r} to be appended to its Delta table, and "
        "the sink is to merge now: they cannot be merged. Start the job with the pipeline it had "
        '(mode="append") and stop it: a stop writes the rows that wait. Then start the new one, '
        "on another table if this one holds changes as rows",
        code=ErrorCode.SCHEMA_MISMATCH,
        operator=str(task.operator),
    )


def to_merged(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the changes that a merge needs: how rows are now, and which are gone."""
    change: Any = batch.column(CHANGE_COLUMN)
    return batch.filter(pc.not_equal(change, pa.scalar(UPDATE_BEFORE)))


def merge(
    store: ObjectStore,
    files: Sequence[StagedFile],
    columns: pa.Schema,
    *,
    key: Sequence[str],
    memory_bytes: int,
    find_reversed: Callable[[OpenTable], Reversal],
) -> CarryOut:
    """Return the commit that merges staged changes; `columns` are theirs, `change` included."""
    names = tuple(name for name in columns.names if name != CHANGE_COLUMN)
    plan = MergePlan(tuple(key), names, CHANGE_COLUMN, DELETE, memory_bytes)

    def carry_out(table: OpenTable, marks: Sequence[Mark]) -> CommitOutcome:
        undone = find_reversed(table)
        recorded = undone.to_recorded(marks)
        if undone.added or undone.removed:
            before = undone.to_recorded([to_undoing(mark) for mark in marks])
            table.commit(undone.added, undone.removed, before)
            return CommitOutcome.CONFLICT  # what is merged into must be opened again
        if not files and undone.must_record:
            return table.commit((), (), recorded)
        if not files:
            return CommitOutcome.DONE  # the end of a job without rows: there is a table
        failure: list[BaseException] = []
        reader = pa.RecordBatchReader.from_batches(
            columns, _noting(_read_changes(store, files, columns), failure)
        )
        try:
            return table.merge(reader, plan, recorded)
        except Exception:
            if failure:  # the client does not pass on what our own reader raised
                raise failure[0] from None
            raise

    return carry_out


def to_undoing(mark: Mark) -> Mark:
    """Return the mark of the version that undoes abandoned epochs before an epoch is merged.

    >>> to_undoing(Mark("app", 6))
    Mark(app='app', epoch=5, undoes_for=6, began=None, undoes=())
    """
    return msgspec.structs.replace(mark, epoch=mark.epoch - 1, undoes_for=mark.epoch)


def _noting(
    batches: Iterator[pa.RecordBatch], failure: list[BaseException]
) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except Exception as error:
        failure.append(error)
        raise


def _read_changes(
    store: ObjectStore, files: Sequence[StagedFile], columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read staged changes, a row group at a time."""
    for file in files:
        if store.size(file.path) != file.bytes:
            raise CorruptStateError(
                f"{file.path!r} of {store.url}, which holds changes that are yet to be merged, "
                "is gone or was changed. If something removed it, restore it; its changes are "
                "lost otherwise",
                code=ErrorCode.OBJECT_MISSING,
                path=file.path,
            )
        with open_parquet(SourceFile(store, file.path, file.bytes)) as opened:
            for index in range(len(opened.groups)):
                for batch in opened.read_group(index, columns.names):
                    yield batch.cast(columns)
