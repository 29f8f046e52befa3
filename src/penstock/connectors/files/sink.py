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

With `min_bytes` or `visible_after` rows of several epochs become visible together, in few files:
`waiting` holds rows back, and `merging` makes one file of what several subtasks have staged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
from typing_extensions import override

from penstock.connectors.files.discovery import FilePattern
from penstock.connectors.files.formats import OutputFormat
from penstock.connectors.files.names import (
    find_partition_problems,
)
from penstock.connectors.files.output.commit import (
    ABANDONED,
    check_unknown_epochs,
    commit_files,
    decode_staged,
    find_abandoned,
    groups_of,
    warn_of_lost_output,
)
from penstock.connectors.files.output.merging import (
    plan_parts,
    run_merge,
)
from penstock.connectors.files.output.parts import EpochParts, check_rows
from penstock.connectors.files.output.waiting import Patience, WaitingRows, waiting_tables
from penstock.connectors.files.parquet import find_parquet_problems
from penstock.connectors.formats.json_text import find_json_problems
from penstock.core.figures import show_duration
from penstock.core.ids import Epoch
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier, EndOfData, Stop
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.operators.context import (
    ArrowCollector,
    CommitContext,
    CommitPart,
    OperatorContext,
    StartContext,
)
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.secret_options import usable_options
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from penstock.state.tables.specs import TableSpec, global_table

DEFAULT_TARGET_BYTES = 128 * 1024**2
LARGEST_TARGET_BYTES = 4 * 1024**3
"""The largest file: stores copy and create objects of up to 5 GiB in one request."""

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
    min_bytes: int | None = None
    """Rows wait until about so many bytes of them do."""
    visible_after_micros: int | None = None
    """Rows wait no longer than this."""
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
        if self.min_bytes is not None and self.min_bytes < 1:
            problems.append(f"min_bytes is {self.min_bytes}: use 1 or more")
        if self.visible_after_micros is not None and self.visible_after_micros < 1:
            problems.append("visible_after is 0: leave it out to see every epoch at once")
        if problems:
            raise UserError(
                f"files cannot be written to {self.url!r} like this: {'; '.join(problems)}",
                code=ErrorCode.INVALID_CONFIG,
            )
        object.__setattr__(self, "partition_by", tuple(self.partition_by))

    @property
    def patience(self) -> Patience | None:
        """How long rows wait to be written with others; None if they do not."""
        if self.min_bytes is None and self.visible_after_micros is None:
            return None
        return Patience(self.min_bytes, self.visible_after_micros)

    @override
    def shown(self) -> Mapping[str, str]:
        facts = {"url": self.url, "format": self.format}
        if self.partition_by:
            facts["partition_by"] = ", ".join(self.partition_by)
        if self.min_bytes is not None:
            facts["min_bytes"] = str(self.min_bytes)
        if self.visible_after_micros is not None:
            facts["visible_after"] = show_duration(self.visible_after_micros)
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
        self._waiting: WaitingRows | None = None
        self._has_ended = self._closes = False
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
            *waiting_tables(),
        ]

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Encode the rows, and upload files that are full."""
        # Rows of an attempt that did not finish must not get into the next one.
        config = self.config
        if config.patience is not None:
            check_rows(batch, ctx, form=config.format, partition_by=config.partition_by)
            if self._waiting is None or self._waiting.attempt != ctx.attempt:
                self._waiting = WaitingRows(ctx, ctx.inputs[0].arrow)
            self._waiting.add(batch)
            return
        if self._parts is None or self._parts.attempt != ctx.attempt:
            self._parts = self._new_parts(ctx)
        self._parts.add(batch)

    @override
    def on_close(
        self, final: Stop | EndOfData, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Remember that nothing follows in this run, and whether the data has ended.

        The last epoch may need a list without rows.
        """
        self._closes, self._has_ended = True, isinstance(final, EndOfData)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Upload the rest, then name the files, which are durable by then, in the commit data.

        Rows that may wait go into the state instead.
        """
        parts, waiting = self._parts, self._waiting
        self._parts = self._waiting = None
        schema, patience = ctx.inputs[0].arrow, self.config.patience
        if waiting is None or waiting.attempt != ctx.attempt:
            waiting = WaitingRows(ctx, schema)
        abandoned = find_abandoned(ctx)
        # The first epoch after a restore writes its list even without rows: the list is how
        # readers find out which epochs were abandoned. What these had shown is shown again.
        is_first = any(end == ctx.epoch for _, end in abandoned)
        closes = self._closes or barrier.then_stop
        if patience is not None and not (is_first or closes or waiting.is_over(patience)):
            waiting.keep(patience)
            return
        has_waited = waiting.has_rows
        if parts is None or parts.attempt != ctx.attempt:
            is_last = self._has_ended and ctx.task.subtask.index == 0
            if not has_waited and not is_first and not is_last:
                return
            parts = self._new_parts(ctx)
        for epoch, rows in waiting.release():
            parts.add(rows, epoch)
        staged = msgspec.structs.replace(
            parts.finish(),
            abandoned=abandoned,
            merge_bytes=0 if patience is None else self.config.target_bytes,
        )
        ctx.count("files_staged", len(staged.files))
        ctx.count("bytes_staged", sum(file.bytes for file in staged.files))
        ctx.insert_committing_data(STAGED, msgspec.json.encode(staged))

    @override
    def plan_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> Sequence[CommitPart]:
        """Merge files of several subtasks, if rows have waited to be written together."""
        parts = decode_staged(commit_data.get(STAGED, {}), epoch, ctx)
        if not parts:
            return ()
        first = parts[0]
        return [*plan_parts(groups_of(parts), first.format, first.file_schema)]

    @override
    def handle_commit_part(self, epoch: Epoch, part: bytes, ctx: CommitContext) -> None:
        run_merge(self._store, epoch, part, ctx)

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
        self._parts = self._waiting = self._opened = None

    def _new_parts(self, ctx: OperatorContext) -> EpochParts:
        config = self.config
        return EpochParts(
            self._store,
            ctx,
            ctx.inputs[0].arrow,
            form=config.format,
            partition_by=config.partition_by,
            target_bytes=config.target_bytes,
        )

    @property
    def _store(self) -> ObjectStore:
        if self._opened is None:
            options = usable_options(self.config.store_options)
            self._opened = self._open_output(self.config.url, **options)
        return self._opened


def find_format_problems(form: OutputFormat, schema: pa.Schema) -> list[str]:
    """Return what of this schema the format cannot hold."""
    if not schema.names:
        return ["the rows have no columns: a file needs one at least"]
    return find_json_problems(schema) if form == "jsonl" else find_parquet_problems(schema)
