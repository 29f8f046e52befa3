"""Taking a job over: claim a generation, find what to build on, replay an open commit.

Pure. A successor adopts the newest acknowledged epoch, whichever driver wrote it, and ignores
manifests without a record: it never acknowledges another driver's checkpoint. Recovery is
tried before the claim is made: a driver that cannot read the checkpoint (damaged, or written
by a newer Penstock) must not fence a driver that can.

A restore pins what it starts from *before* its claim, under a name of its own, so that no
collection can give the epoch up before the first epoch built on it is published. The pin is
removed only when its claim is certainly honoured. If the process dies between pin and claim,
the pin stays and keeps the epoch. It is listed like any savepoint and can be removed by hand;
it is not removed automatically, because a dead process looks the same as a slow one. The
request is part of the claim and stays in force until an epoch of that or a later generation
is published, so a crash right after `restore` cannot undo it.

A newest epoch that cannot be read stops a plain start. It does not stop a restore, which
abandons that epoch anyway: older epochs stay restorable even if newer ones are damaged.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from penstock.core.ids import Epoch, Generation, JobId, SavepointName, Token
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.protocol import paths, reading
from penstock.state.protocol.publication import CommitPermit, ReadyCheckpoint
from penstock.state.protocol.records import (
    FIRST_EPOCH,
    FIRST_GENERATION,
    Actor,
    CheckpointRef,
    CheckpointStatus,
    ClaimRecord,
    Committing,
    EpochRecord,
    Fenced,
    Invisible,
    PinKind,
    Ready,
    Superseded,
    Unacknowledged,
)
from penstock.state.protocol.restoring import require_restorable
from penstock.state.protocol.retention import find_pin, pin_epoch, read_retention, unpin
from penstock.state.protocol.steps import Steps, create_once, exists


@dataclass(frozen=True, slots=True)
class Recovered:
    """Where to go on: run `next_epoch` on top of `base`; None starts with empty state."""

    base: ReadyCheckpoint | None
    next_epoch: Epoch
    restore: ClaimRecord | None = None
    """The claim whose restore request is in force until `next_epoch` is published."""


RecoveryDecision: TypeAlias = Recovered | CommitPermit | Fenced
"""A permit means that not all sinks of the newest epoch may have committed: commit them again,
call `complete_commit`, and recover again."""


@dataclass(frozen=True, slots=True)
class RecoveryFacts:
    """What a driver has read after its claim."""

    claim: ClaimRecord
    newest_epoch: Epoch | None
    """The highest acknowledged number, or None before the job's first epoch."""
    newest: EpochRecord | None
    """The record of that epoch; None also if it cannot be read and a restore is pending."""
    newest_status: CheckpointStatus | None
    """None without a record, or if the checkpoint cannot be read and a restore is pending."""
    pending: ClaimRecord | None
    """The newest claim with a restore request that no published epoch has honoured."""
    start_status: CheckpointStatus | None
    """The status of the checkpoint to restore, or of the origin of a branch without epochs."""
    fenced: bool
    unreplayable: CheckpointRef | None = None
    """A checkpoint whose commit this driver could not replay, because it is damaged."""


def decide_recovery(facts: RecoveryFacts) -> RecoveryDecision:
    """Decide how to go on from what was read."""
    if facts.fenced:
        return Fenced(facts.claim.generation)
    pending = None if facts.pending is None else facts.pending.restore
    status = facts.newest_status
    if isinstance(status, Committing) and (
        pending is None or facts.unreplayable != status.record.ref
    ):
        return CommitPermit(status.record, status.manifest, facts.claim.generation)
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
    actor: Actor, *, restore: CheckpointRef | None = None, is_by_hand: bool = False
) -> Steps[ClaimRecord]:
    """Return the claim that would take the job over. This only reads."""
    newest = yield from reading.find_newest_claim(actor.job)
    known = None
    if newest is not None:
        try:
            known = yield from reading.read_claim(actor.job, newest)
        except CorruptStateError:
            # The number of a damaged claim still counts; another claim has the shared fields.
            known = yield from reading.read_identity(actor.job)
    claim = ClaimRecord(
        job=actor.job,
        generation=FIRST_GENERATION if newest is None else Generation(newest).next(),
        owner=actor.token,
        created_at_micros=actor.now_micros,
        first_epoch=FIRST_EPOCH,
        restore=restore,
        restored=None if is_by_hand else restore,
    )
    return claim if known is None else _following(claim, known, is_by_hand=is_by_hand)


def claim_generation(
    actor: Actor, claim: ClaimRecord, *, is_by_hand: bool = False
) -> Steps[ClaimRecord]:
    """Claim the planned generation or a later one; from then on every older driver is fenced.

    If another driver has taken the number, the next one is tried: the later claim wins.
    """
    while True:
        other = yield from reading.create_record(claim)
        if other is None:
            return claim
        later = replace(claim, generation=claim.generation.next())
        later = _following(later, other, is_by_hand=is_by_hand)
        if later.restore != claim.restore:
            yield from unpin(actor, [restore_pin_name(claim.owner)])
        claim = later


def _following(claim: ClaimRecord, before: ClaimRecord, *, is_by_hand: bool) -> ClaimRecord:
    """Return a claim with all that it takes from the one before it.

    Programs go back to an epoch once: if another start was the first to ask for the same, this
    one goes on from there.
    """
    last, restore = before.last_restore, claim.restore
    if restore == last and not is_by_hand:
        restore = None
    return replace(
        claim,
        first_epoch=before.first_epoch,
        origin=before.origin,
        restore=restore,
        restored=last if restore is None or is_by_hand else restore,
    )


def leave(claim: ClaimRecord) -> Steps[None]:
    """Note that the driver of a claim has ended, so that its successor is not warned of it."""
    path = paths.left_path(claim.job, claim.generation)
    yield from create_once(path, claim.owner.encode())


def find_running(job: JobId) -> Steps[ClaimRecord | None]:
    """Return the newest claim if its driver has not said that it ended. A hint, never a proof.

    It may have died; only a claim that fences it makes that certain. The first claim of a
    branch belongs to no driver.
    """
    claim = yield from reading.read_newest_claim(job)
    if claim is None or (claim.generation == FIRST_GENERATION and claim.origin is not None):
        return None
    has_left = yield from exists(paths.left_path(job, claim.generation))
    return None if has_left else claim


def recover(
    actor: Actor, claim: ClaimRecord, *, unreplayable: CheckpointRef | None = None
) -> Steps[RecoveryDecision]:
    """Find where to go on after a claim. This only reads; repeat it after replaying a commit."""
    newest_epoch, newest = yield from _read_newest(actor, claim)
    honoured = 0 if newest is None else newest.ref.generation
    pending = yield from _find_pending(claim, honoured)
    status = None
    if newest is not None:
        try:
            status = yield from reading.read_status(newest.ref, newest)
        except CorruptStateError:
            if pending is None:
                raise
    start = claim.origin if newest_epoch is None else None
    if pending is not None:
        start = pending.restore
    start_status = None
    if start is not None:
        # The start is pinned, so its epoch record still exists.
        record = yield from reading.read_epoch_record(start.job, start.epoch)
        start_status = yield from reading.read_status(start, record)
    fenced = yield from reading.is_fenced(claim)
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


def find_base(
    actor: Actor, *, restore: CheckpointRef | None = None
) -> Steps[CheckpointRef | None]:
    """Return the checkpoint that a start would go on from; None if it starts empty.

    That is what this restore or one that is in force asks for, else the newest epoch, else
    the origin of a branch. This only reads, and `recover` decides anew after the claim.
    """
    planned = yield from plan_claim(actor, restore=restore)
    _, newest = yield from _read_newest(actor, planned)
    honoured = 0 if newest is None else newest.ref.generation
    pending = yield from _find_pending(planned, honoured)
    if pending is not None:
        return pending.restore
    return planned.origin if newest is None else newest.ref


def _read_newest(
    actor: Actor, claim: ClaimRecord
) -> Steps[tuple[Epoch | None, EpochRecord | None]]:
    """Read the newest epoch's number and record; for a restore the number is enough."""
    try:
        newest = yield from reading.read_newest_record(actor, first=claim.first_epoch)
    except CorruptStateError:
        epoch = yield from reading.find_newest_epoch(actor, first=claim.first_epoch)
        if epoch is None or not (yield from _is_abandoned(claim, epoch)):
            raise
        return epoch, None
    return (None if newest is None else newest.ref.epoch), newest


def _is_abandoned(claim: ClaimRecord, epoch: Epoch) -> Steps[bool]:
    """Tell whether a restore is in force that abandons an epoch whose record cannot be read.

    It is if no driver since the request has written a manifest of that epoch.
    """
    if claim.restore is not None:
        return True
    requests = yield from read_restore_requests(claim, 0)
    if not requests:
        return False
    for generation in range(requests[0].generation, claim.generation + 1):
        ref = CheckpointRef(claim.job, Generation(generation), epoch)
        if (yield from exists(paths.manifest_path(ref))):
            return False
    return True


def _find_pending(claim: ClaimRecord, honoured: int) -> Steps[ClaimRecord | None]:
    """Return the newest claim with a restore request that no published epoch has honoured."""
    if claim.restore is not None and claim.generation > honoured:
        return claim
    requests = yield from read_restore_requests(claim, honoured)
    return requests[0] if requests else None


def read_restore_requests(claim: ClaimRecord, after: int) -> Steps[list[ClaimRecord]]:
    """Return the claims with a restore request above generation `after`, newest first."""
    requests = []
    current: ClaimRecord | None = claim
    for number in range(claim.generation, after, -1):
        if number < claim.generation:
            current = yield from reading.read_claim(claim.job, number)
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


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A claim and where its driver goes on."""

    claim: ClaimRecord
    decision: Recovered | CommitPermit


TakeOverOutcome: TypeAlias = TakenOver | Fenced


def restore_pin_name(requester: Token) -> SavepointName:
    """Name the pin of one restore request."""
    return SavepointName(f"restore-{requester}")


def take_over(
    actor: Actor, *, restore: CheckpointRef | None = None, is_by_hand: bool = False
) -> Steps[TakeOverOutcome]:
    """Claim a job and find where to go on, honouring this restore or an earlier request.

    A restore by hand does not count as one that a program has asked for.
    """
    if restore is not None:
        yield from require_restorable(actor.job, restore)
    planned = yield from plan_claim(actor, restore=restore, is_by_hand=is_by_hand)
    if planned.generation > FIRST_GENERATION:
        yield from _rehearse(actor, planned)
    if planned.restore is not None:
        pin = restore_pin_name(actor.token)
        yield from pin_epoch(actor, pin, PinKind.RESTORE, planned.restore)
    claim = yield from claim_generation(actor, planned, is_by_hand=is_by_hand)
    return (yield from resume(actor, claim))


def _rehearse(actor: Actor, planned: ClaimRecord) -> Steps[None]:
    """Recover as if the claim were made, only to raise its errors.

    The driver that owns the job may be deleting what this reads, so a missing object is no
    error here. An object that exists and cannot be decoded is one.
    """
    try:
        yield from recover(actor, planned)
    except CorruptStateError as error:
        if error.code not in {ErrorCode.OBJECT_MISSING, ErrorCode.PROTOCOL_VIOLATION}:
            raise


def resume(
    actor: Actor, claim: ClaimRecord, *, unreplayable: CheckpointRef | None = None
) -> Steps[TakeOverOutcome]:
    """Find where a claimed driver goes on; call again after replaying a commit.

    `unreplayable` names a checkpoint whose commit could not be replayed because its objects
    are damaged. It is skipped only if a restore is in force.
    """
    decision = yield from recover(actor, claim, unreplayable=unreplayable)
    if isinstance(decision, Fenced):
        return decision
    if isinstance(decision, Recovered):
        yield from release_honoured_restores(actor, claim)
        request = decision.restore
        if request is not None and not (yield from _keep_pinned(actor, claim, request)):
            return Fenced(claim.generation)
    return TakenOver(claim, decision)


def _keep_pinned(actor: Actor, claim: ClaimRecord, request: ClaimRecord) -> Steps[bool]:
    """Make sure that the start of a pending restore is pinned; False if this driver is fenced."""
    name = restore_pin_name(request.owner)
    state = yield from read_retention(actor)
    if request.restore is None or find_pin(state, name) is not None:
        return True
    # The pin was removed by hand, or by a successor that has honoured the request already.
    if (yield from reading.is_fenced(claim)):
        return False
    try:
        yield from pin_epoch(actor, name, PinKind.RESTORE, request.restore)
    except StateError as error:
        error.add_note(
            f"Generation {request.generation} asked to restore it and its pin was removed; "
            "restore another epoch instead."
        )
        raise
    return True


def release_honoured_restores(actor: Actor, claim: ClaimRecord) -> Steps[None]:
    """Remove the pins of restore requests that the newest epoch has honoured or overtaken.

    A driver calls this after the first epoch of a restore is published, and after it takes a
    job over, in case its predecessor died before. Only the newest epoch matters: no driver
    publishes the next one before this call. If a claim or record cannot be read, pins are
    left behind; they are listed and can be removed by hand.
    """
    try:
        requests = yield from _read_honoured(actor, claim)
    except (CorruptStateError, StateError):
        return
    if requests:
        yield from unpin(actor, [restore_pin_name(request.owner) for request in requests])


def _read_honoured(actor: Actor, claim: ClaimRecord) -> Steps[list[ClaimRecord]]:
    """Return the requests of generations after the last but one epoch's, up to the newest's."""
    newest = yield from reading.read_newest_record(actor, first=claim.first_epoch)
    if newest is None:
        return []
    previous = None
    if newest.ref.epoch > claim.first_epoch:
        previous = yield from reading.read_epoch_record(claim.job, newest.ref.epoch - 1)
    after = 0 if previous is None else previous.ref.generation
    if newest.ref.generation <= after:
        return []
    publisher = yield from reading.read_claim(claim.job, newest.ref.generation)
    if publisher is None:
        return []
    return (yield from read_restore_requests(publisher, after))
