"""The backing store of checkpoint metadata: written once, verified on every read."""

from typing import Protocol

from penstock.core.checksum import checksum_of
from penstock.core.ids import OperatorId
from penstock.errors import CorruptStateError, ErrorCode, InternalError
from penstock.state.checkpoints.runner import run_steps
from penstock.state.proto.state_pb2 import OperatorCheckpointMetadata
from penstock.state.protocol.metadata import decode_metadata, encode_metadata
from penstock.state.protocol.paths import metadata_path
from penstock.state.protocol.records import CheckpointRef, ObjectRef
from penstock.state.protocol.steps import create_once
from penstock.state.storage.object_store import ObjectStore


class BackingStore(Protocol):
    """Where the metadata of operators' subtasks is kept."""

    def write_operator_checkpoint_metadata(
        self, ref: CheckpointRef, metadata: OperatorCheckpointMetadata
    ) -> ObjectRef:
        """Write one subtask's metadata for a checkpoint; return what a manifest refers to."""
        ...

    def read_operator_checkpoint_metadata(
        self, ref: ObjectRef
    ) -> OperatorCheckpointMetadata:
        """Read and verify what a manifest refers to."""
        ...


class ParquetBackend:
    """The backing store beside the Parquet files: protobuf objects in the checkpoint's folder.

    Only the driver writes here, after every subtask's files are durable and before the
    manifest. Data files are the tables' business.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def write_operator_checkpoint_metadata(
        self, ref: CheckpointRef, metadata: OperatorCheckpointMetadata
    ) -> ObjectRef:
        """Create the object; the same metadata again is fine, other metadata is refused."""
        operator = metadata.operator_metadata
        path = metadata_path(ref, OperatorId(operator.operator_id), operator.subtask_index)
        data = encode_metadata(metadata)
        existing = run_steps(self._store, create_once(path, data))
        if existing is not None:
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
        data = self._store.read(ref.path)
        if data is None:
            raise _damaged(ref, "is missing", ErrorCode.OBJECT_MISSING)
        if len(data) != ref.size_bytes:
            what = f"has {len(data)} bytes, the manifest says {ref.size_bytes}"
            raise _damaged(ref, what, ErrorCode.CHECKSUM_MISMATCH)
        if checksum_of(data) != ref.checksum:
            raise _damaged(ref, "does not match its checksum", ErrorCode.CHECKSUM_MISMATCH)
        return decode_metadata(data, ref.path)


def _damaged(ref: ObjectRef, what: str, code: ErrorCode) -> CorruptStateError:
    return CorruptStateError(
        f"metadata object {ref.path!r} {what}. Nothing was changed; bring it back, or restore "
        "an epoch that does not need it",
        code=code,
        path=ref.path,
    )
