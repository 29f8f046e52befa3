"""kill -9 of a driver and its JVM at random moments of a job on Spark, resumed each time."""

import os
import random
import time
from pathlib import Path

import pytest

from tests.builders.profile import by_profile
from tests.builders.spark_session import SparkProgram
from tests.spark.counting_job import CountingJob

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("counting_program.py")
KILLS = by_profile(default=2, ci=8, nightly=100)
ROWS = 100_000
"""More than the killed drivers get done."""


def newest_epoch(job: CountingJob) -> int:
    records = (job.folder / "checkpoints" / "counting" / "epochs").glob("*.record")
    return max((int(record.stem) for record in records), default=0)


def wait_for_epochs(driver: SparkProgram, job: CountingJob, count: int) -> None:
    """Wait until that many more epochs are acknowledged."""
    goal = newest_epoch(job) + count
    while newest_epoch(job) < goal:
        said = driver.errors.read_text()
        assert "failed:" not in said, said
        assert driver.process.poll() is None, said
        time.sleep(0.005)


@pytest.mark.timeout(1_200)
def test_a_driver_killed_at_any_moment_is_resumed_and_counts_every_row_once(
    tmp_path: Path, spark_scratch: Path
) -> None:
    dice = random.Random(int(os.environ.get("PENSTOCK_TEST_SEED", "20")))
    job = CountingJob(tmp_path, rows=ROWS)
    killed_in: list[int] = []
    standby = SparkProgram(PROGRAM, spark_scratch)
    try:
        for _ in range(KILLS):
            driver = standby
            driver.hear_until("ready")
            driver.tell(folder=str(tmp_path), rows=ROWS)
            # The next one starts its JVM meanwhile: that is most of the time this takes.
            standby = SparkProgram(PROGRAM, spark_scratch)
            wait_for_epochs(driver, job, dice.choice([0, 0, 1, 1, 2, 3]))
            time.sleep(dice.random() * 0.5)
            assert driver.process.poll() is None
            driver.kill()
            killed_in.append(newest_epoch(job))
        standby.tell(folder=str(tmp_path), rows=ROWS, budget=ROWS)
        assert standby.hear_until("ended")["phase"] == "finished"
    finally:
        standby.kill()
    assert len(set(killed_in)) > KILLS // 3, "it was killed at the same place all the time"
    job.check()
