"""Starting a driver, restoring a chosen epoch, branching a job: claims with their pins.

A restore pins what it starts from *before* its claim, under a name of its own, so that no
collection can give the epoch up before the first epoch built on it is published. The pin
is removed only when its claim is known to be honoured. Should the process die between pin
and claim, the pin stays and keeps the epoch; it is listed like any savepoint and can be
removed by hand, because nobody else can tell a dead requester from a slow one.
"""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.ids import JobId, SavepointName, Token
from penstock.errors import ErrorCode, StateError
from penstock.state.protocol import codec, paths
from penstock.state.protocol.ledger import read_retention
from penstock.state.protocol.pinning import (
    Actor,
    Epochs,
    find_kept_epoch,
    pin_checkpoint,
    pin_epoch,
    unpin,
    unpin_all,
)
from penstock.state.protocol.reading import (
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
    read_restore_requests,
    recover,
)
from penstock.state.protocol.rules import ProtocolRules
from penstock.state.protocol.status import Fenced
from penstock.state.protocol.steps import Steps, create_once


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A claim and where its driver goes on."""

    claim: ClaimRecord
    decision: Recovered | ReplayCommit


TakeOverOutcome: TypeAlias = TakenOver | Fenced


def restore_pin_name(requester: Token) -> SavepointName:
    """Name the pin of one restore request."""
    return SavepointName(f"restore-{requester}")


def branch_pin_name(branch: JobId) -> SavepointName:
    """Name the pin that a branch holds on its origin."""
    return SavepointName(f"branch-{branch}")


def take_over(
    job: JobId, *, actor: Actor, rules: ProtocolRules, restore: CheckpointRef | None = None
) -> Steps[TakeOverOutcome]:
    """Claim a job and find where to go on, honouring a restore asked for now or before."""
    if restore is not None:
        yield from _pin_restore(job, restore, actor.token, actor, rules)
    claim = yield from claim_generation(
        job, actor.token, now_micros=actor.now_micros, restore=restore
    )
    return (yield from resume(claim, actor=actor, rules=rules))


def resume(
    claim: ClaimRecord, *, actor: Actor, rules: ProtocolRules
) -> Steps[TakeOverOutcome]:
    """Find where a claimed driver goes on; call again after replaying a commit."""
    decision = yield from recover(claim, rules)
    if isinstance(decision, Fenced):
        return decision
    if isinstance(decision, Recovered):
        request = decision.restore
        if request is None:
            yield from release_honoured_restores(claim, actor=actor, rules=rules)
        elif request.restore is not None:
            # Only a pin removed by hand makes this more than a look.
            yield from _pin_restore(claim.job, request.restore, request.owner, actor, rules)
    return TakenOver(claim, decision)


def _pin_restore(
    job: JobId, ref: CheckpointRef, requester: Token, actor: Actor, rules: ProtocolRules
) -> Steps[None]:
    pin = Pin(restore_pin_name(requester), PinKind.RESTORE, ref, actor.now_micros)
    yield from pin_checkpoint(job, pin, actor=actor, rules=rules)


def release_honoured_restores(
    claim: ClaimRecord, *, actor: Actor, rules: ProtocolRules
) -> Steps[None]:
    """Remove the pins of restore requests that the newest epoch has honoured or overtaken.

    Called after the first epoch of a restore is published, and by the successor of a
    driver that died before it could. Only that newest epoch matters: the next one is not
    published before this is done.
    """
    newest = yield from read_newest_record(claim.job, rules, first=claim.first_epoch)
    if newest is None:
        return
    previous = None
    if newest.ref.epoch > claim.first_epoch:
        previous = yield from read_epoch_record(claim.job, newest.ref.epoch - 1)
    if previous is not None and previous.ref == newest.parent:
        return
    publisher = yield from read_claim(claim.job, newest.ref.generation)
    if publisher is None:
        return
    after = 0 if previous is None else previous.ref.generation
    requests = yield from read_restore_requests(publisher, after)
    if requests:
        names = frozenset(restore_pin_name(request.owner) for request in requests)
        yield from unpin_all(claim.job, names, actor=actor, rules=rules)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What restoring an epoch means, before it is done."""

    ref: CheckpointRef
    abandoned: tuple[CheckpointRef, ...]
    """Newer epochs the job will no longer build on, newest first. Output they committed stays."""


def plan_restore(job: JobId, which: Epochs, rules: ProtocolRules) -> Steps[RestorePlan]:
    """Find the checkpoint a user means and what restoring it abandons. Reads only."""
    state = yield from read_retention(job, rules)
    ref = yield from find_kept_epoch(state, which, rules)
    claim = yield from read_claim(job, FIRST_GENERATION)
    if claim is None:
        raise StateError(
            f"there is no job {job!r} here; check the job id and the checkpoint URL",
            code=ErrorCode.NOT_RESTORABLE,
            job=job,
        )
    record = yield from read_newest_record(job, rules, first=claim.first_epoch)
    abandoned = []
    while record is not None and record.ref.epoch > ref.epoch:
        abandoned.append(record.ref)
        parent = record.parent
        if parent is None or parent.job != job:
            break
        record = yield from read_epoch_record(job, parent.epoch)
    return RestorePlan(ref, tuple(abandoned))


def branch_job(
    origin: JobId, branch: JobId, *, which: Epochs, actor: Actor, rules: ProtocolRules
) -> Steps[ClaimRecord]:
    """Create a job that starts from another job's epoch, copying nothing.

    The pin on the origin comes first: from its claim on the branch depends on it.
    """
    yield from _require_absent(branch)
    name = branch_pin_name(branch)
    pin = yield from pin_epoch(
        origin,
        name,
        which=which,
        kind=PinKind.BRANCH,
        actor=actor,
        rules=rules,
        holder=branch,
    )
    claim = ClaimRecord(
        job=branch,
        generation=FIRST_GENERATION,
        owner=actor.token,
        created_at_micros=actor.now_micros,
        first_epoch=pin.ref.epoch.next(),
        origin=pin.ref,
    )
    path = paths.claim_path(branch, FIRST_GENERATION)
    existing = yield from create_once(path, codec.encode_claim(claim))
    if existing is None:
        return claim
    if codec.decode_claim(existing, path).origin != pin.ref:
        yield from unpin(origin, name, actor=actor, rules=rules)
    raise _exists(branch)


def _require_absent(job: JobId) -> Steps[None]:
    if (yield from read_claim(job, FIRST_GENERATION)) is not None:
        raise _exists(job)


def _exists(job: JobId) -> StateError:
    return StateError(
        f"job {job!r} already exists; choose another id for the branch",
        code=ErrorCode.JOB_EXISTS,
        job=job,
    )


def release_origin(
    claim: ClaimRecord, *, actor: Actor, rules: ProtocolRules
) -> Steps[bool]:
    """Let the origin of a branch go, once no kept epoch refers to its objects."""
    if claim.origin is None:
        return False
    return (
        yield from unpin(
            claim.origin.job, branch_pin_name(claim.job), actor=actor, rules=rules
        )
    )
