"""Collecting garbage: give epochs up in the ledger, then delete what nothing kept needs.

The order is what makes it safe against a driver that sleeps at any point:

1. Read the ledger, *then* the newest epoch. A restore pins what it starts from until its
   first epoch is published; a ledger without that pin therefore means that the epoch
   built on it is visible to the reads that follow.
2. Read everything that is going to be kept. What of it cannot be read stops the
   collection before anything is given up: an older epoch may be needed in its place.
3. Check the fence, then append the next ledger record right after the one read. From
   then on the epochs given up can be neither pinned nor restored, whoever deletes them.
4. Check the fence again, then delete: files before the metadata that names them, manifests
   last and oldest first, so that an interrupted collection finds the rest again.

What must not be deleted: every object that some kept epoch needs.

Kept are all acknowledged epochs from the ledger's floor on, abandoned ones included, and
all pinned ones. Anything that cannot be read or decoded is an error, before any delete.

Sweeping orphans: what no checkpoint refers to, left by failed attempts and lost epochs.

Works from a listing, which being stale can only make it delete less. Slots within the
adoption window of the newest epoch are left alone, because a driver that slept might
still publish from them; further down, any epoch that could refer to an orphan is taken.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.core.ids import Epoch
from penstock.errors import CorruptStateError, ErrorCode, UserError
from penstock.state.protocol import paths
from penstock.state.protocol.codec import files_behind
from penstock.state.protocol.reading import (
    is_fenced,
    read_epoch_record,
    read_manifest,
    read_newest_record,
    unless_fenced,
)
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    EpochRecord,
    Fenced,
    ProtocolRules,
    RetentionRecord,
)
from penstock.state.protocol.retention import (
    FIRST_SEQUENCE,
    Actor,
    Unchanged,
    append_retention,
    decide_collection,
    decide_floor,
    next_retention,
    read_retention,
)
from penstock.state.protocol.steps import Steps, delete, list_paths, may_thin, read


@dataclass(slots=True)
class Memory:
    """What one driver remembers between collections; losing it only costs reads.

    All of it is about immutable objects of kept epochs, so it is never stale.
    """

    records: dict[int, CheckpointRef] = field(default_factory=dict)
    objects: dict[CheckpointRef, frozenset[str]] = field(default_factory=dict)
    """Everything a checkpoint needs."""
    files: dict[str, frozenset[str]] = field(default_factory=dict)
    """State files by metadata object."""
    parents: dict[CheckpointRef, CheckpointRef | None] = field(default_factory=dict)
    deleted: set[CheckpointRef] = field(default_factory=set)
    """Given-up checkpoints this driver has deleted in full, as long as the ledger lists them."""
    newest: Epoch | None = None
    sequence: int | None = None

    def forget(self, kept: "Kept") -> None:
        """Drop what is about epochs no longer kept, so that memory does not grow."""
        epochs = {ref.epoch for ref in kept.refs}
        self.records = {n: ref for n, ref in self.records.items() if n in epochs}
        self.objects = {ref: o for ref, o in self.objects.items() if ref in kept.refs}
        self.files = {path: f for path, f in self.files.items() if path in kept.objects}
        self.parents = {ref: p for ref, p in self.parents.items() if ref in kept.refs}


@dataclass(frozen=True, slots=True)
class Kept:
    """Everything that must stay."""

    refs: frozenset[CheckpointRef]
    objects: frozenset[str]


def read_acknowledged(
    claim: ClaimRecord, start: int, end: int, memory: Memory
) -> Steps[list[CheckpointRef]]:
    """Return the acknowledged checkpoints with `start <= epoch < end`."""
    refs = []
    for number in range(start, end):
        if number not in memory.records:
            record = yield from read_epoch_record(claim.job, number)
            if record is None:
                raise missing(paths.epoch_record_path(claim.job, number), f"epoch {number}")
            memory.records[number] = record.ref
        refs.append(memory.records[number])
    return refs


def read_kept(
    claim: ClaimRecord, state: RetentionRecord, newest: EpochRecord, memory: Memory
) -> Steps[Kept]:
    """Return every object that some kept epoch needs."""
    start = max(state.collected_before, claim.first_epoch)
    refs = yield from read_acknowledged(claim, start, newest.ref.epoch + 1, memory)
    refs += [pin.ref for pin in state.pins]
    objects: set[str] = set()
    for ref in sorted(set(refs)):
        objects |= yield from _read_objects(ref, memory)
    kept = Kept(frozenset(refs), frozenset(objects))
    memory.forget(kept)
    return kept


def _read_objects(ref: CheckpointRef, memory: Memory) -> Steps[frozenset[str]]:
    known = memory.objects.get(ref)
    if known is not None:
        return known
    manifest = yield from read_manifest(ref)
    if manifest is None:
        raise missing(paths.manifest_path(ref), str(ref))
    memory.objects[ref] = yield from _objects_of(manifest, memory)
    return memory.objects[ref]


def _objects_of(manifest: CheckpointManifest, memory: Memory) -> Steps[frozenset[str]]:
    objects = {paths.manifest_path(manifest.ref), paths.marker_path(manifest.ref)}
    for entry in manifest.operators:
        for metadata in entry.subtasks:
            objects.add(metadata.path)
            if metadata.path not in memory.files:
                data = yield from read(metadata.path)
                if data is None:
                    raise missing(metadata.path, str(manifest.ref))
                memory.files[metadata.path] = files_behind(metadata, data)
            objects |= memory.files[metadata.path]
    return frozenset(objects)


def missing(path: str, needed_by: str) -> CorruptStateError:
    """Build the error for an object that a kept epoch needs and that is not there."""
    return CorruptStateError(
        f"{path!r} is missing, but {needed_by} is kept and needs it; nothing was deleted. "
        "Something other than Penstock removed it: bring it back, or restore another epoch",
        code=ErrorCode.OBJECT_MISSING,
        path=path,
    )


@dataclass(frozen=True, slots=True)
class CollectionDone:
    """What a collection did."""

    given_up: tuple[CheckpointRef, ...]
    deleted_objects: int
    needs_origin: bool
    """Whether some kept epoch still refers to another job's objects."""


@dataclass(frozen=True, slots=True)
class NothingToCollect:
    """No epoch is published yet."""


CollectionOutcome: TypeAlias = CollectionDone | NothingToCollect | Fenced


def collect_garbage(
    claim: ClaimRecord,
    *,
    keep_epochs: int,
    actor: Actor,
    rules: ProtocolRules,
    memory: Memory,
) -> Steps[CollectionOutcome]:
    """Give up old epochs and delete what only they needed. Safe to repeat after any error."""
    if keep_epochs < 1:
        raise UserError(
            f"cannot keep {keep_epochs} epochs: the newest one is always kept; ask for at "
            "least 1",
            code=ErrorCode.INVALID_NUMBER,
        )
    steps = _collect(
        claim, keep_epochs=keep_epochs, actor=actor, rules=rules, memory=memory
    )
    return (yield from unless_fenced(claim, steps))


def _collect(
    claim: ClaimRecord,
    *,
    keep_epochs: int,
    actor: Actor,
    rules: ProtocolRules,
    memory: Memory,
) -> Steps[CollectionOutcome]:
    while True:
        state = yield from read_retention(claim.job, rules, seen=memory.sequence)
        newest = yield from read_newest_record(
            claim.job, rules, first=claim.first_epoch, seen=memory.newest
        )
        if newest is None:
            return NothingToCollect()
        memory.newest = newest.ref.epoch
        record = yield from _plan(
            claim, state, newest, keep_epochs=keep_epochs, actor=actor, memory=memory
        )
        kept = yield from read_kept(claim, record, newest, memory)
        if record == state:
            break
        if (yield from is_fenced(claim.job, claim.generation)):
            return Fenced(claim.generation)
        if (yield from append_retention(record, rules)):
            break
    memory.sequence = record.sequence or None
    memory.deleted &= set(record.collecting)
    return (yield from _delete_given_up(claim, record, kept, memory))


def _plan(
    claim: ClaimRecord,
    state: RetentionRecord,
    newest: EpochRecord,
    *,
    keep_epochs: int,
    actor: Actor,
    memory: Memory,
) -> Steps[RetentionRecord]:
    """Return the ledger's next record, or `state` itself if nothing is to be given up."""
    chain = yield from _read_chain(newest, state, keep_epochs, memory)
    start = max(state.collected_before, claim.first_epoch)
    floor = Epoch(max(start, decide_floor(state, chain, keep_epochs)))
    below = yield from read_acknowledged(claim, start, floor, memory)
    change = decide_collection(
        state, floor=floor, below_floor=below, deleted=frozenset(memory.deleted)
    )
    if isinstance(change, Unchanged):
        return state
    return next_retention(state, change, writer=actor.token, now_micros=actor.now_micros)


def _read_chain(
    newest: EpochRecord, state: RetentionRecord, keep_epochs: int, memory: Memory
) -> Steps[list[CheckpointRef]]:
    """Walk from the newest epoch through its parents, as far as the decision needs."""
    chain = [newest.ref]
    parent = newest.parent
    while (
        parent is not None
        and parent.job == newest.ref.job
        and parent.epoch >= state.collected_before
        and len(chain) < keep_epochs
    ):
        chain.append(parent)
        if parent not in memory.parents:
            manifest = yield from read_manifest(parent)
            if manifest is None:
                raise missing(paths.manifest_path(parent), str(parent))
            memory.parents[parent] = manifest.parent
        parent = memory.parents[parent]
    return chain


def _delete_given_up(
    claim: ClaimRecord, state: RetentionRecord, kept: Kept, memory: Memory
) -> Steps[CollectionOutcome]:
    """Delete what the given-up checkpoints alone needed, after all of it is known."""
    doomed: list[tuple[CheckpointRef, list[str]]] = []
    for ref in sorted(state.collecting):
        objects = yield from _objects_left(ref)
        doomed.append((ref, _own_paths(claim, objects - kept.objects)))
    if (yield from is_fenced(claim.job, claim.generation)):
        return Fenced(claim.generation)
    for _, objects_to_delete in doomed:
        for path in objects_to_delete:
            yield from delete(path)
    for ref, _ in doomed:
        yield from delete(paths.manifest_path(ref))
        memory.deleted.add(ref)
    return CollectionDone(
        given_up=tuple(ref for ref, _ in doomed),
        deleted_objects=sum(1 + len(objects) for _, objects in doomed),
        needs_origin=any(not path.startswith(f"{claim.job}/") for path in kept.objects),
    )


def _objects_left(ref: CheckpointRef) -> Steps[frozenset[str]]:
    """Return what an interrupted collection of this checkpoint may have left to delete.

    What nobody needs does not have to be readable: files that only a damaged object names
    are left to the sweep, which finds them by their place.
    """
    objects: set[str] = set()
    try:
        manifest = yield from read_manifest(ref)
        if manifest is None:
            return frozenset()
        objects.add(paths.marker_path(ref))
        for entry in manifest.operators:
            for metadata in entry.subtasks:
                data = yield from read(metadata.path)
                if data is None:
                    continue  # gone already, and its files were deleted before it
                objects |= {metadata.path, *files_behind(metadata, data)}
    except CorruptStateError:
        pass
    return frozenset(objects)


def _own_paths(claim: ClaimRecord, objects: Iterable[str]) -> list[str]:
    """Keep to the job's own slots, files before the metadata that names them."""
    own = []
    for path in objects:
        slot = paths.slot_of(path)
        if slot is not None and slot.ref.job == claim.job:
            own.append(path)
    return sorted(own, key=lambda path: (path.endswith(".metadata"), path))


@dataclass(frozen=True, slots=True)
class SweepDone:
    """What a sweep did."""

    deleted_objects: int


SweepOutcome: TypeAlias = SweepDone | NothingToCollect | Fenced


def sweep_orphans(
    claim: ClaimRecord, *, rules: ProtocolRules, memory: Memory
) -> Steps[SweepOutcome]:
    """Delete orphans and thin out old records. Safe to repeat after any error."""
    return (yield from unless_fenced(claim, _sweep(claim, rules, memory)))


def _sweep(claim: ClaimRecord, rules: ProtocolRules, memory: Memory) -> Steps[SweepOutcome]:
    state = yield from read_retention(claim.job, rules, seen=memory.sequence)
    newest = yield from read_newest_record(
        claim.job, rules, first=claim.first_epoch, seen=memory.newest
    )
    if newest is None:
        return NothingToCollect()
    kept = yield from read_kept(claim, state, newest, memory)
    horizon = newest.ref.epoch - rules.adoption_window
    doomed = []
    for path in (yield from list_paths(paths.generations_folder(claim.job))):
        slot = paths.slot_of(path)
        if slot is not None and slot.ref.epoch <= horizon and path not in kept.objects:
            doomed.append(path)
    doomed += yield from _superfluous_records(claim, state, newest, kept, rules)
    if (yield from is_fenced(claim.job, claim.generation)):
        return Fenced(claim.generation)
    for path in sorted(doomed, key=_deletion_order):
        yield from delete(path)
    return SweepDone(len(doomed))


def _deletion_order(path: str) -> tuple[int, str]:
    """Delete files, then metadata, then manifests: what names others outlives them."""
    return (2 if path.endswith("manifest.pb") else path.endswith(".metadata"), path)


def _superfluous_records(
    claim: ClaimRecord,
    state: RetentionRecord,
    newest: EpochRecord,
    kept: Kept,
    rules: ProtocolRules,
) -> Steps[list[str]]:
    """Return the epoch and retention records that finding the newest does not need."""
    needed = {paths.epoch_record_path(ref.job, ref.epoch) for ref in kept.refs}
    stride = rules.waypoint_stride
    doomed = []
    for path in (yield from list_paths(paths.epochs_folder(claim.job))):
        number = paths.number_of(path)
        if number is None or path in needed:
            continue
        if may_thin(
            number, first=claim.first_epoch, newest=newest.ref.epoch, stride=stride
        ):
            doomed.append(path)
    for path in (yield from list_paths(paths.retention_folder(claim.job))):
        number = paths.number_of(path)
        if number is not None and may_thin(
            number, first=FIRST_SEQUENCE, newest=state.sequence, stride=stride
        ):
            doomed.append(path)
    return doomed
