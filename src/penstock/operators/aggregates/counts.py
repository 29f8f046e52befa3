"""count and count_distinct."""

from collections.abc import Mapping

import polars as pl

from penstock.core.schema import StreamSchema
from penstock.operators.aggregates.aggregate import Aggregate
from penstock.operators.aggregates.columns import (
    AggregatedColumn,
    check_where,
    is_orderable,
    show,
)
from penstock.operators.aggregates.dense import Reduction


class Count(Aggregate):
    """How many rows there are, or how many have a value in a column. Never null."""

    def __init__(self, column: str | None, where: pl.Expr | None) -> None:
        self._column = column
        self._where = where

    def display(self) -> str:
        """Return `count()` or `count(price)`."""
        return show("count", self._column or "", self._where)

    def for_stream(self, stream: StreamSchema) -> Aggregate:
        """Return itself, if column and predicate are there; the type does not matter."""
        if self._column is None:
            check_where(self._where, stream, self.display())
        else:
            column = AggregatedColumn(self._column, self._where)
            column.check(stream, "count", lambda dtype: dtype != pl.Object, "any type")
        return self

    def partial(self) -> Mapping[str, pl.Expr]:
        """Count."""
        if self._column is not None:
            counted = AggregatedColumn(self._column, self._where).values().count()
        elif self._where is not None:
            counted = self._where.sum()  # null is not true
        else:
            counted = pl.len()
        return {"count": counted.cast(pl.Int64)}

    def merge(self, count: pl.Expr) -> Mapping[str, pl.Expr]:
        """Add counts."""
        return {"count": count.sum()}

    def merge_pair(
        self, partials: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        """Add two counts."""
        return {"count": partials["count"] + others["count"].fill_null(0)}

    def reductions(self) -> Mapping[str, Reduction] | None:
        """Count rows or values, if all of them count."""
        if self._where is not None:
            return None
        return {"count": Reduction("count", self._column)}

    def final(self, count: pl.Expr) -> pl.Expr:
        """Return the count."""
        return count


class CountDistinct(Aggregate):
    """How many different values a column has, exactly: the values themselves are kept."""

    def __init__(self, column: str, where: pl.Expr | None) -> None:
        self._column = AggregatedColumn(column, where)

    def display(self) -> str:
        """Return `count_distinct(price)`."""
        return self._column.shown("count_distinct")

    def for_stream(self, stream: StreamSchema) -> Aggregate:
        """Return itself, if values of the column can be told apart."""
        self._column.check(
            stream,
            "count_distinct",
            is_orderable,
            "numbers, text, bytes, instants, booleans",
        )
        return self

    def partial(self) -> Mapping[str, pl.Expr]:
        """List the different values."""
        return {"values": self._column.values().drop_nulls().unique()}

    def merge(self, values: pl.Expr) -> Mapping[str, pl.Expr]:
        """List the different values of several lists; no list has a null."""
        return {"values": values.explode().drop_nulls().unique()}

    def final(self, values: pl.Expr) -> pl.Expr:
        """Return how many there are."""
        return values.list.len().cast(pl.Int64)
