"""Executors killed in the middle of epochs, and tasks overtaken by their copies, on a real cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.profile import takes_long
from tests.builders.spark_session import SparkProgram, marks_in
from tests.spark.counting_job import CountingJob

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("cluster_program.py")
ROWS = 600


@pytest.fixture(scope="module")
def cluster(spark_scratch: Path) -> Iterator[SparkProgram]:
    """Two executors, started once for all tests here."""
    program = SparkProgram(
        PROGRAM,
        spark_scratch,
        conf={
            "spark.speculation": "true",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.interval": "50ms",
            "spark.speculation.efficiency.enabled": "false",
            # Never, until a test wants it: a copy of a task that waits would spoil the others.
            "spark.speculation.multiplier": "1000000",
        },
    )
    program.hear_until("ready")
    yield program
    program.kill()


def run(cluster: SparkProgram, folder: Path, harm: str, **order: Any) -> dict[str, Any]:
    """Run a job with some harm and check its output."""
    cluster.tell(folder=str(folder), rows=ROWS, harm=harm, **order)
    told = cluster.hear_until("ended")
    assert told["phase"] == "finished"
    CountingJob(folder, rows=ROWS).check()
    return told


def test_an_executor_killed_in_the_middle_of_an_epoch_loses_and_doubles_nothing(
    cluster: SparkProgram, tmp_path: Path
) -> None:
    run(cluster, tmp_path, "kill")
    # Whether Spark mends it, gives the job up or tears the epoch depends on who held what.
    assert marks_in(tmp_path / "marks") == {"killed"}


@takes_long
def test_spark_repeats_or_gives_up_an_epoch_of_which_it_lost_half_a_level(
    cluster: SparkProgram, tmp_path: Path
) -> None:
    # One task of the last level has ended with the rows of an attempt that is lost now.
    told = run(cluster, tmp_path, "kill-waiting", has_retry=True)
    assert "killed" in marks_in(tmp_path / "marks")
    assert told["torn"] == 0, told
    # Given up, it is started again; repeated, it is not: then both levels ran as a whole.
    assert told["restarts"] == len(told["errors"]) <= 1, told


@takes_long
def test_receipts_catch_an_epoch_that_mixed_two_attempts_of_a_task(
    cluster: SparkProgram, tmp_path: Path
) -> None:
    # Without its checksums Spark repeats only the lost half of level 1 and says all is well.
    told = run(cluster, tmp_path, "kill-waiting", has_retry=False)
    assert "killed" in marks_in(tmp_path / "marks")
    assert told["torn"] == 1, told
    assert told["restarts"] == 0


@takes_long
def test_a_task_that_was_overtaken_by_its_copy_counts_once(
    cluster: SparkProgram, tmp_path: Path
) -> None:
    run(cluster, tmp_path, "straggle")
    assert marks_in(tmp_path / "marks") == {"straggling", "overtaken"}
