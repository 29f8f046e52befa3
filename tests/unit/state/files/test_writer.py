"""Writing state files: created once, provably ours, described by their list entry."""

from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.ids import FULL_RANGE, KeyRange, checksum_of
from penstock.errors import CorruptStateError, ErrorCode, UnknownOutcomeError
from penstock.state.files.cache import FileCache
from penstock.state.files.parquet import ROW_GROUP_BYTES, ROW_GROUP_ROWS
from penstock.state.files.reader import StateFileReader
from penstock.state.files.state_file import StateFile
from penstock.state.files.writer import StateFileWriter, write_state_file
from penstock.state.storage.memory import MemoryStore
from tests.builders.kept_epochs import count_runs
from tests.unit.state.files.file_builders import NO_CACHE, a_description, hashed_rows
from tests.unit.state.files.stores import CountingStore, LostAnswerStore


def test_the_entry_describes_the_object() -> None:
    store = MemoryStore()
    table = hashed_rows(1_000)
    file = write_state_file(store, "j/x.parquet", table, a_description(5))
    data = store.read("j/x.parquet")
    assert data is not None
    assert (file.path, file.epoch, file.row_count) == ("j/x.parquet", 5, 1_000)
    assert (file.size_bytes, file.checksum) == (len(data), checksum_of(data))
    assert file.footer_checksum == checksum_of(data[-file.footer_bytes :])
    assert file.min_key_hash == table["_key_hash"][0].as_py()
    assert file.max_key_hash == table["_key_hash"][-1].as_py()
    assert (file.min_time_micros, file.max_time_micros, file.last_expiry_micros) == (
        None,
    ) * 3


@pytest.mark.parametrize(
    ("unit", "values", "expected"),
    [
        ("s", [-3, 5], (-3_000_000, 5_000_000)),
        ("ms", [-3, 5], (-3_000, 5_000)),
        ("us", [-3, 5], (-3, 5)),
        ("ns", [-3_001, 5_001], (-4, 6)),
        ("us", [-(1 << 63), (1 << 63) - 1], (-(1 << 63), (1 << 63) - 1)),
        ("ms", [-(1 << 62), 1 << 62], (-(1 << 63), (1 << 63) - 1)),
    ],
)
def test_times_of_any_unit_are_recorded_in_whole_microseconds_rounded_outwards(
    unit: Literal["s", "ms", "us", "ns"], values: list[int], expected: tuple[int, int]
) -> None:
    column = pa.array([values[0], None, values[1]], pa.timestamp(unit))
    table = pa.table({"t": column})
    file = write_state_file(MemoryStore(), "x", table, a_description(time_column="t"))
    assert (file.min_time_micros, file.max_time_micros) == expected


def test_the_last_expiry_is_the_latest_one() -> None:
    table = pa.table({"e": pa.array([5, -7, 9], pa.timestamp("us"))})
    file = write_state_file(MemoryStore(), "x", table, a_description(expiry_column="e"))
    assert file.last_expiry_micros == 9


def test_one_row_that_never_expires_keeps_the_file() -> None:
    table = pa.table({"e": pa.array([5, None], pa.timestamp("us"))})
    file = write_state_file(MemoryStore(), "x", table, a_description(expiry_column="e"))
    assert file.last_expiry_micros is None


def test_an_own_write_is_read_without_a_request(tmp_path: Path) -> None:
    store, cache = CountingStore(), FileCache(tmp_path, 1 << 26)
    table = hashed_rows(100_000)
    file = write_state_file(store, "x", table, a_description(), cache=cache)
    assert StateFileReader(store, cache, file).read().equals(table)
    assert store.reads == []


def test_a_lost_answer_of_a_write_that_landed_is_success() -> None:
    store = LostAnswerStore([True])
    file = write_state_file(store, "x", hashed_rows(10), a_description())
    assert store.checksum("x") == file.checksum
    assert store.creates == 1


def test_a_lost_answer_of_a_write_that_did_not_land_is_tried_again() -> None:
    store = LostAnswerStore([False, False])
    file = write_state_file(store, "x", hashed_rows(10), a_description())
    assert store.checksum("x") == file.checksum
    assert store.creates == 3


def test_answers_that_stay_lost_are_reported_as_unknown() -> None:
    with pytest.raises(UnknownOutcomeError):
        write_state_file(
            LostAnswerStore([False] * 9), "x", hashed_rows(10), a_description()
        )


def test_a_clients_own_retry_that_meets_its_write_is_success() -> None:
    store = MemoryStore()
    first = write_state_file(store, "x", hashed_rows(10), a_description())
    assert write_state_file(store, "x", hashed_rows(10), a_description()) == first


@pytest.mark.parametrize("other", [b"", b"other bytes", b"PAR1" * 500])
def test_other_bytes_under_the_name_are_never_overwritten(other: bytes) -> None:
    store = MemoryStore()
    store.create("x", other)
    with pytest.raises(CorruptStateError, match="something else writes") as raised:
        write_state_file(store, "x", hashed_rows(10), a_description())
    assert raised.value.code is ErrorCode.FOREIGN_OBJECT
    assert store.read("x") == other


def test_bytes_changed_on_the_way_are_found_when_reading_back() -> None:
    store = LostAnswerStore([True], change=lambda data: data[:-1] + b"?")
    with pytest.raises(CorruptStateError, match="other bytes"):
        write_state_file(store, "x", hashed_rows(10), a_description())


def written_in_parts(
    store: MemoryStore,
    table: pa.Table,
    *,
    target_bytes: int,
    visible: KeyRange = FULL_RANGE,
    cut_anywhere: bool = False,
    step: int = 10_000,
) -> tuple[StateFile, ...]:
    writer = StateFileWriter(
        store,
        lambda part: f"part-{part}",
        table.schema,
        a_description(visible=visible),
        target_bytes=target_bytes,
        cut_anywhere=cut_anywhere,
    )
    for start in range(0, table.num_rows, step):
        writer.write(table.slice(start, step))
    return writer.finish()


def read_all(store: MemoryStore, files: tuple[StateFile, ...]) -> pa.Table:
    return pa.concat_tables(
        [StateFileReader(store, NO_CACHE, file).read() for file in files]
    )


def test_a_large_output_is_cut_into_files_that_are_one_run() -> None:
    store, table = MemoryStore(), hashed_rows(6 * ROW_GROUP_ROWS)
    files = written_in_parts(store, table, target_bytes=1 << 20)
    assert len(files) > 3
    assert read_all(store, files).equals(table)
    assert count_runs(files) == 1
    assert files[0].visible.start == 0
    assert files[-1].visible.end == 1 << 64
    assert all(a.visible.end == b.visible.start for a, b in pairwise(files))


def test_rows_of_one_hash_stay_in_one_file() -> None:
    hashes = np.repeat(np.array([1, 5, 9], np.uint64), 2 * ROW_GROUP_ROWS)
    noise = np.random.default_rng(1).integers(0, 1 << 62, len(hashes))
    table = pa.table({"_key_hash": hashes, "v": noise})
    store = MemoryStore()
    files = written_in_parts(store, table, target_bytes=1_000)
    assert [(file.min_key_hash, file.max_key_hash) for file in files] == [
        (1, 1),
        (5, 5),
        (9, 9),
    ]
    assert read_all(store, files).equals(table)


def test_files_cut_anywhere_all_see_the_whole_range() -> None:
    count = 3 * ROW_GROUP_ROWS
    table = pa.table({"_key_hash": np.zeros(count, np.uint64), "v": np.arange(count)})
    store = MemoryStore()
    visible = KeyRange(0, 1 << 63)
    files = written_in_parts(
        store, table, target_bytes=1_000, cut_anywhere=True, visible=visible
    )
    assert len(files) > 1
    assert {file.visible for file in files} == {visible}
    assert read_all(store, files).equals(table)


def test_an_empty_output_is_one_empty_file() -> None:
    store = MemoryStore()
    (file,) = written_in_parts(store, hashed_rows(0), target_bytes=1 << 20)
    assert file.row_count == 0
    assert read_all(store, (file,)).equals(hashed_rows(0))


def test_a_writer_joins_small_batches_into_whole_segments() -> None:
    store, table = MemoryStore(), hashed_rows(ROW_GROUP_ROWS + 4_000)
    (file,) = written_in_parts(store, table, target_bytes=1 << 30, step=100)
    assert len(StateFileReader(store, NO_CACHE, file).segments) == 2


@pytest.mark.slow
def test_rows_of_huge_values_are_encoded_before_a_row_group_is_full() -> None:
    table = pa.table({"v": [bytes([n]) * 5_000_000 for n in range(20)]})
    store = MemoryStore()
    (file,) = written_in_parts(
        store, table, target_bytes=1 << 30, cut_anywhere=True, step=1
    )
    reader = StateFileReader(store, NO_CACHE, file)
    sizes = [reader.read_segment(n).nbytes for n in range(len(reader.segments))]
    assert len(sizes) > 1
    assert max(sizes) <= ROW_GROUP_BYTES
    assert reader.read().equals(table)
