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

from penstock.connectors.files.committed import EpochRange
from penstock.connectors.files.discovery import FilePattern
from penstock.connectors.files.formats import OutputFormat
from penstock.connectors.files.names import find_partition_problems
from penstock.connectors.files.output.commit import (
    check_unknown_epochs,
    commit_files,
    groups_of,
    warn_of_lost_output,
)
from penstock.connectors.files.output.merging import plan_parts, run_merge
from penstock.connectors.files.output.parts import (
    EpochParts,
    StagedParts,
    check_rows,
    decode_staged,
)
from penstock.connectors.files.output.parts_sink import (
    DEFAULT_TARGET_BYTES,
    PartsConfig,
    PartsSink,
)
from penstock.connectors.files.output.staging import STAGED
from penstock.connectors.files.parquet import find_parquet_problems
from penstock.connectors.formats.json_text import find_json_problems
from penstock.core.ids import Epoch
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.operators.context import (
    ArrowCollector,
    CommitContext,
    CommitPart,
    OperatorContext,
    StartContext,
)
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store


@dataclass(frozen=True, slots=True, repr=False)
class FilesSinkConfig(PartsConfig):
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
        problems += self.find_parts_problems()
        if problems:
            raise UserError(
                f"files cannot be written to {self.url!r} like this: {'; '.join(problems)}",
                code=ErrorCode.INVALID_CONFIG,
            )
        object.__setattr__(self, "partition_by", tuple(self.partition_by))

    @override
    def shown(self) -> Mapping[str, str]:
        return {"url": self.url, "format": self.format} | self.shown_parts()


class FilesSink(PartsSink[FilesSinkConfig, EpochParts]):
    """Writes rows to files. It opens its store once, and keeps it until `release`."""

    def __init__(
        self, config: FilesSinkConfig, open_output: Callable[..., ObjectStore] = open_store
    ) -> None:
        super().__init__(config, open_output)
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
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Encode the rows, and upload files that are full; or let them wait."""
        config = self.config
        if config.patience is not None:
            check_rows(batch, ctx, form=config.format, partition_by=config.partition_by)
        super().process_batch(batch, ctx, collector)

    @override
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

    @override
    def _finish(
        self,
        parts: EpochParts | None,
        abandoned: tuple[EpochRange, ...],
        ctx: OperatorContext,
        *,
        is_needed: bool,
    ) -> StagedParts | None:
        """Return what was staged: also without files, if a list is to be written."""
        if parts is None and not is_needed:
            return None
        return msgspec.structs.replace(
            (parts or self._new_parts(ctx)).finish(),
            abandoned=abandoned,
            merge_bytes=0 if self.config.patience is None else self.config.target_bytes,
        )

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


def find_format_problems(form: OutputFormat, schema: pa.Schema) -> list[str]:
    """Return what of this schema the format cannot hold."""
    if not schema.names:
        return ["the rows have no columns: a file needs one at least"]
    return find_json_problems(schema) if form == "jsonl" else find_parquet_problems(schema)
