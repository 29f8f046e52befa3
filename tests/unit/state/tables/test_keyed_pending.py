"""An epoch's own writes: few runs, bounded memory, and on disk when they grow too large."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ErrorCode, StorageError
from penstock.state.tables.keyed_runs import (
    SPILL_SEGMENT_BYTES,
    MemoryRun,
    OpenSegments,
    PendingRows,
    Run,
    Segment,
    SpilledRun,
    merge_runs,
)
from penstock.state.tables.sorted_rows import hashes_of
from tests.unit.state.tables.keyed_harness import KeyedHarness


def sorted_rows(first: int, count: int, value: int, *, step: int = 1) -> pa.RecordBatch:
    numbers = np.arange(first, first + count * step, step)
    return pa.record_batch(
        {
            "key": numbers,
            "value": np.full(count, value),
            "_key_hash": numbers.astype(np.uint64),
            "_operation": np.zeros(count, np.int8),
            "_expires_at": pa.nulls(count, pa.timestamp("us")),
        }
    )


def hashed_rows(*pairs: tuple[int, int], value: int) -> pa.RecordBatch:
    """Rows of (hash, key)."""
    hashes = pa.array([key_hash for key_hash, _ in pairs], pa.uint64())
    keys = pa.array([key for _, key in pairs], pa.int64())
    rows = sorted_rows(0, len(pairs), value)
    return rows.set_column(0, "key", keys).set_column(2, "_key_hash", hashes)


def pending(folder: Path, limit_bytes: int) -> PendingRows:
    return PendingRows(("key",), limit_bytes=limit_bytes, spill_folder=folder)


def contents(runs: list[Run]) -> list[tuple[int, int]]:
    merged = list(merge_runs(runs, ["key"]))
    return [(row["key"], row["value"]) for batch in merged for row in batch.to_pylist()]


def test_many_small_writes_leave_few_runs(tmp_path: Path) -> None:
    writes = pending(tmp_path, 1 << 30)
    for number in range(300):
        writes.add(sorted_rows(number, 10, number))
    assert len(writes.runs()) <= 10
    assert contents(writes.runs())[0] == (0, 0)
    assert contents(writes.runs())[-1] == (308, 299)


def test_writes_above_the_limit_go_to_disk_and_stay_readable(tmp_path: Path) -> None:
    writes = pending(tmp_path, 10_000)
    for number in range(100):
        writes.add(sorted_rows(number * 50, 100, number))
        assert writes.size_bytes <= 10_000
    assert any(isinstance(run, SpilledRun) for run in writes.runs())
    assert len(writes.runs()) <= 12
    expected = [(key, min(key // 50, 99)) for key in range(99 * 50 + 100)]
    assert contents(writes.runs()) == expected


def test_the_spilled_file_has_no_name_to_leave_behind(tmp_path: Path) -> None:
    writes = pending(tmp_path, 0)
    writes.add(sorted_rows(0, 100, 1))
    assert isinstance(writes.runs()[0], SpilledRun)
    assert list(tmp_path.iterdir()) == []
    assert contents(writes.runs()) == [(key, 1) for key in range(100)]


def test_runs_stay_as_they_were_after_later_writes(tmp_path: Path) -> None:
    writes = pending(tmp_path, 2_000)
    writes.add(sorted_rows(0, 200, 1))
    early = writes.runs()
    for number in range(2, 20):
        writes.add(sorted_rows(0, 200, number))
    writes.clear()
    assert not writes
    assert writes.runs() == []
    assert contents(early) == [(key, 1) for key in range(200)]


def test_a_disk_that_cannot_take_the_writes_is_an_error_that_says_so(
    tmp_path: Path,
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder", encoding="utf-8")
    writes = pending(blocked, 0)
    with pytest.raises(StorageError, match="more than the memory budget") as raised:
        writes.add(sorted_rows(0, 10, 1))
    assert raised.value.code is ErrorCode.STORAGE_FULL


def test_a_spilled_run_is_cut_into_segments_by_size(tmp_path: Path) -> None:
    rows = sorted_rows(0, 4, 1).append_column(
        "payload", pa.array([b"x" * (SPILL_SEGMENT_BYTES // 2)] * 4)
    )
    run = SpilledRun(tmp_path, [rows], tier=0)
    assert len(run.first_hashes) >= 2
    read = [run.read_segment(index).rows for index in range(len(run.first_hashes))]
    assert pa.Table.from_batches(read).equals(pa.Table.from_batches([rows]))
    assert [int(first) for first in run.first_hashes] == [
        int(hashes_of(r)[0]) for r in read
    ]


def test_an_epoch_larger_than_the_budget_is_seen_and_checkpointed_whole(
    tmp_path: Path,
) -> None:
    harness = KeyedHarness(tmp_path, memory_budget_bytes=20_000)
    for start in range(0, 3_000, 100):
        keys = np.arange(start, start + 200)
        harness.put(pa.record_batch({"key": keys, "value": [f"{start}"] * 200}))
        harness.delete(pa.record_batch({"key": keys[:10]}))
        assert harness.views[0]._pending.size_bytes <= 20_000 // 4
    before = harness.scan()
    assert len(before) == 3_100 - 30 * 10
    probe = pa.record_batch({"key": [0, 5, 10, 2_950, 3_050]})
    found = [row and row["value"] for row in harness.get(probe)]
    assert found == [None, None, "0", "2900", "2900"]
    harness.checkpoint()
    assert harness.scan() == before
    harness.restore(2)
    assert sorted(row["key"] for row in harness.scan()) == sorted(
        row["key"] for row in before
    )


def test_merging_yields_whole_hashes_although_segments_share_them(tmp_path: Path) -> None:
    class CutRun(Run):
        """A run whose segments all go on with the hash of the one before."""

        first_hashes = np.array([1, 1, 2], np.uint64)
        last_hashes = np.array([1, 2, 2], np.uint64)
        parts = ([(1, 10)], [(1, 11), (2, 20)], [(2, 21)])

        def read_segment(self, index: int) -> Segment:
            return Segment(hashed_rows(*self.parts[index], value=0))

    newer = MemoryRun(hashed_rows((1, 11), (2, 21), value=1))
    batches = list(merge_runs([CutRun(), newer], ["key"]))
    found = sorted((row["key"], row["value"]) for b in batches for row in b.to_pylist())
    assert found == [(10, 0), (11, 1), (20, 0), (21, 1)]
    ends = [set(hashes_of(batch).tolist()) for batch in batches]
    assert all(not one & other for one in ends for other in ends if one is not other)


@pytest.mark.parametrize("size", [1, 3, 4, 10, 97])
@pytest.mark.parametrize("per_hash", [1, 3, 7, 50])
def test_merging_holds_little_although_every_border_splits_a_hash(
    size: int, per_hash: int
) -> None:
    """Of tables with many rows per key no segment ends with a hash."""
    pairs = [(n // per_hash, n) for n in range(300)]
    parts = [pairs[start : start + size] for start in range(0, len(pairs), size)]

    class CutRun(Run):
        first_hashes = np.array([part[0][0] for part in parts], np.uint64)
        last_hashes = np.array([part[-1][0] for part in parts], np.uint64)

        def read_segment(self, index: int) -> Segment:
            return Segment(hashed_rows(*parts[index], value=0))

    batches = list(merge_runs([CutRun()], ["key"]))
    assert [key for b in batches for key in b["key"].to_pylist()] == list(range(300))
    assert max(batch.num_rows for batch in batches) <= max(size, per_hash)
    ends = [set(hashes_of(batch).tolist()) for batch in batches]
    assert sum(len(one) for one in ends) == len(set().union(*ends))


def test_merging_no_runs_or_empty_ones_yields_nothing() -> None:
    assert list(merge_runs([], ["key"])) == []
    assert list(merge_runs([MemoryRun(sorted_rows(0, 0, 0))], ["key"])) == []


def test_segments_unused_for_longest_are_closed_first() -> None:
    segment = Segment(sorted_rows(0, 100, 1))
    size = segment.size_bytes
    opened: list[str] = []
    segments = OpenSegments(limit_bytes=2 * size)

    def use(name: str) -> None:
        if segments.find((name, 0)) is None:
            opened.append(name)
            segments.keep((name, 0), segment)

    for name in ("a", "b", "a", "c", "a", "b"):
        use(name)
    assert opened == ["a", "b", "c", "b"]
    assert (len(segments), segments.size_bytes) == (2, 2 * size)
    segments.close("a")
    assert (len(segments), segments.size_bytes) == (1, size)
    segments.clear()
    assert (len(segments), segments.size_bytes) == (0, 0)


def test_a_segment_larger_than_the_limit_is_not_kept() -> None:
    segment = Segment(sorted_rows(0, 100, 1))
    size = segment.size_bytes
    segments = OpenSegments(limit_bytes=size - 1)
    segments.keep(("a", 0), segment)
    assert segments.find(("a", 0)) is None
    assert (len(segments), segments.size_bytes) == (0, 0)
