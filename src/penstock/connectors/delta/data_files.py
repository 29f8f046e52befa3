"""Reads the data files of a Delta table: Parquet, with what the table's log says about each file.

Partition columns are not in the files: their values are in the log. Columns that the table got
later are null in older files. Times may be stored in other units, or without their zone: Delta's
types say that they are instants.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from typing_extensions import override

from penstock.connectors.delta.actions import PartitionValues
from penstock.connectors.delta.planning import RowsAre
from penstock.connectors.files.folders import Folders
from penstock.connectors.files.formats import FileOffset, Piece, SourceFile
from penstock.connectors.files.parquet import ParquetFormat
from penstock.core.schema import CHANGE_COLUMN
from penstock.errors import ErrorCode, UserError
from penstock.operators.changes import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE

CHANGE_TYPE = "_change_type"
"""The column of the files of the change data feed that says what became of a row."""
_CHANGES = {
    "insert": INSERT,
    "update_preimage": UPDATE_BEFORE,
    "update_postimage": UPDATE_AFTER,
    "delete": DELETE,
}


@dataclass(frozen=True, slots=True)
class DeltaFile(SourceFile):
    """A data file with the values of the partition columns, and what its rows are."""

    partition: PartitionValues = field(default_factory=dict)
    rows: RowsAre = RowsAre.ADDED


class DeltaFormat(ParquetFormat):
    """Reads data files in the columns of a table, or some of them."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema, ignores_extra=True)

    @override
    def folders_of(self, file: SourceFile, own: Collection[str]) -> Folders:
        """Return the values of columns that the file does not have: of its partition, or null."""
        partition = file.partition if isinstance(file, DeltaFile) else {}
        return {
            column.name: _to_text(partition.get(column.name), column.type)
            for column in self.schema
            if column.name not in own
        }

    @override
    def check_columns(self, file: SourceFile, found: pa.Schema) -> None:
        """Refuse a file whose columns are not the table's; units and zones of time do not count."""
        super().check_columns(file, pa.schema([self._aligned(column) for column in found]))

    def _aligned(self, column: "pa.Field[Any]") -> "pa.Field[Any]":
        if column.name in self.schema.names and pa.types.is_timestamp(column.type):
            wanted = self.schema.field(column.name).type
            if pa.types.is_timestamp(wanted):
                return column.with_type(wanted)
        return column

    @override
    def read(self, file: SourceFile, start: FileOffset, end: int) -> Iterator[Piece]:
        for piece in super().read(file, start, end):
            if piece.rows:
                rows = [self._in_units(part) for part in piece.rows]
                yield replace(piece, rows=rows)
            else:
                yield piece

    def _in_units(self, rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
        """Return rows with times as the table has them; most files have them so."""
        fields = [self._aligned(column) for column in rows.schema]
        if all(a.type.equals(b.type) for a, b in zip(fields, rows.schema, strict=True)):
            return rows
        found: list[Any] = list(rows.columns)
        columns = [
            column if column.type.equals(wanted.type) else column.cast(wanted.type)
            for column, wanted in zip(found, fields, strict=True)
        ]
        if isinstance(rows, pa.Table):
            return pa.Table.from_arrays(columns, schema=pa.schema(fields))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


class ChangelogFormat(DeltaFormat):
    """Reads data files as the changes of a changelog: all rows alike, or as the file says."""

    def __init__(self, schema: pa.Schema) -> None:
        """Read files into `schema`, which has the column `change`."""
        columns = [column for column in schema if column.name != CHANGE_COLUMN]
        # Only files of the change data feed have it; of others it is null.
        super().__init__(pa.schema([*columns, pa.field(CHANGE_TYPE, pa.string())]))
        self._names = schema.names

    @override
    def read(self, file: SourceFile, start: FileOffset, end: int) -> Iterator[Piece]:
        rows_are = file.rows if isinstance(file, DeltaFile) else RowsAre.ADDED
        for piece in super().read(file, start, end):
            changes = [self._to_changes(file, part, rows_are) for part in piece.rows]
            yield replace(piece, rows=changes)

    def _to_changes(
        self, file: SourceFile, rows: pa.RecordBatch | pa.Table, rows_are: RowsAre
    ) -> pa.Table:
        change: Any
        if rows_are is RowsAre.CHANGES:
            change = self._told(file, rows.column(CHANGE_TYPE))
        else:
            kind = INSERT if rows_are is RowsAre.ADDED else DELETE
            change = pa.repeat(pa.scalar(kind), rows.num_rows)
        columns: list[Any] = [
            change if name == CHANGE_COLUMN else rows.column(name) for name in self._names
        ]
        return pa.Table.from_arrays(columns, names=self._names)

    @staticmethod
    def _told(file: SourceFile, told: Any) -> Any:
        """Return the changes that a file of the change data feed tells, by our names."""
        if isinstance(told, pa.ChunkedArray):
            told = told.combine_chunks()
        encoded = told.dictionary_encode()
        values = encoded.dictionary.to_pylist()
        unknown = sorted({str(value) for value in values} - _CHANGES.keys())
        if unknown or encoded.null_count:
            raise UserError(
                f"{file} tells changes of the kind {unknown[0] if unknown else None!r} in "
                f"{CHANGE_TYPE!r}, which is none of the change data feed",
                code=ErrorCode.UNREADABLE_INPUT,
                path=file.path,
            )
        named = pa.array([_CHANGES[value] for value in values], pa.string())
        return named.take(encoded.indices)


def _to_text(text: str | None, kind: Any) -> str | None:
    """Return a partition's value as Arrow reads it: of an instant, Delta leaves the zone out."""
    if not text:
        return None
    if pa.types.is_timestamp(kind) and kind.tz is not None and not text.endswith("Z"):
        return f"{text}Z"
    return text
