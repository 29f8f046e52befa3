"""Writing state files: encode rows, create the object, prove that it is ours, cache it.

The name of a state file belongs to one attempt of one task. So an object that already has
this name either holds the same bytes (a lost answer, a client's retry) or is an error.

A list entry records the bounds of its file's rows, so that readers can skip the file without
opening it. Instants of any unit become whole microseconds, rounded outwards and clipped to 64
bits.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.arrow_types import MICROS_PER_UNIT
from penstock.core.ids import FULL_RANGE, Epoch, KeyRange
from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.files.cache import CacheKey, FileCache
from penstock.state.files.parquet import (
    FOOTER,
    KEY_HASH,
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS,
    EncodedFile,
    ParquetEncoder,
    cut_row_groups,
    footer_batch,
)
from penstock.state.files.state_file import StateFile
from penstock.state.storage.create import create_own
from penstock.state.storage.object_store import ObjectStore

Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"
_Bounds: TypeAlias = tuple[int | None, int | None]
_INT64 = (-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class FileDescription:
    """The fields of a list entry that do not follow from the rows."""

    epoch: Epoch
    subtask_index: int
    state_version: int
    level: int = 0
    visible: KeyRange = FULL_RANGE
    replaces: tuple[str, ...] = ()
    time_column: str | None = None
    """The timestamp column whose smallest and largest value the list entry records."""
    expiry_column: str | None = None
    """The timestamp column with the expiry of each row; null for never."""


@dataclass(frozen=True, slots=True)
class RowBounds:
    """The bounds of a file's rows, as its list entry records them."""

    min_time_micros: int | None = None
    max_time_micros: int | None = None
    min_key_hash: int | None = None
    max_key_hash: int | None = None
    last_expiry_micros: int | None = None
    has_immortal_row: bool = False

    @classmethod
    def of(
        cls, rows: pa.RecordBatch | pa.Table, description: FileDescription
    ) -> "RowBounds":
        """Compute the bounds of some rows."""
        times: _Bounds = (None, None)
        hashes: _Bounds = (None, None)
        last_expiry, immortal = None, rows.num_rows > 0
        if description.time_column is not None:
            times = _bounds(rows.column(description.time_column))
        if KEY_HASH in rows.schema.names:
            hashes = _bounds(rows.column(KEY_HASH))
        if description.expiry_column is not None:
            column = rows.column(description.expiry_column)
            last_expiry, immortal = _bounds(column)[1], column.null_count > 0
        return cls(*times, *hashes, last_expiry, immortal)

    def merged_with(self, other: "RowBounds") -> "RowBounds":
        """Return the bounds of both sets of rows together."""
        return RowBounds(
            _known(min, self.min_time_micros, other.min_time_micros),
            _known(max, self.max_time_micros, other.max_time_micros),
            _known(min, self.min_key_hash, other.min_key_hash),
            _known(max, self.max_key_hash, other.max_key_hash),
            _known(max, self.last_expiry_micros, other.last_expiry_micros),
            self.has_immortal_row or other.has_immortal_row,
        )


def _known(choose: Callable[..., int | None], *bounds: int | None) -> int | None:
    return choose((bound for bound in bounds if bound is not None), default=None)


def _bounds(column: Column) -> _Bounds:
    """Return the smallest and largest value; instants in microseconds, rounded outwards."""
    unit = getattr(column.type, "unit", None)
    found = pc.min_max(column if unit is None else column.cast(pa.int64()))
    low, high = found["min"].as_py(), found["max"].as_py()
    if unit is None or low is None:
        return low, high
    if unit == "ns":
        return low // 1_000, -(-high // 1_000)
    scale = MICROS_PER_UNIT[unit]
    return max(low * scale, _INT64[0]), min(high * scale, _INT64[1])


def write_state_file(
    store: ObjectStore,
    path: str,
    table: pa.Table,
    description: FileDescription,
    *,
    cache: FileCache | None = None,
) -> StateFile:
    """Write all of `table` as one state file and return its list entry.

    Rows are stored in the given order; tables that read by key hash sort them first.
    """
    encoder = ParquetEncoder(table.schema, description.state_version, table)
    batches = list(cut_row_groups(table))
    for batch in batches:
        encoder.write(batch)
    encoded = encoder.finish()
    file = _store(store, path, encoded, RowBounds.of(table, description), description)
    if cache is not None:
        # The rows are cached as a reader would decode them, so reading them costs no request.
        footer = memoryview(encoded.data)[-encoded.footer_bytes :]
        cache.put(CacheKey(encoded.checksum, form=FOOTER), footer_batch(footer))
        for index, batch in enumerate(batches):
            cache.put(CacheKey(encoded.checksum, index), batch)
    return file


@dataclass(eq=False)
class StateFileWriter:
    """Writes any number of rows as files of about `target_bytes`, holding one file at a time.

    Rows must be sorted by key hash. A file ends only between two different hashes, and each
    file sees the hashes from its first up to the next file's first, so together the files are
    one sorted run over the description's whole visible range. With `cut_anywhere` files end
    at any row and all see the whole range: this is for rows that are not looked up by hash.

    At least one file is written, so that even an empty result can name what it replaces.
    """

    store: ObjectStore
    path_for: Callable[[int], str]
    """Names a file by its number among those of this writer."""
    schema: pa.Schema
    description: FileDescription
    _: KW_ONLY
    target_bytes: int
    cut_anywhere: bool = False
    _pending: list[pa.Table] = field(default_factory=list, init=False)
    _pending_rows: int = field(default=0, init=False)
    _pending_bytes: int = field(default=0, init=False)
    _encoder: ParquetEncoder | None = field(default=None, init=False)
    _bounds: RowBounds = field(default=RowBounds(), init=False)
    _files: list[StateFile] = field(default_factory=list, init=False)

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Append rows; full row groups are encoded and full files are stored at once."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        self._pending.append(table)
        self._pending_rows += table.num_rows
        self._pending_bytes += table.nbytes
        if self._pending_bytes >= ROW_GROUP_BYTES:
            self._drain(self._pending_rows)
        elif self._pending_rows >= ROW_GROUP_ROWS:
            self._drain(self._pending_rows // ROW_GROUP_ROWS * ROW_GROUP_ROWS)

    def finish(self) -> tuple[StateFile, ...]:
        """Store what is left and return all files in order of key hash."""
        self._drain(self._pending_rows)
        if self._encoder is not None or not self._files:
            self._close_file()
        if self.cut_anywhere or len(self._files) == 1:
            return tuple(self._files)
        whole = self.description.visible
        starts = [whole.start, *(file.min_key_hash or 0 for file in self._files[1:])]
        ends = [*starts[1:], whole.end]
        return tuple(
            replace(file, visible=KeyRange(start, end))
            for file, start, end in zip(self._files, starts, ends, strict=True)
        )

    def _drain(self, row_count: int) -> None:
        """Encode the first pending rows; the rest stays pending until a row group is full."""
        if not self._pending_rows:
            return
        table = pa.concat_tables(self._pending)
        rest = table.slice(row_count)
        self._pending = [rest]
        self._pending_rows, self._pending_bytes = rest.num_rows, rest.nbytes
        for batch in cut_row_groups(table.slice(0, row_count)):
            self._append(batch)

    def _append(self, batch: pa.RecordBatch) -> None:
        if self._encoder is not None and self._encoder.size_bytes >= self.target_bytes:
            same = 0
            if not self.cut_anywhere:
                hashes = batch.column(KEY_HASH).to_numpy(zero_copy_only=False)
                last = np.uint64(self._bounds.max_key_hash or 0)
                same = int(np.searchsorted(hashes, last, "right"))
            if same:
                self._encode(batch.slice(0, same))
                batch = batch.slice(same)
            if batch.num_rows:
                self._close_file()
        if batch.num_rows:
            self._encode(batch)

    def _encode(self, batch: pa.RecordBatch) -> None:
        if self._encoder is None:
            self._encoder = ParquetEncoder(
                self.schema, self.description.state_version, batch
            )
        self._encoder.write(batch)
        self._bounds = self._bounds.merged_with(RowBounds.of(batch, self.description))

    def _close_file(self) -> None:
        encoder = self._encoder or ParquetEncoder(
            self.schema, self.description.state_version, self.schema.empty_table()
        )
        path, encoded = self.path_for(len(self._files)), encoder.finish()
        file = _store(self.store, path, encoded, self._bounds, self.description)
        self._files.append(file)
        self._encoder, self._bounds = None, RowBounds()


def _store(
    store: ObjectStore,
    path: str,
    encoded: EncodedFile,
    bounds: RowBounds,
    description: FileDescription,
) -> StateFile:
    """Create the object and return its list entry."""
    found = create_own(store, path, encoded.data)
    if found is not None:
        raise CorruptStateError(
            f"{store.url}/{path} was to be created with {len(encoded.data)} bytes, but holds "
            f"{len(found)} other bytes: something else writes into this job's folder. Nothing "
            "was overwritten; find the other writer before starting the job again",
            code=ErrorCode.FOREIGN_OBJECT,
            path=path,
            expected=f"{encoded.checksum:016x}",
        )
    return StateFile(
        path=path,
        epoch=description.epoch,
        subtask_index=description.subtask_index,
        level=description.level,
        row_count=encoded.row_count,
        size_bytes=len(encoded.data),
        checksum=encoded.checksum,
        footer_bytes=encoded.footer_bytes,
        footer_checksum=encoded.footer_checksum,
        state_version=description.state_version,
        min_time_micros=bounds.min_time_micros,
        max_time_micros=bounds.max_time_micros,
        min_key_hash=bounds.min_key_hash,
        max_key_hash=bounds.max_key_hash,
        last_expiry_micros=None if bounds.has_immortal_row else bounds.last_expiry_micros,
        visible=description.visible,
        replaces=description.replaces,
    )
