"""The functions that make aggregates, such as `pen.count()` and `pen.sum("price")`.

Each takes the name of a column, and `where=`, a Polars predicate over the same row: only
rows for which it is true count. Null values never count. Except for counts, the result of no
values is null, as in SQL. See `docs/aggregates.md`. `totals` has the classes of sum, avg, var
and stddev; all others are here.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.schema import StreamSchema
from penstock.errors import InternalError, SchemaError
from penstock.operators.aggregates.aggregate import (
    Aggregate,
    ColumnAggregate,
    find_where_problems,
    is_orderable,
)
from penstock.operators.aggregates.compiled import Kind, Reduction
from penstock.operators.aggregates.totals import (
    AdditiveAggregate,
    Avg,
    Deviation,
    Sum,
    Variance,
)
from penstock.state.tables.column_groups import Meaning


@dataclass(frozen=True, eq=False)
class CountValues(AdditiveAggregate):
    """How many rows have a value in a column. Never null."""

    function: ClassVar[str] = "count"
    wanted: ClassVar[str] = "any type"
    reduced: ClassVar[Mapping[str, Kind]] = {"count": "count"}

    @override
    @staticmethod
    def fits(dtype: pl.DataType) -> bool:
        return dtype != pl.Object

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        return {"count": self.values().count().cast(pl.Int64)}


@dataclass(frozen=True, eq=False)
class CountRows(CountValues):
    """How many rows there are, or for how many the predicate is true."""

    column: str = ""

    @override
    def for_stream(self, stream: StreamSchema) -> Self:
        problems = find_where_problems(self.where, stream)
        if problems:
            raise SchemaError(f"{self.display()}: {'; '.join(problems)}")
        return self

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        counted = pl.len() if self.where is None else self.where.sum()  # null is not true
        return {"count": counted.cast(pl.Int64)}

    @override
    def reductions(self) -> Mapping[str, Reduction] | None:
        return None if self.where is not None else {"count": Reduction("count", None)}


@dataclass(frozen=True, eq=False)
class CountDistinct(ColumnAggregate):
    """How many different values a column has, exactly: the values themselves are kept."""

    function: ClassVar[str] = "count_distinct"
    wanted: ClassVar[str] = "numbers, text, bytes, instants, booleans"
    fits = staticmethod(is_orderable)

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        return {"values": self.values().drop_nulls().unique()}

    @override
    def merge(self, values: pl.Expr) -> Mapping[str, pl.Expr]:
        """List the different values of several lists; no list has a null."""
        return {"values": values.explode().drop_nulls().unique()}

    @override
    def final(self, values: pl.Expr) -> pl.Expr:
        return values.list.len().cast(pl.Int64)


@dataclass(frozen=True, eq=False)
class _OneValue(ColumnAggregate):
    """One of the values of a group: the result has the column's own type."""

    wanted: ClassVar[str] = "numbers, text, bytes, instants, durations or booleans"
    fits = staticmethod(is_orderable)

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType:
        data_type: pa.DataType = self.type_in(stream)
        return data_type


@dataclass(frozen=True, eq=False)
class Min(_OneValue):
    """The least value of a column. NaN is greater than all other numbers."""

    function: ClassVar[str] = "min"
    reduced: ClassVar[Mapping[str, Kind]] = {"value": "min"}
    wins = staticmethod(operator.lt)

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        return self.merge(self.values())

    @override
    def merge(self, value: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"value": value.min()}

    @override
    def merge_pair(
        self, partials: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        mine, other = partials["value"], others["value"]
        takes_other = self.wins(other, mine) | mine.is_null()
        return {"value": pl.when(takes_other).then(other).otherwise(mine)}


@dataclass(frozen=True, eq=False)
class Max(Min):
    """The greatest value of a column. NaN is greater than all other numbers."""

    function: ClassVar[str] = "max"
    reduced: ClassVar[Mapping[str, Kind]] = {"value": "max"}
    wins = staticmethod(operator.gt)

    @override
    def merge(self, value: pl.Expr) -> Mapping[str, pl.Expr]:
        greatest = value.max()
        if self.dtype.is_float():
            # Polars' max passes over NaN, and its nan_max over groups is slow.
            nan = pl.when(value.is_nan().any()).then(float("nan"))
            greatest = nan.otherwise(greatest)
        return {"value": greatest}


@dataclass(frozen=True, eq=False)
class First(_OneValue):
    """The value of the row with the earliest event time that has one.

    Of several rows at that instant it is the least value, because which of them comes first
    depends on how rows travelled.
    """

    function: ClassVar[str] = "first"
    is_last: ClassVar[bool] = False

    time: str | None = None
    """The column of event times, once a stream is known."""

    @override
    def for_stream(self, stream: StreamSchema) -> Self:
        fitted = super().for_stream(stream)
        if stream.time_column is None:
            raise SchemaError(
                f"{self.display()}: the stream has no event time to tell what comes "
                f"{self.function}: name its timestamp column in Pipeline.read as event_time",
                column=self.column,
            )
        timed = replace(fitted, time=stream.time_column)
        return timed.was(*self.former_names) if self.former_names else timed

    @override
    def meaning(self) -> Meaning:
        plain = super().meaning()
        outline = f"{plain.outline} by {self.time}"
        return Meaning(outline, plain.expressions, plain.dialect)

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        if self.time is None:
            raise InternalError(
                f"{self.display()} was not made for a stream before its use"
            )
        value = self.values()
        return self.merge(pl.when(value.is_not_null()).then(pl.col(self.time)), value)

    @override
    def merge(self, time: pl.Expr, value: pl.Expr) -> Mapping[str, pl.Expr]:
        ordered = value.sort_by(time, value, descending=self.is_last, nulls_last=True)
        return {
            "time": time.max() if self.is_last else time.min(),
            "value": ordered.first(),
        }

    @override
    def final(self, time: pl.Expr, value: pl.Expr) -> pl.Expr:
        return value


@dataclass(frozen=True, eq=False)
class Last(First):
    """The value of the row with the latest event time; of several the greatest."""

    function: ClassVar[str] = "last"
    is_last: ClassVar[bool] = True


def count(column: str | None = None, *, where: pl.Expr | None = None) -> Aggregate:
    """Count rows, or with a column those that have a value in it.

    >>> count().display(), count("price").display()
    ('count()', 'count(price)')
    """
    return CountRows(where=where) if column is None else CountValues(column, where)


def sum(column: str, *, where: pl.Expr | None = None) -> Aggregate:  # noqa: A001 (pen.sum)
    """Add values: integers to 64 bits, floats to doubles, decimals to 38 digits.

    >>> sum("price").display()
    'sum(price)'
    """
    return Sum(column, where)


def min(column: str, *, where: pl.Expr | None = None) -> Aggregate:  # noqa: A001 (pen.min)
    """Take the least value; NaN only if there is no other number.

    >>> min("price").display()
    'min(price)'
    """
    return Min(column, where)


def max(column: str, *, where: pl.Expr | None = None) -> Aggregate:  # noqa: A001 (pen.max)
    """Take the greatest value; NaN if there is one.

    >>> max("price").display()
    'max(price)'
    """
    return Max(column, where)


def avg(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the mean of numbers, a double.

    >>> avg("price").display()
    'avg(price)'
    """
    return Avg(column, where)


def var(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the sample variance of numbers; null of fewer than two.

    >>> var("price").display()
    'var(price)'
    """
    return Variance(column, where)


def stddev(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the sample standard deviation of numbers; null of fewer than two.

    >>> stddev("price").display()
    'stddev(price)'
    """
    return Deviation(column, where)


def first(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the value of the row with the earliest event time; of several the least.

    >>> first("price").display()
    'first(price)'
    """
    return First(column, where)


def last(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the value of the row with the latest event time; of several the greatest.

    >>> last("price").display()
    'last(price)'
    """
    return Last(column, where)


def count_distinct(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Count different values, exactly: state grows with their number.

    >>> count_distinct("price").display()
    'count_distinct(price)'
    """
    return CountDistinct(column, where)
