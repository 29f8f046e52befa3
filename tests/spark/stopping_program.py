"""A job on a Spark that Penstock starts for it, to be stopped or hurt by a test at any moment.

It runs the counting job once per order and tells every status. With `hangs` the first epoch
does not end until the test lets it go; `given` hands the job a session of the user's, which
goes on after it; `frames` runs a job that hands its epochs to a function instead.
"""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

import penstock as pen
from penstock.console import describe_error, exit_code
from penstock.errors import PenstockError
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.decide import JobStatus
from penstock.runtime.spark.session import open_session, running_session
from tests.builders.spark_session import claim, orders, say
from tests.spark.counting_job import SETTINGS, CountingJob, Hangs, TellsItsRelease


def report(status: JobStatus) -> None:
    say("status", phase=status.phase, epoch=status.epoch, doing=status.doing)


def hand_epochs_over(folder: Path, rows: int) -> JobStatus:
    """Run a job that hands its epochs to a function, which kills the JVM once."""

    def take(frame: DataFrame, epoch: int) -> None:
        count = frame.count()
        if claim(folder / "marks", "killed"):
            gateway: Any = frame.sparkSession.sparkContext._gateway
            os.kill(gateway.proc.pid, signal.SIGKILL)
            frame.count()
        say("taken", epoch=epoch, rows=count)

    pipeline = pen.Pipeline("taken")
    numbers = pipeline.read("numbers", pen.impulse(count=rows))
    numbers.write("out", pen.for_each_epoch(take))
    return pipeline.run(str(folder / "checkpoints"), master="local[2,4]")


def main() -> None:
    say("ready")
    for order in orders():
        folder = Path(order["folder"])
        if order.get("frames"):
            status = hand_epochs_over(folder, order["rows"])
            say("ended", phase=status.phase, restarts=status.restarts)
            continue
        marks = folder / "marks"
        harm = Hangs(marks, epoch=1) if order.get("hangs") else TellsItsRelease(marks)
        job = CountingJob(folder, rows=order["rows"], harm=harm)
        settings = replace(SETTINGS, budget=SourceBudget(rows=order.get("budget", 100)))
        given = None
        if order.get("given"):
            given = running_session() or open_session("local[2,4]", name="given")
        try:
            status = job.run(session=given, settings=settings, on_status=report)
            say("ended", phase=status.phase, restarts=status.restarts)
        except PenstockError as error:
            sys.stderr.write(f"{describe_error(error)}\n")
            sys.stderr.flush()
            say("failed", code=error.code, exit_code=exit_code(error), message=str(error))


if __name__ == "__main__":
    main()
