"""Small valid records of the checkpoint protocol, for tests to vary one fact at a time."""

from collections.abc import Iterable, Sequence

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
from penstock.state.proto import state_pb2 as pb
from penstock.state.protocol.codec import encode_metadata
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


def an_entry(*subtasks: ObjectRef, operator: OperatorId = OPERATOR) -> OperatorEntry:
    return OperatorEntry(operator, subtasks)


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
    return encode_metadata(
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
