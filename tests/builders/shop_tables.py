"""Tables of a miniature operator in three versions, and how to write and read them.

Every migration changes the value, so that one step too few, too many or twice shows.

| Version | value of a typed row  | value of a global key |
|---------|-----------------------|-----------------------|
| 1       | whole number n        | n                     |
| 2       | 2 n + 1, and a note   | 2 n + 1               |
| 3       | the same as text      | as text               |
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.ids import Subtask
from penstock.core.key_hash import hash_keys, owners_of
from penstock.state.files.migration import MigratableState
from penstock.state.tables.specs import (
    TableSpec,
    TimeDomain,
    global_table,
    keyed_table,
    time_keyed_table,
)
from penstock.state.tables.table_manager import TableManager

SHOP = "shop"
TTL = 20
KEY: Any = pa.field("key", pa.string())
TIME: Any = pa.field("time", pa.timestamp("us"))
NUMBER: Any = pa.field("value", pa.int64())
TEXT: Any = pa.field("value", pa.string())
NOTE: Any = pa.field("note", pa.string())


class RowV1(MigratableState):
    VERSION: ClassVar[int] = 1
    SCHEMA: ClassVar[pa.Schema | None] = pa.schema([KEY, NUMBER, TIME])


class RowV2(MigratableState):
    VERSION: ClassVar[int] = 2
    PreviousVersion: ClassVar[Any] = RowV1
    SCHEMA: ClassVar[pa.Schema | None] = pa.schema([NOTE, TIME, NUMBER, KEY])

    @classmethod
    def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
        value = pc.add(pc.multiply(previous.column("value"), 2), 1)
        columns = {name: previous.column(name) for name in ("key", "time")}
        columns |= {"value": value, "note": value.cast(pa.string())}
        return pa.RecordBatch.from_pydict(columns, schema=cls.SCHEMA)


class RowV3(MigratableState):
    VERSION: ClassVar[int] = 3
    PreviousVersion: ClassVar[Any] = RowV2
    SCHEMA: ClassVar[pa.Schema | None] = pa.schema([KEY, TEXT, TIME])

    @classmethod
    def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
        assert previous.column("note").equals(previous.column("value").cast(pa.string()))
        columns = {name: previous.column(name) for name in ("key", "time")}
        columns["value"] = previous.column("value").cast(pa.string())
        return pa.RecordBatch.from_pydict(columns, schema=cls.SCHEMA)


class CountV1(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 1
    value: int


class CountV2(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 2
    PreviousVersion: ClassVar[Any] = CountV1
    value: int

    @classmethod
    def migrate(cls, previous: CountV1) -> "CountV2":
        return cls(previous.value * 2 + 1)


class CountV3(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 3
    PreviousVersion: ClassVar[Any] = CountV2
    value: str

    @classmethod
    def migrate(cls, previous: CountV2) -> "CountV3":
        return cls(str(previous.value))


ROWS: dict[int, type[MigratableState]] = {1: RowV1, 2: RowV2, 3: RowV3}
COUNTS: dict[int, Any] = {1: CountV1, 2: CountV2, 3: CountV3}


def shop_specs(version: int = 1) -> dict[str, list[TableSpec]]:
    """Declare all tables in one version."""
    rows, keys = ROWS[version], ["key"]
    return {
        SHOP: [
            global_table("counts", str, COUNTS[version], uses_two_phase_commit=True),
            keyed_table("totals", rows, key_columns=keys, ttl=TTL, time_column="time"),
            keyed_table(
                "recent",
                rows,
                key_columns=keys,
                ttl=TTL,
                ttl_domain=TimeDomain.PROCESSING_TIME,
            ),
            time_keyed_table("panes", rows, time_column="time", key_columns=keys),
            time_keyed_table("marks", rows, time_column="time"),
        ]
    }


def value_at(number: int, written: int, version: int) -> Any:
    """What a number written by one version reads as in a later one."""
    if written == 1 and version > 1:
        number = number * 2 + 1
    return str(number) if version == 3 else number


def shop_rows(rows: Iterable[tuple[str, int, int]], version: int = 1) -> pa.RecordBatch:
    """Rows of key, number and time as one version declares them."""
    listed = list(rows)
    values = [value_at(number, version, version) for _, number, _ in listed]
    columns: dict[str, Any] = {
        "key": [key for key, _, _ in listed],
        "value": values,
        "time": [time for _, _, time in listed],
        "note": [str(value) for value in values],
    }
    schema: Any = ROWS[version].SCHEMA
    return pa.RecordBatch.from_pydict(
        {name: columns[name] for name in schema.names}, schema=schema
    )


def keys_batch(keys: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.string())})


def owned(batch: pa.RecordBatch, subtask: Subtask) -> pa.RecordBatch:
    """The rows whose key a subtask owns."""
    owners = owners_of(hash_keys([batch.column("key")]), subtask.parallelism)
    return batch.filter(pa.array(owners == subtask.index))


def owner_of_key(key: str, parallelism: int) -> int:
    return int(owners_of(hash_keys([pa.array([key])]), parallelism)[0])


def read_counts(manager: TableManager) -> dict[str, Any]:
    return {k: v.value for k, v in manager.get_global_keyed_state("counts").items()}


def read_keyed(managers: Iterable[TableManager], table: str) -> dict[str, tuple[Any, int]]:
    """Key → value and time; a key seen by two subtasks is an error."""
    found: dict[str, tuple[Any, int]] = {}
    for manager in managers:
        for batch in manager.get_keyed_state(table).scan():
            for key, value, time in _triples(batch):
                assert key not in found, f"{key!r} is in {table!r} twice"
                found[key] = (value, time)
    return found


def read_time_keyed(
    managers: Iterable[TableManager], table: str
) -> list[tuple[str, Any, int]]:
    """All rows, those of one key in the order they were inserted."""
    rows = [
        triple
        for manager in managers
        for batch in manager.get_time_keyed_state(table).batches()
        for triple in _triples(batch)
    ]
    return sorted(rows, key=lambda row: row[0])


def _triples(batch: pa.RecordBatch) -> Iterable[tuple[str, Any, int]]:
    columns: list[Any] = [batch.column("key"), batch.column("value")]
    columns.append(batch.column("time").cast(pa.int64()))
    return zip(*(column.to_pylist() for column in columns), strict=True)
