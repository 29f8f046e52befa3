"""Declarations: right ones become configs, wrong ones fail at once with all that is wrong."""

import pickle
from datetime import timedelta
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.state.files.migration import MigratableState
from penstock.state.proto import state_pb2
from penstock.state.tables.fit import find_mismatch
from penstock.state.tables.specs import (
    TimeDomain,
    global_table,
    keyed_table,
    time_keyed_table,
)
from tests.unit.state.files.file_builders import a_schema

EVENTS = a_schema(user=pa.string(), at=pa.timestamp("us"), n=pa.int64())


class EventsV0(MigratableState):
    SCHEMA: ClassVar[pa.Schema | None] = a_schema(user=pa.string(), at=pa.timestamp("us"))


class Events(MigratableState):
    VERSION: ClassVar[int] = 1
    PreviousVersion: ClassVar[Any] = EventsV0
    SCHEMA: ClassVar[pa.Schema | None] = EVENTS

    @classmethod
    def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
        return previous.append_column("n", pa.array([0] * previous.num_rows, pa.int64()))


def test_a_global_table_becomes_a_config() -> None:
    spec = global_table("counts", str, int, description="d", uses_two_phase_commit=True)
    config = spec.to_config()
    inner = state_pb2.GlobalKeyedTableConfig.FromString(config.config)
    assert (config.table_type, config.state_version) == (state_pb2.GLOBAL_KEYED_TABLE, 0)
    assert (inner.table_name, inner.description, inner.uses_two_phase_commit) == (
        "counts",
        "d",
        True,
    )


def test_a_time_keyed_table_becomes_a_config() -> None:
    spec = time_keyed_table("panes", EVENTS, key_columns=["user"], time_column="at")
    inner = state_pb2.TimeKeyedTableConfig.FromString(spec.to_config().config)
    assert (list(inner.key_columns), inner.time_column) == (["user"], "at")
    assert pa.ipc.read_schema(pa.py_buffer(inner.arrow_schema)).equals(EVENTS)


def test_a_keyed_table_becomes_a_config() -> None:
    spec = keyed_table("s", EVENTS, key_columns=["user"], ttl=5, time_column="at")
    inner = state_pb2.KeyedTableConfig.FromString(spec.to_config().config)
    assert (inner.ttl_micros, inner.ttl_domain) == (5, state_pb2.EVENT_TIME)
    by_clock = keyed_table(
        "s", EVENTS, key_columns=["user"], ttl=5, ttl_domain=TimeDomain.PROCESSING_TIME
    )
    inner = state_pb2.KeyedTableConfig.FromString(by_clock.to_config().config)
    assert inner.ttl_domain == state_pb2.PROCESSING_TIME


def test_rows_that_are_routed_by_a_part_of_their_key_say_so_in_the_config() -> None:
    spec = keyed_table("t", EVENTS, key_columns=["user", "n"], routed_by=["user"])
    config = state_pb2.KeyedTableConfig.FromString(spec.config)
    assert list(config.routing_columns) == ["user"]
    with pytest.raises(SchemaError, match="routed by 'at', which is no key column"):
        keyed_table("t", EVENTS, key_columns=["user", "n"], routed_by=["at"])


def test_rows_that_are_routed_otherwise_than_before_are_not_found_again() -> None:
    before = keyed_table("t", EVENTS, key_columns=["user", "n"])
    after = keyed_table("t", EVENTS, key_columns=["user", "n"], routed_by=["user"])
    assert find_mismatch(before, before.to_config()) is None
    mismatch = find_mismatch(after, before.to_config())
    assert mismatch is not None
    assert "routed by ['user', 'n'] and are declared to be routed by ['user']" in str(
        mismatch
    )


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "MISSING_TABLE_TYPE"), (9, "kind 9, which only a newer Penstock knows,")],
)
def test_a_stored_kind_that_no_table_has_is_named(number: Any, name: str) -> None:
    stored = state_pb2.TableConfig(table_type=number)
    mismatch = find_mismatch(global_table("t"), stored)
    assert mismatch is not None
    assert mismatch.detail == f"it was a {name} and is declared a GLOBAL_KEYED_TABLE"


def test_equal_declarations_give_equal_bytes_and_pickle() -> None:
    specs = [time_keyed_table("t", EVENTS, time_column="at") for _ in range(2)]
    assert specs[0] == specs[1]
    assert pickle.loads(pickle.dumps(specs[0])) == specs[0]


def test_a_state_class_gives_columns_and_version() -> None:
    for spec in (
        time_keyed_table("t", Events, key_columns=["user"], time_column="at"),
        keyed_table("t", Events, key_columns=["user"]),
    ):
        assert (spec.state_version, spec.state_type) == (1, Events)
        assert spec.to_config().state_version == 1


@pytest.mark.parametrize("name", ["", "a/b", "..", "ä", "x" * 200])
def test_a_name_that_cannot_be_part_of_a_path_is_refused(name: str) -> None:
    with pytest.raises(UserError) as raised:
        global_table(name)
    assert raised.value.code is ErrorCode.INVALID_NAME
    with pytest.raises(UserError, match="table name"):
        time_keyed_table(name, EVENTS, time_column="at")
    with pytest.raises(UserError, match="table name"):
        keyed_table(name, EVENTS, key_columns=["user"])


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"time_column": "when"}, "time column 'when' is not a column"),
        ({"time_column": "n"}, "must be a timestamp"),
        ({"time_column": "at", "key_columns": ["usr"]}, "did you mean 'user'"),
        ({"time_column": "at", "key_columns": ["user", "user"]}, "named 2 times"),
    ],
)
def test_a_time_keyed_table_with_wrong_roles_is_refused(
    options: dict[str, Any], hint: str
) -> None:
    with pytest.raises(SchemaError, match=hint) as raised:
        time_keyed_table("t", EVENTS, **options)
    assert "table 't'" in raised.value.message


def test_reserved_columns_and_types_without_a_form_are_refused() -> None:
    reserved = EVENTS.append(pa.field("_key_hash", pa.uint64()))
    with pytest.raises(SchemaError, match="_key_hash"):
        time_keyed_table("t", reserved, time_column="at")
    interval = EVENTS.append(pa.field("i", pa.month_day_nano_interval()))
    with pytest.raises(SchemaError, match="cannot be stored"):
        time_keyed_table("t", interval, time_column="at")


def test_a_state_class_whose_keys_change_is_refused() -> None:
    with pytest.raises(SchemaError, match="lacks the key columns"):
        time_keyed_table("t", Events, key_columns=["n"], time_column="at")
    with pytest.raises(SchemaError, match="int has no SCHEMA"):
        keyed_table("t", int, key_columns=["n"])


@pytest.mark.parametrize("ttl", ["1h", timedelta(hours=1), 3_600_000_000, "60m"])
def test_a_time_to_live_is_a_text_a_timedelta_or_microseconds(ttl: Any) -> None:
    spec = keyed_table("t", EVENTS, key_columns=["user"], ttl=ttl, time_column="at")
    assert state_pb2.KeyedTableConfig.FromString(spec.config).ttl_micros == 3_600_000_000


@pytest.mark.parametrize("ttl", ["an hour", 1.5, -1, True, ""])
def test_what_is_no_time_to_live_is_refused_and_names_the_table(ttl: Any) -> None:
    with pytest.raises(UserError, match="not a valid ttl of table 't'"):
        keyed_table("t", EVENTS, key_columns=["user"], ttl=ttl, time_column="at")


def test_a_clock_may_be_given_by_its_name() -> None:
    by_name = keyed_table(
        "t", EVENTS, key_columns=["user"], ttl="1h", ttl_domain="processing-time"
    )
    assert by_name.expires_by is TimeDomain.PROCESSING_TIME
    panes = time_keyed_table("t", EVENTS, time_column="at", time_domain="processing-time")
    assert panes.expires_by is TimeDomain.PROCESSING_TIME
    for wrong in ("wall clock", None, 5):
        domain: Any = wrong
        with pytest.raises(UserError, match=r"table 't': ttl_domain is .*'event-time' or"):
            keyed_table("t", EVENTS, key_columns=["user"], ttl="1h", ttl_domain=domain)


@pytest.mark.parametrize(
    ("domain", "time_column"),
    [(TimeDomain.EVENT_TIME, None), (TimeDomain.PROCESSING_TIME, "at")],
)
def test_a_time_to_live_whose_clock_and_column_disagree_is_refused(
    domain: TimeDomain, time_column: str | None
) -> None:
    with pytest.raises(UserError, match="event time needs a time column"):
        keyed_table(
            "t",
            EVENTS,
            key_columns=["user"],
            ttl=1,
            ttl_domain=domain,
            time_column=time_column,
        )


def test_types_that_msgpack_cannot_carry_are_refused() -> None:
    with pytest.raises(UserError, match="value of table 'counts'"):
        global_table("counts", str, complex)
    with pytest.raises(UserError, match="key of table 'counts'"):
        global_table("counts", complex, int)
