"""Desk: honours the requests that wait for a job, on behalf of its driver.

| request | what is done | when it is answered |
|---|---|---|
| stop | the driver is asked to stop | when the run has ended |
| savepoint | the newest committed epoch is pinned | at once; without an epoch it waits |
| compact | tables are merged until nothing is left to merge | when an epoch holds the last merge |
| collect | epochs that need not be kept are given up | when they are deleted |

Requests that were not answered stay for the next driver, except a stop of a job that failed: what
has failed does not run any more.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.core.figures import show_count
from penstock.core.ids import SavepointName
from penstock.errors import PenstockError
from penstock.runtime.driver.decide import JobPhase, JobStatus
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.journal.events import Answer
from penstock.runtime.journal.requests import (
    Request,
    RequestAction,
    Unusable,
    open_requests,
    withdraw,
)
from penstock.state.protocol.collection import CollectionDone, SweepDone
from penstock.state.protocol.records import ClaimRecord, Pin, Ready
from penstock.state.protocol.retention import Epochs

_log = logging.getLogger(__name__)


class Desk:
    """Takes requests in and answers them. Used by the attendant's thread."""

    def __init__(
        self,
        driver: JobDriver,
        environment: JobEnvironment,
        answer: Callable[[Answer], None],
    ) -> None:
        self._driver = driver
        self._environment = environment
        self._checkpoints = environment.open_checkpoints()
        self._tell = answer
        self._has_ended = False
        self._known: set[str] = set()
        """What was taken in: a listing may show it again."""
        self._stops: list[Request] = []
        self._compactions: list[Request] = []
        self._done: list[str] = []
        """What was answered and is to be deleted."""
        self._threads = ThreadPoolExecutor(1, "penstock-request")

    def look(self, now_micros: int) -> None:
        """Take in what waits, and go on with what is under way."""
        store, job = self._environment.store, self._environment.graph.job
        claim = self._driver.claim
        if claim is None:
            return
        found = list(open_requests(store, job, known=frozenset(self._known)))
        if found and self._checkpoints.is_fenced(claim):
            return  # they are for the driver that owns the job
        for request in found:
            if self._has_ended and not _is_for_ended(request):
                continue  # it waits for the next driver
            self._known.add(request.id)
            if isinstance(request, Unusable):
                self._answer(request.id, "", is_done=False, message=request.problem)
            elif request.expires_at_micros < now_micros:
                self._refuse(request, "it has expired before a driver could honour it")
            else:
                self._take_in(request, claim)
        if self._compactions:
            self._driver.ask_compaction(self._note_compacted)

    def end(self, status: JobStatus) -> None:
        """Answer the stops that were asked for, when the run has ended, to the last moment."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if status.phase is JobPhase.FENCED:
            return
        self._has_ended = True
        try:
            self.look(self._environment.clock.now_micros())
        finally:
            self._answer_stops(status)

    def _answer_stops(self, status: JobStatus) -> None:
        for request in self._stops:
            epoch = "none" if status.epoch is None else str(status.epoch)
            if status.phase is JobPhase.FAILED:
                self._refuse(
                    request, f"the job failed before it could stop: {status.error}"
                )
            else:
                self._grant(
                    request, f"the job has {status.phase}; its last epoch is {epoch}"
                )
        self._stops = []

    def delete_done(self) -> None:
        """Delete what was answered, once the answers are told."""
        while self._done:
            withdraw(self._environment.store, self._environment.graph.job, self._done[0])
            self._done.pop(0)

    def close(self) -> None:
        """Let go of whom it tells: the two must not keep each other, and with them the driver."""
        self._tell = _tell_nobody

    def _take_in(self, request: Request, claim: ClaimRecord) -> None:
        _log.info("request %s: %s, by %s", request.id, request.action, request.asked_by)
        match request.action:
            case RequestAction.STOP:
                self._stops.append(request)  # of no effect on a run that has ended
                self._driver.request_stop(request.mode)
            case RequestAction.SAVEPOINT:
                self._make_savepoint(request)
            case RequestAction.COMPACT:
                self._compactions.append(request)
            case RequestAction.COLLECT:
                self._threads.submit(self._collect, request, claim)

    def _make_savepoint(self, request: Request) -> None:
        name = SavepointName(str(request.name))
        try:
            pin = self._pin(name, request)
        except PenstockError as error:
            self._refuse(request, str(error))
            return
        if pin is None:
            self._known.discard(request.id)  # there is no epoch yet: it waits
            return
        self._grant(request, f"epoch {pin.ref.epoch} is kept as {str(name)!r}")

    def _pin(self, name: SavepointName, request: Request) -> Pin | None:
        for pin in self._checkpoints.pins():
            # A driver may have died after it made this savepoint and before it could say so.
            if pin.name == name and pin.created_at_micros >= request.created_at_micros:
                return pin
        for status in self._checkpoints.epochs():
            if isinstance(status.status, Ready):
                return self._checkpoints.pin(name, Epochs(status.record.ref.epoch))
        return None

    def _collect(self, request: Request, claim: ClaimRecord) -> None:
        settings = self._environment.settings
        try:
            done = self._checkpoints.collect(
                claim, keep_epochs=settings.keep_epochs, keep_micros=settings.keep_micros
            )
            if isinstance(done, CollectionDone) and not done.needs_origin:
                self._checkpoints.release_origin(claim)
            swept = self._checkpoints.sweep(claim)
        except PenstockError as error:
            self._refuse(request, str(error))
            return
        if not isinstance(swept, SweepDone):
            self._known.discard(
                request.id
            )  # another driver owns the job, and will honour it
            return
        epochs, deleted = 0, swept.deleted_objects
        if isinstance(done, CollectionDone):
            epochs, deleted = len(done.given_up), deleted + done.deleted_objects
        self._grant(
            request,
            f"{show_count(epochs, 'epoch')} given up, {show_count(deleted, 'object')} deleted",
        )

    def _note_compacted(self, merges: int) -> None:
        waiting, self._compactions = self._compactions, []
        for request in waiting:
            self._grant(request, f"{show_count(merges, 'merge')} swapped in")

    def _grant(self, request: Request, message: str) -> None:
        self._answer(request.id, request.action, is_done=True, message=message)

    def _refuse(self, request: Request, message: str) -> None:
        self._answer(request.id, request.action, is_done=False, message=message)

    def _answer(self, request: str, action: str, *, is_done: bool, message: str) -> None:
        self._tell(Answer(request, str(action), is_done, message))
        self._done.append(request)


def _tell_nobody(answer: Answer) -> None:
    _log.warning("request %s was answered after its job had ended", answer.request)


def _is_for_ended(request: Request | Unusable) -> bool:
    """Return whether a request makes sense for a run that has just ended."""
    return isinstance(request, Unusable) or request.action in {
        RequestAction.STOP,
        RequestAction.SAVEPOINT,
    }
