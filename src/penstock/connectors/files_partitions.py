"""Partitions of output files: which columns may be one, and rows by the folder they go to."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.files_layout import Partition
from penstock.core.suggestion import did_you_mean

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
        elif not any(is_allowed(schema.field(column).type) for is_allowed in _ALLOWED):
            problems.append(
                f"partition_by names {column!r} of type {schema.field(column).type}: use "
                "text, whole numbers, booleans, dates, timestamps or decimals"
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
    texts = [pc.cast(value.take(firsts), pa.string()).to_pylist() for value in values]
    whole = len(rows) == 1
    for index, partition in enumerate(zip(*texts, strict=True)):
        yield partition, rest if whole else rest.take(pa.array(rows[index].to_numpy()))


def add_partition(
    table: pa.Table, columns: Sequence[str], partition: Partition, schema: pa.Schema
) -> pa.Table:
    """Return rows of one partition with its columns back in their places, as they were typed."""
    for column, value in zip(columns, partition, strict=True):
        value_array = pc.cast(pa.array([value], pa.string()), schema.field(column).type)
        filled = value_array.take(np.zeros(table.num_rows, np.int64))
        table = table.append_column(column, filled)
    return table.select(schema.names)
