"""Deleting what no kept epoch needs: collection of given-up epochs, and sweeps of orphans.

Every object that some kept epoch needs must stay. All acknowledged epochs from the floor on,
abandoned ones included, and all pinned epochs are kept. If anything of them cannot be read or
decoded, that is an error before any delete. The ledger is the sequence of retention records.

Collection gives epochs up in the ledger, then deletes what only they needed. This order makes
it safe even if a driver pauses at any point and goes on later:

1. Read the ledger, *then* the newest epoch. A restore pins what it starts from until its
   first epoch is published; a ledger without that pin therefore means that the epoch built
   on it is visible to the reads that follow.
2. Read everything that is going to be kept. If a part of it cannot be read, the collection
   stops before any epoch is given up: an older epoch may be needed in its place.
3. Check the fence, then append the next ledger record right after the one read. From then on
   the given-up epochs can be neither pinned nor restored, whichever driver deletes them.
4. Check the fence again, then delete: files before the metadata that names them, manifests
   last and oldest first, so that an interrupted collection finds the rest again.

A user may collect beside the driver that runs, under the claim that is the newest: the ledger
orders both, and each deletes only what is given up. What one of them finds missing while it
reads may be what the other has just deleted, so it looks at the ledger again.

A sweep deletes orphans: objects that no checkpoint refers to, left by failed attempts and
lost epochs. It works from a listing; a stale listing only makes it delete less. It leaves
slots within the adoption window of the newest epoch alone, because a paused driver might
still publish from them. Below the window no epoch can refer to an orphan any more, because
all epochs that could are already published.
"""

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from penstock.core.ids import Epoch
from penstock.errors import CorruptStateError, ErrorCode, UserError
from penstock.state.protocol import paths, reading
from penstock.state.protocol.codec import files_behind
from penstock.state.protocol.records import (
    Actor,
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    EpochRecord,
    Fenced,
    Ready,
    RetentionRecord,
)
from penstock.state.protocol.retention import (
    FIRST_SEQUENCE,
    Ancestor,
    KeepRule,
    append_retention,
    decide_collection,
    decide_floor,
    read_retention,
)
from penstock.state.protocol.steps import Steps, delete, list_paths, may_thin, read


@dataclass(slots=True)
class Memory:
    """What one driver caches between collections; losing it only costs reads.

    All of it describes immutable objects of kept epochs, so it is never stale.
    """

    records: dict[int, CheckpointRef] = field(default_factory=dict)
    objects: dict[CheckpointRef, frozenset[str]] = field(default_factory=dict)
    """The paths of all objects that a checkpoint needs."""
    files: dict[str, frozenset[str]] = field(default_factory=dict)
    """State files by metadata object."""
    ancestors: dict[CheckpointRef, Ancestor] = field(default_factory=dict)
    deleted: set[CheckpointRef] = field(default_factory=set)
    """Given-up checkpoints that this driver has deleted and the ledger still lists."""
    newest: Epoch | None = None
    sequence: int | None = None

    def forget(self, kept: "Kept") -> None:
        """Drop the entries of epochs that are not kept, so that memory does not grow."""
        epochs = {ref.epoch for ref in kept.refs}
        self.records = {n: ref for n, ref in self.records.items() if n in epochs}
        self.objects = {ref: o for ref, o in self.objects.items() if ref in kept.refs}
        self.files = {path: f for path, f in self.files.items() if path in kept.objects}
        self.ancestors = {ref: a for ref, a in self.ancestors.items() if ref in kept.refs}


@dataclass(frozen=True, slots=True)
class Kept:
    """The checkpoints and objects that must stay."""

    refs: frozenset[CheckpointRef]
    objects: frozenset[str]


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


@dataclass(frozen=True, slots=True)
class LeftOff:
    """The job stops: the rest is left to the next driver, as after a crash."""


CollectionOutcome: TypeAlias = CollectionDone | NothingToCollect | LeftOff | Fenced


@dataclass(frozen=True, slots=True)
class SweepDone:
    """What a sweep did."""

    deleted_objects: int


SweepOutcome: TypeAlias = SweepDone | NothingToCollect | LeftOff | Fenced


def collect_garbage(
    actor: Actor,
    claim: ClaimRecord,
    *,
    keep_epochs: int,
    keep_micros: int | None = None,
    memory: Memory,
) -> Steps[CollectionOutcome]:
    """Give up old epochs and delete what only they needed. Safe to repeat after any error.

    The last `keep_epochs` committed ones are kept, what is newer, and with `keep_micros` all that
    are needed to go back so far.
    """
    if keep_epochs < 1:
        raise UserError(
            f"cannot keep {keep_epochs} epochs: the newest one is always kept; ask for at "
            "least 1",
            code=ErrorCode.INVALID_NUMBER,
        )
    since = None if keep_micros is None else actor.now_micros - keep_micros
    collected = _Collector(actor, claim, memory).collect(KeepRule(keep_epochs, since))
    return (yield from reading.unless_fenced(claim, collected))


def plan_collection(
    actor: Actor, claim: ClaimRecord, keep: KeepRule, *, memory: Memory
) -> Steps[tuple[CheckpointRef, ...]]:
    """Return what a collection would give up now. Changes nothing."""
    return (yield from _Collector(actor, claim, memory).plan(keep))


def sweep_orphans(
    actor: Actor, claim: ClaimRecord, *, memory: Memory
) -> Steps[SweepOutcome]:
    """Delete orphans and thin out old records. Safe to repeat after any error."""
    return (
        yield from reading.unless_fenced(claim, _Collector(actor, claim, memory).sweep())
    )


@dataclass(frozen=True, slots=True)
class _Collector:
    """One collection or sweep under a claim: by its driver, or by a user beside it."""

    actor: Actor
    claim: ClaimRecord
    memory: Memory

    def plan(self, keep: KeepRule) -> Steps[tuple[CheckpointRef, ...]]:
        state = yield from read_retention(self.actor)
        newest = yield from self._read_newest()
        if newest is None:
            return ()
        changed = yield from self._decide(state, newest, keep)
        return tuple(ref for ref in changed.collecting if ref not in state.collecting)

    def collect(self, keep: KeepRule) -> Steps[CollectionOutcome]:
        while True:
            state = yield from read_retention(self.actor, seen=self.memory.sequence)
            newest = yield from self._read_newest()
            if newest is None:
                return NothingToCollect()
            self.memory.newest = newest.ref.epoch
            try:
                changed = yield from self._decide(state, newest, keep)
                kept = yield from self._read_kept(changed, newest)
            except CorruptStateError:
                if (yield from self._is_overtaken(state)):
                    continue
                raise
            record: RetentionRecord | None = state
            if changed != state:
                if (yield from reading.is_fenced(self.claim)):
                    return Fenced(self.claim.generation)
                record = yield from append_retention(self.actor, changed)
            if record is not None:
                break
        self.memory.sequence = record.sequence or None
        self.memory.deleted &= set(record.collecting)
        return (yield from self._delete_given_up(record, kept))

    def sweep(self) -> Steps[SweepOutcome]:
        while True:
            state = yield from read_retention(self.actor, seen=self.memory.sequence)
            newest = yield from self._read_newest()
            if newest is None:
                return NothingToCollect()
            try:
                kept = yield from self._read_kept(state, newest)
            except CorruptStateError:
                if (yield from self._is_overtaken(state)):
                    continue
                raise
            break
        horizon = newest.ref.epoch - self.actor.rules.adoption_window
        doomed = []
        for path in (yield from list_paths(paths.generations_folder(self.claim.job))):
            slot = paths.slot_of(path)
            if slot is not None and slot.ref.epoch <= horizon and path not in kept.objects:
                doomed.append(path)
        doomed += yield from self._superfluous_records(state, newest, kept)
        if (yield from reading.is_fenced(self.claim)):
            return Fenced(self.claim.generation)
        for path in sorted(doomed, key=_deletion_order):
            yield from delete(path)
        return SweepDone(len(doomed))

    def _is_overtaken(self, state: RetentionRecord) -> Steps[bool]:
        """Tell whether others have changed the ledger: what is missing may be given up by now.

        Somebody at the command line may collect beside the driver, under the same claim.
        """
        latest = yield from read_retention(self.actor, seen=self.memory.sequence)
        return latest.sequence != state.sequence

    def _read_newest(self) -> Steps[EpochRecord | None]:
        return reading.read_newest_record(
            self.actor, first=self.claim.first_epoch, seen=self.memory.newest
        )

    def _decide(
        self, state: RetentionRecord, newest: EpochRecord, keep: KeepRule
    ) -> Steps[RetentionRecord]:
        """Return the state with old epochs given up; it is equal if there are none.

        An epoch that is not committed yet may have to be abandoned for the one before, so it
        does not count.
        """
        status = yield from reading.read_status(newest.ref, newest)
        if not isinstance(status, Ready):
            keep = replace(keep, epochs=keep.epochs + 1)
        chain = yield from self._read_chain(newest, state, keep)
        start = max(state.collected_before, self.claim.first_epoch)
        floor = Epoch(max(start, decide_floor(state, chain, keep)))
        below = yield from self._read_acknowledged(start, floor)
        return decide_collection(
            state, floor=floor, below_floor=below, deleted=frozenset(self.memory.deleted)
        )

    def _read_chain(
        self, newest: EpochRecord, state: RetentionRecord, keep: KeepRule
    ) -> Steps[list[Ancestor]]:
        """Walk from the newest epoch through its parents, as far as the decision needs."""
        known = self.memory.ancestors
        chain = [Ancestor(newest.ref, newest.parent, newest.created_at_micros)]
        while not keep.is_met(len(chain), chain[-1]):
            parent = chain[-1].parent
            if (
                parent is None
                or parent.job != newest.ref.job
                or parent.epoch < state.collected_before
            ):
                break
            if parent not in known:
                found = yield from _read_manifest(parent)
                known[parent] = Ancestor(parent, found.parent, found.created_at_micros)
            chain.append(known[parent])
        return chain

    def _read_acknowledged(self, start: int, end: int) -> Steps[list[CheckpointRef]]:
        """Return the acknowledged checkpoints with `start <= epoch < end`."""
        job, records = self.claim.job, self.memory.records
        for number in range(start, end):
            if number not in records:
                record = yield from reading.read_epoch_record(job, number)
                if record is None:
                    raise _missing(paths.epoch_record_path(job, number), f"epoch {number}")
                records[number] = record.ref
        return [records[number] for number in range(start, end)]

    def _read_kept(self, state: RetentionRecord, newest: EpochRecord) -> Steps[Kept]:
        """Return every object that some kept epoch needs."""
        start = max(state.collected_before, self.claim.first_epoch)
        refs = yield from self._read_acknowledged(start, newest.ref.epoch + 1)
        refs += [pin.ref for pin in state.pins]
        known = self.memory.objects
        for ref in sorted(set(refs)):
            if ref not in known:
                known[ref] = yield from self._read_objects(ref)
        kept = Kept(frozenset(refs), frozenset().union(*(known[ref] for ref in refs)))
        self.memory.forget(kept)
        return kept

    def _read_objects(self, ref: CheckpointRef) -> Steps[frozenset[str]]:
        """Return every object that one kept checkpoint needs."""
        files = self.memory.files
        objects = {paths.manifest_path(ref), paths.marker_path(ref)}
        for entry in (yield from _read_manifest(ref)).operators:
            for metadata in entry.subtasks:
                if metadata.path not in files:
                    data = yield from read(metadata.path)
                    if data is None:
                        raise _missing(metadata.path, str(ref))
                    files[metadata.path] = files_behind(metadata, data)
                objects |= {metadata.path, *files[metadata.path]}
        return frozenset(objects)

    def _delete_given_up(
        self, state: RetentionRecord, kept: Kept
    ) -> Steps[CollectionOutcome]:
        """Delete what only the given-up checkpoints needed, after all of it was found."""
        doomed: list[tuple[CheckpointRef, list[str]]] = []
        for ref in sorted(state.collecting):
            found = (yield from _objects_left(ref)) - kept.objects
            own = [path for path in found if self._is_own(path)]
            # Files go before the metadata that names them: a crash leaves what finds the rest.
            doomed.append((ref, sorted(own, key=_deletion_order)))
        if (yield from reading.is_fenced(self.claim)):
            return Fenced(self.claim.generation)
        for _, objects_to_delete in doomed:
            for path in objects_to_delete:
                yield from delete(path)
        for ref, _ in doomed:
            yield from delete(paths.manifest_path(ref))
            self.memory.deleted.add(ref)
        prefix = f"{self.claim.job}/"
        return CollectionDone(
            given_up=tuple(ref for ref, _ in doomed),
            deleted_objects=sum(1 + len(objects) for _, objects in doomed),
            needs_origin=any(not path.startswith(prefix) for path in kept.objects),
        )

    def _is_own(self, path: str) -> bool:
        slot = paths.slot_of(path)
        return slot is not None and slot.ref.job == self.claim.job

    def _superfluous_records(
        self, state: RetentionRecord, newest: EpochRecord, kept: Kept
    ) -> Steps[list[str]]:
        """Return the old epoch and retention records that `find_newest` does not need."""
        job, stride = self.claim.job, self.actor.rules.waypoint_stride
        needed = {paths.epoch_record_path(ref.job, ref.epoch) for ref in kept.refs}
        doomed = []
        for folder, first, last in (
            (paths.epochs_folder(job), self.claim.first_epoch, newest.ref.epoch),
            (paths.retention_folder(job), FIRST_SEQUENCE, state.sequence),
        ):
            for path in (yield from list_paths(folder)):
                number = paths.number_of(path)
                if number is None or path in needed:
                    continue
                if may_thin(number, first=first, newest=last, stride=stride):
                    doomed.append(path)
        return doomed


def _read_manifest(ref: CheckpointRef) -> Steps[CheckpointManifest]:
    manifest = yield from reading.read_manifest(ref)
    if manifest is None:
        raise _missing(paths.manifest_path(ref), str(ref))
    return manifest


def _missing(path: str, needed_by: str) -> CorruptStateError:
    return CorruptStateError(
        f"{path!r} is missing, but {needed_by} is kept and needs it; nothing was deleted. "
        "Something other than Penstock removed it: bring it back, or restore another epoch",
        code=ErrorCode.OBJECT_MISSING,
        path=path,
    )


def _objects_left(ref: CheckpointRef) -> Steps[frozenset[str]]:
    """Return the objects of a given-up checkpoint that may still have to be deleted.

    A damaged object is no error here, as no epoch needs it: the files that only it names are
    left to the sweep, which finds them by their place.
    """
    objects: set[str] = set()
    try:
        manifest = yield from reading.read_manifest(ref)
        if manifest is None:
            return frozenset()
        objects.add(paths.marker_path(ref))
        for entry in manifest.operators:
            for metadata in entry.subtasks:
                data = yield from read(metadata.path)
                if data is None:
                    continue  # deleted already, and its files before it
                objects |= {metadata.path, *files_behind(metadata, data)}
    except CorruptStateError:
        pass
    return frozenset(objects)


def _deletion_order(path: str) -> tuple[int, str]:
    """Order files, then metadata, then manifests: an object goes after those that it names."""
    return (2 if path.endswith("manifest.pb") else path.endswith(".metadata"), path)
