"""Records ↔ bytes: protobuf in an envelope that names the kind and the protocol version.

Pure. A record is stored field by field. Its class declares the fields and their types, and
`_STORED_AS` lists the fields that have another name in the message. Every decoding failure is
an error that names the object, what is wrong with it and what to do: nothing is repaired,
skipped or guessed. Decoded records are cached by content, because recovery and collection
read the same few immutable records many times.

Metadata objects of subtasks stay messages. Collection relies on `files_in_metadata`, so a
table that it cannot read is an error: its files must never be taken for unneeded ones.
"""

from functools import lru_cache
from types import UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import DecodeError, Message

from penstock.core.ids import checksum_of
from penstock.core.watermark import InputWatermark
from penstock.errors import CorruptStateError, ErrorCode, StateError, UserError
from penstock.state.proto import state_pb2 as pb
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ObjectRef,
    OperatorEntry,
    Pin,
    PinKind,
    Record,
    RecordT,
)

MAGIC = "penstock"
PROTOCOL_VERSION = 1

MessageT = TypeVar("MessageT", bound=Message)

_PIN_KINDS = {
    PinKind.SAVEPOINT: pb.PIN_KIND_SAVEPOINT,
    PinKind.RESTORE: pb.PIN_KIND_RESTORE,
    PinKind.BRANCH: pb.PIN_KIND_BRANCH,
}

_KINDS: dict[type[Message], str] = {
    pb.ClaimRecord: "claim",
    pb.CheckpointManifest: "manifest",
    pb.EpochRecord: "epoch-record",
    pb.CommitMarker: "commit-marker",
    pb.RetentionRecord: "retention-record",
    pb.OperatorCheckpointMetadata: "operator-metadata",
}
"""The name of each message in its envelope."""

_PARTS = (CheckpointRef, OperatorEntry, ObjectRef, InputWatermark, Pin)
_MESSAGES: dict[Any, type[Message]] = {
    record_type: getattr(pb, record_type.__name__)
    for record_type in (*get_args(Record), *_PARTS)
}
"""A record, or a part of one, is stored as the message of its name."""
_STORED_AS = {
    "job": "job_id",
    "owner": "owner_token",
    "writer": "writer_token",
    "operator": "operator_id",
    "holder": "holder_job_id",
}
"""Fields with another name in their message. Renaming a field of a record needs an entry."""


class _Field(NamedTuple):
    """One field of a record: its name and type, and its name in the message."""

    name: str
    stored_as: str
    kind: Any
    """The type of the value, or of the items of a list."""
    is_list: bool
    is_optional: bool


def _fields_of(record_type: type) -> tuple[_Field, ...]:
    # A field is declared as `T`, as `tuple[T, ...]`, or as `T | None`.
    return tuple(
        _Field(
            name=name,
            stored_as=_STORED_AS.get(name, name),
            kind=next(iter(get_args(hint)), hint),
            is_list=get_origin(hint) is tuple,
            is_optional=isinstance(hint, UnionType),
        )
        for name, hint in get_type_hints(record_type).items()
    )


_FIELDS = {record_type: _fields_of(record_type) for record_type in _MESSAGES}


def seal(message: Message) -> bytes:
    """Encode a message in its envelope; equal messages give equal bytes."""
    body = message.SerializeToString(deterministic=True)
    envelope = pb.Envelope(
        magic=MAGIC,
        protocol_version=PROTOCOL_VERSION,
        kind=_KINDS[type(message)],
        body=body,
        body_checksum=checksum_of(body),
    )
    return envelope.SerializeToString(deterministic=True)


def unseal(message_type: type[MessageT], data: bytes, path: str) -> MessageT:
    """Decode an envelope; check magic, version, kind and checksum."""
    kind = _KINDS[message_type]
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


def encode(record: Record) -> bytes:
    """Encode a record in its envelope; equal records give equal bytes."""
    return seal(_MESSAGES[type(record)](**_stored_form(record)))


def _stored_form(record: Any) -> dict[str, Any]:
    """Return the fields of a record's message, with dictionaries for messages within it."""
    stored = {}
    for field in _FIELDS[type(record)]:
        value = getattr(record, field.name)
        if field.is_list:
            value = [_stored_form(item) for item in value]
        elif type(value) in _MESSAGES:
            value = _stored_form(value)
        elif field.kind is PinKind:
            value = _PIN_KINDS[value]
        stored[field.stored_as] = value
    if isinstance(record, OperatorEntry):
        stored["parallelism"] = len(record.subtasks)
    return stored


def decode(record_type: type[RecordT], data: bytes, path: str) -> RecordT:
    """Decode the record at `path`; a record with an invalid field is corrupt."""
    is_large = record_type is CheckpointManifest
    remembered = _remembered_manifest if is_large else _remembered_record
    record: RecordT = remembered(record_type, data, path)  # type: ignore[arg-type]  # it has a hash
    return record


def _decode(record_type: Any, data: bytes, path: str) -> Any:
    message = unseal(_MESSAGES[record_type], data, path)
    try:
        record = _from_message(record_type, message)
    except UserError as error:
        raise _corrupt(
            path, f"holds an invalid value ({error})", ErrorCode.UNDECODABLE
        ) from error
    # A parent must be older than its child, so that every chain of parents ends.
    parent = getattr(record, "parent", None)
    if parent is not None and parent.epoch >= record.ref.epoch:
        what = f"says that {parent} came before {record.ref}"
        raise _corrupt(path, what, ErrorCode.PROTOCOL_VIOLATION)
    return record


# A manifest names every subtask of a job; all other records are small.
_remembered_manifest = lru_cache(maxsize=32)(_decode)
_remembered_record = lru_cache(maxsize=256)(_decode)


def _from_message(record_type: Any, message: Any) -> Any:
    """Return the record of a message; an invalid value is a `UserError`."""
    if record_type is ObjectRef:
        # A manifest may have thousands of these; the loop below takes twice as long.
        return ObjectRef(message.path, message.size_bytes, message.checksum)
    values: dict[str, Any] = {}
    for field in _FIELDS[record_type]:
        stored = getattr(message, field.stored_as)
        if field.is_list:
            values[field.name] = tuple(_from_message(field.kind, item) for item in stored)
        elif field.is_optional and not _is_present(message, field.stored_as):
            values[field.name] = None
        elif field.kind in _MESSAGES:
            values[field.name] = _from_message(field.kind, stored)
        elif field.kind is PinKind:
            values[field.name] = _pin_kind(stored)
        else:
            values[field.name] = field.kind(stored)
    return record_type(**values)


def _is_present(message: Message, name: str) -> bool:
    return any(descriptor.name == name for descriptor, _ in message.ListFields())


def _pin_kind(stored: int) -> PinKind:
    for kind, number in _PIN_KINDS.items():
        if number == stored:
            return kind
    raise UserError(f"a pin of unknown kind {stored}")


_TABLE_TYPES = (pb.GLOBAL_KEYED_TABLE, pb.TIME_KEYED_TABLE, pb.KEYED_TABLE)


def files_behind(ref: ObjectRef, data: bytes) -> frozenset[str]:
    """Return the files of a metadata object, which must match the manifest's reference."""
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
    metadata = unseal(pb.OperatorCheckpointMetadata, data, path)
    tables = metadata.table_checkpoint_metadata.items()
    return frozenset().union(*(files_to_keep(table, path, name) for name, table in tables))


def files_to_keep(
    table: pb.TableSubtaskCheckpointMetadata | pb.TableCheckpointMetadata,
    path: str,
    name: str,
) -> frozenset[str]:
    """Return the path of every file that a table needs; `path` names its metadata object."""
    if table.table_type not in _TABLE_TYPES:
        raise CorruptStateError(
            f"{path!r} lists table {name!r} of unknown type {table.table_type}; nothing "
            "was deleted. A newer Penstock may have written it: upgrade",
            code=ErrorCode.TABLE_TYPE_MISMATCH,
            path=path,
            table=name,
        )
    # The list messages of all table types have the same fields, so one of them reads all.
    message = pb.KeyedTableSubtaskCheckpointMetadata()
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
