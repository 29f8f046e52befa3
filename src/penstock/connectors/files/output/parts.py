"""EpochParts: the files that one attempt of a subtask stages in one epoch, bounded in memory.

They are open as `open_parts` says. What cannot be written, a value or the name of a folder, is
refused here: once acknowledged, an epoch must commit.
"""

from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa
from typing_extensions import override

from penstock.connectors.files.committed import (
    EpochRange,
    format_checksum,
    schema_of,
    schema_text,
)
from penstock.connectors.files.formats import OutputFormat
from penstock.connectors.files.names import (
    Partition,
    PartNames,
    find_name_problem,
    partition_folder,
    split_rows,
)
from penstock.connectors.files.output.merging import StagedFile, join_epochs
from penstock.connectors.files.output.open_parts import OpenParts
from penstock.connectors.files.output.staging import create_staged, decode_subtasks
from penstock.connectors.files.parquet import check_parquet_values
from penstock.connectors.formats.json_text import check_json_values
from penstock.core.ids import Epoch, checksum_of
from penstock.errors import ErrorCode, UserError
from penstock.operators.context import CommitContext, OperatorContext


class StagedParts(msgspec.Struct, frozen=True):
    """What one subtask staged in one epoch."""

    format: OutputFormat
    schema: str
    """All columns, the partition columns included: an Arrow IPC schema in base64."""
    partition_by: tuple[str, ...]
    files: tuple[StagedFile, ...]
    abandoned: tuple[EpochRange, ...] = ()
    """As in `CommittedEpoch`."""
    merge_bytes: int = 0
    """Files of all subtasks are merged up to this size; 0 if each stays as it is."""

    @property
    def file_schema(self) -> str:
        """The columns of the files: all but the partition columns."""
        kept = [f for f in schema_of(self.schema) if f.name not in self.partition_by]
        return schema_text(pa.schema(kept))


def decode_staged(
    of_subtask: Mapping[int, bytes], epoch: Epoch, ctx: CommitContext
) -> list[StagedParts]:
    """Return what the subtasks staged in an epoch, from their commit data."""
    decode = msgspec.json.Decoder(StagedParts).decode
    return decode_subtasks(of_subtask, epoch, ctx, decode=decode, sink="files")


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


class EpochParts(OpenParts[StagedFile]):
    """What one attempt of a subtask stages in one epoch. Dropped after the epoch."""

    def finish(self) -> StagedParts:
        """Upload the open files and return what was staged: no files if there was no row."""
        files = self.finish_files()
        schema = schema_text(self._schema)
        return StagedParts(self._format, schema, self._partition_by, files)

    @override
    def _stage(self, partition: Partition) -> StagedFile:
        folder = partition_folder(self._partition_by, partition)
        staged, final = self._names.of_file(len(self._files), folder)
        _check_name(self._partition_by, partition, final)
        part, data = self._close(partition)
        create_staged(self._store, staged, data)
        return StagedFile(
            staged,
            final,
            part.rows,
            len(data),
            format_checksum(checksum_of(data)),
            partition,
            join_epochs(part.epochs, self._epoch),
        )
