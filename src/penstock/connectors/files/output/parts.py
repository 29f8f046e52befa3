"""EpochParts: the files that one attempt of a subtask stages in one epoch, bounded in memory.

While an epoch runs, one file per partition is open. Rows wait until they make a row group,
row groups are encoded into the open file, and a file that has reached its size is uploaded.
What all open files hold is bounded, too: above the bound the largest is encoded early, and
uploaded early if that is not enough.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from penstock.connectors.files.committed import EpochRows, format_checksum, schema_text
from penstock.connectors.files.formats import OutputFormat
from penstock.connectors.files.jsonl import JsonLinesPart
from penstock.connectors.files.names import (
    Partition,
    PartNames,
    find_name_problem,
    partition_folder,
    split_rows,
)
from penstock.connectors.files.output.commit import StagedParts
from penstock.connectors.files.output.merging import StagedFile, join_epochs
from penstock.connectors.files.parquet import ParquetPart, check_parquet_values
from penstock.connectors.formats.json_text import check_json_values
from penstock.core.ids import checksum_of
from penstock.errors import ErrorCode, StorageError, UserError
from penstock.operators.context import OperatorContext
from penstock.state.storage.create import create_own
from penstock.state.storage.object_store import ObjectStore

ROW_GROUP_BYTES = 16 * 1024**2
"""How many bytes of rows, as Arrow holds them, become a row group."""

BATCH_BYTES = 1024
"""About what a batch takes besides its rows, which matters if there are many partitions."""

PartWriter: TypeAlias = ParquetPart | JsonLinesPart


@dataclass(slots=True)
class _OpenPart:
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
        return self.waiting_bytes + self.encoded_bytes


def check_rows(
    batch: pa.RecordBatch,
    ctx: OperatorContext,
    *,
    form: OutputFormat,
    partition_by: Sequence[str] = (),
) -> None:
    """Raise `UserError` for rows that no file could hold.

    Rows that wait are acknowledged before a file is written: such a row could then neither be
    written nor be mended.
    """
    names = PartNames(ctx.task, ctx.generation, ctx.epoch, ctx.attempt, form)
    for partition, _ in split_rows(batch, partition_by):
        _, final = names.of_file(0, partition_folder(partition_by, partition))
        _check_name(partition_by, partition, final)
    kept = pa.Table.from_batches([batch.drop_columns(list(partition_by))])
    check = check_parquet_values if form == "parquet" else check_json_values
    check(kept)


def _check_name(partition_by: Sequence[str], partition: Partition, final: str) -> None:
    problem = find_name_problem(partition_by, partition, final)
    if problem is not None:
        raise UserError(
            f"rows cannot be written by partition_by: {problem}. Shorten the value before "
            "the sink, or partition by another column",
            code=ErrorCode.INVALID_NAME,
            path=final,
        )


class EpochParts:
    """What one attempt of a subtask stages in one epoch. Dropped after the epoch."""

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
        kept = [field for field in schema if field.name not in self._partition_by]
        self._file_schema = pa.schema(kept)
        self._open: defaultdict[Partition, _OpenPart] = defaultdict(_OpenPart)
        self._files: list[StagedFile] = []
        self._held_bytes = 0
        self._epoch = self._adding = int(ctx.epoch)

    def add(self, batch: pa.RecordBatch, epoch: int | None = None) -> None:
        """Add rows, of an earlier `epoch` if it is given; files that become full are uploaded."""
        self._adding = self._epoch if epoch is None else epoch
        for partition, rows in split_rows(batch, self._partition_by):
            piece_count = max(1, -(-rows.nbytes // self._group_bytes))
            step = max(1, -(-rows.num_rows // piece_count))
            for start in range(0, rows.num_rows, step):
                self._add(partition, rows.slice(start, step))

    def finish(self) -> StagedParts:
        """Upload the open files and return what was staged: no files if there was no row."""
        for partition in list(self._open):
            self._upload(partition)
        return StagedParts(
            self._format, schema_text(self._schema), self._partition_by, tuple(self._files)
        )

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

    def _encode(self, part: _OpenPart) -> PartWriter:
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

    def _upload(self, partition: Partition) -> None:
        part = self._open.pop(partition)
        folder = partition_folder(self._partition_by, partition)
        staged, final = self._names.of_file(len(self._files), folder)
        # A name that cannot be used is refused here: once acknowledged, an epoch must commit.
        _check_name(self._partition_by, partition, final)
        data = self._encode(part).close()
        self._held_bytes -= part.held_bytes
        if create_own(self._store, staged, data) is not None:
            raise StorageError(
                f"{staged!r} in {self._store.url} was to be created and holds something else: "
                "its name is drawn at random, so something else writes below _staging. Keep it "
                "away",
                code=ErrorCode.FOREIGN_OBJECT,
                path=staged,
            )
        checksum = format_checksum(checksum_of(data))
        self._files.append(
            StagedFile(
                staged,
                final,
                part.rows,
                len(data),
                checksum,
                partition,
                join_epochs(part.epochs, self._epoch),
            )
        )
