"""The schema of a keyed table: what users declare, what files hold, and what fits it.

Pure. A stored row is the user's columns plus `_key_hash`, `_operation` and `_expires_at`.
Value columns are nullable in files, because a tombstone has none.

The schema of a time-keyed table: what users declare, what files hold, when rows live.

Pure. A stored row is the user's columns plus `_key_hash` and `_expires_at`. A row is live
iff it never expires (null) or `_expires_at > clock`; at the very instant it is dead.
Without a clock, as before the first watermark, everything is live. Only comparisons are made, so no instant is too
early or too late.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.arrow_types import have_same_values, relay, stored_type
from penstock.core.hash_kernels import Hashes
from penstock.core.key_hash import check_key_type, hash_keys
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError
from penstock.state.files.parquet import KEY_HASH, check_storable
from penstock.state.proto import state_pb2
from penstock.state.tables.expiry import EXPIRY_TYPE, TimeToLive, check_time_column

OPERATION = "_operation"
EXPIRES_AT = "_expires_at"
RESERVED_COLUMNS = (KEY_HASH, OPERATION, EXPIRES_AT)
BOOKKEEPING_FIELDS: tuple["pa.Field[Any]", ...] = (
    pa.field(KEY_HASH, pa.uint64(), nullable=False),
    pa.field(OPERATION, pa.int8(), nullable=False),
    pa.field(EXPIRES_AT, EXPIRY_TYPE),
)


@dataclass(frozen=True)
class KeyedSchema:
    """One keyed table's columns, keys and time to live. Valid by construction."""

    table_name: str
    declared: pa.Schema
    key_columns: tuple[str, ...]
    ttl: TimeToLive | None = None
    routing_columns: tuple[str, ...] = ()
    """Those of the key columns that are hashed; () for all of them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "declared", self.declared.remove_metadata())
        problems = [
            f"column {name!r} has a reserved name"
            for name in self.declared.names
            if name in RESERVED_COLUMNS
        ]
        problems += [
            f"key column {name!r} is not in the schema"
            for name in self.key_columns
            if name not in self.declared.names
        ]
        problems += [
            f"rows are routed by {name!r}, which is no key column"
            for name in self.routing_columns
            if name not in self.key_columns
        ]
        if len(set(self.key_columns)) != len(self.key_columns):
            problems.append("a key column is named twice")
        if problems:
            raise SchemaError(
                f"table {self.table_name!r} cannot be declared so: {'; '.join(problems)}. Its "
                f"columns are {', '.join(self.declared.names)}",
                table=self.table_name,
            )
        for name in self.key_columns:
            check_key_type(self.declared.field(name).type)
        check_time_column(self.declared, self.ttl)
        self._check_round_trip()
        check_storable(self.stored, what=f"table {self.table_name!r}")

    @classmethod
    def from_config(cls, config: state_pb2.KeyedTableConfig) -> "KeyedSchema":
        """Read the durable declaration. Checked once per process: every epoch opens tables."""
        return _decode_schema(config.SerializeToString(deterministic=True))

    def to_config(self, description: str = "") -> state_pb2.KeyedTableConfig:
        """Return the durable declaration."""
        return state_pb2.KeyedTableConfig(
            table_name=self.table_name,
            description=description,
            arrow_schema=self.declared.serialize().to_pybytes(),
            key_columns=self.key_columns,
            ttl_micros=None if self.ttl is None else self.ttl.micros,
            ttl_domain=state_pb2.MISSING_TIME_DOMAIN
            if self.ttl is None
            else self.ttl.domain,
            time_column="" if self.ttl is None else self.ttl.time_column or "",
            routing_columns=self.routing_columns,
        )

    @cached_property
    def stored_columns(self) -> pa.Schema:
        """The user's columns as files hold them."""
        return pa.schema(
            [
                field.with_type(stored_type(field.type)).with_nullable(
                    field.nullable or field.name not in self.key_columns
                )
                for field in self.declared
            ]
        )

    @cached_property
    def stored(self) -> pa.Schema:
        """The columns of a stored row."""
        return pa.schema([*self.stored_columns, *BOOKKEEPING_FIELDS])

    def returned(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema of looked-up rows: as declared, but null where a key is missing."""
        names = self.declared.names if columns is None else list(columns)
        unknown = [name for name in names if name not in self.declared.names]
        if unknown:
            raise SchemaError(
                f"table {self.table_name!r} has no columns {', '.join(unknown)}; it has "
                f"{', '.join(self.declared.names)}",
                table=self.table_name,
            )
        return pa.schema(
            [self.declared.field(name).with_nullable(nullable=True) for name in names]
        )

    def keys_of(self, batch: pa.RecordBatch) -> list[Any]:
        """Return the key columns of any batch that has them, as stored."""
        return [self._column(batch, self.declared.field(name)) for name in self.key_columns]

    def columns_of(self, rows: pa.RecordBatch) -> list[Any]:
        """Return all columns of rows to be put, as stored; anything but the exact set is refused."""
        if set(rows.schema.names) != set(self.declared.names):
            missing = [
                name for name in self.declared.names if name not in rows.schema.names
            ]
            extra = [name for name in rows.schema.names if name not in self.declared.names]
            raise SchemaError(
                f"rows for table {self.table_name!r} must have exactly its columns "
                f"({', '.join(self.declared.names)}): missing {missing}, unknown {extra}",
                table=self.table_name,
            )
        return [self._column(rows, field) for field in self.declared]

    def lay_out(self, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return the columns of `schema` out of stored rows, in the types declared for users."""
        arrays = [relay(rows.column(field.name), field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def hashes_of(self, keys: Sequence[Any], row_count: int) -> Hashes:
        """Hash the key columns that decide where rows live."""
        if self.routing_columns:
            by_name = dict(zip(self.key_columns, keys, strict=True))
            keys = [by_name[name] for name in self.routing_columns]
        return hash_keys(keys, row_count=row_count)

    def _check_round_trip(self) -> None:
        """Refuse a column that could be stored but not be handed back as declared."""
        for field in self.declared:
            stored: Any = stored_type(field.type)
            try:
                relay(pa.nulls(1, stored), field.type)
            except pa.ArrowException as error:
                raise SchemaError(
                    f"column {field.name!r} of table {self.table_name!r} cannot be "
                    f"{field.type}: {error}. Declare it as {stored}",
                    code=ErrorCode.UNSUPPORTED_VALUE_TYPE,
                    table=self.table_name,
                    column=field.name,
                ) from error

    def _column(self, batch: pa.RecordBatch, field: "pa.Field[Any]") -> Any:
        """Return one column in its stored type; only the memory layout may have to change."""
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            raise SchemaError(
                f"the batch has no single column {field.name!r}, which table "
                f"{self.table_name!r} needs; it has {', '.join(batch.schema.names)}",
                table=self.table_name,
                column=field.name,
            )
        column = batch.column(index)
        if not field.nullable and column.null_count:
            raise SchemaError(
                f"column {field.name!r} of table {self.table_name!r} is declared without nulls "
                f"but {column.null_count} of {len(column)} rows are null",
                table=self.table_name,
                column=field.name,
            )
        wanted = stored_type(field.type)
        return column if column.type.equals(wanted) else self._relaid(column, field, wanted)

    def _relaid(self, column: Any, field: "pa.Field[Any]", wanted: pa.DataType) -> Any:
        try:
            if have_same_values(column.type, wanted):
                return relay(column, wanted)
        except pa.ArrowException as error:
            raise self._unfit(column, field) from error
        raise self._unfit(column, field)

    def _unfit(self, column: Any, field: "pa.Field[Any]") -> SchemaError:
        return SchemaError(
            f"column {field.name!r} of table {self.table_name!r} is declared as {field.type} "
            f"but the batch has {column.type}: cast it first",
            code=ErrorCode.SCHEMA_MISMATCH,
            table=self.table_name,
            column=field.name,
        )


@lru_cache(maxsize=256)
def _decode_schema(data: bytes) -> KeyedSchema:
    config = state_pb2.KeyedTableConfig.FromString(data)
    ttl = None
    if config.HasField("ttl_micros"):
        ttl = TimeToLive(config.ttl_micros, config.time_column or None)
    schema = pa.ipc.read_schema(pa.py_buffer(config.arrow_schema))
    keys, routing = tuple(config.key_columns), tuple(config.routing_columns)
    return KeyedSchema(config.table_name, schema, keys, ttl, routing)


TIME_BOOKKEEPING_FIELDS: tuple["pa.Field[Any]", ...] = (
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
        return pa.schema([*columns, *TIME_BOOKKEEPING_FIELDS])

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
