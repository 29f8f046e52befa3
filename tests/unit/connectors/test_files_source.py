import json
import weakref
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.files.connector import files
from penstock.connectors.files.discovery import LISTING, ORIGIN
from penstock.connectors.files.formats import FileOffset
from penstock.connectors.files.source import FilesSource, FilesSourceConfig
from penstock.connectors.memory import list_sink
from penstock.core.schema import StreamSchema
from penstock.core.watermark import EventTime
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.splits import SourceBudget
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from penstock.testing import SourceHarness
from tests.builders.chain_rig import DrivenSource
from tests.builders.files_job import SCHEMA, some_rows, write_file

FORMATS = ("parquet", "jsonl", "csv")


def a_harness(path: str, parallelism: int = 1, **options: Any) -> SourceHarness:
    return SourceHarness(files(path, **options).source_spec(), parallelism=parallelism)


def numbers(harness: SourceHarness) -> list[int]:
    return sorted(row["n"] for row in harness.rows())


@pytest.mark.parametrize("ending", FORMATS)
def test_all_rows_of_all_files_are_read_in_order_and_the_source_ends(
    tmp_path: Path, ending: str
) -> None:
    for index in (2, 0, 1):
        rows = some_rows(10 * index, 10 * index + 10)
        write_file(tmp_path / f"part-{index}.{ending}", rows)

    with a_harness(f"{tmp_path}/*.{ending}") as harness:
        harness.read_all()

        assert harness.rows() == some_rows(0, 30)


@pytest.mark.parametrize("ending", FORMATS)
def test_a_file_is_read_over_epochs_and_other_subtasks_go_on_with_it(
    tmp_path: Path, ending: str
) -> None:
    for index in range(3):
        rows = some_rows(100 * index, 100 * index + 100)
        write_file(tmp_path / f"part-{index}.{ending}", rows)

    with a_harness(f"{tmp_path}/*.{ending}", parallelism=2) as harness:
        counts = []
        for parallelism in (3, 1, 2):
            harness.read(rows=20)
            counts.append(len(harness.rows()))
            harness.rescale(parallelism)
        harness.read_all(rows=50)

        assert 0 < counts[0] < counts[1] < counts[2] < 200
        assert numbers(harness) == list(range(300))


@pytest.mark.parametrize("ending", FORMATS)
def test_an_epoch_reads_about_as_many_rows_as_each_subtask_may(
    tmp_path: Path, ending: str
) -> None:
    for index in range(4):
        rows = some_rows(1000 + 100 * index, 1100 + 100 * index)
        write_file(tmp_path / f"part-{index}.{ending}", rows, row_group_size=5)

    with a_harness(f"{tmp_path}/*.{ending}", parallelism=2) as harness:
        for _ in range(4):
            output = harness.read(rows=20)
            assert 36 <= len(output.rows()) <= 44


def test_files_are_not_begun_before_there_is_room_for_them(tmp_path: Path) -> None:
    for index in range(9):
        write_file(tmp_path / f"part-{index}.jsonl", some_rows(0, 100))

    with a_harness(f"{tmp_path}/*.jsonl", parallelism=2) as harness:
        harness.read(rows=10)

        assert set(harness.splits) == {LISTING, ORIGIN, "part-0.jsonl", "part-1.jsonl"}


def test_a_planned_epoch_reads_the_same_rows_again(tmp_path: Path) -> None:
    write_file(tmp_path / "a.jsonl", some_rows(0, 100))
    spec = files(f"{tmp_path}/*.jsonl").source_spec()
    budget = SourceBudget(rows=10)

    first, second = DrivenSource(spec), DrivenSource(spec)

    assert first.run_epoch(budget) == second.run_epoch(budget)
    assert first.known == second.known
    assert 0 < len(first.taken.rows()) < 20


@pytest.mark.parametrize("ending", FORMATS)
def test_a_source_without_time_gets_on_piece_by_piece(tmp_path: Path, ending: str) -> None:
    for index in range(2):
        rows = some_rows(20 * index, 20 * index + 20)
        write_file(tmp_path / f"{index}.{ending}", rows)
    spec = files(f"{tmp_path}/*.{ending}").source_spec()
    # Half of the overrun is over when it begins; the other half keeps it from being stopped.
    no_time = SourceBudget(wall_micros=-30_000_000, overrun_micros=60_000_000)

    with SourceHarness(spec, budget=no_time) as harness:
        harness.read()
        assert len(harness.rows()) < 40
        harness.read_all()

        assert numbers(harness) == list(range(40))


def test_a_row_group_larger_than_the_budget_is_read_alone(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", some_rows(0, 100), row_group_size=50)

    with a_harness(f"{tmp_path}/a.parquet") as harness:
        assert len(harness.read(rows=1).rows()) == 50
        assert len(harness.read(rows=1).rows()) == 50


def test_offsets_are_row_groups_and_the_bytes_at_which_rows_begin(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", some_rows(0, 20), row_group_size=7)
    text = "n,s\n1,a\n2,b\n"
    (tmp_path / "a.csv").write_text(text)

    with a_harness(f"{tmp_path}/a.parquet") as harness:
        harness.read(rows=14)
        assert FileOffset(*harness.splits["a.parquet"].offset)[1:] == (2, 14)
    with a_harness(f"{tmp_path}/a.csv") as harness:
        harness.read(rows=1)
        harness.read(rows=1)
        assert harness.rows() == [{"n": 1, "s": "a"}]
        assert FileOffset(*harness.splits["a.csv"].offset) == (len(text), 8, 2)


def test_files_that_come_after_the_first_epoch_are_not_read_without_discovery(
    tmp_path: Path,
) -> None:
    write_file(tmp_path / "b.jsonl", some_rows(0, 50))

    with a_harness(f"{tmp_path}/*.jsonl") as harness:
        harness.read(rows=5)
        write_file(tmp_path / "a.jsonl", some_rows(50, 60))
        harness.rescale(2)
        harness.read_all(rows=20)

        assert numbers(harness) == list(range(50))


def test_new_files_are_discovered_wherever_their_names_sort(tmp_path: Path) -> None:
    write_file(tmp_path / "b.jsonl", some_rows(0, 10))

    with a_harness(f"{tmp_path}/*.jsonl", discover="10s") as harness:
        harness.read()
        write_file(tmp_path / "a.jsonl", some_rows(10, 15))
        write_file(tmp_path / "c.jsonl", some_rows(15, 20))
        harness.advance("9s")
        harness.read()
        assert numbers(harness) == list(range(10))
        harness.advance("1s")
        harness.rescale(2)
        harness.read()

        assert numbers(harness) == list(range(20))
        assert not harness.has_ended


def test_discovery_waits_for_the_first_file_if_the_schema_is_given(tmp_path: Path) -> None:
    path = f"{tmp_path}/*.jsonl"
    with a_harness(path, discover=True, schema=SCHEMA) as harness:
        harness.read()
        write_file(tmp_path / "a.jsonl", some_rows(0, 3))
        harness.advance("1s")
        harness.read()

        assert numbers(harness) == [0, 1, 2]


def test_a_file_that_grew_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    write_file(file, some_rows(0, 100))

    with a_harness(f"{tmp_path}/*.jsonl") as harness:
        harness.read(rows=5)
        file.write_bytes(file.read_bytes() + b'{"n": 1}\n')
        with pytest.raises(UserError, match=r"a\.jsonl now has") as caught:
            harness.read()

    assert caught.value.code is ErrorCode.INPUT_CHANGED


def test_a_file_that_grew_after_it_was_read_is_refused_by_discovery(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    write_file(file, some_rows(0, 3))

    with a_harness(f"{tmp_path}/*.jsonl", discover=True) as harness:
        harness.read()
        file.write_bytes(file.read_bytes() + b'{"n": 1}\n')
        harness.advance("1s")
        with pytest.raises(UserError, match=r"a\.jsonl now has"):
            harness.read()


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("discover", [False, True])
def test_a_file_that_goes_before_its_end_is_missed(
    tmp_path: Path, ending: str, discover: bool
) -> None:
    file = tmp_path / f"a.{ending}"
    write_file(file, some_rows(0, 100))

    with a_harness(f"{tmp_path}/*.{ending}", discover=discover) as harness:
        harness.read(rows=10)
        file.unlink()
        harness.advance("1s")
        with pytest.raises(UserError, match=rf"a\.{ending} has gone") as caught:
            harness.read()

    assert caught.value.code is ErrorCode.INPUT_CHANGED


def test_a_file_that_was_read_to_its_end_may_go(tmp_path: Path) -> None:
    write_file(tmp_path / "a.jsonl", some_rows(0, 3))

    with a_harness(f"{tmp_path}/*.jsonl", discover=True) as harness:
        harness.read()
        (tmp_path / "a.jsonl").unlink()
        write_file(tmp_path / "b.jsonl", some_rows(3, 5))
        harness.advance("1s")
        harness.read()

        assert numbers(harness) == list(range(5))


@pytest.mark.parametrize("discover", [False, True])
def test_a_file_that_cannot_be_named_stops_the_job(tmp_path: Path, discover: bool) -> None:
    write_file(tmp_path / "a.jsonl", some_rows(0, 3))
    spec = files(f"{tmp_path}/*.jsonl", discover=discover).source_spec()
    write_file(tmp_path / "b#1.jsonl", some_rows(3, 5))

    with (
        SourceHarness(spec) as harness,
        pytest.raises(UserError, match=r"'b#1\.jsonl'\. Rename"),
    ):
        harness.read()


def test_no_files_are_an_error_not_an_empty_success(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no file"):
        files(f"{tmp_path}/*.csv").source_spec()
    with (
        a_harness(f"{tmp_path}/*.csv", schema=SCHEMA) as harness,
        pytest.raises(UserError, match="names no file"),
    ):
        harness.read()


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    path = f"{tmp_path}/none at all/*.csv"
    with pytest.raises(UserError, match="names no file"):
        files(path).source_spec()
    with a_harness(path, schema=SCHEMA, discover=True) as harness:
        harness.read()
        assert list(tmp_path.iterdir()) == []

        write_file(tmp_path / "none at all" / "a.csv", some_rows(0, 2))
        harness.advance("1s")
        harness.read()

        assert numbers(harness) == [0, 1]


@pytest.mark.parametrize("ending", FORMATS)
def test_files_without_rows_end_at_once(tmp_path: Path, ending: str) -> None:
    write_file(tmp_path / f"a.{ending}", [])
    if ending != "parquet":
        (tmp_path / f"b.{ending}").touch()
    write_file(tmp_path / f"c.{ending}", some_rows(0, 2))

    with a_harness(f"{tmp_path}/*.{ending}", schema=SCHEMA) as harness:
        harness.read_all()

        assert harness.rows() == some_rows(0, 2)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_later_file_with_other_columns_is_refused_by_name(
    tmp_path: Path, ending: str
) -> None:
    write_file(tmp_path / f"a.{ending}", some_rows(0, 3))
    other = pa.table({"n": [1], "t": [2]})
    if ending == "parquet":
        pa.parquet.write_table(other, tmp_path / "b.parquet")
    else:
        pa.csv.write_csv(other, tmp_path / "b.csv")

    with (
        a_harness(f"{tmp_path}/*.{ending}") as harness,
        pytest.raises(SchemaError) as caught,
    ):
        harness.read_all()

    message = str(caught.value)
    assert f"b.{ending} has other columns" in message
    assert "column 's' is missing" in message
    assert "column 't'" in message


def test_a_parquet_column_of_another_type_is_refused(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", some_rows(0, 3))
    pa.parquet.write_table(pa.table({"n": ["x"], "s": ["y"]}), tmp_path / "b.parquet")

    with (
        a_harness(f"{tmp_path}/*.parquet") as harness,
        pytest.raises(SchemaError, match="column 'n' is string, expected int64"),
    ):
        harness.read_all()


@pytest.mark.parametrize("ending", FORMATS)
def test_columns_that_a_given_schema_does_not_name_are_skipped(
    tmp_path: Path, ending: str
) -> None:
    write_file(tmp_path / f"a.{ending}", some_rows(0, 3))
    only = pa.schema([("s", pa.string())])

    with a_harness(f"{tmp_path}/a.{ending}", schema=only) as harness:
        harness.read_all()

        assert harness.rows() == [{"s": f"row {n}"} for n in range(3)]


@pytest.mark.parametrize("ending", FORMATS)
def test_a_released_source_keeps_no_store_alive(tmp_path: Path, ending: str) -> None:
    opened: list[weakref.ref[ObjectStore]] = []

    def open_files(url: str, **options: Any) -> ObjectStore:
        store = open_store(url, **options)
        opened.append(weakref.ref(store))
        return store

    write_file(tmp_path / f"a.{ending}", some_rows(0, 10))
    spec = files(f"{tmp_path}/*.{ending}").source_spec()
    config: Any = dict(spec.config)
    source = FilesSource(FilesSourceConfig(**config), open_files)
    source.plan_splits({}, SourceBudget(), 0)
    source.release()

    assert [store() for store in opened] == [None]


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"half a file")

    with pytest.raises(UserError, match=r"a\.parquet cannot be read as Parquet") as caught:
        files(f"{tmp_path}/a.parquet").source_spec()

    assert caught.value.code is ErrorCode.UNREADABLE_INPUT


def files_of_times(folder: Path, minutes: dict[str, int], **options: Any) -> OperatorSpec:
    """Return files with a row for every second of a minute."""
    for name, minute in minutes.items():
        lines = [json.dumps({"ts": f"2026-01-01T00:{minute:02}:{s:02}"}) for s in range(60)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    schema = StreamSchema(pa.schema([("ts", pa.timestamp("us"))]), "ts")
    return files(f"{folder}/*.jsonl", schema=schema, **options).source_spec()


def latest(rows: list[dict[str, Any]], minute: int) -> EventTime:
    times = [row["ts"] for row in rows if row["ts"].minute == minute]
    return EventTime(int(max(times).replace(tzinfo=UTC).timestamp()) * 1_000_000)


def test_the_file_that_is_behind_tells_event_time(tmp_path: Path) -> None:
    spec = files_of_times(tmp_path, {"a": 10, "b": 5})

    with SourceHarness(spec, parallelism=2) as harness:
        output = harness.read(rows=10)
        assert output.watermark == latest(output.rows(), 5)

        harness.rescale(1)
        later = harness.read(rows=10)
        assert later.watermark == latest(output.rows(), 5)


def test_files_that_wait_hold_event_time_back(tmp_path: Path) -> None:
    spec = files_of_times(tmp_path, {"a": 10, "b": 5, "c": 0})

    with SourceHarness(spec, idle_timeout="1s") as harness:
        watermarks = []
        output = harness.read(rows=20)
        while "c.jsonl" not in harness.splits:
            watermarks.append(output.watermark)
            harness.advance("10s")
            harness.rescale(len(watermarks) % 2 + 1)
            output = harness.read(rows=20)

        assert len(watermarks) > 1
        assert set(watermarks) == {None}
        assert output.watermark == latest(output.rows(), 0)


def test_files_in_time_order_do_not_wait_for_those_to_come(tmp_path: Path) -> None:
    spec = files_of_times(tmp_path, {"a": 0, "b": 5, "c": 10}, in_time_order=True)

    with SourceHarness(spec) as harness:
        output = harness.read(rows=20)

        assert output.watermark == latest(output.rows(), 0)


def test_a_pipeline_reads_files_as_they_are_named(tmp_path: Path) -> None:
    write_file(tmp_path / "in" / "a.csv", some_rows(0, 5))
    out = list_sink("a-pipeline-reads-files")
    pipeline = Pipeline("job", parallelism=2)
    pipeline.read("in", files(f"{tmp_path}/in", format="csv")).write("out", out)

    pipeline.run_in_process("memory:")

    assert out.rows() == some_rows(0, 5)
    assert "files_source(files=" in pipeline.explain()
