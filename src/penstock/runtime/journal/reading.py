"""Reads a job's journal: its newest event, the events since an instant, the answer to a request.

It disturbs nobody, and finds events by name, newest first, without a listing. An event that was
deleted meanwhile is passed over.
"""

from collections.abc import Callable, Iterator

from penstock.core.clock import Clock
from penstock.core.ids import JobId
from penstock.runtime.journal.events import Answer, Event, decode_event
from penstock.runtime.journal.requests import Request, is_open
from penstock.state.protocol.paths import event_path
from penstock.state.protocol.reading import read_newest_claim
from penstock.state.protocol.records import RULES
from penstock.state.protocol.steps import find_newest
from penstock.state.storage.create import run_steps
from penstock.state.storage.object_store import ObjectStore

_SILENT_GENERATIONS = 16
"""How many generations in a row may have left no event: drivers that died at once, or whose
events are deleted. Before them nothing is looked for."""

_CLOCKS_DIFFER_MICROS = 600_000_000
"""How far the clocks of who asks and who answers may differ."""
_LOOK_SECONDS = 0.5


def newest_event(store: ObjectStore, job: JobId) -> Event | None:
    """Return the newest event of a job; None if there is none."""
    return next(events_backwards(store, job), None)


def events_backwards(store: ObjectStore, job: JobId) -> Iterator[Event]:
    """Yield the events that are there, newest first, over all generations."""
    claim = run_steps(store, read_newest_claim(job))
    generation = 0 if claim is None else int(claim.generation)
    silent = 0
    while generation > 0 and silent < _SILENT_GENERATIONS:
        number = newest_number(store, job, generation) or 0
        silent = 0 if number else silent + 1
        for each in range(number, 0, -1):
            path = event_path(job, generation, each)
            data = store.read(path)
            if data is None:
                break  # older ones are deleted, but for a few that searches need
            yield decode_event(data, path)
        generation -= 1


def newest_number(store: ObjectStore, job: JobId, generation: int) -> int | None:
    """Return the number of the newest event of a generation; None if it has none."""

    def path_of(number: int) -> str:
        return event_path(job, generation, number)

    stride = RULES.waypoint_stride
    return run_steps(store, find_newest(path_of, first=1, stride=stride))


def events_since(store: ObjectStore, job: JobId, micros: int) -> list[Event]:
    """Return the events since an instant, oldest first."""
    found = []
    for event in events_backwards(store, job):
        if event.at_micros < micros:
            break
        found.append(event)
    return found[::-1]


def find_answer(
    store: ObjectStore, job: JobId, request: str, *, since_micros: int
) -> Answer | None:
    """Return what became of a request; None if no event since then tells it."""
    for event in events_since(store, job, since_micros):
        for answer in event.answers:
            if answer.request == request:
                return answer
    return None


def await_answer(
    store: ObjectStore,
    job: JobId,
    request: Request,
    clock: Clock,
    *,
    until_micros: int,
    sleep: Callable[[float], object],
) -> Answer | None:
    """Wait for what becomes of a request; None if nothing did before the time was over.

    A request that is gone without an answer was honoured by a driver that could not say so.
    """
    while True:
        is_gone = not is_open(store, job, request.id)
        since = request.created_at_micros - _CLOCKS_DIFFER_MICROS
        answer = find_answer(store, job, request.id, since_micros=since)
        if answer is not None:
            return answer
        if is_gone:
            said = "it was honoured, but the driver could not write what became of it"
            return Answer(request.id, request.action, is_done=True, message=said)
        if clock.now_micros() >= until_micros:
            return None
        sleep(_LOOK_SECONDS)
