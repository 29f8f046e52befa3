"""Planning a restore: which checkpoint a user means, and what restoring it abandons.

Reads only. What restoring does is `takeover`'s business.
"""

from dataclasses import dataclass

from penstock.core.ids import JobId
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.protocol.ledger import read_retention
from penstock.state.protocol.pinning import Epochs, find_kept_epoch, require_ready
from penstock.state.protocol.reading import (
    read_epoch_record,
    read_identity,
    read_newest_record,
)
from penstock.state.protocol.records import CheckpointRef, EpochRecord
from penstock.state.protocol.rules import ProtocolRules
from penstock.state.protocol.steps import Steps


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What restoring an epoch means, before it is done."""

    ref: CheckpointRef
    abandoned: tuple[CheckpointRef, ...]
    """Epochs the job will no longer build on, newest first. Output they committed stays."""
    complete: bool = True
    """False if there may be more of them, whose records are gone or cannot be read."""


def plan_restore(job: JobId, which: Epochs, rules: ProtocolRules) -> Steps[RestorePlan]:
    """Find the checkpoint a user means and what restoring it abandons."""
    state = yield from read_retention(job, rules)
    ref = yield from find_kept_epoch(state, which, rules)
    try:
        abandoned, complete = yield from _find_abandoned(job, ref, rules)
    except CorruptStateError:
        return RestorePlan(ref, (), complete=False)
    return RestorePlan(ref, abandoned, complete=complete)


def _find_abandoned(
    job: JobId, ref: CheckpointRef, rules: ProtocolRules
) -> Steps[tuple[tuple[CheckpointRef, ...], bool]]:
    """Return what the newest epoch descends from and `ref` does not, and whether that is all.

    Walks down both lines of descent until they meet, always on the higher one.
    """
    identity = yield from read_identity(job)
    if identity is None:
        return (), False
    ours = yield from read_newest_record(job, rules, first=identity.first_epoch)
    target = yield from read_epoch_record(job, ref.epoch)
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
