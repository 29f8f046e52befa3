"""One job's checkpoints in one store: the methods that a driver and the command line call.

Every method of `JobCheckpoints` runs one workflow of the protocol to its end. A storage error
leaves the job as a crash at that point would: calling again, or taking over again, is safe.

`ParquetBackend` stores the metadata objects that a manifest refers to: each is written once
and verified on every read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa
from google.protobuf.message import DecodeError

from penstock.core.clock import Clock, SystemClock, new_token
from penstock.core.ids import JobId, OperatorId, SavepointName, Token, checksum_of
from penstock.errors import CorruptStateError, ErrorCode, InternalError, StateError
from penstock.state.proto.state_pb2 import (
    KEYED_TABLE,
    TIME_KEYED_TABLE,
    KeyedTableConfig,
    OperatorCheckpointMetadata,
    TimeKeyedTableConfig,
)
from penstock.state.protocol import restoring, retention, takeover
from penstock.state.protocol.codec import seal, unseal
from penstock.state.protocol.collection import (
    CollectionOutcome,
    LeftOff,
    Memory,
    SweepOutcome,
    collect_garbage,
    plan_collection,
    sweep_orphans,
)
from penstock.state.protocol.paths import manifest_path, marker_path, metadata_path
from penstock.state.protocol.publication import (
    CommitPermit,
    PublicationOutcome,
    ReadyCheckpoint,
    complete_commit,
    publish_checkpoint,
)
from penstock.state.protocol.reading import (
    find_newest_epoch,
    is_fenced,
    read_epoch_record,
    read_identity,
    read_manifest,
    read_newest_claim,
    read_newest_record,
    read_status,
)
from penstock.state.protocol.records import (
    RULES,
    Actor,
    CheckpointManifest,
    CheckpointRef,
    CheckpointStatus,
    ClaimRecord,
    EpochRecord,
    ObjectRef,
    Pin,
    PinKind,
    ProtocolRules,
    RetentionRecord,
)
from penstock.state.protocol.restoring import RestorePlan
from penstock.state.protocol.retention import Epochs
from penstock.state.protocol.steps import Steps, leave_off
from penstock.state.protocol.takeover import TakeOverOutcome
from penstock.state.storage.create import create_own, run_steps
from penstock.state.storage.object_store import ObjectStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EpochStatus:
    """One kept epoch, as the command line shows it."""

    record: EpochRecord
    status: CheckpointStatus
    canonical: bool | None
    """Whether the newest epoch descends from it; False for one that a restore abandoned.

    It is None if that is not known: for a savepoint older than epochs that are given up.
    """
    savepoints: tuple[SavepointName, ...]


@dataclass(slots=True)
class JobCheckpoints:
    """A job's checkpoints. It holds no authority: claims, permits and pins carry that."""

    store: ObjectStore
    job: JobId
    clock: Clock = field(default_factory=SystemClock)
    rules: ProtocolRules = RULES
    memory: Memory = field(default_factory=Memory)

    def take_over(
        self, *, restore: CheckpointRef | None = None, is_by_hand: bool = False
    ) -> TakeOverOutcome:
        """Claim the job and find where to go on; `restore` comes from `plan_restore`."""
        actor = self._actor()
        return self._run(takeover.take_over(actor, restore=restore, is_by_hand=is_by_hand))

    def resume(
        self, claim: ClaimRecord, *, unreplayable: CheckpointRef | None = None
    ) -> TakeOverOutcome:
        """Find where to go on after a replayed commit.

        `unreplayable` is a checkpoint that could not be committed because it is damaged: a
        restore in force then goes on without it.
        """
        actor = self._actor(claim.job, claim.owner)
        return self._run(takeover.resume(actor, claim, unreplayable=unreplayable))

    def is_fenced(self, claim: ClaimRecord) -> bool:
        """Tell whether a newer driver has claimed the job."""
        return self._run(is_fenced(claim))

    def publish(
        self,
        claim: ClaimRecord,
        manifest: CheckpointManifest,
        parent: ReadyCheckpoint | None,
    ) -> PublicationOutcome:
        """Acknowledge an epoch whose files and metadata are all written."""
        return self._run(publish_checkpoint(claim, manifest, parent))

    def complete_commit(self, permit: CommitPermit) -> ReadyCheckpoint:
        """Note that every sink has committed."""
        return self._run(complete_commit(permit, now_micros=self.clock.now_micros()))

    def release_honoured_restores(self, claim: ClaimRecord) -> None:
        """Remove the pin of a restore after its first epoch is published."""
        actor = self._actor(claim.job, claim.owner)
        self._run(takeover.release_honoured_restores(actor, claim))

    def collect(
        self,
        claim: ClaimRecord,
        *,
        keep_epochs: int,
        keep_micros: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> CollectionOutcome:
        """Give up epochs and delete what only they needed.

        The last `keep_epochs` stay, and with `keep_micros` all that are needed to go back so far.
        It leaves off as soon as `is_over`.
        """
        collection = collect_garbage(
            self._actor(claim.job),
            claim,
            keep_epochs=keep_epochs,
            keep_micros=keep_micros,
            memory=self.memory,
        )
        return self._run(leave_off(collection, is_over, LeftOff()))

    def plan_collection(
        self, claim: ClaimRecord, *, keep_epochs: int, keep_micros: int | None = None
    ) -> tuple[CheckpointRef, ...]:
        """Return what `collect` would give up now. Changes nothing."""
        since = None if keep_micros is None else self.clock.now_micros() - keep_micros
        keep = retention.KeepRule(keep_epochs, since)
        plan = plan_collection(self._actor(claim.job), claim, keep, memory=Memory())
        return self._run(plan)

    def newest_claim(self) -> ClaimRecord | None:
        """Read the newest claim; None for a job that does not exist."""
        return self._run(read_newest_claim(self.job))

    def require_claim(self) -> ClaimRecord:
        """Read the newest claim; a job that does not exist is an error."""
        claim = self.newest_claim()
        if claim is None:
            raise StateError(
                f"there is no job {self.job!r} in {self.store.url}; check the job's name and the "
                "checkpoint URL",
                code=ErrorCode.NOT_RESTORABLE,
                job=str(self.job),
            )
        return claim

    def leave(self, claim: ClaimRecord) -> None:
        """Note that the driver of a claim has ended."""
        self._run(takeover.leave(claim))

    def last_restore(self) -> CheckpointRef | None:
        """Return what a program was the last to restore, whether or not that is done."""
        claim = self.newest_claim()
        return None if claim is None else claim.last_restore

    def running(self) -> ClaimRecord | None:
        """Return the newest claim if its driver may still run; it may also have died."""
        return self._run(takeover.find_running(self.job))

    def release_origin(self, claim: ClaimRecord) -> bool:
        """Remove a branch's pin on its origin, once `collect` returned `needs_origin=False`."""
        return self._run(restoring.release_origin(self._actor(claim.job), claim))

    def sweep(
        self, claim: ClaimRecord, *, is_over: Callable[[], bool] = lambda: False
    ) -> SweepOutcome:
        """Delete what failed attempts left behind; leave off as soon as `is_over`."""
        swept = sweep_orphans(self._actor(claim.job), claim, memory=self.memory)
        return self._run(leave_off(swept, is_over, LeftOff()))

    def pin(self, name: SavepointName, which: Epochs) -> Pin:
        """Make a savepoint: keep an epoch under a name until it is unpinned."""
        return self._run(retention.pin_epoch(self._actor(), name, PinKind.SAVEPOINT, which))

    def unpin(self, name: SavepointName) -> bool:
        """Remove a savepoint; tell whether there was one."""
        return self._run(retention.unpin(self._actor(), [name]))

    def read_retention(self) -> RetentionRecord:
        """Return the pins and the given-up epochs as of the newest retention record."""
        return self._run(retention.read_retention(self._actor()))

    def pins(self) -> tuple[Pin, ...]:
        """Return all current pins: savepoints, restores under way, branches."""
        return self.read_retention().pins

    def plan_restore(self, which: Epochs) -> RestorePlan:
        """Find the epoch to restore and list what doing so abandons. Changes nothing."""
        return self._run(restoring.plan_restore(self._actor(), which))

    def branch(self, branch: JobId, which: Epochs) -> ClaimRecord:
        """Create another job that starts from one of this job's epochs, copying nothing."""
        return self._run(restoring.branch_job(self._actor(), branch, which))

    def manifest(self, ref: CheckpointRef) -> CheckpointManifest:
        """Read a checkpoint's manifest; a missing one is an error."""
        found = self._run(read_manifest(ref))
        if found is None:
            raise CorruptStateError(
                f"{manifest_path(ref)!r} is missing. Nothing was changed; bring it back, or "
                "restore another epoch",
                code=ErrorCode.OBJECT_MISSING,
                path=manifest_path(ref),
            )
        return found

    def identity(self) -> Token | None:
        """Return a token of this job that no later job of its name has; None before a claim."""
        first = self._run(read_identity(self.job))
        return None if first is None else first.owner

    def newest(self) -> CheckpointManifest | None:
        """Read the manifest of the newest acknowledged epoch; None before the first."""
        return self._run(self._read_newest())

    def base(self, *, restore: CheckpointRef | None = None) -> CheckpointRef | None:
        """Find the checkpoint that a start would go on from, a restore in force included."""
        return self._run(takeover.find_base(self._actor(), restore=restore))

    def last_epoch(self) -> int:
        """Return the highest number of an epoch that is used up; 0 for a job without any."""
        return self._run(self._read_last_epoch())

    def is_committed(self, manifest: CheckpointManifest) -> bool:
        """Tell whether an acknowledged epoch has nothing left to commit."""
        marker = marker_path(manifest.ref)
        return not manifest.needs_commit or self.store.size(marker) is not None

    def epochs(self) -> tuple[EpochStatus, ...]:
        """Return every kept epoch, newest first."""
        return tuple(self._run(self._read_epochs()))

    def _read_newest(self) -> Steps[CheckpointManifest | None]:
        first = yield from read_identity(self.job)
        if first is None:
            return None
        newest = yield from read_newest_record(self._actor(), first=first.first_epoch)
        return None if newest is None else (yield from read_manifest(newest.ref))

    def _read_last_epoch(self) -> Steps[int]:
        first = yield from read_identity(self.job)
        if first is None:
            return 0
        newest = yield from find_newest_epoch(self._actor(), first=first.first_epoch)
        return first.first_epoch - 1 if newest is None else int(newest)

    def _read_epochs(self) -> Steps[list[EpochStatus]]:
        state = yield from retention.read_retention(self._actor())
        first = yield from read_identity(self.job)
        if first is None:
            return []
        newest = yield from read_newest_record(self._actor(), first=first.first_epoch)
        if newest is None:
            return []
        start = max(state.collected_before, first.first_epoch)
        numbers = {
            *range(start, newest.ref.epoch + 1),
            *(pin.ref.epoch for pin in state.pins),
        }
        expected: CheckpointRef | None = newest.ref
        found = []
        for number in sorted(numbers, reverse=True):
            record = yield from read_epoch_record(self.job, number)
            if record is None:
                continue
            canonical = _is_canonical(record.ref, expected)
            expected = record.parent if canonical else expected
            status = yield from read_status(record.ref, record)
            names = tuple(pin.name for pin in state.pins if pin.ref == record.ref)
            found.append(EpochStatus(record, status, canonical, names))
        return found

    def _actor(self, job: JobId | None = None, token: Token | None = None) -> Actor:
        """Return a new actor; a workflow that has a claim acts on the job of the claim."""
        return Actor(
            job or self.job, token or new_token(), self.clock.now_micros(), self.rules
        )

    def _run(self, steps: Steps[T]) -> T:
        return run_steps(self.store, steps)


def _is_canonical(ref: CheckpointRef, expected: CheckpointRef | None) -> bool | None:
    """Tell whether the newest epoch descends from `ref`; `expected` is its next ancestor.

    Epochs are passed in descending order. If `ref` is below `expected`, the record of
    `expected` is missing, and the answer is None: not known.
    """
    if expected is None or expected.epoch <= ref.epoch:
        return ref == expected
    return None


Metadata: TypeAlias = OperatorCheckpointMetadata


class BackingStore(Protocol):
    """Where the metadata of operators' subtasks is kept."""

    def write_operator_checkpoint_metadata(
        self, ref: CheckpointRef, metadata: OperatorCheckpointMetadata
    ) -> ObjectRef:
        """Write one subtask's metadata for a checkpoint; return what a manifest refers to."""

    def read_operator_checkpoint_metadata(
        self, ref: ObjectRef
    ) -> OperatorCheckpointMetadata:
        """Read and verify what a manifest refers to."""


@dataclass(frozen=True, slots=True)
class ParquetBackend:
    """The backing store beside the Parquet files: protobuf objects in the checkpoint's folder.

    Only the driver writes here, after every subtask's files are durable and before the
    manifest. The tables write the data files.
    """

    store: ObjectStore

    def write_operator_checkpoint_metadata(
        self, ref: CheckpointRef, metadata: OperatorCheckpointMetadata
    ) -> ObjectRef:
        """Create the object. Writing the same metadata again is fine; other metadata is refused."""
        operator = metadata.operator_metadata
        path = metadata_path(ref, OperatorId(operator.operator_id), operator.subtask_index)
        data = seal(metadata)
        if create_own(self.store, path, data) is not None:
            raise InternalError(
                f"{path!r} already holds other metadata of this generation; claim a new "
                "generation before running the epoch again",
                code=ErrorCode.PROTOCOL_VIOLATION,
                path=path,
            )
        return ObjectRef(path, len(data), checksum_of(data))

    def read_operator_checkpoint_metadata(
        self, ref: ObjectRef
    ) -> OperatorCheckpointMetadata:
        """Read the object and check that it is the one that was written."""
        data = self.store.read(ref.path)
        if data is None:
            raise _damaged(ref, "is missing", ErrorCode.OBJECT_MISSING)
        if len(data) != ref.size_bytes:
            what = f"has {len(data)} bytes, the manifest says {ref.size_bytes}"
            raise _damaged(ref, what, ErrorCode.CHECKSUM_MISMATCH)
        if checksum_of(data) != ref.checksum:
            raise _damaged(ref, "does not match its checksum", ErrorCode.CHECKSUM_MISMATCH)
        metadata = unseal(OperatorCheckpointMetadata, data, ref.path)
        for name, config in sorted(metadata.table_configs.items()):
            problem = _find_problem(config.table_type, config.config)
            if problem is not None:
                what = f"declares table {name!r} without readable columns ({problem})"
                raise _damaged(ref, what, ErrorCode.UNDECODABLE)
        return metadata


_WITH_COLUMNS: Mapping[int, type[TimeKeyedTableConfig | KeyedTableConfig]] = {
    TIME_KEYED_TABLE: TimeKeyedTableConfig,
    KEYED_TABLE: KeyedTableConfig,
}


@lru_cache(maxsize=256)
def _find_problem(table_type: int, config: bytes) -> str | None:
    """Return why the declaration of a stored table cannot be read. Cached: most are the same."""
    message_type = _WITH_COLUMNS.get(table_type)
    if message_type is None:
        return None
    try:
        pa.ipc.read_schema(pa.py_buffer(message_type.FromString(config).arrow_schema))
    except (DecodeError, pa.ArrowException, OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return None


def _damaged(ref: ObjectRef, what: str, code: ErrorCode) -> CorruptStateError:
    return CorruptStateError(
        f"metadata object {ref.path!r} {what}. Nothing was changed; bring it back, or restore "
        "an epoch that does not need it",
        code=code,
        path=ref.path,
    )
