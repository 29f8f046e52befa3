"""State versions: chains are checked when declared, planned without running, and run in order."""

import dataclasses
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ErrorCode, StateError, UserError
from penstock.state.files.migration import (
    MigratableState,
    find_typed_chain_problems,
    migrate_rows,
    migrate_value,
    plan_migration,
    resolve_chain,
)
from tests.unit.state.files.file_builders import a_schema


class CountV1(msgspec.Struct):
    count: int


class CountV2(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 2
    PreviousVersion: ClassVar[Any] = CountV1
    count: int
    label: str

    @classmethod
    def migrate(cls, previous: CountV1) -> "CountV2":
        return cls(previous.count, "none")


@dataclasses.dataclass
class CountV3(MigratableState):
    VERSION: ClassVar[int] = 3
    PreviousVersion: ClassVar[Any] = CountV2
    total: int
    label: str

    @classmethod
    def migrate(cls, previous: CountV2) -> "CountV3":
        if previous.count < 0:
            raise ValueError("negative")
        return cls(previous.count, previous.label)


def test_a_plain_type_is_version_0() -> None:
    assert resolve_chain(int).current_version == 0
    assert resolve_chain(dict[str, int]).current_version == 0
    assert resolve_chain(None).current_version == 0


def test_a_chain_ends_with_the_plain_type_before_it() -> None:
    chain = resolve_chain(CountV3)
    assert (chain.oldest_version, chain.current_version) == (1, 3)
    assert chain.types == (CountV1, CountV2, CountV3)


def test_the_plan_is_the_steps_from_the_version_found() -> None:
    assert [str(step) for step in plan_migration(1, CountV3, table="t")] == [
        "1 → 2 (CountV2.migrate)",
        "2 → 3 (CountV3.migrate)",
    ]
    assert [step.to_type.VERSION for step in plan_migration(2, CountV3, table="t")] == [3]
    assert plan_migration(3, CountV3, table="t") == ()


def test_values_run_through_all_steps() -> None:
    steps = plan_migration(1, CountV3, table="t")
    assert migrate_value(CountV1(5), steps, table="t", path="p") == CountV3(5, "none")


def test_a_newer_version_is_refused_and_named() -> None:
    with pytest.raises(StateError, match="written by a newer program") as raised:
        plan_migration(4, CountV3, table="counts")
    assert raised.value.code is ErrorCode.UNSUPPORTED_STATE_VERSION
    assert raised.value.context == {"table": "counts", "found": 4, "expected": 3}


def test_a_version_before_the_chain_is_refused_and_named() -> None:
    state = a_class(3, a_class(2, a_class(1, None)))
    with pytest.raises(StateError, match="version 0, but State understands 1 to 3"):
        plan_migration(0, state, table="counts")
    with pytest.raises(StateError, match="version 1, but State understands 4 to 5"):
        plan_migration(1, a_class(5, CountV1), table="counts")


@pytest.mark.parametrize("version", [1, 2, 7])
def test_what_a_plain_first_type_wrote_is_migrated_whatever_version_follows_it(
    version: int,
) -> None:
    state = a_class(version, CountV1)
    (step,) = plan_migration(0, state, table="counts")
    assert (step.from_type, step.to_type) == (CountV1, state)
    assert plan_migration(version - 1, state, table="counts") == (step,)


def test_a_first_class_that_declares_no_version_is_like_a_plain_type() -> None:
    class First(MigratableState):
        pass

    class Heir(First):
        pass

    for first in (First, Heir):
        assert resolve_chain(first).current_version == 0
        (step,) = plan_migration(0, a_class(2, first), table="counts")
        assert step.from_type is first


def test_a_failing_step_names_table_file_and_step_and_keeps_the_cause() -> None:
    steps = plan_migration(2, CountV3, table="t")
    with pytest.raises(StateError, match="negative") as raised:
        migrate_value(CountV2(-1, ""), steps, table="counts", path="a/b.parquet")
    assert raised.value.code is ErrorCode.MIGRATION_FAILED
    assert isinstance(raised.value.__cause__, ValueError)
    assert raised.value.context["table"] == "counts"
    assert raised.value.context["path"] == "a/b.parquet"
    assert "2 → 3" in raised.value.message


def a_class(version: Any, previous: Any, *, migrates: bool = True) -> type[MigratableState]:
    members: dict[str, Any] = {"VERSION": version, "PreviousVersion": previous}
    if migrates:
        members["migrate"] = classmethod(lambda cls, previous: previous)
    return type("State", (MigratableState,), members)


@pytest.mark.parametrize(
    ("version", "previous", "hint"),
    [
        (3, a_class(1, None), "does not lead up to"),
        (1, a_class(1, None), "repeats"),
        (1, a_class(2, None), "expected 0"),
        (0, int, "cannot have a predecessor"),
        (-1, None, "not a whole number"),
        ("1", None, "not a whole number"),
        (True, None, "not a whole number"),
        (1 << 32, None, "not a whole number"),
    ],
)
def test_a_chain_that_cannot_work_is_refused_when_declared(
    version: Any, previous: Any, hint: str
) -> None:
    with pytest.raises(UserError, match=hint):
        resolve_chain(a_class(version, previous))


def test_a_class_that_is_its_own_predecessor_is_refused() -> None:
    state = a_class(1, None)
    state.PreviousVersion = state
    with pytest.raises(UserError, match="its own predecessor"):
        resolve_chain(state)


def test_a_predecessor_without_a_migrate_method_is_refused() -> None:
    with pytest.raises(UserError, match="no migrate method"):
        resolve_chain(a_class(1, int, migrates=False))


def test_a_first_version_needs_no_migrate_method() -> None:
    chain = resolve_chain(a_class(5, None, migrates=False))
    assert (chain.oldest_version, chain.current_version) == (5, 5)


def test_a_long_chain_runs_every_step_once() -> None:
    state: Any = int
    for version in range(1, 51):
        members = {
            "VERSION": version,
            "PreviousVersion": state,
            "migrate": classmethod(lambda cls, previous: previous + 1),
        }
        state = type(f"V{version}", (MigratableState,), members)
    steps = plan_migration(0, state, table="t")
    assert migrate_value(0, steps, table="t", path="p") == 50


class RowsV0(MigratableState):
    SCHEMA: ClassVar[pa.Schema | None] = a_schema(key=pa.float64(), n=pa.int32())


class Rows(MigratableState):
    VERSION: ClassVar[int] = 1
    PreviousVersion: ClassVar[Any] = RowsV0
    SCHEMA: ClassVar[pa.Schema | None] = a_schema(
        key=pa.float64(), n=pa.int64(), label=pa.string()
    )

    @classmethod
    def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
        labels = pa.array(["none"] * previous.num_rows)
        columns = [previous.column("key"), previous.column("n").cast(pa.int64()), labels]
        return pa.RecordBatch.from_arrays(columns, schema=cls.SCHEMA)


OLD = pa.RecordBatch.from_pydict(
    {"key": pa.array([1.0, np.nan, None]), "n": pa.array([1, 2, 3], pa.int32())}
)


def test_rows_migrate_as_batches_with_any_key() -> None:
    steps = plan_migration(0, Rows, table="t")
    found = migrate_rows(OLD, steps, key_columns=["key"], table="t", path="p")
    assert found.column("n").to_pylist() == [1, 2, 3]
    assert found.column("label").to_pylist() == ["none"] * 3


@pytest.mark.parametrize(
    ("result", "hint"),
    [
        (lambda batch: batch.to_pylist(), "returned list"),
        (lambda batch: Rows.migrate(batch).slice(1), "3 rows into 2"),
        (lambda batch: batch, "returned columns"),
        (
            lambda batch: Rows.migrate(batch).set_column(
                0, "key", pa.array([1.0, 2.0, None])
            ),
            "changed the key column 'key'",
        ),
    ],
)
def test_a_migration_that_breaks_the_rules_fails(result: Any, hint: str) -> None:
    class Broken(Rows):
        migrate = classmethod(lambda cls, previous: result(previous))

    steps = plan_migration(0, Broken, table="t")
    with pytest.raises(StateError, match=hint) as raised:
        migrate_rows(OLD, steps, key_columns=["key"], table="t", path="p")
    assert raised.value.code is ErrorCode.MIGRATION_FAILED


def test_a_typed_chain_that_works_has_no_problems() -> None:
    assert find_typed_chain_problems(Rows, ["key"]) == []


def test_all_problems_of_a_typed_chain_are_told_at_once() -> None:
    class Other(MigratableState):
        VERSION: ClassVar[int] = 2
        PreviousVersion: ClassVar[Any] = Rows
        SCHEMA: ClassVar[pa.Schema | None] = pa.schema([("key", pa.string())])

        @classmethod
        def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
            return previous

    assert find_typed_chain_problems(Other, ["key"]) == [
        "Other.SCHEMA changes the type of a key column"
    ]
    assert len(find_typed_chain_problems(Other, ["key", "gone"])) == 3
    assert find_typed_chain_problems(CountV2, ["key"]) == [
        "CountV1 has no SCHEMA",
        "CountV2 has no SCHEMA",
    ]
