"""Run the Kafka demo's job on embedded Spark, with progress on standard output.

    python -m examples.kafka_demo.run_job FOLDER --servers HOST:PORT --parallelism N
        [--die-after EPOCHS]

`--die-after` kills the whole process group with SIGKILL, driver and JVM alike, at a random
moment of the epoch that follows. Without it the job runs until a file `fed` is in the folder
and all rows that were in Kafka by then are committed.
"""

import argparse
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import penstock as pen
from examples.kafka_demo.job import build

FED = "fed"
"""A file of this name says that the topics have all rows."""
_INTERRUPTED = 130


class DeathAfter:
    """Passes statuses on, and kills the process group soon after so many epochs of this run."""

    def __init__(self, epochs: int, passed_on: Callable[[pen.JobStatus], None]) -> None:
        self._epochs = epochs
        self._passed_on = passed_on
        self._is_armed = False

    def __call__(self, status: pen.JobStatus) -> None:
        """Show a status; arm the timer once."""
        self._passed_on(status)
        last = status.last
        if self._is_armed or last is None or status.epochs_published < self._epochs:
            return
        self._is_armed = True
        delay = random.SystemRandom().uniform(0, last.duration_micros / 1_000_000)
        timer = threading.Timer(delay, os.killpg, (os.getpgrp(), signal.SIGKILL))
        timer.daemon = True
        timer.start()


class EndWhenRead:
    """Passes statuses on, and tells when an epoch has left nothing unread after the feed's end."""

    def __init__(self, fed: Path, passed_on: Callable[[pen.JobStatus], None]) -> None:
        self._fed = fed
        self._passed_on = passed_on
        self._fed_in: int | None = None
        self.has_read_all = threading.Event()

    def __call__(self, status: pen.JobStatus) -> None:
        """Show a status, and look at what it says of the sources."""
        self._passed_on(status)
        if self._fed_in is None:
            # The epoch that is under way may have been planned before the feed's end.
            self._fed_in = status.epochs_run + 1 if self._fed.exists() else None
        elif status.epochs_run > self._fed_in:
            lags = [each.lag_rows for each in status.operators if each.lag_rows is not None]
            if lags and not any(lags):
                self.has_read_all.set()


def run(arguments: list[str] | None = None) -> int:
    """Run until all is read, or death."""
    parser = argparse.ArgumentParser(prog="run_job", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--parallelism", type=int, required=True)
    parser.add_argument("--die-after", type=int, metavar="EPOCHS")
    options = parser.parse_args(arguments)
    pipeline = build(
        options.servers, options.folder / "table", parallelism=options.parallelism
    )
    checkpoints = str(options.folder / "checkpoints")
    progress = pen.Progress(file=sys.stdout)
    if options.die_after is not None:
        if os.getpgrp() != os.getpid():
            parser.error("--die-after needs a process group of its own to kill")
        pipeline.run(checkpoints, on_status=DeathAfter(options.die_after, progress))
        return _INTERRUPTED
    watch = EndWhenRead(options.folder / FED, progress)
    with pipeline.start(checkpoints, on_status=watch) as job:
        while job.is_running and not watch.has_read_all.wait(0.1):
            pass
    return 0 if watch.has_read_all.is_set() else _INTERRUPTED


if __name__ == "__main__":
    pen.main(run)
