"""The aggregates sum, avg, var and stddev; of no values they are null, as in SQL."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.schema import StreamSchema
from penstock.operators.aggregates.aggregate import ColumnAggregate, is_number
from penstock.operators.aggregates.plan import Kind

_LONG = pl.Int64()
_DECIMAL_LIMIT = 0.999999e38
_NARROW = (pl.Int8(), pl.Int16(), pl.Int32(), pl.UInt8(), pl.UInt16(), pl.UInt32())


@dataclass(frozen=True, eq=False)
class Sum(ColumnAggregate):
    """The sum of a column. A sum of integers that 64 bits cannot hold is an error."""

    function: ClassVar[str] = "sum"
    wanted: ClassVar[str] = "numbers or durations; count true with where="
    reduced: ClassVar[Mapping[str, Kind]] = {"sum": "sum"}

    @override
    @staticmethod
    def fits(dtype: pl.DataType) -> bool:
        return is_number(dtype) or isinstance(dtype, pl.Duration)

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        values = self.values()
        if self.dtype in _NARROW:
            # 64 bits hold the sum of all such integers that fit into one batch.
            return {"sum": _null_if_none(values, values.cast(self._wide()).sum())}
        return self.merge(values)

    @override
    def merge(self, sum: pl.Expr) -> Mapping[str, pl.Expr]:
        if self._is_whole():
            total = self._narrow(_widen(sum).sum())
        elif self.dtype.is_float():
            total = sum.cast(pl.Float64).sum()
        else:
            scale = getattr(self.dtype, "scale", 0)
            rough = sum.cast(pl.Float64).sum().abs()
            # Sums of decimals wrap around, and only a failing cast stops a computation: this
            # one fails if the sum, estimated in floating point, has more than 38 digits.
            share = (rough / (_DECIMAL_LIMIT / 10**scale) * 128).cast(pl.Int8)
            total = pl.when(share >= 0).then(sum.sum())
        return {"sum": _null_if_none(sum, total)}

    @override
    def merge_pair(
        self, partials: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        """Add two sums, or take the one there is."""
        mine, other = partials["sum"], others["sum"]
        if self._is_whole():
            both = self._narrow(_widen(mine) + _widen(other))
        else:
            both = mine + other  # of decimals it refuses what does not fit
        return {"sum": pl.coalesce(both, mine, other)}

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType | None:
        """Return decimals of the greatest precision, and durations in their own unit."""
        declared = self.type_in(stream)
        if pa.types.is_decimal(declared):
            return pa.decimal128(38, declared.scale)
        return declared if pa.types.is_duration(declared) else None

    def _wide(self) -> pl.DataType:
        return pl.UInt64() if self.dtype.is_unsigned_integer() else _LONG

    def _is_whole(self) -> bool:
        return self.dtype.is_integer() or isinstance(self.dtype, pl.Duration)

    def _narrow(self, total: pl.Expr) -> pl.Expr:
        """Return a sum of 128 bits in its own type; a sum that does not fit is an error."""
        if self.dtype.is_integer():
            return total.cast(self._wide())
        return total.cast(_LONG).cast(self.dtype)


@dataclass(frozen=True, eq=False)
class AdditiveAggregate(ColumnAggregate):
    """An aggregate whose partials are counts and sums that cannot overflow: merging adds them."""

    @override
    def merge(self, *args: Any, **kwargs: Any) -> Mapping[str, pl.Expr]:
        return {part: values.sum() for part, values in kwargs.items()}

    @override
    def merge_pair(
        self, partials: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        return {part: partials[part] + others[part].fill_null(0) for part in partials}


@dataclass(frozen=True, eq=False)
class Avg(AdditiveAggregate):
    """The mean of a column, a float; integers are added as floats, so nothing overflows."""

    function: ClassVar[str] = "avg"
    wanted: ClassVar[str] = "numbers"
    reduced: ClassVar[Mapping[str, Kind]] = {"sum": "float_sum", "count": "count"}
    fits = staticmethod(is_number)

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        values = self.values()
        return {
            "sum": values.cast(pl.Float64).sum(),
            "count": values.count().cast(pl.Int64),
        }

    @override
    def final(self, sum: pl.Expr, count: pl.Expr) -> pl.Expr:
        return pl.when(count > 0).then(sum / count)


@dataclass(frozen=True, eq=False)
class Variance(ColumnAggregate):
    """The sample variance of a column; null of fewer than two values.

    Kept are count, mean and the sum of squared distances from it, merged by Chan's formula:
    unlike sums of squares they stay exact when the mean is large.
    """

    function: ClassVar[str] = "var"
    wanted: ClassVar[str] = "numbers"
    fits = staticmethod(is_number)

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        """Count, mean and squared distances of values."""
        values = self.values().cast(pl.Float64)
        count = values.count().cast(pl.Int64)
        return {
            "count": count,
            "mean": values.mean(),
            "m2": pl.when(count > 0).then(values.var(ddof=0) * count).otherwise(0.0),
        }

    @override
    def merge(self, count: pl.Expr, mean: pl.Expr, m2: pl.Expr) -> Mapping[str, pl.Expr]:
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
        return {"count": total, "mean": common, "m2": m2.sum() + between}

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
        return {"count": total, "mean": common, "m2": both + between}

    @override
    def final(self, count: pl.Expr, mean: pl.Expr, m2: pl.Expr) -> pl.Expr:
        return pl.when(count > 1).then(m2 / (count - 1))


@dataclass(frozen=True, eq=False)
class Deviation(Variance):
    """The sample standard deviation of a column; null of fewer than two values."""

    function: ClassVar[str] = "stddev"

    @override
    def final(self, count: pl.Expr, mean: pl.Expr, m2: pl.Expr) -> pl.Expr:
        return super().final(count, mean, m2).sqrt()


def _widen(values: pl.Expr) -> pl.Expr:
    """Return whole numbers and durations in 128 bits, whose sums cannot wrap."""
    return values.to_physical().cast(pl.Int128)


def _null_if_none(values: pl.Expr, total: pl.Expr) -> pl.Expr:
    return pl.when(values.count() > 0).then(total)
