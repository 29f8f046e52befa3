"""How the contract suite writes and reads each kind of table: text keys with one number each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.core.ids import owner_of
from penstock.core.key_hash import hash_keys
from penstock.state.tables.specs import (
    TableSpec,
    global_table,
    keyed_table,
    time_keyed_table,
)
from tests.unit.state.files.file_builders import a_schema

Items = dict[str, int]
SCHEMA = a_schema(name=pa.string(), at=pa.timestamp("us"), n=pa.int64())


@dataclass(frozen=True)
class TableKind:
    """One kind of table, written and read as if it were a dictionary of new keys."""

    name: str
    spec: TableSpec
    write: Callable[[Any, Items], None]
    read: Callable[[Any], Items]


def a_batch(items: Items) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(list(items), pa.string()),
            pa.array(list(items.values()), pa.timestamp("us")),
            pa.array(list(items.values()), pa.int64()),
        ],
        schema=SCHEMA,
    )


def items_in(rows: pa.Table) -> Items:
    names: list[Any] = rows["name"].to_pylist()
    assert len(set(names)) == len(names), "a row is seen twice"
    numbers: list[Any] = rows["n"].to_pylist()
    return dict(zip(names, numbers, strict=True))


def _insert_all(view: Any, items: Items) -> None:
    for key, value in items.items():
        view.insert(key, value)


def _scan(view: Any) -> Items:
    return items_in(pa.Table.from_batches(view.scan(), schema=SCHEMA))


LINES = 3
"""Rows of each key in the table with many rows per key."""


def _put_lines(view: Any, items: Items) -> None:
    """Put the rows of each key, which differ in their time, in the wrong order."""
    for line in reversed(range(LINES)):
        rows = a_batch(items).to_pydict() | {"at": [line] * len(items)}
        view.put(pa.table(rows).cast(SCHEMA))


def _get_lines(view: Any) -> Items:
    """Read the keys that a scan shows, and find each with all of its rows in order."""
    names = pa.Table.from_batches(view.scan(), schema=SCHEMA)["name"].unique()
    found = view.get_all(names)
    assert found.rows["at"].cast(pa.int64()).to_pylist() == list(range(LINES)) * len(names)
    first = view.get_all(names, limit=1)
    assert first.rows["name"].to_pylist() == names.to_pylist()
    return items_in(first.rows)


KINDS = [
    TableKind(
        "global",
        global_table("table", str, int),
        write=_insert_all,
        read=lambda view: dict(view.items()),
    ),
    TableKind(
        "time-keyed",
        time_keyed_table("table", SCHEMA, key_columns=["name"], time_column="at"),
        write=lambda view, items: view.insert(a_batch(items), None),
        read=lambda view: items_in(view.rows()),
    ),
    TableKind(
        "time-keyed without keys",
        time_keyed_table("table", SCHEMA, time_column="at"),
        write=lambda view, items: view.insert(a_batch(items), None),
        read=lambda view: items_in(view.rows()),
    ),
    TableKind(
        "keyed",
        keyed_table("table", SCHEMA, key_columns=["name"]),
        write=lambda view, items: view.put(a_batch(items)),
        read=_scan,
    ),
    TableKind(
        "keyed with many rows per key",
        keyed_table("table", SCHEMA, key_columns=["name", "at"], routed_by=["name"]),
        write=_put_lines,
        read=_get_lines,
    ),
]


def owned_by(index: int, parallelism: int, items: Items) -> Items:
    """The items whose key a subtask owns."""
    hashes = hash_keys([pa.array(list(items), pa.string())]).tolist()
    return {
        key: value
        for (key, value), key_hash in zip(items.items(), hashes, strict=True)
        if owner_of(key_hash, parallelism) == index
    }
