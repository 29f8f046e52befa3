"""The program that wrote the checkpoint of format 1: its tables in three versions. Frozen.

A checkpoint outlives the code that wrote it, so nothing here may follow later changes: what
is declared here is what was declared then.
"""

from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.files.migration import MigratableState
from penstock.state.tables.specs import (
    TableSpec,
    TimeDomain,
    global_table,
    keyed_table,
    time_keyed_table,
)

OPERATOR = "everything"
TTL = 1_000
KEYS = ["text", "number"]
TYPES: dict[str, Any] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "decimal": pa.decimal128(20, 4),
    "large_decimal": pa.decimal256(50, 0),
    "date32": pa.date32(),
    "date64": pa.date64(),
    "time32": pa.time32("s"),
    "time64": pa.time64("us"),
    "seconds": pa.timestamp("s"),
    "millis": pa.timestamp("ms", "UTC"),
    "micros": pa.timestamp("us", "Europe/Prague"),
    "nanos": pa.timestamp("ns"),
    "duration": pa.duration("us"),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "fixed_binary": pa.binary(3),
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
    "list": pa.list_(pa.int64()),
    "large_list": pa.large_list(pa.string()),
    "fixed_list": pa.list_(pa.float64(), 2),
    "struct": pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
    "map": pa.map_(pa.string(), pa.int64()),
    "nothing": pa.null(),
}
TIME: Any = pa.timestamp("us")
KEY_FIELDS: list[Any] = [pa.field("text", pa.string()), pa.field("number", pa.int64())]
VALUE_FIELDS: list[Any] = [pa.field(name, kind) for name, kind in TYPES.items()]


class RowV1(MigratableState):
    VERSION: ClassVar[int] = 1
    SCHEMA: ClassVar[pa.Schema | None] = pa.schema(
        [*KEY_FIELDS, pa.field("time", TIME), pa.field("old_name", pa.string())]
    )


class RowV2(MigratableState):
    VERSION: ClassVar[int] = 2
    PreviousVersion: ClassVar[Any] = RowV1
    SCHEMA: ClassVar[pa.Schema | None] = pa.schema(
        [*KEY_FIELDS, pa.field("new_name", pa.string()), pa.field("time", TIME)]
    )

    @classmethod
    def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
        old: Any = previous.column("old_name")
        columns = {name: previous.column(name) for name in (*KEYS, "time")}
        columns["new_name"] = pc.binary_join_element_wise("was", old, " ")
        return pa.RecordBatch.from_pydict(columns, schema=cls.SCHEMA)


class RowV3(MigratableState):
    """The version after the checkpoint's newest: what a later program makes of it."""

    VERSION: ClassVar[int] = 3
    PreviousVersion: ClassVar[Any] = RowV2
    SCHEMA: ClassVar[pa.Schema | None] = pa.schema(
        [*KEY_FIELDS, pa.field("time", TIME), pa.field("length", pa.int32())]
    )

    @classmethod
    def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
        name: Any = previous.column("new_name")
        columns = {name: previous.column(name) for name in (*KEYS, "time")}
        columns["length"] = pc.utf8_length(name)
        return pa.RecordBatch.from_pydict(columns, schema=cls.SCHEMA)


class CountV1(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 1
    count: int


class CountV2(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 2
    PreviousVersion: ClassVar[Any] = CountV1
    count: int
    by: str = "nobody"

    @classmethod
    def migrate(cls, previous: CountV1) -> "CountV2":
        return cls(previous.count, "version 1")


class CountV3(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 3
    PreviousVersion: ClassVar[Any] = CountV2
    text: str

    @classmethod
    def migrate(cls, previous: CountV2) -> "CountV3":
        return cls(f"{previous.count} by {previous.by}")


ROWS: dict[int, type[MigratableState]] = {1: RowV1, 2: RowV2, 3: RowV3}
COUNTS: dict[int, Any] = {1: CountV1, 2: CountV2, 3: CountV3}


def specs(version: int) -> dict[str, list[TableSpec]]:
    """Declare the tables as one version of the program does."""
    rows = ROWS[version]
    return {
        OPERATOR: [
            global_table("counts", str, COUNTS[version], uses_two_phase_commit=True),
            global_table("settings", tuple[str, int], dict[str, Any]),
            keyed_table("types", pa.schema([*KEY_FIELDS, *VALUE_FIELDS]), key_columns=KEYS),
            keyed_table("names", rows, key_columns=KEYS, ttl=TTL, time_column="time"),
            keyed_table(
                "recent",
                rows,
                key_columns=KEYS,
                ttl=TTL,
                ttl_domain=TimeDomain.PROCESSING_TIME,
            ),
            time_keyed_table("panes", rows, key_columns=KEYS, time_column="time"),
            time_keyed_table("marks", rows, time_column="time"),
        ]
    }
