"""Staging: the rows of one epoch of one subtask become files that no reader looks at.

A file per partition is open at a time. Rows wait until they make a row group, row groups are
encoded into the open file, and a file that has reached its size is uploaded. What all open
files hold is bounded, too: above the bound the largest is encoded early, and uploaded early
if that is not enough.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.connectors.files.commit import (
    StagedFile,
    StagedParts,
    checksum_text,
    schema_text,
)
from penstock.connectors.files.encoding import Format, PartWriter, open_part
from penstock.connectors.files.names import (
    Partition,
    PartNames,
    find_name_problem,
    partition_folder,
    split_rows,
)
from penstock.errors import (
    ErrorCode,
    StorageError,
    UserError,
)
from penstock.state.storage.create import create_own
from penstock.state.storage.object_store import ObjectStore

ROW_GROUP_BYTES = 16 * 1024**2
"""How many bytes of rows, as Arrow holds them, become a row group."""

BATCH_BYTES = 1024
"""About what a batch costs besides its rows: it counts when there are many partitions."""


@dataclass(slots=True)
class _OpenPart:
    """The file of one partition that is being written, and the rows that wait for it."""

    form: Format
    schema: pa.Schema
    writer: PartWriter | None = None
    """None before the first row group: an open Parquet file costs memory of its own."""
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    rows: int = 0

    @property
    def encoded_bytes(self) -> int:
        return 0 if self.writer is None else self.writer.size_bytes

    @property
    def held_bytes(self) -> int:
        return self.waiting_bytes + self.encoded_bytes

    def add(self, rows: pa.RecordBatch) -> None:
        self.waiting.append(rows)
        self.waiting_bytes += rows.nbytes + BATCH_BYTES
        self.rows += rows.num_rows

    def encode(self) -> PartWriter:
        if self.writer is None:
            self.writer = open_part(self.form, self.schema)
        waiting, self.waiting, self.waiting_bytes = self.waiting, [], 0
        if waiting:
            self.writer.write(pa.Table.from_batches(waiting))
        return self.writer


class EpochParts:
    """What one attempt of a subtask stages in one epoch. Dropped after the epoch."""

    def __init__(
        self,
        store: ObjectStore,
        names: PartNames,
        schema: pa.Schema,
        *,
        form: Format,
        partition_by: Sequence[str],
        target_bytes: int,
    ) -> None:
        self.names = names
        self._store = store
        self._schema = schema
        self._format: Format = form
        self._partition_by = tuple(partition_by)
        self._target_bytes = target_bytes
        # Text may be some times larger than its rows; a file should not exceed its size by much.
        self._group_bytes = min(ROW_GROUP_BYTES, max(1, target_bytes // 4))
        kept = [field for field in schema if field.name not in self._partition_by]
        self._file_schema = pa.schema(kept)
        self._open: dict[Partition, _OpenPart] = {}
        self._files: list[StagedFile] = []
        self._held_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; files that are full are uploaded on the way."""
        for partition, rows in split_rows(batch, self._partition_by):
            for piece in _pieces(rows, self._group_bytes):
                self._add(partition, piece)

    def finish(self) -> StagedParts:
        """Upload what is still open; return what was staged, no files if there was no row."""
        for partition in list(self._open):
            self._upload(partition)
        return StagedParts(
            self._format, schema_text(self._schema), self._partition_by, tuple(self._files)
        )

    def _add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        part = self._open.get(partition)
        if part is None:
            part = self._open[partition] = _OpenPart(self._format, self._file_schema)
        before = part.held_bytes
        part.add(rows)
        if part.waiting_bytes >= self._group_bytes:
            part.encode()
        self._held_bytes += part.held_bytes - before
        if part.encoded_bytes >= self._target_bytes:
            self._upload(partition)
        while self._held_bytes > self._target_bytes + self._group_bytes:
            self._shrink()

    def _shrink(self) -> None:
        """Let the largest of the open files take less: encode its rows, or else upload it."""
        partition, part = max(self._open.items(), key=lambda item: item[1].held_bytes)
        if part.waiting_bytes > part.encoded_bytes:
            before = part.held_bytes
            part.encode()
            self._held_bytes += part.held_bytes - before
        else:
            self._upload(partition)

    def _upload(self, partition: Partition) -> None:
        part = self._open.pop(partition)
        self._held_bytes -= part.held_bytes
        seq = len(self._files)
        final = self._final(seq, partition)
        data = part.encode().close()
        staged = self.names.staged(seq)
        checksum = checksum_text(data)
        if create_own(self._store, staged, data) is not None:
            raise StorageError(
                f"{staged!r} in {self._store.url} was to be created and holds something else: "
                "its name is drawn at random, so something else writes below _staging. Keep it "
                "away",
                code=ErrorCode.FOREIGN_OBJECT,
                path=staged,
            )
        self._files.append(
            StagedFile(staged, final, part.rows, len(data), checksum, partition)
        )

    def _final(self, seq: int, partition: Partition) -> str:
        """Return a final name. What cannot have it is refused now: a commit cannot go back."""
        folder = partition_folder(self._partition_by, partition)
        final = self.names.final(seq, folder)
        problem = find_name_problem(self._partition_by, partition, final)
        if problem is not None:
            raise UserError(
                f"rows cannot be written by partition_by: {problem}. Shorten the value before "
                "the sink, or partition by another column",
                code=ErrorCode.INVALID_NAME,
                path=final,
            )
        return final


def _pieces(rows: pa.RecordBatch, size_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in pieces of about this size."""
    count = max(1, -(-rows.nbytes // size_bytes))
    step = max(1, -(-rows.num_rows // count))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)
