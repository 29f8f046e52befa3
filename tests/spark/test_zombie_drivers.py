"""Two drivers of one job on Spark: the older one sleeps or runs on, and is fenced for good.

It is a real process, stopped with its JVM at a named instant and woken up after its
successor has published. From the newer claim on it commits nothing and deletes nothing.
"""

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import penstock as pen
from penstock.operators.splits import SourceBudget
from tests.builders.spark_session import SparkProgram, shared_session
from tests.spark.counting_job import SETTINGS, CountingJob

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("counting_program.py")
ROWS = 100_000
"""More than anybody reads before the job is given all of them at once."""
INSTANTS = {
    "before it writes a manifest": ["create", "*/manifest.pb", 3],
    "before it acknowledges an epoch": ["create", "*/epochs/*", 3],
    "before it looks whether it was replaced": [None, "*/generations/2/claim", 3],
    "before it marks a commit": ["create", "*/committed", 3],
}


class EnoughError(BaseException):
    """Stands for a driver that dies after some epochs."""


@pytest.fixture(scope="module")
def sleeper(spark_scratch: Path) -> Iterator[SparkProgram]:
    """An older driver, started once for all tests here."""
    program = SparkProgram(PROGRAM, spark_scratch)
    program.hear_until("ready")
    yield program
    program.kill()


def files_of(job: CountingJob) -> dict[str, bytes]:
    """Return everything that counts; staged output and caches do not."""
    return {
        str(path.relative_to(job.folder)): path.read_bytes()
        for path in job.folder.rglob("*")
        if path.is_file() and "_staging" not in path.parts
    }


def dies_after(epochs: int) -> Callable[[pen.JobStatus], None]:
    def look(status: pen.JobStatus) -> None:
        if status.epochs_published == epochs:
            raise EnoughError

    return look


def take_over(job: CountingJob, epochs: int) -> None:
    """Run a newer driver for some epochs."""
    with pytest.raises(EnoughError):
        job.run(session=shared_session(), on_status=dies_after(epochs))


def finish(job: CountingJob) -> None:
    """Run a driver that reads all the rest, and check the output."""
    all_at_once = replace(SETTINGS, budget=SourceBudget(rows=ROWS))
    assert job.run(session=shared_session(), settings=all_at_once).phase == "finished"
    job.check()


@pytest.mark.parametrize("instant", INSTANTS)
def test_a_driver_that_wakes_up_after_its_successor_published_changes_nothing(
    sleeper: SparkProgram, tmp_path: Path, instant: str
) -> None:
    job = CountingJob(tmp_path, rows=ROWS)
    sleeper.tell(folder=str(tmp_path), rows=ROWS, sleep=INSTANTS[instant])
    sleeper.hear_until("asleep")
    take_over(job, 2)
    before = files_of(job)
    sleeper.signal(signal.SIGCONT)
    told = sleeper.hear_until("failed")
    assert told["kind"] == "FencedError"
    assert "generation 1 of job 'counting' was replaced" in told["message"]
    after = files_of(job)
    assert {name: after.get(name) for name in before} == before
    # What it may leave are objects of its own generation, which nothing refers to, and its events.
    own = ("checkpoints/counting/generations/1/", "checkpoints/counting/events/0000000001/")
    assert [name for name in after if name not in before and not name.startswith(own)] == []
    finish(job)


def test_of_two_drivers_at_work_the_older_stops_and_says_why(
    sleeper: SparkProgram, tmp_path: Path
) -> None:
    job = CountingJob(tmp_path, rows=ROWS)
    sleeper.tell(folder=str(tmp_path), rows=ROWS)
    while sleeper.hear_until("status")["epoch"] is None:
        pass
    take_over(job, 3)
    told = sleeper.hear_until("failed")
    assert told["kind"] == "FencedError"
    assert "a newer driver has claimed the job" in told["message"]
    finish(job)
