"""OpenParts: the files that are open while an epoch runs, one per partition, bounded in memory.

Rows wait until they make a row group, row groups are encoded into the open file, and a file that
has reached its size is uploaded. What all open files hold is bounded, too: above the bound the
largest is encoded early, and uploaded early if that is not enough.

How a file is named, and how it is noted for the commit, its sink says.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import pyarrow as pa

from penstock.connectors.files.committed import EpochRows
from penstock.connectors.files.formats import OutputFormat
from penstock.connectors.files.jsonl import JsonLinesPart
from penstock.connectors.files.names import Partition, PartNames, split_rows
from penstock.connectors.files.parquet import ParquetPart
from penstock.operators.context import OperatorContext
from penstock.state.storage.object_store import ObjectStore

ROW_GROUP_BYTES = 16 * 1024**2
"""How many bytes of rows, as Arrow holds them, become a row group."""

BATCH_BYTES = 1024
"""About what a batch takes besides its rows, which matters if there are many partitions."""

PartWriter: TypeAlias = ParquetPart | JsonLinesPart
StagedFileT = TypeVar("StagedFileT")


@dataclass(slots=True)
class OpenPart:
    """The file of one partition that is being written, and the rows that wait for it."""

    writer: PartWriter | None = None
    """None before the first row group, because an open Parquet file takes memory of its own."""
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    encoded_bytes: int = 0
    rows: int = 0
    epochs: list[EpochRows] = field(default_factory=list)
    """The epochs of its rows in turn."""

    @property
    def held_bytes(self) -> int:
        """How much memory it takes."""
        return self.waiting_bytes + self.encoded_bytes


class OpenParts(ABC, Generic[StagedFileT]):
    """What one attempt of a subtask writes in one epoch. Dropped after the epoch."""

    def __init__(
        self,
        store: ObjectStore,
        ctx: OperatorContext,
        schema: pa.Schema,
        *,
        form: OutputFormat,
        target_bytes: int,
        partition_by: Sequence[str] = (),
    ) -> None:
        self.attempt = ctx.attempt
        """The attempt that these rows belong to; no other attempt at any epoch has its token."""
        self._format = form
        self._names = PartNames(ctx.task, ctx.generation, ctx.epoch, ctx.attempt, form)
        self._store = store
        self._schema = schema
        self._partition_by = tuple(partition_by)
        self._target_bytes = target_bytes
        # JSON lines may be several times larger than their rows; with small groups a file does
        # not exceed its size by much.
        self._group_bytes = min(ROW_GROUP_BYTES, max(1, target_bytes // 4))
        kept = [column for column in schema if column.name not in self._partition_by]
        self._file_schema = pa.schema(kept)
        self._open: defaultdict[Partition, OpenPart] = defaultdict(OpenPart)
        self._files: list[StagedFileT] = []
        self._held_bytes = 0
        self._epoch = self._adding = int(ctx.epoch)

    @abstractmethod
    def _stage(self, partition: Partition) -> StagedFileT:
        """Close the file of a partition, and create its object under a name that can be used."""

    def add(self, batch: pa.RecordBatch, epoch: int | None = None) -> None:
        """Add rows, of an earlier `epoch` if it is given; files that become full are uploaded."""
        self._adding = self._epoch if epoch is None else epoch
        for partition, rows in split_rows(batch, self._partition_by):
            piece_count = max(1, -(-rows.nbytes // self._group_bytes))
            step = max(1, -(-rows.num_rows // piece_count))
            for start in range(0, rows.num_rows, step):
                self._add(partition, rows.slice(start, step))

    def finish_files(self) -> tuple[StagedFileT, ...]:
        """Upload the open files and return all of them; none if there was no row."""
        for partition in list(self._open):
            self._upload(partition)
        return tuple(self._files)

    def _upload(self, partition: Partition) -> None:
        self._files.append(self._stage(partition))

    def _close(self, partition: Partition) -> tuple[OpenPart, bytes]:
        """Return the file of a partition, which is open no longer, and its bytes."""
        part = self._open.pop(partition)
        data = self._encode(part).close()
        self._held_bytes -= part.held_bytes
        return part, data

    def _add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        part = self._open[partition]
        size_bytes = rows.nbytes + BATCH_BYTES
        part.waiting.append(rows)
        part.waiting_bytes += size_bytes
        part.rows += rows.num_rows
        part.epochs.append((self._adding, rows.num_rows))
        self._held_bytes += size_bytes
        if part.waiting_bytes >= self._group_bytes:
            self._encode(part)
        if part.encoded_bytes >= self._target_bytes:
            self._upload(partition)
        while self._held_bytes > self._target_bytes + self._group_bytes:
            # The largest open file is encoded, or uploaded if most of it is encoded already.
            largest = max(self._open, key=lambda each: self._open[each].held_bytes)
            part = self._open[largest]
            if part.waiting_bytes > part.encoded_bytes:
                self._encode(part)
            else:
                self._upload(largest)

    def _encode(self, part: OpenPart) -> PartWriter:
        """Encode the rows that wait for a file, and return its writer."""
        if part.writer is None:
            is_parquet = self._format == "parquet"
            part.writer = ParquetPart(self._file_schema) if is_parquet else JsonLinesPart()
        if part.waiting:
            self._held_bytes -= part.held_bytes
            part.encoded_bytes = part.writer.write(pa.Table.from_batches(part.waiting))
            part.waiting, part.waiting_bytes = [], 0
            self._held_bytes += part.held_bytes
        return part.writer
