"""The functions that make aggregates, such as `pen.count()` and `pen.sum("price")`.

Each takes the name of a column, and `where=`, a Polars predicate over the same row: only
rows for which it is true count. Null values never count. Except for counts and lists, the result
of no values is null, as in SQL. See `docs/aggregates.md`. The classes are in the files of their
families; functions of two columns are in `pairs`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.errors import ErrorCode, UserError
from penstock.operators.aggregates.aggregate import Aggregate
from penstock.operators.aggregates.counts import (
    BoolAnd,
    BoolOr,
    CountDistinct,
    CountRows,
    CountValues,
)
from penstock.operators.aggregates.kept import (
    CollectList,
    CollectSet,
    DiscreteQuantile,
    Median,
    Quantile,
    StringAgg,
)
from penstock.operators.aggregates.picked import (
    ArgMax,
    ArgMin,
    BitAnd,
    BitOr,
    BitXor,
    First,
    Last,
    Max,
    Min,
)
from penstock.operators.aggregates.row_functions import RowsAggregate
from penstock.operators.aggregates.sketches import (
    ApproxDistinct,
    ApproxQuantile,
    as_shares,
)
from penstock.operators.aggregates.top_values import ApproxTopK
from penstock.operators.aggregates.totals import Avg, Sum
from penstock.operators.aggregates.variances import (
    Deviation,
    PopulationDeviation,
    PopulationVariance,
    Variance,
)
from penstock.operators.user_functions import pickle_function


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


def var_pop(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the variance of numbers that are all there are; null of none.

    >>> var_pop("price").display()
    'var_pop(price)'
    """
    return PopulationVariance(column, where)


def stddev_pop(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the standard deviation of numbers that are all there are; null of none.

    >>> stddev_pop("price").display()
    'stddev_pop(price)'
    """
    return PopulationDeviation(column, where)


def first(
    column: str, *, order_by: str | None = None, where: pl.Expr | None = None
) -> Aggregate:
    """Take the value of the first row by event time, or by a column; of several the least.

    >>> first("price").display(), first("price", order_by="offset").display()
    ('first(price)', 'first(price, order_by=offset)')
    """
    return First(column, where, order=order_by)


def last(
    column: str, *, order_by: str | None = None, where: pl.Expr | None = None
) -> Aggregate:
    """Take the value of the last row by event time, or by a column; of several the greatest.

    >>> last("price").display(), last("price", order_by="offset").display()
    ('last(price)', 'last(price, order_by=offset)')
    """
    return Last(column, where, order=order_by)


def arg_min(column: str, by: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the value of the row where `by` is least; of several rows the least value.

    >>> arg_min("bidder", "price").display()
    'arg_min(bidder, price)'
    """
    return ArgMin(column, where, order=by)


def arg_max(column: str, by: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the value of the row where `by` is greatest; of several rows the greatest value.

    >>> arg_max("bidder", "price").display()
    'arg_max(bidder, price)'
    """
    return ArgMax(column, where, order=by)


def bool_and(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Tell whether all values are true.

    >>> bool_and("paid").display()
    'bool_and(paid)'
    """
    return BoolAnd(column, where)


def bool_or(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Tell whether any value is true.

    >>> bool_or("paid").display()
    'bool_or(paid)'
    """
    return BoolOr(column, where)


def bit_and(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the bits that all integers have.

    >>> bit_and("flags").display()
    'bit_and(flags)'
    """
    return BitAnd(column, where)


def bit_or(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the bits that any integer has.

    >>> bit_or("flags").display()
    'bit_or(flags)'
    """
    return BitOr(column, where)


def bit_xor(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the bits that an odd number of integers have.

    >>> bit_xor("flags").display()
    'bit_xor(flags)'
    """
    return BitXor(column, where)


def count_distinct(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Count different values, exactly: state grows with their number.

    >>> count_distinct("price").display()
    'count_distinct(price)'
    """
    return CountDistinct(column, where)


def approx_distinct(
    column: str, *, error: float = 0.02, where: pl.Expr | None = None
) -> Aggregate:
    """Estimate how many different values there are, with a standard error of 2 %.

    State is bounded: `1 / error**2` numbers of 64 bits. Fewer values are counted exactly.

    >>> approx_distinct("user").display()
    'approx_distinct(user, error=0.02)'
    """
    return ApproxDistinct(column, where, error=error)


def median(column: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the number in the middle, exactly: all of them are kept in state.

    >>> median("price").display()
    'median(price)'
    """
    return Median(column, where)


def quantile(
    column: str,
    q: float | Sequence[float],
    *,
    discrete: bool = False,
    where: pl.Expr | None = None,
) -> Aggregate:
    """Take the number below which a share of them lies, exactly: all are kept in state.

    Several shares give a list. Between two numbers it is interpolated; with `discrete` it is
    one of the values, of any type that has an order.

    >>> quantile("price", 0.9).display(), quantile("price", [0.5, 0.9]).display()
    ('quantile(price, 0.9)', 'quantile(price, (0.5, 0.9))')
    """
    given: object = discrete
    if not isinstance(given, bool):
        raise UserError(
            f"pen.quantile: discrete={given!r:.80} is neither True nor False",
            code=ErrorCode.INVALID_CONFIG,
        )
    kind = DiscreteQuantile if discrete else Quantile
    return kind(column, where, shares=as_shares(q))


def approx_quantile(
    column: str,
    q: float | Sequence[float],
    *,
    error: float = 0.01,
    where: pl.Expr | None = None,
) -> Aggregate:
    """Estimate a quantile: within 1 % of its value, however many rows there are.

    State is bounded: a count for each hundredth that values are apart.

    >>> approx_quantile("price", 0.99).display()
    'approx_quantile(price, 0.99, error=0.01)'
    """
    return ApproxQuantile(column, where, shares=as_shares(q), error=error)


def approx_top_k(
    column: str,
    k: int = 10,
    *,
    error: float = 0.01,
    by: str | None = None,
    where: pl.Expr | None = None,
) -> Aggregate:
    """Estimate the most frequent values: a list of values with their counts, greatest first.

    A count is never too low, and too high by 1 % of the group's rows at most, all but surely.
    State is bounded: `11 / error` counts with values. `by` is a column that tells rows of the
    same value apart, by default the event time.

    >>> approx_top_k("page", 3).display()
    'approx_top_k(page, 3, error=0.01)'
    """
    return ApproxTopK(column, where, k=k, error=error, place=by)


def collect_list(
    column: str,
    *,
    limit: int = 1000,
    order_by: str | None = None,
    where: pl.Expr | None = None,
) -> Aggregate:
    """List the values by event time, or by a column, and at one place by value.

    Of more than `limit` values those are listed that come first.

    >>> collect_list("page", limit=5).display()
    'collect_list(page, limit=5)'
    """
    return CollectList(column, where, limit=limit, order=order_by)


def collect_set(
    column: str, *, limit: int = 1000, where: pl.Expr | None = None
) -> Aggregate:
    """List the different values, sorted; of more than `limit` the least.

    >>> collect_set("page").display()
    'collect_set(page, limit=1000)'
    """
    return CollectSet(column, where, limit=limit)


def string_agg(
    column: str,
    separator: str = ",",
    *,
    limit: int = 1000,
    order_by: str | None = None,
    where: pl.Expr | None = None,
) -> Aggregate:
    """Join the texts of `collect_list`.

    >>> string_agg("page", " → ").display()
    "string_agg(page, ' → ', limit=1000)"
    """
    return StringAgg(column, where, limit=limit, order=order_by, separator=separator)


def aggregate_rows(
    function: Callable[[pl.DataFrame], Any],
    *,
    returns: pa.DataType,
    columns: str | Sequence[str],
    where: pl.Expr | None = None,
    name: str | None = None,
) -> Aggregate:
    """Compute what a function makes of the rows of a group, given as a Polars frame.

    The frame has the given columns, sorted by event time and then by value. The rows of a group
    are kept as long as the group, and the function is called for each group that has more.

    >>> def spread(rows: pl.DataFrame) -> float:
    ...     return rows["price"].max() - rows["price"].min()
    >>> aggregate_rows(spread, returns=pa.float64(), columns="price").display()
    "aggregate_rows(spread, columns=['price'])"
    """
    listed = tuple(columns) if isinstance(columns, list | tuple) else (columns,)
    given: object = name
    if not (given is None or isinstance(given, str)):
        raise UserError(
            f"pen.aggregate_rows: name={given!r:.80} is no text: it is what the function is called",
            code=ErrorCode.INVALID_CONFIG,
        )
    return RowsAggregate(pickle_function(function, name), returns, listed, where)
