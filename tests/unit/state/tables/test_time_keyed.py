"""The time-keyed table: rows by time and by key, their expiry, and their life in files."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.ids import Epoch
from penstock.core.key_hash import hash_keys
from penstock.core.key_range import owner_of
from penstock.errors import ErrorCode, InternalError, SchemaError, StateError
from penstock.state.files.cache import FileCache
from penstock.state.files.migration import MigratableState
from penstock.state.files.reader import StateFileReader
from penstock.state.tables.specs import TableSpec, time_keyed_table
from penstock.state.tables.table import CommitData
from penstock.state.tables.time_keyed import TimeKeyedTable
from penstock.state.tables.time_keyed_view import GroupedRows, TimeKeyedView
from tests.unit.state.files.file_builders import a_schema
from tests.unit.state.files.stores import CountingStore
from tests.unit.state.tables.table_builders import a_barrier
from tests.unit.state.tables.table_cluster import TableCluster, Write

COLUMNS = a_schema(user=pa.string(), at=pa.timestamp("us"), n=pa.int64())
PANES = time_keyed_table("panes", COLUMNS, key_columns=["user"], time_column="at")
KEYLESS = time_keyed_table("buffer", COLUMNS, time_column="at")
FIRST, LAST = -(1 << 63), (1 << 63) - 1

Row = tuple[str | None, int, int]


def a_batch(*rows: Row) -> pa.RecordBatch:
    users, times, numbers = ([row[place] for row in rows] for place in range(3))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(users, pa.string()),
            pa.array(times, pa.timestamp("us")),
            pa.array(numbers, pa.int64()),
        ],
        schema=COLUMNS,
    )


def rows_in(table: pa.Table) -> list[Row]:
    columns: list[list[Any]] = [
        table["user"].to_pylist(),
        table["at"].cast(pa.int64()).to_pylist(),
        table["n"].to_pylist(),
    ]
    return list(zip(*columns, strict=True))


def inserting(*rows: Row, expires_at: Any = None) -> Write:
    """Insert each row into the subtask that owns its key."""

    def write(index: int, view: TimeKeyedView) -> None:
        parallelism = view._environment.task.subtask.parallelism
        own = [row for row in rows if owner_of_user(row[0], parallelism) == index]
        if own:
            view.insert(a_batch(*own), expires_at)

    return write


def owner_of_user(user: str | None, parallelism: int) -> int:
    return owner_of(int(hash_keys([pa.array([user], pa.string())])[0]), parallelism)


def seen(cluster: TableCluster, *bounds: int | None) -> list[Row]:
    """All rows that all subtasks see, in order."""
    return sorted(
        (
            row
            for index in range(cluster.parallelism)
            for row in rows_in(cluster.view(index).rows(*bounds))
        ),
        key=repr,
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


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_survive_a_restore(parallelism: int) -> None:
    cluster = TableCluster(PANES, parallelism)
    cluster.run_epoch(inserting(("a", 1, 1), ("b", 2, 2)))
    cluster.run_epoch(inserting(("a", 1, 1), (None, 3, 3)))
    assert seen(cluster) == sorted(
        [("a", 1, 1), ("a", 1, 1), ("b", 2, 2), (None, 3, 3)], key=repr
    )


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
    view._watermark_micros = 20
    assert rows_in(view.rows()) == [("a", 2, 2), ("a", 3, 3)]
    assert view.expire() == 1
    assert rows_in(view.rows()) == [("a", 2, 2), ("a", 3, 3)]


def test_expiry_times_must_be_as_many_as_the_rows() -> None:
    view = TableCluster(PANES).view()
    with pytest.raises(SchemaError, match="1 rows with 2 expiry times"):
        view.insert(a_batch(("a", 1, 1)), pa.array([1, 2], pa.timestamp("us")))


def test_expired_files_leave_the_list_without_being_read() -> None:
    store = CountingStore()
    cluster = TableCluster(PANES, store=store)
    cluster.run_epoch(inserting(("a", 1, 1), expires_at=10))
    cluster.run_epoch(inserting(("a", 2, 2), expires_at=20))
    cluster.run_epoch(inserting(("a", 3, 3)))
    kind = cluster.kind
    store.reads.clear()
    checkpointer = cluster.table(0).epoch_checkpointer(Epoch(4), cluster.parts[0])
    finished = checkpointer.finish(a_barrier(4, watermark_micros=10))
    assert finished is not None
    assert [file.epoch for file in kind.files_in(finished[0])] == [2, 3]
    assert (finished[1], store.reads) == (0, [])


def test_a_table_whose_rows_have_all_expired_has_nothing_to_restore() -> None:
    cluster = TableCluster(PANES)
    cluster.run_epoch(inserting(("a", 1, 1), expires_at=10))
    cluster.run_epoch(watermark=10)
    assert cluster.parts == {}


def test_rows_that_are_expired_when_written_are_not_stored() -> None:
    cluster = TableCluster(PANES)
    expiry = pa.array([5, 50], pa.timestamp("us"))
    cluster.run_epoch(
        lambda _, view: view.insert(a_batch(("a", 1, 1), ("a", 2, 2)), expiry), watermark=5
    )
    assert [file.row_count for file in cluster.files()] == [1]
    cluster.run_epoch(inserting(("a", 1, 1), expires_at=5))
    assert len(cluster.files()) == 1


def test_nothing_is_written_for_an_epoch_without_rows() -> None:
    cluster = TableCluster(PANES)
    cluster.run_epoch(inserting(("a", 1, 1)))
    before = cluster.files()
    cluster.run_epoch(lambda _, view: view.insert(a_batch(), None))
    assert (cluster.files(), cluster.bytes_written) == (before, 0)


def test_lookups_by_key_group_rows_in_the_order_of_the_keys() -> None:
    cluster = TableCluster(PANES)
    cluster.run_epoch(inserting(("b", 2, 1), ("a", 1, 2)))
    cluster.run_epoch(inserting((None, 3, 3)))
    table = cluster.table(0).table
    assert isinstance(table, TimeKeyedTable)
    view = table.key_time_view()
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
    with pytest.raises(SchemaError, match="lack the columns"):
        view.get(pa.RecordBatch.from_pydict({"other": ["a"]}))


def test_rows_of_another_subtask_are_refused() -> None:
    cluster = TableCluster(PANES, 2)
    stranger = next(f"u{n}" for n in range(100) if owner_of_user(f"u{n}", 2) == 1)
    view = cluster.view(0)
    with pytest.raises(StateError, match="does not belong to subtask 0 of 2") as raised:
        view.insert(a_batch((stranger, 1, 1)), None)
    assert repr(stranger) in raised.value.message
    assert view.rows().num_rows == 0


@pytest.mark.parametrize(
    ("batch", "hint"),
    [
        (pa.RecordBatch.from_pydict({"user": ["a"]}), "exactly the columns"),
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


@pytest.mark.parametrize("spec", [PANES, KEYLESS], ids=["keyed", "keyless"])
@pytest.mark.parametrize("steps", [(1,), (3,), (5, 2), (1, 4, 3)])
def test_every_row_is_seen_by_exactly_one_subtask_after_a_rescale(
    spec: TableSpec, steps: tuple[int, ...]
) -> None:
    cluster = TableCluster(spec, 2)
    rows: list[Row] = [(f"u{n}", n, n) for n in range(40)]
    cluster.run_epoch(inserting(*rows))
    for step, parallelism in enumerate(steps):
        cluster.rescale(parallelism)
        more: list[Row] = [(f"u{n}", n, 1_000 * step + n) for n in range(40, 60)]
        cluster.run_epoch(inserting(*more))
        rows += more
        assert seen(cluster) == sorted(rows, key=repr)


def test_files_are_sorted_by_key_hash() -> None:
    cluster = TableCluster(PANES)
    cluster.run_epoch(inserting(*((f"u{n}", n, n) for n in range(100))))
    (file,) = cluster.files()
    hashes = StateFileReader(cluster.store, None, file).read()["_key_hash"].to_numpy()
    assert (hashes[1:] >= hashes[:-1]).all()
    assert (file.min_key_hash, file.max_key_hash) == (hashes[0], hashes[-1])


@pytest.mark.parametrize("spec", [PANES, KEYLESS], ids=["keyed", "keyless"])
def test_compaction_concatenates_and_drops_what_expired(spec: TableSpec) -> None:
    cluster = TableCluster(spec)
    for epoch in range(4):
        cluster.run_epoch(
            inserting(("a", epoch, 1), ("a", epoch, 1), expires_at=10 * epoch)
        )
    cluster.watermark = 10
    expected = seen(cluster)
    assert len(expected) == 4
    assert cluster.compact_all() == 1
    (file,) = cluster.files()
    assert (file.row_count, file.level, file.last_expiry_micros) == (4, 1, 30)
    assert seen(cluster) == expected


def test_compaction_of_nothing_but_expired_rows_leaves_an_empty_file_that_goes() -> None:
    cluster = TableCluster(PANES)
    for epoch in range(4):
        cluster.run_epoch(inserting(("a", epoch, 1), expires_at=10))
    cluster.watermark = 10
    assert cluster.compact_all() == 1
    assert [file.row_count for file in cluster.files()] == [0]
    assert seen(cluster) == []
    cluster.run_epoch()
    assert cluster.parts == {}


def test_compaction_keeps_rows_of_one_key_in_the_order_they_were_inserted() -> None:
    cluster = TableCluster(PANES)
    for epoch in range(8):
        cluster.run_epoch(
            inserting(*((f"u{n % 3}", 1, 100 * epoch + n) for n in range(30)))
        )
    cold = cluster.view().get(a_batch(("u1", 0, 0))).rows
    cluster.compact_all()
    assert cluster.view().get(a_batch(("u1", 0, 0))).rows.equals(cold)
    assert cold["n"].to_pylist() == sorted(cold["n"].to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("spec", [PANES, KEYLESS], ids=["keyed", "keyless"])
def test_a_large_compaction_is_cut_into_files(spec: TableSpec) -> None:
    cluster = TableCluster(spec)
    for epoch in range(4):
        first = epoch * 70_000
        rows: list[Row] = [(f"u{n % 5_000}", n, n) for n in range(first, first + 70_000)]
        cluster.run_epoch(lambda _, view, rows=rows: view.insert(a_batch(*rows), None))  # type: ignore[misc]  # bound now
    assert cluster.compact_all(target_file_bytes=1_000) == 1
    assert len(cluster.files()) > 2
    found = cluster.view().rows()["n"].to_numpy()
    assert sorted(found.tolist()) == list(range(280_000))
    cluster.rescale(3)
    counts = [cluster.view(index).rows().num_rows for index in range(3)]
    assert sum(counts) == 280_000


def test_a_warm_view_reads_nothing_again(tmp_path: Path) -> None:
    cluster = TableCluster(PANES, cache=FileCache(tmp_path, 1 << 20))
    for epoch in range(4):
        cluster.run_epoch(inserting(("a", epoch, 1), expires_at=10 + epoch), warm=True)
    cluster.compact_all()
    lookups = cluster._cache.statistics()
    warm = rows_in(cluster.view(warm=True).rows())
    assert cluster._cache.statistics() == lookups
    assert sorted(warm) == seen(cluster)


class RowsV0(MigratableState):
    SCHEMA: ClassVar[pa.Schema | None] = a_schema(user=pa.string(), at=pa.timestamp("us"))


class Rows(MigratableState):
    VERSION: ClassVar[int] = 1
    PreviousVersion: ClassVar[Any] = RowsV0
    SCHEMA: ClassVar[pa.Schema | None] = COLUMNS

    @classmethod
    def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
        return previous.append_column("n", pa.array([-1] * previous.num_rows, pa.int64()))


def test_rows_of_an_older_version_are_migrated_and_rewritten_by_compaction() -> None:
    old = time_keyed_table("panes", RowsV0, key_columns=["user"], time_column="at")
    new = time_keyed_table("panes", Rows, key_columns=["user"], time_column="at")
    cluster = TableCluster(old)
    for epoch in range(3):
        batch = a_batch(("a", epoch, 0)).select(["user", "at"])
        cluster.run_epoch(lambda _, view, batch=batch: view.insert(batch, 50))  # type: ignore[misc]  # bound now
    cluster.spec = new
    cluster.run_epoch(inserting(("b", 9, 9)))
    expected = [("a", 0, -1), ("a", 1, -1), ("a", 2, -1), ("b", 9, 9)]
    assert seen(cluster) == expected
    assert cluster.compact_all() == 1
    assert [file.state_version for file in cluster.files()] == [1]
    assert seen(cluster) == expected
    cluster.watermark = 50
    assert seen(cluster) == [("b", 9, 9)]


def test_columns_that_changed_without_a_version_are_reported() -> None:
    cluster = TableCluster(PANES)
    cluster.run_epoch(inserting(("a", 1, 1)))
    other = a_schema(user=pa.string(), at=pa.timestamp("us"), n=pa.string())
    cluster.spec = time_keyed_table("panes", other, key_columns=["user"], time_column="at")
    with pytest.raises(SchemaError, match="state class of the next version") as raised:
        cluster.view()
    assert raised.value.context["table"] == "panes"


def test_text_layouts_are_taken_for_one_another() -> None:
    cluster = TableCluster(PANES)
    batch = a_batch(("a", 1, 1)).set_column(0, "user", pa.array(["a"], pa.large_string()))
    cluster.run_epoch(lambda _, view: view.insert(batch, None))
    assert seen(cluster) == [("a", 1, 1)]


def test_many_small_inserts_are_one_file() -> None:
    cluster = TableCluster(PANES)

    def write(_: int, view: TimeKeyedView) -> None:
        for n in range(200):
            view.insert(a_batch((f"u{n % 7}", n, n)), None)
        assert view.rows().num_rows == 200

    cluster.run_epoch(write)
    assert [file.row_count for file in cluster.files()] == [200]


def test_a_checkpointer_refuses_what_is_no_batch() -> None:
    checkpointer = TableCluster(PANES).table(0).epoch_checkpointer(Epoch(1), None)
    with pytest.raises(StateError, match="record batches, not CommitData") as raised:
        checkpointer.insert_data(CommitData(b""))
    assert raised.value.code is ErrorCode.WRONG_TABLE_KIND


def test_catching_up_with_pending_rows_is_a_bug() -> None:
    view = TableCluster(PANES).view()
    view.insert(a_batch(("a", 1, 1)), None)
    with pytest.raises(InternalError):
        view.catch_up((), ())


def test_a_released_view_is_refused_instead_of_looking_empty() -> None:
    view = TableCluster(PANES).view()
    view.insert(a_batch(("a", 1, 1)), None)
    view.release()
    with pytest.raises(InternalError, match="released"):
        view.rows()
