import json
import random
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.files.committed import committed_files, read_committed
from penstock.connectors.files.connector import files
from penstock.errors import CorruptStateError, ErrorCode, UserError
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from penstock.testing import Call, FaultyStore, OperatorHarness
from tests.builders.files_job import (
    an_output,
    numbers,
    parts_in,
    paths_in,
    sink_on,
)
from tests.builders.graphs import schema_of

SCHEMA = pa.schema([("n", pa.int64())])
DAYS = schema_of(n=pa.int64(), day=pa.date32(), shop=pa.string())


def a_sink(
    store: ObjectStore, schema: pa.Schema = SCHEMA, *, parallelism: int = 1, **options: Any
) -> OperatorHarness:
    spec, registry = sink_on(lambda _url: store, **options)
    return OperatorHarness(spec, schema, parallelism=parallelism, registry=registry)


def committed_numbers(store: ObjectStore) -> list[int]:
    return sorted(row["n"] for row in read_committed(store).to_pylist())


def test_rows_are_staged_by_the_barrier_and_visible_by_the_commit() -> None:
    store = MemoryStore()
    with a_sink(store) as sink:
        sink.push(numbers(1, 2, 3))
        sink.barrier()
        assert parts_in(store) == []
        assert [path.split("/")[:4] for path in paths_in(store)] == [
            ["_staging", "harness", "1", "0000000001"]
        ]
        sink.commit()
    assert paths_in(store) == [
        "_committed/0000000001-operator.json",
        "part-0000000001-operator-000-000.parquet",
    ]
    assert committed_numbers(store) == [1, 2, 3]


def test_a_file_outside_the_lists_is_not_part_of_the_output() -> None:
    store = MemoryStore()
    with a_sink(store) as sink:
        sink.push(numbers(1))
        sink.barrier()
        sink.commit()
    store.put("part-0000000002-operator-000-000.parquet", b"of a commit that goes on")
    assert committed_numbers(store) == [1]
    assert [file.epoch for file in committed_files(store)] == [1]


def test_an_epoch_without_rows_writes_nothing() -> None:
    store = FaultyStore(MemoryStore())
    with a_sink(store) as sink:
        sink.barrier()
        assert sink.commits == {}
    # The start looks for lists of epochs that the job does not know.
    assert [call.operation for call in store.calls] == ["list"]


def test_a_repeated_commit_changes_nothing_and_costs_little() -> None:
    store = FaultyStore(MemoryStore())
    with a_sink(store) as sink:
        sink.push(numbers(1, 2))
        sink.barrier()
        sink.commit()
        before = {path: store.read(path) for path in paths_in(store)}
        made = len(store.calls)
        sink.commit(1)
        repeated = store.calls[made:]
    assert {path: store.read(path) for path in paths_in(store)} == before
    written = [call for call in repeated if call.operation not in ("read", "list")]
    assert [call.operation for call in written] == ["delete"]
    assert Call("read", "_committed/0000000001-operator.json") in repeated


def test_a_commit_that_was_cut_off_before_its_list_goes_on_from_the_final_files() -> None:
    store = MemoryStore()
    with a_sink(store, parallelism=2) as sink:
        sink.push(numbers(1))
        sink.push(numbers(2))
        sink.barrier()
        sink.commit()
        # As if the process had died when all was copied and tidied, the list not written.
        store.delete("_committed/0000000001-operator.json")
        sink.commit(1)
    assert committed_numbers(store) == [1, 2]


def test_another_attempt_uses_other_names_and_leaves_nothing_behind() -> None:
    store = MemoryStore()
    with a_sink(store) as sink:
        sink.push(numbers(1, 2))
        sink.barrier(attempts=3)
        assert len(paths_in(store, "_staging")) == 3
        sink.commit()
    assert paths_in(store, "_staging") == []
    assert committed_numbers(store) == [1, 2]


def test_tidying_leaves_alone_what_is_not_its_own() -> None:
    store = MemoryStore()
    token = "0" * 32
    others = [
        f"_staging/other-job/1/0000000001/{token}-operator-000-000.parquet",
        f"_staging/harness/1/0000000001/{token}-other-000-000.parquet",
        f"_staging/harness/1/0000000002/{token}-operator-000-000.parquet",
        "_staging/harness/notes.txt",
    ]
    for path in others:
        store.put(path, b"")
    with a_sink(store) as sink:
        sink.push(numbers(1))
        sink.barrier()
        sink.commit()
    assert paths_in(store, "_staging") == sorted(others)


def test_a_final_file_with_other_bytes_is_an_error_and_stays() -> None:
    store = MemoryStore()
    path = "part-0000000001-operator-000-000.parquet"
    store.put(path, b"of another job")
    with a_sink(store) as sink:
        sink.push(numbers(1))
        sink.barrier()
        with pytest.raises(CorruptStateError, match="give each job its own") as caught:
            sink.commit()
    assert caught.value.code is ErrorCode.CHECKSUM_MISMATCH
    assert store.read(path) == b"of another job"
    assert committed_files(store) == []


def test_a_list_of_another_job_is_an_error() -> None:
    store = MemoryStore()
    with a_sink(store) as first, a_sink(store) as second:
        first.push(numbers(1))
        second.push(numbers(2))
        for sink in (first, second):
            sink.barrier()
        first.commit()
        with pytest.raises(CorruptStateError, match="lists other files") as caught:
            second.commit()
    assert caught.value.code is ErrorCode.FOREIGN_OBJECT
    assert committed_numbers(store) == [1]


def test_a_file_that_is_gone_is_named() -> None:
    store = MemoryStore()
    with a_sink(store) as sink:
        sink.push(numbers(1))
        sink.barrier()
        for path in paths_in(store, "_staging"):
            store.delete(path)
        with pytest.raises(CorruptStateError, match="neither that file nor") as caught:
            sink.commit()
    assert caught.value.code is ErrorCode.OBJECT_MISSING


def test_a_list_that_is_damaged_is_named() -> None:
    store = MemoryStore()
    store.put("_committed/0000000001-operator.json", b"{")
    with pytest.raises(CorruptStateError, match="0000000001-operator") as caught:
        committed_files(store)
    assert caught.value.code is ErrorCode.UNDECODABLE


@pytest.mark.parametrize("damage", [None, b"other"])
def test_reading_tells_of_files_that_are_missing_or_changed(damage: bytes | None) -> None:
    store = MemoryStore()
    with a_sink(store) as sink:
        sink.push(numbers(1))
        sink.barrier()
        sink.commit()
    [file] = committed_files(store)
    store.delete(file.path)
    if damage is not None:
        store.put(file.path, damage)
    with pytest.raises(CorruptStateError, match="since_epoch"):
        read_committed(store)
    assert read_committed(store, since_epoch=2).num_rows == 0


def test_rows_go_to_hive_folders_by_their_values() -> None:
    store = MemoryStore()
    rows = [
        {"n": 1, "day": date(2026, 1, 1), "shop": "a/b=c"},
        {"n": 2, "day": None, "shop": "ü x"},
        {"n": 3, "day": date(2026, 1, 1), "shop": ""},
        {"n": 4, "day": date(2026, 1, 1), "shop": None},
        {"n": 5, "day": date(2026, 1, 1), "shop": "a/b=c"},
    ]
    with a_sink(store, DAYS, partition_by=["day", "shop"]) as sink:
        sink.push(rows)
        sink.barrier()
        sink.commit()
    null = "__HIVE_DEFAULT_PARTITION__"
    assert sorted({path.rpartition("/")[0] for path in parts_in(store)}) == [
        "day=2026-01-01/shop=__HIVE_DEFAULT_PARTITION__",
        "day=2026-01-01/shop=a%2Fb%3Dc",
        f"day={null}/shop=ü x",
    ]
    back = read_committed(store)
    assert back.schema == DAYS
    assert sorted(back.to_pylist(), key=lambda row: row["n"]) == rows
    file = next(file for file in committed_files(store) if file.row_count == 2)
    assert file.partition == {"day": "2026-01-01", "shop": "a/b=c"}
    assert pq.read_schema(pa.BufferReader(store.read(file.path))).names == ["n"]


def test_other_engines_read_the_partitions(tmp_path: Path) -> None:
    spec = files(str(tmp_path / "out"), partition_by=["day"]).sink_spec()
    with OperatorHarness(spec, DAYS) as sink:
        sink.push(
            [{"n": n, "day": date(2026, 1, 1 + n % 2), "shop": "s"} for n in range(9)]
        )
        sink.barrier()
        sink.commit()
    frame = pl.read_parquet(tmp_path / "out" / "*" / "*.parquet", hive_partitioning=True)
    assert frame.schema["day"] == pl.Date
    assert dict(frame.group_by("day").len().iter_rows()) == {
        date(2026, 1, 1): 5,
        date(2026, 1, 2): 4,
    }


def _scattered(count: int, *, seed: int = 0) -> list[int]:
    """Return numbers that no encoding makes small."""
    numbers: list[int] = np.random.default_rng(seed).integers(0, 2**62, count).tolist()
    return numbers


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_files_are_closed_at_their_size(form: str) -> None:
    store = MemoryStore()
    target = 64 * 1024
    with a_sink(store, format=form, target_bytes=target) as sink:
        for start in range(0, 100_000, 5_000):
            sink.push({"n": _scattered(5_000, seed=start)})
        sink.barrier()
        sink.commit()
    sizes = [file.size_bytes for file in committed_files(store)]
    assert len(sizes) > 5
    assert all(target <= size <= 2 * target for size in sizes[:-1])
    assert read_committed(store).num_rows == 100_000


def test_one_large_batch_is_cut() -> None:
    store = MemoryStore()
    with a_sink(store, target_bytes=100_000) as sink:
        sink.push({"n": _scattered(200_000)})
        sink.barrier()
        sink.commit()
    files = committed_files(store)
    assert len(files) >= 8
    assert max(file.size_bytes for file in files) <= 250_000


def test_what_open_partitions_hold_is_bounded() -> None:
    store = MemoryStore()
    noise = random.Random(1)
    schema = schema_of(data=pa.binary(), key=pa.int64())
    with a_sink(store, schema, partition_by=["key"], target_bytes=100_000) as sink:
        for _ in range(8):
            keys = [n % 50 for n in range(500)]
            sink.push({"data": [noise.randbytes(200) for _ in keys], "key": keys})
        sink.barrier()
        sink.commit()
    files = committed_files(store)
    # 50 open partitions hold 800 kB in the end: some were closed before it.
    assert len(files) > 50
    assert sum(file.row_count for file in files) == 4000
    assert len({file.path for file in files}) == len(files)


def test_many_small_partitions_have_one_file_each() -> None:
    store = MemoryStore()
    schema = schema_of(n=pa.int64(), key=pa.int64())
    with a_sink(store, schema, partition_by=["key"], target_bytes=1_000_000) as sink:
        for _ in range(4):
            sink.push({"n": range(1000), "key": [n % 200 for n in range(1000)]})
        sink.barrier()
        sink.commit()
    assert [file.row_count for file in committed_files(store)] == [20] * 200


def test_subtasks_write_files_of_their_own_at_any_parallelism() -> None:
    store = MemoryStore()
    with a_sink(store, parallelism=3) as sink:
        for value in range(6):
            sink.push(numbers(value))
        sink.barrier()
        sink.commit()
        checkpoint = sink.checkpoint()
    with OperatorHarness.restore(checkpoint, parallelism=2) as sink:
        sink.push(numbers(6))
        sink.push(numbers(7))
        sink.barrier()
        sink.commit()
    assert committed_numbers(store) == list(range(8))
    assert [path[5:].rpartition("-")[0] for path in parts_in(store)] == [
        "0000000001-operator-000",
        "0000000001-operator-001",
        "0000000001-operator-002",
        "0000000002-operator-000",
        "0000000002-operator-001",
    ]


def test_the_list_tells_readers_what_they_need() -> None:
    store = MemoryStore()
    with a_sink(store, parallelism=2) as sink:
        sink.push(numbers(1, 2, 3, 4))
        sink.barrier()
        sink.commit()
    data = store.read("_committed/0000000001-operator.json")
    assert data is not None
    listed = json.loads(data)
    assert (listed["job"], listed["epoch"], listed["rows"]) == ("harness", 1, 4)
    assert listed["bytes"] == sum(file.size_bytes for file in committed_files(store))
    assert {file.schema_hash for file in committed_files(store)} == {listed["schema_hash"]}


def test_epochs_of_different_schemas_are_read_together() -> None:
    store = MemoryStore()
    with a_sink(store) as sink:
        sink.push(numbers(1))
        sink.barrier()
        sink.commit()
    wider, first = schema_of(n=pa.int64(), who=pa.string()), store
    store = MemoryStore()
    with a_sink(store, wider) as sink:
        sink.barrier()
        sink.push([{"n": 2, "who": "b"}])
        sink.barrier()
        sink.commit()
    for path in paths_in(first):
        store.put(path, first.read(path) or b"")
    assert read_committed(store).to_pylist() == [
        {"n": 1, "who": None},
        {"n": 2, "who": "b"},
    ]
    assert len({file.schema_hash for file in committed_files(store)}) == 2


def test_nothing_committed_is_no_rows() -> None:
    assert committed_files(MemoryStore()) == []
    assert read_committed(MemoryStore()).num_rows == 0


@pytest.mark.parametrize("read", [committed_files, read_committed])
def test_reading_what_was_never_written_is_an_error_and_creates_nothing(
    tmp_path: Path, read: Any
) -> None:
    for place in (tmp_path / "typo", str(tmp_path / "typo"), tmp_path, an_output()):
        with pytest.raises(UserError, match="no output of a files sink at") as caught:
            read(place)
        assert caught.value.code is ErrorCode.OBJECT_MISSING
    assert list(tmp_path.iterdir()) == []


def test_output_that_is_staged_and_not_committed_is_no_rows_yet(tmp_path: Path) -> None:
    with OperatorHarness(files(tmp_path / "out").sink_spec(), SCHEMA) as sink:
        sink.push(numbers(1))
        sink.barrier()
        assert read_committed(tmp_path / "out").num_rows == 0
        sink.commit()
    assert read_committed(tmp_path / "out").num_rows == 1
    assert read_committed(tmp_path / "out", since_epoch=2).num_rows == 0


def test_a_relative_folder_is_meant_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = files("out").sink_spec()
    assert spec.config["url"] == (tmp_path / "out").as_uri()
    assert not (tmp_path / "out").exists()
    assert files("s3://bucket/out").sink_spec().config["url"] == "s3://bucket/out"


def test_options_reach_the_store(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    spec = files(out, store_options={"durable": False}).sink_spec()
    with OperatorHarness(spec, SCHEMA) as sink:
        sink.push(numbers(1))
        sink.barrier()
        sink.commit()
    assert committed_numbers(open_store(out)) == [1]


def test_it_shows_where_it_writes() -> None:
    spec, registry = sink_on(
        lambda _url: MemoryStore(), format="jsonl", partition_by=["day"]
    )
    shown = registry.construct(spec).display()
    assert shown.fields == {
        "url": "memory:unused",
        "format": "jsonl",
        "partition_by": "day",
    }
