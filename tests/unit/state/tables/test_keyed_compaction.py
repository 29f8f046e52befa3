"""A compaction changes the files of a keyed table and nothing that can be seen of it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.ids import FULL_RANGE, KeyRange
from penstock.state.files.parquet import ROW_GROUP_ROWS
from penstock.state.tables.expiry import TimeToLive
from penstock.state.tables.keyed import join_ranges
from penstock.state.tables.table import Frontier
from tests.builders.kept_epochs import count_runs
from tests.unit.state.tables.keyed_harness import SIMPLE, KeyedHarness, a_schema

EXPIRING = a_schema(
    {"key": pa.int64(), "time": pa.timestamp("us")}, "key", ttl=TimeToLive(10, "time")
)

MANY = a_schema({"key": pa.string(), "line": pa.int64()}, "key", "line", routed_by=("key",))

COUNT = 4 * ROW_GROUP_ROWS

DELTAS = frozenset({0})


def rows(value: str, *keys: int) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(keys, pa.int64()), pa.array([value] * len(keys), pa.string())],
        schema=SIMPLE.declared,
    )


def timed(time: int, *keys: int) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(keys, pa.int64()), pa.array([time] * len(keys), pa.timestamp("us"))],
        schema=EXPIRING.declared,
    )


def lines(line: int, *values: str) -> pa.RecordBatch:
    """A row of each of some keys that have many."""
    return pa.record_batch(
        [pa.array(values, pa.string()), pa.array([line] * len(values), pa.int64())],
        schema=MANY.declared,
    )


def keys(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(values, pa.int64())})


def stored_rows(harness: KeyedHarness) -> list[dict[str, Any]]:
    found = []
    for index in range(harness.parallelism):
        for file in harness.files(index):
            data = harness.store.read(file.path)
            assert data is not None
            found += pq.read_table(pa.BufferReader(data)).to_pylist()
    return found


def by_key(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: int(row["key"]))


def test_many_deltas_become_one_file_without_repetitions_and_tombstones(
    tmp_path: Path,
) -> None:
    harness = KeyedHarness(tmp_path)
    for epoch in range(5):
        harness.put(rows(f"e{epoch}", *range(epoch * 10, epoch * 10 + 30)))
        harness.delete(keys(epoch * 10))
        harness.checkpoint()
    before, inputs = by_key(harness.scan()), harness.files()
    assert harness.compact(min_files=4) == 1
    (output,) = harness.files()
    assert by_key(harness.scan()) == before
    assert len(stored_rows(harness)) == len(before)
    assert (output.level, output.epoch, output.visible) == (1, 5, FULL_RANGE)
    assert output.replaces == tuple(file.identity for file in inputs)
    harness.restore(1)
    assert by_key(harness.scan()) == before


def test_nothing_is_done_before_it_is_due(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    assert harness.compact() == 0
    harness.put(rows("a", 1))
    harness.checkpoint()
    assert harness.compact(min_files=2) == 0


def test_tombstones_stay_while_an_older_file_holds_what_they_hide(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    harness.put(rows("old", *range(20)))
    harness.checkpoint()
    harness.put(rows("old", *range(20, 40)))
    harness.checkpoint()
    assert harness.compact(min_files=2) == 1
    for start in (0, 5):
        harness.delete(keys(*range(start, start + 5)))
        harness.checkpoint()
    assert harness.compact(min_files=2, levels=DELTAS) == 1
    assert [file.level for file in harness.files()] == [1, 1]
    assert {row["key"] for row in harness.scan()} == set(range(10, 40))
    harness.restore(3)
    assert {row["key"] for row in harness.scan()} == set(range(10, 40))
    harness.restore(1)
    assert harness.compact(min_files=2) == 1
    assert {row["_operation"] for row in stored_rows(harness)} == {0}
    assert {row["key"] for row in harness.scan()} == set(range(10, 40))


def test_an_expired_version_never_revives_an_older_one(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path, EXPIRING)
    harness.put(timed(1_000, 1, 2))
    harness.checkpoint()
    harness.put(timed(1_000, 3))
    harness.checkpoint()
    assert harness.compact(min_files=2) == 1
    for time in (0, 1):
        harness.put(timed(time, 1))
        harness.checkpoint()
    harness.advance(Frontier(watermark_micros=500))
    # The two newest files hold only expired rows of key 1, but an older file knows key 1.
    assert harness.compact(min_files=2, levels=DELTAS) == 1
    assert len(harness.files()) == 2
    assert {row["key"] for row in harness.scan()} == {2, 3}
    # Merged with the oldest, the key goes for good, all of its versions at once.
    assert harness.compact(min_files=2) == 1
    assert {row["key"] for row in stored_rows(harness)} == {2, 3}
    harness.restore(1)
    assert {row["key"] for row in harness.scan()} == {2, 3}


def test_when_no_row_survives_an_empty_file_says_what_it_replaced(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    harness.put(rows("a", 1))
    harness.checkpoint()
    harness.delete(keys(1))
    harness.checkpoint()
    assert harness.compact(min_files=2) == 1
    (output,) = harness.files()
    assert (output.row_count, len(output.replaces)) == (0, 2)
    assert harness.scan() == []
    assert harness.get(keys(1)) == [None]
    harness.checkpoint()
    assert harness.message is None


@pytest.mark.slow
def test_large_results_are_parts_of_one_run_over_the_same_range(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path, parallelism=2)
    for epoch in range(2):
        everyone = range(epoch, COUNT, 2)
        harness.put(rows(f"e{epoch}", *everyone))
        harness.checkpoint()
    assert harness.compact(min_files=2, target_file_bytes=1) == 2
    for index, table in enumerate(harness.tables):
        files = harness.files(index)
        assert len(files) > 1
        assert count_runs(files) == 1
        ranges = [file.visible for file in files]
        assert join_ranges(ranges) == [table.environment.task.key_range]
        assert len({file.replaces for file in files}) == 1
    assert len(harness.scan()) == COUNT
    harness.restore(3)
    assert harness.get(keys(0, 99_999, COUNT - 1))[1] == {"key": 99_999, "value": "e1"}


def test_a_compaction_after_a_rescale_sees_only_its_own_range(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path, parallelism=2)
    for epoch in range(3):
        harness.put(rows(f"e{epoch}", *range(100)))
        harness.checkpoint()
    harness.restore(3)
    before = by_key(harness.scan())
    assert harness.compact(min_files=2) == 3
    assert by_key(harness.scan()) == before
    assert sorted(row["key"] for row in stored_rows(harness)) == list(range(100))
    harness.restore(1)
    assert by_key(harness.scan()) == before


def test_a_compaction_whose_inputs_have_changed_is_void(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    for epoch in range(2):
        harness.put(rows(f"e{epoch}", 1, 2))
        harness.checkpoint()
    stale = harness.message
    assert harness.compact(min_files=2) == 1
    after = harness.files()
    current, harness.message = harness.message, stale
    assert harness.compact(min_files=2) == 0
    harness.message = current
    assert harness.files() == after


@pytest.mark.parametrize(
    ("ranges", "joined"),
    [
        ([KeyRange(0, 5), KeyRange(5, 9)], [KeyRange(0, 9)]),
        ([KeyRange(7, 9), KeyRange(0, 5)], [KeyRange(0, 5), KeyRange(7, 9)]),
        ([KeyRange(0, 9), KeyRange(2, 3)], [KeyRange(0, 9)]),
        (
            [KeyRange(0, 4), KeyRange(2, 9), KeyRange(20, 21)],
            [KeyRange(0, 9), KeyRange(20, 21)],
        ),
    ],
)
def test_ranges_are_joined_where_they_touch(
    ranges: list[KeyRange], joined: list[KeyRange]
) -> None:
    assert join_ranges(ranges) == joined


def test_rows_deleted_by_prefix_stay_hidden_and_are_dropped_in_the_end(
    tmp_path: Path,
) -> None:
    harness = KeyedHarness(tmp_path, MANY)
    asked = pa.record_batch({"key": ["c", "b", "a"]})
    for line in (2, 0, 1):
        harness.put(lines(line, "a", "b", "c"))
        harness.checkpoint()
    assert harness.compact() == 1
    for line in (9, 8):
        harness.delete_all(pa.record_batch({"key": ["a", "c"]}))
        harness.put(lines(line, "c"))
        harness.checkpoint()
    # The older file holds what the tombstones hide, so a merge of the newer ones keeps them.
    assert harness.compact(levels=DELTAS) == 1
    assert [file.row_count for file in harness.files()] == [9, 8]
    expected = [[8], [0, 1, 2], []]
    assert [[row["line"] for row in found] for found in harness.get_all(asked)] == expected
    assert harness.compact() == 1
    assert [file.row_count for file in harness.files()] == [4]
    assert [[row["line"] for row in found] for found in harness.get_all(asked)] == expected


def test_rows_of_one_prefix_lie_in_one_file_however_small_files_are(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path, MANY)
    names = [f"key {number}" for number in range(20)]
    for line in range(4):
        harness.put(lines(3 - line, *names))
        harness.checkpoint()
    assert harness.compact(target_file_bytes=1) == 1
    assert count_runs(harness.files()) == 1
    asked = pa.record_batch({"key": names})
    for parallelism in (1, 3):
        harness.restore(parallelism)
        found = harness.get_all(asked, columns="line")
        assert found == [[{"line": line} for line in range(4)]] * len(names)
        last = harness.get_all(asked, columns="line", limit=1, last=True)
        assert last == [[{"line": 3}]] * len(names)
