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
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.ids import Epoch
from penstock.errors import CorruptStateError, ErrorCode, UserError
from penstock.state.protocol import paths
from penstock.state.protocol.kept import Kept, Memory, missing, read_acknowledged, read_kept
from penstock.state.protocol.ledger import append_retention, next_retention, read_retention
from penstock.state.protocol.metadata import files_behind
from penstock.state.protocol.pinning import Actor
from penstock.state.protocol.reading import (
    is_fenced,
    read_manifest,
    read_newest_record,
    unless_fenced,
)
from penstock.state.protocol.records import (
    CheckpointRef,
    ClaimRecord,
    EpochRecord,
    RetentionRecord,
)
from penstock.state.protocol.retention import (
    Unchanged,
    decide_collection,
    decide_floor,
)
from penstock.state.protocol.rules import ProtocolRules
from penstock.state.protocol.status import Fenced
from penstock.state.protocol.steps import Steps, delete, read


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
