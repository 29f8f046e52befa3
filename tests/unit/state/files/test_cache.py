"""The executor cache: complete entries only, shared by processes, limited, never fatal."""

import gc
import logging
import multiprocessing
import os
import resource
import shutil
from collections.abc import Iterator
from logging.handlers import BufferingHandler
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.state.files.cache import CacheKey, CacheStatistics, FileCache

ENTRY_ROWS = 1_000


def a_batch(number: int, rows: int = ENTRY_ROWS) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array([number] * rows, pa.int64())})


def a_key(number: int) -> CacheKey:
    return CacheKey(checksum=number, segment=0)


def entry_size(root: Path) -> int:
    """The bytes one entry of `a_batch` takes on disk."""
    probe = FileCache(root / "probe", 1 << 30)
    probe.put(a_key(1), a_batch(1))
    (entry,) = (root / "probe").glob("*.arrow")
    return entry.stat().st_size


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_an_entry_comes_back_as_it_was(root: Path) -> None:
    cache = FileCache(root, 1 << 20)
    cache.put(a_key(1), a_batch(7))
    found = cache.get(a_key(1))
    assert found is not None
    assert found.equals(a_batch(7))


def test_an_entry_is_mapped_not_copied(root: Path) -> None:
    cache = FileCache(root, 1 << 20)
    cache.put(a_key(1), a_batch(7))
    before = pa.total_allocated_bytes()
    found = cache.get(a_key(1))
    assert found is not None
    assert pa.total_allocated_bytes() == before


def test_dictionary_and_nested_columns_survive(root: Path) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "d": pa.array(["a", "b", "a"]).dictionary_encode(),
            "l": pa.array([[1], None, []], pa.list_(pa.int8())),
            "s": pa.array([{"x": 1}, None, {"x": None}]),
        }
    )
    cache = FileCache(root, 1 << 20)
    cache.put(a_key(1), batch)
    found = cache.get(a_key(1))
    assert found is not None
    assert found.equals(batch)


def test_a_slice_is_stored_without_the_rest_of_its_buffers(root: Path) -> None:
    whole = pa.RecordBatch.from_pydict({"n": pa.array(range(1_000_000), pa.int64())})
    cache = FileCache(root, 1 << 20)
    cache.put(a_key(1), whole.slice(500_000, 10))
    (entry,) = root.glob("*.arrow")
    assert entry.stat().st_size < 10_000
    found = cache.get(a_key(1))
    assert found is not None
    assert found.column(0).to_pylist() == list(range(500_000, 500_010))


def test_forms_and_segments_are_different_entries(root: Path) -> None:
    cache = FileCache(root, 1 << 20)
    cache.put(CacheKey(1, 0), a_batch(1))
    cache.put(CacheKey(1, 1), a_batch(2))
    cache.put(CacheKey(1, 0, "v2"), a_batch(3))
    found = [
        cache.get(key) for key in (CacheKey(1, 0), CacheKey(1, 1), CacheKey(1, 0, "v2"))
    ]
    assert [batch.column(0)[0].as_py() for batch in found if batch is not None] == [1, 2, 3]


def test_statistics_count_hits_misses_and_bytes(root: Path) -> None:
    cache = FileCache(root, 1 << 20)
    assert cache.statistics() == CacheStatistics()
    cache.get(a_key(1))
    cache.put(a_key(1), a_batch(1))
    cache.get(a_key(1))
    found = cache.statistics()
    assert (found.hits, found.misses) == (1, 1)
    assert found.hit_bytes == a_batch(1).nbytes
    assert found.written_bytes >= a_batch(1).nbytes


def test_a_truncated_entry_is_a_miss_and_goes_away(root: Path) -> None:
    cache = FileCache(root, 1 << 20)
    cache.put(a_key(1), a_batch(1))
    (entry,) = root.glob("*.arrow")
    os.truncate(entry, entry.stat().st_size - 8)
    assert cache.get(a_key(1)) is None
    assert not entry.exists()


def test_an_entry_with_garbage_inside_is_a_miss_and_goes_away(root: Path) -> None:
    cache = FileCache(root, 1 << 20)
    cache.put(a_key(1), a_batch(1))
    (entry,) = root.glob("*.arrow")
    with entry.open("r+b") as file:
        file.seek(-300, os.SEEK_END)
        file.write(b"\xff" * 250)
    assert cache.get(a_key(1)) is None
    assert not entry.exists()


def test_an_empty_entry_is_a_miss(root: Path) -> None:
    cache = FileCache(root, 1 << 20)
    root.mkdir()
    (root / a_key(1).file_name).touch()
    assert cache.get(a_key(1)) is None


def test_entries_of_another_boot_are_misses(root: Path, tmp_path: Path) -> None:
    FileCache(root, 1 << 20).put(a_key(1), a_batch(1))
    other_boot = tmp_path / "boot_id"
    other_boot.write_text("another")
    assert FileCache(root, 1 << 20, boot_id_path=other_boot).get(a_key(1)) is None


def test_without_a_boot_id_entries_are_flushed_and_still_found(
    root: Path, tmp_path: Path
) -> None:
    absent = tmp_path / "absent"
    FileCache(root, 1 << 20, boot_id_path=absent).put(a_key(1), a_batch(1))
    assert FileCache(root, 1 << 20, boot_id_path=absent).get(a_key(1)) is not None


def test_the_longest_untouched_entry_is_evicted_first(root: Path, tmp_path: Path) -> None:
    size = entry_size(tmp_path)
    cache = FileCache(root, 4 * size)
    for number in (1, 2, 3):
        cache.put(a_key(number), a_batch(number))
        os.utime(root / a_key(number).file_name, ns=(number, number))
    assert cache.get(a_key(1)) is not None
    for number in (4, 5):
        cache.put(a_key(number), a_batch(number))
    held = [number for number in range(1, 6) if cache.holds(a_key(number))]
    assert 1 in held
    assert 2 not in held
    assert cache.statistics().evicted_entries >= 1


def test_the_limit_holds_after_every_write(root: Path, tmp_path: Path) -> None:
    limit = 3 * entry_size(tmp_path) + 10
    cache = FileCache(root, limit)
    for number in range(20):
        cache.put(a_key(number), a_batch(number))
        assert sum(entry.stat().st_size for entry in root.glob("*.arrow")) <= limit
    assert cache.holds(a_key(19))


def test_a_batch_above_the_limit_is_not_stored(root: Path) -> None:
    cache = FileCache(root, 1_000)
    cache.put(a_key(1), a_batch(1))
    assert cache.get(a_key(1)) is None


def test_a_mapped_batch_outlives_its_eviction(root: Path, tmp_path: Path) -> None:
    cache = FileCache(root, entry_size(tmp_path) + 10)
    cache.put(a_key(1), a_batch(1))
    held = cache.get(a_key(1))
    cache.put(a_key(2), a_batch(2))
    assert not cache.holds(a_key(1))
    assert held is not None
    assert held.equals(a_batch(1))


def test_entries_of_an_earlier_process_count_towards_the_limit(
    root: Path, tmp_path: Path
) -> None:
    limit = 3 * entry_size(tmp_path) + 10
    first = FileCache(root, limit)
    for number in range(3):
        first.put(a_key(number), a_batch(number))
    (root / "lock").unlink()
    FileCache(root, limit).put(a_key(9), a_batch(9))
    assert sum(entry.stat().st_size for entry in root.glob("*.arrow")) <= limit


def test_leftovers_of_killed_writers_are_swept_when_space_is_needed(
    root: Path, tmp_path: Path
) -> None:
    cache = FileCache(root, entry_size(tmp_path) + 10)
    cache.put(a_key(1), a_batch(1))
    leftover = root / "dead.part"
    leftover.write_bytes(b"half an entry")
    cache.put(a_key(2), a_batch(2))
    assert not leftover.exists()


def test_a_cache_without_a_writable_folder_warns_once_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    cache = FileCache(blocked / "cache", 1 << 20)
    with caplog.at_level(logging.WARNING):
        for number in range(200):
            cache.put(a_key(number), a_batch(number, rows=1))
            assert cache.get(a_key(number)) is None
    assert len(caplog.records) == 1
    assert "cannot be written" in caplog.text
    assert str(blocked) in caplog.text


def test_a_cache_that_could_not_write_for_a_while_recovers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "cache"
    blocked.write_text("in the way")
    cache = FileCache(blocked, 1 << 20)
    cache.put(a_key(0), a_batch(0))
    blocked.unlink()
    for number in range(1, 100):
        cache.put(a_key(number), a_batch(number, rows=1))
    assert cache.holds(a_key(99))


def test_a_folder_removed_under_the_cache_is_made_again(root: Path) -> None:
    cache = FileCache(root, 1 << 20)
    cache.put(a_key(1), a_batch(1))
    shutil.rmtree(root)
    assert cache.get(a_key(1)) is None
    cache.put(a_key(1), a_batch(1))
    assert cache.get(a_key(1)) is not None


def fill_beyond_the_file_size_limit(root: str) -> tuple[int, int, int]:
    """Use a cache on a disk that takes no more; return warnings, hits and leftovers."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))
    handler = BufferingHandler(capacity=1_000)
    logging.getLogger("penstock").addHandler(handler)
    cache = FileCache(Path(root), 1 << 20)
    for number in range(100):
        cache.put(a_key(number), a_batch(number))
        cache.get(a_key(number))
    return (
        len(handler.buffer),
        cache.statistics().hits,
        len(list(Path(root).glob("*.part"))),
    )


@pytest.mark.slow
def test_a_full_disk_costs_one_warning_and_leaves_nothing_behind(
    root: Path, processes: multiprocessing.context.SpawnContext
) -> None:
    with processes.Pool(1) as pool:
        found = pool.apply(fill_beyond_the_file_size_limit, (str(root),))
    assert found == (1, 0, 0)


def test_a_writer_that_loses_the_race_leaves_the_winners_entry(root: Path) -> None:
    winner, loser = FileCache(root, 1 << 20), FileCache(root, 1 << 20)
    winner.put(a_key(1), a_batch(1))
    loser._write(root / a_key(1).file_name, a_batch(1))
    assert loser.statistics().written_bytes == 0
    assert not list(root.glob("*.part"))
    found = loser.get(a_key(1))
    assert found is not None
    assert found.equals(a_batch(1))


def hammer(root: str, limit_bytes: int, seed: int) -> int:
    """Look up and store entries for a while; return how many lookups hit."""
    cache = FileCache(Path(root), limit_bytes)
    kept: list[tuple[int, pa.RecordBatch]] = []
    for turn in range(400):
        number = (turn * 7 + seed * 3) % 25
        found = cache.get(a_key(number))
        if found is None:
            cache.put(a_key(number), a_batch(number))
        else:
            kept.append((number, found))
    for number, batch in kept:
        assert batch.equals(a_batch(number))
    return cache.statistics().hits


@pytest.fixture
def processes() -> Iterator[multiprocessing.context.SpawnContext]:
    yield multiprocessing.get_context("spawn")
    gc.collect()


@pytest.mark.slow
def test_processes_that_share_a_tiny_cache_never_see_a_wrong_or_torn_entry(
    root: Path, tmp_path: Path, processes: multiprocessing.context.SpawnContext
) -> None:
    limit = 8 * entry_size(tmp_path)
    with processes.Pool(3) as pool:
        hits = pool.starmap(hammer, [(str(root), limit, seed) for seed in range(6)])
    assert sum(hits) > 0
    assert sum(entry.stat().st_size for entry in root.glob("*.arrow")) <= limit
    assert not list(root.glob("*.part"))


def test_an_entry_of_no_more_use_is_removed_and_readers_keep_theirs(root: Path) -> None:
    cache = FileCache(root, 1 << 20)
    cache.put(a_key(1), a_batch(7))
    mapped = cache.get(a_key(1))
    assert mapped is not None
    assert cache.remove(a_key(1))
    assert not cache.remove(a_key(1))
    assert cache.get(a_key(1)) is None
    assert mapped.equals(a_batch(7))


def test_removed_entries_make_room_when_the_cache_seems_full(root: Path) -> None:
    size = entry_size(root)
    cache = FileCache(root, 10 * size)
    for number in range(100):
        cache.put(a_key(number), a_batch(number))
        if number >= 3:
            assert cache.remove(a_key(number - 3))
    assert all(cache.holds(a_key(number)) for number in (97, 98, 99))
    assert cache.statistics().evicted_entries == 0


def test_an_entry_that_cannot_be_removed_is_no_error(root: Path) -> None:
    cache = FileCache(root, 1 << 20)
    in_the_way = root / a_key(1).file_name
    in_the_way.mkdir(parents=True)
    assert not cache.remove(a_key(1))
    assert cache.get(a_key(1)) is None
    assert in_the_way.exists()
