"""Small valid records of the checkpoint protocol, and workflows that stop at a chosen call.

Tests vary one fact of a record at a time. A `Sleeper` stops a workflow in front of a storage
call, so that other drivers can act before it goes on.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from penstock.core.ids import (
    Epoch,
    Generation,
    JobId,
    OperatorId,
    SavepointName,
    TableName,
    Token,
    checksum_of,
)
from penstock.errors import PenstockError
from penstock.state.proto import state_pb2 as pb
from penstock.state.protocol.codec import seal
from penstock.state.protocol.records import (
    Actor,
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    CommitMarker,
    EpochRecord,
    ObjectRef,
    OperatorEntry,
    Pin,
    PinKind,
    ProtocolRules,
    RetentionRecord,
)
from penstock.state.protocol.steps import Create, Delete, Request, Steps
from penstock.state.storage.create import carry_out
from penstock.state.storage.object_store import ObjectStore

JOB = JobId("job")
OTHER_JOB = JobId("other")
OPERATOR = OperatorId("counter")
TABLE = TableName("counts")
RULES = ProtocolRules(waypoint_stride=4, adoption_window=2)
"""Small, so that a handful of epochs meets waypoints and leaves the adoption window."""


def a_token(name: str = "somebody") -> Token:
    """Return a token that is the same for the same name."""
    return Token(f"{checksum_of(name.encode()):032x}")


def an_actor(name: str = "somebody", *, job: JobId = JOB) -> Actor:
    return Actor(job, a_token(name), 7, RULES)


def a_ref(epoch: int, *, generation: int = 1, job: JobId = JOB) -> CheckpointRef:
    return CheckpointRef(job, Generation(generation), Epoch(epoch))


def a_claim(
    generation: int = 1,
    *,
    job: JobId = JOB,
    owner: str = "somebody",
    first_epoch: int = 1,
    origin: CheckpointRef | None = None,
    restore: CheckpointRef | None = None,
) -> ClaimRecord:
    return ClaimRecord(
        job=job,
        generation=Generation(generation),
        owner=a_token(owner),
        created_at_micros=7,
        first_epoch=Epoch(first_epoch),
        origin=origin,
        restore=restore,
    )


def a_manifest(
    epoch: int = 1,
    *,
    generation: int = 1,
    job: JobId = JOB,
    parent: CheckpointRef | None = None,
    needs_commit: bool = False,
    operators: Iterable[OperatorEntry] = (),
) -> CheckpointManifest:
    return CheckpointManifest(
        ref=a_ref(epoch, generation=generation, job=job),
        parent=parent,
        created_at_micros=7,
        processing_time_micros=7,
        needs_commit=needs_commit,
        operators=tuple(operators),
    )


def a_record(
    epoch: int = 1,
    *,
    generation: int = 1,
    job: JobId = JOB,
    parent: CheckpointRef | None = None,
) -> EpochRecord:
    return EpochRecord(a_ref(epoch, generation=generation, job=job), parent, 7)


def a_marker(epoch: int = 1, *, generation: int = 1, writer: int = 1) -> CommitMarker:
    return CommitMarker(a_ref(epoch, generation=generation), Generation(writer), 7)


def a_pin(
    name: str,
    epoch: int,
    *,
    generation: int = 1,
    kind: PinKind = PinKind.SAVEPOINT,
    holder: JobId | None = None,
) -> Pin:
    ref = a_ref(epoch, generation=generation)
    return Pin(SavepointName(name), kind, ref, 7, holder)


def a_retention(
    sequence: int = 1,
    *,
    job: JobId = JOB,
    pins: Sequence[Pin] = (),
    collected_before: int = 1,
    collecting: Sequence[CheckpointRef] = (),
) -> RetentionRecord:
    return RetentionRecord(
        job=job,
        sequence=sequence,
        writer=a_token(),
        created_at_micros=7,
        pins=tuple(pins),
        collected_before=Epoch(collected_before),
        collecting=tuple(collecting),
    )


def an_object_ref(path: str, data: bytes) -> ObjectRef:
    return ObjectRef(path, len(data), checksum_of(data))


def metadata_of(
    files: Iterable[tuple[str, bytes]],
    *,
    operator: OperatorId = OPERATOR,
    epoch: int = 1,
) -> bytes:
    """Encode the metadata of a subtask with one table of these files."""
    table = pb.GlobalKeyedTableSubtaskCheckpointMetadata(
        files=[
            pb.StateFile(path=path, size_bytes=len(data), checksum=checksum_of(data))
            for path, data in files
        ]
    )
    return seal(
        pb.OperatorCheckpointMetadata(
            operator_metadata=pb.OperatorMetadata(
                job_id=JOB, operator_id=operator, epoch=epoch, parallelism=1
            ),
            table_checkpoint_metadata={
                TABLE: pb.TableSubtaskCheckpointMetadata(
                    table_type=pb.GLOBAL_KEYED_TABLE, data=table.SerializeToString()
                )
            },
        )
    )


T = TypeVar("T")


class Sleeper(Generic[T]):
    """A process in the middle of a workflow: runs until told to sleep, and wakes later."""

    def __init__(self, store: ObjectStore, steps: Steps[T]) -> None:
        self._store = store
        self._steps = steps
        self._next: Request = next(steps)

    def sleep_before(self, wanted: Callable[[Request], bool]) -> Request:
        """Run on until the next request is a wanted one, and stop in front of it."""
        while not wanted(self._next):
            self._next = self._answer()
        return self._next

    def wake(self) -> T:
        """Run to the end."""
        try:
            while True:
                self._next = self._answer()
        except StopIteration as finished:
            result: T = finished.value
            return result

    def _answer(self) -> Any:
        try:
            answer = carry_out(self._store, self._next)
        except PenstockError as error:
            return self._steps.throw(error)
        return self._steps.send(answer)


def creating(part: str) -> Callable[[Request], bool]:
    """Match the create of an object whose path contains `part`."""
    return lambda request: isinstance(request, Create) and part in request.path


def deleting(part: str = "") -> Callable[[Request], bool]:
    """Match the deletion of an object whose path contains `part`."""
    return lambda request: isinstance(request, Delete) and part in request.path


def asking(part: str) -> Callable[[Request], bool]:
    """Match any request for an object whose path contains `part`."""
    return lambda request: part in getattr(request, "path", "")
