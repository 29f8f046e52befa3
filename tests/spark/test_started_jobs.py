"""Jobs that were started on Spark: stopped in every mode, failed, left to the end of the program."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import UserCodeError
from tests.builders.profile import takes_long
from tests.builders.spark_session import PATIENCE_SECONDS, run_module, shared_session

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def refuse_large(batch: pa.RecordBatch) -> pa.RecordBatch:
    if any(row["counter"] > 500 for row in batch.to_pylist()):
        raise ValueError("a large number")
    return batch


@pytest.mark.parametrize("mode", pen.StopMode)
def test_a_job_started_on_spark_stops_in_every_mode_and_goes_on(
    tmp_path: Path, mode: pen.StopMode
) -> None:
    pipeline = pen.Pipeline("started", parallelism=2)
    pipeline.read("numbers", pen.impulse(rate=1_000)).write("out", pen.blackhole())
    published = threading.Event()

    def note(status: pen.JobStatus) -> None:
        if status.epochs_published:
            published.set()

    for generation in (1, 2):
        published.clear()
        job = pipeline.start(
            str(tmp_path), session=shared_session(), on_status=note, trigger="200ms"
        )
        assert job.status.generation == generation
        assert published.wait(PATIENCE_SECONDS)
        job.stop(mode)
        assert job.wait(PATIENCE_SECONDS).phase is pen.JobPhase.STOPPED


def test_wait_raises_what_a_job_on_spark_failed_of(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("failing")
    read = pipeline.read("numbers", pen.impulse(rate=1_000))
    read.map_batches(refuse_large).write("out", pen.blackhole())
    job = pipeline.start(str(tmp_path), session=shared_session(), trigger="200ms")
    with pytest.raises(UserCodeError, match="a large number"):
        job.wait(PATIENCE_SECONDS)
    assert job.status.phase is pen.JobPhase.FAILED


@takes_long
def test_a_program_that_ends_without_waiting_for_its_job_ends_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    done = run_module("tests.spark.left_job_program", str(tmp_path / "c"), folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr
