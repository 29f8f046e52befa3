"""Taking a job over: claim a generation, find what to build on, replay an open commit.

A successor adopts the newest acknowledged epoch, whoever wrote it, and ignores manifests
without a record: it never acknowledges for others. A restore request travels in the claim
and stays in force until an epoch of that or a later generation is published, so a crash
right after `restore` cannot undo it.

A newest epoch that cannot be read stops a plain start. It does not stop a restore, which
abandons that epoch anyway: older epochs stay restorable whatever happened to newer ones.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from penstock.core.ids import Epoch, Generation, JobId, Token
from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.protocol import codec, paths
from penstock.state.protocol.publication import CommitPermit, ReadyCheckpoint
from penstock.state.protocol.reading import (
    find_newest_claim,
    find_newest_epoch,
    is_fenced,
    read_claim,
    read_epoch_record,
    read_identity,
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
    Fenced,
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
    restore: ClaimRecord | None = None
    """The claim whose restore request is in force until `next_epoch` is published."""


@dataclass(frozen=True, slots=True)
class ReplayCommit:
    """The newest epoch's sinks may not all have committed: commit, complete, recover again."""

    permit: CommitPermit


RecoveryDecision: TypeAlias = Recovered | ReplayCommit | Fenced


@dataclass(frozen=True, slots=True)
class RecoveryFacts:
    """What a driver saw after its claim."""

    claim: ClaimRecord
    newest_epoch: Epoch | None
    """The highest acknowledged number, or None before the job's first epoch."""
    newest: EpochRecord | None
    """Its record; None also if it cannot be read and a restore makes that bearable."""
    newest_status: CheckpointStatus | None
    """None without a record, or if the checkpoint cannot be read and a restore is pending."""
    pending: ClaimRecord | None
    """The newest claim with a restore request that no published epoch has honoured."""
    start_status: CheckpointStatus | None
    """Of what the pending request asks for, or of the origin of a branch without epochs."""
    fenced: bool
    unreplayable: CheckpointRef | None = None
    """A checkpoint whose commit this driver tried to replay and cannot: it is damaged."""


def decide_recovery(facts: RecoveryFacts) -> RecoveryDecision:
    """Say how to go on from what was seen."""
    if facts.fenced:
        return Fenced(facts.claim.generation)
    pending = None if facts.pending is None else facts.pending.restore
    status = facts.newest_status
    if isinstance(status, Committing) and (
        pending is None or facts.unreplayable != status.record.ref
    ):
        permit = CommitPermit(status.record, status.manifest, facts.claim.generation)
        return ReplayCommit(permit)
    next_epoch = (
        facts.claim.first_epoch if facts.newest_epoch is None else facts.newest_epoch.next()
    )
    if pending is not None:
        base = _require_ready(pending, facts.start_status)
    elif facts.newest is not None:
        base = _require_ready(facts.newest.ref, status)
    elif facts.claim.origin is not None:
        base = _require_ready(facts.claim.origin, facts.start_status)
    else:
        return Recovered(None, next_epoch)
    return Recovered(base, next_epoch, facts.pending)


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


def plan_claim(
    job: JobId, owner: Token, *, now_micros: int, restore: CheckpointRef | None = None
) -> Steps[ClaimRecord]:
    """Return the claim that would take the job over now. Reads only."""
    newest = yield from find_newest_claim(job)
    known = None if newest is None else (yield from _read_newest_identity(job, newest))
    return ClaimRecord(
        job=job,
        generation=FIRST_GENERATION if newest is None else Generation(newest).next(),
        owner=owner,
        created_at_micros=now_micros,
        first_epoch=FIRST_EPOCH if known is None else known.first_epoch,
        origin=None if known is None else known.origin,
        restore=restore,
    )


def _read_newest_identity(job: JobId, newest: int) -> Steps[ClaimRecord | None]:
    """Read the newest claim; a damaged one is enough to know that it is there."""
    try:
        return (yield from read_claim(job, newest))
    except CorruptStateError:
        return (yield from read_identity(job))


def claim_generation(planned: ClaimRecord) -> Steps[ClaimRecord]:
    """Claim the planned generation or one after it, fencing every older driver from then on.

    Losing the number to another driver means trying the next: the later claim wins.
    """
    claim = planned
    while True:
        path = paths.claim_path(claim.job, claim.generation)
        existing = yield from create_once(path, codec.encode_claim(claim))
        if existing is None:
            return claim
        other = codec.decode_claim(existing, path)
        claim = replace(
            claim,
            generation=claim.generation.next(),
            first_epoch=other.first_epoch,
            origin=other.origin,
        )


def recover(
    claim: ClaimRecord, rules: ProtocolRules, *, unreplayable: CheckpointRef | None = None
) -> Steps[RecoveryDecision]:
    """Find where to go on after a claim. Reads only; repeat after replaying a commit."""
    newest_epoch, newest = yield from _read_newest(claim, rules)
    pending = yield from _find_pending(claim, newest)
    status = yield from _read_newest_status(newest, pending)
    start = claim.origin if newest_epoch is None else None
    if pending is not None:
        start = pending.restore
    start_status = None if start is None else (yield from _read_own_status(start))
    fenced = yield from is_fenced(claim.job, claim.generation)
    return decide_recovery(
        RecoveryFacts(
            claim=claim,
            newest_epoch=newest_epoch,
            newest=newest,
            newest_status=status,
            pending=pending,
            start_status=start_status,
            fenced=fenced,
            unreplayable=unreplayable,
        )
    )


def _read_newest(
    claim: ClaimRecord, rules: ProtocolRules
) -> Steps[tuple[Epoch | None, EpochRecord | None]]:
    """Read the newest epoch's number and record; a restore needs no more than the number."""
    try:
        newest = yield from read_newest_record(claim.job, rules, first=claim.first_epoch)
    except CorruptStateError:
        if claim.restore is None:
            raise
        number = yield from find_newest_epoch(claim.job, rules, first=claim.first_epoch)
        return number, None
    return (None if newest is None else newest.ref.epoch), newest


def _read_newest_status(
    newest: EpochRecord | None, pending: ClaimRecord | None
) -> Steps[CheckpointStatus | None]:
    if newest is None:
        return None
    try:
        return (yield from read_status(newest.ref, newest))
    except CorruptStateError:
        if pending is None:
            raise
        return None


def _find_pending(
    claim: ClaimRecord, newest: EpochRecord | None
) -> Steps[ClaimRecord | None]:
    """Return the newest claim with a restore request that no published epoch has honoured."""
    honoured = 0 if newest is None else newest.ref.generation
    if claim.restore is not None and claim.generation > honoured:
        return claim
    requests = yield from read_restore_requests(claim, honoured)
    return requests[0] if requests else None


def find_restore_request(job: JobId, honoured: Generation) -> Steps[ClaimRecord | None]:
    """Return the newest claim with a restore request above the generation of the newest epoch."""
    number = yield from find_newest_claim(job)
    claim = None if number is None else (yield from read_claim(job, number))
    if claim is None:
        return None
    requests = yield from read_restore_requests(claim, honoured)
    return requests[0] if requests else None


def read_restore_requests(claim: ClaimRecord, after: int) -> Steps[list[ClaimRecord]]:
    """Return the claims with a restore request above generation `after`, newest first."""
    requests = []
    current: ClaimRecord | None = claim
    for number in range(claim.generation, after, -1):
        if number < claim.generation:
            current = yield from read_claim(claim.job, number)
        if current is None:
            raise CorruptStateError(
                f"{claim.job} has a claim of generation {number + 1} but none before it: "
                "claims were deleted by hand. Nothing was changed; bring them back",
                code=ErrorCode.PROTOCOL_VIOLATION,
                job=claim.job,
            )
        if current.restore is not None:
            requests.append(current)
    return requests


def _read_own_status(ref: CheckpointRef) -> Steps[CheckpointStatus]:
    """Derive the status of an older checkpoint; a pin keeps its epoch record in place."""
    record = yield from read_epoch_record(ref.job, ref.epoch)
    return (yield from read_status(ref, record))
