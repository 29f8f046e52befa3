"""Polars expressions over Arrow rows: what they give, what they read, what they may not do.

An expression is checked against a schema before any data flows. Batches are handed to
Polars without a copy where layouts allow it, and with no more columns than are read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.core.suggestion import did_you_mean
from penstock.errors import ErrorCode, SchemaError, UserError


@dataclass(frozen=True, slots=True)
class ExpressionInput:
    """The columns of a stream that some expressions read."""

    names: tuple[str, ...]
    """In the order of the schema: selectors may ask for the first column."""
    opaque: frozenset[str]
    """Those among them that Polars has no type for. Nothing can be computed from them."""

    def frame(self, batch: pa.RecordBatch) -> pl.DataFrame:
        """Return these columns of a batch; a frame without columns has no height."""
        if not self.names:
            return pl.DataFrame()
        first, *others = [self._series(batch, name) for name in self.names]
        frame = first.to_frame()  # a third of the cost of pl.DataFrame([...])
        return frame.hstack(others) if others else frame

    def _series(self, batch: pa.RecordBatch, name: str) -> pl.Series:
        if name in self.opaque:
            return pl.Series(name, [None] * batch.num_rows, dtype=pl.Object)
        return pl.Series(name, batch.column(name))


def derive_input(expressions: Sequence[pl.Expr], schema: pa.Schema) -> ExpressionInput:
    """Say what expressions read: all columns if there is a selector among them."""
    if any(e.meta.has_multiple_outputs() for e in expressions):
        read = set(schema.names)
    else:
        read = {name for e in expressions for name in e.meta.root_names()}
    fields = [field for field in schema if field.name in read]
    return ExpressionInput(
        tuple(field.name for field in fields),
        frozenset(field.name for field in fields if _polars_type(field.type) == pl.Object),
    )


def derive_types(
    shown: str, schema: pa.Schema, expressions: Sequence[pl.Expr]
) -> pl.Schema:
    """Return what expressions give for rows of a schema, or say why they cannot be computed."""
    empty = pl.LazyFrame(schema={field.name: _polars_type(field.type) for field in schema})
    try:
        types = empty.select(expressions).collect_schema()
    except pl.exceptions.PolarsError as error:
        unknown = _unknown_columns(expressions, schema)
        reason = str(error).split("\n\nResolved plan")[0].replace("\n\n", ". ")
        if unknown:
            reason = "; ".join(
                f"there is no column {name!r}{did_you_mean(name, schema.names)}"
                for name in unknown
            )
        raise SchemaError(
            f"{shown} does not fit its input: {reason}",
            columns=tuple(unknown) or None,
        ) from error
    problems = [p for e in expressions for p in _find_row_problems(e)]
    if problems:
        raise UserError(
            f"{shown} cannot be computed row by row: {'; '.join(problems)}. "
            "Streams are cut into batches anywhere, so the result would be arbitrary: use an "
            "aggregate, a window or an operator of your own",
            code=ErrorCode.INVALID_CONFIG,
        )
    return types


def to_arrow_field(shown: str, name: str, dtype: pl.DataType) -> Any:
    """Return the column that Polars exports values of a type as."""
    cause: Exception | None = None
    if dtype != pl.Object:  # of Python objects Polars would export the addresses
        try:
            return pa.field(name, pl.Series(name, [], dtype=dtype).to_arrow().type)
        except (pa.ArrowException, pl.exceptions.PolarsError) as error:
            cause = error
    raise SchemaError(
        f"{shown} gives the column {name!r} the type {dtype}, which Arrow does "
        "not have: cast it",
        column=name,
    ) from cause


def _polars_type(data_type: Any) -> pl.DataType:
    """Return the type that Polars reads a column as; Object if it has none for it."""
    if _makes_polars_panic(data_type):
        return pl.Object()
    try:
        return pl.Series("", pa.nulls(0, data_type)).dtype
    except (pl.exceptions.PolarsError, pa.ArrowException):
        return pl.Object()


def _makes_polars_panic(data_type: Any) -> bool:
    """Tell whether reading a type would end in a panic, which is no Exception to catch."""
    if pa.types.is_decimal256(data_type):
        return True
    parts = range(data_type.num_fields)
    return any(_makes_polars_panic(data_type.field(index).type) for index in parts)


def _unknown_columns(expressions: Sequence[pl.Expr], schema: pa.Schema) -> list[str]:
    named = dict.fromkeys(name for e in expressions for name in e.meta.root_names())
    return [name for name in named if name not in schema.names]


def _find_row_problems(expression: pl.Expr) -> Iterator[str]:
    """Say which parts of an expression look at other rows, as far as Polars tells."""
    for part in _parts_of(expression):
        meta = part.meta
        try:
            is_whole = meta.is_scalar() and bool(meta.root_names())
            is_apart = meta.is_literal() or meta.is_row_separable()
            if is_whole or not is_apart:
                yield f"{part} looks at several rows"
                return
            if part is expression and not (meta.is_length_preserving() or meta.is_scalar()):
                yield f"{part} does not give one value per row"
        except pl.exceptions.PolarsError:
            continue  # selectors and Python functions: Polars cannot tell without the data


def _parts_of(expression: pl.Expr) -> Iterator[pl.Expr]:
    yield expression
    for part in expression.meta.pop():
        yield from _parts_of(part)
