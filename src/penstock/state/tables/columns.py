"""The schema of a typed table: what users declare, what files hold, and which rows fit it.

Pure. A stored row has the user's columns and the table's own: `_key_hash`, `_expires_at`, and
in a keyed table `_operation`. The value columns of a keyed table are nullable in files,
because a tombstone has no values. The rules which columns fit and which keys a subtask owns
are the same for both kinds of table.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.core.arrow_types import have_same_values, relay, stored_type
from penstock.core.batch import to_batch
from penstock.core.hash_kernels import Hashes
from penstock.core.ids import TaskInfo
from penstock.core.key_hash import check_key_type, hash_keys
from penstock.core.key_order import has_order
from penstock.core.rows import RowsLike
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, StateError
from penstock.state.files.parquet import KEY_HASH, check_storable
from penstock.state.proto import state_pb2
from penstock.state.tables.expiry import (
    EXPIRY_TYPE,
    TimeToLive,
    check_time_column,
)

OPERATION = "_operation"
EXPIRES_AT = "_expires_at"
_HASH_FIELD = pa.field(KEY_HASH, pa.uint64(), nullable=False)
_OPERATION_FIELD = pa.field(OPERATION, pa.int8(), nullable=False)
_EXPIRY_FIELD = pa.field(EXPIRES_AT, EXPIRY_TYPE)
RESERVED_COLUMNS = (KEY_HASH, OPERATION, EXPIRES_AT)


@dataclass(frozen=True)
class TypedSchema:
    """One table's columns and keys: the common part of keyed and time-keyed tables."""

    table_name: str
    declared: pa.Schema
    key_columns: tuple[str, ...]

    own_fields: ClassVar[tuple["pa.Field[Any]", ...]]
    """The columns that the table adds to the user's."""

    @property
    @abstractmethod
    def event_time_column(self) -> str | None:
        """The column whose bounds a file's list entry records."""

    @property
    @abstractmethod
    def stored_columns(self) -> pa.Schema:
        """The user's columns as files hold them."""

    @cached_property
    def stored(self) -> pa.Schema:
        """The columns of a stored row."""
        return pa.schema([*self.stored_columns, *self.own_fields])

    def rows_of(self, rows: RowsLike) -> pa.RecordBatch:
        """Return rows for the table as one batch; what cannot become rows is refused."""
        return self._converted(rows, None)

    def key_rows_of(self, keys: RowsLike) -> pa.RecordBatch:
        """Return keys as one batch; of a table with one key column their values are enough."""
        return self._converted(keys, self.key_columns)

    def _converted(self, rows: RowsLike, columns: Sequence[str] | None) -> pa.RecordBatch:
        try:
            return to_batch(rows, self.declared, columns)
        except (SchemaError, pa.ArrowException) as error:
            what = "rows" if columns is None else f"keys ({', '.join(columns)})"
            raise SchemaError(
                f"{what} were given to table {self.table_name!r} that do not fit it: {error}",
                table=self.table_name,
            ) from error

    def keys_of(self, batch: pa.RecordBatch) -> list[Any]:
        """Return the key columns of a batch in their stored types."""
        return [self._fit(batch, self.declared.field(name)) for name in self.key_columns]

    def columns_of(self, rows: pa.RecordBatch) -> list[Any]:
        """Return all columns of rows in their stored types; missing or further ones are refused."""
        if set(rows.schema.names) != set(self.declared.names):
            missing = [n for n in self.declared.names if n not in rows.schema.names]
            extra = [n for n in rows.schema.names if n not in self.declared.names]
            raise SchemaError(
                f"rows for table {self.table_name!r} must have exactly its columns "
                f"({', '.join(self.declared.names)}): missing {missing}, unknown {extra}",
                table=self.table_name,
            )
        return [self._fit(rows, field) for field in self.declared]

    def _fit(self, batch: pa.RecordBatch, field: "pa.Field[Any]") -> Any:
        """Return one column in its stored type; a difference beyond the layout is refused."""
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
        if column.type.equals(wanted):
            return column
        cause: Exception | None = None
        try:
            if have_same_values(column.type, wanted):
                return relay(column, wanted)
        except pa.ArrowException as error:
            cause = error
        raise SchemaError(
            f"column {field.name!r} of table {self.table_name!r} is declared as {field.type} "
            f"but the batch has {column.type}: cast it first",
            code=ErrorCode.SCHEMA_MISMATCH,
            table=self.table_name,
            column=field.name,
        ) from cause

    def hashes_of(self, keys: Sequence[Any], row_count: int) -> Hashes:
        """Hash the key columns that decide which subtask owns a row."""
        return hash_keys(keys, row_count=row_count)

    def owned_hashes(self, keys: Sequence[Any], row_count: int, task: TaskInfo) -> Hashes:
        """Return the key hashes; a key that another subtask owns is refused.

        Rows of such a key were routed wrongly, and after a restore no subtask would see them.
        """
        hashes = self.hashes_of(keys, row_count)
        self.check_owned(hashes, dict(zip(self.key_columns, keys, strict=True)), task)
        return hashes

    def check_owned(self, hashes: Hashes, keys: Mapping[str, Any], task: TaskInfo) -> None:
        """Refuse hashes of keys that another subtask owns."""
        owned = task.key_range
        if not len(hashes) or (int(hashes.min()) in owned and int(hashes.max()) in owned):
            return
        first, last = np.uint64(owned.start), np.uint64(owned.end - 1)
        index = int(np.flatnonzero((hashes < first) | (hashes > last))[0])
        key = {name: column[index].as_py() for name, column in keys.items()}
        raise StateError(
            f"key {key!r} does not belong to subtask {task.subtask.index} of "
            f"{task.subtask.parallelism} of operator {task.operator!r}: its hash "
            f"{int(hashes[index]):#x} is outside [{owned.start:#x}, {owned.end:#x}). Rows must "
            f"reach table {self.table_name!r} by its own key columns "
            f"({', '.join(self.key_columns)})",
            code=ErrorCode.KEY_OUT_OF_RANGE,
            table=self.table_name,
            operator=task.operator,
        )


@dataclass(frozen=True)
class KeyedSchema(TypedSchema):
    """One keyed table's columns, keys and time to live. Valid by construction."""

    ttl: TimeToLive | None = None
    routing_columns: tuple[str, ...] = ()
    """The key columns that are hashed; () for all of them."""

    own_fields: ClassVar[tuple["pa.Field[Any]", ...]] = (
        _HASH_FIELD,
        _OPERATION_FIELD,
        _EXPIRY_FIELD,
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "declared", self.declared.remove_metadata())
        names = self.declared.names
        keys, routed = self.key_columns, self.routing_columns
        problems = [
            *(f"column {n!r} has a reserved name" for n in names if n in RESERVED_COLUMNS),
            *(f"key column {n!r} is not in the schema" for n in keys if n not in names),
            *(
                f"rows are routed by {n!r}, which is no key column"
                for n in routed
                if n not in keys
            ),
        ]
        if len(set(self.key_columns)) != len(self.key_columns):
            problems.append("a key column is named twice")
        if problems:
            raise SchemaError(
                f"table {self.table_name!r} cannot be declared so: {'; '.join(problems)}. Its "
                f"columns are {', '.join(names)}",
                table=self.table_name,
            )
        for name in self.key_columns:
            check_key_type(self.declared.field(name).type)
        check_time_column(self.declared, self.ttl)
        for field in self.declared:
            # A column that could be stored but not be returned in its declared type is refused.
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
        check_storable(self.stored, what=f"table {self.table_name!r}")

    @classmethod
    @lru_cache(maxsize=256)
    def from_config(cls, data: bytes) -> "KeyedSchema":
        """Decode the durable declaration. Results are cached, as every epoch opens the tables."""
        config = state_pb2.KeyedTableConfig.FromString(data)
        ttl = None
        if config.HasField("ttl_micros"):
            ttl = TimeToLive(config.ttl_micros, config.time_column or None)
        schema = pa.ipc.read_schema(pa.py_buffer(config.arrow_schema))
        keys, routing = tuple(config.key_columns), tuple(config.routing_columns)
        return cls(config.table_name, schema, keys, ttl, routing)

    def to_config(self, description: str = "") -> state_pb2.KeyedTableConfig:
        """Return the durable declaration."""
        ttl = self.ttl
        return state_pb2.KeyedTableConfig(
            table_name=self.table_name,
            description=description,
            arrow_schema=self.declared.serialize().to_pybytes(),
            key_columns=self.key_columns,
            ttl_micros=None if ttl is None else ttl.micros,
            ttl_domain=state_pb2.MISSING_TIME_DOMAIN if ttl is None else ttl.domain,
            time_column=self.event_time_column or "",
            routing_columns=self.routing_columns,
        )

    @property
    def event_time_column(self) -> str | None:
        """The column that the time to live counts from."""
        return None if self.ttl is None else self.ttl.time_column

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
    def rest(self) -> tuple[str, ...]:
        """The key columns that are not hashed: they tell the rows of one prefix apart."""
        routed = self.routing_columns or self.key_columns
        return tuple(name for name in self.key_columns if name not in routed)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The columns by which rows of equal hash are in order; () if they are in none."""
        is_in_order = all(has_order(self.declared.field(name).type) for name in self.rest)
        return self.rest if is_in_order else ()

    def prefixes_of(self, prefixes: RowsLike) -> tuple[list[Any], int]:
        """Return the columns of prefixes in their stored types, and how many there are.

        Refused is what has no rows by prefix in order.
        """
        if not self.routing_columns:
            raise SchemaError(
                f"table {self.table_name!r} has one row per key: all rows of a part of its key "
                f"columns ({', '.join(self.key_columns)}) can be looked up if it is declared "
                "with these as routed_by",
                table=self.table_name,
            )
        if self.rest != self.order:
            columns = ", ".join(f"{n}: {self.declared.field(n).type}" for n in self.rest)
            raise SchemaError(
                f"the rows of table {self.table_name!r} have no order within a key of "
                f"{', '.join(self.routing_columns)}, because its other key columns ({columns}) "
                "hold lists: look rows up by their whole key, or use other key columns",
                table=self.table_name,
            )
        batch = self._converted(prefixes, self.routing_columns)
        fields = [self.declared.field(name) for name in self.routing_columns]
        return [self._fit(batch, field) for field in fields], batch.num_rows

    def returned(self, columns: str | Sequence[str] | None) -> pa.Schema:
        """Return the schema of looked-up rows: as declared, but nullable for missing keys."""
        columns = (columns,) if isinstance(columns, str) else columns
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

    def lay_out(self, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return the columns of `schema` out of stored rows, in the types declared for users."""
        arrays = [relay(rows.column(field.name), field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def hashes_of(self, keys: Sequence[Any], row_count: int) -> Hashes:
        """Hash the routing columns, which are all key columns unless declared otherwise."""
        if self.routing_columns:
            by_name = dict(zip(self.key_columns, keys, strict=True))
            keys = [by_name[name] for name in self.routing_columns]
        return hash_keys(keys, row_count=row_count)


@dataclass(frozen=True)
class TimeKeyedSchema(TypedSchema):
    """One time-keyed table's columns, keys and time. Valid by construction."""

    time_column: str
    domain: state_pb2.TimeDomain = state_pb2.EVENT_TIME
    """The clock by which rows expire."""

    own_fields: ClassVar[tuple["pa.Field[Any]", ...]] = (_HASH_FIELD, _EXPIRY_FIELD)

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
    @lru_cache(maxsize=256)
    def from_config(cls, data: bytes) -> "TimeKeyedSchema":
        """Decode the durable declaration. Results are cached, as every epoch opens the tables."""
        config = state_pb2.TimeKeyedTableConfig.FromString(data)
        schema = pa.ipc.read_schema(pa.py_buffer(config.arrow_schema))
        keys, domain = tuple(config.key_columns), domain_of(config)
        return cls(config.table_name, schema, keys, config.time_column, domain)

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
            # Event time is left out, because declarations in old checkpoints lack this field
            # and must compare equal.
            time_domain=None if self.domain == state_pb2.EVENT_TIME else self.domain,
            meaning=meaning,
        )

    @property
    def event_time_column(self) -> str | None:
        """The column that rows are found by."""
        return self.time_column

    @cached_property
    def stream(self) -> StreamSchema:
        """The user's columns with their roles."""
        return StreamSchema(self.declared, self.time_column, self.key_columns)

    @cached_property
    def stored_columns(self) -> pa.Schema:
        """The user's columns as files hold them."""
        return pa.schema([f.with_type(stored_type(f.type)) for f in self.declared])

    def owned_hashes(self, keys: Sequence[Any], row_count: int, task: TaskInfo) -> Hashes:
        """Return the key hashes; without key columns, rows belong to the subtask that writes."""
        if not self.key_columns:
            return np.full(row_count, task.key_range.start, np.uint64)
        return super().owned_hashes(keys, row_count, task)

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


def domain_of(config: state_pb2.TimeKeyedTableConfig) -> state_pb2.TimeDomain:
    """Return the clock by which the rows of a declared table expire."""
    return config.time_domain or state_pb2.EVENT_TIME
