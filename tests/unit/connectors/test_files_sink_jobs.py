"""The files sink in whole jobs: several sinks, folders of this machine, restarts."""

from pathlib import Path

import polars as pl

import penstock as pen
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
