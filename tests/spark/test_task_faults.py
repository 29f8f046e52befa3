"""Tasks that fail or die on Spark: it tries them again, and every row still counts once."""

from pathlib import Path

import pytest

from tests.builders.marks import marks_in
from tests.builders.spark_counting import CountingJob
from tests.builders.spark_harm import DiesHalfWay, DiesOnce, FailsOncePerSubtask
from tests.builders.spark_session import shared_session

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
