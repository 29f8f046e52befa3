"""What a files sink notes: the files an epoch staged, and the list of those it committed.

`StagedParts` travels as commit data, in the checkpoint. `CommittedEpoch` is a JSON object
beside the output, created once, after all files it lists: who follows the lists sees whole
epochs only.
"""

from base64 import b64decode, b64encode
from typing import TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from penstock.connectors.files_encoding import Format
from penstock.connectors.files_layout import Partition
from penstock.core.checksum import checksum_of
from penstock.errors import CorruptStateError, ErrorCode

EpochRange: TypeAlias = tuple[int, int]
"""The epochs `[start, end)`."""

_Record = TypeVar("_Record")


class StagedFile(msgspec.Struct, frozen=True):
    """A file in the staging area, with the name it will have."""

    staged: str
    path: str
    """The final name, relative to the sink's folder."""
    rows: int
    bytes: int
    checksum: str
    partition: Partition = ()


class StagedParts(msgspec.Struct, frozen=True):
    """What one subtask staged in one epoch."""

    format: Format
    schema: str
    """Of all columns, the partition columns included: an Arrow IPC schema in base64."""
    partition_by: tuple[str, ...]
    files: tuple[StagedFile, ...]
    abandoned: tuple[EpochRange, ...] = ()
    """As in `CommittedEpoch`."""


class ListedFile(msgspec.Struct, frozen=True):
    """One file of a committed epoch."""

    path: str
    rows: int
    bytes: int
    checksum: str
    """XXH3 with 64 bits, in hexadecimal digits."""
    partition: Partition = ()


class CommittedEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """All files that one sink committed in one epoch."""

    version: int = 1
    job: str
    identity: str
    """What tells the job from another of its name."""
    operator: str
    epoch: int
    format: Format
    schema: str
    schema_hash: str
    partition_by: tuple[str, ...]
    rows: int
    bytes: int
    files: tuple[ListedFile, ...]
    abandoned: tuple[EpochRange, ...] = ()
    """Earlier epochs of the job that restores have taken out of the output."""


def encode_staged(parts: StagedParts) -> bytes:
    """Return commit data."""
    return msgspec.json.encode(parts)


def decode_staged(data: bytes, where: str) -> StagedParts:
    """Return what commit data holds."""
    return _decode(data, StagedParts, where)


def encode_record(record: CommittedEpoch) -> bytes:
    """Return the list as it is written, for people to read as well."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1)


def decode_record(data: bytes, where: str) -> CommittedEpoch:
    """Return a list that was read."""
    return _decode(data, CommittedEpoch, where)


def schema_text(schema: pa.Schema) -> str:
    """Return a schema as text that `schema_of` understands."""
    return b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def schema_of(text: str) -> pa.Schema:
    """Return the schema that a text holds."""
    return pa.ipc.read_schema(pa.py_buffer(b64decode(text)))


def schema_hash(schema: pa.Schema) -> str:
    """Return what is equal for schemas of the same columns and types."""
    columns = "\n".join(f"{f.name}: {f.type} {f.nullable}" for f in schema)
    return checksum_text(columns.encode())


def checksum_text(data: bytes) -> str:
    """Return the checksum of bytes as text."""
    return format_checksum(checksum_of(data))


def format_checksum(checksum: int) -> str:
    """Return a checksum as text."""
    return f"{checksum:016x}"


def _decode(data: bytes, kind: type[_Record], where: str) -> _Record:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptStateError(
            f"{where} is not what a files sink writes there: {error}. Restore the object if "
            "something changed it; nothing was changed now",
            code=ErrorCode.UNDECODABLE,
        ) from error
