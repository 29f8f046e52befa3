"""The aggregates var, stddev and their _pop: null of fewer values than they need, as in SQL."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import polars as pl
from typing_extensions import override

from penstock.operators.aggregates.aggregate import ColumnAggregate, is_number


@dataclass(frozen=True, eq=False)
class Variance(ColumnAggregate):
    """The sample variance of a column; null of fewer than two values.

    Kept are count, mean and the sum of squared distances from it, merged by Chan's formula:
    unlike sums of squares they stay exact when the mean is large. Over a changelog the same
    formula takes rows out again.
    """

    function: ClassVar[str] = "var"
    wanted: ClassVar[str] = "numbers"
    ddof: ClassVar[int] = 1
    """What is taken off the count: a mean of the sample itself costs one of its values."""
    fits = staticmethod(is_number)

    counts_odd: bool = False
    """Whether NaN and infinite numbers are counted apart, as those of a changelog are."""

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        """Count, mean and squared distances of values."""
        values = self.values().cast(pl.Float64)
        odd = {}
        if self.counts_odd:
            is_finite = values.is_finite()
            odd = {"odd": (~is_finite).sum().cast(pl.Int64)}
            values = pl.when(is_finite).then(values)
        count = values.count().cast(pl.Int64)
        return {
            "count": count,
            "mean": values.mean(),
            "m2": pl.when(count > 0).then(values.var(ddof=0) * count).otherwise(0.0),
            **odd,
        }

    @override
    def merge(
        self, count: pl.Expr, mean: pl.Expr, m2: pl.Expr, **odd: pl.Expr
    ) -> Mapping[str, pl.Expr]:
        """Add the distances from each mean, and the distances of the means from the common one.

        Distances are small numbers and means may be large ones. So everything is computed from
        distances, and the rounding error of the common mean is subtracted again.
        """
        total = count.sum()
        base = mean.max()
        common = pl.when(total > 0).then(base + ((mean - base) * count).sum() / total)
        apart = mean - common
        rounded = (count * apart).sum() ** 2 / total
        between = (count * apart**2).sum() - pl.when(total > 0).then(rounded).otherwise(0.0)
        added = {part: values.sum() for part, values in odd.items()}
        return {"count": total, "mean": common, "m2": m2.sum() + between, **added}

    @override
    def merge_pair(
        self, partials: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        """Merge two by the distance of their means, which is exact where these are close."""
        mine, other = partials["count"], others["count"].fill_null(0)
        total = mine + other
        distance = others["mean"] - partials["mean"]
        common = (
            pl.when(other == 0)
            .then(partials["mean"])
            .when(mine == 0)
            .then(others["mean"])
            .otherwise(partials["mean"] + distance * other / total)
        )
        between = (distance**2 * mine * other / total).fill_null(0.0)
        both = partials["m2"] + others["m2"].fill_null(0.0)
        merged = {"count": total, "mean": common, "m2": both + between}
        if self.counts_odd:
            merged["odd"] = partials["odd"] + others["odd"].fill_null(0)
        return merged

    @override
    def unmerge(
        self, partials: Mapping[str, pl.Expr], removed: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        """Solve Chan's formula for what is left; rounding must not leave less than nothing."""
        whole, gone = partials["count"], removed["count"]
        left = whole - gone
        distance = (partials["mean"] - removed["mean"]).fill_null(0.0)
        mean = pl.when(left > 0).then(partials["mean"] + distance * gone / left)
        m2 = partials["m2"] - removed["m2"] - distance**2 * whole * gone / left
        unmerged = {
            "count": left,
            "mean": mean,
            "m2": pl.when(left > 1).then(m2.clip(0.0)).otherwise(0.0),
        }
        if self.counts_odd:
            unmerged["odd"] = partials["odd"] - removed["odd"]
        return unmerged

    @override
    def for_changes(self) -> Self:
        return self.replaced(counts_odd=self.dtype.is_float())

    @override
    def final(
        self, count: pl.Expr, mean: pl.Expr, m2: pl.Expr, odd: pl.Expr | None = None
    ) -> pl.Expr:
        variance = m2 / (count - self.ddof)
        if odd is None:
            return pl.when(count > self.ddof).then(variance)
        known = pl.when(odd > 0).then(float("nan")).otherwise(variance)
        return pl.when(count + odd > self.ddof).then(known)


@dataclass(frozen=True, eq=False)
class Deviation(Variance):
    """The sample standard deviation of a column; null of fewer than two values."""

    function: ClassVar[str] = "stddev"

    @override
    def final(
        self, count: pl.Expr, mean: pl.Expr, m2: pl.Expr, odd: pl.Expr | None = None
    ) -> pl.Expr:
        return super().final(count, mean, m2, odd).sqrt()


@dataclass(frozen=True, eq=False)
class PopulationVariance(Variance):
    """The variance of a column whose values are all there are; null of none."""

    function: ClassVar[str] = "var_pop"
    ddof: ClassVar[int] = 0


@dataclass(frozen=True, eq=False)
class PopulationDeviation(Deviation):
    """The standard deviation of a column whose values are all there are; null of none."""

    function: ClassVar[str] = "stddev_pop"
    ddof: ClassVar[int] = 0
