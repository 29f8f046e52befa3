"""The plug-in as users get it: another pytest, on a file that only names fixtures."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_sink
from penstock.core.clock import ManualClock
from penstock.errors import UnknownOutcomeError
from penstock.runtime.driver.decide import JobPhase, JobStatus
from penstock.state.storage.memory import MemoryStore
from penstock.testing import plugin
from penstock.testing.faults import Fault, FaultMode, FaultyStore
from penstock.testing.harness import OperatorHarness, SourceHarness
from penstock.testing.parts import EOF, PAUSE, ScriptedSource
from penstock.testing.pipelines import LocalJob
from tests.architecture.project import ROOT, resolve
from tests.unit.testing.tested_operators import CLICKS, Totals

SAMPLE = """
import pyarrow as pa
import pytest
from penstock.testing import CrashError, EOF, Fault, FaultMode, ScriptedSource, list_sink
from penstock import Pipeline, StreamSchema
from penstock.operators.stateless import map_batches_spec

SCHEMA = pa.schema([("n", pa.int64())])
ROWS = [{"n": 1}, {"n": 2}]


def double(batch):
    return pa.record_batch({"n": [2 * n for n in batch.column("n").to_pylist()]})


def test_an_operator(operator_harness):
    harness = operator_harness(map_batches_spec(double), SCHEMA)
    harness.push(ROWS)
    assert harness.barrier().rows() == [{"n": 2}, {"n": 4}]


def test_a_source(source_harness):
    harness = source_harness(ScriptedSource(ROWS))
    harness.read_all()
    assert harness.rows() == ROWS


@pytest.fixture
def pipeline():
    out = list_sink("plugin")
    out.clear()
    made = Pipeline("plugin")
    made.read("rows", ScriptedSource([*ROWS, EOF, {"n": 3}])).write("out", out)
    return made


def rows():
    return [row["n"] for row in list_sink("plugin").rows()]


def test_a_second_run_goes_on(run_pipeline, pipeline, memory_store):
    assert run_pipeline(pipeline).phase == "stopped"
    assert rows() == [1, 2]
    assert memory_store.contents()
    assert run_pipeline(pipeline, parallelism=2).phase == "finished"
    assert rows() == [1, 2, 3]


def test_a_job_crashes_when_it_is_told_to(local_job, pipeline, manual_clock):
    job = local_job(pipeline)
    assert job.clock is manual_clock
    with pytest.raises(CrashError):
        job.run(Fault(FaultMode.CRASH_BEFORE, at=5))
    job.run()
    assert rows() == [1, 2]


def test_a_store_suffers_what_it_is_told_to(faulty_store, memory_store):
    store = faulty_store(Fault(FaultMode.CRASH_AFTER))
    with pytest.raises(CrashError):
        store.create("a", b"1")
    assert memory_store.read("a") == b"1"
"""

# The fixtures are here whether or not the project's entry points are installed.
memory_store = plugin.memory_store
faulty_store = plugin.faulty_store
manual_clock = plugin.manual_clock
operator_harness = plugin.operator_harness
source_harness = plugin.source_harness
local_job = plugin.local_job
run_pipeline = plugin.run_pipeline


def test_harnesses_are_open_during_the_test(
    operator_harness: Callable[..., OperatorHarness],
    source_harness: Callable[..., SourceHarness],
) -> None:
    source = source_harness(ScriptedSource([{"user": "a", "n": 1}]))
    operator = operator_harness(Totals(), CLICKS, key="user", parallelism=2)
    operator.push(source.read().rows())
    assert operator.barrier().rows() == [{"user": "a", "n": 1}]


def test_jobs_of_one_test_share_a_store_and_a_clock(
    run_pipeline: Callable[..., JobStatus],
    local_job: Callable[..., LocalJob],
    memory_store: MemoryStore,
    manual_clock: ManualClock,
) -> None:
    out = list_sink("shared")
    out.clear()
    pipeline = Pipeline("shared")
    script = [{"n": 1}, EOF, {"n": 2}, PAUSE("1h"), {"n": 3}]
    pipeline.read("rows", ScriptedSource(script)).write("out", out)
    assert run_pipeline(pipeline).phase is JobPhase.STOPPED
    assert len(memory_store.contents()) > 0
    before = manual_clock.micros
    assert local_job(pipeline).run().phase is JobPhase.FINISHED
    assert manual_clock.micros > before
    assert [row["n"] for row in out.rows()] == [1, 2, 3]


def test_a_faulty_store_stands_over_the_store_of_the_test(
    faulty_store: Callable[..., FaultyStore], memory_store: MemoryStore
) -> None:
    store = faulty_store(Fault(FaultMode.FAIL_AFTER))
    with pytest.raises(UnknownOutcomeError):
        store.create("a", b"1")
    assert memory_store.read("a") == b"1"


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    # The project may be installed or not, and with it the entry point: it is named here.
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    # Where temporary folders are inside a project, its settings would be found.
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "penstock.testing.plugin"),
            *("-W", "error", "-p", "no:cacheprovider", "--rootdir", str(folder)),
            *options,
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_test_file_gets_the_fixtures_by_name(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE, encoding="utf-8")
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_pytest_shows_what_each_fixture_is(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--fixtures")
    for fixture in ("memory_store", "operator_harness", "run_pipeline", "local_job"):
        assert f"\n{fixture} -- " in done.stdout


def test_the_plug_in_imports_nothing_heavy_before_a_fixture_is_used() -> None:
    code = (
        "import sys; import penstock.testing.plugin; "
        "print(sorted({'pyarrow', 'polars', 'numpy', 'obstore'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_the_entry_point_names_the_plug_in() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    assert resolve(project["entry-points"]["pytest11"]["penstock"]) is not None
