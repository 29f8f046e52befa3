"""Restores and branches of a job: plan a restore, create a branch, release its origin.

Pure. Planning a restore only reads: which checkpoint a user means, and which epochs restoring
it abandons. `takeover` carries the restore out.

A branch is a new job that starts from another job's epoch and copies nothing. Its epochs
refer to the origin's objects, and a job deletes only under its own prefix. So the branch pins
its origin first, and removes the pin when none of its kept epochs refers to another job.
"""

from dataclasses import dataclass, replace

from penstock.core.ids import JobId, SavepointName
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.protocol import reading
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
    """The effect of restoring an epoch, before it is done."""

    ref: CheckpointRef
    abandoned: tuple[CheckpointRef, ...]
    """The epochs that the restore abandons, newest first. Output they committed stays."""
    complete: bool = True
    """False if the records of further abandoned epochs may be missing or unreadable."""


def plan_restore(actor: Actor, which: Epochs) -> Steps[RestorePlan]:
    """Find the checkpoint a user means and the epochs that restoring it abandons."""
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
    """Return the ancestors of the newest epoch that `ref` does not share, and whether all.

    The search follows the parents of both until they meet, always those of the higher epoch.
    """
    identity = yield from reading.read_identity(actor.job)
    if identity is None:
        return (), False
    ours = yield from reading.read_newest_record(actor, first=identity.first_epoch)
    target = yield from reading.read_epoch_record(actor.job, ref.epoch)
    abandoned: list[CheckpointRef] = []
    while ours is not None and target is not None and ours.ref != target.ref:
        if ours.ref.epoch > target.ref.epoch:
            abandoned.append(ours.ref)
            ours = yield from _read_parent(ours)
        else:
            target = yield from _read_parent(target)
    return tuple(abandoned), ours is not None and target is not None


def _read_parent(record: EpochRecord) -> Steps[EpochRecord | None]:
    """Read the parent of an epoch record; None if it is gone, or of another job."""
    parent = record.parent
    if parent is None or parent.job != record.ref.job:
        return None
    found = yield from reading.read_epoch_record(parent.job, parent.epoch)
    return found if found is not None and found.ref == parent else None


def require_restorable(job: JobId, ref: CheckpointRef) -> Steps[None]:
    """Refuse a checkpoint that a driver of this job could not start from, before any claim."""
    if ref.job != job:
        raise StateError(
            f"{ref} is not an epoch of {job}, so {job} cannot restore it; make a branch of it "
            "under a new job id instead",
            code=ErrorCode.NOT_RESTORABLE,
            job=job,
        )
    record = yield from reading.read_epoch_record(job, ref.epoch)
    yield from require_ready(ref, record)


def branch_pin_name(branch: JobId) -> SavepointName:
    """Name the pin that a branch holds on its origin."""
    return SavepointName(f"branch-{branch}")


def branch_job(actor: Actor, branch: JobId, which: Epochs) -> Steps[ClaimRecord]:
    """Create a job that starts from an epoch of the actor's job, copying nothing.

    The pin on the origin is made before the claim: from the claim on the branch depends on it.
    """
    if (yield from reading.read_claim(branch, FIRST_GENERATION)) is not None:
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
    existing = yield from reading.create_record(claim)
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
    """Remove the pin of a branch on its origin, once no kept epoch refers to its objects."""
    if claim.origin is None:
        return False
    at_origin = replace(actor, job=claim.origin.job)
    return (yield from unpin(at_origin, [branch_pin_name(claim.job)]))
