"""Branching a job: a new job from another's epoch, copying nothing.

The branch's epochs refer to the origin's objects, and a job deletes only under its own
prefix. So the branch pins its origin first, and lets it go when nothing it keeps refers to
another job any more.
"""

from penstock.core.ids import JobId, SavepointName
from penstock.errors import ErrorCode, StateError
from penstock.state.protocol import codec, paths
from penstock.state.protocol.pinning import Actor, Epochs, pin_epoch, unpin
from penstock.state.protocol.reading import read_claim
from penstock.state.protocol.records import FIRST_GENERATION, ClaimRecord, PinKind
from penstock.state.protocol.rules import ProtocolRules
from penstock.state.protocol.steps import Steps, create_once


def branch_pin_name(branch: JobId) -> SavepointName:
    """Name the pin that a branch holds on its origin."""
    return SavepointName(f"branch-{branch}")


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
