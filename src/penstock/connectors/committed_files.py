"""Reading what a files sink has committed: whole epochs, each row once.

Only files on the lists below `_committed` count. A list is written after all of its files,
so these functions never show a part of an epoch, and never one that was not acknowledged.
Epochs that a restore abandoned are left out once an epoch after it is committed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.files_json_types import from_json_lines
from penstock.connectors.files_layout import COMMITTED, read_record_name
from penstock.connectors.files_partitions import add_partition
from penstock.connectors.files_records import (
    CommittedEpoch,
    ListedFile,
    checksum_text,
    decode_record,
    schema_of,
)
from penstock.connectors.files_restores import drop_abandoned
from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """One file of a committed epoch."""

    path: str
    """Relative to the sink's folder."""
    epoch: int
    operator: str
    row_count: int
    size_bytes: int
    partition: Mapping[str, str | None]
    """The values of the partition columns, as text."""
    schema_hash: str
    """Equal for files of the same columns and types."""


def committed_files(
    url: str | ObjectStore,
    *,
    since_epoch: int = 0,
    store_options: Mapping[str, Any] | None = None,
) -> list[CommittedFile]:
    """Return the files of all committed epochs from `since_epoch` on, in order of epoch.

    `url` is the folder given to the sink. Any engine may read the files; for a folder of
    this machine: `polars.read_parquet([f"out/{file.path}" for file in committed_files("out")])`.
    """
    store = _open(url, store_options)
    return [
        CommittedFile(
            file.path,
            record.epoch,
            record.operator,
            file.rows,
            file.bytes,
            dict(zip(record.partition_by, file.partition, strict=True)),
            record.schema_hash,
        )
        for record in _records(store, since_epoch)
        for file in record.files
    ]


def read_committed(
    url: str | ObjectStore,
    *,
    since_epoch: int = 0,
    store_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Return the rows of all committed epochs from `since_epoch` on, in order of epoch.

    Partition columns are back in their places, and JSON lines in their types. Every file is
    checked against its checksum. Without a committed epoch the table has no columns.
    """
    store = _open(url, store_options)
    tables = [
        _read(store, record, file)
        for record in _records(store, since_epoch)
        for file in record.files
    ]
    return (
        pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    )


def _open(url: str | ObjectStore, options: Mapping[str, Any] | None) -> ObjectStore:
    return open_store(url, **(options or {})) if isinstance(url, str) else url


def _records(store: ObjectStore, since_epoch: int) -> list[CommittedEpoch]:
    """Return the lists that count in order of epoch, then operator.

    Which earlier epochs count is said by later ones, so older lists than asked for are not
    needed.
    """
    found = []
    for info in store.list(COMMITTED):
        name = read_record_name(info.path)
        data = None
        if name is not None and name[0] >= since_epoch:
            data = store.read(info.path)
        if data is not None:
            found.append(decode_record(data, f"{info.path!r} of {store.url}"))
    return drop_abandoned(found)


def _read(store: ObjectStore, record: CommittedEpoch, file: ListedFile) -> pa.Table:
    data = store.read(file.path)
    if data is None or checksum_text(data) != file.checksum:
        what = "is missing" if data is None else "holds other bytes"
        raise CorruptStateError(
            f"{file.path!r} of {store.url} {what}, and epoch {record.epoch} was committed "
            "with it: something removed or changed it. Restore it, or begin to read at a "
            "later epoch (since_epoch)",
            code=ErrorCode.OBJECT_MISSING if data is None else ErrorCode.CHECKSUM_MISMATCH,
            path=file.path,
        )
    schema = schema_of(record.schema)
    kept = pa.schema([field for field in schema if field.name not in record.partition_by])
    if record.format == "parquet":
        # Not `pq.read_table`: a process that ends soon after it aborts, now and then.
        rows = pq.ParquetFile(pa.BufferReader(data)).read()
    else:
        rows = from_json_lines(data, kept)
    return add_partition(rows, record.partition_by, file.partition, schema)
