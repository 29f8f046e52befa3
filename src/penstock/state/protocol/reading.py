"""Reading the protocol's records: one place that knows where each lies and how it decodes."""

from typing import TypeVar

from penstock.core.ids import Epoch, Generation, JobId
from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.protocol import codec, paths
from penstock.state.protocol.records import (
    FIRST_GENERATION,
    CheckpointManifest,
    CheckpointRef,
    CheckpointStatus,
    ClaimRecord,
    CommitMarker,
    EpochRecord,
    Fenced,
    ProtocolRules,
    derive_status,
)
from penstock.state.protocol.steps import Steps, exists, find_newest, read

T = TypeVar("T")


def read_claim(job: JobId, generation: int) -> Steps[ClaimRecord | None]:
    """Read one claim."""
    path = paths.claim_path(job, generation)
    data = yield from read(path)
    if data is None:
        return None
    claim = codec.decode_claim(data, path)
    if claim.job != job or claim.generation != generation:
        raise misplaced(path, f"the claim of {claim.job} generation {claim.generation}")
    return claim


def find_newest_claim(job: JobId, *, seen: Generation | None = None) -> Steps[int | None]:
    """Return the number of the newest claim, or None for a job that does not exist."""
    return (
        yield from find_newest(
            lambda number: paths.claim_path(job, number),
            first=FIRST_GENERATION,
            stride=1,
            seen=seen,
        )
    )


def read_identity(job: JobId) -> Steps[ClaimRecord | None]:
    """Read a claim for what all claims of a job say alike: its first epoch and its origin."""
    try:
        return (yield from read_claim(job, FIRST_GENERATION))
    except CorruptStateError:
        newest = yield from find_newest_claim(job)
        if newest is None or newest == FIRST_GENERATION:
            raise
        return (yield from read_claim(job, newest))


def unless_fenced(claim: ClaimRecord, steps: Steps[T]) -> Steps[T | Fenced]:
    """Run a workflow, taking what it misses for corruption only while nobody else owns the job.

    A newer generation collects what an older one was about to read.
    """
    try:
        return (yield from steps)
    except CorruptStateError:
        if (yield from is_fenced(claim.job, claim.generation)):
            return Fenced(claim.generation)
        raise


def is_fenced(job: JobId, generation: Generation) -> Steps[bool]:
    """Tell whether a newer generation has claimed the job. One HEAD: claims have no gaps."""
    return (yield from exists(paths.claim_path(job, generation.next())))


def read_epoch_record(job: JobId, epoch: int) -> Steps[EpochRecord | None]:
    """Read the record of one epoch."""
    path = paths.epoch_record_path(job, epoch)
    data = yield from read(path)
    if data is None:
        return None
    record = codec.decode_epoch_record(data, path)
    if record.ref.job != job or record.ref.epoch != epoch:
        raise misplaced(path, f"the record of {record.ref}")
    return record


def read_newest_record(
    job: JobId, rules: ProtocolRules, *, first: Epoch, seen: Epoch | None = None
) -> Steps[EpochRecord | None]:
    """Read the newest epoch record, or None before the job's first epoch."""
    number = yield from find_newest_epoch(job, rules, first=first, seen=seen)
    if number is None:
        return None
    record = yield from read_epoch_record(job, number)
    if record is None:
        # Thinned out between the search and the read: many epochs have come since.
        return (yield from read_newest_record(job, rules, first=first, seen=number))
    return record


def find_newest_epoch(
    job: JobId, rules: ProtocolRules, *, first: Epoch, seen: Epoch | None = None
) -> Steps[Epoch | None]:
    """Return the number of the newest epoch record, readable or not."""
    number = yield from find_newest(
        lambda epoch: paths.epoch_record_path(job, epoch),
        first=first,
        stride=rules.waypoint_stride,
        seen=seen,
    )
    return None if number is None else Epoch(number)


def read_manifest(ref: CheckpointRef) -> Steps[CheckpointManifest | None]:
    """Read a checkpoint's manifest."""
    path = paths.manifest_path(ref)
    data = yield from read(path)
    if data is None:
        return None
    manifest = codec.decode_manifest(data, path)
    if manifest.ref != ref:
        raise misplaced(path, f"the manifest of {manifest.ref}")
    return manifest


def read_status(ref: CheckpointRef, record: EpochRecord | None) -> Steps[CheckpointStatus]:
    """Read what else decides what `ref` is, and derive it."""
    manifest = yield from read_manifest(ref)
    marker = None
    if manifest is not None and manifest.needs_commit:
        marker = yield from _read_marker(ref)
    return derive_status(ref, manifest, record, marker)


def _read_marker(ref: CheckpointRef) -> Steps[CommitMarker | None]:
    path = paths.marker_path(ref)
    data = yield from read(path)
    if data is None:
        return None
    marker = codec.decode_marker(data, path)
    if marker.ref != ref:
        raise misplaced(path, f"the committed marker of {marker.ref}")
    return marker


def misplaced(path: str, what: str) -> CorruptStateError:
    """Build the error for a good record in another record's place."""
    return CorruptStateError(
        f"{path!r} holds {what}: objects were moved or copied by hand. Nothing was changed; "
        "put them back where they were written",
        code=ErrorCode.FOREIGN_OBJECT,
        path=path,
    )
