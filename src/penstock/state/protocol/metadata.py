"""Subtask metadata objects ↔ bytes, and which files they need.

Pure. Collection relies on `files_in_metadata`, so anything it cannot read is an error: a
file that is not understood is never taken for one that nobody needs.
"""

from functools import lru_cache
from typing import TypeAlias

from google.protobuf.message import DecodeError

from penstock.core.checksum import checksum_of
from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.proto import state_pb2 as pb
from penstock.state.protocol.codec import seal, unseal
from penstock.state.protocol.records import ObjectRef

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
    files: set[str] = set()
    for name, table in decode_metadata(data, path).table_checkpoint_metadata.items():
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
        files.update(file.path for file in message.files)
    return frozenset(files)
