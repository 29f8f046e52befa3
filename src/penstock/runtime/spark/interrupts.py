"""Ctrl-C on a job, run or attached: once stops it after a checkpoint, twice stops it now.

Installed after the Spark context exists, because PySpark's own handler cancels all jobs.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from penstock.runtime.driver import JobDriver
from penstock.runtime.epoch import StopMode
from penstock.runtime.spark.executor import SparkExecutor


@contextmanager
def stopped_by_ctrl_c(driver: JobDriver, executor: SparkExecutor) -> Iterator[None]:
    """Let Ctrl-C stop the driver for as long as the body runs; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    presses = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal presses
        del number, frame
        presses += 1
        if presses == 1:
            driver.request_stop(StopMode.CHECKPOINT)
            return
        driver.request_stop(StopMode.IMMEDIATE)
        executor.cancel()

    before: Any = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def noticing_ctrl_c() -> Iterator[threading.Event]:
    """Yield what the first Ctrl-C sets; from the second on it does what it did before.

    Only in the main thread: elsewhere nothing is ever set.
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        pressed.set()
        signal.signal(signal.SIGINT, before)

    before: Any = signal.signal(signal.SIGINT, handle)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
