"""A job on a Spark of its own is stopped by signals, survives its JVM, and leaves none behind."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.spark_session import SparkProgram, claim, marks_in, wait_for_mark
from tests.spark.counting_job import CountingJob

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("stopping_program.py")
ROWS = 100_000
SOON_SECONDS = 25.0
"""What "within seconds" means on a machine that runs other tests as well."""


@pytest.fixture
def driver(spark_scratch: Path) -> Iterator[SparkProgram]:
    program = SparkProgram(PROGRAM, spark_scratch)
    program.hear_until("ready")
    yield program
    program.kill()


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_each_signal_that_ends_programs_stops_a_job_after_a_checkpoint(
    driver: SparkProgram, job: CountingJob, number: signal.Signals
) -> None:
    run(driver, job)
    wait_for_epoch(driver, 2)
    driver.signal(number)
    assert driver.hear_until("ended")["phase"] == "stopped"
    assert job.checkpoints.newest() is not None
    assert f"{number.name}: job 'counting' stops after a checkpoint" in (
        driver.errors.read_text()
    )
    finish(driver, job)


def test_a_signal_while_spark_starts_stops_at_once_and_leaves_no_jvm(
    driver: SparkProgram, job: CountingJob
) -> None:
    # With each round the JVM has got further: its process, its gateway, its context.
    for wait_seconds in (0.0, 1.0, 3.0):
        run(driver, job)
        assert driver.hear_until("status")["doing"] == "starting Spark…"
        wait_until(driver.jvms)
        time.sleep(wait_seconds)
        driver.signal(signal.SIGINT)
        began = time.monotonic()
        assert driver.hear_until("ended")["phase"] == "stopped"
        assert time.monotonic() - began < SOON_SECONDS
        wait_until(lambda: not driver.jvms())
    finish(driver, job)


def test_a_second_signal_right_after_the_start_stops_an_epoch_that_does_not_end(
    driver: SparkProgram, job: CountingJob
) -> None:
    run(driver, job, hangs=True)
    while driver.hear_until("status")["phase"] != "running":
        pass
    driver.signal(signal.SIGTERM)
    wait_until(lambda: "stops after" in driver.errors.read_text())
    driver.signal(signal.SIGTERM)
    began = time.monotonic()
    assert driver.hear_until("ended")["phase"] == "stopped"
    assert time.monotonic() - began < SOON_SECONDS
    claim(job.folder / "marks", "let-go")
    finish(driver, job, hangs=True)


def test_a_job_whose_jvm_is_killed_goes_on_with_another_one(
    driver: SparkProgram, job: CountingJob
) -> None:
    run(driver, job, hangs=True)
    wait_for_mark(job.folder / "marks", "hanging")
    (jvm,) = driver.jvms()
    os.kill(jvm, signal.SIGKILL)
    claim(job.folder / "marks", "let-go")
    wait_for_epoch(driver, 2)
    driver.signal(signal.SIGINT)
    ended = driver.hear_until("ended")
    assert (ended["phase"], ended["restarts"]) == ("stopped", 1)
    said = driver.errors.read_text()
    assert "Spark ended while it ran an epoch of job 'counting'" in said
    assert "Traceback" not in said
    finish(driver, job)


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


def test_a_jvm_that_is_killed_during_the_start_is_no_missing_engine(
    driver: SparkProgram, job: CountingJob
) -> None:
    for wait_seconds in (0.0, 2.0):
        run(driver, job)
        wait_until(driver.jvms)
        time.sleep(wait_seconds)
        for jvm in driver.jvms():
            os.kill(jvm, signal.SIGKILL)
        failed = driver.hear_until("failed")
        assert (failed["code"], failed["exit_code"]) == ("engine-failed", 4)
        assert failed["message"].startswith("Spark's JVM ended while Spark started")
    finish(driver, job)


def test_a_users_session_that_has_died_ends_the_job_with_a_sentence(
    driver: SparkProgram, job: CountingJob
) -> None:
    run(driver, job, given=True)
    wait_for_epoch(driver, 1)
    (jvm,) = driver.jvms()
    os.kill(jvm, signal.SIGKILL)
    failed = driver.hear_until("failed")
    assert (failed["code"], failed["exit_code"]) == ("engine-gone", 4)
    assert "the Spark session that the job was given has ended" in failed["message"]
    assert "Traceback" not in driver.errors.read_text()
    # The next job of the same process starts a Spark of its own.
    finish(driver, job)


@pytest.mark.parametrize("given", [False, True], ids=["own", "given"])
@pytest.mark.parametrize("presses", [1, 2])
def test_operators_on_workers_are_released_when_the_job_has_stopped(
    driver: SparkProgram, job: CountingJob, presses: int, given: bool
) -> None:
    run(driver, job, given=given)
    wait_for_epoch(driver, 3)
    for press in range(presses):
        driver.signal(signal.SIGINT)
        if press < presses - 1:
            wait_until(lambda: "stops after" in driver.errors.read_text())
    driver.hear_until("ended")
    marks = job.folder / "marks"
    held = {mark[5:] for mark in marks_in(marks) if mark.startswith("held-")}
    assert held

    def holds_still(pid: str) -> bool:
        # If the job stops at once, Spark ends the processes of the tasks that it interrupts,
        # and with them what they hold.
        was_ended = presses > 1 and not Path("/proc", pid).exists()
        return not was_ended and f"released-{pid}" not in marks_in(marks)

    wait_until(lambda: not any(map(holds_still, held)))
