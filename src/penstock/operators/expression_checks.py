"""Checks of expressions before any data flows: what they read, give, and whether row by row.

Streams are cut into batches anywhere, so an expression may read one row at a time only: what
depends on other rows (sums, shifts, ranks, values of a whole column) is refused. Polars says
this of most expressions; what it takes for row by row although it is not is found here.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.core.arrow_types import why_not_in_polars
from penstock.errors import ErrorCode, SchemaError, UserError, did_you_mean
from penstock.operators.frames import polars_type

NO_COLUMNS = pl.DataFrame()
_GUESSES_FORMAT = (
    " to guess a format: give it one, such as '%+' for ISO 8601 with a zone (and "
    "time_zone='UTC'), '%FT%T%.f' without"
)
_WHOLE_ARGUMENTS = {"is_in": 1, "replace": 2, "replace_strict": 2}
"""Functions that Polars takes for row by row, and how many first arguments are whole columns."""


@dataclass(frozen=True, slots=True)
class ExpressionInput:
    """The columns of a stream that some expressions read."""

    names: tuple[str, ...]
    """In the order of the schema, because selectors may mean the first column."""
    opaque: frozenset[str]
    """The columns that Polars has no type for. Nothing can be computed from them."""

    def frame(self, batch: pa.RecordBatch) -> pl.DataFrame:
        """Return these columns of a batch; a frame without columns has no height."""
        if not self.names:
            return NO_COLUMNS
        first, *others = [
            pl.Series(name, [None] * batch.num_rows, dtype=pl.Object)
            if name in self.opaque
            else pl.Series(name, batch.column(name))
            for name in self.names
        ]
        frame = first.to_frame()  # a third of the cost of pl.DataFrame([...])
        return frame.hstack(others) if others else frame


def derive_input(expressions: Sequence[pl.Expr], schema: pa.Schema) -> ExpressionInput:
    """Return what expressions read: all columns if there is a selector among them."""
    if any(e.meta.has_multiple_outputs() for e in expressions):
        read = set(schema.names)
    else:
        read = {name for e in expressions for name in e.meta.root_names()}
    fields = [field for field in schema if field.name in read]
    return ExpressionInput(
        tuple(field.name for field in fields),
        frozenset(field.name for field in fields if polars_type(field.type) == pl.Object),
    )


def derive_types(
    shown: str, schema: pa.Schema, expressions: Sequence[pl.Expr]
) -> pl.Schema:
    """Return the types that expressions give, or raise why they cannot be computed."""
    empty = pl.LazyFrame(schema={field.name: polars_type(field.type) for field in schema})
    opaque = _find_opaque_columns(expressions, schema)
    if opaque:
        reasons = [
            f"it reads column {n!r}, but {why_not_in_polars(k)}" for n, k in opaque.items()
        ]
        raise SchemaError(
            f"{shown} cannot be computed: {'; '.join(reasons)}", columns=tuple(opaque)
        )
    try:
        types = empty.select(expressions).collect_schema()
    except pl.exceptions.PolarsError as error:
        unknown = find_unknown_columns(expressions, schema.names)
        reason = str(error).split("\n\nResolved plan")[0].replace("\n\n", ". ")
        if unknown:
            reason = "; ".join(unknown.values())
        raise SchemaError(
            f"{shown} does not fit its input: {reason}", columns=tuple(unknown) or None
        ) from error
    problems = [
        problem
        for expression in expressions
        for problem in _find_row_problems(_with_formats(expression), empty)
    ]
    if problems:
        raise UserError(
            f"{shown} cannot be computed row by row: {'; '.join(problems)}. "
            "Streams are cut into batches anywhere, so the result would be arbitrary: use an "
            "aggregate, a window or an operator of your own",
            code=ErrorCode.INVALID_CONFIG,
        )
    return types


def _find_opaque_columns(
    expressions: Sequence[pl.Expr], schema: pa.Schema
) -> dict[str, Any]:
    """Return the columns that expressions compute from although Polars has no type for them.

    Selectors are left out: they take the columns of a type, and name none.
    """
    computed = [
        e
        for e in expressions
        if not e.meta.is_column_selection() and not e.meta.has_multiple_outputs()
    ]
    read = dict.fromkeys(name for e in computed for name in e.meta.root_names())
    types = {name: schema.field(name).type for name in read if name in schema.names}
    return {n: kind for n, kind in types.items() if polars_type(kind) == pl.Object}


def find_unknown_columns(
    expressions: Sequence[pl.Expr], known: Sequence[str]
) -> dict[str, str]:
    """Return the columns that expressions read and that are not known, and what to say of each."""
    named = dict.fromkeys(name for e in expressions for name in e.meta.root_names())
    return {
        name: f"there is no column {name!r}{did_you_mean(name, known)}"
        for name in named
        if name not in known
    }


def show_types(types: pl.Schema) -> str:
    """Return columns and their types, for an error message."""
    return ", ".join(f"{name} {dtype}" for name, dtype in types.items())


def to_arrow_field(shown: str, name: str, dtype: pl.DataType) -> "pa.Field[pa.DataType]":
    """Return the column that Polars exports values of a type as."""
    cause: Exception | None = None
    if dtype != pl.Object:  # Polars would export the addresses of Python objects
        try:
            # Without the name, because Polars panics at a NUL in it.
            return pa.field(name, pl.Series([], dtype=dtype).to_arrow().type)
        except (pa.ArrowException, pl.exceptions.PolarsError) as error:
            cause = error
    raise SchemaError(
        f"{shown} gives the column {name!r} the type {dtype}, which Arrow does "
        "not have: cast it",
        column=name,
    ) from cause


def _find_row_problems(expression: pl.Expr, empty: pl.LazyFrame) -> Iterator[str]:
    """Yield the parts of an expression that read other rows, as far as Polars shows them."""
    for part in _parts_of(expression):
        meta = part.meta
        try:
            if _looks_into_a_column(part, empty):
                yield (
                    f"{part} looks at several rows: it takes all values of a column. Compare "
                    "with ==, or give plain values; is_in also takes a column of lists"
                )
                return
            is_whole = meta.is_scalar() and bool(meta.root_names())
            is_apart = meta.is_literal() or meta.is_row_separable()
            if is_whole or not is_apart:
                hint = _GUESSES_FORMAT if ".str.strptime(" in str(part) else ""
                yield f"{part} looks at several rows{hint}"
                return
            if part is expression and not (meta.is_length_preserving() or meta.is_scalar()):
                yield f"{part} does not give one value per row"
        except pl.exceptions.PolarsError:
            continue  # for selectors and Python functions Polars needs the data


def _with_formats(expression: pl.Expr) -> pl.Expr:
    """Return an expression to be checked, in which a guessed format of times counts as given.

    `str.to_datetime()` guesses by the first text of a batch which kind of format all have. If it
    is strict, a row has the same value whichever rows it comes with, or fails the job.
    """
    guessed = '"format":null,"strict":true'
    try:
        written = expression.meta.serialize(format="json")
        if guessed not in written:
            return expression
        given = written.replace(guessed, guessed.replace("null", '"%+"'))
        return pl.Expr.deserialize(io.StringIO(given), format="json")
    except pl.exceptions.PolarsError:
        return expression  # not all can be written as JSON


def _looks_into_a_column(part: pl.Expr, empty: pl.LazyFrame) -> bool:
    """Tell whether a function takes whole columns although Polars takes it for row by row."""
    arguments = part.meta.pop()[::-1]
    if len(arguments) < 2:
        return False
    function = str(part).removeprefix(f"{arguments[0]}.").partition("(")[0]
    for values in arguments[1 : 1 + _WHOLE_ARGUMENTS.get(function, 0)]:
        if values.meta.root_names():
            kind = empty.select(values).collect_schema().dtypes()[0]
            if function != "is_in" or not isinstance(kind, pl.List | pl.Array):
                return True
    return False


def _parts_of(expression: pl.Expr) -> Iterator[pl.Expr]:
    yield expression
    for part in expression.meta.pop():
        yield from _parts_of(part)
