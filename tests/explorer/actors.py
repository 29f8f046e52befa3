"""What takes part in a history: drivers, pinning users, branches, each a generator of steps."""

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, assert_never

from penstock.core.ids import (
    Epoch,
    JobId,
    OperatorId,
    SavepointName,
    TableName,
    Token,
    checksum_of,
)
from penstock.errors import (
    ErrorCode,
    PenstockError,
    StateError,
    StorageError,
    UnknownOutcomeError,
)
from penstock.state.proto import state_pb2 as pb
from penstock.state.protocol import codec, paths
from penstock.state.protocol.codec import seal, unseal
from penstock.state.protocol.collection import (
    CollectionDone,
    Memory,
    collect_garbage,
    sweep_orphans,
)
from penstock.state.protocol.publication import (
    CommitPermit,
    LostEpoch,
    PublicationOutcome,
    ReadyCheckpoint,
    complete_commit,
    publish_checkpoint,
)
from penstock.state.protocol.reading import is_fenced, read_newest_claim
from penstock.state.protocol.records import (
    Actor,
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    Fenced,
    ObjectRef,
    OperatorEntry,
    PinKind,
    ProtocolRules,
)
from penstock.state.protocol.restoring import branch_job, plan_restore, release_origin
from penstock.state.protocol.retention import Epochs, pin_epoch, unpin
from penstock.state.protocol.steps import create_once, read
from penstock.state.protocol.takeover import (
    Recovered,
    TakenOver,
    release_honoured_restores,
    resume,
    take_over,
)
from tests.explorer.world import CommitSinks, World, WorldRequest

Program: TypeAlias = Generator[WorldRequest, Any, None]
RULES = ProtocolRules(waypoint_stride=3, adoption_window=1)
JOB = JobId("job")
OPERATOR = OperatorId("op")
TABLE = TableName("t")
EXPECTED = {ErrorCode.NOT_RESTORABLE, ErrorCode.JOB_EXISTS}
"""Refusals a user may meet in a race; anything else that is not a storage error is a bug."""


@dataclass(slots=True)
class Driver:
    """One driver process: takes the job over, publishes epochs, commits, collects."""

    name: str
    world: World
    epochs: int = 1
    job: JobId = JOB
    restore: int | None = None
    collects: bool = True
    sweeps: bool = False
    commits: bool = True
    takeovers: int = 2
    """How often it may claim before it gives up."""
    stubborn: bool = False
    """Whether it goes on in the same process after a storage error, with what it remembers."""
    memory: Memory = field(default_factory=Memory)
    compacted: str | None = None

    def run(self) -> Program:
        """The process from start to stop."""
        actor = Actor(self.job, token_of(self.name), 7, RULES)
        restore = yield from self._planned_restore(actor)
        done = 0
        for attempt in range(self.takeovers):
            actor = replace(actor, token=token_of(f"{self.name}-{attempt}"))
            taken = yield from take_over(actor, restore=restore)
            while isinstance(taken, TakenOver) and isinstance(taken.decision, CommitPermit):
                permit = taken.decision
                yield CommitSinks(permit.ref)
                yield from complete_commit(permit, now_micros=7)
                taken = yield from resume(actor, taken.claim)
            if isinstance(taken, Fenced) or not isinstance(taken.decision, Recovered):
                return
            restore = None
            done, lost = yield from self._epochs(taken.claim, taken.decision, actor, done)
            if not lost:
                return

    def _planned_restore(
        self, actor: Actor
    ) -> Generator[WorldRequest, Any, CheckpointRef | None]:
        if self.restore is None:
            return None
        plan = yield from plan_restore(actor, Epochs(Epoch(self.restore)))
        self.world.restored = True
        return plan.ref

    def _epochs(
        self, claim: ClaimRecord, start: Recovered, actor: Actor, done: int
    ) -> Generator[WorldRequest, Any, tuple[int, bool]]:
        """Publish what is left to publish; tell whether an epoch was lost to another driver."""
        base, epoch, restore = start.base, start.next_epoch, start.restore
        files = yield from self._restore_files(claim, base)
        if files is None:
            return done, False
        while done < self.epochs:
            manifest, files = yield from self.write_epoch(claim, base, epoch, files)
            outcome = yield from self._publish(claim, manifest, base)
            match outcome:
                case Fenced():
                    return done, False
                case LostEpoch():
                    return done, True
                case ReadyCheckpoint() as ready:
                    self.world.acknowledged.add(ready.ref)
                case CommitPermit() as permit:
                    self.world.acknowledged.add(permit.ref)
                    yield CommitSinks(permit.ref)
                    ready = yield from complete_commit(permit, now_micros=7)
                case _:
                    assert_never(outcome)
            base, epoch, done = ready, epoch.next(), done + 1
            try:
                replaced = yield from self._tidy(claim, actor, restore=restore)
            except (StorageError, UnknownOutcomeError):
                if not self.stubborn:
                    raise
                continue
            if replaced:
                return done, False
            restore = None
        return done, False

    def _publish(
        self,
        claim: ClaimRecord,
        manifest: CheckpointManifest,
        base: ReadyCheckpoint | None,
    ) -> Generator[WorldRequest, Any, PublicationOutcome]:
        try:
            return (yield from publish_checkpoint(claim, manifest, base))
        except (StorageError, UnknownOutcomeError):
            if not self.stubborn:
                raise
        return (yield from publish_checkpoint(claim, manifest, base))

    def _tidy(
        self, claim: ClaimRecord, actor: Actor, *, restore: ClaimRecord | None
    ) -> Generator[WorldRequest, Any, bool]:
        """Do what follows a published epoch; tell whether the driver found itself replaced."""
        if restore is not None:
            yield from release_honoured_restores(actor, claim)
        if self.collects:
            collected = yield from collect_garbage(
                actor, claim, keep_epochs=self.world.keep_epochs, memory=self.memory
            )
            if isinstance(collected, Fenced):
                return True
            if isinstance(collected, CollectionDone) and not collected.needs_origin:
                self.world.promises.pop(f"the branch {self.job}", None)
                yield from release_origin(actor, claim)
        if self.sweeps:
            yield from sweep_orphans(actor, claim, memory=self.memory)
        return False

    def _restore_files(
        self, claim: ClaimRecord, base: ReadyCheckpoint | None
    ) -> Generator[WorldRequest, Any, list[str] | None]:
        """Read the base as a restoring subtask does; None if a successor collected it."""
        if base is None:
            return []
        path = paths.manifest_path(base.ref)
        missing = path
        data = yield from read(path)
        files: list[str] = []
        if data is not None:
            missing = ""
            for metadata in (
                codec.decode(CheckpointManifest, data, path).operators[0].subtasks
            ):
                content = yield from read(metadata.path)
                if content is None:
                    missing = metadata.path
                    break
                table = unseal(
                    pb.OperatorCheckpointMetadata, content, metadata.path
                ).table_checkpoint_metadata
                message = pb.GlobalKeyedTableSubtaskCheckpointMetadata.FromString(
                    table[TABLE].data
                )
                files += [file.path for file in message.files]
            for file in files:
                if (yield from read(file)) is None:
                    missing = file
        if missing:
            fenced = yield from is_fenced(claim)
            assert fenced, f"{self.name} cannot read {missing} of its base {base.ref}"
            return None
        return files

    def write_epoch(
        self,
        claim: ClaimRecord,
        base: ReadyCheckpoint | None,
        epoch: Epoch,
        files: list[str],
    ) -> Generator[WorldRequest, Any, tuple[CheckpointManifest, list[str]]]:
        """Write a delta, now and then a compaction for the next epoch, and the metadata."""
        ref = CheckpointRef(self.job, claim.generation, epoch)
        token = token_of(f"{self.name}-{epoch}-{claim.generation}")
        delta = paths.table_checkpoint_path(ref, OPERATOR, TABLE, 0, token)
        yield from create_once(delta, b"delta")
        if self.compacted is not None:  # written last epoch, adopted in this one
            files = [self.compacted]
            self.compacted = None
        elif len(files) >= 2:
            output = paths.table_checkpoint_path(
                ref, OPERATOR, TABLE, 0, token, compacted=True
            )
            yield from create_once(output, b"compacted")
            self.compacted = output
        files = [*files[-2:], delta]
        content = _metadata(files)
        path = paths.metadata_path(ref, OPERATOR, 0)
        yield from create_once(path, content)
        entry = OperatorEntry(
            OPERATOR, (ObjectRef(path, len(content), checksum_of(content)),)
        )
        manifest = CheckpointManifest(
            ref=ref,
            parent=None if base is None else base.ref,
            created_at_micros=epoch,
            processing_time_micros=epoch,
            needs_commit=self.commits,
            operators=(entry,),
        )
        return manifest, files


@dataclass(slots=True)
class PinningUser:
    """Somebody at the command line: pins an epoch, relies on it, lets it go."""

    name: str
    world: World
    epoch: int | None = None
    releases: bool = True

    def run(self) -> Program:
        """Pin, check, unpin."""
        actor = Actor(JOB, token_of(self.name), 7, RULES)
        savepoint = SavepointName(self.name)
        number = None if self.epoch is None else Epoch(self.epoch)
        pin = yield from pin_epoch(actor, savepoint, PinKind.SAVEPOINT, Epochs(number))
        self.world.promises[f"the savepoint {self.name}"] = pin.ref
        if self.releases:
            del self.world.promises[f"the savepoint {self.name}"]
            yield from unpin(actor, [savepoint])


@dataclass(slots=True)
class CollectingUser:
    """Somebody who collects beside the driver, under the claim that is the newest."""

    name: str
    world: World

    def run(self) -> Program:
        """Collect and sweep as often as the job is claimed anew."""
        actor = Actor(JOB, token_of(self.name), 7, RULES)
        while True:
            claim = yield from read_newest_claim(JOB)
            assert claim is not None
            memory = Memory()
            collected = yield from collect_garbage(
                actor, claim, keep_epochs=self.world.keep_epochs, memory=memory
            )
            if not isinstance(collected, Fenced):
                swept = yield from sweep_orphans(actor, claim, memory=memory)
                if not isinstance(swept, Fenced):
                    return


@dataclass(slots=True)
class Branching:
    """Somebody branches the job and runs the branch."""

    name: str
    world: World
    epochs: int = 1
    origin: JobId = JOB
    user: str = "somebody"

    def run(self) -> Program:
        """Branch from the newest epoch, then drive the new job."""
        branch = JobId(self.name)
        token = token_of(f"{self.name}-{self.user}")
        actor = Actor(self.origin, token, 7, RULES)
        claim = yield from branch_job(actor, branch, Epochs())
        assert claim.origin is not None
        self.world.promises[f"the branch {branch}"] = claim.origin
        name = f"{self.name}-{self.user}-driver"
        driver = Driver(name, self.world, job=branch, epochs=self.epochs)
        yield from driver.run()


def tolerating(program: Program) -> Program:
    """Let an actor stop on what a real process would stop on: storage errors and refusals."""
    try:
        yield from program
    except PenstockError as error:
        if isinstance(error, StateError) and error.code not in EXPECTED:
            raise
        if error.code in {ErrorCode.INTERNAL, ErrorCode.PROTOCOL_VIOLATION}:
            raise
        if error.code is ErrorCode.OBJECT_MISSING:
            raise


def token_of(name: str) -> Token:
    return Token(f"{checksum_of(name.encode()):032x}")


def _metadata(files: list[str]) -> bytes:
    table = pb.GlobalKeyedTableSubtaskCheckpointMetadata(
        files=[pb.StateFile(path=path) for path in files]
    )
    wrapped = pb.TableSubtaskCheckpointMetadata(
        table_type=pb.GLOBAL_KEYED_TABLE, data=table.SerializeToString()
    )
    return seal(pb.OperatorCheckpointMetadata(table_checkpoint_metadata={TABLE: wrapped}))
