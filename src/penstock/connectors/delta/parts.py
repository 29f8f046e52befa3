"""Writes the rows of an epoch as data files of a Delta table, which nobody sees before the commit.

One file per partition is open, as `open_parts` of the files sink says. A file's name holds epoch,
step, subtask and attempt, so no two attempts share one; files of attempts that do not count are
never a part of the table, and a vacuum removes them.
"""

import io
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from penstock.connectors.delta.actions import AddedFile, to_stat
from penstock.connectors.delta.table import to_partition_texts
from penstock.connectors.files.names import (
    LONGEST_SEGMENT,
    NULL_PARTITION,
    Partition,
    PartNames,
    split_rows,
)
from penstock.connectors.files.output.open_parts import OpenParts
from penstock.connectors.files.output.staging import create_staged
from penstock.core.arrow_types import relay
from penstock.errors import ErrorCode, UserError
from penstock.operators.context import OperatorContext
from penstock.state.storage.object_store import is_object_path

_STATISTICS = (
    pa.types.is_integer,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_string,
)
"""Columns whose bounds are told. Of floats they are not: NaN is in no bounds of Parquet."""


class StagedFile(msgspec.Struct, frozen=True):
    """A data file that is written and not yet a part of the table."""

    path: str
    rows: int
    bytes: int
    partition: tuple[str | None, ...] = ()
    stats: str = "{}"

    def to_added(self, partition_by: Sequence[str]) -> AddedFile:
        """Return the action that makes it a part of the table."""
        values = dict(zip(partition_by, self.partition, strict=True))
        return AddedFile(self.path, self.bytes, values, stats=self.stats)


class EpochParts(OpenParts[StagedFile]):
    """What one attempt of a subtask writes in one epoch. Dropped after the epoch."""

    @override
    def add(self, batch: pa.RecordBatch, epoch: int | None = None) -> None:
        """Add rows of any layout; files that become full are uploaded."""
        super().add(to_columns(batch, self._schema), epoch)

    @override
    def _stage(self, partition: Partition) -> StagedFile:
        values = values_of(self._partition_by, partition, self._schema)
        path = self._path_in(folder_of(self._partition_by, values))
        _check_path(path, values)
        part, data = self._close(partition)
        create_staged(self._store, path, data, others="such names")
        stats = read_statistics(data, self._file_schema)
        return StagedFile(path, part.rows, len(data), values, stats)

    def _path_in(self, folder: str) -> str:
        return path_of(self._names, len(self._files), folder)


class ChangeParts(EpochParts):
    """The same of changes: they are no data files, and wait in the staging area to be merged."""

    @override
    def _path_in(self, folder: str) -> str:
        return self._names.of_file(len(self._files), folder)[0]


def check_rows(
    batch: pa.RecordBatch,
    ctx: OperatorContext,
    schema: pa.Schema,
    partition_by: Sequence[str],
) -> None:
    """Raise `UserError` for rows that no data file could hold; `schema` is that of the table.

    Rows that wait are acknowledged before a file is written: such a row could then neither be
    written nor be mended.
    """
    names = PartNames(ctx.task, ctx.generation, ctx.epoch, ctx.attempt, "parquet")
    for partition, _ in split_rows(to_columns(batch, schema), partition_by):
        values = values_of(partition_by, partition, schema)
        _check_path(path_of(names, 0, folder_of(partition_by, values)), values)


def _check_path(path: str, values: Sequence[str | None]) -> None:
    longest = max(map(len, path.split("/")))
    if longest > LONGEST_SEGMENT or not is_object_path(path):
        raise UserError(
            f"rows cannot be written by partition_by: the values {values!r:.200} make "
            f"names of folders that are too long ({longest} bytes, and {LONGEST_SEGMENT} is "
            "the most). Shorten the value before the sink, or partition by another column",
            code=ErrorCode.INVALID_NAME,
            path=path,
        )


def path_of(names: PartNames, number: int, folder: str) -> str:
    """Return the final name of a data file: that of the files sink, and the attempt."""
    final = names.of_file(number, folder)[1]
    return f"{final.removesuffix('.parquet')}-{names.token}.parquet"


def values_of(
    columns: Sequence[str], partition: Partition, schema: pa.Schema
) -> tuple[str | None, ...]:
    """Return the values of a folder's partition as Delta writes them into its log."""
    values: list[str | None] = []
    for name, text in zip(columns, partition, strict=True):
        kind: Any = schema.field(name).type
        values += to_partition_texts(pa.array([text], pa.string()).cast(kind))
    return tuple(values)


def folder_of(columns: Sequence[str], values: Sequence[str | None]) -> str:
    """Return the folder of a partition, of letters that no reader of tables misunderstands.

    >>> folder_of(["day", "shop"], ["2026-01-01", "a/b"]), folder_of(["day"], [None])
    ('day=2026-01-01/shop=a%2Fb', 'day=__HIVE_DEFAULT_PARTITION__')
    """
    return "/".join(
        f"{quote(name, safe='')}={NULL_PARTITION if value is None else quote(value, safe='')}"
        for name, value in zip(columns, values, strict=True)
    )


def to_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows in types of Delta that hold the same values."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        _to_type(column, wanted)
        for column, wanted in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _to_type(column: Any, wanted: "pa.Field[Any]") -> Any:
    kind: Any = wanted.type
    is_time = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    try:
        return column.cast(kind) if is_time else relay(column, kind)
    except pa.ArrowInvalid as error:
        raise UserError(
            f"a value of column {wanted.name!r} cannot be written to a Delta table, where times "
            f"are in microseconds and days in 32 bits: {error}. Change it before the sink",
            code=ErrorCode.VALUE_OUT_OF_RANGE,
            column=wanted.name,
        ) from error


def read_bounds(statistics: Sequence[Any]) -> tuple[Any, Any]:
    """Return the bounds of a column in some row groups, as log entries hold them; None if not told."""
    try:
        low, high = min(s.min for s in statistics), max(s.max for s in statistics)
    except (OverflowError, ValueError):
        return None, None  # a time of a year that Python does not have
    return to_stat(low), to_stat(high)


def read_statistics(data: bytes, schema: pa.Schema) -> str:
    """Return what a data file's footer tells about its rows, as log entries hold it."""
    footer = pq.read_metadata(io.BytesIO(data))
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(footer.num_columns):
        name = footer.schema.column(index).path
        if name not in schema.names:
            continue  # a part of a nested column
        found: list[Any] = [group.column(index).statistics for group in groups]
        # `in` would compare statistics with None, at which Arrow crashes.
        if any(each is None or not each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        bounded = [each for each in found if each.has_min_max]
        if not bounded or any(each.num_values and not each.has_min_max for each in found):
            continue
        if any(tells(schema.field(name).type) for tells in _STATISTICS):
            low, high = read_bounds(bounded)
            if low is not None and high is not None:
                lows[name], highs[name] = low, high
    told = {
        "numRecords": footer.num_rows,
        "minValues": lows,
        "maxValues": highs,
        "nullCount": nulls,
    }
    return json.dumps(told, separators=(",", ":"))
