"""Requests: what somebody asks of a job, as objects that its driver finds, honours and deletes.

    ask(store, job, Stop())  ─▶  requests/{id}.json  ─▶  the driver acts, tells it in an event, deletes

Pure values, and the few storage calls around them. The driver's side is in `attendant`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from penstock.core.clock import new_token
from penstock.core.ids import JobId, SavepointName
from penstock.core.spellings import check_choice
from penstock.errors import ErrorCode, PenstockError, UserError
from penstock.runtime.driver.decide import StopMode
from penstock.state.protocol.paths import request_of, request_path, requests_folder
from penstock.state.storage.create import create_own
from penstock.state.storage.object_store import ObjectStore

FORMAT = 1
LOOK_MICROS = 2_000_000
"""How often a driver looks for requests."""
LASTS_MICROS = 3_600_000_000
"""For how long a request waits for a driver, if nothing else is said."""


class RequestAction(StrEnum):
    """What can be asked of a job."""

    STOP = "stop"
    SAVEPOINT = "savepoint"
    COMPACT = "compact"
    COLLECT = "collect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, as it is stored."""

    id: str
    action: RequestAction
    created_at_micros: int
    expires_at_micros: int
    mode: StopMode = StopMode.CHECKPOINT
    """How to stop."""
    name: str | None = None
    """The name of the savepoint."""
    asked_by: str = ""
    """Who asks: a user and a machine, for the journal."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Unusable:
    """A request that this driver cannot honour."""

    id: str
    problem: str


def new_request(
    action: RequestAction | str,
    *,
    now_micros: int,
    lasts_micros: int = LASTS_MICROS,
    mode: StopMode | str = StopMode.CHECKPOINT,
    name: str | None = None,
    asked_by: str = "",
) -> Request:
    """Return a request under a name of its own; requests sort by the time they were made."""
    check_choice("action", str(action), [str(each) for each in RequestAction])
    check_choice("mode", str(mode), [str(each) for each in StopMode])
    if (name is None) == (str(action) == RequestAction.SAVEPOINT):
        raise UserError(
            "a request for a savepoint needs a name, and no other request has one",
            code=ErrorCode.INVALID_CONFIG,
        )
    return Request(
        id=f"{now_micros:017d}-{str(new_token())[:12]}",
        action=RequestAction(action),
        created_at_micros=now_micros,
        expires_at_micros=now_micros + lasts_micros,
        mode=StopMode(mode),
        name=None if name is None else str(SavepointName(name)),
        asked_by=asked_by,
    )


def ask(store: ObjectStore, job: JobId, request: Request) -> None:
    """Store a request, for the driver that runs or the next one."""
    create_own(store, request_path(job, request.id), msgspec.json.encode(request))


def is_open(store: ObjectStore, job: JobId, request: str) -> bool:
    """Return whether a request still waits."""
    return store.size(request_path(job, request)) is not None


def withdraw(store: ObjectStore, job: JobId, request: str) -> None:
    """Delete a request: it was honoured, has expired, or nobody wants it any more."""
    store.delete(request_path(job, request))


def open_requests(
    store: ObjectStore, job: JobId, *, known: frozenset[str] = frozenset()
) -> Iterator[Request | Unusable]:
    """Yield the requests that wait, oldest first, without those that are known already.

    A listing may be stale, so each is read by name: one that is gone is passed over.
    """
    found = sorted(info.path for info in store.list(requests_folder(job)))
    for path in found:
        name = request_of(path)
        if name is None or name in known:
            continue
        data = store.read(path)
        if data is not None:
            yield _decode(name, data)


def _decode(name: str, data: bytes) -> Request | Unusable:
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        version = fields.get("format")
        if isinstance(version, int) and version > FORMAT:
            return Unusable(
                name, f"it has format {version}, which this driver does not know"
            )
        request = msgspec.convert(fields, Request)
        if request.id != name:
            return Unusable(name, f"it says that it is the request {request.id!r}")
        if request.name is not None:
            SavepointName(request.name)
    except (msgspec.MsgspecError, PenstockError) as error:
        return Unusable(name, f"it cannot be read ({error})")
    return request
