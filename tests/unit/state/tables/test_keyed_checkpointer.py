"""What a checkpoint of a keyed table writes, carries forward and lets go."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.ids import FULL_RANGE, Epoch
from penstock.errors import ErrorCode, InternalError, StateError
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.expiry import TimeToLive
from penstock.state.tables.table import (
    BlindDataTuple,
    CheckpointMessage,
    CommitData,
    DataTuple,
    Frontier,
)
from tests.builders.kept_epochs import count_runs
from tests.unit.state.files.stores import CountingStore
from tests.unit.state.tables.keyed_harness import SIMPLE, KeyedHarness, a_schema

EXPIRING = a_schema(
    {"key": pa.int64(), "time": pa.timestamp("us")}, "key", ttl=TimeToLive(10, "time")
)


def rows(*pairs: tuple[int, str | None]) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([k for k, _ in pairs], pa.int64()),
            pa.array([v for _, v in pairs], pa.string()),
        ],
        schema=SIMPLE.declared,
    )


def timed(*pairs: tuple[int, int]) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([key for key, _ in pairs], pa.int64()),
            pa.array([time for _, time in pairs], pa.timestamp("us")),
        ],
        schema=EXPIRING.declared,
    )


def keys(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(values, pa.int64())})


def stored_table(harness: KeyedHarness, path: str) -> pa.Table:
    data = harness.store.read(path)
    assert data is not None
    return pq.read_table(pa.BufferReader(data))


def test_an_unchanged_table_writes_nothing_and_keeps_its_files(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    assert harness.checkpoint() == 0
    assert harness.message is None
    harness.put(rows((1, "a")))
    assert harness.checkpoint() > 0
    before = harness.files()
    assert harness.checkpoint() == 0
    harness.put(rows())
    harness.delete(keys())
    assert harness.checkpoint() == 0
    assert harness.files() == before


def test_an_epoch_writes_one_sorted_file_with_one_row_per_key(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    for value in ("old", "new"):
        harness.put(rows(*((key, value) for key in range(50))))
    harness.delete(keys(*range(40, 60)))
    harness.checkpoint()
    (file,) = harness.files()
    table = stored_table(harness, file.path)
    assert table.schema.names == ["key", "value", "_key_hash", "_operation", "_expires_at"]
    hashes: list[Any] = table["_key_hash"].to_pylist()
    assert hashes == sorted(hashes)
    assert sorted(table["key"].to_pylist()) == list(range(60))  # type: ignore[type-var]  # no nulls
    by_key = dict(
        zip(table["key"].to_pylist(), table["_operation"].to_pylist(), strict=True)
    )
    assert [by_key[key] for key in range(60)] == [0] * 40 + [1] * 20
    assert set(table["value"].to_pylist()) == {"new", None}
    assert (file.epoch, file.level, file.row_count) == (1, 0, 60)
    assert (file.min_key_hash, file.max_key_hash) == (hashes[0], hashes[-1])
    assert file.visible == FULL_RANGE


def test_a_subtasks_file_shows_only_its_own_range(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path, parallelism=3)
    harness.put(rows(*((key, "a") for key in range(300))))
    harness.checkpoint()
    for index, table in enumerate(harness.tables):
        (file,) = harness.files(index)
        assert file.visible == table.environment.task.key_range
        assert file.subtask_index == index


def test_a_delta_holds_only_what_changed(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    harness.put(rows(*((key, "a") for key in range(1_000))))
    harness.checkpoint()
    harness.put(rows((5, "b")))
    harness.checkpoint()
    assert [file.row_count for file in harness.files()] == [1_000, 1]


@pytest.mark.slow
def test_a_large_delta_becomes_parts_that_form_one_run(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path, memory_budget_bytes=1 << 20)
    for start in range(0, 300_000, 50_000):
        harness.put(rows(*((key, f"value {key}") for key in range(start, start + 50_000))))
    harness.checkpoint()
    files = harness.files()
    assert len(files) > 2
    assert len({file.path for file in files}) == len(files)
    assert count_runs(files) == 1
    assert (files[0].visible.start, files[-1].visible.end) == (0, FULL_RANGE.end)
    assert all(a.visible.end == b.visible.start for a, b in pairwise(files))
    assert sum(file.row_count for file in files) == 300_000
    assert harness.get(keys(0, 299_999, 300_000)) == [
        {"key": 0, "value": "value 0"},
        {"key": 299_999, "value": "value 299999"},
        None,
    ]
    harness.restore(2)
    assert len(harness.scan()) == 300_000


def test_own_writes_are_read_back_without_a_request(tmp_path: Path) -> None:
    store = CountingStore()
    harness = KeyedHarness(tmp_path, store=store)
    harness.put(rows(*((key, "a") for key in range(100))))
    harness.checkpoint()
    assert harness.get(keys(7)) == [{"key": 7, "value": "a"}]
    assert store.reads == []


def test_a_file_of_expired_rows_only_leaves_the_list_unread(tmp_path: Path) -> None:
    store = CountingStore()
    harness = KeyedHarness(tmp_path, EXPIRING, store=store)
    for epoch in range(3):
        harness.put(timed((epoch, 100 * epoch)))
        harness.checkpoint()
    harness.advance(Frontier(watermark_micros=9))
    harness.checkpoint()
    assert len(harness.files()) == 3
    harness.advance(Frontier(watermark_micros=10))
    harness.checkpoint()
    assert [file.epoch for file in harness.files()] == [2, 3]
    harness.advance(Frontier(watermark_micros=210))
    harness.checkpoint()
    assert harness.message is None
    assert store.reads == []


def test_an_expired_version_keeps_hiding_an_older_one_that_would_still_live(
    tmp_path: Path,
) -> None:
    harness = KeyedHarness(tmp_path, EXPIRING)
    harness.put(timed((1, 1_000)))
    harness.checkpoint()
    harness.put(timed((1, 0)))
    harness.checkpoint()
    harness.advance(Frontier(watermark_micros=500))
    harness.checkpoint()
    assert len(harness.files()) == 2
    assert harness.get(keys(1)) == [None]
    harness.advance(Frontier(watermark_micros=1_010))
    harness.checkpoint()
    assert harness.message is None


def test_a_file_of_tombstones_goes_when_nothing_older_is_left_to_hide(
    tmp_path: Path,
) -> None:
    harness = KeyedHarness(tmp_path, EXPIRING)
    harness.advance(Frontier(watermark_micros=-100))
    harness.put(timed((1, 0), (2, 50)))
    harness.checkpoint()
    harness.delete(keys(1, 2))
    harness.checkpoint()
    harness.advance(Frontier(watermark_micros=20))
    harness.checkpoint()
    assert len(harness.files()) == 2
    harness.advance(Frontier(watermark_micros=60))
    harness.checkpoint()
    assert harness.message is None


def test_without_a_watermark_nothing_has_expired(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path, EXPIRING)
    harness.put(timed((1, -(1 << 50))))
    harness.checkpoint()
    assert harness.checkpoint() == 0
    assert harness.get(keys(1))[0] is not None


def test_processing_time_expires_rows_by_the_epoch_that_put_them(tmp_path: Path) -> None:
    schema = a_schema({"key": pa.int64()}, "key", ttl=TimeToLive(10))
    harness = KeyedHarness(tmp_path, schema)
    harness.advance(Frontier(processing_time_micros=100))
    harness.put(keys(1, 2))
    harness.checkpoint()
    harness.advance(Frontier(processing_time_micros=105))
    harness.put(keys(2))
    harness.checkpoint()
    harness.advance(Frontier(processing_time_micros=110))
    assert harness.get(keys(1, 2)) == [None, {"key": 2}]
    harness.advance(Frontier(processing_time_micros=115))
    assert harness.get(keys(1, 2)) == [None, None]


@pytest.mark.parametrize(
    "data",
    [
        DataTuple(None, 1, 2),
        BlindDataTuple(None, b"1", b"2"),
        CommitData(b"3"),
    ],
    ids=lambda data: type(data).__name__,
)
def test_data_of_other_tables_is_refused(tmp_path: Path, data: Any) -> None:
    table = KeyedHarness(tmp_path).tables[0]
    with pytest.raises(StateError, match=type(data).__name__) as raised:
        table.epoch_checkpointer(Epoch(1), ()).insert_data(data)
    assert raised.value.code is ErrorCode.WRONG_TABLE_KIND


def test_rows_that_no_view_hands_over_are_refused(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    checkpointer = harness.tables[0].epoch_checkpointer(Epoch(1), ())
    with pytest.raises(InternalError, match="handed columns"):
        checkpointer.insert_data(rows((1, "a")))
    harness.put(rows((1, "a"), (2, "b")))
    (batch,) = [run.read_segment(0).rows for run in harness.views[0]._pending.runs()]
    checkpointer.insert_data(batch.slice(0, 0))
    checkpointer.insert_data(batch)
    if batch["_key_hash"][0] != batch["_key_hash"][1]:
        with pytest.raises(InternalError, match="out of order"):
            checkpointer.insert_data(batch.slice(0, 1))
        with pytest.raises(InternalError, match="out of order"):
            harness.tables[0].epoch_checkpointer(Epoch(1), ()).insert_data(
                batch.take(pa.array([1, 0]))
            )


def test_a_failed_checkpoint_can_be_run_again(tmp_path: Path) -> None:
    class BrokenOnce(MemoryStore):
        __slots__ = ("is_broken",)

        def __init__(self) -> None:
            super().__init__()
            self.is_broken = True

        def create(self, path: str, data: bytes) -> bool:
            if self.is_broken:
                self.is_broken = False
                raise OSError("no route")
            return super().create(path, data)

    harness = KeyedHarness(tmp_path, store=BrokenOnce())
    harness.put(rows((1, "a")))
    with pytest.raises(OSError, match="no route"):
        harness.checkpoint()
    assert harness.get(keys(1)) == [{"key": 1, "value": "a"}]
    harness.checkpoint()
    harness.restore(1)
    assert harness.get(keys(1)) == [{"key": 1, "value": "a"}]


def test_a_view_after_a_checkpoint_sees_no_difference(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    harness.put(rows((1, "a"), (2, "b")))
    table, view = harness.tables[0], harness.views[0]
    checkpointer = table.epoch_checkpointer(Epoch(1), ())
    view.flush(checkpointer)
    finished = checkpointer.finish(CheckpointMessage(Epoch(1), Frontier(), Epoch(1)))
    assert finished is not None
    before = harness.scan()
    harness.subtasks[0] = finished[0]
    view.checkpointed(harness.files())
    assert harness.scan() == before
