"""Segments: the row groups of a state file, as its footer describes them.

Pure: footer bytes in, values out.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.checksum import Readable
from penstock.core.key_range import KeyRange
from penstock.state.files.cache import CacheKey
from penstock.state.files.parquet import KEY_HASH, CheckpointParquetMetadata, encoded_schema


@dataclass(frozen=True, slots=True)
class Segment:
    """One row group: what a reader fetches, verifies and caches as a whole."""

    index: int
    row_count: int
    start: int
    """Offset of its first byte in the file."""
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
        """Tell whether every row is known to have a key hash in `key_range`."""
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
        """Decode footer bytes; Arrow's exceptions mean that they are no Parquet footer."""
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


def footer_key(checksum: int) -> CacheKey:
    """Name the cache entry that holds the footer of a file."""
    return CacheKey(checksum, 0, "footer")


def footer_batch(footer: Readable) -> pa.RecordBatch:
    """Wrap footer bytes as a cache entry."""
    return pa.RecordBatch.from_pydict(
        {"footer": pa.array([bytes(footer)], pa.large_binary())}
    )
