"""JobListener: what hears of everything that happens to a job, without a part in it.

    class Pager(pen.JobListener):
        def on_failure(self, error, *, is_retried): …

    pipeline.run("checkpoints", listeners=[Pager()])

Listeners are called by the driver's thread, between epochs: one that takes long delays the job,
so a listener that speaks to others does so in a thread of its own. What a listener raises is
logged, once for each listener, and never reaches the job. The journal, the metrics and the
progress display are listeners too.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from penstock.runtime.driver.decide import JobStatus
from penstock.runtime.driver.progress import EpochProgress

_log = logging.getLogger(__name__)


class JobListener:
    """Override what you want to hear of. All values are immutable.

    >>> import penstock as pen
    >>> class Counting(pen.JobListener):
    ...     rows = 0
    ...
    ...     def on_epoch(self, epoch):
    ...         self.rows += epoch.rows_read
    >>> counting, pipeline = Counting(), pen.Pipeline("numbers")
    >>> pipeline.read("in", pen.impulse(count=10)).write("out", pen.blackhole())
    >>> status = pipeline.run_in_process(
    ...     "memory:doctest-of-listeners", listeners=[counting]
    ... )
    >>> counting.rows
    10
    """

    def on_status(self, status: JobStatus) -> None:
        """Hear of a change of the job's status."""

    def on_epoch(self, epoch: EpochProgress) -> None:
        """Hear of an epoch that ran and counts, after its sinks have committed."""

    def on_failure(self, error: Exception, *, is_retried: bool) -> None:
        """Hear of a failure, after which the job tries again or ends."""

    def on_end(self) -> None:
        """Hear that the run is over, however it ended: release what you hold."""


class StatusFunction(JobListener):
    """A listener that calls a function with each status: the option `on_status`."""

    def __init__(self, function: Callable[[JobStatus], None]) -> None:
        self._function = function

    def __repr__(self) -> str:
        return "on_status"

    def on_status(self, status: JobStatus) -> None:
        """Call the function."""
        self._function(status)


class Listeners:
    """All listeners of a run. Calling one never raises."""

    def __init__(self, job: str, listeners: Sequence[JobListener] = ()) -> None:
        self._job = job
        self._listeners = list(listeners)
        self._failed: set[int] = set()

    def add(self, listener: JobListener) -> None:
        """Add one; it hears of what happens from now on."""
        self._listeners.append(listener)

    def end(self) -> None:
        """Tell all of them that the run is over, and let go of them.

        A listener may hold the driver. Nothing of a run must outlive it in such a circle: a session
        of Spark Connect that is only found at the exit of the program keeps it from ending.
        """
        self.tell("on_end")
        self._listeners.clear()

    def tell(self, hook: str, *arguments: Any, **named: Any) -> None:
        """Call a hook of every listener; log the first exception of each, with its traceback."""
        for listener in self._listeners:
            try:
                getattr(listener, hook)(*arguments, **named)
            except Exception:  # noqa: BLE001 (the boundary to user code)
                if id(listener) not in self._failed:
                    _log.exception(
                        "%s of job %r raised; the job goes on, and later exceptions of it are "
                        "not logged",
                        _named(listener, hook),
                        self._job,
                    )
                self._failed.add(id(listener))


def _named(listener: JobListener, hook: str) -> str:
    if isinstance(listener, StatusFunction):
        return repr(listener)
    return f"{hook} of the listener {type(listener).__name__}"
