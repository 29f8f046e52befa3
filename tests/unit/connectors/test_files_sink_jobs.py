"""The files sink in whole jobs: several sinks, folders of this machine, restarts."""

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.operators import ArrowCollector, ArrowOperator
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import ABORT, CUT, LocalJob, ScriptedSource
from tests.builders.files_job import sink_on


def numbers_in(out: str) -> list[int]:
    return sorted(row["n"] for row in pen.read_committed(out).to_pylist())


def test_two_sinks_of_one_job_may_share_a_folder(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    pipeline = pen.Pipeline("shared")
    rows = pipeline.read("rows", pen.list_source([{"n": n} for n in range(6)]))
    rows.filter(pl.col("n") % 2 == 0).write("even", pen.files(out, format="parquet"))
    rows.filter(pl.col("n") % 2 == 1).write("odd", pen.files(out, format="jsonl"))
    LocalJob(pipeline).run(parallelism=2)

    assert numbers_in(out) == list(range(6))
    operators = {file.operator: file.path for file in pen.committed_files(out)}
    assert operators["even"].endswith(".parquet")
    assert operators["odd"].endswith(".jsonl")
    assert not (tmp_path / "out" / "_staging").exists()


def test_a_job_that_dies_and_is_rescaled_writes_each_row_once(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    script = [[{"n": 1}, {"n": 2}], CUT, [{"n": 3}], ABORT, [{"n": 4}], CUT, [{"n": 5}]]
    pipeline = pen.Pipeline("dies")
    pipeline.read("rows", ScriptedSource(script)).write("out", pen.files(out))
    job = LocalJob(pipeline)
    job.run_until_done(parallelism=2)
    assert numbers_in(out) == [1, 2, 3, 4, 5]
    assert job.run(parallelism=3).phase is pen.JobPhase.FINISHED
    assert pen.read_committed(out).num_rows == 5
    assert pl.read_parquet(tmp_path / "out" / "part-*").height == 5


def test_a_store_is_opened_once_however_many_epochs_a_job_has() -> None:
    store = MemoryStore()
    opened: list[str] = []

    def open_output(url: str) -> ObjectStore:
        opened.append(url)
        return store

    spec, registry = sink_on(open_output)
    pipeline = pen.Pipeline("often", registry=registry)
    script = [step for n in range(5) for step in ([{"n": n}], CUT)]
    pipeline.read("rows", ScriptedSource(script)).write("out", spec)

    pipeline.run_in_process("memory:")

    assert len({file.epoch for file in pen.committed_files(store)}) == 5
    # The driver checks and commits, and the one subtask stages, each with its own instance.
    assert opened == ["memory:unused"] * 3


def test_a_job_that_ends_without_a_row_leaves_a_list_that_tells_its_columns(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    pipeline = pen.Pipeline("none")
    rows = pipeline.read("rows", pen.list_source([{"n": 1}, {"n": 2}]))
    rows.filter(pl.col("n") > 2).write("out", pen.files(out))
    LocalJob(pipeline).run(parallelism=2)

    assert pen.read_committed(out).schema == pa.schema([("n", pa.int64())])
    assert pen.read_committed(out).num_rows == 0
    assert pen.committed_files(out) == []
    assert len(list((out / "_committed").iterdir())) == 1


class Removing(ArrowOperator):
    """Passes rows on, and removes a folder when it meets the number 3."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def name(self) -> str:
        return "removing"

    def output_schema(self, inputs: object) -> pen.StreamSchema:
        return inputs[0]  # type: ignore[index, no-any-return]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: object, collector: ArrowCollector
    ) -> None:
        if 3 in batch.column("n").to_pylist():
            shutil.rmtree(self.folder)
        collector.collect(batch)


def test_output_that_is_removed_while_the_job_runs_is_found_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    script = [step for n in range(1, 6) for step in ([{"n": n}], CUT)]
    pipeline = pen.Pipeline("removed")
    rows = pipeline.read("rows", ScriptedSource(script)).process("remove", Removing(out))
    rows.write("out", pen.files(out))
    with caplog.at_level(logging.WARNING, "penstock"):
        pipeline.run_in_process(tmp_path / "checkpoint")

    [warning] = [record.getMessage() for record in caplog.records]
    assert "'_committed/0000000002-out.json' is gone from" in warning
    assert "Rows of epoch 2 and of those before it may be missing" in warning
    assert numbers_in(str(out)) == [3, 4, 5]


def test_paths_name_checkpoints_sources_and_sinks_as_text_does(tmp_path: Path) -> None:
    for number, form in enumerate([str, Path]):
        name: Callable[[Path], str | Path] = form
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "in.csv").write_text("n\n1\n2\n")
        pipeline = pen.Pipeline("paths")
        read = pipeline.read("rows", pen.files(name(folder / "*.csv")))
        read.write("out", pen.files(name(folder / "out")))
        pipeline.run_in_process(name(folder / "checkpoint"))
        assert pen.read_committed(name(folder / "out"))["n"].to_pylist() == [1, 2]
        assert [file.row_count for file in pen.committed_files(folder / "out")] == [2]


ODD_TYPES: Mapping[str, pa.DataType] = {
    "seconds": pa.timestamp("s"),
    "zoned": pa.timestamp("s", "Europe/Berlin"),
    "date64": pa.date64(),
    "date32": pa.date32(),
    "time32": pa.time32("s"),
    "duration": pa.duration("s"),
    "large": pa.large_string(),
    "fixed": pa.binary(2),
}


@pytest.mark.parametrize("partition_by", [[], ["day"]])
def test_read_committed_returns_the_types_that_were_written(
    tmp_path: Path, partition_by: list[str]
) -> None:
    columns: dict[str, Any] = {
        name: pa.array([b"ab", None] if name == "fixed" else ["ab", None], kind)
        if name in ("large", "fixed")
        else pa.array([86_400_000 if name == "date64" else 86_399, None])
        .cast(pa.int32() if kind in (pa.date32(), pa.time32("s")) else pa.int64())
        .view(kind)
        for name, kind in ODD_TYPES.items()
    }
    rows = pa.table(columns | {"day": pa.array([1, 2], pa.int32())})
    pipeline = pen.Pipeline("types")
    read = pipeline.read("rows", pen.list_source(rows))
    read.write("out", pen.files(tmp_path / "out", partition_by=partition_by))
    pipeline.run_in_process("memory:")
    found = pen.read_committed(tmp_path / "out")
    assert found.schema == rows.schema
    assert found.equals(rows)


@pytest.mark.parametrize("read", [pen.committed_files, pen.read_committed])
def test_reading_a_folder_of_other_files_is_an_error(tmp_path: Path, read: Any) -> None:
    (tmp_path / "in.csv").write_text("n\n1\n")
    pipeline = pen.Pipeline("other")
    rows = pipeline.read("rows", pen.files(tmp_path / "*.csv"))
    rows.write("out", pen.files(tmp_path / "lake" / "out"))
    pipeline.run_in_process("memory:")

    for place in (tmp_path, tmp_path / "lake"):
        with pytest.raises(pen.PenstockError, match="no output of a files sink at"):
            read(place)


DICTIONARIES: Mapping[str, Any] = {
    "whole numbers": pa.array([7, None, 7]),
    "floats": pa.array([0.5, None, 0.5]),
    "bytes": pa.array([b"a", None, b"a"]),
    "text": pa.array(["a", None, "a"]),
    "large text": pa.array(["a", None, "a"], pa.large_string()),
}


@pytest.mark.parametrize("name", DICTIONARIES)
def test_read_committed_returns_dictionaries_of_all_values(
    tmp_path: Path, name: str
) -> None:
    rows = pa.table({"value": DICTIONARIES[name].dictionary_encode()})
    pipeline = pen.Pipeline("dictionaries")
    pipeline.read("rows", pen.list_source(rows)).write("out", pen.files(tmp_path / "out"))
    pipeline.run_in_process("memory:")

    found = pen.read_committed(tmp_path / "out")

    assert found.schema == rows.schema
    assert found.to_pylist() == rows.to_pylist()


READ = """
import os, sys
import pyarrow.parquet, penstock as pen
from penstock.connectors.files.committed import read_committed
before = len(os.listdir("/proc/self/task"))
assert read_committed(sys.argv[1]).num_rows == 1000
assert len(os.listdir("/proc/self/task")) == before, "Arrow started threads"
"""


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="threads are counted in /proc"
)
def test_reading_committed_rows_starts_no_threads_which_abort_some_programs_at_their_exit(
    tmp_path: Path, form: str
) -> None:
    out = tmp_path / "out"
    pipeline = pen.Pipeline("threads")
    rows = [{"n": n, "text": str(n), "half": n / 2} for n in range(1000)]
    read = pipeline.read("rows", pen.list_source(rows))
    read.write("out", pen.files(out, format="jsonl" if form == "jsonl" else "parquet"))
    pipeline.run_in_process("memory:")
    subprocess.run([sys.executable, "-c", READ, str(out)], check=True)
