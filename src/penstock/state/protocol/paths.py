"""Every object name of the checkpoint namespace; the only place that formats or parses one.

    {job}/generations/{g}/claim
    {job}/generations/{g}/left
    {job}/generations/{g}/checkpoints/{epoch:010}/manifest.pb
    {job}/generations/{g}/checkpoints/{epoch:010}/committed
    {job}/generations/{g}/checkpoints/{epoch:010}/operator-{operator}-{subtask}.metadata
    {job}/generations/{g}/checkpoints/{epoch:010}/{operator}/{table}-{subtask:03}-{token}.parquet
    {job}/epochs/{epoch:010}.record
    {job}/retention/{sequence:010}.record
    {job}/events/{generation:010}/{number:010}.json
    {job}/requests/{id}.json

A further part of a large delta ends in `-{part}.parquet`, a compacted file in
`-compacted-{part}.parquet`. Paths are relative to the checkpoint URL. Pure.
"""

import re
from dataclasses import dataclass
from typing import assert_never

from penstock.core.ids import Epoch, Generation, JobId, OperatorId, TableName, Token
from penstock.errors import UserError
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    CommitMarker,
    EpochRecord,
    Record,
    RetentionRecord,
)

_SLOT = re.compile(r"([^/]+)/generations/([1-9][0-9]{0,9})/checkpoints/([0-9]{10})/(.+)")
_NUMBERED = re.compile(r"[^/]+/(?:epochs|retention)/([0-9]{10})\.record")

_EVENT = re.compile(r"[^/]+/events/([0-9]{10})/([0-9]{10})\.json")
_REQUEST = re.compile(r"[^/]+/requests/([0-9a-z-]{1,64})\.json")


def claim_path(job: JobId, generation: int) -> str:
    """Name the claim of a generation."""
    return f"{job}/generations/{generation}/claim"


def left_path(job: JobId, generation: int) -> str:
    """Name the note that the driver of a generation has ended."""
    return f"{job}/generations/{generation}/left"


def generations_folder(job: JobId) -> str:
    """Name the folder of all generations, for sweeping."""
    return f"{job}/generations"


def checkpoint_folder(ref: CheckpointRef) -> str:
    """Name the folder of one checkpoint."""
    return f"{ref.job}/generations/{ref.generation}/checkpoints/{ref.epoch:010d}"


def manifest_path(ref: CheckpointRef) -> str:
    """Name the manifest of a checkpoint."""
    return f"{checkpoint_folder(ref)}/manifest.pb"


def marker_path(ref: CheckpointRef) -> str:
    """Name the committed marker of a checkpoint."""
    return f"{checkpoint_folder(ref)}/committed"


def metadata_path(ref: CheckpointRef, operator: OperatorId, subtask_index: int) -> str:
    """Name the metadata object of one subtask."""
    return f"{checkpoint_folder(ref)}/operator-{operator}-{subtask_index}.metadata"


def table_checkpoint_path(
    ref: CheckpointRef,
    operator: OperatorId,
    table: TableName,
    subtask_index: int,
    token: Token,
    *,
    compacted: bool = False,
    part: int = 0,
) -> str:
    """Name a state file. The token makes the name unique to one attempt, so none overwrites it."""
    plain = f"-{part}" if part else ""
    suffix = f"-compacted-{part}" if compacted else plain
    return f"{checkpoint_folder(ref)}/{operator}/{table}-{subtask_index:03d}-{token}{suffix}.parquet"


def epoch_record_path(job: JobId, epoch: int) -> str:
    """Name the record that acknowledges an epoch."""
    return f"{job}/epochs/{epoch:010d}.record"


def retention_path(job: JobId, sequence: int) -> str:
    """Name a retention record."""
    return f"{job}/retention/{sequence:010d}.record"


def event_path(job: JobId, generation: int, number: int) -> str:
    """Name an event of the journal."""
    return f"{job}/events/{generation:010d}/{number:010d}.json"


def events_folder(job: JobId, generation: int | None = None) -> str:
    """Name the folder of all events, or of those of one generation."""
    return f"{job}/events" if generation is None else f"{job}/events/{generation:010d}"


def request_path(job: JobId, request: str) -> str:
    """Name a request."""
    return f"{job}/requests/{request}.json"


def requests_folder(job: JobId) -> str:
    """Name the folder of requests."""
    return f"{job}/requests"


def event_of(path: str) -> tuple[int, int] | None:
    """Return the generation and number of an event, or None for any other name."""
    match = _EVENT.fullmatch(path)
    return None if match is None else (int(match[1]), int(match[2]))


def request_of(path: str) -> str | None:
    """Return the id of a request, or None for any other name."""
    match = _REQUEST.fullmatch(path)
    return None if match is None else match[1]


def path_of(record: Record) -> str:
    """Name the one place where a record belongs."""
    match record:
        case ClaimRecord():
            return claim_path(record.job, record.generation)
        case CheckpointManifest():
            return manifest_path(record.ref)
        case CommitMarker():
            return marker_path(record.ref)
        case EpochRecord():
            return epoch_record_path(record.ref.job, record.ref.epoch)
        case RetentionRecord():
            return retention_path(record.job, record.sequence)
        case _:
            assert_never(record)


@dataclass(frozen=True, slots=True)
class Slot:
    """Which checkpoint folder an object lies in."""

    ref: CheckpointRef
    rest: str
    """The object's name inside the folder."""


def slot_of(path: str) -> Slot | None:
    """Return the slot that an object lies in, or None for a path outside all slots.

    Callers that delete use this: Penstock deletes no object whose path it does not recognise.
    """
    match = _SLOT.fullmatch(path)
    if match is None:
        return None
    try:
        ref = CheckpointRef(
            JobId(match[1]), Generation(int(match[2])), Epoch(int(match[3]))
        )
    except UserError:
        return None
    return Slot(ref, match[4])


def epochs_folder(job: JobId) -> str:
    """Name the folder of epoch records, for thinning."""
    return f"{job}/epochs"


def retention_folder(job: JobId) -> str:
    """Name the folder of retention records, for thinning."""
    return f"{job}/retention"


def number_of(path: str) -> int | None:
    """Return the number of an epoch or retention record, or None for any other name."""
    match = _NUMBERED.fullmatch(path)
    return None if match is None else int(match[1])
