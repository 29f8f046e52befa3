"""Records ↔ bytes: protobuf in an envelope that says what it is, in which version.

Pure. Every decoding failure names the object, what is wrong with it and what to do, and
is an error: nothing is repaired, skipped or guessed. Decoding is remembered by content,
because recovery and collection meet the same few immutable records again and again.

Subtask metadata objects ↔ bytes, and which files they need.

Pure. Collection relies on `files_in_metadata`, so anything it cannot read is an error: a
file that is not understood is never taken for one that nobody needs.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from penstock.core.ids import (
    Epoch,
    Generation,
    JobId,
    OperatorId,
    SavepointName,
    Token,
    checksum_of,
)
from penstock.core.watermark import InputWatermark
from penstock.errors import CorruptStateError, ErrorCode, StateError, UserError
from penstock.state.proto import state_pb2 as pb
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    CommitMarker,
    EpochRecord,
    ObjectRef,
    OperatorEntry,
    Pin,
    PinKind,
    RetentionRecord,
)

MAGIC = "penstock"
PROTOCOL_VERSION = 1

MessageT = TypeVar("MessageT", bound=Message)
RecordT = TypeVar("RecordT")

_PIN_KINDS = {
    PinKind.SAVEPOINT: pb.PIN_KIND_SAVEPOINT,
    PinKind.RESTORE: pb.PIN_KIND_RESTORE,
    PinKind.BRANCH: pb.PIN_KIND_BRANCH,
}
_PIN_KIND_VALUES = {number: kind for kind, number in _PIN_KINDS.items()}


def seal(kind: str, message: Message) -> bytes:
    """Encode a message in its envelope; equal messages give equal bytes."""
    body = message.SerializeToString(deterministic=True)
    envelope = pb.Envelope(
        magic=MAGIC,
        protocol_version=PROTOCOL_VERSION,
        kind=kind,
        body=body,
        body_checksum=checksum_of(body),
    )
    return envelope.SerializeToString(deterministic=True)


def unseal(kind: str, message_type: type[MessageT], data: bytes, path: str) -> MessageT:
    """Decode an envelope and check all it claims."""
    envelope = pb.Envelope()
    try:
        envelope.ParseFromString(data)
    except DecodeError as error:
        raise _corrupt(path, f"is not a readable {kind}", ErrorCode.UNDECODABLE) from error
    if envelope.magic != MAGIC:
        raise _corrupt(path, f"is not a Penstock {kind}", ErrorCode.FOREIGN_OBJECT)
    if envelope.protocol_version < 1:
        raise _corrupt(path, "names no protocol version", ErrorCode.FOREIGN_OBJECT)
    if envelope.protocol_version > PROTOCOL_VERSION:
        raise StateError(
            f"{path!r} was written by protocol version {envelope.protocol_version}, this "
            f"Penstock knows versions up to {PROTOCOL_VERSION}: upgrade Penstock; nothing "
            "was changed",
            code=ErrorCode.NEWER_PROTOCOL,
            path=path,
            found=envelope.protocol_version,
            known=PROTOCOL_VERSION,
        )
    if envelope.kind != kind:
        raise _corrupt(
            path, f"is a {envelope.kind!r}, not a {kind!r}", ErrorCode.FOREIGN_OBJECT
        )
    if checksum_of(envelope.body) != envelope.body_checksum:
        raise _corrupt(path, "does not match its checksum", ErrorCode.CHECKSUM_MISMATCH)
    message = message_type()
    try:
        message.ParseFromString(envelope.body)
    except DecodeError as error:
        raise _corrupt(path, f"holds no readable {kind}", ErrorCode.UNDECODABLE) from error
    return message


def _corrupt(path: str, what: str, code: ErrorCode) -> CorruptStateError:
    return CorruptStateError(
        f"{path!r} {what}: the object was damaged or replaced after it was written. Nothing "
        "was changed; restore an epoch that does not need it, or bring the object back",
        code=code,
        path=path,
    )


def _decoded(path: str, build: Callable[[], RecordT]) -> RecordT:
    """Build a record whose fields validate themselves; an invalid field is corruption."""
    try:
        return build()
    except UserError as error:
        raise _corrupt(
            path, f"holds an invalid value ({error})", ErrorCode.UNDECODABLE
        ) from error


def ref_to_proto(ref: CheckpointRef | None) -> pb.CheckpointRef | None:
    """Return the durable form of a checkpoint reference."""
    if ref is None:
        return None
    return pb.CheckpointRef(job_id=ref.job, generation=ref.generation, epoch=ref.epoch)


def _ref(message: pb.CheckpointRef) -> CheckpointRef:
    return CheckpointRef(
        JobId(message.job_id), Generation(message.generation), Epoch(message.epoch)
    )


def _older_ref(message: Message, than: CheckpointRef, path: str) -> CheckpointRef | None:
    """Return the parent, which is older than its child: chains of parents end."""
    parent = _optional_ref(message, "parent")
    if parent is not None and parent.epoch >= than.epoch:
        raise _corrupt(
            path, f"says that {parent} came before {than}", ErrorCode.PROTOCOL_VIOLATION
        )
    return parent


def _optional_ref(message: Message, field: str) -> CheckpointRef | None:
    return _ref(getattr(message, field)) if message.HasField(field) else None


def encode_claim(claim: ClaimRecord) -> bytes:
    """Encode a claim."""
    return seal(
        "claim",
        pb.ClaimRecord(
            job_id=claim.job,
            generation=claim.generation,
            owner_token=claim.owner,
            created_at_micros=claim.created_at_micros,
            first_epoch=claim.first_epoch,
            origin=ref_to_proto(claim.origin),
            restore=ref_to_proto(claim.restore),
        ),
    )


@lru_cache(maxsize=64)
def decode_claim(data: bytes, path: str) -> ClaimRecord:
    """Decode a claim."""
    message = unseal("claim", pb.ClaimRecord, data, path)
    return _decoded(
        path,
        lambda: ClaimRecord(
            job=JobId(message.job_id),
            generation=Generation(message.generation),
            owner=Token(message.owner_token),
            created_at_micros=message.created_at_micros,
            first_epoch=Epoch(message.first_epoch),
            origin=_optional_ref(message, "origin"),
            restore=_optional_ref(message, "restore"),
        ),
    )


def encode_manifest(manifest: CheckpointManifest) -> bytes:
    """Encode a manifest."""
    return seal(
        "manifest",
        pb.CheckpointManifest(
            ref=ref_to_proto(manifest.ref),
            parent=ref_to_proto(manifest.parent),
            created_at_micros=manifest.created_at_micros,
            processing_time_micros=manifest.processing_time_micros,
            needs_commit=manifest.needs_commit,
            operators=[_operator_to_proto(entry) for entry in manifest.operators],
        ),
    )


def _operator_to_proto(entry: OperatorEntry) -> pb.OperatorEntry:
    return pb.OperatorEntry(
        operator_id=entry.operator,
        parallelism=entry.parallelism,
        subtasks=[
            pb.ObjectRef(path=ref.path, size_bytes=ref.size_bytes, checksum=ref.checksum)
            for ref in entry.subtasks
        ],
        input_watermarks=[
            pb.InputWatermark(
                event_time_micros=mark.event_time_micros,
                idle=mark.idle,
                producer=mark.producer,
            )
            for mark in entry.input_watermarks
        ],
    )


@lru_cache(maxsize=32)
def decode_manifest(data: bytes, path: str) -> CheckpointManifest:
    """Decode a manifest."""
    message = unseal("manifest", pb.CheckpointManifest, data, path)
    return _decoded(
        path,
        lambda: CheckpointManifest(
            ref=_ref(message.ref),
            parent=_older_ref(message, _ref(message.ref), path),
            created_at_micros=message.created_at_micros,
            processing_time_micros=message.processing_time_micros,
            needs_commit=message.needs_commit,
            operators=tuple(_operator(entry) for entry in message.operators),
        ),
    )


def _operator(message: pb.OperatorEntry) -> OperatorEntry:
    return OperatorEntry(
        operator=OperatorId(message.operator_id),
        subtasks=tuple(
            ObjectRef(ref.path, ref.size_bytes, ref.checksum) for ref in message.subtasks
        ),
        input_watermarks=tuple(
            InputWatermark(
                mark.event_time_micros if mark.HasField("event_time_micros") else None,
                mark.idle,
                mark.producer,
            )
            for mark in message.input_watermarks
        ),
    )


def encode_epoch_record(record: EpochRecord) -> bytes:
    """Encode an epoch record."""
    return seal(
        "epoch-record",
        pb.EpochRecord(
            ref=ref_to_proto(record.ref),
            parent=ref_to_proto(record.parent),
            created_at_micros=record.created_at_micros,
        ),
    )


@lru_cache(maxsize=256)
def decode_epoch_record(data: bytes, path: str) -> EpochRecord:
    """Decode an epoch record."""
    message = unseal("epoch-record", pb.EpochRecord, data, path)
    return _decoded(
        path,
        lambda: EpochRecord(
            ref=_ref(message.ref),
            parent=_older_ref(message, _ref(message.ref), path),
            created_at_micros=message.created_at_micros,
        ),
    )


def encode_marker(marker: CommitMarker) -> bytes:
    """Encode a committed marker."""
    return seal(
        "commit-marker",
        pb.CommitMarker(
            ref=ref_to_proto(marker.ref),
            writer_generation=marker.writer_generation,
            created_at_micros=marker.created_at_micros,
        ),
    )


@lru_cache(maxsize=64)
def decode_marker(data: bytes, path: str) -> CommitMarker:
    """Decode a committed marker."""
    message = unseal("commit-marker", pb.CommitMarker, data, path)
    return _decoded(
        path,
        lambda: CommitMarker(
            ref=_ref(message.ref),
            writer_generation=Generation(message.writer_generation),
            created_at_micros=message.created_at_micros,
        ),
    )


def encode_retention(record: RetentionRecord) -> bytes:
    """Encode a retention record."""
    return seal(
        "retention-record",
        pb.RetentionRecord(
            job_id=record.job,
            sequence=record.sequence,
            writer_token=record.writer,
            created_at_micros=record.created_at_micros,
            pins=[
                pb.Pin(
                    name=pin.name,
                    kind=_PIN_KINDS[pin.kind],
                    ref=ref_to_proto(pin.ref),
                    created_at_micros=pin.created_at_micros,
                    holder_job_id=pin.holder,
                )
                for pin in record.pins
            ],
            collected_before=record.collected_before,
            collecting=[
                pb.CheckpointRef(job_id=ref.job, generation=ref.generation, epoch=ref.epoch)
                for ref in record.collecting
            ],
        ),
    )


@lru_cache(maxsize=64)
def decode_retention(data: bytes, path: str) -> RetentionRecord:
    """Decode a retention record."""
    message = unseal("retention-record", pb.RetentionRecord, data, path)
    return _decoded(
        path,
        lambda: RetentionRecord(
            job=JobId(message.job_id),
            sequence=message.sequence,
            writer=Token(message.writer_token),
            created_at_micros=message.created_at_micros,
            pins=tuple(_pin(pin, path) for pin in message.pins),
            collected_before=Epoch(message.collected_before),
            collecting=tuple(_ref(ref) for ref in message.collecting),
        ),
    )


def _pin(message: pb.Pin, path: str) -> Pin:
    kind = _PIN_KIND_VALUES.get(message.kind)
    if kind is None:
        raise _corrupt(
            path, f"holds a pin of unknown kind {message.kind}", ErrorCode.UNDECODABLE
        )
    return Pin(
        name=SavepointName(message.name),
        kind=kind,
        ref=_ref(message.ref),
        created_at_micros=message.created_at_micros,
        holder=JobId(message.holder_job_id) if message.holder_job_id else None,
    )


_KIND = "operator-metadata"
FileList: TypeAlias = (
    pb.GlobalKeyedTableSubtaskCheckpointMetadata
    | pb.TimeKeyedTableSubtaskCheckpointMetadata
    | pb.KeyedTableSubtaskCheckpointMetadata
)
_FILE_LISTS: dict[pb.TableEnum, type[FileList]] = {
    pb.GLOBAL_KEYED_TABLE: pb.GlobalKeyedTableSubtaskCheckpointMetadata,
    pb.TIME_KEYED_TABLE: pb.TimeKeyedTableSubtaskCheckpointMetadata,
    pb.KEYED_TABLE: pb.KeyedTableSubtaskCheckpointMetadata,
}


def encode_metadata(metadata: pb.OperatorCheckpointMetadata) -> bytes:
    """Encode a subtask's metadata; equal metadata gives equal bytes."""
    return seal(_KIND, metadata)


def decode_metadata(data: bytes, path: str) -> pb.OperatorCheckpointMetadata:
    """Decode a subtask's metadata."""
    return unseal(_KIND, pb.OperatorCheckpointMetadata, data, path)


def files_behind(ref: ObjectRef, data: bytes) -> frozenset[str]:
    """Return the files of a metadata object, which must be the one the manifest refers to."""
    if (len(data), checksum_of(data)) != (ref.size_bytes, ref.checksum):
        raise CorruptStateError(
            f"{ref.path!r} is not the object its manifest refers to: size or checksum differ; "
            "nothing was deleted. Bring it back, or restore an epoch that does not need it",
            code=ErrorCode.CHECKSUM_MISMATCH,
            path=ref.path,
        )
    return files_in_metadata(data, ref.path)


@lru_cache(maxsize=256)
def files_in_metadata(data: bytes, path: str) -> frozenset[str]:
    """Return the path of every state file that a metadata object refers to."""
    tables = decode_metadata(data, path).table_checkpoint_metadata.items()
    return frozenset().union(*(files_to_keep(table, path, name) for name, table in tables))


def files_to_keep(
    table: pb.TableSubtaskCheckpointMetadata | pb.TableCheckpointMetadata,
    path: str,
    name: str,
) -> frozenset[str]:
    """Return the path of every file that a table needs; `path` is where its metadata is."""
    message_type = _FILE_LISTS.get(table.table_type)
    if message_type is None:
        raise CorruptStateError(
            f"{path!r} lists table {name!r} of unknown type {table.table_type}; nothing "
            "was deleted. A newer Penstock may have written it: upgrade",
            code=ErrorCode.TABLE_TYPE_MISMATCH,
            path=path,
            table=name,
        )
    message = message_type()
    try:
        message.ParseFromString(table.data)
    except DecodeError as error:
        raise CorruptStateError(
            f"{path!r} holds unreadable metadata of table {name!r}; nothing was deleted. "
            "Bring the object back, or restore an epoch that does not need it",
            path=path,
            table=name,
        ) from error
    return frozenset(file.path for file in message.files)
