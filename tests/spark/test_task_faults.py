"""Tasks that fail or die on Spark: it tries them again, and every row still counts once."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import ErrorCode, UserCodeError
from penstock.operators import SourceCollector, SourceContext, SourceOperator
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.spark.running import run_on_spark
from tests.builders.commit_parts import AS_A_JOB, PartSink, notes_in, rows_in
from tests.builders.spark_session import marks_in, shared_session
from tests.spark.counting_job import (
    CountingJob,
    DiesHalfWay,
    DiesOnce,
    FailsOncePerSubtask,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """A folder that tells what happened."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def test_tasks_that_fail_at_first_are_tried_again_within_the_epoch(
    tmp_path: Path, marks: Path
) -> None:
    job = CountingJob(tmp_path, harm=FailsOncePerSubtask(marks))
    status = job.run(session=shared_session())
    assert marks_in(marks) == {"failed-0", "failed-1"}
    assert (status.restarts, status.torn_epochs) == (0, 0)
    job.check()


def test_a_worker_killed_in_the_middle_of_a_task_loses_and_doubles_nothing(
    tmp_path: Path, marks: Path
) -> None:
    job = CountingJob(tmp_path, harm=DiesOnce(marks))
    status = job.run(session=shared_session())
    assert marks_in(marks) == {"died"}
    assert (status.restarts, status.torn_epochs) == (0, 0)
    job.check()


def test_a_worker_killed_half_way_through_its_output_loses_and_doubles_nothing(
    tmp_path: Path, marks: Path
) -> None:
    job = CountingJob(tmp_path, rows=600, harm=DiesHalfWay(marks))
    status = job.run(session=shared_session())
    assert marks_in(marks) == {"armed", "died half-way"}
    assert (status.restarts, status.torn_epochs) == (0, 0)
    job.check()


def test_a_worker_killed_in_a_part_of_a_commit_is_replaced_and_the_part_runs_again(
    tmp_path: Path, marks: Path
) -> None:
    pipeline = pen.Pipeline("parts", parallelism=2)
    read = pipeline.read("numbers", pen.impulse(count=100, splits=2, step="1ms"))
    read.write("out", PartSink(marks, size_bytes=AS_A_JOB, harm="dies"))
    options = RunOptions(checkpoint=str(tmp_path / "checkpoint"), session=shared_session())
    status = run_on_spark(pipeline.graph(), pipeline.registry, options)
    assert (marks / "struck").exists()
    assert (status.restarts, status.torn_epochs) == (0, 0)
    assert sorted(row["counter"] for row in rows_in(marks)) == [*range(100)]
    attempts = [(note["epoch"], note["part"]) for note in notes_in(marks)]
    assert len(attempts) > len(set(attempts))


class StuckSource(SourceOperator):
    """Waits for what never comes, in a call that does not return to Python."""

    def name(self) -> str:
        return "stuck"

    def output_schema(self) -> pen.StreamSchema:
        return pen.StreamSchema(pa.schema([("n", pa.int64())]))

    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        threading.Event().wait()


@pytest.mark.parametrize(
    "deadline_micros",
    [pytest.param(8_000_000, id="running"), pytest.param(1, id="about to start")],
)
def test_a_source_that_never_comes_back_is_cancelled_when_the_epoch_is_overdue(
    deadline_micros: int, tmp_path: Path
) -> None:
    pipeline = pen.Pipeline("stuck")
    pipeline.read("wait", StuckSource()).write("out", pen.blackhole())
    session = shared_session()
    options = RunOptions(
        checkpoint=str(tmp_path / "checkpoint"),
        session=session,
        settings=DriverSettings(epoch_deadline_micros=deadline_micros),
    )
    with pytest.raises(UserCodeError, match="source 'wait' did not end it") as raised:
        run_on_spark(pipeline.graph(), pipeline.registry, options)
    assert raised.value.code is ErrorCode.SOURCE_OVERRAN
    assert raised.value.context["sources"] == "wait"
    # Its workers are gone: the next job of the session has cores to run on.
    job = CountingJob(tmp_path / "next")
    job.run(session=session)
    job.check()
