"""Records in the store: how each is read, found by number, and created once.

Pure: all functions are workflows of storage requests.
"""

from typing import TypeVar, assert_never

from penstock.core.ids import Epoch, JobId
from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.protocol import codec, paths
from penstock.state.protocol.records import (
    FIRST_GENERATION,
    Actor,
    CheckpointManifest,
    CheckpointRef,
    CheckpointStatus,
    ClaimRecord,
    CommitMarker,
    EpochRecord,
    Fenced,
    Record,
    RecordT,
    RetentionRecord,
    derive_status,
)
from penstock.state.protocol.steps import Steps, create_once, exists, find_newest, read

T = TypeVar("T")


def create_record(record: RecordT) -> Steps[RecordT | None]:
    """Create a record in its place; return None if it is ours, else the one already there."""
    path = paths.path_of(record)
    existing = yield from create_once(path, codec.encode(record))
    return None if existing is None else codec.decode(type(record), existing, path)


def read_record(record_type: type[RecordT], path: str) -> Steps[RecordT | None]:
    """Read the record at a path; a record that belongs to another path is corrupt."""
    data = yield from read(path)
    if data is None:
        return None
    record = codec.decode(record_type, data, path)
    if paths.path_of(record) != path:
        raise CorruptStateError(
            f"{path!r} holds {_name(record)}: objects were moved or copied by hand. Nothing "
            "was changed; put them back where they were written",
            code=ErrorCode.FOREIGN_OBJECT,
            path=path,
        )
    return record


def _name(record: Record) -> str:
    match record:
        case ClaimRecord():
            return f"the claim of {record.job} generation {record.generation}"
        case CheckpointManifest():
            return f"the manifest of {record.ref}"
        case EpochRecord():
            return f"the record of {record.ref}"
        case CommitMarker():
            return f"the committed marker of {record.ref}"
        case RetentionRecord():
            return f"retention record {record.sequence} of {record.job}"
        case _:
            assert_never(record)


def read_claim(job: JobId, generation: int) -> Steps[ClaimRecord | None]:
    """Read one claim."""
    return read_record(ClaimRecord, paths.claim_path(job, generation))


def find_newest_claim(job: JobId) -> Steps[int | None]:
    """Return the number of the newest claim, or None for a job that does not exist."""
    return find_newest(
        lambda number: paths.claim_path(job, number), first=FIRST_GENERATION, stride=1
    )


def read_newest_claim(job: JobId) -> Steps[ClaimRecord | None]:
    """Read the newest claim; None for a job that does not exist."""
    number = yield from find_newest_claim(job)
    return None if number is None else (yield from read_claim(job, number))


def read_identity(job: JobId) -> Steps[ClaimRecord | None]:
    """Read a claim for the fields that all claims share: the first epoch and the origin."""
    # The first claim is read without a search; if it is damaged, the newest one does as well.
    try:
        return (yield from read_claim(job, FIRST_GENERATION))
    except CorruptStateError:
        newest = yield from find_newest_claim(job)
        if newest is None or newest == FIRST_GENERATION:
            raise
        return (yield from read_claim(job, newest))


def unless_fenced(claim: ClaimRecord, steps: Steps[T]) -> Steps[T | Fenced]:
    """Run a workflow; turn CorruptStateError into `Fenced` if a newer driver owns the job.

    A newer generation may have collected the objects that the older one reads.
    """
    try:
        return (yield from steps)
    except CorruptStateError:
        if (yield from is_fenced(claim)):
            return Fenced(claim.generation)
        raise


def is_fenced(claim: ClaimRecord) -> Steps[bool]:
    """Tell whether a newer generation has claimed the job. One HEAD: claims have no gaps."""
    return exists(paths.claim_path(claim.job, claim.generation.next()))


def read_epoch_record(job: JobId, epoch: int) -> Steps[EpochRecord | None]:
    """Read the record of one epoch."""
    return read_record(EpochRecord, paths.epoch_record_path(job, epoch))


def read_newest_record(
    actor: Actor, *, first: Epoch, seen: Epoch | None = None
) -> Steps[EpochRecord | None]:
    """Read the newest epoch record, or None before the job's first epoch."""
    number = yield from find_newest_epoch(actor, first=first, seen=seen)
    if number is None:
        return None
    record = yield from read_epoch_record(actor.job, number)
    if record is None:
        # A sweep removed the record after the search: many epochs were published meanwhile.
        return (yield from read_newest_record(actor, first=first, seen=number))
    return record


def find_newest_epoch(
    actor: Actor, *, first: Epoch, seen: Epoch | None = None
) -> Steps[Epoch | None]:
    """Return the number of the newest epoch record, readable or not."""
    number = yield from find_newest(
        lambda epoch: paths.epoch_record_path(actor.job, epoch),
        first=first,
        stride=actor.rules.waypoint_stride,
        seen=seen,
    )
    return None if number is None else Epoch(number)


def read_manifest(ref: CheckpointRef) -> Steps[CheckpointManifest | None]:
    """Read a checkpoint's manifest."""
    return read_record(CheckpointManifest, paths.manifest_path(ref))


def read_status(ref: CheckpointRef, record: EpochRecord | None) -> Steps[CheckpointStatus]:
    """Read the manifest and the marker of a checkpoint and derive its status."""
    manifest = yield from read_manifest(ref)
    marker = None
    if manifest is not None and manifest.needs_commit:
        marker = yield from read_record(CommitMarker, paths.marker_path(ref))
    return derive_status(ref, manifest, record, marker)
