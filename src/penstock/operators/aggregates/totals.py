"""The aggregates sum, avg, var, stddev and their _pop; of no values they are null, as in SQL."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.schema import StreamSchema
from penstock.operators.aggregates.aggregate import ColumnAggregate, is_number
from penstock.operators.aggregates.compiled import Kind, Reduction

_LONG = pl.Int64()
_WIDE = pl.Int128()
_NARROW = (pl.Int8(), pl.Int16(), pl.Int32(), pl.UInt8(), pl.UInt16(), pl.UInt32())
_LONG_CARRY = 1 << 64
_DECIMAL_CARRY = 10**19
_SHORT_DECIMALS = 19
"""How many digits decimals may have whose sums fit 38 digits, however many rows there are."""


@dataclass(frozen=True, eq=False)
class Sum(ColumnAggregate):
    """The sum of a column. A result that its type cannot hold is an error; a partial never is.

    A sum of whole numbers, durations or long decimals is kept in two columns, of which each sum
    of partials fits 128 bits, whatever the order:

        total = carry * 2**64 + sum      whole numbers and durations: sum has the result's type
        total = carry * 10**19 + sum     decimals, in units of their last digit

    So only the rows decide whether a sum fits, not how they fall into epochs and splits. The
    carry of rows in state that is older than it is 0.
    """

    function: ClassVar[str] = "sum"
    wanted: ClassVar[str] = "numbers or durations; count true with where="

    @override
    @staticmethod
    def fits(dtype: pl.DataType) -> bool:
        return is_number(dtype) or isinstance(dtype, pl.Duration)

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        values = self.values()
        if not self._is_carried():
            return self.merge(values)
        if self._is_decimal():
            return self._added(values, pl.lit(0, _WIDE))
        # 64 bits hold the sum of all narrow integers that fit into one batch.
        wide = values.cast(_LONG) if self.dtype in _NARROW else _widen(values)
        return {"sum": _null_if_none(values, wide.sum()), "carry": pl.lit(0, _LONG)}

    @override
    def merge(self, sum: pl.Expr, carry: pl.Expr | None = None) -> Mapping[str, pl.Expr]:
        if carry is not None:
            # The carry of whole numbers is at most the number of their rows: 64 bits will do.
            wide = carry.cast(_WIDE) if self._is_decimal() else carry
            return self._added(sum, wide.sum())
        total = sum.cast(pl.Float64).sum() if self.dtype.is_float() else sum.sum()
        return {"sum": _null_if_none(sum, total)}

    @override
    def settle(self, **computed: pl.Expr) -> Mapping[str, pl.Expr] | None:
        """Carry what is above 64 bits, or 19 digits, of what was added up in 128 bits."""
        if not self._is_carried():
            return None
        total, carry = computed["sum"].cast(_WIDE), computed["carry"]
        if self._is_decimal():
            unit = pl.lit(_DECIMAL_CARRY, _WIDE)
            low = self._to_decimal(total % unit)
            above = (total // unit).fill_null(0)
            carry = carry.cast(_WIDE) + above
            return {"sum": low, "carry": carry.cast(pl.Decimal(38, 0))}
        low = total.cast(self._wide(), wrap_numerical=True)
        above = (total - low.cast(_WIDE)) // pl.lit(_LONG_CARRY, _WIDE)
        return {"sum": self._own(low), "carry": carry + above.cast(_LONG).fill_null(0)}

    @override
    def merge_pair(
        self, partials: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        """Add two sums, or take the one there is."""
        mine, other = partials["sum"], others["sum"]
        if not self._is_carried():
            return {"sum": pl.coalesce(mine + other, mine, other)}
        mine, other = _widen(mine), _widen(other)
        carries = [partials["carry"], others["carry"].fill_null(0)]
        if self._is_decimal():
            carries = [carry.cast(_WIDE) for carry in carries]
        carry = carries[0] + carries[1]
        if self._is_decimal():
            unit = pl.lit(_DECIMAL_CARRY, _WIDE)
            carry += (mine // unit).fill_null(0) + (other // unit).fill_null(0)
            mine, other = mine % unit, other % unit
        return {"sum": pl.coalesce(mine + other, mine, other), "carry": carry}

    @override
    def final(self, sum: pl.Expr, carry: pl.Expr | None = None) -> pl.Expr:
        """Return the total in its own type; one that does not fit is an error."""
        if carry is None:
            return sum
        if not self._is_decimal():
            total = carry.cast(_WIDE) * pl.lit(_LONG_CARRY, _WIDE) + _widen(sum)
            return self._own(total.cast(self._wide()))
        # Beyond these bounds the total does not fit, and must not wrap around either.
        bound = _DECIMAL_CARRY + _DECIMAL_CARRY // 2
        high = carry.cast(_WIDE).clip(pl.lit(-bound, _WIDE), pl.lit(bound, _WIDE))
        return self._to_decimal(high * pl.lit(_DECIMAL_CARRY, _WIDE) + _widen(sum))

    @override
    def reductions(self) -> Mapping[str, Reduction] | None:
        if self.where is not None:
            return None
        plain = {"sum": Reduction("sum", self.column)}
        return {**plain, "carry": Reduction("zero", None)} if self._is_carried() else plain

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType | None:
        """Return decimals of the greatest precision, and durations in their own unit."""
        declared = self.type_in(stream)
        if pa.types.is_decimal(declared):
            return pa.decimal128(38, declared.scale)
        return declared if pa.types.is_duration(declared) else None

    def _added(self, values: pl.Expr, carry: pl.Expr) -> dict[str, pl.Expr]:
        """Return what is to be settled of values that are added up in 128 bits."""
        wide = _widen(values)
        if self._is_decimal():
            unit = pl.lit(_DECIMAL_CARRY, _WIDE)
            carry, wide = carry + (wide // unit).sum(), wide % unit
        return {"sum": _null_if_none(values, wide.sum()), "carry": carry}

    def _is_carried(self) -> bool:
        if isinstance(self.dtype, pl.Decimal):
            return (self.dtype.precision or 38) > _SHORT_DECIMALS
        return self.dtype.is_integer() or isinstance(self.dtype, pl.Duration)

    def _is_decimal(self) -> bool:
        return isinstance(self.dtype, pl.Decimal)

    def _wide(self) -> pl.DataType:
        return pl.UInt64() if self.dtype.is_unsigned_integer() else _LONG

    def _own(self, total: pl.Expr) -> pl.Expr:
        return total if self.dtype.is_integer() else total.cast(self.dtype)

    def _to_decimal(self, units: pl.Expr) -> pl.Expr:
        """Return decimals given in units of their last digit; more than 38 digits are an error."""
        scale = getattr(self.dtype, "scale", 0)
        digit = pl.lit(Decimal((0, (1,), -scale)), pl.Decimal(38, scale))
        return units.cast(pl.Decimal(38, 0)) * digit


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
    ddof: ClassVar[int] = 1
    """What is taken off the count: a mean of the sample itself costs one of its values."""
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
        return pl.when(count > self.ddof).then(m2 / (count - self.ddof))


@dataclass(frozen=True, eq=False)
class Deviation(Variance):
    """The sample standard deviation of a column; null of fewer than two values."""

    function: ClassVar[str] = "stddev"

    @override
    def final(self, count: pl.Expr, mean: pl.Expr, m2: pl.Expr) -> pl.Expr:
        return super().final(count, mean, m2).sqrt()


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


def _widen(values: pl.Expr) -> pl.Expr:
    """Return whole numbers, durations and decimals in 128 bits, whose sums cannot wrap."""
    return values.to_physical().cast(_WIDE)


def _null_if_none(values: pl.Expr, total: pl.Expr) -> pl.Expr:
    return pl.when(values.count() > 0).then(total)
