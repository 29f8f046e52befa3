"""What users write for an expression: a Polars expression, the name of a column, or a value."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import polars as pl

from penstock.errors import ErrorCode, UserError

ExpressionLike: TypeAlias = pl.Expr | str | Any


def to_expression(value: ExpressionLike) -> pl.Expr:
    """Return an expression; text is the name of a column, as in Polars, other values literals."""
    if isinstance(value, pl.Expr):
        return value
    if isinstance(value, str):
        return pl.col(value)
    try:
        return pl.lit(value)
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise UserError(
            f"{value!r} is no expression ({error}): give a Polars expression, the name of a "
            "column or a plain value. A function goes to map_batches",
            code=ErrorCode.INVALID_CONFIG,
        ) from error


def to_expressions(
    values: Sequence[ExpressionLike], named: Mapping[str, ExpressionLike]
) -> list[pl.Expr]:
    """Return expressions, those with a name behind the others."""
    aliased = [to_expression(value).alias(name) for name, value in named.items()]
    return [*map(to_expression, values), *aliased]
