"""Time-keyed views: rows by time and by key, and the exact instant at which they expire."""

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ErrorCode, SchemaError, StateError
from penstock.state.tables.sorted_rows import GroupedRows
from penstock.state.tables.specs import time_keyed_table
from penstock.state.tables.table import Frontier
from penstock.state.tables.time_keyed import TimeKeyedTable
from tests.unit.state.files.file_builders import a_schema
from tests.unit.state.tables.table_cluster import TableCluster
from tests.unit.state.tables.time_rows import (
    COLUMNS,
    FIRST,
    KEYLESS,
    LAST,
    PANES,
    a_batch,
    inserting,
    owner_of_user,
    rows_in,
    seen,
)


def test_rows_come_back_by_time_range() -> None:
    view = TableCluster(PANES).view()
    view.insert(a_batch(("a", 10, 1), ("b", 20, 2), ("a", 30, 3)), None)
    assert rows_in(view.rows(10, 30)) == [("a", 10, 1), ("b", 20, 2)]
    assert rows_in(view.rows(None, 10)) == []
    assert rows_in(view.rows(20)) == [("b", 20, 2), ("a", 30, 3)]
    assert [batch.num_rows for batch in view.batches(20, 21)] == [1]
    assert view.rows().schema.equals(COLUMNS)


def test_the_earliest_time_of_a_live_row_is_known() -> None:
    cluster = TableCluster(PANES)
    assert cluster.view().min_time() is None
    cluster.run_epoch(inserting(("a", -5, 1), expires_at=10))
    cluster.run_epoch(inserting(("a", 7, 1), expires_at=100))
    assert cluster.view().min_time() == -5
    cluster.watermark = 10
    assert cluster.view().min_time() == 7


@pytest.mark.parametrize(
    ("expires_at", "watermark", "is_live"),
    [
        (100, 99, True),
        (100, 100, False),
        (100, 101, False),
        (-100, -101, True),
        (-100, -100, False),
        (0, -1, True),
        (0, 0, False),
        (LAST, LAST - 1, True),
        (LAST, LAST, False),
        (FIRST, FIRST, False),
        (FIRST + 1, FIRST, True),
        (LAST, FIRST, True),
        (None, LAST, True),
        (FIRST, None, True),
    ],
)
def test_a_row_is_live_until_the_watermark_reaches_its_expiry(
    expires_at: int | None, watermark: int | None, is_live: bool
) -> None:
    cluster = TableCluster(PANES)
    cluster.run_epoch(inserting(("a", 1, 1), expires_at=expires_at))
    cluster.watermark = watermark
    cold = cluster.view()
    assert (cold.rows().num_rows == 1) is is_live
    assert (len(cold.get(a_batch(("a", 0, 0))).rows) == 1) is is_live
    assert (cold.min_time() == 1) is is_live
    assert cold.expire() == 0 if is_live else cold.rows().num_rows == 0


@pytest.mark.parametrize("time", [FIRST, -1, 0, LAST])
def test_rows_of_extreme_times_are_found_by_range(time: int) -> None:
    cluster = TableCluster(PANES)
    cluster.run_epoch(inserting(("a", time, 1)))
    file = cluster.files()[0]
    assert (file.min_time_micros, file.max_time_micros) == (time, time)
    assert seen(cluster, time) == [("a", time, 1)]
    assert seen(cluster, None, time) == []


def test_each_row_of_a_batch_may_have_its_own_expiry() -> None:
    view = TableCluster(PANES).view()
    expiry = pa.array([10, None, 30], pa.timestamp("us", "UTC"))
    view.insert(a_batch(("a", 1, 1), ("a", 2, 2), ("a", 3, 3)), expiry)
    view.advance(Frontier(20))
    assert rows_in(view.rows()) == [("a", 2, 2), ("a", 3, 3)]
    assert view.expire() == 1
    assert rows_in(view.rows()) == [("a", 2, 2), ("a", 3, 3)]


def test_expiry_times_must_be_as_many_as_the_rows() -> None:
    view = TableCluster(PANES).view()
    with pytest.raises(SchemaError, match="1 rows were given with 2 instants"):
        view.insert(a_batch(("a", 1, 1)), pa.array([1, 2], pa.timestamp("us")))


def test_lookups_by_key_group_rows_in_the_order_of_the_keys() -> None:
    cluster = TableCluster(PANES)
    cluster.run_epoch(inserting(("b", 2, 1), ("a", 1, 2)))
    cluster.run_epoch(inserting((None, 3, 3)))
    table = cluster.table(0)
    assert isinstance(table, TimeKeyedTable)
    view = table.view().by_key()
    view.insert(a_batch(("a", 9, 4)), None)
    found = view.get(a_batch(("c", 0, 0), ("a", 0, 0), (None, 0, 0), ("a", 0, 0)))
    assert isinstance(found, GroupedRows)
    assert found.offsets.tolist() == [0, 0, 2, 3, 5]
    assert rows_in(found.rows_of(1)) == [("a", 1, 2), ("a", 9, 4)]
    assert rows_in(found.rows_of(2)) == [(None, 3, 3)]
    assert rows_in(found.rows_of(0)) == []
    assert rows_in(found.rows) == [
        ("a", 1, 2),
        ("a", 9, 4),
        (None, 3, 3),
        ("a", 1, 2),
        ("a", 9, 4),
    ]


def test_a_lookup_of_nothing_or_in_nothing_is_empty() -> None:
    view = TableCluster(PANES).view()
    assert view.get(a_batch(("a", 0, 0))).offsets.tolist() == [0, 0]
    view.insert(a_batch(("a", 1, 1)), None)
    assert view.get(a_batch()).offsets.tolist() == [0]


def test_keys_are_compared_not_only_hashed() -> None:
    cluster = TableCluster(PANES)
    users = [f"user-{n}" for n in range(2_000)]
    cluster.run_epoch(inserting(*((user, 1, n) for n, user in enumerate(users))))
    found = cluster.view().get(a_batch(*((user, 0, 0) for user in reversed(users))))
    assert found.rows["user"].to_pylist() == users[::-1]


def test_keys_of_every_kind_of_column_are_found() -> None:
    schema = a_schema(
        k=pa.float64(),
        d=pa.dictionary(pa.int8(), pa.string()),
        at=pa.timestamp("ns"),
        n=pa.int8(),
    )
    spec = time_keyed_table("t", schema, key_columns=["k", "d"], time_column="at")
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([float("nan"), -0.0, None]),
            pa.array(["x", "y", None]).dictionary_encode().cast(schema.field("d").type),
            pa.array([1_001, -1_001, 0], pa.timestamp("ns")),
            pa.array([1, 2, 3], pa.int8()),
        ],
        schema=schema,
    )
    cluster = TableCluster(spec)
    cluster.run_epoch(lambda _, view: view.insert(rows, None))
    view = cluster.view()
    keys = pa.RecordBatch.from_pydict(
        {"k": pa.array([None, 0.0, np.nan]), "d": pa.array([None, "y", "x"])}
    )
    assert view.get(keys).rows["n"].to_pylist() == [3, 2, 1]
    assert view.rows().schema.equals(schema)
    assert view.rows(-2, -1)["n"].to_pylist() == [2]


def test_lookups_without_key_columns_are_refused() -> None:
    with pytest.raises(SchemaError, match="no key columns"):
        TableCluster(KEYLESS).view().get(a_batch())
    view = TableCluster(PANES).view()
    with pytest.raises(SchemaError, match="no single column"):
        view.get(pa.RecordBatch.from_pydict({"other": ["a"]}))


def test_rows_of_another_subtask_are_refused() -> None:
    cluster = TableCluster(PANES, 2)
    stranger = next(f"u{n}" for n in range(100) if owner_of_user(f"u{n}", 2) == 1)
    view = cluster.view(0)
    with pytest.raises(StateError, match="does not belong to subtask 0 of 2") as raised:
        view.insert(a_batch((stranger, 1, 1)), None)
    assert repr(stranger) in raised.value.message
    assert raised.value.code is ErrorCode.KEY_OUT_OF_RANGE
    assert view.rows().num_rows == 0


@pytest.mark.parametrize(
    ("batch", "hint"),
    [
        (pa.RecordBatch.from_pydict({"user": ["a"]}), "exactly its columns"),
        (a_batch(("a", 1, 1)).set_column(2, "n", pa.array(["x"])), "declared as int64"),
        (
            a_batch(("a", 1, 1)).set_column(1, "at", pa.array([None], pa.timestamp("us"))),
            "no event time",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused(batch: pa.RecordBatch, hint: str) -> None:
    view = TableCluster(PANES).view()
    with pytest.raises(SchemaError, match=hint):
        view.insert(batch, None)
    assert view.rows().num_rows == 0


def test_text_layouts_are_taken_for_one_another() -> None:
    cluster = TableCluster(PANES)
    batch = a_batch(("a", 1, 1)).set_column(0, "user", pa.array(["a"], pa.large_string()))
    cluster.run_epoch(lambda _, view: view.insert(batch, None))
    assert seen(cluster) == [("a", 1, 1)]


def test_unsorted_writes_and_expired_rows_are_looked_up_right() -> None:
    view = TableCluster(PANES).view()
    users = [f"u{n}" for n in range(50)]
    expiry = pa.array([n % 5 for n in range(50)], pa.timestamp("us"))
    view.insert(a_batch(*((user, 1, n) for n, user in enumerate(users))), expiry)
    view.advance(Frontier(2))
    found = view.get(a_batch(*((user, 0, 0) for user in users)))
    assert found.rows["n"].to_pylist() == [n for n in range(50) if n % 5 > 2]


def test_a_column_declared_without_nulls_takes_none() -> None:
    schema = pa.schema(
        [pa.field("at", pa.timestamp("us")), pa.field("n", pa.int8(), nullable=False)]
    )
    view = TableCluster(time_keyed_table("t", schema, time_column="at")).view()
    rows = pa.RecordBatch.from_pydict(
        {"at": pa.array([1], pa.timestamp("us")), "n": pa.array([None], pa.int8())}
    )
    with pytest.raises(SchemaError, match="declared without nulls"):
        view.insert(rows, None)
