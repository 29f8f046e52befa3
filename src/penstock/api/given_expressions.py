"""What users write for expressions and keys: Polars expressions, names of columns, or values."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, TypeAlias

import polars as pl

from penstock.errors import ErrorCode, UserError

ExpressionLike: TypeAlias = pl.Expr | str | Any


def to_expression(value: ExpressionLike) -> pl.Expr:
    """Return an expression; text is the name of a column, as in Polars, other values literals.

    >>> print(to_expression("price"), to_expression(3))
    col("price") dyn int: 3
    """
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
    """Return expressions, those with a name last; a list counts as its items, as in Polars.

    >>> print(*to_expressions([["a", "b"]], {"c": pl.col("a") + 1}))
    col("a") col("b") [(col("a")) + (dyn int: 1)].alias("c")
    """
    aliased = [to_expression(value).alias(name) for name, value in named.items()]
    flat = _flat(values)
    if any(isinstance(value, Mapping) for value in flat):
        raise UserError(
            "a dictionary is no expression: write **{…} to name expressions by its keys",
            code=ErrorCode.INVALID_CONFIG,
        )
    return [*map(to_expression, flat), *aliased]


def _flat(values: Sequence[Any]) -> list[Any]:
    return [v for one in values for v in (one if isinstance(one, list | tuple) else [one])]


def to_keys(
    columns: Sequence[Any], named: Mapping[str, ExpressionLike], known: Sequence[str]
) -> tuple[list[Any], list[pl.Expr]]:
    """Return the columns that make up a key, and the expressions that compute some of them.

    A computed key gets its keyword or alias as name, which must be a new one. Without one it
    would have the name of a column that it is computed from, and replace it: then it is called
    "key", or "key_2" and so on if there is such a column.

    >>> to_keys(["user", pl.col("n") % 2], {}, ["user", "n"])[0]
    ['user', 'key']
    """
    keys: list[Any] = []
    computed: list[pl.Expr] = []
    taken = {*known, *named}
    for one in _flat(columns):
        if not isinstance(one, pl.Expr) or one.meta.is_column_selection():
            keys.append(one)
            continue
        name = None if one.meta.has_multiple_outputs() else one.meta.output_name()
        is_alias = not one.meta.undo_aliases().meta.eq(one)
        if name is None or (name in known and not is_alias):
            name = next(n for n in _key_names() if n not in taken)
        taken.add(name)
        keys.append(name)
        computed.append(one.alias(name))
    for name, value in named.items():
        keys.append(name)
        expression = to_expression(value)
        if not expression.meta.eq(pl.col(name)):
            computed.append(expression.alias(name))
    replaced = {expression.meta.output_name() for expression in computed}.intersection(
        known
    )
    if replaced:
        raise UserError(
            f"key_by computes keys named {', '.join(map(repr, sorted(replaced)))}, as columns of "
            "its rows are, which would be lost: give the keys other names, or replace the "
            "columns with with_columns before",
            code=ErrorCode.INVALID_CONFIG,
        )
    return keys, computed


def _key_names() -> Iterator[str]:
    yield "key"
    yield from (f"key_{number}" for number in count(2))
