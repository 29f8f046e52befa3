"""JournalWriter: writes the events of one driver, at most one every ten seconds if nothing changes.

It needs no thread of its own: whoever has one calls `write_due` when it says so. A failure to
write is logged, and the same event is tried again under the same number, so that numbers have
no gaps. Meanwhile the next event gathers what happens.

Events that are older than they may be are deleted by their writer, which knows their times, a few
at a time. Those of earlier generations are deleted, generation by generation, when a driver has
written its first event.
"""

import logging
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass

from penstock.core.clock import Clock
from penstock.core.ids import JobId
from penstock.errors import PenstockError
from penstock.runtime.driver.decide import JobPhase
from penstock.runtime.journal.events import Event, EventKind, decode_event, encode_event
from penstock.runtime.journal.gathering import Gathered
from penstock.state.protocol.paths import event_of, event_path, events_folder
from penstock.state.protocol.records import RULES
from penstock.state.protocol.steps import may_thin
from penstock.state.storage.create import create_own
from penstock.state.storage.object_store import ObjectStore

_log = logging.getLogger(__name__)

INTERVAL_MICROS = 10_000_000
"""How much time lies between two events if nothing changes."""
_DELETED_AT_ONCE = 4
"""How many old events are deleted with each new one, so that no event waits for many deletions."""


@dataclass(frozen=True, slots=True)
class Written:
    """An event that is there, so that it can be deleted when its time has come."""

    generation: int
    number: int
    at_micros: int


def state_of(phase: JobPhase) -> JobPhase:
    """Return the state that a phase belongs to: running and waiting alternate with epochs."""
    return JobPhase.RUNNING if phase is JobPhase.WAITING else phase


class JournalWriter:
    """Writes what a `Gathered` holds. Used by one thread at a time."""

    def __init__(
        self,
        store: ObjectStore,
        job: JobId,
        gathered: Gathered,
        clock: Clock,
        *,
        keep_micros: int,
        lock: AbstractContextManager[object],
    ) -> None:
        self._store = store
        self._job = job
        self._gathered = gathered
        self._clock = clock
        self._keep_micros = keep_micros
        self._lock = lock
        """Held while `gathered` is taken from, to which another thread adds."""
        self._written: deque[Written] = deque()
        self._generation = 0
        self._number = 0
        self._state: JobPhase | None = None
        self._last_micros: int | None = None
        self._pending: Event | None = None
        """An event whose write has failed, and may have succeeded unseen."""
        self._retry_at_micros: int | None = None
        self._has_failed = False
        self._has_swept = False

    def due_micros(self) -> int | None:
        """Return when the next event is due: at once after a change; None before the claim."""
        status = self._gathered.status
        if status is None or status.generation is None:
            return None
        if self._retry_at_micros is not None:
            return self._retry_at_micros
        if self._last_micros is None or self._reason() is not EventKind.STATUS:
            return self._clock.now_micros()
        return self._last_micros + INTERVAL_MICROS

    def write_due(self, *, is_last: bool = False) -> None:
        """Write an event if one is due; the last one also if a write has just failed."""
        if is_last:
            self._retry_at_micros = None
        due = self.due_micros()
        if due is None or due > self._clock.now_micros():
            return
        if self._pending is None:
            self._pending = self._next_event()
        event = self._pending
        path = event_path(self._job, event.generation, event.number)
        self._retry_at_micros = self._clock.now_micros() + INTERVAL_MICROS
        try:
            create_own(self._store, path, encode_event(event))
            self._pending, self._retry_at_micros, self._has_failed = None, None, False
            self._written.append(Written(event.generation, event.number, event.at_micros))
            self._delete_old()
            self._sweep_once()
        except PenstockError as error:
            if not self._has_failed:
                _log.warning(
                    "the journal of job %r cannot be written, and the job goes on without it: %s",
                    str(self._job),
                    error,
                )
            self._has_failed = True

    def _reason(self) -> EventKind:
        """Return why the next event is written."""
        status = self._gathered.status
        if self._gathered.has_answers:
            return EventKind.ANSWER
        if status is not None and (
            state_of(status.phase) is not self._state
            or status.generation != self._generation
        ):
            return EventKind.STATE
        return EventKind.STATUS

    def _next_event(self) -> Event:
        kind, status = self._reason(), self._gathered.status
        assert status is not None  # noqa: S101 (an event is due only with one)
        if status.generation != self._generation:
            self._generation, self._number = status.generation or 0, 0
        self._number += 1
        self._last_micros = self._clock.now_micros()
        with self._lock:
            event = self._gathered.take(kind, self._number, self._last_micros)
        self._state = state_of(event.status.phase)
        return event

    @property
    def has_told_all(self) -> bool:
        """Return whether every answer so far is in an event that was written."""
        return self._pending is None and not self._gathered.has_answers

    def _delete_old(self) -> None:
        """Delete some events whose time is over, but not those that a search relies on."""
        oldest, stride = self._clock.now_micros() - self._keep_micros, RULES.waypoint_stride
        for _ in range(_DELETED_AT_ONCE):
            if not self._written or self._written[0].at_micros >= oldest:
                return
            event, newest = self._written[0], self._number
            is_waypoint = (event.number - 1) % stride == 0
            if event.generation != self._generation or may_thin(
                event.number, first=1, newest=newest, stride=stride
            ):
                self._store.delete(event_path(self._job, event.generation, event.number))
            elif not is_waypoint:
                return  # its block is the last one: it goes when there is another
            self._written.popleft()

    def _sweep_once(self) -> None:
        """Delete the events of earlier generations if the newest of them is too old."""
        if self._has_swept:
            return
        self._has_swept = True
        found: dict[int, list[str]] = {}
        for info in self._store.list(events_folder(self._job)):
            named = event_of(info.path)
            if named is not None and named[0] < self._generation:
                found.setdefault(named[0], []).append(info.path)
        oldest = self._clock.now_micros() - self._keep_micros
        for paths in found.values():
            newest = max(paths)
            data = self._store.read(newest)
            if data is not None and _time_of(data, newest) < oldest:
                for path in sorted(paths):
                    self._store.delete(path)


def _time_of(data: bytes, path: str) -> int:
    try:
        return decode_event(data, path).at_micros
    except PenstockError:
        return 0  # nobody can read it, so nobody misses it
