"""The schema of a time-keyed table: what users declare, what files hold, when rows live.

Pure. A stored row is the user's columns plus `_key_hash` and `_expires_at`. A row is live
iff it never expires (null) or `_expires_at > clock`; at the very instant it is dead.
Without a clock, as before the first watermark, everything is live. Only comparisons are made, so no instant is too
early or too late.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.errors import SchemaError
from penstock.state.files.parquet import KEY_HASH, check_storable
from penstock.state.proto import state_pb2
from penstock.state.tables.arrow_layout import have_same_values, relay, stored_type

EXPIRES_AT = "_expires_at"
EXPIRY_TYPE = pa.timestamp("us")
BOOKKEEPING_FIELDS: tuple["pa.Field[Any]", ...] = (
    pa.field(KEY_HASH, pa.uint64(), nullable=False),
    pa.field(EXPIRES_AT, EXPIRY_TYPE),
)

Flags: TypeAlias = npt.NDArray[np.bool_]
Micros: TypeAlias = npt.NDArray[np.int64]
ExpiresAt: TypeAlias = "int | pa.Array[Any] | None"
"""One instant in microseconds for all rows, None for never, or a timestamp array."""


@dataclass(frozen=True)
class TimeKeyedSchema:
    """One time-keyed table's columns, keys and time. Valid by construction."""

    table_name: str
    declared: pa.Schema
    key_columns: tuple[str, ...]
    time_column: str
    domain: state_pb2.TimeDomain = state_pb2.EVENT_TIME
    """By which clock rows expire."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "declared", self.declared.remove_metadata())
        what = f"table {self.table_name!r}"
        try:
            StreamSchema(self.declared, self.time_column, self.key_columns)
        except SchemaError as error:
            raise SchemaError(
                f"{what} cannot be declared so: {error.message}",
                code=error.code,
                table=self.table_name,
            ) from error
        check_storable(self.stored, what=what)

    @classmethod
    def from_config(cls, config: state_pb2.TimeKeyedTableConfig) -> "TimeKeyedSchema":
        """Read the durable declaration."""
        return _schema_of(
            config.table_name,
            config.arrow_schema,
            tuple(config.key_columns),
            config.time_column,
            domain_of(config),
        )

    def to_config(
        self, description: str = "", meaning: str = ""
    ) -> state_pb2.TimeKeyedTableConfig:
        """Return the durable declaration."""
        return state_pb2.TimeKeyedTableConfig(
            table_name=self.table_name,
            description=description,
            arrow_schema=self.declared.serialize().to_pybytes(),
            key_columns=self.key_columns,
            time_column=self.time_column,
            # Left out for event time, so that declarations are equal to those of checkpoints
            # written before there was a choice.
            time_domain=None if self.domain == state_pb2.EVENT_TIME else self.domain,
            meaning=meaning,
        )

    @cached_property
    def stream(self) -> StreamSchema:
        """The user's columns with their roles."""
        return StreamSchema(self.declared, self.time_column, self.key_columns)

    @cached_property
    def stored(self) -> pa.Schema:
        """The columns of a stored row."""
        columns = [field.with_type(stored_type(field.type)) for field in self.declared]
        return pa.schema([*columns, *BOOKKEEPING_FIELDS])

    def to_stored(self, rows: pa.RecordBatch) -> list[Any]:
        """Return the user's columns of a batch as they are stored, in the declared order."""
        if sorted(rows.schema.names) != sorted(self.declared.names):
            raise SchemaError(
                f"rows for table {self.table_name!r} must have exactly the columns "
                f"{self.declared.names}, not {rows.schema.names}",
                table=self.table_name,
            )
        return [self.to_stored_column(rows.column(f.name), f) for f in self.declared]

    def to_stored_column(self, column: Any, field: "pa.Field[Any]") -> Any:
        """Return one column as it is stored; only its memory layout may differ from `field`."""
        if not have_same_values(column.type, field.type):
            raise SchemaError(
                f"column {field.name!r} of table {self.table_name!r} is declared as {field.type} "
                f"but the batch has {column.type}: cast it first",
                table=self.table_name,
                column=field.name,
            )
        if column.null_count and not field.nullable:
            raise SchemaError(
                f"column {field.name!r} of table {self.table_name!r} is declared without nulls "
                f"but {column.null_count} of {len(column)} rows are null",
                table=self.table_name,
                column=field.name,
            )
        return relay(column, stored_type(field.type))

    def to_declared(self, rows: pa.Table) -> pa.Table:
        """Return stored rows as the user declared them, without the table's own columns."""
        columns = []
        for field in self.declared:
            column: Any = rows.column(field.name)
            if not column.type.equals(field.type):
                chunks = [relay(chunk, field.type) for chunk in column.chunks]
                column = pa.chunked_array(chunks, field.type)
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=self.declared)


@lru_cache(maxsize=256)
def _schema_of(
    table_name: str,
    arrow_schema: bytes,
    key_columns: tuple[str, ...],
    time_column: str,
    domain: state_pb2.TimeDomain,
) -> TimeKeyedSchema:
    """Check a declaration once per process, not once per epoch."""
    schema = pa.ipc.read_schema(pa.py_buffer(arrow_schema))
    return TimeKeyedSchema(table_name, schema, key_columns, time_column, domain)


def domain_of(config: state_pb2.TimeKeyedTableConfig) -> state_pb2.TimeDomain:
    """Return by which clock the rows of a declared table expire."""
    return config.time_domain or state_pb2.EVENT_TIME


def expiry_column(expires_at: ExpiresAt, row_count: int, *, table: str) -> "pa.Array[Any]":
    """Return the stored expiry of each row."""
    if expires_at is None:
        return pa.nulls(row_count, EXPIRY_TYPE)
    if isinstance(expires_at, int):
        return pa.array(np.full(row_count, expires_at, np.int64)).view(EXPIRY_TYPE)
    if len(expires_at) != row_count:
        raise SchemaError(
            f"table {table!r} was given {row_count} rows with {len(expires_at)} expiry times",
            table=table,
        )
    return (
        expires_at.cast(pa.timestamp("us", expires_at.type.tz))
        .cast(pa.int64())
        .view(EXPIRY_TYPE)
    )


def live_rows(rows: pa.RecordBatch, clock_micros: int | None) -> Flags | None:
    """Tell which stored rows are live; None when all of them are."""
    column: Any = rows.column(EXPIRES_AT)
    if clock_micros is None or column.null_count == len(column):
        return None
    live: Flags = micros_of(column) > clock_micros
    if column.null_count:
        live |= column.is_null().to_numpy(zero_copy_only=False)
    return None if live.all() else live


def micros_of(column: Any) -> Micros:
    """Return a microsecond column's raw values without copying; undefined where null."""
    return np.frombuffer(
        column.buffers()[1], dtype=np.int64, count=len(column), offset=column.offset * 8
    )
