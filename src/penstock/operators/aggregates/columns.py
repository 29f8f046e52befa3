"""ColumnAggregate: an aggregate of one column, and what may be wrong with column and predicate."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import polars as pl
from typing_extensions import override

from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError, did_you_mean
from penstock.operators.aggregates.aggregate import Aggregate
from penstock.operators.aggregates.frames import decoded, frame_schema
from penstock.operators.aggregates.plan import Kind, Reduction
from penstock.operators.expressions import derive_types


@dataclass(frozen=True, eq=False)
class ColumnAggregate(Aggregate):
    """An aggregate of the values of one column. Null values never count."""

    function: ClassVar[str]
    """The name that users call it by."""
    wanted: ClassVar[str]
    """What the column may hold, in words."""
    reduced: ClassVar[Mapping[str, Kind]] = {}
    """The partials that are plain reductions of the column, if all of them are."""

    column: str
    where: pl.Expr | None = None
    """Says which rows count; None for all."""
    dtype: pl.DataType = pl.Int64()  # noqa: RUF009 (data types are immutable)
    """The column's type in Polars, as soon as a stream is known."""

    @staticmethod
    def fits(dtype: pl.DataType) -> bool:
        """Tell whether the aggregate can be computed of values of a type."""
        raise NotImplementedError

    @override
    def display(self) -> str:
        if self.where is None:
            return f"{self.function}({self.column})"
        column = f"{self.column}, " if self.column else ""
        return f"{self.function}({column}where={self.where})"

    @override
    def for_stream(self, stream: StreamSchema) -> Self:
        """Return it for the column's type; raises with everything that does not fit."""
        types = frame_schema(stream.schema)
        problems = find_where_problems(self.where, stream)
        dtype: pl.DataType = types.get(self.column, pl.Null())
        if self.column not in types:
            hint = did_you_mean(self.column, types.names())
            problems.append(f"there is no column {self.column!r}{hint}")
        elif not self.fits(dtype):
            found = stream.schema.field(self.column).type
            problems.append(
                f"column {self.column!r} is {found}, but it takes {self.wanted}"
            )
        if problems:
            raise SchemaError(
                f"{self.display()}: {'; '.join(problems)}", column=self.column
            )
        return replace(self, dtype=dtype)

    @override
    def reductions(self) -> Mapping[str, Reduction] | None:
        if self.where is not None or not self.reduced:
            return None
        return {part: Reduction(kind, self.column) for part, kind in self.reduced.items()}

    def values(self) -> pl.Expr:
        """Return the values that count; null for all others."""
        column = pl.col(self.column)
        return column if self.where is None else pl.when(self.where).then(column)

    def type_in(self, stream: StreamSchema) -> Any:
        """Return the type of the values in a stream, layouts aside."""
        return decoded(stream.schema).field(self.column).type


def find_where_problems(where: pl.Expr | None, stream: StreamSchema) -> list[str]:
    """Say why a predicate cannot tell which rows of a stream count."""
    if where is None:
        return []
    if not where.meta.root_names():
        return ["where= looks at no column: leave it out"]
    try:
        types = derive_types("where", decoded(stream.schema), [where])
    except UserError as error:
        return [error.message]
    if types.dtypes() != [pl.Boolean()]:
        shown = ", ".join(map(str, types.dtypes()))
        return [f"where= must be true or false for each row, not {shown}"]
    return []


def check_arguments(function: str, column: object, where: object) -> None:
    """Refuse what is not the name of a column, or not a predicate, at the line that wrote it."""
    problems = []
    if isinstance(column, pl.Expr):
        problems.append(
            "it takes the name of a column: compute it with with_columns before"
        )
    elif not isinstance(column, str):
        problems.append(f"{column!r} is not the name of a column")
    if where is not None and not isinstance(where, pl.Expr):
        problems.append(
            f"where={where!r} is not a Polars expression: write where=pl.col(…) > …"
        )
    if problems:
        raise UserError(
            f"ps.{function}: {'; '.join(problems)}", code=ErrorCode.INVALID_CONFIG
        )


def is_number(dtype: pl.DataType) -> bool:
    """Tell whether it is an integer, a float or a decimal."""
    return dtype.is_numeric()


def is_orderable(dtype: pl.DataType) -> bool:
    """Tell whether values have a least and a greatest one."""
    return (
        dtype.is_numeric()
        or dtype.is_temporal()
        or dtype in (pl.Boolean(), pl.String(), pl.Binary())
    )
