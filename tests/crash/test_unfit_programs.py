"""Programs that do not fit their job's state: refused with a reason, and nothing is lost."""

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pytest

from penstock.errors import ErrorCode, PenstockError, SchemaError, StateError
from penstock.state.files.migration import MigratableState
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.specs import (
    TableSpec,
    TimeDomain,
    global_table,
    keyed_table,
    time_keyed_table,
)
from penstock.state.tables.table_manager import TableManager
from penstock.testing import assert_job_is_whole, assert_nothing_was_changed
from tests.builders.shop import (
    KEY,
    NUMBER,
    SHOP,
    TIME,
    CountV2,
    RowV1,
    RowV2,
    RowV3,
    ShopEpoch,
    ShopModel,
    shop_specs,
)
from tests.builders.state_job import StateJob

ROWS = [(key, 1, 10) for key in "abcdefgh"]
VERSION = 2


@cache
def two_epochs() -> tuple[dict[str, bytes], ShopModel]:
    """A job whose first epoch was written by version 1 and whose second by version 2."""
    job, model = StateJob(shop_specs(1), parallelism=2), ShopModel()
    for version in (1, 2):
        job.start(specs=shop_specs(version))
        epoch = ShopEpoch(job, model, version)
        epoch.apply(
            [
                ("put", "totals", ROWS[version:]),
                ("put", "recent", ROWS[version:]),
                ("put", "lines", ROWS[version:]),
                ("insert_panes", ROWS[version:], None),
                ("insert_marks", 0, ROWS[version:], None),
                ("count", 0, f"by version {version}", 1),
            ]
        )
        assert job.publish(job.checkpoint_subtasks()) is None
        model = epoch.finished(None)
    assert isinstance(job.store, MemoryStore)
    return job.store.contents(), model


def read_everything(managers: list[TableManager]) -> None:
    for manager in managers:
        dict(manager.get_global_keyed_state("counts").items())
        for table in ("totals", "recent", "lines"):
            list(manager.get_keyed_state(table).scan())
        for table in ("panes", "marks"):
            manager.get_time_keyed_state(table).rows()


def replaced(spec: TableSpec) -> list[TableSpec]:
    """The fitting program with one table declared otherwise."""
    return [spec if one.name == spec.name else one for one in shop_specs(VERSION)[SHOP]]


def without(name: str) -> list[TableSpec]:
    return [one for one in shop_specs(VERSION)[SHOP] if one.name != name]


def totals(schema: Any, **options: Any) -> TableSpec:
    defaults: dict[str, Any] = {"key_columns": ["key"], "ttl": 20, "time_column": "time"}
    return keyed_table("totals", schema, **(defaults | options))


def chain(schema: Any, migrate: Callable[[Any], Any], before: Any = RowV2) -> Any:
    """A version 3 on top of the second, which migrates as it is told."""

    class Unfit(MigratableState):
        VERSION: ClassVar[int] = before.VERSION + 1
        PreviousVersion: ClassVar[Any] = before
        SCHEMA: ClassVar[pa.Schema | None] = schema

        @classmethod
        def migrate(cls, previous: Any) -> Any:
            return migrate(previous)

    return Unfit


class EditedV1(MigratableState):
    """Version 1 as somebody changed it after its state was written."""

    VERSION: ClassVar[int] = 1
    SCHEMA: ClassVar[pa.Schema | None] = pa.schema(
        [KEY, NUMBER, TIME, pa.field("forgotten", pa.int8())]
    )


class RetypedV1(MigratableState):
    VERSION: ClassVar[int] = 1
    SCHEMA: ClassVar[pa.Schema | None] = pa.schema(
        [KEY, pa.field("value", pa.bool_()), TIME]
    )


def on_top_of(first: Any) -> Any:
    """The second version, on another first one."""

    class SecondV2(MigratableState):
        VERSION: ClassVar[int] = 2
        PreviousVersion: ClassVar[Any] = first
        SCHEMA: ClassVar[pa.Schema | None] = RowV2.SCHEMA

        @classmethod
        def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
            return RowV2.migrate(previous)

    return SecondV2


class BrokenCount(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 3
    PreviousVersion: ClassVar[Any] = CountV2
    value: int

    @classmethod
    def migrate(cls, previous: CountV2) -> "BrokenCount":
        raise ValueError("cannot make sense of it")


class OnlyNewCount(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 2
    value: int


def drop_a_row(rows: pa.RecordBatch) -> pa.RecordBatch:
    return RowV3.migrate(rows).slice(1)


def change_keys(rows: pa.RecordBatch) -> pa.RecordBatch:
    migrated = RowV3.migrate(rows)
    keys = pa.array([f"{key}!" for key in migrated.column("key").to_pylist()])
    return migrated.set_column(0, KEY, keys)


def fail(_rows: Any) -> Any:
    raise RuntimeError("the disk of the user is on fire")


PROGRAMS: dict[str, tuple[Callable[[], list[TableSpec]], ErrorCode, str]] = {
    "an older program": (
        lambda: shop_specs(1)[SHOP],
        ErrorCode.UNSUPPORTED_STATE_VERSION,
        "newer than the declared 1",
    ),
    "a chain without the first version": (
        lambda: replaced(
            global_table("counts", str, OnlyNewCount, uses_two_phase_commit=True)
        ),
        ErrorCode.UNSUPPORTED_STATE_VERSION,
        "understands 2 to 2",
    ),
    "another kind of table": (
        lambda: replaced(global_table("totals")),
        ErrorCode.TABLE_TYPE_MISMATCH,
        "declared as GLOBAL_KEYED_TABLE, but its checkpoint holds a KEYED_TABLE",
    ),
    "a table that is gone": (
        lambda: without("panes"),
        ErrorCode.NO_REGISTERED_TABLE,
        "allow dropped tables explicitly",
    ),
    "other key columns": (
        lambda: replaced(totals(RowV2, key_columns=["time"])),
        ErrorCode.SCHEMA_MISMATCH,
        "keys decide where state lives",
    ),
    "other columns in the same version": (
        lambda: replaced(totals(chain(RowV3.SCHEMA, fail, before=RowV1))),
        ErrorCode.SCHEMA_MISMATCH,
        "without a new state version",
    ),
    "another clock": (
        lambda: replaced(
            totals(RowV2, time_column=None, ttl_domain=TimeDomain.PROCESSING_TIME)
        ),
        ErrorCode.SCHEMA_MISMATCH,
        "time to live",
    ),
    "a migration that raises": (
        lambda: replaced(totals(chain(RowV3.SCHEMA, fail))),
        ErrorCode.MIGRATION_FAILED,
        "on fire",
    ),
    "a migration that loses rows": (
        lambda: replaced(totals(chain(RowV3.SCHEMA, drop_a_row))),
        ErrorCode.MIGRATION_FAILED,
        "rows into",
    ),
    "a migration that changes keys": (
        lambda: replaced(totals(chain(RowV3.SCHEMA, change_keys))),
        ErrorCode.MIGRATION_FAILED,
        "changed the key column 'key'",
    ),
    "a migration that returns nothing": (
        lambda: replaced(totals(chain(RowV3.SCHEMA, lambda _rows: None))),
        ErrorCode.MIGRATION_FAILED,
        "not a record batch",
    ),
    "a migration into other columns": (
        lambda: replaced(totals(chain(RowV3.SCHEMA, lambda rows: rows))),
        ErrorCode.MIGRATION_FAILED,
        "it returned columns",
    ),
    "a migration of values that raises": (
        lambda: replaced(
            global_table("counts", str, BrokenCount, uses_two_phase_commit=True)
        ),
        ErrorCode.MIGRATION_FAILED,
        "cannot make sense of it",
    ),
    "a first version with a column too many": (
        lambda: replaced(totals(on_top_of(EditedV1))),
        ErrorCode.SCHEMA_MISMATCH,
        "forgotten",
    ),
    "a first version with another type": (
        lambda: replaced(totals(on_top_of(RetypedV1))),
        ErrorCode.SCHEMA_MISMATCH,
        "value",
    ),
    "a first version of panes with a column too many": (
        lambda: replaced(
            time_keyed_table(
                "panes", on_top_of(EditedV1), key_columns=["key"], time_column="time"
            )
        ),
        ErrorCode.SCHEMA_MISMATCH,
        "forgotten",
    ),
    "a first version of panes with another type": (
        lambda: replaced(
            time_keyed_table(
                "panes", on_top_of(RetypedV1), key_columns=["key"], time_column="time"
            )
        ),
        ErrorCode.SCHEMA_MISMATCH,
        "value",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_does_not_fit_is_refused_and_the_right_one_goes_on(
    name: str,
) -> None:
    declare, code, words = PROGRAMS[name]
    objects, model = two_epochs()
    job = StateJob({SHOP: declare()}, store=MemoryStore(objects), parallelism=2)
    assert isinstance(job.store, MemoryStore)
    before = job.store.contents()
    with pytest.raises((StateError, SchemaError)) as raised:
        read_everything(list(job.open_subtasks().values()))
    assert isinstance(raised.value, PenstockError)
    assert raised.value.code is code
    assert words in str(raised.value)
    assert_nothing_was_changed(before, job.store)
    assert_job_is_whole(job.checkpoints)
    job.start(specs=shop_specs(VERSION))
    ShopEpoch(job, model, VERSION).check()


@pytest.mark.parametrize("name", [n for n in PROGRAMS if "migration" in n])
def test_a_failing_migration_fails_a_compaction_too_and_replaces_nothing(name: str) -> None:
    declare, code, words = PROGRAMS[name]
    objects, model = two_epochs()
    job = StateJob({SHOP: declare()}, store=MemoryStore(objects), parallelism=1)
    with pytest.raises(StateError, match="The file is unchanged") as raised:
        job.compact(SHOP, 0)
    assert raised.value.code is code
    assert words in str(raised.value)
    job.start(specs=shop_specs(VERSION))
    ShopEpoch(job, model, VERSION).check()


def test_a_dropped_table_can_be_given_up_and_comes_back_empty() -> None:
    objects, _ = two_epochs()
    job = StateJob({SHOP: without("panes")}, store=MemoryStore(objects), parallelism=2)
    attempts = {index: job.attempt((SHOP, index)) for index in range(2)}
    managers = [
        TableManager.load(attempt, without("panes"), job.metadata[SHOP], allow_dropped=True)
        for attempt in attempts.values()
    ]
    job.managers = {(SHOP, index): m for index, m in enumerate(managers)}
    job.run_epoch()
    job.start(specs=shop_specs(VERSION))
    managers = list(job.open_subtasks().values())
    assert sum(m.get_time_keyed_state("panes").rows().num_rows for m in managers) == 0
