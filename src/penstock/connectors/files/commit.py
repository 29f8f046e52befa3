"""Commits staged files and lists them: each gets its final name once, then the list is written.

    list there and the same?  → committed before: only remove what was staged
    copy every staged file to its final name, which is created once
    create the list           → from here on readers see the epoch, all of it
    remove what was staged

Every step may be repeated at any time, by another process too. A staged file that is gone
while its final one is there was copied before. Staged files are removed last, and only up to
this epoch: the files of acknowledged epochs have their final names by then, and files of other
attempts at these epochs are not needed.

`StagedParts` travels as commit data, in the checkpoint. `CommittedEpoch` is a JSON object
beside the output, created once, after all files it lists. So a reader that follows the lists,
as `committed_files` and `read_committed` do, sees neither a part of an epoch nor one that was
not acknowledged.

A restore goes back to an older epoch, and the epochs after it are abandoned: their rows come
again under new numbers. Nothing is written at the restore itself. The first epoch after it
finds by its parent which epochs it does not descend from, and every list from then on names
them:

    epoch    1   2   3   4   5   restore of 2   6                  7
    parent       1   2   3   4                  2                  6
    its list                                    abandoned [3, 6)   abandoned [3, 6)

So a reader sees the old output until that epoch is committed, the new one from then on, and no
row twice. A sink keeps the ranges in its state. A later restore brings back the ranges of its
epoch, so undoing a restore needs nothing more. This is safe against crashes and replaced
drivers, because lists are of acknowledged epochs only and the same for every driver that
commits them.
"""

import logging
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.files.formats import OutputFormat
from penstock.connectors.files.jsonl import from_json_lines
from penstock.connectors.files.names import (
    COMMITTED,
    Partition,
    add_partition,
    read_record_name,
    read_staged_name,
    record_path,
    staging_folder,
)
from penstock.core.ids import Epoch, TaskInfo, checksum_of
from penstock.errors import CorruptStateError, ErrorCode, StorageError, UnknownOutcomeError
from penstock.operators.context import CommitContext, OperatorContext
from penstock.state.storage.create import create_own
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store

EpochRange: TypeAlias = tuple[int, int]
"""The epochs `[start, end)`."""

_Record = TypeVar("_Record")


class StagedFile(msgspec.Struct, frozen=True):
    """A file in the staging area, and the name it gets in the commit."""

    staged: str
    path: str
    """The final name, relative to the sink's folder."""
    rows: int
    bytes: int
    checksum: str
    partition: Partition = ()


class StagedParts(msgspec.Struct, frozen=True):
    """What one subtask staged in one epoch."""

    format: OutputFormat
    schema: str
    """All columns, the partition columns included: an Arrow IPC schema in base64."""
    partition_by: tuple[str, ...]
    files: tuple[StagedFile, ...]
    abandoned: tuple[EpochRange, ...] = ()
    """As in `CommittedEpoch`."""


class ListedFile(msgspec.Struct, frozen=True):
    """One file of a committed epoch."""

    path: str
    rows: int
    bytes: int
    checksum: str
    """XXH3 with 64 bits, in hexadecimal digits."""
    partition: Partition = ()


class CommittedEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """All files that one sink committed in one epoch."""

    version: int = 1
    job: str
    identity: str
    """Differs from that of another job of the same name."""
    operator: str
    epoch: int
    format: OutputFormat
    schema: str
    schema_hash: str
    partition_by: tuple[str, ...]
    rows: int
    bytes: int
    files: tuple[ListedFile, ...]
    abandoned: tuple[EpochRange, ...] = ()
    """Earlier epochs of the job whose files are no part of the output, because of restores."""


def decode_staged(
    of_subtask: Mapping[int, bytes], epoch: Epoch, ctx: CommitContext
) -> list[StagedParts]:
    """Return what the subtasks staged in an epoch, from their commit data."""
    where = f"the commit data of {ctx.task.operator!r} in epoch {epoch}"
    return [_decode(of_subtask[i], StagedParts, where) for i in sorted(of_subtask)]


def _decode(data: bytes, kind: type[_Record], where: str) -> _Record:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptStateError(
            f"{where} is not what a files sink writes there: {error}. Restore the object if "
            "something changed it; nothing was changed now",
            code=ErrorCode.UNDECODABLE,
        ) from error


def schema_text(schema: pa.Schema) -> str:
    """Return a schema as text that `schema_of` understands."""
    return b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def schema_of(text: str) -> pa.Schema:
    """Return the schema that a text holds."""
    return pa.ipc.read_schema(pa.py_buffer(b64decode(text)))


def format_checksum(checksum: int) -> str:
    """Return a checksum as text."""
    return f"{checksum:016x}"


_log = logging.getLogger(__name__)


def commit_files(
    store: ObjectStore, epoch: Epoch, parts: Sequence[StagedParts], ctx: CommitContext
) -> None:
    """Make an acknowledged epoch's files visible: all of them, once."""
    first, staged = parts[0], [file for part in parts for file in part.files]
    columns = "\n".join(
        f"{field.name}: {field.type} {field.nullable}" for field in schema_of(first.schema)
    )
    record = CommittedEpoch(
        job=str(ctx.task.job),
        identity=str(ctx.identity),
        operator=str(ctx.task.operator),
        epoch=int(epoch),
        format=first.format,
        schema=first.schema,
        schema_hash=format_checksum(checksum_of(columns.encode())),
        partition_by=first.partition_by,
        rows=sum(file.rows for file in staged),
        bytes=sum(file.bytes for file in staged),
        files=msgspec.convert(staged, tuple[ListedFile, ...], from_attributes=True),
        abandoned=tuple(sorted({found for part in parts for found in part.abandoned})),
    )
    path = record_path(epoch, ctx.task.operator)
    listed = store.read(path)
    if listed is None:
        for file in staged:
            _place(store, file)
        # People read the list too.
        data = msgspec.json.format(msgspec.json.encode(record), indent=1)
        listed = create_own(store, path, data)
    where = f"{path!r} of {store.url}"
    if listed is not None and _decode(listed, CommittedEpoch, where) != record:
        raise CorruptStateError(
            f"{where} lists other files than epoch {record.epoch} of job "
            f"{record.job!r} staged. Nothing was changed. {_ADVICE}",
            code=ErrorCode.FOREIGN_OBJECT,
            path=path,
        )
    tidy_staging(store, ctx.task, record.epoch, staged)


def _place(store: ObjectStore, file: StagedFile) -> None:
    """Copy a staged file to its final name, unless an earlier commit did."""
    lost: UnknownOutcomeError | None = None
    try:
        copied = store.copy(file.staged, file.path)
    except UnknownOutcomeError as error:
        lost, copied = error, False
    if copied:
        return
    checksum = store.checksum(file.path)
    if checksum is None:
        raise lost or CorruptStateError(
            f"{file.path!r} of {store.url} cannot be committed: there is neither that file "
            f"nor the staged one ({file.staged!r}). If something removed them, restore them; "
            "its rows are lost otherwise",
            code=ErrorCode.OBJECT_MISSING,
            path=file.path,
        )
    if format_checksum(checksum) != file.checksum:
        raise CorruptStateError(
            f"{file.path!r} of {store.url} exists and holds something else than the epoch "
            f"staged (checksum {format_checksum(checksum)} instead of {file.checksum}). "
            f"Nothing was overwritten. {_ADVICE}",
            code=ErrorCode.CHECKSUM_MISMATCH,
            path=file.path,
        )


_ADVICE = (
    "Another job, or an earlier one of this name, writes to this folder: give each job its "
    "own, or move the old output away"
)


def tidy_staging(
    store: ObjectStore, task: TaskInfo, epoch: int, staged: Iterable[StagedFile] = ()
) -> None:
    """Remove what a sink staged up to this epoch; what cannot be removed is left for later.

    The files in `staged` are removed first: a listing may not show them yet.
    """
    try:
        for file in staged:
            store.delete(file.staged)
        for info in store.list(staging_folder(task.job)):
            found = read_staged_name(info.path)
            if found is not None and found[0] <= epoch and found[1] == task.operator:
                store.delete(info.path)
    except (StorageError, UnknownOutcomeError) as error:
        _log.warning(
            "files staged up to epoch %s could not all be removed; a later commit tries "
            "again: %s",
            epoch,
            error,
            extra={"job": str(task.job), "operator": str(task.operator), "epoch": epoch},
        )


ABANDONED = "abandoned"
"""The table of abandoned epochs: its keys are the ends of the ranges, its values their starts."""


def find_abandoned(ctx: OperatorContext) -> tuple[EpochRange, ...]:
    """Return the epochs before this one that it does not descend from; store new ones.

    The first epoch after a restore is the end of a new range.
    """
    table = ctx.get_global_keyed_state(ABANDONED)
    known: set[EpochRange] = {(start, end) for end, start in table.items()}
    if ctx.parent is not None and ctx.parent + 1 < ctx.epoch:
        start, end = int(ctx.parent) + 1, int(ctx.epoch)
        known.add((start, end))
        if ctx.task.subtask.index == 0:
            table.insert(end, start)
    return tuple(sorted(known))


def drop_abandoned(records: Iterable[CommittedEpoch]) -> list[CommittedEpoch]:
    """Return the lists that the newest one of their job descends from, in order of epoch.

    Pure. The ranges of a list count unless the list is abandoned itself: a later restore may
    have gone back to epochs that an earlier one had abandoned.
    """
    abandoned: dict[tuple[str, str], set[EpochRange]] = {}
    kept = []
    for record in sorted(records, key=lambda record: record.epoch, reverse=True):
        ranges = abandoned.setdefault((record.job, record.identity), set())
        if not any(start <= record.epoch < end for start, end in ranges):
            ranges.update(record.abandoned)
            kept.append(record)
    return sorted(kept, key=lambda record: (record.epoch, record.operator))


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """One file of a committed epoch."""

    path: str
    """Relative to the sink's folder."""
    epoch: int
    operator: str
    row_count: int
    size_bytes: int
    partition: Mapping[str, str | None]
    """The values of the partition columns, as text."""
    schema_hash: str
    """Equal for files of the same columns and types."""


def committed_files(
    url: str | ObjectStore,
    *,
    since_epoch: int = 0,
    store_options: Mapping[str, Any] | None = None,
) -> list[CommittedFile]:
    """Return the files of all committed epochs from `since_epoch` on, in order of epoch.

    `url` is the folder given to the sink. Any engine may read the files; for a folder of
    this machine: `polars.read_parquet([f"out/{file.path}" for file in committed_files("out")])`.
    """
    return [
        CommittedFile(
            file.path,
            record.epoch,
            record.operator,
            file.rows,
            file.bytes,
            dict(zip(record.partition_by, file.partition, strict=True)),
            record.schema_hash,
        )
        for _, record, file in _list_files(url, since_epoch, store_options)
    ]


def read_committed(
    url: str | ObjectStore,
    *,
    since_epoch: int = 0,
    store_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Return the rows of all committed epochs from `since_epoch` on, in order of epoch.

    Partition columns are back in their places, and JSON lines in their types. Every file is
    checked against its checksum. Without a committed epoch the table has no columns.
    """
    listed = _list_files(url, since_epoch, store_options)
    tables = [_read(store, record, file) for store, record, file in listed]
    return (
        pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    )


def _list_files(
    url: str | ObjectStore, since_epoch: int, options: Mapping[str, Any] | None
) -> Iterator[tuple[ObjectStore, CommittedEpoch, ListedFile]]:
    """Yield the files that count in order of epoch, then operator.

    Later lists name the earlier epochs that do not count, so lists before `since_epoch` need
    not be read.
    """
    store = open_store(url, **(options or {})) if isinstance(url, str) else url
    records = []
    for info in store.list(COMMITTED):
        name = read_record_name(info.path)
        data = None
        if name is not None and name[0] >= since_epoch:
            data = store.read(info.path)
        if data is not None:
            records.append(_decode(data, CommittedEpoch, f"{info.path!r} of {store.url}"))
    for record in drop_abandoned(records):
        for file in record.files:
            yield store, record, file


def _read(store: ObjectStore, record: CommittedEpoch, file: ListedFile) -> pa.Table:
    data = store.read(file.path)
    if data is None or format_checksum(checksum_of(data)) != file.checksum:
        what = "is missing" if data is None else "holds other bytes"
        raise CorruptStateError(
            f"{file.path!r} of {store.url} {what}, and epoch {record.epoch} was committed "
            "with it: something removed or changed it. Restore it, or begin to read at a "
            "later epoch (since_epoch)",
            code=ErrorCode.OBJECT_MISSING if data is None else ErrorCode.CHECKSUM_MISMATCH,
            path=file.path,
        )
    schema = schema_of(record.schema)
    kept = pa.schema([field for field in schema if field.name not in record.partition_by])
    if record.format == "parquet":
        # Not `pq.read_table`: a process that exits soon after it sometimes aborts.
        rows = pq.ParquetFile(pa.BufferReader(data)).read()
    else:
        rows = from_json_lines(data, kept)
    return add_partition(rows, record.partition_by, file.partition, schema)
