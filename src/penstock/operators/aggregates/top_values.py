"""The aggregate approx_top_k: the most frequent values, with bounded state.

While a group has few different values, these are counted. Beyond that, four arrays of cells are
kept instead, and every value belongs to one cell of each, by its hash. A cell
holds how many rows fell into it (a count-min sketch) and one of their values: that of the row
with the least hash of value and place, which is a fair draw among the rows of the cell. So a
frequent value holds one of its cells all but surely, and the least count of its four cells is
hardly more than its own.

Counts add up and least hashes are least hashes in any order, so the estimate of the same rows is
always the same. Summaries that evict values (space saving, Misra-Gries) are smaller, but what
they evict depends on how rows are cut into epochs and splits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.key_hash import hash_keys_uncut
from penstock.core.schema import StreamSchema
from penstock.errors import SchemaError
from penstock.operators.aggregates.aggregate import ColumnAggregate, is_orderable
from penstock.operators.aggregates.kept import ROW, fold, unfold
from penstock.operators.aggregates.sketches import find_error_problems, hash_of

_ARRAYS = 4
_BITS = 16
"""How many bits of the hash choose the cell of each array."""
_MOST = 1000


@dataclass(frozen=True, eq=False)
class ApproxTopK(ColumnAggregate):
    """The most frequent values of a column with about how many rows have each."""

    function: ClassVar[str] = "approx_top_k"
    wanted: ClassVar[str] = "numbers, text, bytes, instants, durations or booleans"
    fits = staticmethod(is_orderable)

    k: int = 10
    error: float = 0.01
    """By how much a count may be too high, as a share of all rows of the group."""
    place: str | None = None
    """The column that tells rows apart; None for the event time, until a stream is known."""

    @override
    def others(self) -> Sequence[str]:
        return () if self.place is None else (self.place,)

    @override
    def find_problems(self) -> list[str]:
        problems = find_error_problems(self.error, 0.001)
        k: object = self.k
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= _MOST:
            problems.append(f"k must be a whole number from 1 to {_MOST}, not {k!r}")
        return problems

    @override
    def arguments(self) -> str:
        shown = f"{self.column}, {self.k}, error={self.error}"
        return shown if self.place is None else f"{shown}, by={self.place}"

    @override
    def for_stream(self, stream: StreamSchema) -> Self:
        if self.place is None and stream.time_column is None:
            raise SchemaError(
                f"{self.display()}: the stream has no event time to tell rows apart: name a "
                "column that does, such as an id, as by=",
                column=self.column,
            )
        return super().for_stream(stream).replaced(place=self.place or stream.time_column)

    @property
    def _width(self) -> int:
        """How many cells an array has: a value shares its cell with so small a part of rows."""
        return math.ceil(math.e / self.error)

    @property
    def _cells(self) -> pl.DataType:
        fields = {"cell": pl.Int32, "count": pl.Int64, "mark": pl.UInt64}
        return pl.List(pl.Struct({**fields, "value": self.dtype}))

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        """List the values of rows; those of a cell have its number."""
        values = self.values()
        mark = hash_of(
            pl.struct(values.alias("value"), pl.col(self.place or "").alias("by"))
        )
        cell = pl.struct(
            pl.lit(None, pl.Int32).alias("cell"),
            pl.lit(1, pl.Int64).alias("count"),
            mark.alias("mark"),
            values.alias("value"),
        )
        return {"cells": cell.filter(values.is_not_null())}

    @override
    def merge(self, cells: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"cells": cells.explode()}

    @override
    def settle(self, **computed: pl.Expr) -> Mapping[str, pl.Expr]:
        """Make one of all entries of a value or a cell, of all groups at once."""
        reduced = computed["cells"].map_batches(
            partial(_reduce, width=self._width, dtype=self._cells),
            return_dtype=self._cells,
            is_elementwise=True,
        )
        return {"cells": reduced}

    @override
    def final(self, cells: pl.Expr) -> pl.Expr:
        dtype = pl.List(pl.Struct({"value": self.dtype, "count": pl.Int64}))
        return cells.map_batches(
            partial(_top, width=self._width, k=self.k, dtype=dtype),
            return_dtype=dtype,
            is_elementwise=True,
        )

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType:
        entry = [pa.field("value", self.type_in(stream)), pa.field("count", pa.int64())]
        return pa.list_(pa.struct(entry))


def _reduce(lists: pl.Series, *, width: int, dtype: pl.DataType) -> pl.Series:
    """Return each value of a list once, or if there are more of them than cells, each cell once."""
    entries = unfold(lists)
    is_value = entries["cell"].is_null()
    values = (
        entries.filter(is_value)
        .group_by(ROW, "value")
        .agg(pl.col("cell").first(), pl.col("count").sum(), pl.col("mark").min())
    )
    counts = np.bincount(values[ROW].to_numpy(), minlength=len(lists))
    is_sketch = counts > _ARRAYS * width
    is_sketch[entries.filter(~is_value)[ROW].unique().to_numpy()] = True
    is_sketched = pl.Series(is_sketch[values[ROW].to_numpy()])
    order = [ROW, "cell", "count", "mark", "value"]
    parts = [entries.filter(~is_value), *_placed(values.filter(is_sketched), width)]
    # Grouping by one number is several times as fast as by two.
    key = pl.col(ROW) * (_ARRAYS * width) + pl.col("cell")
    cells = (
        pl.concat([part.select(order) for part in parts])
        .group_by(key.alias("key"))
        .agg(
            pl.col(ROW, "cell").first(),
            pl.col("count").sum(),
            pl.col("mark").min(),
            pl.col("value").sort_by("mark").first(),
        )
    )
    both = pl.concat([values.filter(~is_sketched).select(order), cells.select(order)])
    return fold(both.sort(ROW, "cell"), len(lists), dtype).alias(lists.name)


def _top(lists: pl.Series, *, width: int, k: int, dtype: pl.DataType) -> pl.Series:
    """Return the values of each list with the greatest counts; of equal ones the least."""
    entries = unfold(lists)
    is_value = pl.col("cell").is_null()
    counts = entries.filter(~is_value).select(ROW, "cell", "count")
    drawn = entries.filter(~is_value).select(ROW, "value").unique()
    candidates = drawn.with_row_index("candidate")
    estimates = (
        pl.concat(_placed(candidates, width))
        .join(counts, on=[ROW, "cell"])
        .group_by("candidate")
        .agg(pl.col("count").min())
    )
    names = [ROW, "value", "count"]
    ranked = pl.concat(
        [
            entries.filter(is_value).select(names),
            candidates.join(estimates, on="candidate").select(names),
        ]
    ).sort(ROW, "count", "value", descending=[False, True, False])
    top = ranked.group_by(ROW, maintain_order=True).head(k)
    return fold(top.select(names), len(lists), dtype).alias(lists.name)


def _placed(values: pl.DataFrame, width: int) -> list[pl.DataFrame]:
    """Return rows with the cell of their value, in each of the arrays."""
    hashes = hash_keys_uncut([values["value"].to_arrow()])
    mask = np.uint64((1 << _BITS) - 1)
    placed = []
    for array in range(_ARRAYS):
        bits = (hashes >> np.uint64(array * _BITS)) & mask
        cells = (bits % np.uint64(width)).astype(np.int32) + np.int32(array * width)
        placed.append(values.with_columns(pl.Series("cell", cells)))
    return placed
