"""Reading state files: no more than needed, through the cache, and never a wrong byte."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import FULL_RANGE, KeyRange, checksum_of
from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.files.cache import CacheKey, FileCache
from penstock.state.files.parquet import FOOTER, ROW_GROUP_ROWS, footer_batch
from penstock.state.files.reader import StateFileReader, drop_cached, rows_in_range
from penstock.state.files.state_file import StateFile
from penstock.state.files.writer import write_state_file
from penstock.state.storage.memory import MemoryStore
from tests.unit.state.files.file_builders import (
    NO_CACHE,
    a_description,
    encode_parquet,
    hashed_rows,
)
from tests.unit.state.files.stores import CountingStore

ROWS = 3 * ROW_GROUP_ROWS + 1_000
HALF = KeyRange(0, 1 << 63)


def a_written_file(store: MemoryStore, table: pa.Table) -> StateFile:
    return write_state_file(store, "j/x.parquet", table, a_description(4))


def rows_of(table: pa.Table, key_range: KeyRange) -> pa.Table:
    hashes = table["_key_hash"].to_numpy()
    mask = (hashes >= np.uint64(key_range.start)) & (hashes <= np.uint64(key_range.end - 1))
    return table.filter(pa.array(mask))


def test_a_whole_file_costs_one_request() -> None:
    store, table = CountingStore(), hashed_rows(ROWS)
    file = a_written_file(store, table)
    reader = StateFileReader(store, NO_CACHE, file)
    assert reader.read().equals(table)
    assert store.reads == [("j/x.parquet", None, None)]
    assert reader.bytes_read == file.size_bytes


@pytest.mark.parametrize("visible", [FULL_RANGE, KeyRange(0, 1 << 62)])
def test_rows_that_were_fetched_are_in_the_cache_and_not_in_memory(
    visible: KeyRange, tmp_path: Path
) -> None:
    store, table = MemoryStore(), hashed_rows(ROWS)
    file = replace(a_written_file(store, table), visible=visible)
    before = pa.total_allocated_bytes()
    rows = StateFileReader(store, FileCache(tmp_path, 1 << 30), file).read()
    assert pa.total_allocated_bytes() - before < rows.nbytes / 10
    assert rows.equals(rows_of(table, visible))


def test_a_part_of_a_file_costs_the_footer_and_the_segments_it_touches() -> None:
    store, table = CountingStore(), hashed_rows(ROWS)
    file = replace(a_written_file(store, table), visible=KeyRange(0, 1 << 60))
    reader = StateFileReader(store, NO_CACHE, file)
    assert reader.read().equals(rows_of(table, file.visible))
    assert len(store.reads) == 2
    assert reader.bytes_read < file.size_bytes / 2


@pytest.mark.slow
def test_a_rescaled_read_fetches_little_more_than_it_needs() -> None:
    store, table = MemoryStore(), hashed_rows(2_000_000)
    file = a_written_file(store, table)
    for index in range(3):
        visible = KeyRange(index * ((1 << 64) // 3), (index + 1) * ((1 << 64) // 3))
        reader = StateFileReader(store, NO_CACHE, replace(file, visible=visible))
        share = reader.read().num_rows / table.num_rows
        assert reader.bytes_read <= 1.2 * share * file.size_bytes


def test_segments_tell_rows_bytes_and_hashes() -> None:
    store, table = MemoryStore(), hashed_rows(ROWS)
    reader = StateFileReader(store, NO_CACHE, a_written_file(store, table))
    segments = reader.segments
    hashes = table["_key_hash"].to_numpy()
    first = segments[0]
    assert sum(segment.row_count for segment in segments) == ROWS
    assert (first.min_key_hash, first.max_key_hash) == (
        hashes[0],
        hashes[first.row_count - 1],
    )
    assert all(a.start + a.size_bytes == b.start for a, b in pairwise(segments))
    assert reader.read().schema.equals(table.schema)


def test_a_segment_is_one_range_read_and_then_comes_from_the_cache(tmp_path: Path) -> None:
    store, table = CountingStore(), hashed_rows(ROWS)
    cache = FileCache(tmp_path, 1 << 28)
    reader = StateFileReader(store, cache, a_written_file(store, table))
    segment = reader.segments[1]
    store.reads.clear()
    cold = reader.read_segment(1)
    assert store.reads == [("j/x.parquet", segment.start, segment.size_bytes)]
    warm = StateFileReader(store, cache, reader.file).read_segment(1)
    assert len(store.reads) == 1
    start = reader.segments[0].row_count
    assert cold.equals(warm)
    assert pa.Table.from_batches([cold]).equals(table.slice(start, segment.row_count))


def test_a_file_that_is_mostly_cached_is_not_fetched_again(tmp_path: Path) -> None:
    store, table = CountingStore(), hashed_rows(ROWS)
    cache = FileCache(tmp_path, 1 << 28)
    file = a_written_file(store, table)
    StateFileReader(store, cache, file).read()
    (tmp_path / CacheKey(file.checksum, 2).file_name).unlink()
    store.reads.clear()
    reader = StateFileReader(store, cache, file)
    assert reader.read().equals(table)
    assert len(store.reads) == 1
    assert reader.bytes_read == reader.segments[2].size_bytes


def test_a_file_that_is_hardly_cached_is_fetched_whole(tmp_path: Path) -> None:
    store, table = CountingStore(), hashed_rows(ROWS)
    cache = FileCache(tmp_path, 1 << 28)
    file = a_written_file(store, table)
    StateFileReader(store, cache, file).read_segment(0)
    store.reads.clear()
    assert StateFileReader(store, cache, file).read().equals(table)
    assert store.reads == [("j/x.parquet", None, None)]


def test_rows_without_a_key_hash_are_all_visible() -> None:
    store = MemoryStore()
    table = pa.table({"key": [b"a", b"b"], "value": [b"1", None]})
    file = write_state_file(store, "x", table, a_description(visible=HALF))
    assert StateFileReader(store, NO_CACHE, file).read().equals(table)


@pytest.mark.parametrize("visible", [FULL_RANGE, HALF])
def test_a_file_without_rows_reads_as_an_empty_table(visible: KeyRange) -> None:
    store, table = MemoryStore(), hashed_rows(0)
    file = replace(a_written_file(store, table), visible=visible)
    assert StateFileReader(store, NO_CACHE, file).read().equals(table)


@given(
    hashes=st.lists(st.integers(0, 20), max_size=30),
    start=st.integers(0, 20),
    length=st.integers(1, 20),
)
def test_rows_in_range_picks_exactly_the_hashes_of_the_range(
    hashes: list[int], start: int, length: int
) -> None:
    batch = pa.RecordBatch.from_pydict({"_key_hash": pa.array(hashes, pa.uint64())})
    found = rows_in_range(batch, KeyRange(start, start + length)).column(0).to_pylist()
    assert found == [value for value in hashes if start <= value < start + length]


def damaged(code: ErrorCode, store: MemoryStore, file: StateFile) -> CorruptStateError:
    """Read a damaged file every way; each must fail alike and change nothing."""
    before = store.contents()
    errors = []
    for part in (file, replace(file, visible=HALF)):
        with pytest.raises(CorruptStateError) as raised:
            StateFileReader(store, NO_CACHE, part).read()
        errors.append(raised.value)
    assert {error.code for error in errors} == {code}
    assert all("j/x.parquet" in error.message for error in errors)
    assert all("restore" in error.message for error in errors)
    assert all(error.context["path"] == "j/x.parquet" for error in errors)
    assert store.contents() == before
    return errors[0]


def test_a_missing_file_is_reported() -> None:
    store = MemoryStore()
    file = a_written_file(store, hashed_rows(1_000))
    store.delete(file.path)
    error = damaged(ErrorCode.OBJECT_MISSING, store, file)
    assert error.context["epoch"] == 4


def test_a_truncated_file_is_reported_with_both_sizes() -> None:
    store = MemoryStore()
    file = a_written_file(store, hashed_rows(1_000))
    data = store.read(file.path)
    assert data is not None
    store.put(file.path, data[:-20])
    error = damaged(ErrorCode.CHECKSUM_MISMATCH, store, file)
    assert (error.context["expected"], error.context["found"]) == (
        str(len(data)),
        str(len(data) - 20),
    )


@pytest.mark.parametrize("content", [b"", b"x", b"garbage" * 100_000])
def test_garbage_in_place_of_a_file_is_reported(content: bytes) -> None:
    store = MemoryStore()
    file = a_written_file(store, hashed_rows(1_000))
    store.put(file.path, content)
    damaged(ErrorCode.CHECKSUM_MISMATCH, store, file)


@pytest.mark.parametrize("place", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_flipped_bit_anywhere_is_reported(place: float) -> None:
    store = MemoryStore()
    file = a_written_file(store, hashed_rows(1_000))
    data = bytearray(store.read(file.path) or b"")
    data[int(place * (len(data) - 1))] ^= 1
    store.put(file.path, bytes(data))
    with pytest.raises(CorruptStateError) as raised:
        StateFileReader(store, NO_CACHE, file).read()
    assert raised.value.code is ErrorCode.CHECKSUM_MISMATCH


def test_every_flipped_byte_of_a_segment_is_found_by_a_partial_read() -> None:
    store = MemoryStore()
    file = a_written_file(store, hashed_rows(20))
    data = bytearray(store.read(file.path) or b"")
    for place in range(4, len(data) - file.footer_bytes):
        data[place] ^= 0x10
        store.put(file.path, bytes(data))
        with pytest.raises(CorruptStateError, match="row group 0"):
            StateFileReader(store, NO_CACHE, file).read_segment(0)
        data[place] ^= 0x10


def test_a_damaged_file_is_still_served_from_the_cache(tmp_path: Path) -> None:
    store, table = MemoryStore(), hashed_rows(1_000)
    cache = FileCache(tmp_path, 1 << 26)
    file = a_written_file(store, table)
    StateFileReader(store, cache, file).read()
    store.delete(file.path)
    assert StateFileReader(store, cache, file).read().equals(table)


def registered(store: MemoryStore, data: bytes, footer_bytes: int) -> StateFile:
    """A list entry whose checksums fit the bytes, as if a buggy writer had made them."""
    store.put("j/x.parquet", data)
    return replace(
        a_written_file(MemoryStore(), hashed_rows(10)),
        size_bytes=len(data),
        checksum=checksum_of(data),
        footer_bytes=footer_bytes,
        footer_checksum=checksum_of(data[-footer_bytes:]),
    )


def test_a_foreign_parquet_file_is_not_taken_for_state() -> None:
    store, sink = MemoryStore(), pa.BufferOutputStream()
    pq.write_table(hashed_rows(10), sink)
    data = sink.getvalue().to_pybytes()
    file = registered(store, data, int.from_bytes(data[-8:-4], "little") + 8)
    with pytest.raises(CorruptStateError, match="not a state file") as raised:
        StateFileReader(store, NO_CACHE, file).read()
    assert raised.value.code is ErrorCode.FOREIGN_OBJECT


def test_bytes_that_fit_their_checksum_but_are_no_parquet_are_undecodable() -> None:
    store = MemoryStore()
    file = registered(store, b"no parquet at all" * 10, 40)
    damaged(ErrorCode.UNDECODABLE, store, file)


def test_a_footer_that_names_another_state_version_is_reported() -> None:
    store = MemoryStore()
    encoded = encode_parquet(hashed_rows(10), 9)
    file = registered(store, encoded.data, encoded.footer_bytes)
    with pytest.raises(CorruptStateError, match="state version should be 3, found 9"):
        StateFileReader(store, NO_CACHE, file).read()


def with_a_changed_segment(store: MemoryStore, place: int) -> StateFile:
    """A file changed inside its row group, all of whose checksums were made to fit."""
    table = hashed_rows(50)
    original = a_written_file(MemoryStore(), table)
    encoded = encode_parquet(table, 3)
    segment_end = len(encoded.data) - original.footer_bytes
    data = bytearray(encoded.data)
    before = checksum_of(data[4:segment_end])
    data[place] ^= 0x7F
    after = checksum_of(data[4:segment_end])
    changed = bytes(data).replace(b"%016x" % before, b"%016x" % after)
    return registered(store, changed, original.footer_bytes)


def test_rows_that_fit_every_checksum_but_do_not_decode_are_reported() -> None:
    store = MemoryStore()
    file = with_a_changed_segment(store, place=30)
    reader = StateFileReader(store, NO_CACHE, file)
    with pytest.raises(CorruptStateError, match="row group 0 cannot be decoded") as raised:
        reader.read_segment(0)
    assert raised.value.code is ErrorCode.UNDECODABLE
    with pytest.raises(CorruptStateError, match="its rows cannot be decoded"):
        StateFileReader(store, NO_CACHE, file).read()


def test_a_reader_that_knows_the_footer_still_fetches_a_whole_file_at_once() -> None:
    store, table = CountingStore(), hashed_rows(ROWS)
    reader = StateFileReader(store, NO_CACHE, a_written_file(store, table))
    assert len(reader.segments) > 1
    store.reads.clear()
    assert reader.read().equals(table)
    assert store.reads == [("j/x.parquet", None, None)]


def test_every_piece_of_a_file_leaves_the_cache_and_no_piece_of_another(
    tmp_path: Path,
) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path, 1 << 30)
    table = hashed_rows(ROWS)
    file = a_written_file(store, table)
    other = write_state_file(store, "j/y.parquet", table.slice(1), a_description(4))
    for each in (file, other):
        StateFileReader(store, cache, each).read()
    before = set(tmp_path.glob("*.arrow"))
    drop_cached(cache, file.checksum)
    left = set(tmp_path.glob("*.arrow"))
    assert len(before) == 2 * len(left) == 10
    assert {path.name[:16] for path in left} == {f"{other.checksum:016x}"}
    assert StateFileReader(store, cache, file).read().equals(table)


def test_a_file_of_which_only_some_pieces_are_cached_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    store, cache = MemoryStore(), FileCache(tmp_path, 1 << 30)
    file = a_written_file(store, hashed_rows(ROWS))
    StateFileReader(store, cache, file).read_segment(2)
    assert len(list(tmp_path.glob("*.arrow"))) == 2
    lookups = cache.statistics()
    drop_cached(cache, file.checksum)
    assert not list(tmp_path.glob("*.arrow"))
    assert cache.statistics() == lookups
    drop_cached(cache, file.checksum)


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"\xff" * 64])
def test_a_cached_footer_that_cannot_be_read_is_dropped_without_an_error(
    tmp_path: Path, damage: bytes
) -> None:
    cache = FileCache(tmp_path, 1 << 30)
    cache.put(CacheKey(1, form=FOOTER), footer_batch(damage))
    drop_cached(cache, 1)
    assert not cache.holds(CacheKey(1, form=FOOTER))
