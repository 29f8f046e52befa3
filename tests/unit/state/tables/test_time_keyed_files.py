"""Time-keyed tables in files: restore, expiry, rescale, compaction and migration."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from penstock.core.ids import Epoch
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.files.cache import FileCache
from penstock.state.files.migration import MigratableState
from penstock.state.files.parquet import ROW_GROUP_ROWS
from penstock.state.files.reader import StateFileReader
from penstock.state.tables.operator_tables import open_table
from penstock.state.tables.specs import TableSpec, time_keyed_table
from penstock.state.tables.table import CommitData, Frontier
from penstock.state.tables.time_keyed_view import TimeKeyedView
from tests.unit.state.files.file_builders import a_schema
from tests.unit.state.files.stores import CountingStore
from tests.unit.state.tables.table_builders import NO_CACHE, a_barrier
from tests.unit.state.tables.table_cluster import TableCluster
from tests.unit.state.tables.time_rows import (
    COLUMNS,
    KEYLESS,
    PANES,
    Row,
    a_batch,
    inserting,
    rows_in,
    seen,
)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_survive_a_restore(parallelism: int) -> None:
    cluster = TableCluster(PANES, parallelism)
    cluster.run_epoch(inserting(("a", 1, 1), ("b", 2, 2)))
    cluster.run_epoch(inserting(("a", 1, 1), (None, 3, 3)))
    assert seen(cluster) == sorted(
        [("a", 1, 1), ("a", 1, 1), ("b", 2, 2), (None, 3, 3)], key=repr
    )


def test_expired_files_leave_the_list_without_being_read() -> None:
    store = CountingStore()
    cluster = TableCluster(PANES, store=store)
    cluster.run_epoch(inserting(("a", 1, 1), expires_at=10))
    cluster.run_epoch(inserting(("a", 2, 2), expires_at=20))
    cluster.run_epoch(inserting(("a", 3, 3)))
    store.reads.clear()
    checkpointer = cluster.table(0).epoch_checkpointer(Epoch(4), cluster.parts[0])
    finished = checkpointer.finish(a_barrier(4, watermark_micros=10))
    assert finished is not None
    assert [file.epoch for file in finished[0]] == [2, 3]
    assert (finished[1], store.reads) == (0, [])


def test_a_restored_view_does_not_read_files_whose_rows_have_all_expired() -> None:
    store = CountingStore()
    cluster = TableCluster(PANES, store=store)
    cluster.run_epoch(inserting(("a", 1, 1), expires_at=10))
    cluster.run_epoch(inserting(("a", 2, 2)))
    table = cluster.table(0)
    store.reads.clear()
    view = table.view(Frontier(10))
    assert isinstance(view, TimeKeyedView)
    assert rows_in(view.rows()) == [("a", 2, 2)]
    assert {path for path, *_ in store.reads} == {cluster.files()[1].path}


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
    hashes = StateFileReader(cluster.store, NO_CACHE, file).read()["_key_hash"].to_numpy()
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
        first = epoch * ROW_GROUP_ROWS
        rows: list[Row] = [
            (f"u{n % 5_000}", n, n) for n in range(first, first + ROW_GROUP_ROWS)
        ]
        cluster.run_epoch(lambda _, view, rows=rows: view.insert(a_batch(*rows), None))  # type: ignore[misc]  # bound now
    assert cluster.compact_all(target_file_bytes=1_000) == 1
    assert len(cluster.files()) > 2
    found = cluster.view().rows()["n"].to_numpy()
    assert sorted(found.tolist()) == list(range(4 * ROW_GROUP_ROWS))
    cluster.rescale(3)
    counts = [cluster.view(index).rows().num_rows for index in range(3)]
    assert sum(counts) == 4 * ROW_GROUP_ROWS


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
    with pytest.raises(
        CorruptStateError, match="state class of the next version"
    ) as raised:
        cluster.view()
    assert raised.value.context["table"] == "panes"


def test_rows_are_found_by_a_time_column_that_was_declared_after_they_were_written() -> (
    None
):
    columns = a_schema(user=pa.string(), at=pa.timestamp("us"), seen=pa.timestamp("us"))
    cluster = TableCluster(time_keyed_table("panes", columns, time_column="at"))
    batch = pa.RecordBatch.from_pydict({"user": ["a"], "at": [5], "seen": [900]}, columns)
    cluster.run_epoch(lambda _, view: view.insert(batch, None))
    cluster.spec = time_keyed_table("panes", columns, time_column="seen")
    view = cluster.view()
    assert view.rows(900, 901).num_rows == 1
    assert view.rows(5, 6).num_rows == 0
    assert view.min_time() == 900


def test_many_small_inserts_are_one_file() -> None:
    cluster = TableCluster(PANES)

    def write(_: int, view: TimeKeyedView) -> None:
        for n in range(200):
            view.insert(a_batch((f"u{n % 7}", n, n)), None)
        assert view.rows().num_rows == 200

    cluster.run_epoch(write)
    assert [file.row_count for file in cluster.files()] == [200]


def test_a_checkpointer_refuses_what_is_no_batch() -> None:
    checkpointer = TableCluster(PANES).table(0).epoch_checkpointer(Epoch(1), ())
    with pytest.raises(StateError, match="record batches, not CommitData") as raised:
        checkpointer.insert_data(CommitData(b""))
    assert raised.value.code is ErrorCode.WRONG_TABLE_KIND


@pytest.mark.slow
@pytest.mark.parametrize("spec", [PANES, KEYLESS], ids=["keyed", "keyless"])
def test_an_epoch_beyond_the_memory_budget_is_written_as_several_files(
    spec: TableSpec,
) -> None:
    cluster = TableCluster(spec)
    environment = replace(cluster.environment(0), memory_budget_bytes=20_000)
    table = open_table(replace(spec, state_type=None), environment)
    rows: list[Row] = [(f"u{n}", n, n * 7919 % 10_007) for n in range(3 * ROW_GROUP_ROWS)]
    view, checkpointer = table.view(), table.epoch_checkpointer(Epoch(1), ())
    assert isinstance(view, TimeKeyedView)
    view.insert(a_batch(*rows), None)
    view.flush(checkpointer)
    finished = checkpointer.finish(a_barrier(1))
    assert finished is not None
    cluster.parts = {0: finished[0]}
    assert len(cluster.files()) > 1
    assert cluster.view().rows().num_rows == len(rows)
    cluster.rescale(3)
    assert sum(cluster.view(index).rows().num_rows for index in range(3)) == len(rows)
