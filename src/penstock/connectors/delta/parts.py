"""Writes the rows of an epoch as data files of a Delta table, which nobody sees before the commit.

One file per partition is open. Rows wait until they make a row group, row groups are encoded into
the open file, and a file that has reached its size is uploaded. What all open files hold is
bounded, too: above the bound the largest is encoded early, and uploaded early if that is not
enough. A file's name holds epoch, step, subtask and attempt, so no two attempts share one; files
of attempts that do not count are never a part of the table, and a vacuum removes them.
"""

import io
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.delta.actions import AddedFile, to_stat
from penstock.connectors.delta.table import to_partition_texts
from penstock.connectors.files.names import (
    LONGEST_SEGMENT,
    NULL_PARTITION,
    Partition,
    split_rows,
)
from penstock.connectors.files.parquet import ParquetPart
from penstock.core.arrow_types import relay
from penstock.errors import ErrorCode, StorageError, UserError
from penstock.operators.context import OperatorContext
from penstock.state.storage.create import create_own
from penstock.state.storage.object_store import ObjectStore, is_object_path

ROW_GROUP_BYTES = 16 * 1024**2
"""How many bytes of rows, as Arrow holds them, become a row group."""
_BATCH_BYTES = 1024
"""About what a batch takes besides its rows, which matters if there are many partitions."""
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


@dataclass(slots=True)
class _OpenPart:
    """The file of one partition that is being written, and the rows that wait for it."""

    writer: ParquetPart | None = None
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    encoded_bytes: int = 0
    rows: int = 0

    @property
    def held_bytes(self) -> int:
        return self.waiting_bytes + self.encoded_bytes


class EpochParts:
    """What one attempt of a subtask writes in one epoch. Dropped after the epoch."""

    def __init__(
        self,
        store: ObjectStore,
        ctx: OperatorContext,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str],
        target_bytes: int,
        name_of: Callable[[int, str], str],
    ) -> None:
        """Write rows of `schema`, whose types are Delta's; `name_of` a number and a folder."""
        self.attempt = ctx.attempt
        """The attempt that these rows belong to; no other attempt at any epoch has its token."""
        self._store = store
        self._schema = schema
        self._partition_by = tuple(partition_by)
        self._target_bytes = target_bytes
        self._group_bytes = min(ROW_GROUP_BYTES, max(1, target_bytes // 4))
        self._name_of = name_of
        kept = [column for column in schema if column.name not in self._partition_by]
        self._file_schema = pa.schema(kept)
        self._open: defaultdict[Partition, _OpenPart] = defaultdict(_OpenPart)
        self._files: list[StagedFile] = []
        self._held_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of any layout; files that become full are uploaded."""
        batch = to_columns(batch, self._schema)
        for partition, rows in split_rows(batch, self._partition_by):
            piece_count = max(1, -(-rows.nbytes // self._group_bytes))
            step = max(1, -(-rows.num_rows // piece_count))
            for start in range(0, rows.num_rows, step):
                self._add(partition, rows.slice(start, step))

    def finish(self) -> tuple[StagedFile, ...]:
        """Upload the open files and return all of them; none if there was no row."""
        for partition in list(self._open):
            self._upload(partition)
        return tuple(self._files)

    def _values_of(self, partition: Partition) -> tuple[str | None, ...]:
        """Return the values of a folder's partition as Delta writes them into its log."""
        values = []
        for name, text in zip(self._partition_by, partition, strict=True):
            kind: Any = self._schema.field(name).type
            values += to_partition_texts(pa.array([text], pa.string()).cast(kind))
        return tuple(values)

    def _add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        part = self._open[partition]
        size_bytes = rows.nbytes + _BATCH_BYTES
        part.waiting.append(rows)
        part.waiting_bytes += size_bytes
        part.rows += rows.num_rows
        self._held_bytes += size_bytes
        if part.waiting_bytes >= self._group_bytes:
            self._encode(part)
        if part.encoded_bytes >= self._target_bytes:
            self._upload(partition)
        while self._held_bytes > self._target_bytes + self._group_bytes:
            largest = max(self._open, key=lambda each: self._open[each].held_bytes)
            part = self._open[largest]
            if part.waiting_bytes > part.encoded_bytes:
                self._encode(part)
            else:
                self._upload(largest)

    def _encode(self, part: _OpenPart) -> ParquetPart:
        """Encode the rows that wait for a file, and return its writer."""
        if part.writer is None:
            part.writer = ParquetPart(self._file_schema)
        if part.waiting:
            self._held_bytes -= part.held_bytes
            part.encoded_bytes = part.writer.write(pa.Table.from_batches(part.waiting))
            part.waiting, part.waiting_bytes = [], 0
            self._held_bytes += part.held_bytes
        return part.writer

    def _upload(self, partition: Partition) -> None:
        part, values = self._open.pop(partition), self._values_of(partition)
        path = self._name_of(len(self._files), folder_of(self._partition_by, values))
        longest = max(map(len, path.split("/")))
        if longest > LONGEST_SEGMENT or not is_object_path(path):
            raise UserError(
                f"rows cannot be written by partition_by: the values {values!r:.200} make "
                f"names of folders that are too long ({longest} bytes, and {LONGEST_SEGMENT} is "
                "the most). Shorten the value before the sink, or partition by another column",
                code=ErrorCode.INVALID_NAME,
                path=path,
            )
        data = self._encode(part).close()
        self._held_bytes -= part.held_bytes
        if create_own(self._store, path, data) is not None:
            raise StorageError(
                f"{path!r} in {self._store.url} was to be created and holds something else: its "
                "name is drawn at random, so something else writes such names. Keep it away",
                code=ErrorCode.FOREIGN_OBJECT,
                path=path,
            )
        stats = read_statistics(data, self._file_schema)
        self._files.append(StagedFile(path, part.rows, len(data), values, stats))


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
    columns = []
    for column, wanted in zip(batch.columns, schema, strict=True):
        if pa.types.is_timestamp(wanted.type) or pa.types.is_date(wanted.type):
            columns.append(_to_time(column, wanted.type))
        else:
            columns.append(relay(column, wanted.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _to_time(column: Any, kind: Any) -> Any:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise UserError(
            f"a time cannot be written to a Delta table, where times are in microseconds: {error}. "
            "Change it before the sink",
            code=ErrorCode.VALUE_OUT_OF_RANGE,
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
