"""Starting a driver: claim the job, honour a restore, release the pins of honoured ones.

A restore pins what it starts from *before* its claim, under a name of its own, so that no
collection can give the epoch up before the first epoch built on it is published. The pin
is removed only when its claim is known to be honoured. Should the process die between pin
and claim, the pin stays and keeps the epoch; it is listed like any savepoint and can be
removed by hand, because nobody else can tell a dead requester from a slow one.

What a claim would lead to is looked at before it is made: a driver that cannot read what
is there (damaged, or written by a newer Penstock) must not fence one that can.
"""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.ids import JobId, SavepointName, Token
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.protocol.ledger import read_retention
from penstock.state.protocol.pinning import Actor, pin_checkpoint, unpin_all
from penstock.state.protocol.reading import (
    is_fenced,
    read_claim,
    read_epoch_record,
    read_newest_record,
)
from penstock.state.protocol.records import (
    FIRST_GENERATION,
    CheckpointRef,
    ClaimRecord,
    Pin,
    PinKind,
)
from penstock.state.protocol.recovery import (
    Recovered,
    ReplayCommit,
    claim_generation,
    plan_claim,
    read_restore_requests,
    recover,
)
from penstock.state.protocol.restoring import require_restorable
from penstock.state.protocol.retention import find_pin
from penstock.state.protocol.rules import ProtocolRules
from penstock.state.protocol.status import Fenced
from penstock.state.protocol.steps import Steps


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
