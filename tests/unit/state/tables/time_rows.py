"""Rows of time-keyed tables for tests: text keys, a time and a number."""

from typing import Any

import pyarrow as pa

from penstock.core.ids import owner_of
from penstock.core.key_hash import hash_keys
from penstock.state.tables.specs import time_keyed_table
from penstock.state.tables.time_keyed_view import TimeKeyedView
from tests.unit.state.files.file_builders import a_schema
from tests.unit.state.tables.table_cluster import TableCluster, Write

COLUMNS = a_schema(user=pa.string(), at=pa.timestamp("us"), n=pa.int64())
PANES = time_keyed_table("panes", COLUMNS, key_columns=["user"], time_column="at")
KEYLESS = time_keyed_table("buffer", COLUMNS, time_column="at")
FIRST, LAST = -(1 << 63), (1 << 63) - 1

Row = tuple[str | None, int, int]


def a_batch(*rows: Row) -> pa.RecordBatch:
    users, times, numbers = ([row[place] for row in rows] for place in range(3))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(users, pa.string()),
            pa.array(times, pa.timestamp("us")),
            pa.array(numbers, pa.int64()),
        ],
        schema=COLUMNS,
    )


def rows_in(table: pa.Table) -> list[Row]:
    columns: list[list[Any]] = [
        table["user"].to_pylist(),
        table["at"].cast(pa.int64()).to_pylist(),
        table["n"].to_pylist(),
    ]
    return list(zip(*columns, strict=True))


def inserting(*rows: Row, expires_at: Any = None) -> Write:
    """Insert each row into the subtask that owns its key."""

    def write(index: int, view: TimeKeyedView) -> None:
        parallelism = view._table.environment.task.subtask.parallelism
        own = [row for row in rows if owner_of_user(row[0], parallelism) == index]
        if own:
            view.insert(a_batch(*own), expires_at)

    return write


def owner_of_user(user: str | None, parallelism: int) -> int:
    return owner_of(int(hash_keys([pa.array([user], pa.string())])[0]), parallelism)


def seen(cluster: TableCluster, *bounds: int | None) -> list[Row]:
    """All rows that all subtasks see, in order."""
    return sorted(
        (
            row
            for index in range(cluster.parallelism)
            for row in rows_in(cluster.view(index).rows(*bounds))
        ),
        key=repr,
    )
