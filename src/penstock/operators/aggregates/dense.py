"""Grouping by whole numbers that lie close together: a key is a place in an array. Pure.

Ids mostly are such numbers. Per row this is an addition at a place, where hashing looks for
the place first: less than a third of the time. Whatever it cannot do exactly it leaves to the caller.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import polars as pl

Kind: TypeAlias = Literal["count", "sum", "float_sum", "min", "max"]
_Array: TypeAlias = "np.typing.NDArray[Any]"

PLACES_PER_ROW = 4
"""With more places than this per row, most of them would be empty."""
_LONGEST = 1 << 63


class Reduction(NamedTuple):
    """What becomes of a column within a group, or of the rows themselves if none is named."""

    kind: Kind
    column: str | None

    def of_partials(self, column: str) -> "Reduction":
        """Return what becomes of the partials, kept in a column."""
        return Reduction("sum" if self.kind == "count" else self.kind, column)


def read_kind(name: str) -> Kind:
    """Return the kind of that name."""
    for kind in get_args(Kind):
        if kind == name:
            found: Kind = kind
            return found
    raise ValueError(f"there is no reduction {name!r}")


def reduce_by_place(
    rows: pl.DataFrame, key: str, reductions: Mapping[str, Reduction]
) -> pl.DataFrame | None:
    """Return one row per key, by key: the key, then the reductions; None if this is not for them.

    Columns must be numbers of up to 64 bits, all there: no nulls, no NaN, no sum that overflows.
    """
    keys = rows[key]
    if not rows.height or not _is_whole(keys) or keys.null_count():
        return None
    first, last = _bounds(keys)
    span = last - first + 1
    if span > PLACES_PER_ROW * rows.height:
        return None
    columns = {name: rows[name] for _, name in reductions.values() if name is not None}
    if not all(map(_is_plain, columns.values())):
        return None
    if any(
        kind == "sum" and name is not None and _may_overflow(columns[name])
        for kind, name in reductions.values()
    ):
        return None
    places = keys.cast(pl.Int64).to_numpy() - first
    counts = np.bincount(places, minlength=span)
    found = np.flatnonzero(counts)
    values = {name: column.to_numpy() for name, column in columns.items()}
    reduced = {
        result: counts
        if name is None or kind == "count"
        else _REDUCERS[kind](values[name], places, span)
        for result, (kind, name) in reductions.items()
    }
    return pl.DataFrame(
        [
            pl.Series(key, found + first).cast(keys.dtype),
            *(pl.Series(result, array[found]) for result, array in reduced.items()),
        ]
    )


def _sum(values: _Array, places: _Array, span: int) -> _Array:
    wide: Any = {"i": np.int64, "u": np.uint64, "f": np.float64}[values.dtype.kind]
    totals: _Array = np.zeros(span, wide)
    np.add.at(totals, places, values.astype(wide, copy=False))
    return totals


def _float_sum(values: _Array, places: _Array, span: int) -> _Array:
    return _sum(values.astype(np.float64, copy=False), places, span)


def _min(values: _Array, places: _Array, span: int) -> _Array:
    least: _Array = np.full(span, _limits(values.dtype)[1], values.dtype)
    np.minimum.at(least, places, values)
    return least


def _max(values: _Array, places: _Array, span: int) -> _Array:
    greatest: _Array = np.full(span, _limits(values.dtype)[0], values.dtype)
    np.maximum.at(greatest, places, values)
    return greatest


_REDUCERS: dict[str, Callable[[_Array, _Array, int], _Array]] = {
    "sum": _sum,
    "float_sum": _float_sum,
    "min": _min,
    "max": _max,
}


def _limits(dtype: "np.dtype[Any]") -> tuple[Any, Any]:
    if dtype.kind == "f":
        return -np.inf, np.inf
    limits = np.iinfo(dtype)
    return limits.min, limits.max


def _is_whole(column: pl.Series) -> bool:
    """Tell whether a column has whole numbers that fit into 64 bits with a sign."""
    return column.dtype.is_integer() and column.dtype not in (
        pl.UInt64,
        pl.Int128,
        pl.UInt128,
    )


def _is_plain(column: pl.Series) -> bool:
    if column.null_count():
        return False
    if column.dtype in (pl.Float32, pl.Float64):
        return not column.is_nan().any()
    return _is_whole(column)


def _may_overflow(column: pl.Series) -> bool:
    if column.dtype.is_float():
        return False
    least, greatest = _bounds(column)
    return max(-least, greatest) * len(column) >= _LONGEST


def _bounds(column: pl.Series) -> tuple[int, int]:
    least: Any = column.min()
    greatest: Any = column.max()
    return int(least), int(greatest)
