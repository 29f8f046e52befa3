"""The files sink: Parquet or JSON lines, each row in exactly one committed file.

Subtasks stage the rows of an epoch as files that no reader looks at. They are durable before
the epoch is acknowledged, and its commit gives them their final names. `names` has all names,
`commit` the order of its steps and what a crash between them leads to. An epoch without rows
writes nothing, unless it is the first after a restore, or the last of a job that had no row at
all: so a finished job has at least one list, which tells its columns.

    {out}/day=2026-01-01/part-0000000007-hot-000-000.parquet
    {out}/_committed/0000000007-hot.json

A file may appear a moment before the rest of its epoch, and stays when a restore abandons its
epoch. To see whole epochs, and each row once, a reader follows the lists, as `committed_files`
and `read_committed` do.

While an epoch runs, one file per partition is open. Rows wait until they make a row group,
row groups are encoded into the open file, and a file that has reached its size is uploaded.
What all open files hold is bounded, too: above the bound the largest is encoded early, and
uploaded early if that is not enough.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import msgspec
import pyarrow as pa
from typing_extensions import override

from penstock.connectors.files.commit import (
    ABANDONED,
    StagedFile,
    StagedParts,
    commit_files,
    decode_staged,
    find_abandoned,
    warn_of_lost_output,
)
from penstock.connectors.files.committed import format_checksum, schema_text
from penstock.connectors.files.discovery import FilePattern
from penstock.connectors.files.formats import OutputFormat
from penstock.connectors.files.jsonl import JsonLinesPart, find_json_problems
from penstock.connectors.files.names import (
    COMMITTED,
    Partition,
    PartNames,
    find_name_problem,
    find_partition_problems,
    partition_folder,
    read_record_name,
    split_rows,
)
from penstock.connectors.files.parquet import ParquetPart, find_parquet_problems
from penstock.core.ids import Epoch, checksum_of
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier, EndOfData, Stop
from penstock.errors import ErrorCode, SchemaError, StateError, StorageError, UserError
from penstock.operators.context import (
    ArrowCollector,
    CommitContext,
    OperatorContext,
    StartContext,
)
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.state.storage.create import create_own
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from penstock.state.tables.specs import TableSpec, global_table

DEFAULT_TARGET_BYTES = 128 * 1024**2
LARGEST_TARGET_BYTES = 4 * 1024**3
"""The largest file: stores copy and create objects of up to 5 GiB in one request."""

ROW_GROUP_BYTES = 16 * 1024**2
"""How many bytes of rows, as Arrow holds them, become a row group."""

BATCH_BYTES = 1024
"""About what a batch takes besides its rows, which matters if there are many partitions."""

STAGED = "staged"
"""The table whose commit data names the files of an epoch."""


@dataclass(frozen=True, slots=True, repr=False)
class FilesSinkConfig(OperatorConfig):
    """The config of kind "files_sink": rows go to files below `url`, exactly once."""

    kind: ClassVar[str] = "files_sink"

    url: str
    """Absolute, because subtasks may have another working folder."""
    format: OutputFormat = "parquet"
    partition_by: Sequence[str] = ()
    """Rows go to folders `column=value`, and the files do not hold these columns."""
    target_bytes: int = DEFAULT_TARGET_BYTES
    """A file is closed at about this size, and at the end of the epoch."""
    store_options: Mapping[str, Any] = field(default_factory=dict)
    """What `open_store` takes for the store's kind."""

    def __post_init__(self) -> None:
        """Refuse a config that cannot work, with all problems at once."""
        problems = []
        if self.format not in ("parquet", "jsonl"):
            problems.append(f"format is {self.format!r}: use 'parquet' or 'jsonl'")
        if isinstance(self.partition_by, str):
            problems.append(f"partition_by is a text: write [{self.partition_by!r}]")
        if not 1 <= self.target_bytes <= LARGEST_TARGET_BYTES:
            problems.append(
                f"target_bytes is {self.target_bytes}: use 1 to {LARGEST_TARGET_BYTES} (4 GiB)"
            )
        if problems:
            raise UserError(
                f"files cannot be written to {self.url!r} like this: {'; '.join(problems)}",
                code=ErrorCode.INVALID_CONFIG,
            )
        object.__setattr__(self, "partition_by", tuple(self.partition_by))

    @override
    def shown(self) -> Mapping[str, str]:
        facts = {"url": self.url, "format": self.format}
        if self.partition_by:
            facts["partition_by"] = ", ".join(self.partition_by)
        return facts


class FilesSink(Configured[FilesSinkConfig], ArrowOperator):
    """Writes rows to files. It opens its store once, and keeps it until `release`."""

    def __init__(
        self, config: FilesSinkConfig, open_output: Callable[..., ObjectStore] = open_store
    ) -> None:
        super().__init__(config)
        self._open_output = open_output
        self._opened: ObjectStore | None = None
        self._parts: EpochParts | None = None
        self._has_ended = False
        self._listed: Epoch | None = None
        """On the driver: the epoch whose list this instance has seen last."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> None:
        """Refuse rows that the files could not hold; it is a sink and emits nothing."""
        config, schema = self.config, inputs[0].arrow
        problems = find_partition_problems(config.partition_by, schema)
        kept = [column for column in schema if column.name not in config.partition_by]
        if kept or not schema.names:
            problems += find_format_problems(config.format, pa.schema(kept))
        if problems:
            raise SchemaError(
                f"the rows cannot be written to {config.url}:\n  " + "\n  ".join(problems),
                problems=tuple(problems),
            )

    @override
    def tables(self) -> Sequence[TableSpec]:
        return [
            global_table(STAGED, str, bytes, uses_two_phase_commit=True),
            # The start of each range of abandoned epochs, by its end.
            global_table(ABANDONED, int, int),
        ]

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Encode the rows, and upload files that are full."""
        # Rows of an attempt that did not finish must not get into the next one.
        if self._parts is None or self._parts.attempt != ctx.attempt:
            self._parts = EpochParts(self._store, ctx, ctx.inputs[0].arrow, self.config)
        self._parts.add(batch)

    @override
    def on_close(
        self, final: Stop | EndOfData, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Remember whether the data has ended: the last epoch may need a list without rows."""
        self._has_ended = isinstance(final, EndOfData)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Upload the rest, then name the files, which are durable by then, in the commit data."""
        parts, self._parts = self._parts, None
        abandoned = find_abandoned(ctx)
        if parts is None or parts.attempt != ctx.attempt:
            # The first epoch after a restore writes its list even without rows: the list is
            # how readers find out which epochs were abandoned.
            is_first = any(end == ctx.epoch for _, end in abandoned)
            is_last = self._has_ended and ctx.task.subtask.index == 0
            if not is_first and not is_last:
                return
            parts = EpochParts(self._store, ctx, ctx.inputs[0].arrow, self.config)
        staged = msgspec.structs.replace(parts.finish(), abandoned=abandoned)
        ctx.count("files_staged", len(staged.files))
        ctx.count("bytes_staged", sum(file.bytes for file in staged.files))
        ctx.insert_committing_data(STAGED, msgspec.json.encode(staged))

    @override
    def handle_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> None:
        """Give the files of all subtasks their final names, and list them."""
        parts = decode_staged(commit_data.get(STAGED, {}), epoch, ctx)
        if parts:
            if self._listed not in (None, epoch):
                warn_of_lost_output(self._store, self._listed, ctx.task)
            commit_files(self._store, epoch, parts, ctx)
            self._listed = epoch

    @override
    def check_output(self, ctx: StartContext) -> None:
        """Refuse a folder that lists epochs which this job has yet to commit."""
        if FilePattern(self.config.url, "").has_folder():
            check_unknown_epochs(self._store, ctx)

    @override
    def release(self) -> None:
        """Drop the store and what an unfinished epoch held."""
        self._parts = self._opened = None

    @property
    def _store(self) -> ObjectStore:
        if self._opened is None:
            self._opened = self._open_output(self.config.url, **self.config.store_options)
        return self._opened


def check_unknown_epochs(store: ObjectStore, ctx: StartContext) -> None:
    """Refuse output of epochs that the checkpoint does not know, before the job writes any.

    Their numbers would be used again: the commit of the first of them would fail, and its
    epoch be acknowledged by then.
    """
    names = ((info.path, read_record_name(info.path)) for info in store.list(COMMITTED))
    found = {
        name[0]: path
        for path, name in names
        if name is not None and name[1] == ctx.task.operator
    }
    # In this order: a driver that still runs acknowledges an epoch before it commits it.
    last = ctx.read_last_epoch() if found else 0
    unknown = sorted(epoch for epoch in found if epoch > last)
    if not unknown:
        return
    job, step = ctx.task.job, ctx.task.operator
    known = f"knows none after {last}" if last else "has none of this job"
    writer = _read_writer(store, found[unknown[-1]])
    reason = "the checkpoints were deleted, or are not the ones that belong to this output"
    if writer not in (None, job):
        reason = f"job {writer!r} has written them"
    raise StateError(
        f"step {step!r} of job {job!r} writes to {store.url}, which lists {len(unknown)} "
        f"epoch(s) of a step of this name from {unknown[0]} to {unknown[-1]}, and the "
        f"checkpoint {known}: {reason}. Nothing was changed. Name the checkpoints that belong "
        "to the output, or write to another folder, or remove the old output to write it anew",
        code=ErrorCode.FOREIGN_OBJECT,
        operator=str(step),
        url=store.url,
    )


class _Writer(msgspec.Struct):
    """The part of a list that tells who wrote it."""

    job: str


def _read_writer(store: ObjectStore, path: str) -> str | None:
    """Return the job that wrote a list; None if that cannot be told."""
    try:
        return msgspec.json.decode(store.read(path) or b"", type=_Writer).job
    except (msgspec.MsgspecError, ValueError):
        return None


def find_format_problems(form: OutputFormat, schema: pa.Schema) -> list[str]:
    """Return what of this schema the format cannot hold."""
    if not schema.names:
        return ["the rows have no columns: a file needs one at least"]
    return find_json_problems(schema) if form == "jsonl" else find_parquet_problems(schema)


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

    @property
    def held_bytes(self) -> int:
        return self.waiting_bytes + self.encoded_bytes


class EpochParts:
    """What one attempt of a subtask stages in one epoch. Dropped after the epoch."""

    def __init__(
        self,
        store: ObjectStore,
        ctx: OperatorContext,
        schema: pa.Schema,
        config: FilesSinkConfig,
    ) -> None:
        self.attempt = ctx.attempt
        """The attempt that these rows belong to; no other attempt at any epoch has its token."""
        self._format = form = config.format
        self._names = PartNames(ctx.task, ctx.generation, ctx.epoch, ctx.attempt, form)
        self._store = store
        self._schema = schema
        self._partition_by = tuple(config.partition_by)
        self._target_bytes = config.target_bytes
        # JSON lines may be several times larger than their rows; with small groups a file does
        # not exceed its size by much.
        self._group_bytes = min(ROW_GROUP_BYTES, max(1, config.target_bytes // 4))
        kept = [field for field in schema if field.name not in self._partition_by]
        self._file_schema = pa.schema(kept)
        self._open: defaultdict[Partition, _OpenPart] = defaultdict(_OpenPart)
        self._files: list[StagedFile] = []
        self._held_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; files that become full are uploaded."""
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
        problem = find_name_problem(self._partition_by, partition, final)
        # A name that cannot be used is refused here: once acknowledged, an epoch must commit.
        if problem is not None:
            raise UserError(
                f"rows cannot be written by partition_by: {problem}. Shorten the value before "
                "the sink, or partition by another column",
                code=ErrorCode.INVALID_NAME,
                path=final,
            )
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
            StagedFile(staged, final, part.rows, len(data), checksum, partition)
        )
