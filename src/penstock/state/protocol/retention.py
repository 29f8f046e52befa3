"""Which epochs are kept: pins, and what may be collected. Decisions only; pure.

All decisions are transitions of one value, the newest `RetentionRecord`. Whoever wants a
change reads it, decides, and creates the next number; losing that race means deciding
anew. So a pin and a collection of the same epoch can never both succeed, whichever
process asks and however stale its listing is.

An epoch is kept iff it is acknowledged and its number is at least `collected_before`, or
it is pinned. Epochs abandoned by a restore keep their numbers and go with their
neighbours: a restore can be undone for as long as any other.

The retention ledger: reading its newest record and appending the next.

Pinning epochs: savepoints, restore requests and branches of a job.

Each reads the ledger *before* it looks at the epoch and appends right after the record it
read, so that what it decided from cannot have been given up in between.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from penstock.core.ids import Epoch, JobId, SavepointName, Token
from penstock.errors import ErrorCode, StateError
from penstock.state.protocol import codec, paths
from penstock.state.protocol.reading import (
    misplaced,
    read_epoch_record,
    read_identity,
    read_newest_record,
    read_status,
)
from penstock.state.protocol.records import (
    CheckpointRef,
    Committing,
    EpochRecord,
    Pin,
    PinKind,
    ProtocolRules,
    Ready,
    RetentionRecord,
)
from penstock.state.protocol.steps import (
    Steps,
    create_once,
    exists,
    find_newest,
    read,
    waypoint_after,
)

MAX_COLLECTED_AT_ONCE = 256
"""How many epochs one collection gives up: bounds its work after a long pause."""


@dataclass(frozen=True, slots=True)
class Change:
    """The next retention record says this; number, writer and time are the appender's."""

    pins: tuple[Pin, ...]
    collected_before: Epoch
    collecting: tuple[CheckpointRef, ...]


@dataclass(frozen=True, slots=True)
class Unchanged:
    """What was asked for is already so."""


@dataclass(frozen=True, slots=True)
class NameTaken:
    """The name pins another epoch, or this one for another reason."""

    pin: Pin


@dataclass(frozen=True, slots=True)
class Collected:
    """The epoch is given up: being collected, or gone."""


PinDecision: TypeAlias = Change | Unchanged | NameTaken | Collected


def is_kept(state: RetentionRecord, ref: CheckpointRef) -> bool:
    """Tell whether an acknowledged checkpoint is kept."""
    return ref.epoch >= state.collected_before or is_pinned(state, ref)


def is_pinned(state: RetentionRecord, ref: CheckpointRef) -> bool:
    """Tell whether any pin holds a checkpoint."""
    return any(pin.ref == ref for pin in state.pins)


def decide_pin(state: RetentionRecord, pin: Pin) -> PinDecision:
    """Say whether an acknowledged epoch can be pinned under a name."""
    held = find_pin(state, pin.name)
    if held is not None:
        same = (held.ref, held.kind) == (pin.ref, pin.kind)
        return Unchanged() if same else NameTaken(held)
    if not is_kept(state, pin.ref):
        return Collected()
    return Change((*state.pins, pin), state.collected_before, state.collecting)


def decide_unpin(state: RetentionRecord, name: SavepointName) -> Change | Unchanged:
    """Say what removing a pin means: an epoch only it kept is given up with it."""
    held = find_pin(state, name)
    if held is None:
        return Unchanged()
    rest = tuple(pin for pin in state.pins if pin.name != name)
    released = replace(state, pins=rest)
    collecting = state.collecting
    if not is_kept(released, held.ref) and held.ref not in collecting:
        collecting = (*collecting, held.ref)
    return Change(rest, state.collected_before, collecting)


def find_pin(state: RetentionRecord, name: SavepointName) -> Pin | None:
    """Return the pin of that name."""
    return next((pin for pin in state.pins if pin.name == name), None)


def decide_floor(
    state: RetentionRecord, canonical: Sequence[CheckpointRef], keep_epochs: int
) -> Epoch:
    """Return the lowest epoch number to keep.

    `canonical` is the chain from the newest epoch through its parents, newest first, as
    far as it was read. The floor rises to the oldest of the last `keep_epochs` of them,
    never falls, and stays while fewer are known. Parents below the floor count for
    nothing: they are pinned, or given up.
    """
    chain = [ref.epoch for ref in canonical if ref.epoch >= state.collected_before]
    if len(chain) < keep_epochs:
        return state.collected_before
    floor = chain[keep_epochs - 1]
    return Epoch(min(floor, state.collected_before + MAX_COLLECTED_AT_ONCE))


def decide_collection(
    state: RetentionRecord,
    *,
    floor: Epoch,
    below_floor: Iterable[CheckpointRef],
    deleted: frozenset[CheckpointRef],
) -> Change | Unchanged:
    """Say what a collection gives up.

    `below_floor` are the acknowledged checkpoints from the old floor up to the new one;
    `deleted` those of `state.collecting` this driver has itself deleted in full. Others
    stay listed, because whoever gave them up may have died before deleting.
    """
    going = tuple(
        ref
        for ref in below_floor
        if not is_pinned(state, ref) and ref not in state.collecting
    )
    rest = tuple(ref for ref in state.collecting if ref not in deleted)
    change = Change(state.pins, floor, (*rest, *going))
    same = (state.pins, state.collected_before, state.collecting)
    return (
        Unchanged()
        if (change.pins, change.collected_before, change.collecting) == same
        else change
    )


FIRST_SEQUENCE = 1
_NOBODY = Token("0" * 32)


def read_retention(
    job: JobId, rules: ProtocolRules, *, seen: int | None = None
) -> Steps[RetentionRecord]:
    """Read the newest retention record; sequence 0 stands for a job that has none."""
    number = yield from find_newest(
        lambda sequence: paths.retention_path(job, sequence),
        first=FIRST_SEQUENCE,
        stride=rules.waypoint_stride,
        seen=seen or None,
    )
    if number is None:
        return RetentionRecord(job, 0, _NOBODY, 0)
    path = paths.retention_path(job, number)
    data = yield from read(path)
    if data is None:
        # Others appended a whole stride of records between the search and the read.
        return (yield from read_retention(job, rules, seen=number))
    record = codec.decode_retention(data, path)
    if (record.job, record.sequence) != (job, number):
        raise misplaced(path, f"retention record {record.sequence} of {record.job}")
    return record


def next_retention(
    state: RetentionRecord, change: Change, *, writer: Token, now_micros: int
) -> RetentionRecord:
    """Return the record that would make a change decided from `state`."""
    return RetentionRecord(
        job=state.job,
        sequence=state.sequence + 1,
        writer=writer,
        created_at_micros=now_micros,
        pins=change.pins,
        collected_before=change.collected_before,
        collecting=change.collecting,
    )


def append_retention(record: RetentionRecord, rules: ProtocolRules) -> Steps[bool]:
    """Append a record; False if somebody else may have been first.

    False means: read the ledger again and decide anew, which finds a change that was made
    after all. That a number could be created proves that it is the next one only while no
    later waypoint exists: below one, a sleeper may have filled a hole left by thinning.
    """
    path = paths.retention_path(record.job, record.sequence)
    existing = yield from create_once(path, codec.encode_retention(record))
    if existing is not None:
        return False
    later = waypoint_after(
        record.sequence, first=FIRST_SEQUENCE, stride=rules.waypoint_stride
    )
    return not (yield from exists(paths.retention_path(record.job, later)))


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
