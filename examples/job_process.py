"""A demo's job in a process of its own: it may be killed, and never outlives the demo."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]


def end_on_signals() -> None:
    """Have signals that end a program raise, so that the job ends with it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)


def run_job(module: str, folder: Path, *options: str) -> int:
    """Run a job in a process group of its own, and return how it ended.

    Ctrl-C is passed on: the job stops after a checkpoint. Whatever ends this program ends
    the job with it.
    """
    job = subprocess.Popen(
        [sys.executable, "-m", module, str(folder), *options],
        cwd=ROOT,
        env={
            # For a JVM that lives for seconds: several collector threads are not worth it.
            "SPARK_SUBMIT_OPTS": "-XX:+UseSerialGC",
            **os.environ,
            # What Spark and Python leave behind when they are killed goes with the folder.
            "TMPDIR": str(folder / "tmp"),
        },
        stdin=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        while True:
            try:
                return job.wait()
            except KeyboardInterrupt:
                job.send_signal(signal.SIGINT)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(128 + number)
