"""Events: what a driver tells of its job, as JSON that people and programs read. Pure.

An event holds the whole status at an instant, and what happened since the event before it. So
the newest one says how a job is, and one that is lost takes no total with it. Fields may be
added; none changes its meaning. A reader refuses a newer format with a sentence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import msgspec

from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.runtime.driver.decide import JobStatus
from penstock.runtime.driver.progress import EpochPhase, RowSample
from penstock.runtime.plan.executor import KeySample

FORMAT = 1
MOST_BYTES = 256 << 10
"""How large the object of an event may be."""
_LONGEST_TEXT = 8 << 10


class EventKind(StrEnum):
    """Why an event was written."""

    STATE = "state"
    """The job's state has changed: it starts, runs, tries again, stops, fails or ends."""
    STATUS = "status"
    """It was time."""
    ANSWER = "answer"
    """A request was honoured, or has expired."""


@dataclass(frozen=True, slots=True)
class DriverPlace:
    """Where the driver runs, for who wants to look at the process itself."""

    host: str
    process: int
    version: str
    """Of Penstock."""
    started_at_micros: int


@dataclass(frozen=True, slots=True)
class EpochSums:
    """The epochs since the event before, summed up."""

    count: int = 0
    published: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    storage_requests: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    compactions: int = 0
    duration_micros: int = 0
    longest_micros: int = 0
    phases: Mapping[EpochPhase, int] = field(default_factory=dict)
    """How many microseconds went to each phase."""


@dataclass(frozen=True, slots=True)
class FailureSeen:
    """A failure of the last hour, which occurred once or several times."""

    error: str
    """The kind of the error."""
    message: str
    traceback: str
    count: int
    first_at_micros: int
    last_at_micros: int
    is_retried: bool
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request."""

    request: str
    """Its id."""
    action: str
    is_done: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a job's journal."""

    job: str
    generation: int
    number: int
    """Counts the events of a generation, from 1."""
    at_micros: int
    since_micros: int
    """When the time began that the sums are of."""
    kind: EventKind
    status: JobStatus
    driver: DriverPlace
    epochs: EpochSums = EpochSums()
    rates: Mapping[str, float] = field(default_factory=dict)
    """How many rows per second each operator took."""
    rows_by_subtask: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    keys: tuple[KeySample, ...] = ()
    samples: tuple[RowSample, ...] = ()
    failures: tuple[FailureSeen, ...] = ()
    answers: tuple[Answer, ...] = ()
    format: int = FORMAT


def encode_event(event: Event) -> bytes:
    """Return the JSON of an event; parts of one that is too large are left out.

    Samples go first, then keys and rows by subtask, then counters of operators, then operators.
    What says how the job is stays.
    """
    status = event.status
    last = status.last
    if last is not None:
        last = replace(last, rows_by_subtask={}, keys=(), samples=())
    event = replace(event, status=replace(status, last=last, error=_cut(status.error)))
    encoded = msgspec.json.encode(event)
    for leave_out in (_no_samples, _no_load, _no_details, _no_operators):
        if len(encoded) <= MOST_BYTES:
            break
        event = leave_out(event)
        encoded = msgspec.json.encode(event)
    return encoded


def _no_samples(event: Event) -> Event:
    return replace(event, samples=())


def _no_load(event: Event) -> Event:
    return replace(event, keys=(), rows_by_subtask={}, failures=event.failures[-3:])


def _no_details(event: Event) -> Event:
    plain = tuple(replace(each, counters={}) for each in event.status.operators)
    return replace(event, status=replace(event.status, operators=plain))


def _no_operators(event: Event) -> Event:
    return replace(event, rates={}, status=replace(event.status, operators=()))


def _cut(text: str | None) -> str | None:
    return None if text is None else cut_text(text)


def cut_text(text: str) -> str:
    """Return a text of bounded length: its beginning and its end, if it is too long."""
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]}\n…\n{text[-half:]}"


def decode_event(data: bytes, path: str) -> Event:
    """Return an event; one of a newer format, or a damaged one, is an error that names it."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        found = fields.get("format")
        if isinstance(found, int) and found > FORMAT:
            raise StateError(
                f"the event {path!r} has format {found}, this Penstock knows formats up to "
                f"{FORMAT}: upgrade Penstock to read it",
                code=ErrorCode.NEWER_PROTOCOL,
                path=path,
            )
        return msgspec.convert(fields, Event)
    except msgspec.MsgspecError as error:
        raise CorruptStateError(
            f"the event {path!r} cannot be read ({error}). The job does not need it; delete it",
            code=ErrorCode.UNDECODABLE,
            path=path,
        ) from error
