"""What an operator declares about its tables: names, kinds, schemas and state classes.

A wrong declaration is refused here, when the pipeline is built, not at the first checkpoint.

    counts = global_table("counts", key_type=str, value_type=int)
    panes = time_keyed_table("panes", schema, key_columns=("user",), time_column="pane")
    sessions = keyed_table("sessions", SessionState, key_columns=("user",), ttl="1h", time_column="at")

Typed tables take an Arrow schema, or a `MigratableState` class with a `SCHEMA`. Keys and
values of global tables are msgpack: self-describing, typed, never pickled. A type that msgpack
cannot encode is refused when the table is declared. A value that would be decoded as another
value is refused when it is inserted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import msgspec
import pyarrow as pa
from google.protobuf.message import Message
from msgspec import inspect

from penstock.core.clock import DurationLike, to_micros
from penstock.core.ids import TableName
from penstock.errors import ErrorCode, SchemaError, StateError, UserError, did_you_mean
from penstock.state.files.migration import find_typed_chain_problems, resolve_chain
from penstock.state.proto import state_pb2
from penstock.state.tables.column_groups import (
    ColumnGroup,
    ColumnGroups,
    GroupChange,
    decide_groups,
    stored_groups,
    with_groups,
)
from penstock.state.tables.columns import KeyedSchema, TimeKeyedSchema
from penstock.state.tables.expiry import TimeToLive

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_UNORDERED_ENCODER = msgspec.msgpack.Encoder()


class TimeDomain(Enum):
    """The clock by which rows expire and timers fire."""

    EVENT_TIME = "event-time"
    PROCESSING_TIME = "processing-time"


def to_time_domain(value: object, option: str, *, where: str) -> TimeDomain:
    """Return the clock that an option names, as a `TimeDomain` or its value.

    >>> to_time_domain("event-time", "ttl_domain", where="'t'")
    <TimeDomain.EVENT_TIME: 'event-time'>
    """
    spelled = [domain.value for domain in TimeDomain]
    if isinstance(value, TimeDomain):
        return value
    if isinstance(value, str) and value in spelled:
        return TimeDomain(value)
    raise UserError(
        f"{where}: {option} is {value!r}{did_you_mean(str(value), spelled)}: use "
        + " or ".join(map(repr, spelled)),
        code=ErrorCode.INVALID_CONFIG,
    )


_DURABLE_DOMAINS = {
    TimeDomain.EVENT_TIME: state_pb2.EVENT_TIME,
    TimeDomain.PROCESSING_TIME: state_pb2.PROCESSING_TIME,
}


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table of an operator, checked and ready to be stored. It is sent to executors."""

    name: TableName
    table_type: state_pb2.TableEnum
    config: bytes
    """The config message of the table's kind, encoded."""
    state_version: int = 0
    """The state version that files are written with."""
    state_type: Any = None
    """What decodes and migrates the state: a state class, column groups, or a global table's
    types."""

    @property
    def expires_by(self) -> TimeDomain | None:
        """The clock by which its rows expire; None if they never expire."""
        if self.table_type == state_pb2.TIME_KEYED_TABLE:
            domain = state_pb2.TimeKeyedTableConfig.FromString(self.config).time_domain
        elif self.table_type == state_pb2.KEYED_TABLE:
            keyed = state_pb2.KeyedTableConfig.FromString(self.config)
            if not keyed.HasField("ttl_micros"):
                return None
            domain = keyed.ttl_domain
        else:
            return None
        is_processing_time = domain == state_pb2.PROCESSING_TIME
        return TimeDomain.PROCESSING_TIME if is_processing_time else TimeDomain.EVENT_TIME

    @property
    def migrated_type(self) -> Any:
        """The class whose versions are migrated; for a global table that of its values."""
        is_pair = isinstance(self.state_type, KeyValueTypes)
        return self.state_type.value_type if is_pair else self.state_type

    def to_config(self) -> state_pb2.TableConfig:
        """Return the durable declaration."""
        return state_pb2.TableConfig(
            table_type=self.table_type, config=self.config, state_version=self.state_version
        )


def global_table(
    name: str,
    key_type: Any = str,
    value_type: Any = Any,
    *,
    description: str = "",
    uses_two_phase_commit: bool = False,
) -> TableSpec:
    """Declare key → value state shared by all subtasks; see `GlobalKeyedView`.

    Types are what msgpack holds, dataclasses and `msgspec` structs among them. A sink's table
    that `uses_two_phase_commit` holds what `ctx.insert_committing_data` is given.
    """
    table = TableName(name)
    ValueCodec(key_type, what=f"key of table {name!r}")
    ValueCodec(value_type, what=f"value of table {name!r}")
    config = state_pb2.GlobalKeyedTableConfig(
        table_name=table,
        description=description,
        uses_two_phase_commit=uses_two_phase_commit,
    )
    types = KeyValueTypes(key_type, value_type)
    return _spec(table, state_pb2.GLOBAL_KEYED_TABLE, config, types)


def time_keyed_table(
    name: str,
    schema: Any,
    *,
    time_column: str,
    key_columns: Sequence[str] = (),
    time_domain: TimeDomain | str = TimeDomain.EVENT_TIME,
    description: str = "",
    meaning: str = "",
    groups: Sequence[ColumnGroup] = (),
) -> TableSpec:
    """Declare rows by time; see `TimeKeyedView`. They expire by the clock of `time_domain`.

    `schema` is a `pa.Schema`, or a state class that has one as its `SCHEMA`. With
    `key_columns` rows are found by key, too.
    `meaning` describes the rows beyond their columns: state with another meaning is refused.
    Columns in `groups` may come and go; see `penstock.state.tables.column_groups`.
    """
    table = TableName(name)
    columns, state_type = _resolve_schema(table, schema, key_columns)
    domain = to_time_domain(time_domain, "time_domain", where=f"table {name!r}")
    declared = TimeKeyedSchema(
        table, columns, tuple(key_columns), time_column, _DURABLE_DOMAINS[domain]
    )
    config = declared.to_config(description, meaning)
    spec = _spec(table, state_pb2.TIME_KEYED_TABLE, config, state_type)
    return spec if not groups else _grouped(spec, config, ColumnGroups.new(groups))


def keyed_table(
    name: str,
    schema: Any,
    *,
    key_columns: Sequence[str],
    ttl: DurationLike | None = None,
    ttl_domain: TimeDomain | str = TimeDomain.EVENT_TIME,
    time_column: str | None = None,
    routed_by: Sequence[str] = (),
    description: str = "",
    groups: Sequence[ColumnGroup] = (),
) -> TableSpec:
    """Declare key → row state; see `KeyedView`.

    `schema` is a `pa.Schema`, or a state class that has one as its `SCHEMA`.
    `ttl` such as "1h" counts from the row's `time_column` by the watermark, or from the epoch
    that put the row by processing time. `routed_by` names some of the key columns: the
    subtask that owns their hash owns the row, so a key of the stream may have several rows,
    and all rows of such a prefix can be looked up; see `KeyedView.get_all`.
    Columns in `groups` may come and go; see `penstock.state.tables.column_groups`.
    """
    table = TableName(name)
    columns, state_type = _resolve_schema(table, schema, key_columns)
    domain = to_time_domain(ttl_domain, "ttl_domain", where=f"table {name!r}")
    if ttl is not None and (time_column is None) == (domain is TimeDomain.EVENT_TIME):
        raise UserError(
            f"table {table!r} has a time to live by {domain.value} and the time column "
            f"{time_column!r}: event time needs a time column, processing time has none",
            code=ErrorCode.INVALID_SETTING,
            table=table,
        )
    time_to_live = None
    if ttl is not None:
        time_to_live = TimeToLive(to_micros(ttl, f"ttl of table {name!r}"), time_column)
    declared = KeyedSchema(
        table, columns, tuple(key_columns), time_to_live, tuple(routed_by)
    )
    config = declared.to_config(description)
    spec = _spec(table, state_pb2.KEYED_TABLE, config, state_type)
    return spec if not groups else _grouped(spec, config, ColumnGroups.new(groups))


def follow_groups(
    spec: TableSpec, stored: state_pb2.TableConfig
) -> tuple[TableSpec, tuple[GroupChange, ...]]:
    """Return a declaration that can read stored state, and what becomes of its column groups.

    A table without groups is returned as it is. Both are of the same kind.
    """
    groups = spec.state_type
    if not isinstance(groups, ColumnGroups):
        return spec, ()
    kind: Any = state_pb2.KeyedTableConfig
    if spec.table_type == state_pb2.TIME_KEYED_TABLE:
        kind = state_pb2.TimeKeyedTableConfig
    config, before = kind.FromString(spec.config), kind.FromString(stored.config)
    declared = pa.ipc.read_schema(pa.py_buffer(config.arrow_schema)).names
    known = stored_groups(
        pa.ipc.read_schema(pa.py_buffer(before.arrow_schema)),
        [name for name in declared if name not in groups.columns],
    )
    groups, version, changes = decide_groups(groups, known, stored.state_version)
    return replace(_grouped(spec, config, groups), state_version=version), changes


def _grouped(spec: TableSpec, config: Any, groups: ColumnGroups) -> TableSpec:
    config.arrow_schema = with_groups(config.arrow_schema, groups)
    data = config.SerializeToString(deterministic=True)
    return replace(spec, config=data, state_type=groups)


def _spec(
    table: TableName, table_type: state_pb2.TableEnum, config: Message, state_type: Any
) -> TableSpec:
    """Return the declaration; its files are written with the version of the state class."""
    data = config.SerializeToString(deterministic=True)
    spec = TableSpec(table, table_type, data, state_type=state_type)
    version = resolve_chain(spec.migrated_type).current_version
    return replace(spec, state_version=version)


def _resolve_schema(
    table: str, schema: Any, key_columns: Sequence[str]
) -> tuple[pa.Schema, Any]:
    """Return the columns and the state class, if `schema` is one."""
    if isinstance(schema, pa.Schema):
        return schema, None
    problems = find_typed_chain_problems(schema, key_columns)
    if problems:
        raise SchemaError(
            f"table {table!r} cannot be declared so: {'; '.join(problems)}. Its columns are a "
            "pyarrow.Schema, or a state class that has one as its SCHEMA",
            table=table,
        )
    return schema.SCHEMA, schema


@dataclass(frozen=True, slots=True)
class KeyValueTypes:
    """The types of a global table; the `state_type` of its spec."""

    key_type: Any = Any
    value_type: Any = Any


class ValueCodec:
    """Encodes and decodes values of one type. Immutable."""

    def __init__(self, value_type: Any, *, what: str) -> None:
        """Refuse a type that msgpack cannot encode; `what` names it in messages."""
        self.value_type = value_type
        self._what = what
        try:
            self._decoder = msgspec.msgpack.Decoder(value_type)
            unknown = sorted(set(_foreign_types(inspect.type_info(value_type), set())))
        except (TypeError, ValueError) as error:
            raise _undeclarable(what, value_type, str(error)) from error
        if unknown:
            raise _undeclarable(what, value_type, f"msgpack has no form for {unknown[0]}")

    def encode(self, value: Any) -> bytes:
        """Return `value` as bytes: equal values of the type give equal bytes.

        Dictionaries with keys that are not text are an exception: their items keep their
        order.
        """
        try:
            data = _encode(value)
            decoded = self._decoder.decode(data)
            canonical = _encode(decoded)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            raise self._unsupported(value, str(error)) from error
        if not (decoded == value or (type(decoded) is type(value) and canonical == data)):
            raise self._unsupported(value, f"it would come back as {decoded!r:.80}")
        return canonical

    def encode_key(self, key: Any) -> bytes:
        """Return a key as bytes; it must be hashable, before and after decoding."""
        data = self.encode(key)
        try:
            hash(key)
            hash(self._decoder.decode(data))
        except TypeError as error:
            raise StateError(
                f"{key!r:.80} of type {type(key).__name__} cannot be a {self._what}: {error}",
                code=ErrorCode.UNSUPPORTED_KEY_TYPE,
                what=self._what,
            ) from error
        return data

    def decode(self, data: bytes) -> Any:
        """Return a new value; changing it changes nothing else."""
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise StateError(
                f"a stored {self._what} is not a {_name(self.value_type)}: {error}. If the class "
                "has changed, give it the next VERSION and a migration from the old one",
                code=ErrorCode.UNDECODABLE,
                what=self._what,
            ) from error

    def _unsupported(self, value: Any, problem: str) -> StateError:
        return StateError(
            f"{value!r:.80} of type {type(value).__name__} cannot be a {self._what} declared as "
            f"{_name(self.value_type)}: {problem}",
            code=ErrorCode.UNSUPPORTED_VALUE_TYPE,
            what=self._what,
        )


def _encode(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value)
    except TypeError:
        return _UNORDERED_ENCODER.encode(value)


def _foreign_types(node: Any, seen: set[int]) -> Iterator[str]:
    """Yield the types inside a type that msgspec would need a hook for."""
    if isinstance(node, tuple):
        for part in node:
            yield from _foreign_types(part, seen)
    elif isinstance(node, inspect.CustomType):
        yield _name(node.cls)
    elif isinstance(node, msgspec.Struct) and id(node) not in seen:
        seen.add(id(node))
        for field in node.__struct_fields__:
            yield from _foreign_types(getattr(node, field), seen)


def _undeclarable(what: str, value_type: Any, problem: str) -> UserError:
    return UserError(
        f"{_name(value_type)} cannot be the type of a {what}: {problem}. Use builtins, dates, "
        "UUID, Decimal, enums, tuples, dataclasses or msgspec.Struct",
        code=ErrorCode.UNSUPPORTED_VALUE_TYPE,
        what=what,
    )


def _name(value_type: Any) -> str:
    return value_type.__qualname__ if isinstance(value_type, type) else repr(value_type)
