"""What an operator declares about its tables: names, kinds, schemas and state classes.

A wrong declaration is refused here, when the pipeline is built, not at the first checkpoint.

    counts = global_table("counts", key_type=str, value_type=int)
    panes = time_keyed_table("panes", schema, key_columns=("user",), time_column="pane")
    sessions = keyed_table("sessions", SessionState, key_columns=("user",), ttl=hour_micros)

Typed tables take an Arrow schema, or a `MigratableState` class with a `SCHEMA`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa

from penstock.core.ids import TableName
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.state.files.migration import find_typed_chain_problems, state_version_of
from penstock.state.proto import state_pb2
from penstock.state.tables.columns import KeyedSchema, TimeKeyedSchema
from penstock.state.tables.expiry import TimeToLive
from penstock.state.tables.global_keyed_view import KeyValueTypes, ValueCodec


class TimeDomain(Enum):
    """By which clock rows expire and timers fire."""

    EVENT_TIME = "event-time"
    PROCESSING_TIME = "processing-time"


_DURABLE_DOMAINS = {
    TimeDomain.EVENT_TIME: state_pb2.EVENT_TIME,
    TimeDomain.PROCESSING_TIME: state_pb2.PROCESSING_TIME,
}


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table of an operator, checked and ready to be stored. Pickles to executors."""

    name: TableName
    table_type: state_pb2.TableEnum
    config: bytes
    """The kind's own config message."""
    state_version: int = 0
    """The version that the state is written with."""
    state_type: Any = None
    """What decodes and migrates the state: a state class, or a global table's types."""

    @property
    def expires_by(self) -> TimeDomain | None:
        """By which clock its rows expire; None if they never do."""
        if self.table_type == state_pb2.TIME_KEYED_TABLE:
            panes = state_pb2.TimeKeyedTableConfig.FromString(self.config)
            domain: state_pb2.TimeDomain | None = panes.time_domain
        elif self.table_type == state_pb2.KEYED_TABLE:
            keyed = state_pb2.KeyedTableConfig.FromString(self.config)
            domain = keyed.ttl_domain if keyed.HasField("ttl_micros") else None
        else:
            domain = None
        if domain is None:
            return None
        is_processing_time = domain == state_pb2.PROCESSING_TIME
        return TimeDomain.PROCESSING_TIME if is_processing_time else TimeDomain.EVENT_TIME

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
    """Declare key → value state shared by all subtasks; see `GlobalKeyedView`."""
    table = TableName(name)
    ValueCodec(key_type, what=f"key of table {name!r}")
    ValueCodec(value_type, what=f"value of table {name!r}")
    config = state_pb2.GlobalKeyedTableConfig(
        table_name=table,
        description=description,
        uses_two_phase_commit=uses_two_phase_commit,
    )
    return TableSpec(
        table,
        state_pb2.GLOBAL_KEYED_TABLE,
        config.SerializeToString(deterministic=True),
        state_version_of(value_type),
        KeyValueTypes(key_type, value_type),
    )


def time_keyed_table(
    name: str,
    schema: Any,
    *,
    time_column: str,
    key_columns: Sequence[str] = (),
    time_domain: TimeDomain = TimeDomain.EVENT_TIME,
    description: str = "",
    meaning: str = "",
) -> TableSpec:
    """Declare rows by time; see `TimeKeyedView`. They expire by the clock of `time_domain`.

    `meaning` says what their columns do not: state with another one is refused.
    """
    table = TableName(name)
    columns, state_type = _resolve_schema(table, schema, key_columns)
    declared = TimeKeyedSchema(
        table, columns, tuple(key_columns), time_column, _DURABLE_DOMAINS[time_domain]
    )
    config = declared.to_config(description, meaning).SerializeToString(deterministic=True)
    version = state_version_of(state_type)
    return TableSpec(table, state_pb2.TIME_KEYED_TABLE, config, version, state_type)


def keyed_table(
    name: str,
    schema: Any,
    *,
    key_columns: Sequence[str],
    ttl: int | None = None,
    ttl_domain: TimeDomain = TimeDomain.EVENT_TIME,
    time_column: str | None = None,
    routed_by: Sequence[str] = (),
    description: str = "",
) -> TableSpec:
    """Declare key → row state; see `KeyedView`.

    `ttl` in microseconds counts from the row's `time_column` by the watermark, or from the
    epoch that put the row by processing time. With `routed_by`, some of the key columns,
    rows live with the subtask that owns those: several rows for each key of a stream.
    """
    table = TableName(name)
    columns, state_type = _resolve_schema(table, schema, key_columns)
    time_to_live = (
        None if ttl is None else _time_to_live(table, ttl, ttl_domain, time_column)
    )
    declared = KeyedSchema(
        table, columns, tuple(key_columns), time_to_live, tuple(routed_by)
    )
    config = declared.to_config(description).SerializeToString(deterministic=True)
    version = state_version_of(state_type)
    return TableSpec(table, state_pb2.KEYED_TABLE, config, version, state_type)


def _time_to_live(
    table: str, ttl: int, domain: TimeDomain, time_column: str | None
) -> TimeToLive:
    if (time_column is None) == (domain is TimeDomain.EVENT_TIME):
        raise UserError(
            f"table {table!r} has a time to live by {domain.value} and the time column "
            f"{time_column!r}: event time needs a time column, processing time has none",
            code=ErrorCode.INVALID_SETTING,
            table=table,
        )
    return TimeToLive(ttl, time_column)


def _resolve_schema(
    table: str, schema: Any, key_columns: Sequence[str]
) -> tuple[pa.Schema, Any]:
    """Return the columns and the state class, if `schema` is one."""
    if isinstance(schema, pa.Schema):
        return schema, None
    problems = find_typed_chain_problems(schema, key_columns)
    if problems:
        raise SchemaError(
            f"table {table!r} cannot be declared so: {'; '.join(problems)}", table=table
        )
    return schema.SCHEMA, schema
