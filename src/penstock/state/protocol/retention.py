"""Which epochs are kept: pins, what may be collected, and the ledger that orders both.

Pure. All decisions are transitions of one value, the newest `RetentionRecord`; the sequence
of these records is the ledger. A change is made by reading the newest record, deciding, and
creating the next number. A writer that loses this race decides again. So a pin and a
collection of the same epoch can never both succeed, in whichever processes they run and
however stale a listing is.

An epoch is kept iff it is acknowledged and its number is at least `collected_before`, or it
is pinned. Epochs abandoned by a restore keep their numbers and are given up with their
neighbours: a restore can be undone as long as any other epoch of that age can be restored.

Savepoints, restore requests and branches are pins. Pinning reads the ledger *before* the
epoch and appends right after the record it read, so that the epoch cannot be given up in
between.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.core.ids import Epoch, JobId, SavepointName, Token
from penstock.errors import ErrorCode, StateError
from penstock.state.protocol import codec, paths, reading
from penstock.state.protocol.records import (
    Actor,
    CheckpointRef,
    Committing,
    EpochRecord,
    Pin,
    PinKind,
    Ready,
    RetentionRecord,
)
from penstock.state.protocol.steps import (
    Steps,
    create_once,
    exists,
    find_newest,
    waypoint_after,
)

MAX_COLLECTED_AT_ONCE = 256
"""The most epochs that one collection gives up: this bounds its work after a long pause."""


def is_kept(state: RetentionRecord, ref: CheckpointRef) -> bool:
    """Tell whether an acknowledged checkpoint is kept."""
    return ref.epoch >= state.collected_before or is_pinned(state, ref)


def is_pinned(state: RetentionRecord, ref: CheckpointRef) -> bool:
    """Tell whether any pin holds a checkpoint."""
    return any(pin.ref == ref for pin in state.pins)


def decide_pin(state: RetentionRecord, pin: Pin) -> RetentionRecord:
    """Return the state with an acknowledged epoch pinned.

    It is an error if the name belongs to a pin of another epoch or kind, or if the epoch is
    given up.
    """
    held = find_pin(state, pin.name)
    if held is not None:
        if (held.ref, held.kind) == (pin.ref, pin.kind):
            return state
        raise StateError(
            f"{state.job} already has a savepoint {pin.name!r}, of epoch {held.ref.epoch}; "
            "choose another name or remove it first",
            code=ErrorCode.NOT_RESTORABLE,
            job=state.job,
            name=pin.name,
        )
    if not is_kept(state, pin.ref):
        raise _not_kept(state, str(pin.ref.epoch))
    return replace(state, pins=(*state.pins, pin))


def decide_unpin(state: RetentionRecord, name: SavepointName) -> RetentionRecord:
    """Return the state without a pin; an epoch that only this pin kept is given up."""
    held = find_pin(state, name)
    if held is None:
        return state
    released = replace(state, pins=tuple(pin for pin in state.pins if pin.name != name))
    if is_kept(released, held.ref) or held.ref in state.collecting:
        return released
    return replace(released, collecting=(*state.collecting, held.ref))


def find_pin(state: RetentionRecord, name: SavepointName) -> Pin | None:
    """Return the pin of that name."""
    return next((pin for pin in state.pins if pin.name == name), None)


@dataclass(frozen=True, slots=True)
class Ancestor:
    """An epoch of the chain from the newest one through its parents."""

    ref: CheckpointRef
    parent: CheckpointRef | None
    created_at_micros: int


@dataclass(frozen=True, slots=True)
class KeepRule:
    """What a driver wants to keep besides pins."""

    epochs: int
    """How many of the newest epochs; at least 1, and one more while a commit is open."""
    since_micros: int | None = None
    """The instant back to which one can go, by the clocks of drivers; None for no instant.

    However wrong a clock is, the last `epochs` are kept.
    """

    def is_met(self, count: int, oldest: Ancestor) -> bool:
        """Return whether the newest `count` epochs, down to the `oldest`, are enough.

        To go back to an instant, one needs the epoch that was the newest one then.
        """
        since = self.since_micros
        is_early = since is None or oldest.created_at_micros <= since
        return count >= self.epochs and is_early


def decide_floor(
    state: RetentionRecord, canonical: Sequence[Ancestor], keep: KeepRule
) -> Epoch:
    """Return the lowest epoch number to keep.

    `canonical` is the chain from the newest epoch through its parents, newest first, as far
    as it was read. The floor rises to the first of them with which the rule is met, never
    falls, and stays while none is known. Parents below the floor do not count: they are
    pinned, or given up.
    """
    chain = [each for each in canonical if each.ref.epoch >= state.collected_before]
    for count, oldest in enumerate(chain, start=1):
        if keep.is_met(count, oldest):
            highest = state.collected_before + MAX_COLLECTED_AT_ONCE
            return Epoch(min(oldest.ref.epoch, highest))
    return state.collected_before


def decide_collection(
    state: RetentionRecord,
    *,
    floor: Epoch,
    below_floor: Iterable[CheckpointRef],
    deleted: frozenset[CheckpointRef],
) -> RetentionRecord:
    """Return the state after a collection has given epochs up.

    `below_floor` are the acknowledged checkpoints from the old floor up to the new one.
    `deleted` are those of `state.collecting` that this driver has deleted in full. Others
    stay listed, because the driver that gave them up may have died before deleting them.
    """
    going = tuple(
        ref
        for ref in below_floor
        if not is_pinned(state, ref) and ref not in state.collecting
    )
    rest = tuple(ref for ref in state.collecting if ref not in deleted)
    return replace(state, collected_before=floor, collecting=(*rest, *going))


FIRST_SEQUENCE = 1
_NOBODY = Token("0" * 32)


def read_retention(actor: Actor, *, seen: int | None = None) -> Steps[RetentionRecord]:
    """Read the newest retention record; sequence 0 stands for a job that has none."""
    number = yield from find_newest(
        lambda sequence: paths.retention_path(actor.job, sequence),
        first=FIRST_SEQUENCE,
        stride=actor.rules.waypoint_stride,
        seen=seen or None,
    )
    if number is None:
        return RetentionRecord(actor.job, 0, _NOBODY, 0)
    path = paths.retention_path(actor.job, number)
    record = yield from reading.read_record(RetentionRecord, path)
    if record is None:
        # The record was thinned out: others appended many records between search and read.
        return (yield from read_retention(actor, seen=number))
    return record


def append_retention(
    actor: Actor, changed: RetentionRecord
) -> Steps[RetentionRecord | None]:
    """Append a changed state after the record it was made from, and return the new record.

    The result is None if another writer may have been first. The caller then reads the ledger
    and decides again, and so finds a change that was made after all. A created number is
    certainly the next one only while no later waypoint exists: below one, a driver that was
    paused may have filled a gap left by thinning.
    """
    record = replace(
        changed,
        sequence=changed.sequence + 1,
        writer=actor.token,
        created_at_micros=actor.now_micros,
    )
    path = paths.path_of(record)
    if (yield from create_once(path, codec.encode(record))) is not None:
        return None
    later = waypoint_after(
        record.sequence, first=FIRST_SEQUENCE, stride=actor.rules.waypoint_stride
    )
    has_later = yield from exists(paths.retention_path(record.job, later))
    return None if has_later else record


@dataclass(frozen=True, slots=True)
class Epochs:
    """An epoch as a user names it: a number, a savepoint, or None for the newest."""

    number: Epoch | None = None
    savepoint: SavepointName | None = None


def pin_epoch(
    actor: Actor,
    name: SavepointName,
    kind: PinKind,
    which: Epochs | CheckpointRef,
    *,
    holder: JobId | None = None,
) -> Steps[Pin]:
    """Pin a kept epoch under a name; pinning it again is fine.

    An epoch that a user names (`Epochs`) must be acknowledged and committed. A `CheckpointRef`
    was checked before, and must only still be kept.
    """
    while True:
        state = yield from read_retention(actor)
        ref = which
        if isinstance(ref, Epochs):
            ref = yield from find_kept_epoch(actor, state, ref)
        pin = Pin(name, kind, ref, actor.now_micros, holder)
        changed = decide_pin(state, pin)
        if changed == state or (yield from append_retention(actor, changed)) is not None:
            return pin


def unpin(actor: Actor, names: Collection[SavepointName]) -> Steps[bool]:
    """Remove pins; tell whether there were any. The next collection takes what only they kept."""
    found = False
    while True:
        state = yield from read_retention(actor)
        changed = state
        for name in sorted(names):
            changed = decide_unpin(changed, name)
        if changed == state:
            return found
        found = True
        if (yield from append_retention(actor, changed)) is not None:
            return True


def find_kept_epoch(
    actor: Actor, state: RetentionRecord, which: Epochs
) -> Steps[CheckpointRef]:
    """Return the checkpoint a user means, if it can be restored: kept, acknowledged, committed."""
    if which.savepoint is not None:
        named = find_pin(state, which.savepoint)
        if named is None:
            names = ", ".join(sorted(pin.name for pin in state.pins)) or "none"
            raise StateError(
                f"{state.job} has no savepoint {which.savepoint!r}; it has: {names}",
                code=ErrorCode.NOT_RESTORABLE,
                job=state.job,
            )
        return named.ref
    if which.number is not None:
        record = yield from reading.read_epoch_record(actor.job, which.number)
    else:
        claim = yield from reading.read_identity(actor.job)
        if claim is None:
            raise StateError(
                f"there is no job {actor.job!r} here; check the job id and the checkpoint URL",
                code=ErrorCode.NOT_RESTORABLE,
                job=actor.job,
            )
        record = yield from reading.read_newest_record(actor, first=claim.first_epoch)
    if record is None:
        raise _not_kept(state, str(which.number or "?"))
    if not is_kept(state, record.ref):
        raise _not_kept(state, str(record.ref.epoch))
    yield from require_ready(record.ref, record)
    return record.ref


def require_ready(ref: CheckpointRef, record: EpochRecord | None) -> Steps[None]:
    """Refuse a checkpoint that no epoch may build on."""
    status = yield from reading.read_status(ref, record)
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


def _not_kept(state: RetentionRecord, epoch: str) -> StateError:
    pins = ", ".join(f"{pin.name} (epoch {pin.ref.epoch})" for pin in state.pins) or "none"
    return StateError(
        f"epoch {epoch} of {state.job} does not exist or is no longer kept: epochs from "
        f"{state.collected_before} on are, and these savepoints: {pins}",
        code=ErrorCode.NOT_RESTORABLE,
        job=state.job,
        epoch=epoch,
    )
