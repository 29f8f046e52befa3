"""Partitions of output files: which columns may be one, and rows by the folder they go to."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.files_layout import Partition
from penstock.connectors.polars_types import is_held_by_polars
from penstock.core.suggestion import did_you_mean
from penstock.errors import ErrorCode, UserError

_ALLOWED = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal,
)
_ROW = "row"


def find_partition_problems(columns: Sequence[str], schema: pa.Schema) -> list[str]:
    """Return everything that is wrong with partitioning rows of this schema by `columns`."""
    problems = []
    for column in columns:
        if column not in schema.names:
            hint = did_you_mean(column, set(schema.names))
            problems.append(f"partition_by names {column!r}, which is no column{hint}")
        elif not _is_allowed(schema.field(column).type):
            problems.append(
                f"partition_by names {column!r} of type {schema.field(column).type}: use "
                "text, whole numbers, booleans, dates, timestamps (of a zone by name, if any) "
                "or decimals of 38 digits"
            )
    if len(set(columns)) < len(columns):
        problems.append(f"partition_by names a column twice: {', '.join(columns)}")
    if schema.names and set(schema.names) <= set(columns):
        problems.append("partition_by names all columns: a file needs one at least")
    return problems


def split_rows(
    batch: pa.RecordBatch, columns: Sequence[str]
) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """Yield the rows of each partition, in their order, without the partition columns.

    Partitions come in the order of their first rows. The loop is over partitions, not rows.
    A value that its folder's name would not tell is an error of the user.
    """
    if not columns:
        yield (), batch
        return
    rest = batch.drop_columns(list(columns))
    values = [batch.column(column) for column in columns]
    names = [str(index) for index in range(len(columns))]
    keys = pl.DataFrame(pa.Table.from_arrays(values, names)).with_row_index(_ROW)
    groups = keys.group_by(names, maintain_order=True).agg(_ROW)
    rows = groups[_ROW]
    firsts: Any = pa.array(rows.list.first().to_numpy(), pa.int64())
    texts = [
        _to_text(column, value.take(firsts))
        for column, value in zip(columns, values, strict=True)
    ]
    whole = len(rows) == 1
    for index, partition in enumerate(zip(*texts, strict=True)):
        yield partition, rest if whole else rest.take(pa.array(rows[index].to_numpy()))


def add_partition(
    table: pa.Table, columns: Sequence[str], partition: Partition, schema: pa.Schema
) -> pa.Table:
    """Return rows of one partition with its columns back in their places, as they were typed."""
    for column, value in zip(columns, partition, strict=True):
        value_array = _from_text([value], schema.field(column).type)
        filled = value_array.take(np.zeros(table.num_rows, np.int64))
        table = table.append_column(column, filled)
    return table.select(schema.names)


def _is_allowed(kind: pa.DataType) -> bool:
    return any(is_allowed(kind) for is_allowed in _ALLOWED) and is_held_by_polars(kind)


def _to_text(column: str, values: Any) -> list[str | None]:
    """Return values as text that `_from_text` understands."""
    texts: list[str | None] = pc.cast(values, pa.string()).to_pylist()
    if not _is_told(texts, values):
        told = [_is_told([text], values[i : i + 1]) for i, text in enumerate(texts)]
        raise UserError(
            f"partition_by names {column!r}, which holds a value of type {values.type} that no "
            f"folder's name can tell: as text it is {texts[told.index(False)]!r}. Change it "
            "before the sink, or partition by another column",
            code=ErrorCode.VALUE_OUT_OF_RANGE,
            column=column,
        )
    return texts


def _is_told(texts: list[str | None], values: Any) -> bool:
    try:
        return bool(_from_text(texts, values.type).equals(values))
    except pa.ArrowInvalid:
        return False


def _from_text(texts: list[str | None], kind: pa.DataType) -> Any:
    return pc.cast(pa.array(texts, pa.string()), kind)
