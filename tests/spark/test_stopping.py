"""A job on a Spark of its own is stopped by signals, survives its JVM, and leaves none behind.

Spark takes seconds to start, so one job lives through several of these fates, one after the
other, and what it wrote is checked at its end. Which signal it is, and in which moment of the
start it comes, is tested without Spark as well (`tests/unit/runtime`); here the profile "default"
tries one of each.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings

from tests.builders.profile import takes_long
from tests.builders.spark_session import SparkProgram, claim, marks_in, wait_for_mark
from tests.spark.counting_job import CountingJob

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("stopping_program.py")
ROWS = 100_000
SOON_SECONDS = 60.0
"""Far below what a stop takes that waits for something that does not come."""
IS_THOROUGH = hypothesis_settings.get_current_profile_name() != "default"
SIGNALS = [signal.SIGTERM, *([signal.SIGHUP, signal.SIGINT] if IS_THOROUGH else [])]


@pytest.fixture(scope="module")
def program(spark_scratch: Path) -> Iterator[SparkProgram]:
    """A driver that outlives what befalls its jobs; each starts a Spark of its own."""
    started = SparkProgram(PROGRAM, spark_scratch)
    started.hear_until("ready")
    yield started
    started.kill()


@pytest.fixture
def driver(program: SparkProgram) -> SparkProgram:
    """The driver, of whose messages only those of this test count."""
    program.forget_errors()
    return program


@pytest.fixture
def job(tmp_path: Path) -> CountingJob:
    (tmp_path / "marks").mkdir()
    return CountingJob(tmp_path, rows=ROWS)


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run(driver: SparkProgram, job: CountingJob, **order: Any) -> None:
    driver.tell(folder=str(job.folder), rows=job.rows, **order)


def wait_for_epoch(driver: SparkProgram, epoch: int) -> None:
    while (driver.hear_until("status")["epoch"] or 0) < epoch:
        pass


def finish(driver: SparkProgram, job: CountingJob, **order: Any) -> None:
    run(driver, job, budget=job.rows, **order)
    assert driver.hear_until("ended")["phase"] == "finished"
    job.check()


def press_twice(driver: SparkProgram, number: signal.Signals) -> None:
    """Send a signal, and once more when the first was understood."""
    driver.signal(number)
    driver.wait_for_words("stops after")
    driver.signal(number)
    began = time.monotonic()
    assert driver.hear_until("ended")["phase"] == "stopped"
    assert time.monotonic() - began < SOON_SECONDS


def wait_for_release(job: CountingJob, *, at_once: bool = False) -> None:
    """Wait until no operator of the job is held any more, and forget who has held one."""
    marks = job.folder / "marks"
    held = {mark[5:] for mark in marks_in(marks) if mark.startswith("held-")}
    assert held

    def holds_still(pid: str) -> bool:
        # If the job stops at once, Spark ends the processes of the tasks that it interrupts,
        # and with them what they hold.
        was_ended = at_once and not Path("/proc", pid).exists()
        return not was_ended and f"released-{pid}" not in marks_in(marks)

    wait_until(lambda: not any(map(holds_still, held)))
    for pid in held:
        (marks / f"held-{pid}").unlink()
        (marks / f"released-{pid}").unlink(missing_ok=True)


def wait_until_running(driver: SparkProgram) -> None:
    while driver.hear_until("status")["phase"] != "running":
        pass


def test_each_signal_that_ends_programs_stops_a_job_after_a_checkpoint_and_releases_operators(
    driver: SparkProgram, job: CountingJob
) -> None:
    epoch = 0
    for number in SIGNALS:
        run(driver, job)
        wait_for_epoch(driver, epoch + 2)
        driver.signal(number)
        assert driver.hear_until("ended")["phase"] == "stopped"
        newest = job.checkpoints.newest()
        assert newest is not None
        epoch = int(newest.ref.epoch)
        assert f"{number.name}: job 'counting' stops after a checkpoint" in driver.said
        wait_for_release(job)
    finish(driver, job)


def has_context(jvm: int) -> bool:
    """Return whether a JVM has begun to start Spark's context: its scheduler's thread runs."""
    names = Path(f"/proc/{jvm}/task").glob("*/comm")
    return any(path.read_text().startswith("dag-scheduler") for path in names)


def wait_for_start(driver: SparkProgram, moment: str) -> None:
    """Wait until the start of Spark has got to a moment."""
    assert driver.hear_until("status")["doing"] == "starting Spark…"
    if moment != "status":
        wait_until(driver.jvms)
    if moment == "context":
        wait_until(lambda: any(map(has_context, driver.jvms())))


@takes_long
def test_a_start_of_spark_that_is_interrupted_or_killed_leaves_no_jvm_and_no_riddle(
    driver: SparkProgram, job: CountingJob
) -> None:
    for jvm in driver.jvms():
        os.kill(jvm, signal.SIGKILL)  # of an earlier job: Spark would start in it
    for moment in ("status", "process", "context"):
        run(driver, job)
        wait_for_start(driver, moment)
        driver.signal(signal.SIGINT)
        began = time.monotonic()
        assert driver.hear_until("ended")["phase"] == "stopped"
        assert time.monotonic() - began < SOON_SECONDS
        wait_until(lambda: not driver.jvms())
    for moment in ("process", "context") if IS_THOROUGH else ("context",):
        run(driver, job)
        wait_for_start(driver, moment)
        for jvm in driver.jvms():
            os.kill(jvm, signal.SIGKILL)
        failed = driver.hear_until("failed")
        assert (failed["code"], failed["exit_code"]) == ("engine-failed", 4)
        assert failed["message"].startswith("Spark's JVM ended while Spark started")
    finish(driver, job)


@takes_long
def test_an_epoch_that_does_not_end_is_stopped_at_once_and_outlives_its_jvm(
    driver: SparkProgram, job: CountingJob
) -> None:
    marks = job.folder / "marks"
    run(driver, job, hangs=True)
    wait_until_running(driver)
    press_twice(driver, signal.SIGTERM)
    assert job.checkpoints.newest() is None
    # Tried again, it loses its JVM, and goes on with another one.
    run(driver, job, hangs=True, budget=job.rows)
    wait_for_mark(marks, "hanging")
    (jvm,) = driver.jvms()
    os.kill(jvm, signal.SIGKILL)
    claim(marks, "let-go")
    ended = driver.hear_until("ended")
    assert (ended["phase"], ended["restarts"]) == ("finished", 1)
    assert "Spark ended while it ran an epoch of job 'counting'" in driver.said
    assert "Traceback" not in driver.said
    job.check()


def test_a_signal_while_spark_starts_again_stops_the_job(
    driver: SparkProgram, job: CountingJob
) -> None:
    run(driver, job, hangs=True)
    wait_for_mark(job.folder / "marks", "hanging")
    (jvm,) = driver.jvms()
    os.kill(jvm, signal.SIGKILL)
    driver.wait_for_words("trying again")
    wait_until(lambda: set(driver.jvms()) - {jvm})
    driver.signal(signal.SIGINT)
    began = time.monotonic()
    assert driver.hear_until("ended")["phase"] == "stopped"
    assert time.monotonic() - began < SOON_SECONDS
    wait_until(lambda: not driver.jvms())


@takes_long
def test_an_epoch_whose_function_lost_its_jvm_is_handed_over_again(
    driver: SparkProgram, job: CountingJob
) -> None:
    run(driver, job, frames=True)
    taken: dict[int, int] = {}
    while (said := driver.hear())["event"] != "ended":
        if said["event"] == "taken":
            taken[said["epoch"]] = said["rows"]
    assert (said["phase"], said["restarts"]) == ("finished", 1)
    assert sum(taken.values()) == ROWS


@takes_long
def test_a_users_session_is_left_clean_and_its_death_ends_the_job_with_a_sentence(
    driver: SparkProgram, job: CountingJob
) -> None:
    marks = job.folder / "marks"
    run(driver, job, given=True, hangs=True)
    wait_for_mark(marks, "hanging")
    press_twice(driver, signal.SIGINT)
    wait_for_release(job, at_once=True)
    claim(marks, "let-go")
    run(driver, job, given=True)
    wait_for_epoch(driver, 3)
    driver.signal(signal.SIGINT)
    assert driver.hear_until("ended")["phase"] == "stopped"
    wait_for_release(job)
    run(driver, job, given=True)
    wait_until_running(driver)
    (jvm,) = driver.jvms()
    os.kill(jvm, signal.SIGKILL)
    failed = driver.hear_until("failed")
    assert (failed["code"], failed["exit_code"]) == ("engine-gone", 4)
    assert "the Spark session that the job was given has ended" in failed["message"]
    assert "Traceback" not in driver.said
    # The next job of the same process starts a Spark of its own.
    finish(driver, job)


@pytest.mark.skipif(not IS_THOROUGH, reason="the profile `default` stops at once elsewhere")
def test_operators_on_workers_are_released_when_their_own_spark_is_stopped_at_once(
    driver: SparkProgram, job: CountingJob
) -> None:
    run(driver, job, hangs=True)
    wait_for_mark(job.folder / "marks", "hanging")
    press_twice(driver, signal.SIGHUP)
    wait_for_release(job, at_once=True)
