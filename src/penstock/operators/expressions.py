"""Operators made of Polars expressions: filter, select, with_columns.

An expression is computed batch by batch, so it may look at one row at a time only: what
depends on other rows (sums, shifts, ranks) would depend on how rows are cut into batches,
and is refused. Columns that an expression does not touch are passed on as they are,
without a copy and in their own Arrow layout; only the others go through Polars.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import OperatorContext
from penstock.operators.display import DisplayableOperator
from penstock.operators.expression_types import (
    ExpressionInput,
    derive_input,
    derive_types,
    to_arrow_field,
)
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import ConstructedOperator, OperatorConstructor, Registry


def filter_spec(predicate: pl.Expr) -> OperatorSpec:
    """Keep the rows for which a predicate is true; null is not."""
    return OperatorSpec("filter", {"predicate": predicate.meta.serialize()})


def select_spec(*expressions: pl.Expr | str) -> OperatorSpec:
    """Emit these columns only, in this order."""
    return OperatorSpec("select", {"expressions": _serialized(expressions)})


def with_columns_spec(*expressions: pl.Expr | str) -> OperatorSpec:
    """Replace columns, or add them behind the others."""
    return OperatorSpec("with_columns", {"expressions": _serialized(expressions)})


class Filter(ArrowOperator):
    """Keeps the rows for which a predicate is true."""

    def __init__(self, predicate: pl.Expr) -> None:
        self._predicate = predicate
        self._input: ExpressionInput | None = None
        self._constant: bool | None = None

    def name(self) -> str:
        """Return the kind."""
        return "filter"

    def display(self) -> DisplayableOperator:
        """Show the predicate."""
        return DisplayableOperator("filter", {"predicate": str(self._predicate)})

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the input, after checking that the predicate fits it."""
        self._prepare(inputs[0].schema)
        return inputs[0]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Compute the predicate from the columns it needs; filter in Arrow."""
        columns = self._input or self._prepare(ctx.inputs[0].schema)
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
            shown = ", ".join(f"{name} {dtype}" for name, dtype in types.items())
            raise SchemaError(
                f"filter({self._predicate}) needs one true-or-false value per row, but its "
                f"predicate gives: {shown}. Compare them, or join several with "
                "pl.all_horizontal"
            )
        self._input = derive_input([self._predicate], schema)
        if not self._input.names:
            self._constant = pl.select(self._predicate).item() is True
        return self._input


class Project(ArrowOperator):
    """Computes columns: instead of the input's for select, besides them for with_columns."""

    def __init__(self, kind: str, expressions: Sequence[pl.Expr]) -> None:
        self._kind = kind
        self._expressions = tuple(expressions)
        self._plan: _Projection | None = None

    def name(self) -> str:
        """Return the kind."""
        return self._kind

    def display(self) -> DisplayableOperator:
        """Show the expressions."""
        shown = ", ".join(map(str, self._expressions))
        return DisplayableOperator(self._kind, {"expressions": shown})

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Derive the columns; time and key keep their role if their columns survive.

        A key column that is computed anew is no longer the key: rows were brought to their
        subtask by its old value.
        """
        plan = self._planned(inputs[0].schema)
        names = set(plan.schema.names)
        time, keys = inputs[0].time_column, inputs[0].key_columns
        keeps_time = time in names and pa.types.is_timestamp(plan.schema.field(time).type)
        keeps_keys = names.issuperset(keys) and plan.computed_names.isdisjoint(keys)
        return StreamSchema(
            plan.schema, time if keeps_time else None, keys if keeps_keys else ()
        )

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Compute what is new and put it between the columns that are passed on."""
        plan = self._plan or self._planned(ctx.inputs[0].schema)
        collector.collect(plan.apply(batch))

    def _planned(self, schema: pa.Schema) -> "_Projection":
        shown = str(self.display())
        types = derive_types(shown, schema, self._expressions)
        computed = [e for e in self._expressions if not e.meta.is_column_selection()]
        fresh = derive_types(shown, schema, computed)
        by_name = {
            name: to_arrow_field(shown, name, dtype) for name, dtype in fresh.items()
        }
        if self._kind == "with_columns":
            names = [*schema.names, *(n for n in types.names() if n not in schema.names)]
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


@dataclass(frozen=True, slots=True)
class _Projection:
    schema: pa.Schema
    computed: tuple[pl.Expr, ...]
    input: ExpressionInput
    """The columns that the computed ones are made of."""
    computed_names: frozenset[str]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the projected rows, exactly of the schema."""
        if not self.computed:
            arrays = [batch.column(name) for name in self.schema.names]
            return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        fresh = self.input.frame(batch).select(self.computed)
        arrays = [
            _to_array(fresh.get_column(field.name), field.type, batch.num_rows)
            if field.name in self.computed_names
            else batch.column(field.name)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _serialized(expressions: Sequence[pl.Expr | str]) -> tuple[bytes, ...]:
    exprs = [pl.col(e) if isinstance(e, str) else e for e in expressions]
    return tuple(e.meta.serialize() for e in exprs)


def _to_array(column: pl.Series, data_type: pa.DataType, row_count: int) -> Any:
    if len(column) != row_count:  # a literal, for want of columns to be as long as
        column = column.new_from_index(0, row_count)
    array = column.to_arrow()
    return array if array.type.equals(data_type) else array.cast(data_type)


@dataclass(frozen=True, slots=True)
class FilterConfig:
    """The config of kind "filter"."""

    predicate: bytes
    """What `Expr.meta.serialize` gives."""


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """The config of kinds "select" and "with_columns"."""

    expressions: tuple[bytes, ...]
    """What `Expr.meta.serialize` gives, each."""


class FilterConstructor(OperatorConstructor[FilterConfig]):
    """Builds filters."""

    config_type = FilterConfig

    def with_config(self, config: FilterConfig, registry: Registry) -> ConstructedOperator:
        """Read the predicate."""
        del registry
        return ConstructedOperator(Filter(_read("filter", config.predicate)))


class ProjectConstructor(OperatorConstructor[ProjectConfig]):
    """Builds projections of one kind."""

    config_type = ProjectConfig

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def with_config(self, config: ProjectConfig, registry: Registry) -> ConstructedOperator:
        """Read the expressions."""
        del registry
        if not config.expressions:
            raise UserError(
                f"{self._kind} without an expression: name at least one column",
                code=ErrorCode.INVALID_CONFIG,
            )
        expressions = [_read(self._kind, data) for data in config.expressions]
        return ConstructedOperator(Project(self._kind, expressions))


def _read(kind: str, data: bytes) -> pl.Expr:
    try:
        return pl.Expr.deserialize(data)
    except (pl.exceptions.PolarsError, ValueError, TypeError) as error:
        raise UserError(
            f"an expression of {kind} cannot be read ({error}): it must come from "
            "Expr.meta.serialize of the same Polars version on driver and workers",
            code=ErrorCode.INVALID_CONFIG,
        ) from error
