"""The lists of committed files: their durable form, the checks of it, and their readers.

A files sink writes one list per epoch, after all files that it names (`commit` has the order).
A list is JSON for people and other engines, and its last member is the checksum of all bytes
before it:

    {
     "version": 2,
     "epoch": 7,
     …
     "checksum": "9a3f0c55d1e2b7c8"
    }

A list is believed only if the checksum fits, if its name is that of its epoch and sink, and if
what it says agrees with itself: totals, schema, names and folders of its files. Everything else
is `CorruptStateError`, as for checkpoints. Lists of version 1 have no checksum; all other
checks hold for them too.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.connectors.files.formats import OutputFormat
from penstock.connectors.files.names import (
    COMMITTED,
    STAGING,
    Partition,
    add_partition,
    is_part_of,
    read_record_name,
)
from penstock.connectors.formats.json_text import from_json_lines
from penstock.core.arrow_types import relay
from penstock.core.ids import checksum_of
from penstock.errors import CorruptStateError, ErrorCode, StateError, UserError
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import StorePlace, to_options, to_store

EpochRange: TypeAlias = tuple[int, int]
"""The epochs `[start, end)`."""
EpochRows: TypeAlias = tuple[int, int]
"""An epoch, and how many rows that follow each other are of it."""

VERSION = 3
"""The latest version of lists: with files that hold rows of several epochs."""
PLAIN_VERSION = 2
"""The version of lists without such files."""


class HasEpochs(Protocol):
    """A file whose rows may be of several epochs."""

    @property
    def rows(self) -> int: ...  # noqa: D102 (of both kinds of files)

    @property
    def epochs(self) -> tuple[EpochRows, ...] | msgspec.UnsetType: ...  # noqa: D102 (told by the protocol's name)


class ListedFile(msgspec.Struct, frozen=True):
    """One file of a committed epoch."""

    path: str
    rows: int
    bytes: int
    checksum: str
    """XXH3 with 64 bits, in hexadecimal digits."""
    partition: Partition = ()
    epochs: tuple[EpochRows, ...] | msgspec.UnsetType = msgspec.UNSET
    """The epochs of its rows in turn, if some are of earlier epochs than that of the list."""


class CommittedEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """All files that one sink committed in one epoch."""

    version: int = PLAIN_VERSION
    job: str
    identity: str
    """Differs from that of another job of the same name."""
    operator: str
    epoch: int
    format: OutputFormat
    schema: str
    schema_hash: str
    partition_by: tuple[str, ...]
    rows: int
    bytes: int
    files: tuple[ListedFile, ...]
    abandoned: tuple[EpochRange, ...] = ()
    """Earlier epochs of the job whose files are no part of the output, because of restores."""


def schema_text(schema: pa.Schema) -> str:
    """Return a schema as text that `schema_of` understands."""
    return b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def schema_of(text: str) -> pa.Schema:
    """Return the schema that a text holds."""
    return pa.ipc.read_schema(pa.py_buffer(b64decode(text, validate=True)))


def schema_hash_of(schema: pa.Schema) -> str:
    """Return a text that is equal for schemas of the same columns and types."""
    columns = "\n".join(f"{field.name}: {field.type} {field.nullable}" for field in schema)
    return format_checksum(checksum_of(columns.encode()))


def format_checksum(checksum: int) -> str:
    """Return a checksum as text."""
    return f"{checksum:016x}"


_CHECKSUM = re.compile(rb',\n "checksum": "([0-9a-f]{16})"\n}\Z')
_UNREADABLE = (pa.ArrowException, OSError, ValueError)
"""What Arrow raises for bytes that it cannot decode."""
_CHECKSUM_TEXT = re.compile(r"[0-9a-f]{16}")
_NOTHING_CHANGED = (
    "Something changed, copied or damaged it; nothing was changed now. Put the original object "
    "back, or remove it if it does not belong there"
)


def encode_list(record: CommittedEpoch) -> bytes:
    """Return the durable form of a list, with its checksum."""
    # People read the list too.
    body = msgspec.json.format(msgspec.json.encode(record), indent=1).removesuffix(b"\n}")
    checksum = format_checksum(checksum_of(body)).encode()
    return body + b',\n "checksum": "' + checksum + b'"\n}'


def decode_list(data: bytes, path: str, url: str) -> CommittedEpoch:
    """Return the list that an object holds, after every check of it; `url` is its store's."""

    def damaged(what: str, code: ErrorCode) -> CorruptStateError:
        return CorruptStateError(
            f"{path!r} of {url}, a list of committed files, {what}. {_NOTHING_CHANGED}",
            code=code,
            path=path,
        )

    end = _CHECKSUM.search(data)
    if (
        end is not None
        and format_checksum(checksum_of(data[: end.start()])).encode() != end[1]
    ):
        raise damaged("does not match its checksum", ErrorCode.CHECKSUM_MISMATCH)
    try:
        record = msgspec.json.decode(data, type=CommittedEpoch)
        if record.version > 1 and end is None:
            raise damaged("has lost its checksum", ErrorCode.CHECKSUM_MISMATCH)
        if record.version > VERSION:
            raise StateError(
                f"{path!r} of {url} is a list of version {record.version}, and this Penstock "
                f"reads versions up to {VERSION}: upgrade Penstock; nothing was changed",
                code=ErrorCode.NEWER_PROTOCOL,
                path=path,
            )
        name = read_record_name(path)
        if name != (record.epoch, record.operator):
            raise damaged(
                f"is the list of epoch {record.epoch} of sink {record.operator!r} under another "
                "name",
                ErrorCode.FOREIGN_OBJECT,
            )
        problem = _find_contradiction(record)
    # In a list without a checksum any byte may be another one, those of the schema too.
    except (*_UNREADABLE, msgspec.MsgspecError, RecursionError) as error:
        raise damaged(
            f"is not what a files sink writes: {error}", ErrorCode.UNDECODABLE
        ) from error
    if problem is not None:
        raise damaged(f"contradicts itself: {problem}", ErrorCode.UNDECODABLE)
    return record


def _find_contradiction(record: CommittedEpoch) -> str | None:
    """Return what a list says that cannot be true together, or None."""
    files, columns = record.files, record.partition_by
    schema = schema_of(record.schema)
    paths = {file.path for file in files}
    counts = [count for file in files for count in (file.rows, file.bytes)]
    claims = {
        "its version": record.version >= 1,
        "the total of its rows": record.rows == sum(file.rows for file in files),
        "the total of its bytes": record.bytes == sum(file.bytes for file in files),
        "a count below zero": min(counts, default=0) >= 0,
        "the hash of its schema": record.schema_hash == schema_hash_of(schema),
        "its partition columns": set(columns) <= set(schema.names)
        and len(set(columns)) == len(columns),
        "a file that it names twice": len(paths) == len(files),
        "its abandoned epochs": all(
            0 <= start < end <= record.epoch for start, end in record.abandoned
        ),
    }
    for claim, is_kept in claims.items():
        if not is_kept:
            return claim
    for file in files:
        if not _CHECKSUM_TEXT.fullmatch(file.checksum):
            return f"the checksum of {file.path!r}"
        epochs = epochs_of(file, record.epoch)
        if file.rows != sum(rows for _, rows in epochs) or any(
            rows < 0 or not 0 < epoch <= record.epoch for epoch, rows in epochs
        ):
            return f"the epochs of the rows of {file.path!r}"
        if not is_part_of(
            file.path,
            record.epoch,
            record.operator,
            record.format,
            dict(zip(columns, file.partition, strict=True)),
        ):
            return f"the name {file.path!r} of a file"
    return None


def epochs_of(file: "HasEpochs", epoch: int) -> tuple[EpochRows, ...]:
    """Return the epochs of a file's rows in turn; `epoch` is that of its list."""
    if isinstance(file.epochs, msgspec.UnsetType):
        return ((epoch, file.rows),)
    return file.epochs


def drop_abandoned(records: Iterable[CommittedEpoch]) -> list[CommittedEpoch]:
    """Return the lists that the newest one of their job descends from, in order of epoch.

    Pure. The ranges of a list count unless the list is abandoned itself: a later restore may
    have gone back to epochs that an earlier one had abandoned.
    """
    abandoned: dict[tuple[str, str], set[EpochRange]] = {}
    kept = []
    for record in sorted(records, key=lambda record: record.epoch, reverse=True):
        ranges = abandoned.setdefault((record.job, record.identity), set())
        if not any(start <= record.epoch < end for start, end in ranges):
            ranges.update(record.abandoned)
            kept.append(record)
    return sorted(kept, key=lambda record: (record.epoch, record.operator))


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
    url: StorePlace,
    *,
    since_epoch: int = 0,
    store_options: Mapping[str, Any] | None = None,
) -> list[CommittedFile]:
    """Return the files of all committed epochs from `since_epoch` on, in order of epoch.

    `url` is the folder given to the sink. Any engine may read the files; for a folder of
    this machine: `polars.read_parquet([f"out/{file.path}" for file in committed_files("out")])`.
    """
    _, records = _read_lists(url, since_epoch, store_options)
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
        for record in records
        for file in record.files
    ]


def read_committed(
    url: StorePlace,
    *,
    since_epoch: int = 0,
    store_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Return the rows of all committed epochs from `since_epoch` on, in order of epoch.

    Partition columns are back in their places, and all columns have the types that were
    written. Every file is checked against its checksum. A folder to which no sink has ever
    written is an error, and nothing is made there. Without a committed epoch the table has no
    columns.
    """
    store, records = _read_lists(url, since_epoch, store_options)
    schemas = [schema_of(record.schema) for record in records]
    tables = [
        _read(store, record, file, schema)
        for record, schema in zip(records, schemas, strict=True)
        for file in record.files
    ]
    # Lists without files tell the columns of a result without rows.
    tables = tables or [schema.empty_table() for schema in schemas[-1:]]
    return (
        pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    )


def read_epochs(
    url: StorePlace, store_options: Mapping[str, Any] | None
) -> Iterator[tuple[int, pa.Table]]:
    """Yield epochs and some rows of each, the newest epoch first; see `read_committed`."""
    store, records = _read_lists(url, 0, store_options)
    for record in reversed(records):
        schema = schema_of(record.schema)
        earlier: list[tuple[int, pa.Table]] = []
        for file in record.files:
            rows, start = _read(store, record, file, schema), 0
            for epoch, count in epochs_of(file, record.epoch):
                piece = (epoch, rows.slice(start, count))
                if epoch == record.epoch:
                    yield piece
                else:
                    earlier.append(piece)
                start += count
        yield from sorted(earlier, key=lambda piece: piece[0], reverse=True)


def _read_lists(
    place: StorePlace, since_epoch: int, options: Mapping[str, Any] | None
) -> tuple[ObjectStore, list[CommittedEpoch]]:
    """Return the store, and the lists that count in order of epoch, then operator.

    Later lists name the earlier epochs that do not count, so lists before `since_epoch` need
    not be read.
    """
    store = to_store(place, **to_options(options))
    names = {info.path: read_record_name(info.path) for info in store.list(COMMITTED)}
    is_named = isinstance(place, str | PathLike)
    if is_named and not names and next(iter(store.list(STAGING)), None) is None:
        raise UserError(
            f"there is no output of a files sink at {store.url}: no sink has ever written to "
            "that folder. Correct the path; or wait: a job leaves nothing before its first "
            "rows or its end",
            code=ErrorCode.OBJECT_MISSING,
            url=store.url,
        )
    records = []
    for path, name in names.items():
        if name is not None and name[0] >= since_epoch:
            data = store.read(path)
            if data is not None:
                records.append(decode_list(data, path, store.url))
    return store, drop_abandoned(records)


def _read(
    store: ObjectStore, record: CommittedEpoch, file: ListedFile, schema: pa.Schema
) -> pa.Table:
    """Return the rows of one file in the types of the list's schema."""

    def damaged(what: str, code: ErrorCode) -> CorruptStateError:
        return CorruptStateError(
            f"{file.path!r} of {store.url} {what}, and epoch {record.epoch} was committed "
            "with it: something removed or changed it. Restore it, or begin to read at a "
            "later epoch (since_epoch)",
            code=code,
            path=file.path,
        )

    data = store.read(file.path)
    if data is None:
        raise damaged("is missing", ErrorCode.OBJECT_MISSING)
    if format_checksum(checksum_of(data)) != file.checksum:
        raise damaged("holds other bytes", ErrorCode.CHECKSUM_MISMATCH)
    kept = pa.schema([field for field in schema if field.name not in record.partition_by])
    try:
        if record.format == "parquet":
            # Without threads: those of Arrow sometimes abort a process that exits soon after.
            rows = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False).read(
                use_threads=False
            )
            # Parquet has neither seconds nor 64-bit dates: such columns come in other units.
            # Dictionaries come as plain values, unless they are of text.
            if not rows.schema.equals(kept):
                rows = to_types(rows, kept)
        else:
            rows = from_json_lines(data, kept)
        table = add_partition(rows, record.partition_by, file.partition, schema)
    except (*_UNREADABLE, KeyError) as error:
        what = f"cannot be read as {record.format} of the listed columns ({error})"
        raise damaged(what, ErrorCode.UNDECODABLE) from error
    if table.num_rows != file.rows:
        what = f"has {table.num_rows} rows and not the listed {file.rows}"
        raise damaged(what, ErrorCode.UNDECODABLE)
    return table


def to_types(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return columns of a Parquet file in the types that were written.

    Arrow casts into few dictionaries.
    """
    rows = rows.select(schema.names)
    columns = [
        pa.chunked_array([relay(chunk, field.type) for chunk in column.chunks], field.type)
        for field, column in zip(schema, rows.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)
