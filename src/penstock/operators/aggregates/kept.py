"""The aggregates that keep values: median, quantile, collect_list, collect_set, string_agg.

Quantiles keep every value of a group. Lists are bounded: of more values than the limit those are
kept that come first in the order of the list. That order depends on the rows alone, so it does
not matter where partials are made and merged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.schema import StreamSchema
from penstock.errors import SchemaError
from penstock.operators.aggregates.aggregate import (
    ColumnAggregate,
    is_number,
    is_orderable,
)

ROW = "row"
_MOST_KEPT = 1_000_000


def unfold(lists: pl.Series) -> pl.DataFrame:
    """Return the structs in lists as rows: `ROW`, the place of their list, and their fields."""
    rows = np.repeat(np.arange(len(lists)), lists.list.len().fill_null(0).to_numpy())
    fields = lists.drop_nulls().explode().struct.unnest()
    return fields.with_columns(pl.Series(ROW, rows, pl.Int64))


def fold(frame: pl.DataFrame, list_count: int, dtype: pl.DataType) -> pl.Series:
    """Return rows as lists of structs, which `unfold` takes apart; they are sorted by `ROW`."""
    counts = np.bincount(frame[ROW].to_numpy(), minlength=list_count)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    structs = frame.drop(ROW).to_struct().to_arrow()
    lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), structs)
    return pl.Series(lists).cast(dtype)


def find_share_problems(shares: object) -> list[str]:
    """Return why something is not a share from 0 to 1, nor several of them."""
    several = shares if isinstance(shares, tuple) else (shares,)
    wrong = [
        share
        for share in several
        if isinstance(share, bool)
        or not isinstance(share, int | float)
        or not 0 <= share <= 1
    ]
    if wrong or not several:
        return [f"q must be a number from 0 to 1, or several, not {shares!r}"]
    return []


def find_limit_problems(limit: object) -> list[str]:
    """Return why something is no limit of a list."""
    if isinstance(limit, int) and not isinstance(limit, bool) and 1 <= limit <= _MOST_KEPT:
        return []
    return [f"limit must be a whole number from 1 to {_MOST_KEPT:,}, not {limit!r}"]


@dataclass(frozen=True, eq=False)
class Quantile(ColumnAggregate):
    """The value below which a share of the values lie: exact, because all of them are kept.

    Between two values it is interpolated, as by SQL's percentile_cont.
    """

    function: ClassVar[str] = "quantile"
    wanted: ClassVar[str] = "numbers; others have discrete quantiles: discrete=True"
    keeps_all_values: ClassVar[bool] = True
    fits = staticmethod(is_number)

    shares: float | tuple[float, ...] = 0.5
    """One share gives a number, several a list of numbers."""

    @override
    def find_problems(self) -> list[str]:
        return find_share_problems(self.shares)

    @override
    def arguments(self) -> str:
        return f"{self.column}, {self.shares}"

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        return {"values": self.values().drop_nulls()}

    @override
    def merge(self, values: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"values": values.explode()}

    @override
    def final(self, values: pl.Expr) -> pl.Expr:
        if isinstance(self.shares, tuple):
            found = [self.at(values, share) for share in self.shares]
            return pl.when(values.list.len() > 0).then(pl.concat_list(found))
        return self.at(values, self.shares)

    def at(self, values: pl.Expr, share: float) -> pl.Expr:
        """Return the quantile of each list; null of an empty one."""
        quantile = pl.element().cast(pl.Float64).quantile(share, "linear")
        return values.list.eval(quantile).list.first()

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType | None:
        return pa.list_(pa.float64()) if isinstance(self.shares, tuple) else None


@dataclass(frozen=True, eq=False)
class Median(Quantile):
    """The value in the middle; of an even number of values the mean of both."""

    function: ClassVar[str] = "median"
    wanted: ClassVar[str] = "numbers"

    @override
    def arguments(self) -> str:
        return self.column


@dataclass(frozen=True, eq=False)
class DiscreteQuantile(Quantile):
    """The least value such that a share of the values is not above it: percentile_disc of SQL."""

    function: ClassVar[str] = "quantile"
    wanted: ClassVar[str] = "numbers, text, bytes, instants, durations or booleans"
    fits = staticmethod(is_orderable)

    @override
    def arguments(self) -> str:
        return f"{super().arguments()}, discrete=True"

    @override
    def at(self, values: pl.Expr, share: float) -> pl.Expr:
        count = values.list.len().cast(pl.Int64)
        # A share such as 0.7 of 10 values is 7.000000000000001 in floats, but means the 7th.
        place = (count * share - 1e-9 * (count * share + 1)).ceil().cast(pl.Int64) - 1
        return values.list.sort().list.get(place.clip(0), null_on_oob=True)

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType:
        own: pa.DataType = self.type_in(stream)
        return pa.list_(own) if isinstance(self.shares, tuple) else own


@dataclass(frozen=True, eq=False)
class CollectSet(ColumnAggregate):
    """The different values of a group, sorted: at most `limit` of them, the least."""

    function: ClassVar[str] = "collect_set"
    wanted: ClassVar[str] = "numbers, text, bytes, instants, durations or booleans"
    fits = staticmethod(is_orderable)

    limit: int = 1000

    @override
    def find_problems(self) -> list[str]:
        return find_limit_problems(self.limit)

    @override
    def arguments(self) -> str:
        return f"{self.column}, limit={self.limit}"

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        return {"values": self.values().drop_nulls().unique()}

    @override
    def merge(self, values: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"values": values.explode().unique()}

    @override
    def settle(self, **computed: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"values": computed["values"].list.sort().list.head(self.limit)}

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType:
        return pa.list_(self.type_in(stream))


@dataclass(frozen=True, eq=False)
class CollectList(ColumnAggregate):
    """The values of a group in order, at most `limit` of them; an empty list of none.

    The order is that of another column, by default the event time if there is one, then that
    of the values themselves. Rows without a place come last.
    """

    function: ClassVar[str] = "collect_list"
    wanted: ClassVar[str] = "numbers, text, bytes, instants, durations or booleans"
    fits = staticmethod(is_orderable)

    limit: int = 1000
    order: str | None = None
    """The column that orders rows; None for the event time, until a stream is known."""

    @override
    def others(self) -> Sequence[str]:
        return () if self.order is None else (self.order,)

    @override
    def find_problems(self) -> list[str]:
        return find_limit_problems(self.limit)

    @override
    def arguments(self) -> str:
        shown = f"{self.column}, limit={self.limit}"
        return shown if self.order is None else f"{shown}, order_by={self.order}"

    @override
    def for_stream(self, stream: StreamSchema) -> Self:
        return super().for_stream(stream).replaced(order=self.order or stream.time_column)

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        values = self.values()
        fields = [values.alias("value")]
        if self.order is not None:
            fields.insert(0, pl.col(self.order).alias("place"))
        return {"entries": pl.struct(fields).filter(values.is_not_null())}

    @override
    def merge(self, entries: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"entries": entries.explode()}

    @override
    def settle(self, **computed: pl.Expr) -> Mapping[str, pl.Expr]:
        """Keep the entries that come first, of all groups at once."""
        first = partial(_first, limit=self.limit)
        return {"entries": computed["entries"].map_batches(first, is_elementwise=True)}

    @override
    def final(self, entries: pl.Expr) -> pl.Expr:
        return entries.list.eval(pl.element().struct.field("value"))

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType:
        return pa.list_(self.type_in(stream))


def _first(lists: pl.Series, *, limit: int) -> pl.Series:
    """Return the lists sorted by their entries' fields in order, and cut off at the limit."""
    entries = unfold(lists)
    order = [ROW, *(name for name in entries.columns if name != ROW)]
    kept = (
        entries.sort(order, nulls_last=True).group_by(ROW, maintain_order=True).head(limit)
    )
    return fold(kept.select(order), len(lists), lists.dtype).alias(lists.name)


@dataclass(frozen=True, eq=False)
class StringAgg(CollectList):
    """The texts of a group in order, joined: at most `limit` of them; null of none."""

    function: ClassVar[str] = "string_agg"
    separator: str = ","

    @override
    def find_problems(self) -> list[str]:
        separator: Any = self.separator
        problems = super().find_problems()
        if not isinstance(separator, str):
            problems.append(f"separator must be a text, not {separator!r}")
        return problems

    @override
    def arguments(self) -> str:
        shown = f"{self.column}, {self.separator!r}, limit={self.limit}"
        return shown if self.order is None else f"{shown}, order_by={self.order}"

    @override
    def for_stream(self, stream: StreamSchema) -> Self:
        fitted = super().for_stream(stream)
        if fitted.dtype == pl.String:
            return fitted
        found = stream.arrow.field(self.column).type
        raise SchemaError(
            f"{self.display()}: column {self.column!r} is {found}, but it takes text: cast it "
            "with with_columns before",
            column=self.column,
        )

    @override
    def final(self, entries: pl.Expr) -> pl.Expr:
        texts = super().final(entries)
        return pl.when(texts.list.len() > 0).then(texts.list.join(self.separator))

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType:
        return pa.string()
