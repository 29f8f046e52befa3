"""What must not be deleted: every object that some kept epoch needs.

Kept are all acknowledged epochs from the ledger's floor on, abandoned ones included, and
all pinned ones. Anything that cannot be read or decoded is an error, before any delete.
"""

from dataclasses import dataclass, field

from penstock.core.ids import Epoch
from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.protocol import paths
from penstock.state.protocol.metadata import files_behind
from penstock.state.protocol.reading import read_epoch_record, read_manifest
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    EpochRecord,
    RetentionRecord,
)
from penstock.state.protocol.steps import Steps, read


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
