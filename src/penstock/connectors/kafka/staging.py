"""Staged records: what subtasks keep until their epoch is durable, and how its commit is divided.

Few bytes go into the commit data itself, which the checkpoint holds anyway. More go into objects
beside the checkpoints, created before the epoch is acknowledged:

    an object   records of shard 0 | records of shard 1 | …     each an Arrow IPC stream
    commit data topic, marker topic, shards, and for each shard where in which object

A **shard** is what one transaction commits. All records of a key are in one, in the order in
which their subtask had them; records without a key are in that of their subtask. The number of
shards is in the commit data, so whoever commits the epoch, at whatever parallelism, makes the
same transactions.

An epoch that is small everywhere is one transaction, of the shard `SMALL`, whichever keys it
has: a transaction costs more than its few records.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from penstock.connectors.files.names import PartNames
from penstock.connectors.files.output.staging import create_staged, decode_subtasks
from penstock.connectors.kafka.output_records import KEY
from penstock.core.ids import Epoch, checksum_of
from penstock.core.key_hash import hash_keys_uncut, owners_of
from penstock.errors import CorruptStateError, ErrorCode
from penstock.operators.context import CommitContext, CommitPart, OperatorContext
from penstock.state.storage.object_store import ObjectStore

SMALL = 0
"""The shard of epochs that are small everywhere; others have the shards 1, 2, …"""
SMALL_BYTES = 1 << 20
"""How much of all subtasks together is kept in the commit data."""
OBJECT_BYTES = 32 << 20
"""An object is written when so many bytes wait; there may be several per subtask and epoch."""

_IPC = pa.ipc.IpcWriteOptions(compression="lz4")


class StagedRange(msgspec.Struct, frozen=True, array_like=True):
    """The records of one shard in one object."""

    shard: int
    path: str
    start: int
    length: int
    checksum: int


class StagedRecords(msgspec.Struct, frozen=True):
    """What one subtask staged in one epoch: its commit data."""

    topic: str
    markers: str
    """The marker topic."""
    shards: int
    subtask: int
    rows: int
    inline: bytes | None = None
    """All records, of any shard; None if they are in objects."""
    ranges: tuple[StagedRange, ...] = ()
    version: int = 1


class ShardPart(msgspec.Struct, frozen=True):
    """What one transaction commits: the part that a task gets."""

    topic: str
    markers: str
    shard: int
    shards: int
    inline: tuple[bytes, ...]
    ranges: tuple[StagedRange, ...]


class EpochStaging:
    """What one attempt of a subtask stages in one epoch. Dropped after the epoch."""

    def __init__(
        self,
        ctx: OperatorContext,
        topic: str,
        markers: str,
        shards: int,
        *,
        small_bytes: int = SMALL_BYTES,
    ) -> None:
        self.attempt = ctx.attempt
        """The attempt that these records belong to; no other one has its token."""
        self._store = ctx.store
        self._subtask = ctx.task.subtask
        self._names = PartNames(ctx.task, ctx.generation, ctx.epoch, ctx.attempt, "arrow")
        self._topic, self._markers, self._shards = topic, markers, shards
        self._small_bytes = small_bytes // self._subtask.parallelism
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._objects = 0
        self._ranges: list[StagedRange] = []
        self._rows = 0
        self.bytes_staged = 0

    def add(self, records: pa.RecordBatch) -> None:
        """Add records; an object is written when enough of them wait."""
        self._waiting.append(records)
        self._waiting_bytes += records.nbytes
        self._rows += records.num_rows
        if self._waiting_bytes >= OBJECT_BYTES:
            self._write()

    def finish(self) -> bytes | None:
        """Return the commit data, after what it names is durable; None without records."""
        if not self._rows:
            return None
        inline = None
        if not self._ranges:
            inline = to_stream(self._waiting)
            if len(inline) > self._small_bytes:
                inline = None
        if inline is None:
            self._write()
        else:
            self.bytes_staged = len(inline)
        staged = StagedRecords(
            self._topic,
            self._markers,
            self._shards,
            self._subtask.index,
            self._rows,
            inline,
            tuple(self._ranges),
        )
        return msgspec.msgpack.encode(staged)

    def _write(self) -> None:
        if not self._waiting:
            return
        records = pa.Table.from_batches(self._waiting).combine_chunks().to_batches()
        self._waiting, self._waiting_bytes = [], 0
        path, _ = self._names.of_file(self._objects, "")
        self._objects += 1
        pieces: list[bytes] = []
        start = 0
        for shard, rows in split_by_shard(records, self._shards, self._subtask.index):
            data = to_stream(rows)
            pieces.append(data)
            self._ranges.append(
                StagedRange(shard, path, start, len(data), checksum_of(data))
            )
            start += len(data)
        create_staged(self._store, path, b"".join(pieces))
        self.bytes_staged += start


def split_by_shard(
    batches: Sequence[pa.RecordBatch], shards: int, subtask: int
) -> list[tuple[int, list[pa.RecordBatch]]]:
    """Return the records of each shard, in their order; shards count from 1."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for batch in batches:
        of_row = shards_of(batch, shards, subtask)
        for shard in np.unique(of_row).tolist():
            rows = np.flatnonzero(of_row == shard)
            whole = len(rows) == batch.num_rows
            taken = batch if whole else batch.take(rows)
            found.setdefault(shard, []).append(taken)
    return sorted(found.items())


def shards_of(
    records: pa.RecordBatch, shards: int, subtask: int
) -> "np.typing.NDArray[np.int64]":
    """Return the shard of each record, from 1: by its key, or by its subtask without one."""
    keys = records.column(KEY)
    found = owners_of(hash_keys_uncut([keys]), shards) + 1
    if keys.null_count:
        found[keys.is_null().to_numpy(zero_copy_only=False)] = subtask % shards + 1
    return found


def plan_parts(staged: Sequence[StagedRecords]) -> list[CommitPart]:
    """Return the transactions of an epoch, one part each, from the commit data alone. Pure."""
    groups: dict[tuple[str, str], list[StagedRecords]] = {}
    for each in staged:
        groups.setdefault((each.topic, each.markers), []).append(each)
    parts = [part for group in groups.values() for part in _plan_group(group)]
    return [
        CommitPart(
            msgspec.msgpack.encode(part),
            sum(map(len, part.inline)) + sum(each.length for each in part.ranges),
        )
        for part in parts
    ]


def _plan_group(staged: Sequence[StagedRecords]) -> Iterator[ShardPart]:
    first = staged[0]
    if all(each.inline is not None for each in staged):
        inline = tuple(each.inline for each in staged if each.inline is not None)
        yield ShardPart(first.topic, first.markers, SMALL, first.shards, inline, ())
        return
    kept: dict[int, list[bytes]] = {}
    ranges: dict[int, list[StagedRange]] = {}
    for each in staged:
        if each.inline is not None:
            batches = list(from_stream(each.inline))
            for shard, rows in split_by_shard(batches, each.shards, each.subtask):
                kept.setdefault(shard, []).append(to_stream(rows))
        for part in each.ranges:
            ranges.setdefault(part.shard, []).append(part)
    for shard in sorted(kept.keys() | ranges.keys()):
        yield ShardPart(
            first.topic,
            first.markers,
            shard,
            first.shards,
            tuple(kept.get(shard, ())),
            tuple(ranges.get(shard, ())),
        )


def decode_commit_data(
    of_subtask: Mapping[int, bytes], epoch: Epoch, ctx: CommitContext
) -> list[StagedRecords]:
    """Return what the subtasks staged in an epoch, in order of subtask."""
    decode = msgspec.msgpack.Decoder(StagedRecords).decode
    found = decode_subtasks(of_subtask, epoch, ctx, decode=decode, sink="Kafka")
    newer = [each.version for each in found if each.version > 1]
    if newer:
        raise CorruptStateError(
            f"the commit data of {ctx.task.operator!r} in epoch {epoch} has version {newer[0]}, "
            "which a later version of Penstock writes: commit it with that one",
            code=ErrorCode.NEWER_PROTOCOL,
        )
    return found


def read_part(part: ShardPart, store: ObjectStore) -> Iterator[pa.RecordBatch]:
    """Yield the records of a part; one object's range is in memory at a time."""
    for data in part.inline:
        yield from from_stream(data)
    for each in part.ranges:
        found = store.read_range(each.path, each.start, each.length)
        if found is None or checksum_of(found) != each.checksum:
            raise CorruptStateError(
                f"the staged records {each.path!r} in {store.url} are "
                f"{'missing' if found is None else 'damaged'}, and their epoch is acknowledged: "
                "restore the object if something removed it. Otherwise go back to an earlier "
                "epoch (restore=), which produces the rows again",
                code=ErrorCode.OBJECT_MISSING,
                path=each.path,
            )
        yield from from_stream(found)


def to_stream(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return records as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=_IPC) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def from_stream(data: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an Arrow IPC stream."""
    with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        yield from reader
