"""The files sink: Parquet or JSON lines, each row in exactly one committed file.

An epoch's rows are staged by its subtasks, durable before the epoch is acknowledged, and get
their final names in its commit. `files_layout` lists the names, `files_commit` says what a
crash at any step leads to. An epoch without rows writes nothing,
unless it is the first after a restore.

    {out}/day=2026-01-01/part-0000000007-hot-000-000.parquet
    {out}/_committed/0000000007-hot.json

A file may appear a moment before the rest of its epoch, and stays when a restore abandons its
epoch. Readers who want whole epochs, and each row once, follow the lists: `committed_files`
and `read_committed`. `files_restores` says how lists tell of restores.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from typing_extensions import override

from penstock.connectors.files.commit import (
    CommittedEpoch,
    ListedFile,
    StagedParts,
    abandoned_table,
    commit_files,
    decode_staged,
    encode_staged,
    follows_restore,
    note_abandoned,
    schema_hash,
    schema_of,
)
from penstock.connectors.files.encoding import Format, find_format_problems
from penstock.connectors.files.names import PartNames, find_partition_problems
from penstock.connectors.files.staging import EpochParts
from penstock.core.ids import Epoch
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import OperatorSpec, Plain
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import CommitContext, OperatorContext
from penstock.operators.operator import ArrowOperator, DisplayableOperator
from penstock.operators.registry import ConstructedOperator, OperatorConstructor, Registry
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import absolute_url, open_store
from penstock.state.tables.specs import TableSpec, global_table

DEFAULT_TARGET_BYTES = 128 * 1024**2
LARGEST_TARGET_BYTES = 4 * 1024**3
"""Stores copy and create objects of up to 5 GiB in one request."""

STAGED = "staged"
"""The table whose commit data names the files of an epoch."""

OpenStore: TypeAlias = Callable[..., ObjectStore]


def files_sink_spec(
    url: str,
    *,
    format: Format = "parquet",  # noqa: A002 (what users call it everywhere)
    partition_by: Sequence[str] = (),
    target_bytes: int = DEFAULT_TARGET_BYTES,
    store_options: Mapping[str, Plain] | None = None,
) -> OperatorSpec:
    """Write rows to files below `url`, exactly once.

    A folder is meant as seen from here, wherever subtasks run. With `partition_by` rows go
    to folders `column=value`, and the files do not hold these columns. A file is closed at
    about `target_bytes`, and at the end of the epoch.
    """
    problems = []
    if format not in ("parquet", "jsonl"):
        problems.append(f"format is {format!r}: use 'parquet' or 'jsonl'")
    if isinstance(partition_by, str):
        problems.append(f"partition_by is a text: write [{partition_by!r}]")
    if not 1 <= target_bytes <= LARGEST_TARGET_BYTES:
        problems.append(
            f"target_bytes is {target_bytes}: use 1 to {LARGEST_TARGET_BYTES} (4 GiB)"
        )
    if problems:
        raise UserError(
            f"files cannot be written to {url!r} like this: {'; '.join(problems)}",
            code=ErrorCode.INVALID_CONFIG,
        )
    return OperatorSpec(
        "files_sink",
        {
            "url": absolute_url(url),
            "format": format,
            "partition_by": tuple(partition_by),
            "target_bytes": target_bytes,
            "store_options": dict(store_options or {}),
        },
    )


@dataclass(frozen=True, slots=True)
class FilesSinkConfig:
    """The config of kind "files_sink"; see `files_sink_spec`."""

    url: str
    format: Format = "parquet"
    partition_by: tuple[str, ...] = ()
    target_bytes: int = DEFAULT_TARGET_BYTES
    store_options: dict[str, Any] = field(default_factory=dict)


class FilesSink(ArrowOperator):
    """Writes rows to files. Between epochs it holds nothing."""

    def __init__(self, config: FilesSinkConfig, open_output: OpenStore) -> None:
        self._config = config
        self._open_output = open_output
        self._store: ObjectStore | None = None
        self._parts: EpochParts | None = None

    @override
    def name(self) -> str:
        return "files_sink"

    @override
    def display(self) -> DisplayableOperator:
        facts = {"url": self._config.url, "format": self._config.format}
        if self._config.partition_by:
            facts["partition_by"] = ", ".join(self._config.partition_by)
        return DisplayableOperator("files_sink", facts)

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> None:
        """Refuse rows that the files could not hold; it is a sink and emits nothing."""
        config, schema = self._config, inputs[0].schema
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
        staged = global_table(STAGED, str, bytes, uses_two_phase_commit=True)
        return [staged, abandoned_table()]

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Encode the rows, and upload files that are full."""
        self._parts_of(ctx).add(batch)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Upload the rest; then the epoch's files are durable, and named in the commit data."""
        # An epoch after a restore has a list also without rows: readers learn of it there.
        if not self._has_parts_of(ctx) and not follows_restore(ctx):
            self._parts = None
            return
        parts, self._parts = self._parts_of(ctx), None
        staged = msgspec.structs.replace(parts.finish(), abandoned=note_abandoned(ctx))
        ctx.count("files_staged", len(staged.files))
        ctx.count("bytes_staged", sum(file.bytes for file in staged.files))
        ctx.insert_committing_data(STAGED, encode_staged(staged))

    @override
    def handle_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> None:
        """Give the files of all subtasks their final names, and list them."""
        of_subtask = commit_data.get(STAGED, {})
        where = f"the commit data of {ctx.task.operator!r} in epoch {epoch}"
        parts = [decode_staged(of_subtask[index], where) for index in sorted(of_subtask)]
        if parts:
            record = _record(epoch, parts, ctx)
            staged = [file for part in parts for file in part.files]
            commit_files(self._output(), ctx.task, record, staged)

    @override
    def release(self) -> None:
        """Let go of the store and of what an unfinished epoch held."""
        self._parts = self._store = None

    def _parts_of(self, ctx: OperatorContext) -> EpochParts:
        if self._parts is None or not self._has_parts_of(ctx):
            config = self._config
            names = PartNames(
                ctx.task, ctx.generation, ctx.epoch, ctx.attempt, config.format
            )
            self._parts = EpochParts(
                self._output(),
                names,
                ctx.inputs[0].schema,
                form=config.format,
                partition_by=config.partition_by,
                target_bytes=config.target_bytes,
            )
        return self._parts

    def _has_parts_of(self, ctx: OperatorContext) -> bool:
        """Tell whether this attempt has rows; those of one that was cut off do not count."""
        names = None if self._parts is None else self._parts.names
        return names is not None and (names.token, names.epoch) == (ctx.attempt, ctx.epoch)

    def _output(self) -> ObjectStore:
        if self._store is None:
            self._store = self._open_output(self._config.url, **self._config.store_options)
        return self._store


def _record(
    epoch: Epoch, parts: Sequence[StagedParts], ctx: CommitContext
) -> CommittedEpoch:
    first = parts[0]
    files = tuple(
        ListedFile(file.path, file.rows, file.bytes, file.checksum, file.partition)
        for part in parts
        for file in part.files
    )
    return CommittedEpoch(
        job=str(ctx.task.job),
        identity=str(ctx.identity),
        operator=str(ctx.task.operator),
        epoch=int(epoch),
        format=first.format,
        schema=first.schema,
        schema_hash=schema_hash(schema_of(first.schema)),
        partition_by=first.partition_by,
        rows=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
        files=files,
        abandoned=tuple(sorted({found for part in parts for found in part.abandoned})),
    )


class FilesSinkConstructor(OperatorConstructor[FilesSinkConfig]):
    """Builds files sinks. `open_output` opens their stores; tests give one that fails."""

    config_type = FilesSinkConfig

    def __init__(self, open_output: OpenStore = open_store) -> None:
        self._open_output = open_output

    @override
    def with_config(
        self, config: FilesSinkConfig, registry: Registry
    ) -> ConstructedOperator:
        return ConstructedOperator(FilesSink(config, self._open_output))
