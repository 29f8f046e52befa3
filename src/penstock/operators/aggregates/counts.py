"""The aggregates count, count_distinct, bool_and and bool_or: what comes out of counting."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import polars as pl
from typing_extensions import override

from penstock.core.schema import StreamSchema
from penstock.errors import SchemaError
from penstock.operators.aggregates.aggregate import (
    ColumnAggregate,
    Kept,
    find_where_problems,
    is_orderable,
)
from penstock.operators.aggregates.compiled import Kind, Reduction
from penstock.operators.aggregates.totals import AdditiveAggregate


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
    keeps_all_values: ClassVar[bool] = True
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

    @override
    def kept(self) -> Kept:
        """Count the values that are there: one that comes again, or goes once, changes nothing."""
        return replace(super().kept(), aggregate=CountValues(self.column), is_distinct=True)


@dataclass(frozen=True, eq=False)
class BoolAnd(AdditiveAggregate):
    """Whether all values are true; null of none.

    Kept are two counts: a value can be taken out of them again.
    """

    function: ClassVar[str] = "bool_and"
    wanted: ClassVar[str] = "booleans"

    @override
    @staticmethod
    def fits(dtype: pl.DataType) -> bool:
        return dtype == pl.Boolean

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        values = self.values()
        counts = {"true": values.sum(), "count": values.count()}
        return {part: count.cast(pl.Int64) for part, count in counts.items()}

    @override
    def final(self, true: pl.Expr, count: pl.Expr) -> pl.Expr:
        return pl.when(count > 0).then(true == count)


@dataclass(frozen=True, eq=False)
class BoolOr(BoolAnd):
    """Whether any value is true; null of none."""

    function: ClassVar[str] = "bool_or"

    @override
    def final(self, true: pl.Expr, count: pl.Expr) -> pl.Expr:
        return pl.when(count > 0).then(true > 0)
