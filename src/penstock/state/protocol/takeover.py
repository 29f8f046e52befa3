"""Starting a driver: claim the job, honour a restore, release the pins of honoured ones.

A restore pins what it starts from *before* its claim, under a name of its own, so that no
collection can give the epoch up before the first epoch built on it is published. The pin
is removed only when its claim is known to be honoured. Should the process die between pin
and claim, the pin stays and keeps the epoch; it is listed like any savepoint and can be
removed by hand, because nobody else can tell a dead requester from a slow one.

What a claim would lead to is looked at before it is made: a driver that cannot read what
is there (damaged, or written by a newer Penstock) must not fence one that can.

Taking a job over: claim a generation, find what to build on, replay an open commit.

A successor adopts the newest acknowledged epoch, whoever wrote it, and ignores manifests
without a record: it never acknowledges for others. A restore request travels in the claim
and stays in force until an epoch of that or a later generation is published, so a crash
right after `restore` cannot undo it.

A newest epoch that cannot be read stops a plain start. It does not stop a restore, which
abandons that epoch anyway: older epochs stay restorable whatever happened to newer ones.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from penstock.core.ids import Epoch, Generation, JobId, SavepointName, Token
from penstock.errors import CorruptStateError, ErrorCode, StateError
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
    CheckpointStatus,
    ClaimRecord,
    Committing,
    EpochRecord,
    Fenced,
    Invisible,
    Pin,
    PinKind,
    ProtocolRules,
    Ready,
    Superseded,
    Unacknowledged,
)
from penstock.state.protocol.restoring import require_restorable
from penstock.state.protocol.retention import (
    Actor,
    find_pin,
    pin_checkpoint,
    read_retention,
    unpin_all,
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


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A claim and where its driver goes on."""

    claim: ClaimRecord
    decision: Recovered | ReplayCommit


TakeOverOutcome: TypeAlias = TakenOver | Fenced


def restore_pin_name(requester: Token) -> SavepointName:
    """Name the pin of one restore request."""
    return SavepointName(f"restore-{requester}")


def take_over(
    job: JobId, *, actor: Actor, rules: ProtocolRules, restore: CheckpointRef | None = None
) -> Steps[TakeOverOutcome]:
    """Claim a job and find where to go on, honouring a restore asked for now or before."""
    if restore is not None:
        yield from require_restorable(job, restore)
    planned = yield from plan_claim(
        job, actor.token, now_micros=actor.now_micros, restore=restore
    )
    yield from _rehearse(planned, rules)
    if restore is not None:
        yield from _pin_restore(job, restore, actor.token, actor, rules)
    claim = yield from claim_generation(planned)
    return (yield from resume(claim, actor=actor, rules=rules))


def _rehearse(planned: ClaimRecord, rules: ProtocolRules) -> Steps[None]:
    """Recover as if the claim were made, for the errors alone.

    Whoever owns the job now may be deleting what this reads, so what is missing proves
    nothing yet. An object that is there and cannot be decoded will not get better.
    """
    if planned.generation == FIRST_GENERATION:
        return
    try:
        yield from recover(planned, rules)
    except CorruptStateError as error:
        if error.code not in {ErrorCode.OBJECT_MISSING, ErrorCode.PROTOCOL_VIOLATION}:
            raise


def resume(
    claim: ClaimRecord,
    *,
    actor: Actor,
    rules: ProtocolRules,
    unreplayable: CheckpointRef | None = None,
) -> Steps[TakeOverOutcome]:
    """Find where a claimed driver goes on; call again after replaying a commit.

    `unreplayable` names a checkpoint whose commit could not be replayed because what it
    consists of is damaged. It is passed over if a restore is in force, and only then.
    """
    decision = yield from recover(claim, rules, unreplayable=unreplayable)
    if isinstance(decision, Fenced):
        return decision
    if isinstance(decision, Recovered):
        yield from release_honoured_restores(claim, actor=actor, rules=rules)
        pinned = yield from _keep_pinned(claim, decision, actor=actor, rules=rules)
        if not pinned:
            return Fenced(claim.generation)
    return TakenOver(claim, decision)


def _keep_pinned(
    claim: ClaimRecord, decision: Recovered, *, actor: Actor, rules: ProtocolRules
) -> Steps[bool]:
    """Make sure that what a pending restore starts from is pinned; False if replaced."""
    request = decision.restore
    if request is None or request.restore is None:
        return True
    state = yield from read_retention(claim.job, rules)
    if find_pin(state, restore_pin_name(request.owner)) is not None:
        return True
    # Removed by hand, or by a successor that has honoured the request already.
    if (yield from is_fenced(claim.job, claim.generation)):
        return False
    try:
        yield from _pin_restore(claim.job, request.restore, request.owner, actor, rules)
    except StateError as error:
        error.add_note(
            f"Generation {request.generation} asked to restore it and its pin was removed; "
            "restore another epoch instead."
        )
        raise
    return True


def _pin_restore(
    job: JobId, ref: CheckpointRef, requester: Token, actor: Actor, rules: ProtocolRules
) -> Steps[None]:
    pin = Pin(restore_pin_name(requester), PinKind.RESTORE, ref, actor.now_micros)
    yield from pin_checkpoint(job, pin, actor=actor, rules=rules)


def release_honoured_restores(
    claim: ClaimRecord, *, actor: Actor, rules: ProtocolRules
) -> Steps[None]:
    """Remove the pins of restore requests that the newest epoch has honoured or overtaken.

    Called after the first epoch of a restore is published, and by whoever takes the job
    over next, should its driver have died before it could. Only the newest epoch matters:
    nobody publishes the next one before doing this. A claim or record that cannot be read
    leaves pins behind, which are listed and can be removed by hand.
    """
    try:
        names = yield from _honoured_restores(claim, rules)
    except (CorruptStateError, StateError):
        return
    if names:
        yield from unpin_all(claim.job, names, actor=actor, rules=rules)


def _honoured_restores(
    claim: ClaimRecord, rules: ProtocolRules
) -> Steps[frozenset[SavepointName]]:
    """Return the pins of all requests after the epoch before the newest, up to the newest."""
    newest = yield from read_newest_record(claim.job, rules, first=claim.first_epoch)
    if newest is None:
        return frozenset()
    previous = None
    if newest.ref.epoch > claim.first_epoch:
        previous = yield from read_epoch_record(claim.job, newest.ref.epoch - 1)
    after = 0 if previous is None else previous.ref.generation
    if newest.ref.generation <= after:
        return frozenset()
    publisher = yield from read_claim(claim.job, newest.ref.generation)
    if publisher is None:
        return frozenset()
    requests = yield from read_restore_requests(publisher, after)
    return frozenset(restore_pin_name(request.owner) for request in requests)
