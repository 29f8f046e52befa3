"""The durable records of the protocol as values, and the status that follows from them.

Pure. Every record is created once and never changed. The status of a checkpoint follows from
which records exist (`derive_status`) and is never stored. `ProtocolRules` are the numbers
that every driver of a job must agree on: they are part of the on-disk protocol, not settings.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, TypeVar

from penstock.core.ids import Epoch, Generation, JobId, OperatorId, SavepointName, Token
from penstock.core.watermark import InputWatermark
from penstock.errors import CorruptStateError, ErrorCode

FIRST_EPOCH = Epoch(1)
FIRST_GENERATION = Generation(1)


@dataclass(frozen=True, slots=True, order=True)
class CheckpointRef:
    """Which checkpoint: one attempt of one generation at one epoch of one job."""

    job: JobId
    generation: Generation
    epoch: Epoch

    def __str__(self) -> str:
        return f"{self.job} epoch {self.epoch} (generation {self.generation})"


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """An immutable object by path, with the size and checksum that prove its bytes."""

    path: str
    """Relative to the checkpoint URL."""
    size_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """A driver's claim of the job: its first write. Claims have no gaps and are never deleted."""

    job: JobId
    generation: Generation
    owner: Token
    """Names the claiming driver, which so recognises its own claim after a lost answer."""
    created_at_micros: int
    first_epoch: Epoch
    """The job's first epoch: 1, or for a branch the one after its origin. Same in every claim."""
    origin: CheckpointRef | None = None
    """For a branch: the other job's checkpoint it starts from. Same in every claim."""
    restore: CheckpointRef | None = None
    """The checkpoint that the next epoch of this or a later generation must start from."""
    restored: CheckpointRef | None = None
    """What a program was the last to restore, by this claim or an earlier one.

    A restore by hand leaves it as it is. Claims of older versions do not say it.
    """

    @property
    def last_restore(self) -> CheckpointRef | None:
        """What a program was the last to restore, as far as it is known."""
        return self.restored or self.restore


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """One operator of a manifest: the metadata objects of its subtasks."""

    operator: OperatorId
    subtasks: tuple[ObjectRef, ...]
    """In order of index. An unchanged subtask refers to an older checkpoint's object."""
    input_watermarks: tuple[InputWatermark, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """A whole checkpoint. The driver writes it after all it refers to and before its record."""

    ref: CheckpointRef
    parent: CheckpointRef | None
    created_at_micros: int
    processing_time_micros: int
    needs_commit: bool
    operators: tuple[OperatorEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """The proof that one checkpoint of an epoch is acknowledged. The first creator wins."""

    ref: CheckpointRef
    parent: CheckpointRef | None
    created_at_micros: int


@dataclass(frozen=True, slots=True)
class CommitMarker:
    """The proof that all sinks of a checkpoint have committed."""

    ref: CheckpointRef
    writer_generation: Generation
    created_at_micros: int


class PinKind(Enum):
    """Why an epoch is kept."""

    SAVEPOINT = "savepoint"
    RESTORE = "restore"
    BRANCH = "branch"


@dataclass(frozen=True, slots=True)
class Pin:
    """An epoch that must not be collected while this is in the newest retention record."""

    name: SavepointName
    kind: PinKind
    ref: CheckpointRef
    created_at_micros: int
    holder: JobId | None = None
    """The job that holds the pin, if that is a branch."""


@dataclass(frozen=True, slots=True)
class RetentionRecord:
    """The whole state of pins and collection after `sequence` changes; the newest one counts.

    Only these records order pins and collections: the first creator of the next number wins,
    and any other reads that record and decides again.
    """

    job: JobId
    sequence: int
    writer: Token
    created_at_micros: int
    pins: tuple[Pin, ...] = ()
    collected_before: Epoch = FIRST_EPOCH
    """Every epoch below this number is given up, unless it is pinned."""
    collecting: tuple[CheckpointRef, ...] = ()
    """Checkpoints that are given up and perhaps not yet deleted in full."""


Record: TypeAlias = (
    ClaimRecord | CheckpointManifest | EpochRecord | CommitMarker | RetentionRecord
)
RecordT = TypeVar(
    "RecordT", ClaimRecord, CheckpointManifest, EpochRecord, CommitMarker, RetentionRecord
)


@dataclass(frozen=True, slots=True)
class Invisible:
    """It has no manifest: for all but its writer this checkpoint does not exist."""


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """It has a manifest, but its epoch has no record: it must be neither a parent nor committed."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """The epoch belongs to another checkpoint."""

    winner: CheckpointRef


@dataclass(frozen=True, slots=True)
class Committing:
    """It is acknowledged; its sinks must commit, perhaps again, before an epoch builds on it."""

    manifest: CheckpointManifest
    record: EpochRecord


@dataclass(frozen=True, slots=True)
class Ready:
    """It is acknowledged and committed, or has nothing to commit. It may be a parent."""

    manifest: CheckpointManifest


CheckpointStatus: TypeAlias = Invisible | Unacknowledged | Superseded | Committing | Ready


@dataclass(frozen=True, slots=True)
class Fenced:
    """A newer generation owns the job: stop for good, commit and delete nothing."""

    generation: Generation
    """The generation that was replaced."""
    acknowledged: CheckpointRef | None = None
    """The checkpoint whose record this driver created before it was fenced; its successor
    commits it."""


def derive_status(
    ref: CheckpointRef,
    manifest: CheckpointManifest | None,
    record: EpochRecord | None,
    marker: CommitMarker | None,
) -> CheckpointStatus:
    """Derive the status of `ref` from the records found; contradictions are corruption."""
    if manifest is None:
        return Invisible()
    _require(manifest.ref == ref, ref, f"its manifest says it is {manifest.ref}")
    if record is None:
        return Unacknowledged()
    _require(record.ref.epoch == ref.epoch, ref, f"its epoch record is of {record.ref}")
    if record.ref != ref:
        return Superseded(record.ref)
    _require(
        record.parent == manifest.parent, ref, "manifest and epoch record differ in parent"
    )
    if not manifest.needs_commit:
        return Ready(manifest)
    if marker is None:
        return Committing(manifest, record)
    _require(marker.ref == ref, ref, f"its committed marker is of {marker.ref}")
    return Ready(manifest)


def _require(holds: bool, ref: CheckpointRef, what: str) -> None:  # noqa: FBT001 (an assertion)
    if not holds:
        raise CorruptStateError(
            f"checkpoint {ref} contradicts itself: {what}. Nothing was changed; objects were "
            "moved or edited by hand, bring them back or restore another epoch",
            code=ErrorCode.PROTOCOL_VIOLATION,
            checkpoint=str(ref),
        )


@dataclass(frozen=True, slots=True)
class ProtocolRules:
    """Constants of the protocol; only tests use other values than the defaults."""

    waypoint_stride: int = 1024
    """One of this many numbers of a sequence is kept for ever, so that its end can be found."""
    adoption_window: int = 256
    """An epoch may adopt new files only from its own slot and this many slots before it.

    A delta lies in its own epoch's slot. A compacted file lies in the slot of the epoch after
    the one it was planned from, and is void if it comes later than this. So an object that
    nothing refers to, in a slot this far below the newest epoch, can never be referred to
    again, even by a driver that was paused: the epoch that it would publish is already taken.
    """

    def may_adopt(self, slot_epoch: int, epoch: int) -> bool:
        """Tell whether `epoch` may refer to a new file that lies in the slot of `slot_epoch`."""
        return epoch - self.adoption_window <= slot_epoch <= epoch


RULES = ProtocolRules()


@dataclass(frozen=True, slots=True)
class Actor:
    """The job, writer, time and rules of one workflow."""

    job: JobId
    token: Token
    """Names the writer, which so recognises its own records after a lost answer."""
    now_micros: int
    rules: ProtocolRules = RULES
