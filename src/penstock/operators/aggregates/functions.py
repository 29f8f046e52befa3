"""The aggregates that users name: `ps.count()`, `ps.sum("price")` and so on.

Each takes the name of a column, and `where=`, a Polars predicate over the same row: only
rows for which it is true count. Null values never count. See `docs/aggregates.md`.

count and count_distinct.

min, max, first and last: one of the values of a group; of no values null, as in SQL.
"""

from collections.abc import Mapping

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.schema import StreamSchema
from penstock.errors import InternalError, SchemaError
from penstock.operators.aggregates.aggregate import (
    Aggregate,
    AggregatedColumn,
    check_arguments,
    check_where,
    is_orderable,
    show,
)
from penstock.operators.aggregates.plan import Reduction
from penstock.operators.aggregates.totals import Avg, Sum, Variance


class Count(Aggregate):
    """How many rows there are, or how many have a value in a column. Never null."""

    def __init__(self, column: str | None, where: pl.Expr | None) -> None:
        self._column = column
        self._where = where

    @override
    def display(self) -> str:
        return show("count", self._column or "", self._where)

    @override
    def for_stream(self, stream: StreamSchema) -> Aggregate:
        """Return itself, if column and predicate are there; the type does not matter."""
        if self._column is None:
            check_where(self._where, stream, self.display())
        else:
            column = AggregatedColumn(self._column, self._where)
            column.check(stream, "count", lambda dtype: dtype != pl.Object, "any type")
        return self

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        if self._column is not None:
            counted = AggregatedColumn(self._column, self._where).values().count()
        elif self._where is not None:
            counted = self._where.sum()  # null is not true
        else:
            counted = pl.len()
        return {"count": counted.cast(pl.Int64)}

    @override
    def merge(self, count: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"count": count.sum()}

    @override
    def merge_pair(
        self, partials: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        return {"count": partials["count"] + others["count"].fill_null(0)}

    @override
    def reductions(self) -> Mapping[str, Reduction] | None:
        """Count rows or values, if all of them count."""
        if self._where is not None:
            return None
        return {"count": Reduction("count", self._column)}

    @override
    def final(self, count: pl.Expr) -> pl.Expr:
        return count


class CountDistinct(Aggregate):
    """How many different values a column has, exactly: the values themselves are kept."""

    def __init__(self, column: str, where: pl.Expr | None) -> None:
        self._column = AggregatedColumn(column, where)

    @override
    def display(self) -> str:
        return self._column.shown("count_distinct")

    @override
    def for_stream(self, stream: StreamSchema) -> Aggregate:
        """Return itself, if values of the column can be told apart."""
        self._column.check(
            stream,
            "count_distinct",
            is_orderable,
            "numbers, text, bytes, instants, booleans",
        )
        return self

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        return {"values": self._column.values().drop_nulls().unique()}

    @override
    def merge(self, values: pl.Expr) -> Mapping[str, pl.Expr]:
        """List the different values of several lists; no list has a null."""
        return {"values": values.explode().drop_nulls().unique()}

    @override
    def final(self, values: pl.Expr) -> pl.Expr:
        return values.list.len().cast(pl.Int64)


_ORDERABLE = "numbers, text, bytes, instants, durations or booleans"


class Extreme(Aggregate):
    """The least or the greatest value of a column. NaN is greater than all other numbers."""

    def __init__(
        self, column: str, where: pl.Expr | None, *, is_max: bool, is_float: bool = False
    ) -> None:
        self._column = AggregatedColumn(column, where)
        self._where = where
        self._is_max = is_max
        self._is_float = is_float

    @override
    def display(self) -> str:
        return self._column.shown(self._function())

    @override
    def for_stream(self, stream: StreamSchema) -> Aggregate:
        """Return the form for the column's type."""
        dtype = self._column.check(stream, self._function(), is_orderable, _ORDERABLE)
        return Extreme(
            self._column.name, self._where, is_max=self._is_max, is_float=dtype.is_float()
        )

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        return {"value": self._extreme(self._column.values())}

    @override
    def merge(self, value: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"value": self._extreme(value)}

    @override
    def merge_pair(
        self, partials: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        """Take the extreme of two, or the one there is."""
        mine, other = partials["value"], others["value"]
        wins = other > mine if self._is_max else other < mine  # NaN is greatest here too
        return {"value": pl.when(wins | mine.is_null()).then(other).otherwise(mine)}

    @override
    def reductions(self) -> Mapping[str, Reduction] | None:
        """Take the extreme, if all values count."""
        if self._where is not None:
            return None
        return {"value": Reduction("max" if self._is_max else "min", self._column.name)}

    @override
    def final(self, value: pl.Expr) -> pl.Expr:
        return value

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType:
        data_type: pa.DataType = self._column.type_in(stream)
        return data_type

    def _extreme(self, values: pl.Expr) -> pl.Expr:
        if not self._is_max:
            return values.min()
        if not self._is_float:
            return values.max()
        # Polars' max passes over NaN, and its nan_max over groups is slow.
        return pl.when(values.is_nan().any()).then(float("nan")).otherwise(values.max())

    def _function(self) -> str:
        return "max" if self._is_max else "min"


class ByEventTime(Aggregate):
    """The value of the earliest or the latest row that has one.

    Of several rows at that instant it is the least or the greatest value: which row came
    first would depend on how rows travelled.
    """

    def __init__(
        self, column: str, where: pl.Expr | None, *, is_last: bool, time: str | None = None
    ) -> None:
        self._column = AggregatedColumn(column, where)
        self._where = where
        self._is_last = is_last
        self._time = time
        """The column of event times, once a stream is known."""

    @override
    def display(self) -> str:
        return self._column.shown(self._function())

    @override
    def for_stream(self, stream: StreamSchema) -> Aggregate:
        """Return the form for the stream's event time."""
        self._column.check(stream, self._function(), is_orderable, _ORDERABLE)
        if stream.time_column is None:
            raise SchemaError(
                f"{self.display()}: the stream has no event time to tell what comes "
                f"{self._function()}: name its timestamp column in Pipeline.read as event_time",
                column=self._column.name,
            )
        return ByEventTime(
            self._column.name, self._where, is_last=self._is_last, time=stream.time_column
        )

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        if self._time is None:
            raise InternalError(
                f"{self.display()} was not made for a stream before its use"
            )
        value = self._column.values()
        return self._picked(pl.when(value.is_not_null()).then(pl.col(self._time)), value)

    @override
    def merge(self, time: pl.Expr, value: pl.Expr) -> Mapping[str, pl.Expr]:
        """Pick one of the values that were picked."""
        return self._picked(time, value)

    @override
    def final(self, time: pl.Expr, value: pl.Expr) -> pl.Expr:
        return value

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType:
        data_type: pa.DataType = self._column.type_in(stream)
        return data_type

    def _picked(self, time: pl.Expr, value: pl.Expr) -> Mapping[str, pl.Expr]:
        ordered = value.sort_by(time, value, descending=self._is_last, nulls_last=True)
        return {
            "time": time.max() if self._is_last else time.min(),
            "value": ordered.first(),
        }

    def _function(self) -> str:
        return "last" if self._is_last else "first"


def count(column: str | None = None, *, where: pl.Expr | None = None) -> Aggregate:
    """Count rows, or with a column those that have a value in it.

    >>> count().display(), count("price").display()
    ('count()', 'count(price)')
    """
    check_arguments("count", "" if column is None else column, where)
    return Count(column, where)


def sum(column: str, *, where: pl.Expr | None = None) -> Aggregate:  # noqa: A001 (ps.sum)
    """Add values: integers to 64 bits, floats to doubles, decimals to 38 digits.

    >>> sum("price").display()
    'sum(price)'
    """
    check_arguments("sum", column, where)
    return Sum(column, where)


def min(column: str, *, where: pl.Expr | None = None) -> Aggregate:  # noqa: A001 (ps.min)
    """Take the least value; NaN only if there is no other number.

    >>> min("price").display()
    'min(price)'
    """
    check_arguments("min", column, where)
    return Extreme(column, where, is_max=False)


def max(column: str, *, where: pl.Expr | None = None) -> Aggregate:  # noqa: A001 (ps.max)
    """Take the greatest value; NaN if there is one.

    >>> max("price").display()
    'max(price)'
    """
    check_arguments("max", column, where)
    return Extreme(column, where, is_max=True)


def avg(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the mean of numbers, a double.

    >>> avg("price").display()
    'avg(price)'
    """
    check_arguments("avg", column, where)
    return Avg(column, where)


def var(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the sample variance of numbers; null of fewer than two.

    >>> var("price").display()
    'var(price)'
    """
    check_arguments("var", column, where)
    return Variance(column, where)


def stddev(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the sample standard deviation of numbers; null of fewer than two.

    >>> stddev("price").display()
    'stddev(price)'
    """
    check_arguments("stddev", column, where)
    return Variance(column, where, is_deviation=True)


def first(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the value of the row with the earliest event time; of several the least.

    >>> first("price").display()
    'first(price)'
    """
    check_arguments("first", column, where)
    return ByEventTime(column, where, is_last=False)


def last(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the value of the row with the latest event time; of several the greatest.

    >>> last("price").display()
    'last(price)'
    """
    check_arguments("last", column, where)
    return ByEventTime(column, where, is_last=True)


def count_distinct(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Count different values, exactly: state grows with their number.

    >>> count_distinct("price").display()
    'count_distinct(price)'
    """
    check_arguments("count_distinct", column, where)
    return CountDistinct(column, where)
