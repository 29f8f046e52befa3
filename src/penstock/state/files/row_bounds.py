"""The extremes of some rows: what a list entry says about its file without opening it.

Pure. Instants of any unit become whole microseconds, rounded outwards and kept in 64 bits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.files.parquet import KEY_HASH

Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"
_INT64 = (-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class RowBounds:
    """The extremes of a file's rows, as its list entry records them."""

    min_time_micros: int | None = None
    max_time_micros: int | None = None
    min_key_hash: int | None = None
    max_key_hash: int | None = None
    last_expiry_micros: int | None = None
    has_immortal_row: bool = False

    @classmethod
    def of(
        cls,
        rows: pa.RecordBatch | pa.Table,
        *,
        time_column: str | None,
        expiry_column: str | None,
    ) -> "RowBounds":
        """Compute the bounds of some rows."""
        low_time = high_time = low_hash = high_hash = last_expiry = None
        immortal = expiry_column is None and rows.num_rows > 0
        if time_column is not None:
            low_time, high_time = _micros_bounds(rows.column(time_column))
        if expiry_column is not None:
            column = rows.column(expiry_column)
            immortal = column.null_count > 0
            last_expiry = _micros_bounds(column)[1]
        if KEY_HASH in rows.schema.names:
            low_hash, high_hash = _bounds(rows.column(KEY_HASH))
        return cls(low_time, high_time, low_hash, high_hash, last_expiry, immortal)

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


def _known(
    choose: Callable[[int, int], int], left: int | None, right: int | None
) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return choose(left, right)


def _bounds(column: Column) -> tuple[int | None, int | None]:
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


def _micros_bounds(column: Column) -> tuple[int | None, int | None]:
    """Return the smallest and largest instant in microseconds, rounded outwards."""
    low, high = _bounds(column.cast(pa.int64()))
    if low is None or high is None:
        return None, None
    unit = getattr(column.type, "unit", "us")
    if unit == "ns":
        return low // 1_000, -(-high // 1_000)
    scale = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    return max(low * scale, _INT64[0]), min(high * scale, _INT64[1])
