"""Parquet encoding: how rows become the bytes of a state file, and how they are decoded.

Pure: this module uses no store and no kind of table. `ParquetEncoder` builds one file row
group by row group. Encodings follow the columns' types: sorted hashes, times and integers as
deltas, floats split by byte, text with a dictionary only if values of a sample repeat.

Row groups are the unit of partial reads and of caching; readers call them *segments*. The
footer's key-value metadata holds the state version and a checksum of each segment, because
the page checksums of Parquet leave the page headers unprotected.
"""

import base64
import io
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.core.batch import empty_batch
from penstock.core.ids import KeyRange, Readable, checksum_of
from penstock.errors import CorruptStateError, ErrorCode, SchemaError

Rows: TypeAlias = pa.Table | pa.RecordBatch

KEY_HASH = "_key_hash"
"""The column every keyed state file is sorted by: the stable 64-bit hash of the row's key."""
ROW_GROUP_ROWS = 1 << 17
"""Fewer rows make partial reads finer; more make restores and lookups of few keys faster."""
ROW_GROUP_BYTES = 64 << 20
"""The size in memory at which a row group ends early, for rows with large values."""

FOOTER = "footer"
"""The form of the cache entry that holds the footer of a file."""

_VERSION_KEY = b"penstock.state_version"
_SEGMENTS_KEY = b"penstock.segment_checksums"
_CHECKSUM = re.compile(rb"[0-9a-f]{16}")
_DICTIONARY_SAMPLE = 2_048
_DICTIONARY_SHARE = 0.3
"""The highest share of distinct values in a sample at which a dictionary still pays."""


@dataclass(frozen=True, slots=True)
class CheckpointParquetMetadata:
    """What the footer of every state file holds beyond its schema."""

    state_version: int
    segment_checksums: tuple[int, ...] = ()
    """The checksum of the bytes of each row group, in order."""

    def to_key_values(self) -> dict[str, str]:
        """Return the footer's key-value pairs."""
        packed = "".join(f"{checksum:016x}" for checksum in self.segment_checksums)
        return {
            _VERSION_KEY.decode(): str(self.state_version),
            _SEGMENTS_KEY.decode(): packed,
        }

    @classmethod
    def from_key_values(cls, pairs: Mapping[bytes, bytes] | None, *, path: str) -> Self:
        """Read the pairs of a footer; a file without them was not written by Penstock."""
        version = (pairs or {}).get(_VERSION_KEY)
        packed = (pairs or {}).get(_SEGMENTS_KEY)
        if version is None or packed is None:
            raise CorruptStateError(
                f"{path} is not a state file: its Parquet footer has no "
                f"{(_VERSION_KEY if version is None else _SEGMENTS_KEY).decode()}. Something "
                "else was put in its place; older epochs stay restorable",
                code=ErrorCode.FOREIGN_OBJECT,
                path=path,
            )
        cut = [packed[start : start + 16] for start in range(0, len(packed), 16)]
        if not version.isdigit() or not all(_CHECKSUM.fullmatch(digits) for digits in cut):
            raise CorruptStateError(
                f"the Parquet footer of {path} is garbled: state version {version!r}, segment "
                f"checksums {packed[:64]!r}. Older epochs stay restorable",
                code=ErrorCode.UNDECODABLE,
                path=path,
            )
        return cls(int(version), tuple(int(digits, 16) for digits in cut))


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """The bytes of one state file with their checksums."""

    data: bytes
    row_count: int
    checksum: int
    footer_bytes: int
    """The length of the Parquet footer, magic included."""
    footer_checksum: int


class ParquetEncoder:
    """Builds one state file in memory, one row group per `write`. Used once."""

    def __init__(self, schema: pa.Schema, state_version: int, sample: Rows) -> None:
        """Start a file; `sample` decides which text columns get a dictionary."""
        self._state_version = state_version
        self._sink = io.BytesIO()
        self._segment_checksums: list[int] = []
        self._row_count = 0
        dictionary = [field.name for field in schema if _repeats(sample, field)]
        encodings = {
            field.name: encoding
            for field in schema
            if (encoding := _encoding_of(field.type)) is not None
        }
        try:
            self._writer = pq.ParquetWriter(
                self._sink,
                schema.remove_metadata(),
                compression="zstd",
                compression_level=1,
                use_dictionary=dictionary,  # type: ignore[arg-type]  # stubs miss column lists
                column_encoding=encodings,
                write_page_checksum=True,
                write_statistics=[KEY_HASH] if KEY_HASH in schema.names else False,
            )
        except (pa.ArrowException, OSError) as error:
            raise _unsupported(schema, error) from error
        self._segment_start = self._sink.tell()

    @property
    def size_bytes(self) -> int:
        """The bytes written so far, without the footer."""
        return self._sink.tell()

    def write(self, rows: pa.RecordBatch) -> None:
        """Append `rows` as one row group."""
        try:
            self._writer.write_batch(rows, row_group_size=max(rows.num_rows, 1))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unsupported(rows.schema, error) from error
        end = self._sink.tell()
        with self._sink.getbuffer() as written:
            self._segment_checksums.append(checksum_of(written[self._segment_start : end]))
        self._segment_start = end
        self._row_count += rows.num_rows

    def finish(self) -> EncodedFile:
        """Write the footer and return the file."""
        metadata = CheckpointParquetMetadata(
            self._state_version, tuple(self._segment_checksums)
        )
        self._writer.add_key_value_metadata(metadata.to_key_values())
        self._writer.close()
        data = self._sink.getvalue()
        footer_bytes = struct.unpack("<I", data[-8:-4])[0] + 8
        return EncodedFile(
            data=data,
            row_count=self._row_count,
            checksum=checksum_of(data),
            footer_bytes=footer_bytes,
            footer_checksum=checksum_of(memoryview(data)[-footer_bytes:]),
        )


def cut_row_groups(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Cut a table into the record batches that become row groups, each contiguous."""
    row_count = table.num_rows
    if row_count > ROW_GROUP_ROWS:
        for start in range(0, row_count, ROW_GROUP_ROWS):
            yield from cut_row_groups(table.slice(start, ROW_GROUP_ROWS))
    elif row_count > 1 and table.nbytes > ROW_GROUP_BYTES:
        # Rows differ in size, so they are halved: an average would not do.
        yield from cut_row_groups(table.slice(0, row_count // 2))
        yield from cut_row_groups(table.slice(row_count // 2))
    elif row_count:
        yield as_batch(table)


def as_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table of one row group's size as one contiguous record batch."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else empty_batch(table.schema)


def check_storable(schema: pa.Schema, *, what: str) -> None:
    """Refuse a schema whose columns Parquet cannot store and return unchanged.

    This is called when a table is declared, so that no job runs for hours before its first
    checkpoint fails.
    """
    if len(set(schema.names)) != len(schema.names):
        raise SchemaError(f"{what} names a column twice: {schema.names}", what=what)
    try:
        encoded = ParquetEncoder(schema, 0, schema.empty_table()).finish()
        decode_row_groups(pa.BufferReader(encoded.data), None, None)
    except (SchemaError, pa.ArrowException, OSError) as error:
        raise SchemaError(
            f"{what} cannot be stored: {error}",
            code=ErrorCode.UNSUPPORTED_VALUE_TYPE,
            what=what,
        ) from error


def decode_row_groups(
    source: pa.NativeFile, parquet: pq.FileMetaData | None, group: int | None
) -> pa.Table:
    """Decode one row group, or all, to exactly the columns that were encoded.

    Errors of Arrow are raised as they are. `parquet` is the footer, if it was decoded before.
    The bytes have been verified as a whole, so the pages' own checksums are not checked.
    """
    file = pq.ParquetFile(source, metadata=parquet)
    # Handing a small file to other threads takes longer than decoding it.
    is_large = file.metadata.num_rows > ROW_GROUP_ROWS
    rows = (
        file.read(use_threads=is_large)
        if group is None
        else file.read_row_group(group, use_threads=False)
    )
    schema = encoded_schema(file.metadata)
    # Parquet has neither seconds nor 64-bit dates: it returns such columns in other units.
    return (
        rows.replace_schema_metadata(None) if rows.schema == schema else rows.cast(schema)
    )


def encoded_schema(parquet: pq.FileMetaData) -> pa.Schema:
    """Return the columns as they were encoded; Arrow keeps them in the footer."""
    kept = (parquet.metadata or {}).get(b"ARROW:schema")
    if kept is None:
        raise pa.ArrowInvalid("the footer holds no Arrow schema")
    return _decode_schema(kept)


@lru_cache(maxsize=256)
def _decode_schema(kept: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(kept))).remove_metadata()


def _encoding_of(kind: pa.DataType) -> str | None:
    """Return the encoding of a top-level column without a dictionary; None for plain."""
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return "BYTE_STREAM_SPLIT"
    if pa.types.is_integer(kind) or (
        pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
    ):
        return "DELTA_BINARY_PACKED"
    return None


def _repeats(sample: Rows, field: "pa.Field[pa.DataType]") -> bool:
    """Tell whether values of a text column repeat often enough for a dictionary."""
    texts = {pa.string(), pa.large_string(), pa.binary(), pa.large_binary()}
    if field.type not in texts:
        return False
    column = sample.column(field.name)
    if len(column) < 2:
        return False
    stride = max(1, len(column) // _DICTIONARY_SAMPLE)
    picked = column.take(pa.array(range(0, len(column), stride), pa.int64()))
    return pc.count_distinct(picked, mode="all").as_py() <= _DICTIONARY_SHARE * len(picked)


def _unsupported(schema: pa.Schema, error: Exception) -> SchemaError:
    columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
    return SchemaError(
        f"Parquet cannot hold these columns ({columns}): {error}",
        code=ErrorCode.UNSUPPORTED_VALUE_TYPE,
    )


@dataclass(frozen=True, slots=True)
class Segment:
    """One row group, which a reader fetches, verifies and caches as a whole."""

    index: int
    row_count: int
    start: int
    """The offset of its first byte in the file."""
    size_bytes: int
    checksum: int
    min_key_hash: int | None
    max_key_hash: int | None

    def may_hold(self, key_range: KeyRange) -> bool:
        """Tell whether some row may have a key hash in `key_range`."""
        if self.min_key_hash is None or self.max_key_hash is None:
            return True
        return self.min_key_hash < key_range.end and self.max_key_hash >= key_range.start

    def lies_in(self, key_range: KeyRange) -> bool:
        """Tell whether every row certainly has a key hash in `key_range`."""
        if self.min_key_hash is None or self.max_key_hash is None:
            return False
        return self.min_key_hash in key_range and self.max_key_hash in key_range


@dataclass(frozen=True, slots=True)
class Footer:
    """The decoded footer of a state file."""

    parquet: pq.FileMetaData
    schema: pa.Schema
    state_version: int
    segments: tuple[Segment, ...]

    @classmethod
    def decode(cls, data: Readable, *, path: str) -> "Footer":
        """Decode footer bytes; an exception of Arrow means that they are no Parquet footer."""
        parquet = pq.read_metadata(pa.BufferReader(data))
        ours = CheckpointParquetMetadata.from_key_values(parquet.metadata, path=path)
        segments = tuple(
            _segment(parquet.row_group(index), index, checksum)
            for index, checksum in enumerate(
                ours.segment_checksums[: parquet.num_row_groups]
            )
        )
        if len(segments) != parquet.num_row_groups:
            raise pa.ArrowInvalid(
                f"{parquet.num_row_groups} row groups but {len(segments)} checksums"
            )
        return cls(parquet, encoded_schema(parquet), ours.state_version, segments)


def _segment(group: pq.RowGroupMetaData, index: int, checksum: int) -> Segment:
    columns = [group.column(number) for number in range(group.num_columns)]
    starts = [
        column.dictionary_page_offset or column.data_page_offset for column in columns
    ]
    ends = [
        start + column.total_compressed_size
        for start, column in zip(starts, columns, strict=True)
    ]
    hashes = next(
        (column.statistics for column in columns if column.path_in_schema == KEY_HASH), None
    )
    low = high = None
    if hashes is not None and hashes.has_min_max:
        low, high = hashes.min, hashes.max
    return Segment(
        index=index,
        row_count=group.num_rows,
        start=min(starts, default=0),
        size_bytes=max(ends, default=0) - min(starts, default=0),
        checksum=checksum,
        min_key_hash=low,
        max_key_hash=high,
    )


def footer_batch(footer: Readable) -> pa.RecordBatch:
    """Wrap footer bytes as a cache entry."""
    return pa.RecordBatch.from_pydict(
        {"footer": pa.array([bytes(footer)], pa.large_binary())}
    )
