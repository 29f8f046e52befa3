"""The aggregates of two columns of numbers: corr, covar_pop, covar_samp and regr_*.

Only rows that have both values count. Kept are the count, both means, and the sums of products
of distances from them, merged by Chan's formula as those of a variance are. Over a changelog the
same formula takes rows out again.

As in SQL, `y` comes first: it is what is explained, and `x` explains it. What would divide by a
variance of zero is null. Distances below the precision of floats count as none: values that
differ by less than a ten-trillionth of their mean are one value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import polars as pl
from typing_extensions import override

from penstock.operators.aggregates.aggregate import Aggregate, ColumnAggregate, is_number

_PRECISION = 1e-13
_SUMS = {"sxx": ("x", "x"), "syy": ("y", "y"), "sxy": ("x", "y")}
"""The sums of products that are kept, and of the distances of which columns each is."""


@dataclass(frozen=True, eq=False)
class PairStatistic(ColumnAggregate):
    """One statistic of the pairs of `y` and `x`: the column is `y`."""

    wanted: ClassVar[str] = "numbers"
    fits = staticmethod(is_number)

    x: str = ""
    statistic: str = "corr"
    """Which of the statistics: they differ in the last step only."""
    counts_odd: bool = False
    """Whether pairs with NaN or an infinite number are counted apart, as in a changelog."""

    @property
    def function(self) -> str:  # type: ignore[override] # of each statistic, not of the class
        """The name of the function that makes it."""
        return self.statistic

    @override
    def others(self) -> Sequence[str]:
        return (self.x,)

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        columns = {"x": pl.col(self.x), "y": pl.col(self.column)}
        counts = columns["x"].is_not_null() & columns["y"].is_not_null()
        if self.where is not None:
            counts &= self.where
        values = {n: pl.when(counts).then(c.cast(pl.Float64)) for n, c in columns.items()}
        odd = {}
        if self.counts_odd:
            is_finite = values["x"].is_finite() & values["y"].is_finite()
            odd = {"odd": (~is_finite).sum().cast(pl.Int64)}
            values = {n: pl.when(is_finite).then(c) for n, c in values.items()}
        count = values["x"].count().cast(pl.Int64)
        means = {f"mean_{name}": column.mean() for name, column in values.items()}
        sums = {
            "sxx": values["x"].var(ddof=0),
            "syy": values["y"].var(ddof=0),
            "sxy": pl.cov(values["x"], values["y"], ddof=0),
        }
        return {
            "count": count,
            **means,
            **{
                n: pl.when(count > 0).then(s * count).otherwise(0.0)
                for n, s in sums.items()
            },
            **odd,
        }

    @override
    def merge(self, count: pl.Expr, **parts: pl.Expr) -> Mapping[str, pl.Expr]:
        """Add the products about each mean, and those of the means about the common one.

        Means may be large and distances small, so everything is computed from distances, and
        the rounding error of the common mean is subtracted again.
        """
        total = count.sum()
        merged = {"count": total}
        apart = {}
        for name in ("x", "y"):
            mean = parts[f"mean_{name}"]
            base = mean.max()
            shift = ((mean - base) * count).sum() / total
            merged[f"mean_{name}"] = pl.when(total > 0).then(base + shift)
            apart[name] = mean - (base + shift)
        for part, (a, b) in _SUMS.items():
            rounded = (count * apart[a]).sum() * (count * apart[b]).sum() / total
            between = (count * apart[a] * apart[b]).sum()
            between -= pl.when(total > 0).then(rounded).otherwise(0.0)
            merged[part] = parts[part].sum() + between
        return {**merged, **({"odd": parts["odd"].sum()} if self.counts_odd else {})}

    @override
    def merge_pair(
        self, partials: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        """Merge two by the distances of their means, which are exact where these are close."""
        mine, other = partials["count"], others["count"].fill_null(0)
        total = mine + other
        merged, distance = {"count": total}, {}
        for name in ("x", "y"):
            part = f"mean_{name}"
            distance[name] = others[part] - partials[part]
            merged[part] = (
                pl.when(other == 0)
                .then(partials[part])
                .when(mine == 0)
                .then(others[part])
                .otherwise(partials[part] + distance[name] * other / total)
            )
        for part, (a, b) in _SUMS.items():
            between = (distance[a] * distance[b] * mine * other / total).fill_null(0.0)
            merged[part] = partials[part] + others[part].fill_null(0.0) + between
        if self.counts_odd:
            merged["odd"] = partials["odd"] + others["odd"].fill_null(0)
        return merged

    @override
    def unmerge(
        self, partials: Mapping[str, pl.Expr], removed: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        """Solve the formula for what is left; rounding must not leave negative squares."""
        whole, gone = partials["count"], removed["count"]
        left = whole - gone
        unmerged, distance = {"count": left}, {}
        for name in ("x", "y"):
            part = f"mean_{name}"
            distance[name] = (partials[part] - removed[part]).fill_null(0.0)
            mean = partials[part] + distance[name] * gone / left
            unmerged[part] = pl.when(left > 0).then(mean)
        for part, (a, b) in _SUMS.items():
            between = distance[a] * distance[b] * whole * gone / left
            rest = partials[part] - removed[part] - between
            rest = rest.clip(0.0) if a == b else rest
            unmerged[part] = pl.when(left > 1).then(rest).otherwise(0.0)
        if self.counts_odd:
            unmerged["odd"] = partials["odd"] - removed["odd"]
        return unmerged

    @override
    def for_changes(self) -> Self:
        return self.replaced(counts_odd=True)

    @override
    def final(self, count: pl.Expr, **parts: pl.Expr) -> pl.Expr:
        odd = parts.pop("odd", None)
        found = _statistics(count=count, **parts)[self.statistic]
        if odd is None:
            return found
        if self.statistic == "regr_count":
            return found + odd
        return pl.when(odd > 0).then(float("nan")).otherwise(found)


def _statistics(
    *,
    count: pl.Expr,
    mean_x: pl.Expr,
    mean_y: pl.Expr,
    sxx: pl.Expr,
    syy: pl.Expr,
    sxy: pl.Expr,
) -> Mapping[str, pl.Expr]:
    """Return every statistic by name, as Postgres defines them."""
    has_rows = count > 0
    has_x, has_y = _varies(sxx, mean_x, count), _varies(syy, mean_y, count)
    slope = pl.when(has_x).then(sxy / sxx)
    of_rows: dict[str, Any] = {
        "covar_pop": sxy / count,
        "regr_avgx": mean_x,
        "regr_avgy": mean_y,
        "regr_sxx": sxx,
        "regr_syy": syy,
        "regr_sxy": sxy,
    }
    # Rounding may bring a correlation beyond 1, where nobody expects it.
    correlation = (sxy / (sxx.sqrt() * syy.sqrt())).clip(-1.0, 1.0)
    return {
        **{name: pl.when(has_rows).then(value) for name, value in of_rows.items()},
        "covar_samp": pl.when(count > 1).then(sxy / (count - 1)),
        "corr": pl.when(has_x & has_y).then(correlation),
        "regr_count": count,
        "regr_slope": slope,
        "regr_intercept": mean_y - slope * mean_x,
        "regr_r2": pl.when(has_x & has_y)
        .then(correlation**2)
        .when(has_x)
        .then(pl.lit(1.0)),
    }


def _varies(squares: pl.Expr, mean: pl.Expr, count: pl.Expr) -> pl.Expr:
    """Return whether values are more than one; NaN may be anything."""
    return squares.is_nan() | (squares > count * (mean * _PRECISION) ** 2)


def corr(y: str, x: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the correlation of two columns, from -1 to 1; null if one of them is constant.

    >>> corr("price", "size").display()
    'corr(price, size)'
    """
    return PairStatistic(y, where, x=x, statistic="corr")


def covar_pop(y: str, x: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the covariance of pairs that are all there are.

    >>> covar_pop("price", "size").display()
    'covar_pop(price, size)'
    """
    return PairStatistic(y, where, x=x, statistic="covar_pop")


def covar_samp(y: str, x: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the covariance of pairs that are a sample; null of fewer than two.

    >>> covar_samp("price", "size").display()
    'covar_samp(price, size)'
    """
    return PairStatistic(y, where, x=x, statistic="covar_samp")


def regr_count(y: str, x: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Count the rows that have both values.

    >>> regr_count("price", "size").display()
    'regr_count(price, size)'
    """
    return PairStatistic(y, where, x=x, statistic="regr_count")


def regr_avgx(y: str, x: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the mean of `x` of rows that have both values.

    >>> regr_avgx("price", "size").display()
    'regr_avgx(price, size)'
    """
    return PairStatistic(y, where, x=x, statistic="regr_avgx")


def regr_avgy(y: str, x: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the mean of `y` of rows that have both values.

    >>> regr_avgy("price", "size").display()
    'regr_avgy(price, size)'
    """
    return PairStatistic(y, where, x=x, statistic="regr_avgy")


def regr_sxx(y: str, x: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Add up the squared distances of `x` from its mean.

    >>> regr_sxx("price", "size").display()
    'regr_sxx(price, size)'
    """
    return PairStatistic(y, where, x=x, statistic="regr_sxx")


def regr_syy(y: str, x: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Add up the squared distances of `y` from its mean.

    >>> regr_syy("price", "size").display()
    'regr_syy(price, size)'
    """
    return PairStatistic(y, where, x=x, statistic="regr_syy")


def regr_sxy(y: str, x: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Add up the products of the distances of `x` and `y` from their means.

    >>> regr_sxy("price", "size").display()
    'regr_sxy(price, size)'
    """
    return PairStatistic(y, where, x=x, statistic="regr_sxy")


def regr_slope(y: str, x: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take the slope of the line through the pairs by least squares; null if `x` is constant.

    >>> regr_slope("price", "size").display()
    'regr_slope(price, size)'
    """
    return PairStatistic(y, where, x=x, statistic="regr_slope")


def regr_intercept(y: str, x: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take where that line has `x` = 0; null if `x` is constant.

    >>> regr_intercept("price", "size").display()
    'regr_intercept(price, size)'
    """
    return PairStatistic(y, where, x=x, statistic="regr_intercept")


def regr_r2(y: str, x: str, *, where: pl.Expr | None = None) -> Aggregate:
    """Take how much of `y` the line explains, from 0 to 1; null if `x` is constant.

    >>> regr_r2("price", "size").display()
    'regr_r2(price, size)'
    """
    return PairStatistic(y, where, x=x, statistic="regr_r2")
