"""Operators made of Polars expressions: filter, select, with_columns.

An expression is checked against a schema before any data flows. It is computed batch by batch,
so it may read one row at a time only: what depends on other rows (sums, shifts, ranks) would
depend on how rows are cut into batches, and is refused. Columns that an expression does not
change are passed on without a copy and in their own Arrow layout. Only the columns that are
read go to Polars, without a copy where layouts allow it.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import why_not_in_polars
from penstock.core.schema import StreamSchema, how_to_time
from penstock.errors import ErrorCode, SchemaError, UserError, did_you_mean
from penstock.graph.logical import OperatorSpec
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig

_NO_COLUMNS = pl.DataFrame()
_GUESSES_FORMAT = (
    " to guess a format: give it one, such as '%+' for ISO 8601 with a zone (and "
    "time_zone='UTC'), '%FT%T%.f' without"
)


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
            return _NO_COLUMNS
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
        frozenset(field.name for field in fields if _polars_type(field.type) == pl.Object),
    )


def derive_types(
    shown: str, schema: pa.Schema, expressions: Sequence[pl.Expr]
) -> pl.Schema:
    """Return the types that expressions give, or raise why they cannot be computed."""
    empty = pl.LazyFrame(schema={field.name: _polars_type(field.type) for field in schema})
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
    problems = [p for e in expressions for p in _find_row_problems(_with_formats(e))]
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
    return {n: kind for n, kind in types.items() if _polars_type(kind) == pl.Object}


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


def _polars_type(data_type: Any) -> pl.DataType:
    """Return the type that Polars reads a column as; Object if it has none for it."""
    if _makes_polars_panic(data_type):
        return pl.Object()
    try:
        return pl.Series("", pa.nulls(0, data_type)).dtype
    except (pl.exceptions.PolarsError, pa.ArrowException):
        return pl.Object()


def _makes_polars_panic(data_type: Any) -> bool:
    """Return whether Polars panics on reading a type: a panic is no Exception to catch."""
    if pa.types.is_decimal256(data_type):
        return True
    parts = range(data_type.num_fields)
    return any(_makes_polars_panic(data_type.field(index).type) for index in parts)


def _find_row_problems(expression: pl.Expr) -> Iterator[str]:
    """Yield the parts of an expression that read other rows, as far as Polars shows them."""
    for part in _parts_of(expression):
        meta = part.meta
        try:
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


def _parts_of(expression: pl.Expr) -> Iterator[pl.Expr]:
    yield expression
    for part in expression.meta.pop():
        yield from _parts_of(part)


@dataclass(frozen=True, slots=True)
class FilterConfig(OperatorConfig):
    """The config of operators that keep the rows for which a predicate is true."""

    kind: ClassVar[str] = "filter"

    predicate: bytes
    """The result of `Expr.meta.serialize`."""

    @override
    def shown(self) -> Mapping[str, str]:
        return {"predicate": str(_read(self.kind, self.predicate))}


@dataclass(frozen=True, slots=True)
class SelectConfig(OperatorConfig):
    """The config of operators that compute columns instead of the input's."""

    kind: ClassVar[str] = "select"

    expressions: tuple[bytes, ...]
    """Each is the result of `Expr.meta.serialize`."""

    @override
    def shown(self) -> Mapping[str, str]:
        return {"expressions": ", ".join(map(str, self.read_expressions()))}

    def read_expressions(self) -> tuple[pl.Expr, ...]:
        """Return the expressions."""
        return tuple(_read(self.kind, data) for data in self.expressions)


@dataclass(frozen=True, slots=True)
class WithColumnsConfig(SelectConfig):
    """The config of operators that compute columns besides the input's."""

    kind: ClassVar[str] = "with_columns"


@dataclass(frozen=True, slots=True)
class EventTimeConfig(WithColumnsConfig):
    """The config of operators that compute the event time of rows, by one expression."""

    kind: ClassVar[str] = "event_time"


def event_time_spec(expression: pl.Expr) -> OperatorSpec:
    """Compute a column, as `with_columns_spec` does, and make it the event time."""
    return EventTimeConfig(_serialized([expression])).to_operator_spec()


def filter_spec(predicate: pl.Expr) -> OperatorSpec:
    """Keep the rows for which a predicate is true; null is not."""
    return FilterConfig(predicate.meta.serialize()).to_operator_spec()


def select_spec(*expressions: pl.Expr | str) -> OperatorSpec:
    """Emit these columns only, in this order."""
    return SelectConfig(_serialized(expressions)).to_operator_spec()


def with_columns_spec(*expressions: pl.Expr | str) -> OperatorSpec:
    """Replace columns, or add them behind the others."""
    return WithColumnsConfig(_serialized(expressions)).to_operator_spec()


class Filter(Configured[FilterConfig], ArrowOperator):
    """Keeps the rows for which a predicate is true."""

    def __init__(self, config: FilterConfig) -> None:
        super().__init__(config)
        self._predicate = _read(config.kind, config.predicate)
        self._input: ExpressionInput | None = None
        self._constant: bool | None = None

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the input, after checking that the predicate fits it."""
        self._prepare(inputs[0].arrow)
        return inputs[0]

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Compute the predicate from the columns it needs; filter in Arrow."""
        columns = self._input or self._prepare(ctx.inputs[0].arrow)
        if self._constant is not None:
            if self._constant:
                collector.collect(batch)
            return
        mask = columns.frame(batch).select(self._predicate).to_series()
        kept = mask.sum()
        if kept == batch.num_rows:
            collector.collect(batch)
        elif kept:
            collector.collect(batch.filter(mask.to_arrow()))

    def _prepare(self, schema: pa.Schema) -> ExpressionInput:
        types = derive_types(str(self.display()), schema, [self._predicate])
        if not (len(types) == 1 and types.dtypes()[0] in (pl.Boolean(), pl.Null())):
            raise SchemaError(
                f"filter({self._predicate}) needs one true-or-false value per row, but its "
                f"predicate gives: {show_types(types)}. Compare them, or join several with "
                "pl.all_horizontal"
            )
        self._input = derive_input([self._predicate], schema)
        if not self._input.names:
            self._constant = pl.select(self._predicate).item() is True
        return self._input


class Project(Configured[SelectConfig], ArrowOperator):
    """Computes columns: instead of the input's for select, besides them for with_columns."""

    def __init__(self, config: SelectConfig) -> None:
        super().__init__(config)
        if not config.expressions:
            raise UserError(
                f"{config.kind} without an expression: name at least one column",
                code=ErrorCode.INVALID_CONFIG,
            )
        self._expressions = config.read_expressions()
        self._plan: _Projection | None = None

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Derive the columns; time and key keep their role if their columns survive.

        A key column that is computed is no key of the output, because rows came to their
        subtask by its old value.
        """
        plan = self._planned(inputs[0].arrow)
        names = set(plan.schema.names)
        time, keys = inputs[0].time_column, inputs[0].key_columns
        keeps_time = time in names and pa.types.is_timestamp(plan.schema.field(time).type)
        keeps_keys = names.issuperset(keys) and plan.computed_names.isdisjoint(keys)
        return StreamSchema(
            plan.schema, time if keeps_time else None, keys if keeps_keys else ()
        )

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Compute the new columns and put them between those that are passed on."""
        plan = self._plan or self._planned(ctx.inputs[0].arrow)
        fresh = _NO_COLUMNS
        if plan.computed:
            fresh = plan.input.frame(batch).select(plan.computed)
            if fresh.height != batch.num_rows:  # literals alone: no column sets the length
                fresh = pl.DataFrame([c.new_from_index(0, batch.num_rows) for c in fresh])
        arrays = [
            to_array(fresh.get_column(field.name), field.type)
            if field.name in plan.computed_names
            else batch.column(field.name)
            for field in plan.schema
        ]
        collector.collect(pa.RecordBatch.from_arrays(arrays, schema=plan.schema))

    def _planned(self, schema: pa.Schema) -> "_Projection":
        shown = str(self.display())
        types = derive_types(shown, schema, self._expressions)
        computed = [e for e in self._expressions if not e.meta.is_column_selection()]
        fresh = derive_types(shown, schema, computed)
        by_name = {
            name: to_arrow_field(shown, name, dtype) for name, dtype in fresh.items()
        }
        if isinstance(self.config, WithColumnsConfig):
            names = list(dict.fromkeys([*schema.names, *types.names()]))
        else:
            names = types.names()
        fields = [by_name[n] if n in by_name else schema.field(n) for n in names]
        self._plan = _Projection(
            pa.schema(fields),
            tuple(computed),
            derive_input(computed, schema),
            frozenset(by_name),
        )
        return self._plan


class EventTimeColumn(Project):
    """Computes one column besides the input's, which is the event time of the output."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the input's columns with the event time; what is no timestamp is refused."""
        shown = str(self.display())
        names = derive_types(shown, inputs[0].arrow, self._expressions).names()
        if len(names) != 1:
            raise SchemaError(
                f"{shown} gives the columns {', '.join(map(repr, names))}: event time is one "
                "column"
            )
        stream = super().output_schema(inputs)
        kind = stream.arrow.field(names[0]).type
        if not pa.types.is_timestamp(kind):
            raise SchemaError(
                f"{shown} gives the column {names[0]!r} the type {kind}: it must give "
                f"timestamps{how_to_time(names[0], kind)}",
                column=names[0],
            )
        return replace(stream, time_column=names[0])


@dataclass(frozen=True, slots=True)
class _Projection:
    schema: pa.Schema
    computed: tuple[pl.Expr, ...]
    input: ExpressionInput
    """The columns that the computed ones are made of."""
    computed_names: frozenset[str]


def _serialized(expressions: Sequence[pl.Expr | str]) -> tuple[bytes, ...]:
    exprs = [pl.col(e) if isinstance(e, str) else e for e in expressions]
    return tuple(e.meta.serialize() for e in exprs)


def to_array(column: pl.Series, data_type: pa.DataType) -> Any:
    """Return a column in a type that holds its values."""
    array = column.rechunk().to_arrow()
    return array if array.type.equals(data_type) else array.cast(data_type)


def _read(kind: str, data: bytes) -> pl.Expr:
    try:
        return pl.Expr.deserialize(data)
    except (pl.exceptions.PolarsError, ValueError, TypeError) as error:
        raise UserError(
            f"an expression of {kind} cannot be read ({error}): it must come from "
            "Expr.meta.serialize of the same Polars version on driver and workers",
            code=ErrorCode.INVALID_CONFIG,
        ) from error
