"""The explored world: one dictionary for a store, sinks that remember, and what must hold.

Every storage call of every actor passes through `World.answer`, which checks the
invariants at the moment they could break. Promises are what callers were told: a pin that
was confirmed, the base of a recovered driver, the origin of a branch.
"""

from dataclasses import dataclass, field

from penstock.core.ids import JobId
from penstock.state.protocol import codec, paths
from penstock.state.protocol.codec import files_in_metadata
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    EpochRecord,
    PinKind,
    RetentionRecord,
)
from penstock.state.protocol.retention import is_kept
from penstock.state.protocol.steps import Create, Delete, Exists, ListPaths, Read, Request


@dataclass(frozen=True, slots=True)
class CommitSinks:
    """A driver commits its sinks under a permit: the one effect outside the store."""

    ref: CheckpointRef


WorldRequest = Request | CommitSinks


@dataclass(slots=True)
class World:
    objects: dict[str, bytes] = field(default_factory=dict)
    late: list[Create] = field(default_factory=list)
    """Writes whose answer was lost and that land when another actor has acted."""
    very_late: list[Create] = field(default_factory=list)
    """Writes whose answer was lost and that land when everybody has stopped."""
    committed: set[CheckpointRef] = field(default_factory=set)
    first_records: dict[JobId, dict[int, EpochRecord]] = field(default_factory=dict)
    """What each epoch record said when it was first created."""
    promises: dict[str, CheckpointRef] = field(default_factory=dict)
    fence_answers: dict[str, bool] = field(default_factory=dict)
    """Per actor: what its look at the fence said, if that was the last thing it asked."""
    acknowledged: set[CheckpointRef] = field(default_factory=set)
    """Checkpoints whose publication was confirmed to their driver."""
    restored: bool = False
    restored_once: int | None = None
    """An epoch that several starts restore, and to which the job must go back only once."""
    keep_epochs: int = 2
    deletes: int = 0
    stale_paths: list[str] = field(default_factory=list)
    needs: dict[CheckpointRef, frozenset[str]] = field(default_factory=dict)

    def copy(self) -> "World":
        """A world with the same past."""
        return World(
            objects=dict(self.objects),
            committed=set(self.committed),
            first_records={job: dict(found) for job, found in self.first_records.items()},
            acknowledged=set(self.acknowledged),
            keep_epochs=self.keep_epochs,
        )

    def answer(self, actor: str, request: WorldRequest, *, stale: bool = False) -> object:
        """Do what is asked, checking what must hold when it happens."""
        if not isinstance(request, Delete | CommitSinks):
            # A look at the fence counts only for what follows it at once.
            self.fence_answers.pop(actor, None)
        match request:
            case Read(path):
                return self.objects.get(path)
            case Exists(path):
                found = path in self.objects
                if path.endswith("/claim"):
                    self.fence_answers[actor] = found
                return found
            case Create(path, data):
                return self._create(path, data)
            case Delete(path):
                self._delete(actor, path)
                return None
            case ListPaths(prefix):
                source = self.stale_paths if stale else sorted(self.objects)
                listed = [path for path in source if path.startswith(f"{prefix}/")]
                self.stale_paths = sorted(self.objects)
                return listed
            case CommitSinks(ref):
                self._commit(actor, ref)
                return None

    def land_late(self) -> None:
        """Let a write land whose answer was lost long ago."""
        for create in self.late:
            self._create(create.path, create.data)
        self.late.clear()

    def land_very_late(self) -> None:
        """Let every write land that is still under way."""
        self.land_late()
        self.late, self.very_late = self.very_late, []
        self.land_late()

    def _create(self, path: str, data: bytes) -> bool:
        if path in self.objects:
            return False
        self.objects[path] = data
        if "/epochs/" in path:
            record = codec.decode(EpochRecord, data, path)
            self.first_records.setdefault(record.ref.job, {}).setdefault(
                record.ref.epoch, record
            )
        return True

    def _commit(self, actor: str, ref: CheckpointRef) -> None:
        record = self.first_record(ref.job, ref.epoch)
        assert record is not None, f"{actor} commits {ref}, which nobody acknowledged"
        assert record.ref == ref, f"{actor} commits {ref}, but the epoch is {record.ref}"
        assert self.fence_answers.get(actor) is False, f"{actor} commits although fenced"
        self.committed.add(ref)

    def _delete(self, actor: str, path: str) -> None:
        assert self.fence_answers.get(actor) is False, f"{actor} deletes although fenced"
        self.deletes += 1
        if path not in self.objects:
            return
        assert not path.endswith("/claim"), f"{actor} deletes the claim {path}"
        for ref, why in self.must_keep().items():
            assert path not in self.needed_by(ref), (
                f"{actor} deletes {path}, {why} needs it"
            )
        del self.objects[path]

    def first_record(self, job: JobId, epoch: int) -> EpochRecord | None:
        return self.first_records.get(job, {}).get(epoch)

    def newest(self, job: JobId) -> EpochRecord | None:
        records = self.first_records.get(job)
        return records[max(records)] if records else None

    def chain(self, job: JobId) -> list[CheckpointRef]:
        """The canonical epochs of a job, newest first, by their first records alone."""
        refs = []
        record = self.newest(job)
        while record is not None:
            refs.append(record.ref)
            parent = record.parent
            record = None
            if parent is not None and parent.job == job:
                record = self.first_record(job, parent.epoch)
        return refs

    def must_keep(self) -> dict[CheckpointRef, str]:
        """Every checkpoint that somebody may rely on now, with the reason."""
        kept = {ref: name for name, ref in self.promises.items()}
        for job in self.first_records:
            child = None
            for ref in self.chain(job)[: self.keep_epochs]:
                if child is not None and ref.epoch + 1 != child.epoch:
                    # A restore went back below what others had given up meanwhile: it is
                    # kept for the restore, and not counted among the last epochs after it.
                    ledger = self.ledger(job)
                    if ledger is not None and not is_kept(ledger, ref):
                        break
                kept.setdefault(ref, "its place among the last epochs")
                child = ref
            committed = next(filter(self.is_ready, self.chain(job)), None)
            if committed is not None:
                kept.setdefault(committed, "a restore, as the last committed epoch,")
        return kept

    def is_ready(self, ref: CheckpointRef) -> bool:
        """Whether a restore may go back to a checkpoint: it has nothing left to commit."""
        if paths.marker_path(ref) in self.objects:
            return True
        path = paths.manifest_path(ref)
        data = self.objects.get(path)
        return (
            data is not None
            and not codec.decode(CheckpointManifest, data, path).needs_commit
        )

    def needed_by(self, ref: CheckpointRef) -> frozenset[str]:
        """Every object a checkpoint consists of."""
        known = self.needs.get(ref)
        if known is not None:
            return known
        path = paths.manifest_path(ref)
        data = self.objects.get(path)
        assert data is not None, f"the manifest of {ref} is gone"
        needed = {path}
        for operator in codec.decode(CheckpointManifest, data, path).operators:
            for metadata in operator.subtasks:
                content = self.objects.get(metadata.path)
                assert content is not None, f"{metadata.path} of {ref} is gone"
                needed |= {metadata.path, *files_in_metadata(content, metadata.path)}
        self.needs[ref] = frozenset(needed)
        return self.needs[ref]

    def check_whole(self) -> None:
        """Everything relied upon exists, and no acknowledged epoch was lost."""
        for ref, why in self.must_keep().items():
            for path in self.needed_by(ref):
                assert path in self.objects, f"{path} is gone, {why} needs it"
        for ref in self.acknowledged:
            record = self.first_record(ref.job, ref.epoch)
            assert record is not None, f"{ref} was confirmed but has no record"
            assert record.ref == ref, f"{ref} was confirmed, but the epoch is {record.ref}"
            if not self.restored:
                assert ref in self.chain(ref.job), f"{ref} was confirmed and then lost"
        if self.restored_once is not None:
            parents = [found.parent for found in self.first_records[JobId("job")].values()]
            children = sum(p is not None and p.epoch == self.restored_once for p in parents)
            assert children <= 2, f"the job went back to {self.restored_once} twice"
        for ref in self.committed:
            record = self.first_record(ref.job, ref.epoch)
            assert record is not None
            assert record.ref == ref, f"{ref} was committed, but the epoch is {record.ref}"

    def check_released(self) -> None:
        """No restore that was honoured still keeps its epoch.

        Called when a driver has published on top of everything: every claim's request is
        honoured or overtaken. Only requesters that died before their claim leave a pin.
        """
        for job in self.first_records:
            claims = [
                codec.decode(ClaimRecord, data, path)
                for path, data in self.objects.items()
                if path.startswith(f"{job}/generations/") and path.endswith("/claim")
            ]
            owners = {f"restore-{claim.owner}" for claim in claims}
            ledger = self.ledger(job)
            for pin in () if ledger is None else ledger.pins:
                honoured = pin.kind is PinKind.RESTORE and pin.name in owners
                assert not honoured, f"{pin.name} was honoured and still pins {pin.ref}"

    def ledger(self, job: JobId) -> RetentionRecord | None:
        """The newest retention record."""
        found = [path for path in self.objects if path.startswith(f"{job}/retention/")]
        if not found:
            return None
        return codec.decode(RetentionRecord, self.objects[max(found)], max(found))
