"""Run the demo's job on embedded Spark, once, with progress on standard output.

    python -m examples.demo.run_job FOLDER --events N [--die-after ROWS]

`--die-after` kills the whole process group with SIGKILL, driver and JVM alike, at a random
moment of the epoch that follows: nothing gets to tidy up. The program that starts this one
makes it the leader of a group of its own.
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
from examples.demo.job import build

INTERRUPTED = 130


class SuddenDeath:
    """Passes statuses on, and kills the process group soon after enough rows were read."""

    def __init__(self, rows: int, passed_on: Callable[[pen.JobStatus], None]) -> None:
        self._rows = rows
        self._passed_on = passed_on
        self._is_armed = False

    def __call__(self, status: pen.JobStatus) -> None:
        """Show a status; arm the timer once."""
        self._passed_on(status)
        if self._is_armed or status.rows_read < self._rows or status.last is None:
            return
        self._is_armed = True
        epoch_seconds = status.last.duration_micros / 1_000_000
        delay = random.SystemRandom().uniform(0, epoch_seconds)
        timer = threading.Timer(delay, os.killpg, (os.getpgrp(), signal.SIGKILL))
        timer.daemon = True
        timer.start()


def run(arguments: list[str] | None = None) -> int:
    """Run until the data ends, or death."""
    parser = argparse.ArgumentParser(prog="run_job", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--die-after", type=int, metavar="ROWS")
    options = parser.parse_args(arguments)

    on_status: Callable[[pen.JobStatus], None] = pen.Progress(file=sys.stdout)
    if options.die_after is not None:
        if os.getpgrp() != os.getpid():
            parser.error("--die-after needs a process group of its own to kill")
        on_status = SuddenDeath(options.die_after, on_status)
    pipeline = build(options.events, options.folder / "parquet")
    status = pipeline.run(str(options.folder / "checkpoints"), on_status=on_status)
    return 0 if status.phase is pen.JobPhase.FINISHED else INTERRUPTED


if __name__ == "__main__":
    pen.main(run)
