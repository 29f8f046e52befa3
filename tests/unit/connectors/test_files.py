from typing import Any, Literal

import pyarrow as pa
import pytest

from penstock.api.pipeline import Pipeline
from penstock.catalog import default_registry
from penstock.connectors.files.connector import files
from penstock.connectors.files.source import FilesSource, FilesSourceConfig
from penstock.connectors.memory import list_sink
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import OperatorSpec
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from tests.builders.files_job import SCHEMA


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.parquet", "parquet"),
        ("*.ndjson", "jsonl"),
        ("a.json", "jsonl"),
        ("x/**/*.csv", "csv"),
        ("x", None),
        ("a.json.gz", "jsonl"),
        ("a.csv.zst", "csv"),
        ("a.parquet.gz", None),
        ("a.gz", None),
    ],
)
def test_the_ending_tells_the_format(path: str, expected: str | None) -> None:
    assert files(path).format == expected


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(UserError) as caught:
        files("a.xz", format="cvs", discover="soon", on_bad="drop")  # type: ignore[arg-type]

    assert caught.value.code is ErrorCode.INVALID_CONFIG
    message = str(caught.value)
    for part in (
        "did you mean 'csv'",
        "compressed so is not read",
        "'soon'",
        "on_bad is 'drop'",
    ):
        assert part in message


def test_files_of_an_unknown_format_cannot_be_read() -> None:
    with pytest.raises(UserError, match="pass format="):
        files("folder").source_spec()


def test_csv_cannot_be_written() -> None:
    with pytest.raises(UserError, match="CSV is only read"):
        files("a.csv").sink_spec()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"discover": "1s"}, "discover says"),
        ({"in_time_order": True, "moved_from": "x"}, "in_time_order, moved_from says"),
        ({"on_bad": "divert"}, 'on_bad="divert" says'),
        ({"remember": "1d"}, "remember says"),
    ],
)
def test_options_of_reading_are_refused_on_a_sink(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=f"'out' is written here, and {named}"):
        files("out", **options).sink_spec()


def test_a_name_says_how_files_are_read_or_how_they_are_written() -> None:
    reads = files("memory:out/", format="jsonl", schema=SCHEMA)
    writes = files("memory:out/", format="jsonl", target_bytes=100)

    assert reads.source_spec().kind == "files_source"
    sink = writes.sink_spec()
    assert (sink.kind, sink.config["target_bytes"]) == ("files_sink", 100)


@pytest.mark.parametrize(
    "option",
    [
        {"partition_by": "a"},
        {"target_bytes": 100},
        {"min_bytes": 100},
        {"visible_after": "1s"},
    ],
)
def test_options_that_say_how_files_are_written_are_refused_where_they_are_read(
    option: dict[str, Any],
) -> None:
    with pytest.raises(UserError, match=f"{next(iter(option))} says how files are written"):
        files("memory:out/", format="jsonl", schema=SCHEMA, **option).source_spec()


def test_a_schema_is_refused_where_files_are_written() -> None:
    with pytest.raises(UserError, match="schema says how files are read"):
        files("memory:out/", format="jsonl", schema=SCHEMA).sink_spec()


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_text_cannot_be_read_without_columns(format_: Literal["csv", "jsonl"]) -> None:
    with pytest.raises(SchemaError, match="schema= names no column"):
        files("memory:none/", format=format_, schema=pa.schema([])).source_spec()


def test_nothing_is_looked_for_too_often() -> None:
    with pytest.raises(UserError, match="at least 1ms"):
        files("*.csv", discover=1)


def test_the_driver_and_a_subtask_open_the_store_once_each_in_many_epochs() -> None:
    store = MemoryStore({f"{n}.jsonl": b'{"n": %d}' % n for n in range(3)})
    opened: list[str] = []

    def open_files(url: str) -> ObjectStore:
        opened.append(url)
        return store

    registry = default_registry(load_plugins=False)
    registry.add("seen", FilesSourceConfig, lambda config: FilesSource(config, open_files))
    config = files("memory:unused/*.jsonl", schema=SCHEMA).source_spec().config
    pipeline = Pipeline("often", registry=registry)
    out = list_sink("opened-once")
    pipeline.read("files", OperatorSpec("seen", config)).write("out", out)

    status = pipeline.run_in_process("memory:")

    assert sorted(row["n"] for row in out.rows()) == [0, 1, 2]
    assert status.epoch is not None
    assert status.epoch > 1
    assert opened == ["memory:unused"] * 2
