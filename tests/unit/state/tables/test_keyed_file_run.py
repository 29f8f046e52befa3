"""State files as runs: read no more than needed, seen narrowed, migrated, and never wrong."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.ids import Subtask, checksum_of
from penstock.core.key_hash import hash_keys
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.files.migration import MigratableState
from penstock.state.files.parquet import ROW_GROUP_ROWS, CheckpointParquetMetadata
from penstock.state.files.reader import StateFileReader
from penstock.state.tables.expiry import TimeToLive
from penstock.state.tables.keyed import KeyedTable
from tests.unit.state.files.file_builders import a_schema as columns
from tests.unit.state.files.stores import CountingStore
from tests.unit.state.tables.keyed_harness import (
    SIMPLE,
    KeyedHarness,
    a_schema,
    an_environment,
    rows_of,
)
from tests.unit.state.tables.table_builders import NO_CACHE

GROUPS = 4


def keys(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(values, pa.int64())})


def numbered(count: int) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(range(count), pa.int64()), pa.array([f"v{n}" for n in range(count)])],
        schema=SIMPLE.declared,
    )


def a_large_file(folder: Path, store: CountingStore, parallelism: int = 1) -> KeyedHarness:
    """A table of one file of several row groups, as a cold executor finds it."""
    harness = KeyedHarness(folder / "writer", store=store, parallelism=parallelism)
    harness.put(numbered(GROUPS * ROW_GROUP_ROWS))
    harness.checkpoint()
    harness.cache_root = folder / "cold"
    harness.restore(parallelism)
    store.reads.clear()
    return harness


@pytest.mark.slow
def test_a_cold_lookup_fetches_only_the_row_groups_it_touches(tmp_path: Path) -> None:
    store = CountingStore()
    harness = a_large_file(tmp_path, store)
    (file,) = harness.files()
    assert harness.get(keys(5)) == [{"key": 5, "value": "v5"}]
    footer, *groups = store.reads
    assert footer[1:] == (file.size_bytes - file.footer_bytes, file.footer_bytes)
    fetched = sum(length or file.size_bytes for _, _, length in groups)
    if len(set(hash_keys([pa.array(range(1_000))]))) == 1_000:
        assert len(groups) == 1
        assert fetched < 1.2 * file.size_bytes / GROUPS
    assert harness.get(keys(5)) == [{"key": 5, "value": "v5"}]
    assert len(store.reads) == 1 + len(groups)


@pytest.mark.slow
def test_another_parallelism_fetches_little_more_than_its_share(tmp_path: Path) -> None:
    store = CountingStore()
    harness = a_large_file(tmp_path, store)
    (file,) = harness.files()
    harness.restore(4)
    store.reads.clear()
    found = rows_of(harness.views[1])
    owned = harness.tables[1].environment.task.key_range
    assert {
        int(hash_keys([pa.array([row["key"]])])[0]) in owned for row in found[::999]
    } == {True}
    fetched = sum(length or file.size_bytes for _, _, length in store.reads)
    overlapping = [
        segment.size_bytes
        for segment in StateFileReader(store, NO_CACHE, file).segments
        if segment.may_hold(owned)
    ]
    assert fetched == file.footer_bytes + sum(overlapping)
    assert len(overlapping) < GROUPS
    assert sum(len(rows_of(view)) for view in harness.views) == GROUPS * ROW_GROUP_ROWS


@pytest.mark.slow
def test_open_segments_stay_within_their_share_of_the_budget(tmp_path: Path) -> None:
    store = CountingStore()
    harness = a_large_file(tmp_path, store)
    harness.memory_budget_bytes = 32 << 20
    harness.restore(1)
    view = harness.views[0]
    probes = pa.record_batch({"key": pa.array(range(0, GROUPS * ROW_GROUP_ROWS, 7))})
    for _ in range(3):
        assert view.get(probes).found.all()
        assert view._open_segments.size_bytes <= 8 << 20
    assert len(view._open_segments) > 0


def test_rows_that_could_not_be_cached_are_fetched_once_and_kept_open(
    tmp_path: Path,
) -> None:
    store = CountingStore()
    harness = KeyedHarness(tmp_path / "writer", store=store)
    harness.put(numbered(100))
    harness.checkpoint()
    (tmp_path / "file").write_text("where the cache folder should be", encoding="utf-8")
    harness.cache_root = tmp_path / "file"
    harness.restore(1)
    store.reads.clear()
    for _ in range(3):
        assert harness.get(keys(7)) == [{"key": 7, "value": "v7"}]
    assert len(store.reads) == 2


def test_rows_just_cached_are_mapped_and_not_held_in_memory(tmp_path: Path) -> None:
    store = CountingStore()
    harness = KeyedHarness(tmp_path / "writer", store=store)
    harness.put(numbered(100))
    harness.checkpoint()
    harness.cache_root = tmp_path / "cold"
    harness.restore(1)
    view = harness.views[0]
    assert view.load() == 100
    assert len(view._open_segments) == 0
    store.reads.clear()
    assert view.load() == 100
    assert len(view._open_segments) == 1
    assert store.reads == []


def test_a_view_that_sees_part_of_a_file_hides_the_rest_from_lookups_and_scans(
    tmp_path: Path,
) -> None:
    harness = KeyedHarness(tmp_path)
    harness.put(numbered(1_000))
    harness.checkpoint()
    harness.restore(3)
    sizes = [len(rows_of(view)) for view in harness.views]
    assert sum(sizes) == 1_000
    assert min(sizes) > 0
    # Narrowed once, a list never widens again: subtask 0 wrote over its part only.
    harness.put(pa.record_batch({"key": range(1_000), "value": ["new"] * 1_000}))
    harness.checkpoint()
    harness.restore(2)
    assert {row["value"] for row in harness.scan()} == {"new"}


def test_a_damaged_file_is_an_error_that_says_which(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    harness.put(numbered(10))
    harness.checkpoint()
    (file,) = harness.files()
    data = harness.store.read(file.path)
    assert data is not None
    harness.store.put(file.path, data[:20] + bytes([data[20] ^ 1]) + data[21:])
    harness.cache_root = tmp_path / "cold"
    harness.restore(1)
    with pytest.raises(CorruptStateError, match=file.path) as raised:
        harness.get(keys(1))
    assert raised.value.code is ErrorCode.CHECKSUM_MISMATCH
    harness.store.delete(file.path)
    harness.restore(1)
    with pytest.raises(CorruptStateError) as missing:
        harness.scan()
    assert missing.value.code in (ErrorCode.OBJECT_MISSING, ErrorCode.CHECKSUM_MISMATCH)


def test_a_file_that_does_not_say_which_hashes_it_holds_is_refused(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    harness.put(numbered(10))
    harness.checkpoint()
    (file,) = harness.files()
    data = harness.store.read(file.path)
    assert data is not None
    sink = io.BytesIO()
    table = pq.read_table(pa.BufferReader(data))
    with pq.ParquetWriter(sink, table.schema, write_statistics=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(CheckpointParquetMetadata(0, (0,)).to_key_values())
    other = sink.getvalue()
    footer = other[-8 - int.from_bytes(other[-8:-4], "little") :]
    harness.store.put(file.path, other)
    entry = replace(
        file,
        size_bytes=len(other),
        checksum=checksum_of(other),
        footer_bytes=len(footer),
        footer_checksum=checksum_of(footer),
    )
    harness.message = (entry,)
    harness.restore(1)
    with pytest.raises(CorruptStateError, match="does not say which key hashes"):
        harness.get(keys(1))


class CountV1(MigratableState):
    VERSION: ClassVar[int] = 1
    SCHEMA: ClassVar[pa.Schema | None] = columns(user=pa.string_view(), n=pa.int32())


class CountV2(MigratableState):
    VERSION: ClassVar[int] = 2
    PreviousVersion: ClassVar[Any] = CountV1
    SCHEMA: ClassVar[pa.Schema | None] = columns(user=pa.string_view(), n=pa.int64())
    seen: ClassVar[list[pa.RecordBatch]] = []

    @classmethod
    def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
        cls.seen.append(previous)
        columns: list[Any] = [
            previous.column("user"),
            previous.column("n").cast(pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=cls.SCHEMA)


class CountV3(MigratableState):
    VERSION: ClassVar[int] = 3
    PreviousVersion: ClassVar[Any] = CountV2
    SCHEMA: ClassVar[pa.Schema | None] = columns(
        user=pa.string_view(), n=pa.int64()
    ).append(pa.field("label", pa.string(), nullable=False))

    @classmethod
    def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
        labels = pa.array(["none"] * previous.num_rows)
        return pa.RecordBatch.from_arrays([*previous.columns, labels], schema=cls.SCHEMA)


def at_version(harness: KeyedHarness, state_type: Any, parallelism: int = 1) -> None:
    harness.schema = a_schema({f.name: f for f in state_type.SCHEMA}, "user")
    harness.state_version, harness.state_type = state_type.VERSION, state_type
    harness.restore(parallelism)


def users(*names: str) -> pa.RecordBatch:
    return pa.record_batch({"user": pa.array(names, pa.string_view())})


@pytest.fixture
def old_state(tmp_path: Path) -> KeyedHarness:
    """A table written by versions 1 and 2, with a tombstone in each."""
    CountV2.seen.clear()
    harness = KeyedHarness(
        tmp_path, a_schema({f.name: f for f in CountV1.SCHEMA or ()}, "user")
    )
    at_version(harness, CountV1)
    harness.put(users("a", "b", "č").append_column("n", pa.array([1, 2, 3], pa.int32())))
    harness.delete(users("gone"))
    harness.checkpoint()
    at_version(harness, CountV2)
    harness.put(users("b", "d").append_column("n", pa.array([20, 4], pa.int64())))
    harness.delete(users("a"))
    harness.checkpoint()
    return harness


CURRENT = [
    {"user": "b", "n": 20, "label": "none"},
    {"user": "d", "n": 4, "label": "none"},
    {"user": "č", "n": 3, "label": "none"},
]


def by_user(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: str(row["user"]))


def test_files_of_older_versions_are_migrated_when_read(old_state: KeyedHarness) -> None:
    at_version(old_state, CountV3)
    assert old_state.get(users("a", "b", "č", "d", "gone")) == [
        None,
        CURRENT[0],
        CURRENT[2],
        CURRENT[1],
        None,
    ]
    assert by_user(old_state.scan()) == CURRENT


def test_a_migration_sees_its_own_declared_columns_and_no_tombstones(
    old_state: KeyedHarness,
) -> None:
    at_version(old_state, CountV3, parallelism=2)
    old_state.scan()
    assert CountV2.seen
    for batch in CountV2.seen:
        assert CountV1.SCHEMA is not None
        assert batch.schema.equals(CountV1.SCHEMA)
        assert "gone" not in batch.column("user").to_pylist()


def test_compaction_rewrites_at_the_current_version(old_state: KeyedHarness) -> None:
    at_version(old_state, CountV3)
    assert {file.state_version for file in old_state.files()} == {1, 2}
    assert old_state.compact(min_files=2) == 1
    assert {file.state_version for file in old_state.files()} == {3}
    CountV2.seen.clear()
    assert by_user(old_state.scan()) == CURRENT
    assert CountV2.seen == []


def test_a_version_that_nobody_understands_is_refused(old_state: KeyedHarness) -> None:
    with pytest.raises(StateError, match="holds state of version 2") as raised:
        at_version(old_state, CountV1)
    assert raised.value.code is ErrorCode.UNSUPPORTED_STATE_VERSION


def test_a_failing_migration_names_the_step_and_the_file(old_state: KeyedHarness) -> None:
    class Broken(MigratableState):
        VERSION: ClassVar[int] = 3
        PreviousVersion: ClassVar[Any] = CountV2
        SCHEMA: ClassVar[pa.Schema | None] = CountV2.SCHEMA

        @classmethod
        def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
            raise ValueError("boom")

    at_version(old_state, Broken)
    with pytest.raises(StateError, match=r"2 → 3 .* boom"):
        old_state.scan()
    at_version(old_state, CountV3)
    assert by_user(old_state.scan()) == CURRENT


def test_other_columns_in_the_same_version_are_refused(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    harness.put(numbered(3))
    harness.checkpoint()
    for declared in (
        {"key": pa.int64(), "value": pa.int64()},
        {"key": pa.int64()},
        {"key": pa.int64(), "value": pa.string(), "more": pa.string()},
    ):
        harness.schema = a_schema(declared, "key")
        harness.restore(1)
        with pytest.raises(CorruptStateError, match="in the same state version 0"):
            harness.get(keys(1))


def test_other_layouts_and_another_order_in_the_same_version_are_fine(
    tmp_path: Path,
) -> None:
    harness = KeyedHarness(tmp_path)
    harness.put(numbered(3))
    harness.checkpoint()
    harness.schema = a_schema({"value": pa.large_string(), "key": pa.int64()}, "key")
    harness.restore(1)
    assert harness.get(keys(1)) == [{"value": "v1", "key": 1}]
    harness.put(pa.record_batch({"value": ["w"], "key": [1]}))
    harness.checkpoint()
    assert harness.compact(min_files=2) == 1
    assert sorted(row["value"] for row in harness.scan()) == ["v0", "v2", "w"]


def test_a_time_to_live_added_later_leaves_older_rows_as_they_were(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path)
    harness.put(numbered(2))
    harness.checkpoint()
    harness.schema = a_schema(
        {"key": pa.int64(), "value": pa.string()}, "key", ttl=TimeToLive(5)
    )
    harness.restore(1)
    harness.put(numbered(1))
    harness.checkpoint()
    harness.advance(type(harness.frontier)(processing_time_micros=1_000))
    assert harness.get(keys(0, 1)) == [None, {"key": 1, "value": "v1"}]


def test_the_table_of_one_subtask_holds_no_other_subtasks_files(tmp_path: Path) -> None:
    harness = KeyedHarness(tmp_path, parallelism=2)
    harness.put(numbered(100))
    harness.checkpoint()
    assert harness.message is not None
    environment = an_environment(tmp_path, store=harness.store, subtask=Subtask(1, 2))
    table = KeyedTable.from_config(SIMPLE.to_config(), environment, harness.message, 0)
    assert [file.subtask_index for file in table.files] == [1]
    assert {file.path for file in harness.message} == {
        file.path for index in (0, 1) for file in harness.files(index)
    }
