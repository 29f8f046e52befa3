"""SideWork: storage calls of a driver that need not wait for each other, or nobody waits for.

Without threads everything happens at once and in order, which is what tests of failures
need. With threads, objects are written side by side and old ones are deleted while the next
epoch runs.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from penstock.errors import PenstockError

_log = logging.getLogger(__name__)
T = TypeVar("T")


class SideWork:
    """Some threads of one driver, or none."""

    def __init__(self, threads: int = 0) -> None:
        self._writers: ThreadPoolExecutor | None = None
        self._aside: ThreadPoolExecutor | None = None
        if threads:
            self._writers = ThreadPoolExecutor(threads, "penstock-writer")
            self._aside = ThreadPoolExecutor(1, "penstock-aside")
        self._started: Future[object] | None = None

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make all calls; the first failure is raised when none of them is under way."""
        if self._writers is None or len(calls) < 2:
            return [call() for call in calls]
        futures = [self._writers.submit(call) for call in calls]
        wait(futures)
        return [future.result() for future in futures]

    def start(self, call: Callable[[], object]) -> None:
        """Make a call that nobody waits for; if another one is under way, it is left out."""
        if self._aside is None:
            call()
        elif self._started is None:
            self._started = self._aside.submit(call)

    def check(self) -> None:
        """Raise what a call that nobody waited for has failed of."""
        if self._started is not None and self._started.done():
            done, self._started = self._started, None
            done.result()

    def settle(self) -> None:
        """Wait for the call under way, and raise what it failed of."""
        if self._started is not None:
            done, self._started = self._started, None
            done.result()

    def close(self) -> None:
        """Wait for the call under way, and start no other. What failed now is only logged."""
        try:
            self.settle()
        except PenstockError as error:
            _log.warning("the last collection failed: %s", error)
        for threads in (self._writers, self._aside):
            if threads is not None:
                threads.shutdown()
