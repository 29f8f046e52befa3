"""The aggregates that give one value of a group: min, max, first, last, arg_min, arg_max, bit_*."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.schema import StreamSchema
from penstock.errors import InternalError, SchemaError
from penstock.operators.aggregates.aggregate import (
    ColumnAggregate,
    Kept,
    find_name_problems,
    is_orderable,
)
from penstock.operators.aggregates.compiled import End, Kind
from penstock.operators.aggregates.frames import frame_schema


@dataclass(frozen=True, eq=False)
class OneValue(ColumnAggregate):
    """One of the values of a group: the result has the column's own type."""

    wanted: ClassVar[str] = "numbers, text, bytes, instants, durations or booleans"
    fits = staticmethod(is_orderable)

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType:
        data_type: pa.DataType = self.type_in(stream)
        return data_type


@dataclass(frozen=True, eq=False)
class Min(OneValue):
    """The least value of a column. NaN is greater than all other numbers."""

    function: ClassVar[str] = "min"
    reduced: ClassVar[Mapping[str, Kind]] = {"value": "min"}
    wins = staticmethod(operator.lt)
    end: ClassVar[End] = "first"

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

    @override
    def kept(self) -> Kept:
        return replace(super().kept(), end=self.end)


@dataclass(frozen=True, eq=False)
class Max(Min):
    """The greatest value of a column. NaN is greater than all other numbers."""

    function: ClassVar[str] = "max"
    reduced: ClassVar[Mapping[str, Kind]] = {"value": "max"}
    wins = staticmethod(operator.gt)
    end: ClassVar[End] = "last"

    @override
    def merge(self, value: pl.Expr) -> Mapping[str, pl.Expr]:
        greatest = value.max()
        if self.dtype.is_float():
            # Polars' max passes over NaN, and its nan_max over groups is slow.
            nan = pl.when(value.is_nan().any()).then(float("nan"))
            greatest = nan.otherwise(greatest)
        return {"value": greatest}


@dataclass(frozen=True, eq=False)
class BitAnd(OneValue):
    """The bits that all values of a column have."""

    function: ClassVar[str] = "bit_and"
    wanted: ClassVar[str] = "integers"

    @override
    @staticmethod
    def fits(dtype: pl.DataType) -> bool:
        return dtype.is_integer()

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        return self.merge(self.values())

    @override
    def merge(self, bits: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"bits": bits.bitwise_and()}

    @override
    def merge_pair(
        self, partials: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        mine, other = partials["bits"], others["bits"]
        return {"bits": pl.coalesce(self.joined(mine, other), mine, other)}

    @staticmethod
    def joined(one: pl.Expr, other: pl.Expr) -> pl.Expr:
        """Return the bits of two values taken together; null if one of them is."""
        return one & other


@dataclass(frozen=True, eq=False)
class BitOr(BitAnd):
    """The bits that any value of a column has."""

    function: ClassVar[str] = "bit_or"

    @override
    def merge(self, bits: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"bits": bits.bitwise_or()}

    @override
    @staticmethod
    def joined(one: pl.Expr, other: pl.Expr) -> pl.Expr:
        return one | other


@dataclass(frozen=True, eq=False)
class BitXor(BitAnd):
    """The bits that an odd number of values have."""

    function: ClassVar[str] = "bit_xor"

    @override
    def merge(self, bits: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"bits": bits.bitwise_xor()}

    @override
    @staticmethod
    def joined(one: pl.Expr, other: pl.Expr) -> pl.Expr:
        return one ^ other


@dataclass(frozen=True, eq=False)
class First(OneValue):
    """The value of the first row that has one, by event time or by another column.

    Of several rows at the same place it is the least value, because which of them comes first
    depends on how rows travelled. Rows without a place count only if there are no others.
    """

    function: ClassVar[str] = "first"
    is_last: ClassVar[bool] = False
    needs_place: ClassVar[bool] = False

    order: str | None = None
    """The column that orders rows; None for the event time, until a stream is known."""
    has_nan: bool = True
    """Whether there may be NaN among the places, which Polars' extremes pass over."""

    @override
    def others(self) -> Sequence[str]:
        return () if self.order is None else (self.order,)

    @override
    def arguments(self) -> str:
        return (
            self.column if self.order is None else f"{self.column}, order_by={self.order}"
        )

    @override
    def outline(self) -> str:
        return f"{self.function}({self.column}) by {self.order}"

    @override
    def for_stream(self, stream: StreamSchema) -> Self:
        if self.order is None and stream.time_column is None:
            raise SchemaError(
                f"{self.display()}: the stream has no event time to tell what comes "
                f"{self.function}: name its timestamp column in Pipeline.read as event_time, "
                "or a column as order_by",
                column=self.column,
            )
        order = self.order or stream.time_column or ""
        fitted = super().for_stream(stream)
        has_nan = frame_schema(stream.arrow)[order].is_float()
        return fitted.replaced(order=order, has_nan=has_nan)

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        if self.order is None:
            raise InternalError(
                f"{self.display()} was not made for a stream before its use"
            )
        value, order = self.values(), pl.col(self.order)
        if self.needs_place:
            value = pl.when(order.is_not_null()).then(value)
        return self.merge(pl.when(value.is_not_null()).then(order), value)

    @override
    def merge(self, time: pl.Expr, value: pl.Expr) -> Mapping[str, pl.Expr]:
        """Sort by place, then by value: NaN is the greatest of both."""
        order: dict[str, Any] = {
            "by": [time, value],
            "descending": self.is_last,
            "nulls_last": True,
        }
        first: pl.Expr = time.max() if self.is_last else time.min()
        if self.has_nan:
            first = time.sort_by(**order).first()
        return {"time": first, "value": value.sort_by(**order).first()}

    @override
    def final(self, time: pl.Expr, value: pl.Expr) -> pl.Expr:
        return value

    @override
    def kept(self) -> Kept:
        counts, order = self.values().is_not_null(), str(self.order)
        if self.needs_place:
            counts &= pl.col(order).is_not_null()
        columns = tuple(dict.fromkeys((order, self.column)))
        end: End = "last" if self.is_last else "first"
        return Kept(columns, counts, self.replaced(where=None), end)


@dataclass(frozen=True, eq=False)
class Last(First):
    """The value of the last row that has one; of several at the same place the greatest."""

    function: ClassVar[str] = "last"
    is_last: ClassVar[bool] = True


@dataclass(frozen=True, eq=False)
class ArgMin(First):
    """The value of a column where another one is least; of several such rows the least."""

    function: ClassVar[str] = "arg_min"
    needs_place: ClassVar[bool] = True

    @override
    def find_problems(self) -> list[str]:
        return find_name_problems(self.order) if self.order is None else []

    @override
    def arguments(self) -> str:
        return f"{self.column}, {self.order}"


@dataclass(frozen=True, eq=False)
class ArgMax(ArgMin):
    """The value of a column where another one is greatest; of several such rows the greatest."""

    function: ClassVar[str] = "arg_max"
    is_last: ClassVar[bool] = True
