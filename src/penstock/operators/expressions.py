"""Operators made of Polars expressions: filter, select, with_columns.

An expression is checked against a schema before any data flows. It is computed batch by batch,
so it may read one row at a time only: what depends on other rows (sums, shifts, ranks) would
depend on how rows are cut into batches, and is refused. Columns that an expression does not
change are passed on without a copy and in their own Arrow layout. Only the columns that are
read go to Polars, without a copy where layouts allow it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.schema import StreamSchema, how_to_time
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.changes import check_change_unread, project_changes
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.expression_checks import (
    NO_COLUMNS,
    ExpressionInput,
    derive_input,
    derive_types,
    show_types,
    to_arrow_field,
)
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig


@dataclass(frozen=True, slots=True)
class FilterConfig(OperatorConfig):
    """The config of operators that keep the rows for which a predicate is true."""

    kind: ClassVar[str] = "filter"

    predicate: bytes
    """The result of `Expr.meta.serialize`."""

    @override
    def shown(self) -> Mapping[str, str]:
        return {"predicate": str(read_expression(self.kind, self.predicate))}


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
        return tuple(read_expression(self.kind, data) for data in self.expressions)


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
        self._predicate = read_expression(config.kind, config.predicate)
        self._input: ExpressionInput | None = None
        self._constant: bool | None = None

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the input, after checking that the predicate fits it."""
        self._prepare(inputs[0].arrow)
        read = self._predicate.meta.root_names()
        check_change_unread(f"filter({self._predicate})", inputs[0], read)
        return inputs[0].loosened()

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
        read = [name for e in plan.computed for name in e.meta.root_names()]
        check_change_unread(str(self.display()), inputs[0], read)
        names = set(plan.schema.names)
        time, keys = inputs[0].time_column, inputs[0].key_columns
        keeps_time = time in names and pa.types.is_timestamp(plan.schema.field(time).type)
        keeps_keys = names.issuperset(keys) and plan.computed_names.isdisjoint(keys)
        table_key = project_changes(
            inputs[0], plan.schema.names, sorted(plan.computed_names), self.config.kind
        )
        # Without some column, or with another value of it, an update may change nothing.
        is_more = plan.schema.names[: len(inputs[0].arrow)] == inputs[0].arrow.names
        is_settled = is_more and plan.computed_names.isdisjoint(inputs[0].arrow.names)
        return StreamSchema(
            plan.schema,
            time if keeps_time else None,
            keys if keeps_keys else (),
            table_key,
            inputs[0].settling if is_settled else inputs[0].loosened().settling,
            inputs[0].is_bag,
        )

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Compute the new columns and put them between those that are passed on."""
        plan = self._plan or self._planned(ctx.inputs[0].arrow)
        fresh = NO_COLUMNS
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


def read_expression(kind: str, data: bytes) -> pl.Expr:
    """Return the expression of an operator's config, which `Expr.meta.serialize` wrote."""
    try:
        return pl.Expr.deserialize(data)
    except (pl.exceptions.PolarsError, ValueError, TypeError) as error:
        raise UserError(
            f"an expression of {kind} cannot be read ({error}): it must come from "
            "Expr.meta.serialize of the same Polars version on driver and workers",
            code=ErrorCode.INVALID_CONFIG,
        ) from error
