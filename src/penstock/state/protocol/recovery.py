"""Taking a job over: claim a generation, find what to build on, replay an open commit.

A successor adopts the newest acknowledged epoch, whoever wrote it, and ignores manifests
without a record: it never acknowledges for others. A restore request travels in the claim
and stays in force until an epoch of that or a later generation is published, so a crash
right after `restore` cannot undo it.
"""

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from penstock.core.ids import Epoch, Generation, JobId, Token
from penstock.errors import CorruptStateError, ErrorCode, InternalError
from penstock.state.protocol import codec, paths
from penstock.state.protocol.publication import CommitPermit, Fenced, ReadyCheckpoint
from penstock.state.protocol.reading import (
    find_newest_claim,
    is_fenced,
    read_claim,
    read_epoch_record,
    read_newest_record,
    read_status,
)
from penstock.state.protocol.records import (
    FIRST_EPOCH,
    FIRST_GENERATION,
    CheckpointRef,
    ClaimRecord,
    EpochRecord,
)
from penstock.state.protocol.rules import ProtocolRules
from penstock.state.protocol.status import (
    CheckpointStatus,
    Committing,
    Invisible,
    Ready,
    Superseded,
    Unacknowledged,
)
from penstock.state.protocol.steps import Steps, create_once


@dataclass(frozen=True, slots=True)
class Recovered:
    """Where to go on: run `next_epoch` on top of `base`, or from nothing."""

    base: ReadyCheckpoint | None
    next_epoch: Epoch
    restored: CheckpointRef | None = None
    """Set while a restore request is in force; release its pin once `next_epoch` is published."""


@dataclass(frozen=True, slots=True)
class ReplayCommit:
    """The newest epoch's sinks may not all have committed: commit, complete, recover again."""

    permit: CommitPermit


RecoveryDecision: TypeAlias = Recovered | ReplayCommit | Fenced


@dataclass(frozen=True, slots=True)
class RecoveryFacts:
    """What a driver saw after its claim."""

    claim: ClaimRecord
    newest: EpochRecord | None
    newest_status: CheckpointStatus | None
    """None without a newest record."""
    pending_restore: CheckpointRef | None
    restore_status: CheckpointStatus | None
    """Of the pending restore, or of the origin of a branch without epochs of its own."""
    fenced: bool


def decide_recovery(facts: RecoveryFacts) -> RecoveryDecision:
    """Say how to go on from what was seen."""
    if facts.fenced:
        return Fenced(facts.claim.generation)
    start = facts.pending_restore or facts.claim.origin
    if facts.newest is None or facts.newest_status is None:
        base = None if start is None else _require_ready(start, facts.restore_status)
        return Recovered(base, facts.claim.first_epoch, facts.pending_restore)
    if isinstance(facts.newest_status, Committing):
        permit = CommitPermit(
            facts.newest, facts.newest_status.manifest, facts.claim.generation
        )
        return ReplayCommit(permit)
    base = _require_ready(facts.newest.ref, facts.newest_status)
    if facts.pending_restore is not None:
        base = _require_ready(facts.pending_restore, facts.restore_status)
    return Recovered(base, facts.newest.ref.epoch.next(), facts.pending_restore)


def _require_ready(ref: CheckpointRef, status: CheckpointStatus | None) -> ReadyCheckpoint:
    match status:
        case Ready():
            return ReadyCheckpoint(ref)
        case Invisible() | None:
            what, code = "its manifest is missing", ErrorCode.OBJECT_MISSING
        case Unacknowledged() | Superseded() | Committing():
            what, code = (
                f"it is {type(status).__name__.lower()}",
                ErrorCode.PROTOCOL_VIOLATION,
            )
        case _:
            assert_never(status)
    raise CorruptStateError(
        f"checkpoint {ref} cannot be recovered: {what}. Nothing was changed; restore another "
        "epoch explicitly, or bring the missing objects back",
        code=code,
        checkpoint=str(ref),
    )


def claim_generation(
    job: JobId, owner: Token, *, now_micros: int, restore: CheckpointRef | None = None
) -> Steps[ClaimRecord]:
    """Claim the next generation, fencing every older driver from then on.

    Losing the number to another driver means trying the next: the later claim wins.
    """
    newest = yield from find_newest_claim(job)
    previous = None if newest is None else (yield from read_claim(job, newest))
    while True:
        claim = ClaimRecord(
            job=job,
            generation=FIRST_GENERATION if previous is None else previous.generation.next(),
            owner=owner,
            created_at_micros=now_micros,
            first_epoch=FIRST_EPOCH if previous is None else previous.first_epoch,
            origin=None if previous is None else previous.origin,
            restore=restore,
        )
        path = paths.claim_path(job, claim.generation)
        existing = yield from create_once(path, codec.encode_claim(claim))
        if existing is None:
            return claim
        previous = codec.decode_claim(existing, path)


def recover(claim: ClaimRecord, rules: ProtocolRules) -> Steps[RecoveryDecision]:
    """Find where to go on after a claim. Reads only; repeat after replaying a commit."""
    newest = yield from read_newest_record(claim.job, rules, first=claim.first_epoch)
    status = None if newest is None else (yield from read_status(newest.ref, newest))
    pending = yield from _find_pending_restore(claim, newest)
    start = pending or (claim.origin if newest is None else None)
    restore_status = None
    if start is not None:
        restore_status = yield from _read_own_status(start)
    fenced = yield from is_fenced(claim.job, claim.generation)
    return decide_recovery(
        RecoveryFacts(claim, newest, status, pending, restore_status, fenced)
    )


def _find_pending_restore(
    claim: ClaimRecord, newest: EpochRecord | None
) -> Steps[CheckpointRef | None]:
    """Return the newest restore request that no published epoch has honoured yet."""
    honoured = 0 if newest is None else newest.ref.generation
    current: ClaimRecord | None = claim
    while current is not None and current.generation > honoured:
        if current.restore is not None:
            return current.restore
        if current.generation == FIRST_GENERATION:
            return None
        earlier = Generation(current.generation - 1)
        current = yield from read_claim(claim.job, earlier)
        if current is None:
            raise InternalError(
                f"{claim.job} has a claim of generation {earlier.next()} but none of {earlier}",
                code=ErrorCode.PROTOCOL_VIOLATION,
            )
    return None


def _read_own_status(ref: CheckpointRef) -> Steps[CheckpointStatus]:
    """Derive the status of an older checkpoint; a pin keeps its epoch record in place."""
    record = yield from read_epoch_record(ref.job, ref.epoch)
    return (yield from read_status(ref, record))
