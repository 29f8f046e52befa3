"""`for_each_epoch`: a sink that calls a user's function with each committed epoch's DataFrame.

Subtasks stage the rows as Parquet files beside the checkpoints, durable before the epoch is
acknowledged, and in Spark's types: a value that Spark cannot hold fails the epoch, not its
commit. The commit makes a DataFrame of exactly these files, read by Spark's workers through
the same store, and calls the function on the driver. A commit may be repeated after a crash,
so the function must be idempotent per epoch, as with `foreachBatch`.

The commit of a later epoch deletes staged files: until the committed marker of their own epoch
is written, they may be needed once more.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

from penstock.connectors.files.committed import format_checksum, schema_of
from penstock.connectors.files.output.merging import StagedFile
from penstock.connectors.files.output.parts import EpochParts, decode_staged
from penstock.connectors.files.output.staging import STAGED, tidy_staging
from penstock.connectors.files.sink import find_format_problems
from penstock.core.clock import new_token
from penstock.core.ids import Epoch, checksum_of
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier
from penstock.errors import CorruptStateError, ErrorCode, SchemaError, UserError
from penstock.operators.context import ArrowCollector, CommitContext, OperatorContext
from penstock.operators.operator import ArrowOperator, DisplayableOperator
from penstock.operators.user_functions import name_of
from penstock.runtime.spark.failures import noticing_its_end
from penstock.runtime.spark.row_schemas import spark_form_of
from penstock.runtime.spark.session import driving_session
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.specs import TableSpec, global_table

TARGET_BYTES = 64 << 20
"""A staged file is closed at about this size; each becomes a partition of the DataFrame."""

EpochFunction = Callable[[DataFrame, int], object]
"""Takes the rows of an epoch and its number."""

_FUNCTIONS: dict[str, EpochFunction] = {}
"""The functions by token. The graph holds the token, because functions are never pickled."""


def for_each_epoch(function: EpochFunction) -> ArrowOperator:
    """Call `function(frame, epoch)` on the driver with the rows of every committed epoch.

    It may be called again with the same epoch and the same rows, after a crash: then it must
    change nothing. Epochs without rows are left out. The DataFrame is valid only during the
    call. An exception of the function stops the job; the next start calls the function with
    the same epoch again.
    """
    if not callable(function):
        raise UserError(
            f"for_each_epoch was given {type(function).__name__}: give a function of a "
            "DataFrame and the number of an epoch",
            code=ErrorCode.INVALID_CONFIG,
        )
    token = new_token()
    _FUNCTIONS[token] = function
    return ForEachEpoch(token, name_of(function))


class ForEachEpoch(ArrowOperator):
    """Stages rows; its commit calls a function. It is pickled as plain data."""

    def __init__(self, token: str, function_name: str) -> None:
        self._token = token
        self._function_name = function_name
        self._parts: EpochParts | None = None

    @override
    def name(self) -> str:
        return "for_each_epoch"

    @override
    def display(self) -> DisplayableOperator:
        return DisplayableOperator("for_each_epoch", {"function": self._function_name})

    @override
    def why_at_least_once(self) -> str:
        return (
            "the function is called again with the same epoch if the job dies before that is "
            "noted: what it does must be idempotent per epoch"
        )

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> None:
        """Refuse rows that Spark could not hold; it is a sink and emits nothing."""
        schema = inputs[0].arrow
        problems = find_format_problems("parquet", schema)
        if problems:
            raise SchemaError(
                "the rows cannot be staged:\n  " + "\n  ".join(problems),
                problems=tuple(problems),
            )
        spark_form_of(schema)

    @override
    def tables(self) -> Sequence[TableSpec]:
        return [global_table(STAGED, str, bytes, uses_two_phase_commit=True)]

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Encode the rows, and upload files that are full."""
        form, _ = spark_form_of(ctx.inputs[0].arrow)
        # Rows of an attempt that did not finish must not get into the next one.
        if self._parts is None or self._parts.attempt != ctx.attempt:
            self._parts = EpochParts(
                ctx.store, ctx, form, form="parquet", target_bytes=TARGET_BYTES
            )
        self._parts.add(_to_form(batch, form))

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Upload the rest, then name the files, which are durable by then, in the commit data."""
        parts, self._parts = self._parts, None
        if parts is None or parts.attempt != ctx.attempt:
            return
        staged = parts.finish()
        if staged.files:
            ctx.count("bytes_staged", sum(file.bytes for file in staged.files))
            ctx.insert_committing_data(STAGED, msgspec.json.encode(staged))

    @override
    def handle_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> None:
        """Call the function with the rows of all subtasks; delete files of earlier epochs."""
        parts = decode_staged(commit_data.get(STAGED, {}), epoch, ctx)
        files = tuple(file for part in parts for file in part.files)
        if files:
            function = _FUNCTIONS.get(self._token)
            if function is None:
                raise UserError(
                    f"the function {self._function_name!r} of for_each_epoch is not known in "
                    "this process: run the pipeline in the process that builds it",
                    code=ErrorCode.INVALID_CONFIG,
                )
            reader = _StagedRows(ctx.store, files, schema_of(parts[0].schema))
            session = driving_session("for_each_epoch")
            with noticing_its_end(session, f"{self._function_name!r} of for_each_epoch"):
                function(reader.frame(session), int(epoch))
            tidy_staging(ctx.store, ctx.task, int(epoch) - 1)

    @override
    def release(self) -> None:
        """Drop what an unfinished epoch held."""
        self._parts = None


@dataclass(frozen=True, slots=True)
class _StagedRows:
    """Reads staged files in Spark's workers, for `mapInArrow`: a partition per file."""

    store: ObjectStore
    files: tuple[StagedFile, ...]
    schema: pa.Schema

    def frame(self, session: SparkSession) -> DataFrame:
        """Return the rows as a DataFrame; every action on it reads the files again."""
        count = len(self.files)
        _, spark_schema = spark_form_of(self.schema)
        return session.range(0, count, 1, count).mapInArrow(self, spark_schema)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files whose numbers the batches hold."""
        arrow, _ = spark_form_of(self.schema)
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for number in numbers:
                yield from self._read(self.files[number], arrow)

    def _read(self, file: StagedFile, arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
        data = self.store.read(file.staged)
        if data is None or format_checksum(checksum_of(data)) != file.checksum:
            raise CorruptStateError(
                f"the staged file {file.staged!r} in {self.store.url} is "
                f"{'missing' if data is None else 'damaged'}: the DataFrame of an epoch is "
                "good only while the function of for_each_epoch runs",
                code=ErrorCode.OBJECT_MISSING,
                path=file.staged,
            )
        parquet = pq.ParquetFile(pa.BufferReader(data))
        # Files that an earlier version of Penstock staged are in the types of the stream.
        for group in range(parquet.num_row_groups):
            yield from parquet.read_row_group(group).cast(arrow).to_batches()


def _to_form(batch: pa.RecordBatch, form: pa.Schema) -> pa.RecordBatch:
    """Return rows in Spark's types; raise `UserError` for a value that they cannot hold."""
    columns = []
    for column, field in zip(batch.columns, form, strict=True):
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowInvalid as error:
            raise UserError(
                f"column {field.name!r} of type {column.type} holds a value that Spark's "
                f"{field.type} cannot: {error}. Change it before the sink",
                code=ErrorCode.VALUE_OUT_OF_RANGE,
                column=field.name,
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=form)
