"""Ctrl-C on a job on Spark, as a terminal sends it: to driver, JVM and workers alike."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.profile import takes_long
from tests.builders.spark_session import SparkProgram, claim, wait_for_mark
from tests.spark.counting_job import CountingJob

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("counting_program.py")
ROWS = 100_000
"""More than is read before the job is given all of them at once."""


@pytest.fixture(scope="module")
def driver(spark_scratch: Path) -> Iterator[SparkProgram]:
    """A driver that outlives what it is told to stop."""
    program = SparkProgram(PROGRAM, spark_scratch)
    program.hear_until("ready")
    yield program
    program.kill()


def epochs_of(job: CountingJob) -> list[int]:
    return [int(epoch.record.ref.epoch) for epoch in job.checkpoints.epochs()]


def finish(driver: SparkProgram, job: CountingJob, **order: Any) -> None:
    """Run the rest of a job in the same process and the same Spark, and check the output."""
    driver.tell(folder=str(job.folder), rows=job.rows, budget=job.rows, **order)
    assert driver.hear_until("ended")["phase"] == "finished"
    job.check()


def test_ctrl_c_ends_the_epoch_with_a_checkpoint_and_stops(
    driver: SparkProgram, tmp_path: Path
) -> None:
    job = CountingJob(tmp_path, rows=ROWS)
    driver.tell(folder=str(tmp_path), rows=ROWS)
    while (driver.hear_until("status")["epoch"] or 0) < 2:
        pass
    driver.signal(signal.SIGINT)
    assert driver.hear_until("ended")["phase"] == "stopped"
    assert max(epochs_of(job)) >= 2
    finish(driver, job)


@takes_long
def test_a_second_ctrl_c_stops_an_epoch_that_does_not_end(
    driver: SparkProgram, tmp_path: Path
) -> None:
    job = CountingJob(tmp_path, rows=ROWS)
    marks = tmp_path / "marks"
    marks.mkdir()
    driver.tell(folder=str(tmp_path), rows=ROWS, hangs=True)
    wait_for_mark(marks, "hanging")
    driver.forget_errors()
    driver.signal(signal.SIGINT)
    driver.wait_for_words("stops after")  # two at once would be one
    driver.signal(signal.SIGINT)
    assert driver.hear_until("ended")["phase"] == "stopped"
    assert epochs_of(job) == [1]
    claim(marks, "let-go")
    finish(driver, job, hangs=True)
