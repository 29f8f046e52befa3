"""Taking a job over: claim a generation, find what to build on, replay an open commit.

A successor adopts the newest acknowledged epoch, whoever wrote it, and ignores manifests
without a record: it never acknowledges for others. A restore request travels in the claim
and stays in force until an epoch of that or a later generation is published, so a crash
right after `restore` cannot undo it.
"""

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from penstock.core.ids import Epoch, JobId, Token
from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.protocol import codec, paths
from penstock.state.protocol.publication import CommitPermit, ReadyCheckpoint
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
    newest: EpochRecord | None
    newest_status: CheckpointStatus | None
    """None without a newest record."""
    pending: ClaimRecord | None
    """The newest claim with a restore request that no published epoch has honoured."""
    start_status: CheckpointStatus | None
    """Of what the pending request asks for, or of the origin of a branch without epochs."""
    fenced: bool


def decide_recovery(facts: RecoveryFacts) -> RecoveryDecision:
    """Say how to go on from what was seen."""
    if facts.fenced:
        return Fenced(facts.claim.generation)
    pending = None if facts.pending is None else facts.pending.restore
    start = pending or facts.claim.origin
    if facts.newest is None or facts.newest_status is None:
        base = None if start is None else _require_ready(start, facts.start_status)
        return Recovered(base, facts.claim.first_epoch, facts.pending)
    if isinstance(facts.newest_status, Committing):
        permit = CommitPermit(
            facts.newest, facts.newest_status.manifest, facts.claim.generation
        )
        return ReplayCommit(permit)
    if pending is not None:
        base = _require_ready(pending, facts.start_status)
    else:
        base = _require_ready(facts.newest.ref, facts.newest_status)
    return Recovered(base, facts.newest.ref.epoch.next(), facts.pending)


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
    pending = yield from _find_pending(claim, newest)
    start = claim.origin if newest is None else None
    if pending is not None:
        start = pending.restore
    start_status = None if start is None else (yield from _read_own_status(start))
    fenced = yield from is_fenced(claim.job, claim.generation)
    return decide_recovery(
        RecoveryFacts(claim, newest, status, pending, start_status, fenced)
    )


def _find_pending(
    claim: ClaimRecord, newest: EpochRecord | None
) -> Steps[ClaimRecord | None]:
    """Return the newest claim with a restore request that no published epoch has honoured."""
    honoured = 0 if newest is None else newest.ref.generation
    requests = yield from read_restore_requests(claim, honoured)
    return requests[0] if requests else None


def read_restore_requests(claim: ClaimRecord, after: int) -> Steps[list[ClaimRecord]]:
    """Return the claims with a restore request above generation `after`, newest first."""
    requests = []
    current = claim
    while current.generation > after:
        if current.restore is not None:
            requests.append(current)
        if current.generation == FIRST_GENERATION:
            break
        earlier = yield from read_claim(claim.job, current.generation - 1)
        if earlier is None:
            raise CorruptStateError(
                f"{claim.job} has a claim of generation {current.generation} but none before "
                "it: claims were deleted by hand. Nothing was changed; bring them back",
                code=ErrorCode.PROTOCOL_VIOLATION,
                job=claim.job,
            )
        current = earlier
    return requests


def _read_own_status(ref: CheckpointRef) -> Steps[CheckpointStatus]:
    """Derive the status of an older checkpoint; a pin keeps its epoch record in place."""
    record = yield from read_epoch_record(ref.job, ref.epoch)
    return (yield from read_status(ref, record))
