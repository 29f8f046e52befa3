"""Merges what the subtasks of a files sink have staged into fewer files, as parts of the commit.

    part of the commit     read the staged files → stage the merged one → claim
    end of the commit      read the claim → give the merged file its final name → list it

Attempts at a part may run again or at the same time, and may encode the same rows as other
bytes: another version of the encoder will do. So each stages its file under a name of its own,
and the **claim**, an object that is created once, says which of them counts, with its size and
checksum. A merged file has the final name of the first file that is in it. No file gets a final
name before it is merged, and none is merged again: so whoever reads all files of the folder
sees every row once.

When the list of the epoch is there, its commit has come to its end. Parts that run later do
nothing, and find what was staged gone.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.files.committed import (
    CommittedEpoch,
    EpochRows,
    ListedFile,
    epochs_of,
    format_checksum,
    schema_of,
    to_types,
)
from penstock.connectors.files.formats import OutputFormat
from penstock.connectors.files.names import (
    Partition,
    claim_path,
    merged_path,
    record_path,
)
from penstock.connectors.files.parquet import ParquetPart
from penstock.core.ids import Epoch, checksum_of
from penstock.errors import CorruptStateError, ErrorCode
from penstock.operators.context import CommitContext, CommitPart
from penstock.state.storage.create import create_own
from penstock.state.storage.object_store import ObjectStore

_ROW_GROUP_BYTES = 16 << 20
"""Rows of several small files become one row group, which readers read faster."""


class StagedFile(msgspec.Struct, frozen=True):
    """A file in the staging area, and the name it gets in the commit."""

    staged: str
    path: str
    """The final name, relative to the sink's folder."""
    rows: int
    bytes: int
    checksum: str
    partition: Partition = ()
    epochs: tuple[EpochRows, ...] | msgspec.UnsetType = msgspec.UNSET
    """As in `ListedFile`."""

    def listed(self) -> ListedFile:
        """Return it as the list of its epoch names it."""
        return ListedFile(
            self.path, self.rows, self.bytes, self.checksum, self.partition, self.epochs
        )


Group: TypeAlias = tuple[StagedFile, ...]
"""Files of one partition that become one; most often of one file."""


class MergeOrder(msgspec.Struct, frozen=True):
    """What a part of a commit merges; the bytes of the part, as JSON."""

    format: OutputFormat
    schema: str
    """The columns of the files: an Arrow IPC schema in base64."""
    files: Group


def plan_groups(files: Sequence[StagedFile], merge_bytes: int) -> list[Group]:
    """Return which files become one: those of a partition, in their order, up to that size. Pure.

    With a size of 0 each file stays alone.
    """
    groups: list[list[StagedFile]] = []
    open_groups: dict[Partition, list[StagedFile]] = {}
    for file in files:
        group = open_groups.get(file.partition)
        if group is None or sum(each.bytes for each in group) + file.bytes > merge_bytes:
            group = open_groups[file.partition] = []
            groups.append(group)
        group.append(file)
    return [tuple(group) for group in groups]


def plan_parts(
    groups: Sequence[Group], form: OutputFormat, schema: str
) -> Iterator[CommitPart]:
    """Yield the parts of a commit: one for each group of several files. Pure."""
    for group in groups:
        if len(group) > 1:
            order = MergeOrder(form, schema, group)
            size_bytes = sum(file.bytes for file in group)
            yield CommitPart(msgspec.json.encode(order), size_bytes)


def run_merge(store: ObjectStore, epoch: Epoch, part: bytes, ctx: CommitContext) -> None:
    """Merge the files of a part and claim its place, unless another attempt has done so."""
    order = msgspec.json.decode(part, type=MergeOrder)
    first, claim = order.files[0], claim_path(order.files[0].staged)
    if _is_listed(store, epoch, ctx) or store.size(claim) is not None:
        return
    found = [store.read(file.staged) for file in order.files]
    pieces = [data for data in found if data is not None]
    if len(pieces) < len(found):
        if _is_listed(store, epoch, ctx):
            return  # its commit came to its end meanwhile, and has tidied up
        missing = order.files[found.index(None)].staged
        raise CorruptStateError(
            f"{missing!r} of {store.url} is missing, which epoch {epoch} of sink "
            f"{ctx.task.operator!r} staged and has not committed yet. If something removed it, "
            "restore it; its rows are lost otherwise",
            code=ErrorCode.OBJECT_MISSING,
            path=missing,
        )
    for file, data in zip(order.files, pieces, strict=True):
        if format_checksum(checksum_of(data)) != file.checksum:
            raise CorruptStateError(
                f"{file.staged!r} of {store.url} holds other bytes than epoch {epoch} staged. "
                "Nothing was committed. Restore the object if something changed it",
                code=ErrorCode.CHECKSUM_MISMATCH,
                path=file.staged,
            )
    merged = _merge(pieces, order)
    staged = merged_path(first.staged, ctx.attempt)
    create_own(store, staged, merged)
    counted = StagedFile(
        staged,
        first.path,
        sum(file.rows for file in order.files),
        len(merged),
        format_checksum(checksum_of(merged)),
        first.partition,
        join_epochs(
            chain.from_iterable(epochs_of(file, int(epoch)) for file in order.files),
            int(epoch),
        ),
    )
    # Whoever creates it first decides: the answer that another one was there is as good.
    create_own(store, claim, msgspec.json.encode(counted))


def find_merged(
    store: ObjectStore, group: Group, listed: CommittedEpoch | None
) -> StagedFile:
    """Return the file that a group became: the claim tells, or the list of the epoch."""
    first, rows = group[0], sum(file.rows for file in group)
    if listed is not None:
        for file in listed.files:
            if file.path == first.path and file.rows == rows:
                return StagedFile(
                    first.staged,
                    file.path,
                    file.rows,
                    file.bytes,
                    file.checksum,
                    file.partition,
                    file.epochs,
                )
        return first
    claim = claim_path(first.staged)
    data = store.read(claim)
    if data is None:
        raise CorruptStateError(
            f"{claim!r} of {store.url} is missing, which says what {first.path!r} was merged "
            "from. If something removed it, start the job again: the files are merged again",
            code=ErrorCode.OBJECT_MISSING,
            path=claim,
        )
    return msgspec.json.decode(data, type=StagedFile)


def _is_listed(store: ObjectStore, epoch: Epoch, ctx: CommitContext) -> bool:
    return store.size(record_path(epoch, ctx.task.operator)) is not None


def join_epochs(
    epochs: Iterable[EpochRows], epoch: int
) -> tuple[EpochRows, ...] | msgspec.UnsetType:
    """Return the epochs of rows in turn, each once in a row; not set if all are of this one."""
    grouped = groupby(epochs, lambda each: each[0])
    joined = tuple((one, sum(rows for _, rows in each)) for one, each in grouped)
    return msgspec.UNSET if all(one == epoch for one, _ in joined) else joined


def _merge(pieces: Sequence[bytes], order: MergeOrder) -> bytes:
    """Return the rows of several files as one, in their order."""
    if order.format == "jsonl":
        return b"".join(pieces)
    schema = schema_of(order.schema)
    merged = ParquetPart(schema)
    waiting: list[pa.Table] = []
    for data in pieces:
        # Without threads: those of Arrow sometimes abort a process that exits soon after.
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        waiting.append(to_types(file.read(use_threads=False), schema))
        if sum(rows.nbytes for rows in waiting) >= _ROW_GROUP_BYTES:
            merged.write(pa.concat_tables(waiting))
            waiting = []
    if waiting:
        merged.write(pa.concat_tables(waiting))
    return merged.close()
