"""Pinning epochs: savepoints, restore requests and branches of a job.

Each reads the ledger *before* it looks at the epoch and appends right after the record it
read, so that what it decided from cannot have been given up in between.
"""

from dataclasses import dataclass, replace
from typing import assert_never

from penstock.core.ids import Epoch, JobId, SavepointName, Token
from penstock.errors import ErrorCode, StateError
from penstock.state.protocol.ledger import append_retention, next_retention, read_retention
from penstock.state.protocol.reading import (
    read_epoch_record,
    read_identity,
    read_newest_record,
    read_status,
)
from penstock.state.protocol.records import (
    CheckpointRef,
    EpochRecord,
    Pin,
    PinKind,
    RetentionRecord,
)
from penstock.state.protocol.retention import (
    Change,
    Collected,
    NameTaken,
    Unchanged,
    decide_pin,
    decide_unpin,
    find_pin,
    is_kept,
)
from penstock.state.protocol.rules import ProtocolRules
from penstock.state.protocol.status import Committing, Ready
from penstock.state.protocol.steps import Steps


@dataclass(frozen=True, slots=True)
class Actor:
    """Who changes the ledger, and when: what makes its records provably its own."""

    token: Token
    now_micros: int


@dataclass(frozen=True, slots=True)
class Epochs:
    """An epoch as a user names it: a number, a savepoint, or None for the newest."""

    number: Epoch | None = None
    savepoint: SavepointName | None = None


def pin_epoch(
    job: JobId,
    name: SavepointName,
    *,
    which: Epochs,
    kind: PinKind,
    actor: Actor,
    rules: ProtocolRules,
    holder: JobId | None = None,
) -> Steps[Pin]:
    """Pin an acknowledged, committed, kept epoch under a name; pinning it again is fine."""
    while True:
        state = yield from read_retention(job, rules)
        ref = yield from find_kept_epoch(state, which, rules)
        pin = Pin(name, kind, ref, actor.now_micros, holder)
        if (yield from _append_pin(state, pin, actor, rules)):
            return pin


def pin_checkpoint(
    job: JobId, pin: Pin, *, actor: Actor, rules: ProtocolRules
) -> Steps[None]:
    """Pin a checkpoint known to be acknowledged; it must still be kept."""
    while True:
        state = yield from read_retention(job, rules)
        if (yield from _append_pin(state, pin, actor, rules)):
            return


def _append_pin(
    state: RetentionRecord, pin: Pin, actor: Actor, rules: ProtocolRules
) -> Steps[bool]:
    """Try to add a pin; False if the ledger changed meanwhile."""
    decision = decide_pin(state, pin)
    match decision:
        case Unchanged():
            return True
        case Collected():
            raise _not_kept(state.job, str(pin.ref.epoch), state)
        case NameTaken(taken):
            raise StateError(
                f"{state.job} already has a savepoint {pin.name!r}, of epoch "
                f"{taken.ref.epoch}; choose another name or remove it first",
                code=ErrorCode.NOT_RESTORABLE,
                job=state.job,
                name=pin.name,
            )
        case Change():
            record = next_retention(
                state, decision, writer=actor.token, now_micros=actor.now_micros
            )
            return (yield from append_retention(record, rules))
        case _:
            assert_never(decision)


def unpin(
    job: JobId, name: SavepointName, *, actor: Actor, rules: ProtocolRules
) -> Steps[bool]:
    """Remove a pin; tell whether there was one. What only it kept goes with the next collection."""
    state = yield from read_retention(job, rules)
    found = find_pin(state, name) is not None
    yield from unpin_all(job, frozenset({name}), actor=actor, rules=rules)
    return found


def find_kept_epoch(
    state: RetentionRecord, which: Epochs, rules: ProtocolRules
) -> Steps[CheckpointRef]:
    """Return the checkpoint a user means, if it can be restored: kept, acknowledged, committed."""
    if which.savepoint is not None:
        named = [pin.ref for pin in state.pins if pin.name == which.savepoint]
        if not named:
            names = ", ".join(sorted(pin.name for pin in state.pins)) or "none"
            raise StateError(
                f"{state.job} has no savepoint {which.savepoint!r}; it has: {names}",
                code=ErrorCode.NOT_RESTORABLE,
                job=state.job,
            )
        return named[0]
    record = yield from _find_record(state, which.number, rules)
    if not is_kept(state, record.ref):
        raise _not_kept(state.job, str(record.ref.epoch), state)
    yield from require_ready(record.ref, record)
    return record.ref


def require_ready(ref: CheckpointRef, record: EpochRecord | None) -> Steps[None]:
    """Refuse a checkpoint that nothing may build on."""
    status = yield from read_status(ref, record)
    if isinstance(status, Ready):
        return
    committing = isinstance(status, Committing)
    hint = "start the job once so that it commits it" if committing else "choose another"
    raise StateError(
        f"epoch {ref.epoch} of {ref.job} is {type(status).__name__.lower()}: {hint}",
        code=ErrorCode.NOT_RESTORABLE,
        job=ref.job,
        epoch=ref.epoch,
    )


def _find_record(
    state: RetentionRecord, number: Epoch | None, rules: ProtocolRules
) -> Steps[EpochRecord]:
    if number is not None:
        record = yield from read_epoch_record(state.job, number)
    else:
        claim = yield from read_identity(state.job)
        if claim is None:
            raise StateError(
                f"there is no job {state.job!r} here; check the job id and the checkpoint URL",
                code=ErrorCode.NOT_RESTORABLE,
                job=state.job,
            )
        record = yield from read_newest_record(state.job, rules, first=claim.first_epoch)
    if record is None:
        raise _not_kept(state.job, "?" if number is None else str(number), state)
    return record


def _not_kept(job: JobId, epoch: str, state: RetentionRecord) -> StateError:
    pins = ", ".join(f"{pin.name} (epoch {pin.ref.epoch})" for pin in state.pins) or "none"
    return StateError(
        f"epoch {epoch} of {job} does not exist or is no longer kept: epochs from "
        f"{state.collected_before} on are, and these savepoints: {pins}",
        code=ErrorCode.NOT_RESTORABLE,
        job=job,
        epoch=epoch,
    )


def unpin_all(
    job: JobId, names: frozenset[SavepointName], *, actor: Actor, rules: ProtocolRules
) -> Steps[None]:
    """Remove several pins at once; those already gone are fine."""
    while True:
        state = yield from read_retention(job, rules)
        changed = state
        for name in sorted(names):
            step = decide_unpin(changed, name)
            if isinstance(step, Change):
                changed = replace(changed, pins=step.pins, collecting=step.collecting)
        if changed == state:
            return
        change = Change(changed.pins, changed.collected_before, changed.collecting)
        record = next_retention(
            state, change, writer=actor.token, now_micros=actor.now_micros
        )
        if (yield from append_retention(record, rules)):
            return
