"""A whole driver in small: takes a job over, publishes real objects, commits, collects.

Each epoch writes one new file of a table that sees its last three, and every fourth the
metadata of an operator that otherwise carries its old metadata by reference. So files and
metadata are shared between epochs, outlive some of them, and become garbage.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.core.clock import ManualClock, new_token
from penstock.core.ids import Epoch, Generation, JobId, OperatorId
from penstock.errors import CorruptStateError
from penstock.state.checkpoints import JobCheckpoints, ParquetBackend
from penstock.state.proto import state_pb2 as pb
from penstock.state.protocol.codec import unseal
from penstock.state.protocol.paths import table_checkpoint_path
from penstock.state.protocol.publication import (
    CommitPermit,
    PublicationOutcome,
    ReadyCheckpoint,
)
from penstock.state.protocol.records import (
    FIRST_EPOCH,
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    Fenced,
    ObjectRef,
    OperatorEntry,
    ProtocolRules,
)
from penstock.state.protocol.takeover import Recovered, TakenOver
from penstock.state.storage.object_store import ObjectStore
from tests.builders.protocol import JOB, OPERATOR, RULES, TABLE, metadata_of

QUIET = OperatorId("settings")
FILES_SEEN = 3


@dataclass(slots=True)
class Sink:
    """Remembers what was committed, and by which generation."""

    commits: list[tuple[CheckpointRef, Generation]] = field(default_factory=list)

    @property
    def refs(self) -> set[CheckpointRef]:
        return {ref for ref, _ in self.commits}

    def commit(self, permit: CommitPermit) -> None:
        self.commits.append((permit.ref, permit.generation))


def checkpoints_in(
    store: ObjectStore, job: JobId = JOB, rules: ProtocolRules = RULES
) -> JobCheckpoints:
    return JobCheckpoints(store, job, clock=ManualClock(7), rules=rules)


class FencedOffError(Exception):
    """The driver found that it was replaced, in a test that did not expect it.

    It is no error of Penstock, so that a crash matrix does not take it for the end of a trial.
    """


@dataclass(slots=True)
class SmallDriver:
    """One driver; `start` claims, `run_epoch` publishes and commits the next epoch."""

    checkpoints: JobCheckpoints
    sink: Sink = field(default_factory=Sink)
    needs_commit: bool = True
    keep_epochs: int = 2
    claimed: ClaimRecord | None = None
    base: ReadyCheckpoint | None = None
    next_epoch: Epoch = FIRST_EPOCH
    restoring: bool = False
    acknowledged: list[CheckpointRef] = field(default_factory=list)

    @property
    def claim(self) -> ClaimRecord:
        assert self.claimed is not None, "start the driver first"
        return self.claimed

    def start(self, *, restore: CheckpointRef | None = None) -> "SmallDriver":
        """Take the job over, replaying an open commit; a restore may skip a damaged one."""
        taken = self.checkpoints.take_over(restore=restore)
        while isinstance(taken, TakenOver) and isinstance(taken.decision, CommitPermit):
            permit, skipped = taken.decision, None
            try:
                self.sink.commit(permit)
                self.checkpoints.complete_commit(permit)
            except CorruptStateError:
                if restore is None:
                    raise
                skipped = permit.ref
            taken = self.checkpoints.resume(taken.claim, unreplayable=skipped)
        if not isinstance(taken, TakenOver) or not isinstance(taken.decision, Recovered):
            raise FencedOffError(f"another driver owns the job: {taken}")
        self.claimed = taken.claim
        self.base, self.next_epoch = taken.decision.base, taken.decision.next_epoch
        self.restoring = taken.decision.restore is not None
        return self

    def run_epoch(self) -> CheckpointRef:
        """Publish and commit one epoch, which must succeed."""
        manifest = self.write_epoch()
        outcome = self.publish(manifest)
        if isinstance(outcome, Fenced):
            raise FencedOffError(str(outcome))
        assert isinstance(outcome, ReadyCheckpoint | CommitPermit), outcome
        self.finish(outcome)
        return manifest.ref

    def run_epochs(self, count: int) -> list[CheckpointRef]:
        return [self.run_epoch() for _ in range(count)]

    def publish(self, manifest: CheckpointManifest) -> PublicationOutcome:
        return self.checkpoints.publish(self.claim, manifest, self.base)

    def finish(self, outcome: ReadyCheckpoint | CommitPermit) -> None:
        """Commit what was published and go on to the next epoch."""
        self.acknowledged.append(outcome.ref)
        if isinstance(outcome, CommitPermit):
            self.sink.commit(outcome)
            outcome = self.checkpoints.complete_commit(outcome)
        self.base = outcome
        self.next_epoch = self.base.ref.epoch.next()
        if self.restoring:
            self.checkpoints.release_honoured_restores(self.claim)
            self.restoring = False

    def collect(self) -> object:
        return self.checkpoints.collect(self.claim, keep_epochs=self.keep_epochs)

    def sweep(self) -> object:
        return self.checkpoints.sweep(self.claim)

    def write_epoch(self) -> CheckpointManifest:
        """Write the next epoch's file and metadata; return the manifest to publish."""
        ref = CheckpointRef(self.claim.job, self.claim.generation, self.next_epoch)
        before = {} if self.base is None else self._entries(self.base.ref)
        files = self._files(before.get(OPERATOR, ()))
        token = new_token()
        path = table_checkpoint_path(ref, OPERATOR, TABLE, 0, token)
        content = f"{ref} {token}".encode()
        self.checkpoints.store.create(path, content)
        files = [*files[1 - FILES_SEEN :], (path, content)]
        entries: dict[OperatorId, Sequence[ObjectRef]] = {}
        entries[OPERATOR] = self._write_metadata(ref, OPERATOR, files)
        if QUIET in before and ref.epoch % 4 != 0:
            entries[QUIET] = before[QUIET]
        else:
            entries[QUIET] = self._write_metadata(ref, QUIET, [])
        return CheckpointManifest(
            ref=ref,
            parent=None if self.base is None else self.base.ref,
            created_at_micros=7,
            processing_time_micros=7,
            needs_commit=self.needs_commit,
            operators=tuple(
                OperatorEntry(operator, tuple(subtasks))
                for operator, subtasks in sorted(entries.items())
            ),
        )

    def _entries(self, ref: CheckpointRef) -> dict[OperatorId, Sequence[ObjectRef]]:
        manifest = self.checkpoints.manifest(ref)
        return {entry.operator: entry.subtasks for entry in manifest.operators}

    def _files(self, subtasks: Sequence[ObjectRef]) -> list[tuple[str, bytes]]:
        """Read a list of files as a restoring subtask does."""
        backend = ParquetBackend(self.checkpoints.store)
        files = []
        for subtask in subtasks:
            metadata = backend.read_operator_checkpoint_metadata(subtask)
            table = metadata.table_checkpoint_metadata[TABLE]
            listed = pb.GlobalKeyedTableSubtaskCheckpointMetadata.FromString(table.data)
            for file in listed.files:
                data = self.checkpoints.store.read(file.path)
                assert data is not None, f"{file.path} is gone"
                files.append((file.path, data))
        return files

    def _write_metadata(
        self, ref: CheckpointRef, operator: OperatorId, files: list[tuple[str, bytes]]
    ) -> list[ObjectRef]:
        data = metadata_of(files, operator=operator, epoch=ref.epoch)
        backend = ParquetBackend(self.checkpoints.store)
        return [
            backend.write_operator_checkpoint_metadata(
                ref, unseal(pb.OperatorCheckpointMetadata, data, "new")
            )
        ]


def a_driver(
    store: ObjectStore,
    *,
    job: JobId = JOB,
    epochs: int = 0,
    restore: CheckpointRef | None = None,
    needs_commit: bool = True,
    keep_epochs: int = 2,
    sink: Sink | None = None,
) -> SmallDriver:
    """Start a driver and let it publish some epochs."""
    driver = SmallDriver(
        checkpoints_in(store, job),
        sink or Sink(),
        needs_commit=needs_commit,
        keep_epochs=keep_epochs,
    ).start(restore=restore)
    driver.run_epochs(epochs)
    return driver
