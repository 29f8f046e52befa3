"""RunningJob: a job that was started, to be watched, stopped and waited for from any thread.

    job = pipeline.start("checkpoints")      returns once the job is claimed; else it raises
    job.status                               what it is doing now, an immutable value
    job.stop(StopMode.CHECKPOINT)            asks it to stop, and returns at once
    job.wait(timeout="10s")                  returns its last status, or raises its error

A thread of its own drives the job. A failure after the start is raised by `wait`; if nobody waits
when it comes, it is logged, so that it does not go unseen.

**When the program ends** all jobs that still run are stopped at once, as by a crash: nothing is
lost, because what they have not published is read again. This must come before the thread pools
wait for their threads, one of which may be in the midst of a long epoch. Therefore it uses the
hook of the pools themselves. A job that does not stop within seconds is left behind.
"""

import atexit
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from typing import Any, Self, TypeAlias

from penstock.core.clock import to_micros
from penstock.core.spellings import check_choice
from penstock.errors import ErrorCode, FencedError, UserError
from penstock.runtime.driver.decide import JobPhase, JobStatus, StopMode
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.driver.signals import StopSignals, wait_attentively

_log = logging.getLogger(__name__)

Timeout: TypeAlias = float | str | timedelta
"""A number of seconds, as everywhere in Python, or a duration such as "10s"."""

_EXIT_SECONDS = 5.0
"""How long the end of the program waits for jobs that it stops."""


class RunningJob:
    """A job in a thread of its own, until its data ends, it is stopped, or it fails.

    It is a context manager: leaving it stops the job after a checkpoint, and waits.
    """

    def __init__(
        self, name: str, run: Callable[[RunOptions], JobStatus], options: RunOptions
    ) -> None:
        self._name = name
        self._run_job = run
        self._told = options.on_status
        self._options = replace(options, on_driver=self._take, on_status=self._note)
        self._status = JobStatus(name, JobPhase.STARTING)
        self._lock = threading.Lock()
        self._driver: JobDriver | None = None
        self._wanted: StopMode | None = None
        self._error: BaseException | None = None
        self._has_begun = False
        self._signals = StopSignals(name)
        """They count over all waits: a program may wait for a second again and again."""
        self._signals.direct(self.stop, partial(self.stop, StopMode.IMMEDIATE))
        self._waiting = 0
        """How many threads wait for its end."""
        self._begun_or_ended = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._drive, name=f"penstock-{name}", daemon=True
        )

    def __repr__(self) -> str:
        status = self.status
        epoch = "no epoch yet" if status.epoch is None else f"epoch {status.epoch}"
        kind = type(self).__name__
        return f"<{kind} {self._name!r}: {status.phase}, {epoch}, {status.rows_read:,} rows read>"

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._name

    @property
    def status(self) -> JobStatus:
        """What the job is doing, or how it ended; an immutable value."""
        return self._status

    @property
    def is_running(self) -> bool:
        """Return whether the job has not ended: `wait` would wait."""
        return not self._ended.is_set()

    def start(self) -> Self:
        """Start the job, once, and return when it is claimed; raise what prevents that."""
        if self._thread.ident is not None:
            raise UserError(
                f"job {self._name!r} was started already: ask the pipeline for another one",
                code=ErrorCode.INVALID_CONFIG,
            )
        _stop_at_exit()
        with _RUNNING_LOCK:
            _RUNNING.add(self)
        self._thread.start()
        try:
            with self._signals.listening():
                wait_attentively(self._begun_or_ended.wait)
        except BaseException:
            self.stop(StopMode.IMMEDIATE)
            raise
        if self._error is not None and not self._has_begun:
            raise self._error
        return self

    def stop(self, mode: StopMode | str = StopMode.CHECKPOINT) -> None:
        """Ask the job to stop, and return at once; `wait` for the end of it.

        A later, more urgent request replaces an earlier one. A job that has ended stays as
        it is.
        """
        check_choice("mode", str(mode), [str(each) for each in StopMode])
        self._request(StopMode(mode))

    def wait(self, timeout: Timeout | None = None) -> JobStatus:
        """Wait until the job has ended, and return its last status; raise what it failed of.

        After the timeout it raises `TimeoutError`, as all waits in Python do, and the job goes
        on. A signal such as Ctrl-C, while the main thread waits, stops the job after a
        checkpoint; a second one stops it at once.
        """
        if threading.current_thread() is self._thread:
            raise UserError(
                f"job {self._name!r} cannot wait for itself: wait for it in another thread",
                code=ErrorCode.INVALID_CONFIG,
            )
        seconds = _to_seconds(timeout)
        self._count_waiting(1)
        try:
            with self._signals.listening():
                has_ended = self._await_end(seconds)
        finally:
            self._count_waiting(-1)
        if not has_ended:
            raise TimeoutError(
                f"job {self._name!r} has not ended within {timeout!r}, it is "
                f"{self._status.phase}: wait again, or stop it"
            )
        if self._error is not None:
            raise self._error
        return self._status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        del kind, trace
        try:
            # A stop that was asked for before stays as it is.
            self.stop(self._wanted or StopMode.CHECKPOINT)
            self.wait()
        except Exception as own:
            if error is None:
                raise
            error.add_note(f"The job ended with: {own}")

    def _count_waiting(self, change: int) -> None:
        with self._lock:
            self._waiting += change

    def _await_end(self, seconds: float | None) -> bool:
        """Wait, and return whether the job has ended."""
        return wait_attentively(self._ended.wait, seconds)

    def _request(self, mode: StopMode) -> None:
        driver = self._want(mode)
        if driver is not None and self.is_running:
            driver.request_stop(mode)

    def _want(self, mode: StopMode) -> JobDriver | None:
        """Note a request to stop; return the driver to pass it on to, if there is one."""
        with self._lock:
            if self._wanted is not StopMode.IMMEDIATE:
                self._wanted = mode
            return self._driver

    def _take(self, driver: JobDriver) -> None:
        """Take the driver over that runs the job; a stop may have been requested before."""
        with self._lock:
            self._driver = driver
            wanted = self._wanted
        if wanted is not None:
            driver.request_stop(wanted)

    def _note(self, status: JobStatus) -> None:
        self._status = status
        if (
            status.phase is not JobPhase.STARTING
            or status.generation is not None
            or status.restarts
        ):
            # A job that failed at once has not begun: the start itself raises that.
            has_failed = status.phase in {JobPhase.FAILED, JobPhase.FENCED}
            self._has_begun = self._has_begun or not has_failed
            if self._has_begun:
                self._begun_or_ended.set()
        if self._told is not None:
            self._told(status)

    def _drive(self) -> None:
        """Run the job; when it ends, for any reason, end every wait for it."""
        try:
            self._run_job(self._options)
        except BaseException as error:  # noqa: BLE001 (it is raised again by `wait`)
            self._fail(error)
        finally:
            self._close()
            self._ended.set()
            self._begun_or_ended.set()
            with _RUNNING_LOCK:
                _RUNNING.discard(self)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        is_fenced = isinstance(error, FencedError)
        phase = JobPhase.FENCED if is_fenced else JobPhase.FAILED
        self._status = replace(self._status, phase=phase, error=str(error))
        if self._has_begun and not self._waiting:
            _log.error("job %r failed, and nobody waits for it: %s", self._name, error)

    def _close(self) -> None:
        """Release what else belongs to the job, which has ended."""


def _to_seconds(timeout: Any) -> float | None:
    """Return a timeout in seconds, in which plain numbers are counted; callers may be untyped."""
    if timeout is None:
        return None
    if isinstance(timeout, str | timedelta):
        return to_micros(timeout, "timeout") / 1_000_000
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not timeout >= 0
    ):
        raise UserError(
            f"{timeout!r} is not a valid timeout: give seconds, or a text such as '10s'",
            code=ErrorCode.INVALID_NUMBER,
        )
    return float(timeout)


_RUNNING: set[RunningJob] = set()
_RUNNING_LOCK = threading.Lock()


@cache
def _stop_at_exit() -> None:
    """Have running jobs stopped when the program ends; once is enough."""
    # The public hook, `atexit`, comes only after the pools have waited for their threads.
    register: Callable[[Callable[[], None]], object] = getattr(
        threading, "_register_atexit", atexit.register
    )
    register(_stop_all)


def _stop_all() -> None:
    with _RUNNING_LOCK:
        left = list(_RUNNING)
    ends_at = time.monotonic() + _EXIT_SECONDS
    for job in left:
        job.stop(StopMode.IMMEDIATE)
    for job in left:
        job._ended.wait(max(0.0, ends_at - time.monotonic()))  # noqa: SLF001 (of this file)
