"""Restores and branches of a job, as users ask for them.

Planning a restore reads only: which checkpoint a user means, and what restoring it abandons.
`takeover` carries it out.

A branch is a new job from another's epoch that copies nothing. Its epochs refer to the
origin's objects, and a job deletes only under its own prefix. So the branch pins its origin
first, and lets it go when nothing it keeps refers to another job any more.
"""

from dataclasses import dataclass, replace

from penstock.core.ids import JobId, SavepointName
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.protocol.reading import (
    create_record,
    read_claim,
    read_epoch_record,
    read_identity,
    read_newest_record,
)
from penstock.state.protocol.records import (
    FIRST_GENERATION,
    Actor,
    CheckpointRef,
    ClaimRecord,
    EpochRecord,
    PinKind,
)
from penstock.state.protocol.retention import (
    Epochs,
    find_kept_epoch,
    pin_epoch,
    read_retention,
    require_ready,
    unpin,
)
from penstock.state.protocol.steps import Steps


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What restoring an epoch means, before it is done."""

    ref: CheckpointRef
    abandoned: tuple[CheckpointRef, ...]
    """Epochs the job will no longer build on, newest first. Output they committed stays."""
    complete: bool = True
    """False if there may be more of them, whose records are gone or cannot be read."""


def plan_restore(actor: Actor, which: Epochs) -> Steps[RestorePlan]:
    """Find the checkpoint a user means and what restoring it abandons."""
    state = yield from read_retention(actor)
    ref = yield from find_kept_epoch(actor, state, which)
    try:
        abandoned, complete = yield from _find_abandoned(actor, ref)
    except CorruptStateError:
        return RestorePlan(ref, (), complete=False)
    return RestorePlan(ref, abandoned, complete=complete)


def _find_abandoned(
    actor: Actor, ref: CheckpointRef
) -> Steps[tuple[tuple[CheckpointRef, ...], bool]]:
    """Return what the newest epoch descends from and `ref` does not, and whether that is all.

    Walks down both lines of descent until they meet, always on the higher one.
    """
    identity = yield from read_identity(actor.job)
    if identity is None:
        return (), False
    ours = yield from read_newest_record(actor, first=identity.first_epoch)
    target = yield from read_epoch_record(actor.job, ref.epoch)
    abandoned: list[CheckpointRef] = []
    while ours is not None and target is not None and ours.ref != target.ref:
        if ours.ref.epoch > target.ref.epoch:
            abandoned.append(ours.ref)
            ours = yield from _read_parent(ours)
        else:
            target = yield from _read_parent(target)
    return tuple(abandoned), ours is not None and target is not None


def _read_parent(record: EpochRecord) -> Steps[EpochRecord | None]:
    """Read the record a record descends from; None if it is gone, or of another job."""
    parent = record.parent
    if parent is None or parent.job != record.ref.job:
        return None
    found = yield from read_epoch_record(parent.job, parent.epoch)
    return found if found is not None and found.ref == parent else None


def require_restorable(job: JobId, ref: CheckpointRef) -> Steps[None]:
    """Refuse what no driver of this job could start from, before anything is claimed for it."""
    if ref.job != job:
        raise StateError(
            f"{ref} is not an epoch of {job}, so {job} cannot restore it; make a branch of it "
            "under a new job id instead",
            code=ErrorCode.NOT_RESTORABLE,
            job=job,
        )
    record = yield from read_epoch_record(job, ref.epoch)
    yield from require_ready(ref, record)


def branch_pin_name(branch: JobId) -> SavepointName:
    """Name the pin that a branch holds on its origin."""
    return SavepointName(f"branch-{branch}")


def branch_job(actor: Actor, branch: JobId, which: Epochs) -> Steps[ClaimRecord]:
    """Create a job that starts from an epoch of the actor's job, copying nothing.

    The pin on the origin comes first: from its claim on the branch depends on it.
    """
    if (yield from read_claim(branch, FIRST_GENERATION)) is not None:
        raise _exists(branch)
    name = branch_pin_name(branch)
    pin = yield from pin_epoch(actor, name, PinKind.BRANCH, which, holder=branch)
    claim = ClaimRecord(
        job=branch,
        generation=FIRST_GENERATION,
        owner=actor.token,
        created_at_micros=actor.now_micros,
        first_epoch=pin.ref.epoch.next(),
        origin=pin.ref,
    )
    existing = yield from create_record(claim)
    if existing is None:
        return claim
    if existing.origin != pin.ref:
        yield from unpin(actor, [name])
    raise _exists(branch)


def _exists(job: JobId) -> StateError:
    return StateError(
        f"job {job!r} already exists; choose another id for the branch",
        code=ErrorCode.JOB_EXISTS,
        job=job,
    )


def release_origin(actor: Actor, claim: ClaimRecord) -> Steps[bool]:
    """Let the origin of a branch go, once no kept epoch refers to its objects."""
    if claim.origin is None:
        return False
    at_origin = replace(actor, job=claim.origin.job)
    return (yield from unpin(at_origin, [branch_pin_name(claim.job)]))
