"""The column that an aggregate looks at: that it exists, that it fits, and which rows count."""

from collections.abc import Callable
from typing import Any

import polars as pl

from penstock.core.schema import StreamSchema
from penstock.core.suggestion import did_you_mean
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.operators.aggregates.frames import decoded, frame_schema
from penstock.operators.expression_types import derive_types


class AggregatedColumn:
    """A column of a stream, and a predicate that says of which rows."""

    def __init__(self, column: str, where: pl.Expr | None) -> None:
        self.name = column
        self.where = where

    def shown(self, function: str) -> str:
        """Return how an aggregate of it is written."""
        return show(function, self.name, self.where)

    def values(self) -> pl.Expr:
        """Return the values that count; null for all others."""
        column = pl.col(self.name)
        return column if self.where is None else pl.when(self.where).then(column)

    def type_in(self, stream: StreamSchema) -> Any:
        """Return the type of its values, layouts aside; the column is known to exist."""
        return decoded(stream.schema).field(self.name).type

    def check(
        self,
        stream: StreamSchema,
        function: str,
        fits: Callable[[pl.DataType], bool],
        wanted: str,
    ) -> pl.DataType:
        """Return the column's type in Polars, or raise with everything that is wrong."""
        problems = find_where_problems(self.where, stream)
        types = frame_schema(stream.schema)
        dtype: pl.DataType = types.get(self.name, pl.Null())
        if self.name not in types:
            problems.append(
                f"there is no column {self.name!r}{did_you_mean(self.name, types.names())}"
            )
        elif not fits(dtype):
            found = stream.schema.field(self.name).type
            problems.append(f"column {self.name!r} is {found}, but it takes {wanted}")
        if problems:
            raise SchemaError(
                f"{self.shown(function)}: {'; '.join(problems)}", column=self.name
            )
        return dtype


def check_where(where: pl.Expr | None, stream: StreamSchema, shown: str) -> None:
    """Refuse a predicate that does not fit a stream."""
    problems = find_where_problems(where, stream)
    if problems:
        raise SchemaError(f"{shown}: {'; '.join(problems)}")


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


def show(function: str, column: str, where: pl.Expr | None) -> str:
    """Return how an aggregate is written: `sum(price, where=[(col("ok"))])`."""
    if where is None:
        return f"{function}({column})"
    return f"{function}({', '.join([column] if column else [])}{', ' if column else ''}where={where})"


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
