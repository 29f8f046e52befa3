"""The aggregates that users name: `ps.count()`, `ps.sum("price")` and so on.

Each takes the name of a column, and `where=`, a Polars predicate over the same row: only
rows for which it is true count. Null values never count. See `docs/aggregates.md`.
"""

import polars as pl

from penstock.operators.aggregates.aggregate import Aggregate
from penstock.operators.aggregates.columns import check_arguments
from penstock.operators.aggregates.counts import Count, CountDistinct
from penstock.operators.aggregates.extremes import ByEventTime, Extreme
from penstock.operators.aggregates.totals import Avg, Sum, Variance


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
