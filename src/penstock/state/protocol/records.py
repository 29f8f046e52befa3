"""The durable records of the protocol as values: who writes each, when, and how often.

All of them are create-once. What is true of a checkpoint is derived from which of these
exist (see `status`), never stored.
"""

from dataclasses import dataclass
from enum import Enum

from penstock.core.ids import Epoch, Generation, JobId, OperatorId, SavepointName, Token

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
    """An immutable object by path, with what proves that it is the one that was written."""

    path: str
    """Relative to the checkpoint URL."""
    size_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """A driver's claim of the job. Written first of all; consecutive, never deleted."""

    job: JobId
    generation: Generation
    owner: Token
    """The claiming driver; what makes a claim provably its own after a lost answer."""
    created_at_micros: int
    first_epoch: Epoch
    """The job's first epoch: 1, or for a branch the one after its origin. Same in every claim."""
    origin: CheckpointRef | None = None
    """For a branch: the other job's checkpoint it starts from. Same in every claim."""
    restore: CheckpointRef | None = None
    """What the first epoch published by this or a later generation must start from."""


@dataclass(frozen=True, slots=True)
class InputWatermark:
    """How far one input of an operator has come; neither set means it has not spoken yet."""

    event_time_micros: int | None = None
    idle: bool = False
    producer: str = ""
    """Which operator and output feed the input; "" where that is not known."""


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """One operator of a manifest: where the metadata of each of its subtasks is."""

    operator: OperatorId
    subtasks: tuple[ObjectRef, ...]
    """In order of index. An unchanged subtask refers to an older checkpoint's object."""
    input_watermarks: tuple[InputWatermark, ...] = ()

    @property
    def parallelism(self) -> int:
        """The number of subtasks."""
        return len(self.subtasks)


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """A whole checkpoint. Written by the driver after all it refers to, before its record."""

    ref: CheckpointRef
    parent: CheckpointRef | None
    created_at_micros: int
    processing_time_micros: int
    needs_commit: bool
    operators: tuple[OperatorEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """The proof that one checkpoint of an epoch is acknowledged. First creator wins."""

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
    """The job that holds the pin, when it is a branch."""


@dataclass(frozen=True, slots=True)
class RetentionRecord:
    """The whole state of pins and collection after `sequence` changes; the newest one counts.

    Pins and collections are ordered by these records alone: whoever creates the next
    number first wins, the other reads it and decides anew.
    """

    job: JobId
    sequence: int
    writer: Token
    created_at_micros: int
    pins: tuple[Pin, ...] = ()
    collected_before: Epoch = FIRST_EPOCH
    """Every epoch below this number is given up, unless it is pinned."""
    collecting: tuple[CheckpointRef, ...] = ()
    """Given up, and perhaps not yet deleted in full."""
