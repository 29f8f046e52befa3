"""Attendant: keeps a job's journal and carries requests to its driver, in a thread of its own.

    driver = attend(options, environment)

The thread looks for requests every two seconds and writes events when they are due, also in the
midst of a long epoch. Whatever goes wrong here is logged and never reaches the job. When the run
is over, the last event is written, for which the end waits a few seconds at most.

A request is honoured only by a driver that still owns the job. The order is: act, tell it in an
event, delete the request. So a driver that dies in between leaves it to its successor.
"""

import logging
import os
import platform
import socket
import threading
from collections.abc import Callable

from typing_extensions import override

from penstock.core.settings import current
from penstock.core.versions import own_version
from penstock.errors import PenstockError
from penstock.runtime.driver.decide import JobPhase, JobStatus
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.driver.listening import JobListener
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.driver.progress import EpochProgress
from penstock.runtime.journal.events import Answer, DriverPlace
from penstock.runtime.journal.gathering import Gathered
from penstock.runtime.journal.honouring import Desk
from penstock.runtime.journal.requests import LOOK_MICROS
from penstock.runtime.journal.writer import JournalWriter

_log = logging.getLogger(__name__)

_END_SECONDS = 3.0
"""How long the end of a run waits for its last event."""
_ENDED = frozenset({JobPhase.STOPPED, JobPhase.FINISHED, JobPhase.FAILED, JobPhase.FENCED})


class Attendant(JobListener):
    """Listens to one driver, and speaks to it for others."""

    def __init__(
        self, driver: JobDriver, environment: JobEnvironment, *, in_thread: bool = True
    ) -> None:
        """Attend a driver; without a thread all is done at once and in order, for tests."""
        clock, job = environment.clock, environment.graph.job
        self._clock = clock
        self._lock = threading.Lock()
        """Held while `_gathered` is added to or taken from."""
        place = DriverPlace(
            platform.node() or socket.gethostname(),
            os.getpid(),
            own_version(),
            clock.now_micros(),
        )
        self._gathered = Gathered(place)
        self._writer = JournalWriter(
            environment.store,
            job,
            self._gathered,
            clock,
            keep_micros=current().journal_keep_seconds * 1_000_000,
            lock=self._lock,
        )
        self._desk = Desk(driver, environment, self._answer)
        self._in_thread = in_thread
        self._look_at_micros = 0
        self._is_over = False
        self._attention = threading.Event()
        self._thread = threading.Thread(
            target=self._attend, name=f"penstock-{job}-journal", daemon=True
        )

    @override
    def on_status(self, status: JobStatus) -> None:
        """Note the status; the first one with a claim begins the journal."""
        with self._lock:
            before, self._gathered.status = self._gathered.status, status
        if before is None or before.phase is not status.phase:
            self._attention.set()
        if not self._in_thread:
            self._do_due()
        elif status.generation is not None and self._thread.ident is None:
            self._thread.start()

    @override
    def on_epoch(self, epoch: EpochProgress) -> None:
        """Add the epoch to what the next event tells."""
        with self._lock:
            self._gathered.note_epoch(epoch)

    @override
    def on_failure(self, error: Exception, *, is_retried: bool) -> None:
        """Add the failure to what the next event tells."""
        with self._lock:
            now = self._clock.now_micros()
            self._gathered.note_failure(error, is_retried=is_retried, now_micros=now)

    @override
    def on_end(self) -> None:
        """Answer the stop that was asked for, and wait for the last event."""
        self._is_over = True
        self._attention.set()
        if not self._in_thread:
            self._do_last()
        elif self._thread.ident is not None:
            self._thread.join(_END_SECONDS)

    def _answer(self, answer: Answer) -> None:
        with self._lock:
            self._gathered.note_answer(answer)
        self._attention.set()

    def _attend(self) -> None:
        while not self._is_over:
            self._do_due()
            due = self._writer.due_micros() or self._look_at_micros
            until = min(due, self._look_at_micros)
            self._attention.wait(max(0, until - self._clock.now_micros()) / 1_000_000)
            self._attention.clear()
        self._do_last()

    def _do_due(self) -> None:
        self._guarded(self._look)
        self._guarded(self._writer.write_due)
        if self._writer.has_told_all:
            self._guarded(self._desk.delete_done)

    def _do_last(self) -> None:
        status = self._gathered.status
        if status is not None and status.phase in _ENDED:
            self._guarded(lambda: self._desk.end(status))
        self._guarded(lambda: self._writer.write_due(is_last=True))
        # Even if nobody could be told: a stop must not be honoured by the next start.
        self._guarded(self._desk.delete_done)
        self._desk.close()

    def _look(self) -> None:
        now, status = self._clock.now_micros(), self._gathered.status
        is_claimed = status is not None and status.generation is not None
        if is_claimed and now >= self._look_at_micros:
            self._look_at_micros = now + LOOK_MICROS
            self._desk.look(now)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except PenstockError as error:
            _log.warning("the attendant of a job could not do its work: %s", error)
        except Exception:  # noqa: BLE001 (the job must not suffer from it)
            _log.exception("the attendant of a job has a bug; the job goes on")


def attend(options: RunOptions, environment: JobEnvironment) -> JobDriver:
    """Return the driver of a run, whose job keeps a journal and honours requests."""
    driver = options.driver(environment)
    if options.keeps_journal:
        driver.add_listener(Attendant(driver, environment))
    return driver
