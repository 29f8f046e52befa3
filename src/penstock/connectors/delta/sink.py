"""The Delta sink: rows are appended to a table, or merged into it, each exactly once.

Subtasks write the rows of an epoch as data files below the table's folder. They are durable before
the epoch is acknowledged, and no part of the table before its commit, which the driver makes: see
`commit`. Of a changelog they write changes, which the driver merges: see `merging`.

    {table}/day=2026-01-01/part-0000000007-hot-000-000-{token}.parquet      appended
    {table}/_staging/{job}/…                                                 to be merged
    {table}/_delta_log/00000000000000000012.json                             the version

With `min_bytes` or `visible_after` rows wait in the state, as those of the files sink do, and become
visible together in fewer files. An epoch without rows makes no version, unless it is the first
after a restore. The last of a job makes a table if there is none, which tells its columns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import msgspec
import pyarrow as pa
from typing_extensions import override

from penstock.connectors.delta.columns import (
    find_folder_problems,
    find_type_problems,
    to_delta_schema,
)
from penstock.connectors.delta.commit import (
    WRITTEN,
    EpochCommit,
    TableRules,
    app_of,
    append,
    began_table,
    check_start,
    find_began,
    misfit,
    name_of_written,
    written_table,
)
from penstock.connectors.delta.marks import Began, Mark
from penstock.connectors.delta.merging import (
    DEFAULT_MERGE_BYTES,
    check_nothing_waits,
    find_merge_problems,
    merge,
    to_merged,
)
from penstock.connectors.delta.parts import (
    ChangeParts,
    EpochParts,
    StagedFile,
    check_rows,
)
from penstock.connectors.delta.reversal import reversing
from penstock.connectors.delta.table import CommitOutcome, DeltaTables, OpenTable
from penstock.connectors.files.committed import EpochRange, schema_of, schema_text
from penstock.connectors.files.names import find_partition_problems
from penstock.connectors.files.output.parts_sink import (
    DEFAULT_TARGET_BYTES,
    PartsConfig,
    PartsSink,
)
from penstock.connectors.files.output.staging import STAGED, decode_subtasks, tidy_staging
from penstock.connectors.files.output.waiting import WAITS, waits_table
from penstock.core.ids import Epoch
from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.core.watermark import CheckpointBarrier
from penstock.errors import CorruptStateError, ErrorCode, SchemaError, UserError
from penstock.operators.context import (
    ArrowCollector,
    CommitContext,
    OperatorContext,
    StartContext,
)
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from penstock.state.tables.specs import TableSpec

WriteMode = Literal["append", "merge"]
MODES = ("append", "merge")


class StagedEpoch(msgspec.Struct, frozen=True):
    """What one subtask wrote in one epoch: its commit data."""

    columns: str
    """The rows' columns in types of Delta, with `change` if they are merged: an Arrow IPC schema
    in base64."""
    files: tuple[StagedFile, ...]
    key: tuple[str, ...] | None = None
    """The key by which changes are merged; None if rows are appended."""
    abandoned: tuple[EpochRange, ...] = ()
    """The epochs before this one that it does not descend from."""
    partition_by: tuple[str, ...] | None = None
    """The columns whose values made the folders of the files. None if changes are to be merged,
    which have no folders; and in commit data of older programs: they are those of the sink."""
    began: tuple[str, int] | None = None
    """The name that the step had at first, and its first epoch; None in commit data of older
    programs."""


@dataclass(frozen=True, slots=True, repr=False)
class DeltaSinkConfig(PartsConfig):
    """The config of kind "delta_sink": rows go to the table at `url`, exactly once."""

    kind: ClassVar[str] = "delta_sink"

    url: str
    """Absolute, because subtasks may have another working folder."""
    mode: WriteMode | None = None
    """None merges changelogs and appends other rows."""
    partition_by: Sequence[str] = ()
    evolve: bool = False
    """Columns that the table does not have are added to it."""
    properties: Mapping[str, str | None] = field(default_factory=dict)
    """The properties of a table that the sink creates."""
    target_bytes: int = DEFAULT_TARGET_BYTES
    """A data file is closed at about this size, and at the end of the epoch."""
    min_bytes: int | None = None
    """Rows that are appended wait until about so many bytes of them do."""
    visible_after_micros: int | None = None
    """Rows that are appended wait no longer than this."""
    merge_bytes: int | None = None
    """How much memory a merge may use before it writes to the disk; None leaves it to the sink."""
    store_options: Mapping[str, Any] = field(default_factory=dict)
    """What `open_store` takes for the store's kind."""

    def __post_init__(self) -> None:
        """Refuse a config that cannot work, with all problems at once."""
        problems = []
        if self.mode is not None and self.mode not in MODES:
            problems.append(f"mode is {self.mode!r}: use 'append' or 'merge'")
        problems += self.find_parts_problems()
        if self.merge_bytes is not None and self.merge_bytes < 1:
            problems.append(f"merge_bytes is {self.merge_bytes}: use at least 1")
        if problems:
            raise UserError(
                f"the Delta table {self.url!r} cannot be written like this: "
                f"{'; '.join(problems)}",
                code=ErrorCode.INVALID_CONFIG,
            )
        object.__setattr__(self, "partition_by", tuple(self.partition_by))

    @override
    def shown(self) -> Mapping[str, str]:
        facts = {"url": self.url}
        if self.mode is not None:
            facts["mode"] = self.mode
        return facts | self.shown_parts()

    def merges(self, stream: StreamSchema) -> bool:
        """Return whether rows of a stream are merged, not appended."""
        return stream.is_changelog if self.mode is None else self.mode == "merge"

    def rules(self, columns: pa.Schema, *, merges: bool) -> TableRules:
        """Return what a table must be like for rows with these columns of Delta."""
        kept = [f for f in columns if not (merges and f.name == CHANGE_COLUMN)]
        return TableRules(
            pa.schema(kept),
            tuple(self.partition_by),
            self.evolve,
            merges,
            {**self.properties},
        )


class DeltaSink(PartsSink[DeltaSinkConfig, EpochParts]):
    """Writes rows to a Delta table. It opens its store once, and keeps it until `release`."""

    def __init__(
        self,
        config: DeltaSinkConfig,
        open_output: Callable[..., ObjectStore] = open_store,
        open_tables: Callable[..., DeltaTables] = DeltaTables,
    ) -> None:
        super().__init__(config, open_output)
        self._open_tables = open_tables
        self._has_committed = False

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> None:
        """Refuse rows that no table could hold; it is a sink and emits nothing."""
        problems = self._find_problems(inputs[0])
        if problems:
            raise SchemaError(
                f"the rows cannot be written to the Delta table {self.config.url}:\n  "
                + "\n  ".join(problems),
                problems=tuple(problems),
            )

    @override
    def tables(self) -> Sequence[TableSpec]:
        return [*super().tables(), written_table(), began_table()]

    def _find_problems(self, stream: StreamSchema) -> list[str]:
        merges, schema = self.config.merges(stream), stream.arrow
        problems = find_merge_problems(stream) if merges else []
        if merges and self.config.patience is not None:
            problems.append(
                "min_bytes and visible_after are for rows that are appended: changes are merged "
                "once per epoch. Leave them out, and choose a trigger with longer epochs"
            )
        if not merges and self.config.merge_bytes is not None:
            problems.append(
                "merge_bytes= is for changelogs, which are merged, and these rows are appended: "
                "leave it out"
            )
        if not schema.names:
            problems.append("the rows have no columns: a table needs one at least")
        problems += find_type_problems(schema)
        problems += find_folder_problems(self.config.partition_by, schema)
        if not problems:
            problems += find_partition_problems(
                self.config.partition_by, to_delta_schema(schema)
            )
        return problems

    @override
    def on_start(self, ctx: OperatorContext) -> None:
        """Refuse to merge rows that wait. A driver that ran on may have left them after the check."""
        if self.config.merges(ctx.inputs[0]):
            waits = ctx.get_global_keyed_state(WAITS)
            check_nothing_waits(dict(waits.items()), ctx.task)

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Encode the rows, or what a merge needs of them; or let them wait."""
        stream, partition_by = ctx.inputs[0], self.config.partition_by
        if self.config.merges(stream):
            batch = to_merged(batch)
        elif self.config.patience is not None:
            check_rows(batch, ctx, to_delta_schema(stream.arrow), partition_by)
        super().process_batch(batch, ctx, collector)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Note when the sink began, with its first epoch, and do what all sinks of files do."""
        find_began(ctx)
        super().handle_checkpoint(barrier, ctx, collector)

    @override
    def _new_parts(self, ctx: OperatorContext) -> EpochParts:
        merges = self.config.merges(ctx.inputs[0])
        return (ChangeParts if merges else EpochParts)(
            self._store,
            ctx,
            to_delta_schema(ctx.inputs[0].arrow),
            form="parquet",
            partition_by=() if merges else self.config.partition_by,
            target_bytes=self.config.target_bytes,
        )

    @override
    def _finish(
        self,
        parts: EpochParts | None,
        abandoned: tuple[EpochRange, ...],
        ctx: OperatorContext,
        *,
        is_needed: bool,
    ) -> StagedEpoch | None:
        """Return what was staged: also without files, if there is to be a version."""
        files = () if parts is None else parts.finish_files()
        if not (files or is_needed):
            return None
        written = ctx.get_global_keyed_state(WRITTEN)
        name = name_of_written(self.config.url)
        if name not in written:
            written.insert(name, int(ctx.epoch))
        stream = ctx.inputs[0]
        merges = self.config.merges(stream)
        return StagedEpoch(
            schema_text(to_delta_schema(stream.arrow)),
            files,
            stream.table_key if merges else None,
            abandoned,
            None if merges else tuple(self.config.partition_by),
            find_began(ctx),
        )

    @override
    def handle_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> None:
        """Make the files of all subtasks a part of the table, or merge them into it."""
        found, decode = (
            commit_data.get(STAGED, {}),
            msgspec.json.Decoder(StagedEpoch).decode,
        )
        parts = decode_subtasks(found, epoch, ctx, decode=decode, sink="Delta")
        if not parts:
            return
        first = parts[0]
        files = [file for part in parts for file in part.files]
        columns = schema_of(first.columns)
        merges = first.key is not None
        app, began = app_of(ctx.task, ctx.identity), None
        if first.began is not None:
            step, since = first.began
            began = Began(app_of(ctx.task, ctx.identity, step), since)
        commit = EpochCommit(
            self._tables,
            self.config.rules(columns, merges=merges),
            ctx.task,
            ctx.identity,
            epoch,
            began=began,
            is_known=self._has_committed,
        )
        if first.partition_by is not None:
            commit.check_partitions(first.partition_by)
        undo = reversing(
            self._store,
            ctx.task,
            app,
            first.abandoned,
            int(epoch),
            began=began,
            merges=merges,
        )
        if first.key is not None:
            merging = merge(
                self._store,
                files,
                columns,
                key=first.key,
                memory_bytes=self.config.merge_bytes or DEFAULT_MERGE_BYTES,
                find_reversed=undo,
            )
            commit.run(merging)
            tidy_staging(self._store, ctx.task, int(epoch))
        else:
            added = [file.to_added(self.config.partition_by) for file in files]
            appending = append(added, undo)

            def carry_out(table: OpenTable, marks: Sequence[Mark]) -> CommitOutcome:
                if not self._has_committed:
                    # A commit that was left open may be made days later. One that is recorded
                    # does not get here: its files may have been compacted and vacuumed.
                    check_files(self._store, files)
                return appending(table, marks)

            commit.run(carry_out)
        self._has_committed = True

    @override
    def check_output(self, ctx: StartContext) -> None:
        """Refuse a table that could not take the rows, or has epochs the job does not know."""
        stream = ctx.inputs[0]
        merges = self.config.merges(stream)
        problems = self._find_problems(stream)
        if problems:
            raise misfit(self.config.url, problems)
        if merges:
            check_nothing_waits(ctx.read_global(waits_table()), ctx.task)
        columns = to_delta_schema(stream.arrow)
        check_start(self._tables, self.config.rules(columns, merges=merges), ctx)

    @property
    def _tables(self) -> DeltaTables:
        return self._open_tables(self.config.url, self.config.store_options)


def check_files(store: ObjectStore, files: Sequence[StagedFile]) -> None:
    """Refuse to make files a part of the table that are gone: it could not be read any more."""
    for file in files:
        found = store.size(file.path)
        if found != file.bytes:
            what = "is gone" if found is None else f"has {found} bytes, not {file.bytes}"
            raise CorruptStateError(
                f"{file.path!r} of {store.url}, which holds rows that are yet to be committed, "
                f"{what}: a vacuum removes files that wait for longer than its retention. Nothing "
                "was committed. Restore the file, or restore the job to the epoch before",
                code=ErrorCode.OBJECT_MISSING,
                path=file.path,
            )
