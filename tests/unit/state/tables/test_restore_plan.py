"""What starting an operator on a checkpoint means for its tables, told before any file is read."""

from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pytest

from penstock.core.batch import to_ipc
from penstock.core.ids import Epoch
from penstock.errors import ErrorCode, StateError
from penstock.state.files.migration import MigratableState
from penstock.state.proto import state_pb2
from penstock.state.tables.column_groups import ColumnGroup, Meaning
from penstock.state.tables.fit import (
    TableFate,
    TablePlan,
    check_restorable,
    plan_table_restore,
)
from penstock.state.tables.specs import (
    TableSpec,
    TimeDomain,
    global_table,
    keyed_table,
    time_keyed_table,
)
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import TableManager
from tests.builders.shop import SHOP, RowV1, RowV2, RowV3, shop_rows, shop_specs
from tests.unit.state.tables.table_builders import an_environment

Metadata = state_pb2.OperatorCheckpointMetadata
KEY: Any = pa.field("key", pa.string())
VALUE: Any = pa.field("value", pa.int64())
TIME: Any = pa.field("time", pa.timestamp("us"))
ROWS = pa.schema([KEY, VALUE, TIME])


def checkpointed(*specs: TableSpec, writes: bool = False) -> dict[int, Metadata]:
    """The metadata of an operator that declares these tables, with or without state."""
    manager = TableManager.load(an_environment(), specs, {})
    manager.begin_epoch(Frontier())
    if writes:
        for spec in specs:
            if spec.table_type == state_pb2.KEYED_TABLE:
                manager.get_keyed_state(spec.name).put(shop_rows([("a", 1, 1)]))
            elif spec.table_type == state_pb2.TIME_KEYED_TABLE:
                view = manager.get_time_keyed_state(spec.name)
                view.insert(shop_rows([("a", 1, 1)]), None)
    return {0: manager.checkpoint(Epoch(1), Epoch(1), None).metadata}


def plan_one(declared: TableSpec, stored: TableSpec) -> TablePlan:
    (plan,) = plan_table_restore([declared], checkpointed(stored))
    return plan


def refused(declared: TableSpec, stored: TableSpec, code: ErrorCode) -> str:
    """Return what a user is told when the declaration does not fit the checkpoint."""
    plan = plan_one(declared, stored)
    assert plan.fate is TableFate.INCOMPATIBLE
    with pytest.raises(StateError, match="Nothing was changed") as raised:
        check_restorable("op", [plan])
    assert raised.value.code is code
    assert plan.detail in str(raised.value)
    return plan.detail


def keyed(schema: Any = ROWS, **options: Any) -> TableSpec:
    return keyed_table("table", schema, key_columns=["key"], **options)


def test_every_table_declared_or_stored_gets_a_fate() -> None:
    stored = checkpointed(keyed_table("gone", ROWS, key_columns=["key"]), keyed())
    plans = plan_table_restore([keyed(), global_table("fresh")], stored)
    assert [(plan.table, plan.fate) for plan in plans] == [
        ("fresh", TableFate.NEW),
        ("gone", TableFate.DROPPED),
        ("table", TableFate.UNCHANGED),
    ]


def test_a_fresh_start_plans_only_new_tables() -> None:
    plans = plan_table_restore([keyed()], {})
    assert [plan.fate for plan in plans] == [TableFate.NEW]
    check_restorable("op", plans)


def test_dropping_a_table_is_refused_unless_it_is_allowed() -> None:
    plans = plan_table_restore([], checkpointed(keyed()))
    with pytest.raises(
        StateError, match=r"'table' is dropped.*no longer declares"
    ) as raised:
        check_restorable("op", plans)
    assert raised.value.code is ErrorCode.NO_REGISTERED_TABLE
    check_restorable("op", plans, allow_dropped=True)


def test_allowing_dropped_tables_does_not_allow_incompatible_ones() -> None:
    plans = plan_table_restore([keyed(pa.schema([KEY]))], checkpointed(keyed()))
    with pytest.raises(StateError, match="incompatible"):
        check_restorable("op", plans, allow_dropped=True)


def test_all_problems_are_reported_at_once() -> None:
    stored = checkpointed(keyed(), global_table("one"), global_table("two"))
    plans = plan_table_restore([keyed(pa.schema([KEY]))], stored)
    with pytest.raises(StateError, match=r"'one'.*'table'|'table'.*'one'") as raised:
        check_restorable("op", plans)
    assert "'two'" in str(raised.value)
    assert "operator 'op'" in str(raised.value)


def test_files_of_older_versions_are_listed_with_the_steps_they_need() -> None:
    specs = shop_specs(1)[SHOP]
    stored = checkpointed(*specs, writes=True)
    plans = {plan.table: plan for plan in plan_table_restore(shop_specs(3)[SHOP], stored)}
    assert plans["totals"].fate is TableFate.MIGRATED
    assert "1 of 1 files" in plans["totals"].detail
    assert "1 → 2 (RowV2.migrate)" in plans["totals"].detail
    assert "2 → 3 (RowV3.migrate)" in plans["totals"].detail
    (path,) = plans["totals"].migrated_files
    assert "totals-000" in path
    assert plans["counts"].fate is TableFate.UNCHANGED, "it holds no file to migrate"
    check_restorable("op", plans.values())


def test_state_of_a_newer_program_is_refused() -> None:
    detail = refused(keyed(RowV1), keyed(RowV3), ErrorCode.UNSUPPORTED_STATE_VERSION)
    assert "version 3" in detail
    assert "newer than the declared 1" in detail


def test_a_chain_that_does_not_reach_back_to_the_stored_version_is_refused() -> None:
    class Later(MigratableState):
        VERSION: ClassVar[int] = 5
        SCHEMA: ClassVar[pa.Schema | None] = ROWS

    specs = [keyed_table("table", RowV1, key_columns=["key"])]
    plans = plan_table_restore([keyed(Later)], checkpointed(*specs, writes=True))
    with pytest.raises(StateError, match="understands 5 to 5") as raised:
        check_restorable("op", plans)
    assert raised.value.code is ErrorCode.UNSUPPORTED_STATE_VERSION


def test_rows_of_a_plain_first_schema_are_compared_with_the_class_that_stands_for_it() -> (
    None
):
    class First:
        SCHEMA: ClassVar[pa.Schema | None] = ROWS

    class Edited:
        SCHEMA: ClassVar[pa.Schema | None] = RowV3.SCHEMA

    def second(previous: type) -> type:
        members = {
            "VERSION": 2,
            "PreviousVersion": previous,
            "SCHEMA": RowV3.SCHEMA,
            "migrate": RowV3.migrate,
        }
        return type("Second", (MigratableState,), members)

    stored = checkpointed(keyed(), writes=True)
    (plan,) = plan_table_restore([keyed(second(First))], stored)
    assert plan.fate is TableFate.MIGRATED
    (plan,) = plan_table_restore([keyed(second(Edited))], stored)
    assert plan.fate is TableFate.INCOMPATIBLE
    assert "Edited is version 0, but state of that version was written" in plan.detail


def test_a_global_table_migrates_by_its_value_type() -> None:
    class Old(msgspec.Struct, MigratableState):
        VERSION: ClassVar[int] = 1
        n: int

    class New(msgspec.Struct, MigratableState):
        VERSION: ClassVar[int] = 2
        PreviousVersion: ClassVar[Any] = Old
        n: int

        @classmethod
        def migrate(cls, previous: Old) -> "New":
            return cls(previous.n)

    manager = TableManager.load(an_environment(), [global_table("t", str, Old)], {})
    manager.begin_epoch(Frontier())
    manager.get_global_keyed_state("t").insert("a", Old(1))
    stored = {0: manager.checkpoint(Epoch(1), Epoch(1), None).metadata}
    (plan,) = plan_table_restore([global_table("t", str, New)], stored)
    assert plan.fate is TableFate.MIGRATED
    assert "1 → 2 (New.migrate)" in plan.detail


@pytest.mark.parametrize(
    ("declared", "stored", "names"),
    [
        (global_table("table"), keyed(), ("KEYED_TABLE", "GLOBAL_KEYED_TABLE")),
        (
            time_keyed_table("table", ROWS, time_column="time"),
            global_table("table"),
            ("GLOBAL_KEYED_TABLE", "TIME_KEYED_TABLE"),
        ),
    ],
)
def test_another_kind_of_table_is_refused(
    declared: TableSpec, stored: TableSpec, names: tuple[str, str]
) -> None:
    detail = refused(declared, stored, ErrorCode.TABLE_TYPE_MISMATCH)
    assert f"was a {names[0]}" in detail
    assert f"declared a {names[1]}" in detail


def test_a_kind_of_table_that_only_a_newer_program_knows_is_refused() -> None:
    stored = checkpointed(keyed())
    unknown: Any = 99
    stored[0].table_configs["table"].table_type = unknown
    plans = plan_table_restore([keyed()], stored)
    with pytest.raises(StateError, match=r"99.*KEYED_TABLE") as raised:
        check_restorable("op", plans)
    assert raised.value.code is ErrorCode.TABLE_TYPE_MISMATCH


def test_other_key_columns_are_refused_whatever_the_version() -> None:
    stored = keyed_table("table", RowV1, key_columns=["key"])
    declared = keyed_table("table", RowV2, key_columns=["value", "key"])
    detail = refused(declared, stored, ErrorCode.SCHEMA_MISMATCH)
    assert "['key']" in detail
    assert "['value', 'key']" in detail


def test_a_key_column_of_another_type_is_refused_whatever_the_version() -> None:
    class Renumbered(MigratableState):
        VERSION: ClassVar[int] = 7
        SCHEMA: ClassVar[pa.Schema | None] = pa.schema(
            [pa.field("key", pa.int64()), VALUE, TIME]
        )

    detail = refused(keyed(Renumbered), keyed(RowV1), ErrorCode.SCHEMA_MISMATCH)
    assert "key column 'key'" in detail
    assert "string" in detail
    assert "int64" in detail


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pa.schema([KEY, TIME]), "value"),
        (pa.schema([KEY, VALUE, TIME, pa.field("more", pa.int8())]), "more"),
        (pa.schema([KEY, pa.field("value", pa.float64()), TIME]), "value"),
        (pa.schema([KEY, VALUE.with_nullable(nullable=False), TIME]), "value"),
    ],
)
def test_other_columns_without_a_new_version_are_refused(
    schema: pa.Schema, words: str
) -> None:
    detail = refused(keyed(schema), keyed(), ErrorCode.SCHEMA_MISMATCH)
    assert "without a new state version" in detail
    assert words in detail


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([TIME, VALUE, KEY]),
        pa.schema([pa.field("key", pa.large_string()), VALUE, TIME]),
        pa.schema([pa.field("key", pa.dictionary(pa.int32(), pa.string())), VALUE, TIME]),
    ],
)
def test_another_order_or_memory_layout_of_the_same_columns_is_no_change(
    schema: pa.Schema,
) -> None:
    """Tables read each as the other, so nobody has to invent a migration for it."""
    assert plan_one(keyed(schema), keyed()).fate is TableFate.UNCHANGED


def test_a_schema_that_a_library_encodes_anew_is_the_same_schema() -> None:
    """Arrow may change the bytes of a schema in any release; only its meaning counts."""
    stored = checkpointed(keyed())
    config = state_pb2.KeyedTableConfig.FromString(stored[0].table_configs["table"].config)
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS, options=options):
        pass
    reencoded = sink.getvalue().to_pybytes()
    assert pa.ipc.read_schema(pa.py_buffer(reencoded)) == ROWS
    assert reencoded[: len(config.arrow_schema)] != config.arrow_schema
    config.arrow_schema = reencoded
    stored[0].table_configs["table"].config = config.SerializeToString()
    (plan,) = plan_table_restore([keyed()], stored)
    assert plan.fate is TableFate.UNCHANGED


def test_an_older_version_that_was_edited_afterwards_is_refused() -> None:
    class EditedV1(MigratableState):
        VERSION: ClassVar[int] = 1
        SCHEMA: ClassVar[pa.Schema | None] = pa.schema([KEY, TIME])

    class OnTopV2(MigratableState):
        VERSION: ClassVar[int] = 2
        PreviousVersion: ClassVar[Any] = EditedV1
        SCHEMA: ClassVar[pa.Schema | None] = pa.schema([KEY, TIME])

        @classmethod
        def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
            return previous

    detail = refused(keyed(OnTopV2), keyed(RowV1), ErrorCode.SCHEMA_MISMATCH)
    assert "EditedV1" in detail
    assert "value" in detail


def test_a_longer_or_shorter_time_to_live_is_fine() -> None:
    """Rows keep the expiry they were put with."""
    before = keyed(ttl=10, time_column="time")
    assert plan_one(keyed(ttl=99, time_column="time"), before).fate is TableFate.UNCHANGED


def test_a_time_to_live_may_be_added() -> None:
    after = keyed(ttl=10, time_column="time")
    assert plan_one(after, keyed()).fate is TableFate.UNCHANGED


def test_another_clock_for_the_time_to_live_is_refused() -> None:
    """An expiry by one clock means nothing to the other: rows would die, or come back."""
    by_event = keyed(ttl=10, time_column="time")
    by_processing = keyed(ttl=10, ttl_domain=TimeDomain.PROCESSING_TIME)
    for declared, stored in [
        (by_processing, by_event),
        (by_event, by_processing),
        (keyed(), by_event),
    ]:
        detail = refused(declared, stored, ErrorCode.SCHEMA_MISMATCH)
        assert "time to live" in detail


def test_a_column_of_no_group_is_not_dropped_beside_one_that_is_in_a_group() -> None:
    fill = to_ipc([pa.RecordBatch.from_pylist([{"value": 0}])], pa.schema([VALUE]))
    group = ColumnGroup("value", ("value",), Meaning("a sum"), fill)
    stored = keyed(groups=[group])
    declared = keyed(pa.schema([KEY, VALUE]), groups=[group])
    told = refused(declared, stored, ErrorCode.SCHEMA_MISMATCH)
    assert "'time' is gone" in told
