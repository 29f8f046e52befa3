"""The aggregates sum and avg, over rows and over changelogs; of no values they are null.

Over a changelog rows are taken out again by arithmetic. There they count values, because a sum that
comes back to zero does not tell whether any are left. NaN and infinite numbers are counted
instead of added: nothing brings a sum back from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.schema import StreamSchema
from penstock.operators.aggregates.aggregate import Aggregate, ColumnAggregate, is_number
from penstock.operators.aggregates.compiled import Kind, Reduction

_LONG = pl.Int64()
_WIDE = pl.Int128()
_NARROW = (pl.Int8(), pl.Int16(), pl.Int32(), pl.UInt8(), pl.UInt16(), pl.UInt32())
_LONG_CARRY = 1 << 64
_DECIMAL_CARRY = 10**19
_SHORT_DECIMALS = 19
"""How many digits decimals may have whose sums fit 38 digits, however many rows there are."""
_NOT_FINITE: Mapping[str, float] = {"plus": float("inf"), "minus": float("-inf")}


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

    def less(
        self, partials: Mapping[str, pl.Expr], removed: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        """Subtract one sum from another; both are of the same rows, or one of a part of them."""
        mine, gone = partials["sum"], removed["sum"]
        if not self._is_carried():
            return {"sum": pl.coalesce(mine - gone, mine)}
        carry = partials["carry"], removed["carry"]
        if self._is_decimal():
            carry = carry[0].cast(_WIDE), carry[1].cast(_WIDE)
        total = pl.coalesce(_widen(mine) - _widen(gone), _widen(mine))
        return {"sum": total, "carry": carry[0] - carry[1]}

    @override
    def for_changes(self) -> Aggregate:
        kind = FloatTotal if self.dtype.is_float() else CountedSum
        return kind(self.column, self.where, self.dtype)

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

    @override
    def unmerge(
        self, partials: Mapping[str, pl.Expr], removed: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        return {part: partials[part] - removed[part] for part in partials}


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

    @override
    def for_changes(self) -> Aggregate:
        return FloatTotal(self.column, self.where, self.dtype, is_mean=True)


@dataclass(frozen=True, eq=False)
class FloatTotal(AdditiveAggregate):
    """The sum of floats, with counts of all values and of those that are not finite."""

    function: ClassVar[str] = "sum"
    wanted: ClassVar[str] = "numbers"
    fits = staticmethod(is_number)

    is_mean: bool = False

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        values = self.values().cast(pl.Float64)
        counts = {"count": values.count(), "nan": values.is_nan().sum()}
        counts |= {part: (values == sign).sum() for part, sign in _NOT_FINITE.items()}
        return {
            "sum": pl.when(values.is_finite()).then(values).sum(),
            **{part: count.cast(pl.Int64) for part, count in counts.items()},
        }

    @override
    def unmerge(
        self, partials: Mapping[str, pl.Expr], removed: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        """Subtract; without finite numbers the sum is 0, whatever rounding has left of it."""
        left = dict(super().unmerge(partials, removed))
        finite = left["count"] - left["nan"] - left["plus"] - left["minus"]
        left["sum"] = pl.when(finite > 0).then(left["sum"]).otherwise(0.0)
        return left

    @override
    def final(
        self, sum: pl.Expr, count: pl.Expr, nan: pl.Expr, plus: pl.Expr, minus: pl.Expr
    ) -> pl.Expr:
        total = sum / count if self.is_mean else sum
        return pl.when(count > 0).then(
            pl.when((nan > 0) | ((plus > 0) & (minus > 0)))
            .then(float("nan"))
            .when(plus > 0)
            .then(float("inf"))
            .when(minus > 0)
            .then(float("-inf"))
            .otherwise(total)
        )

    @override
    def for_changes(self) -> Aggregate:
        return self

    @override
    def outline(self) -> str:
        return f"{'avg' if self.is_mean else 'sum'}({self.arguments()}) and counts"


@dataclass(frozen=True, eq=False)
class CountedSum(Sum):
    """The sum of whole numbers, decimals or durations, and the count of their values."""

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        count = self.values().count().cast(pl.Int64)
        return {**super().partial(), "count": count}

    @override
    def merge(
        self, sum: pl.Expr, carry: pl.Expr | None = None, count: pl.Expr | None = None
    ) -> Mapping[str, pl.Expr]:
        merged = super().merge(sum, carry)
        return merged if count is None else {**merged, "count": count.sum()}

    @override
    def merge_pair(
        self, partials: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        count = partials["count"] + others["count"].fill_null(0)
        return {**super().merge_pair(partials, others), "count": count}

    @override
    def unmerge(
        self, partials: Mapping[str, pl.Expr], removed: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        """Subtract in 128 bits, as `merge_pair` adds."""
        count = partials["count"] - removed["count"]
        return {**self.less(partials, removed), "count": count}

    @override
    def settle(self, **computed: pl.Expr) -> Mapping[str, pl.Expr] | None:
        settled = super().settle(**computed)
        return None if settled is None else {**settled, "count": computed["count"]}

    @override
    def final(
        self, sum: pl.Expr, carry: pl.Expr | None = None, count: pl.Expr | None = None
    ) -> pl.Expr:
        total = super().final(sum, carry)
        return total if count is None else pl.when(count > 0).then(total)

    @override
    def reductions(self) -> None:
        return None

    @override
    def for_changes(self) -> Aggregate:
        return self

    @override
    def outline(self) -> str:
        return f"{super().outline()} and count"


def _widen(values: pl.Expr) -> pl.Expr:
    """Return whole numbers, durations and decimals in 128 bits, whose sums cannot wrap."""
    return values.to_physical().cast(_WIDE)


def _null_if_none(values: pl.Expr, total: pl.Expr) -> pl.Expr:
    return pl.when(values.count() > 0).then(total)
