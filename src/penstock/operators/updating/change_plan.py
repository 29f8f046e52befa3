"""ChangePlan: aggregates over a changelog, sorted by how each takes rows out again.

By arithmetic, where an aggregate has `unmerge`. All others keep values: those that read the
same columns of the same rows share a table of values with the number of rows that have each.

    way         of the values, after each epoch              such as
    first,last  only that end is read, and only if it is gone min, max, first, last, arg_min, arg_max
    distinct    none is read: only new and gone ones count    count_distinct
    all         all of each group that has changed            median, collect_list, aggregate_rows
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import polars as pl
import pyarrow as pa

from penstock.core.key_order import has_order
from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.errors import SchemaError
from penstock.operators.aggregates.aggregate import Aggregate, Kept
from penstock.operators.aggregates.compiled import AggregateConfig, CompiledAggregate
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.aggregates.frames import decoded
from penstock.operators.aggregates.functions import count
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.changes import check_change_unread
from penstock.operators.updating.combine import SIGN
from penstock.state.tables.column_groups import ColumnGroup, Meaning

Way: TypeAlias = Literal["first", "last", "distinct", "all"]
ROWS = f"{CHANGE_COLUMN}.count"
"""The column of the state with the number of a group's rows; no result is called `change`."""
GROUP = f"{CHANGE_COLUMN}.group"
"""The column with the place of a row's group among those that change in an epoch."""
COUNT = f"{CHANGE_COLUMN}.rows"
"""The column of the state with the number of rows that have a value."""


@dataclass(frozen=True, slots=True)
class KeptConfig:
    """One table of values, and the aggregates that are computed of them."""

    columns: tuple[str, ...]
    types: bytes
    """The columns as an Arrow schema in its IPC form."""
    aggregates: tuple[AggregateConfig, ...]
    ways: tuple[Way, ...]
    """How each of the aggregates looks at the values."""
    counts: bytes = b""
    """The rows that have such a value, as `Expr.meta.serialize` returns it; all rows without."""


@dataclass(frozen=True)
class ChangePlan:
    """All aggregates of a step over a changelog."""

    arithmetic: AggregatePlan
    """What needs no values; the count of rows is always among it."""
    kept: tuple[KeptConfig, ...]
    results: tuple[str, ...]
    """The results in the order in which the user wrote them."""
    values: tuple[str, ...]
    """The columns that the step reads, if it keeps values; none if it does not."""
    shown: str
    """The aggregates as the user writes them."""


def compile_changes(
    step: str,
    aggregates: Mapping[str, Any],
    stream: StreamSchema,
    *,
    taken: Collection[str] = (),
    keys: Collection[str] = (),
) -> ChangePlan:
    """Compile aggregates over a changelog, or raise with everything that is wrong with them."""
    plan = compile_aggregates(step, aggregates, stream, taken=taken, keys=keys)
    counted = compile_aggregates(step, {CHANGE_COLUMN: count()}, stream, keys=keys)
    arithmetic = [a for a in plan.aggregates if a.unmerged is not None]
    kept = [a for a in plan.aggregates if a.unmerged is None]
    tables: dict[tuple[tuple[str, ...], bytes], list[tuple[CompiledAggregate, Way]]] = {}
    # By name: the tables of values are numbered, and must not depend on what is written first.
    for compiled in sorted(kept, key=lambda a: a.result.name):
        name = compiled.result.name
        wanted = _kept_of(aggregates[name], compiled, stream)
        (own,) = compile_aggregates(step, {name: wanted.aggregate}, stream).aggregates
        own = replace(own, shown=compiled.shown, meaning=compiled.meaning)
        way: Way = wanted.end or ("distinct" if wanted.is_distinct else "all")
        where = (wanted.columns, wanted.counts.meta.serialize())
        tables.setdefault(where, []).append((own, way))
        _check_ordered(step, compiled, wanted.columns, stream)
    arithmetic.insert(0, _recording(counted.aggregates[0], plan))
    values = tuple(
        dict.fromkeys(
            (
                *(name for a in arithmetic for name in a.reads),
                *(name for columns, _ in tables for name in columns),
                *(name for a in kept for name in a.reads),
            )
        )
    )
    check_change_unread(repr(step), stream, [*keys, *values])
    _check_names(step, [*keys, *values])
    return ChangePlan(
        AggregatePlan(tuple(arithmetic)),
        tuple(
            KeptConfig(
                columns,
                _types_of(columns, stream).serialize().to_pybytes(),
                tuple(a.to_config() for a, _ in members),
                tuple(way for _, way in members),
                counts,
            )
            for (columns, counts), members in tables.items()
        ),
        tuple(a.result.name for a in plan.aggregates),
        values if tables else (),
        plan.display(),
    )


def _check_names(step: str, columns: Sequence[str]) -> None:
    """Refuse columns that are called as those which the step adds."""
    for name in columns:
        if name in (ROWS, GROUP, COUNT, SIGN):
            raise SchemaError(
                f"column {name!r} is called as one of the state of {step!r}, which follows a "
                "changelog: rename it before",
                operator=step,
                column=name,
            )


def _kept_of(
    aggregate: Aggregate, compiled: CompiledAggregate, stream: StreamSchema
) -> Kept:
    fitted = aggregate.for_stream(stream).for_changes()
    return fitted.kept() or Kept(compiled.reads, pl.lit(value=True), fitted)


def _types_of(columns: Sequence[str], stream: StreamSchema) -> pa.Schema:
    return pa.schema([decoded(stream.arrow).field(name) for name in columns])


def _check_ordered(
    step: str, compiled: CompiledAggregate, columns: Sequence[str], stream: StreamSchema
) -> None:
    """Refuse values that cannot be kept in order, which lists cannot."""
    for field in _types_of(columns, stream):
        if not has_order(field.type):
            raise SchemaError(
                f"{compiled.result.name}={compiled.shown} of {step!r} follows a changelog, so "
                f"its values are kept, and column {field.name!r} is {field.type}, which has no "
                "order: make text or a struct of it with with_columns before",
                operator=step,
                column=field.name,
            )


def _recording(counted: CompiledAggregate, plan: AggregatePlan) -> CompiledAggregate:
    """Return the count of rows with the meaning of the whole step.

    An aggregate cannot join later: rows from before it would be removed without having been
    added. So state goes on only if all aggregates are the same.
    """
    meanings = {a.result.name: a.meaning for a in plan.aggregates}
    outlines = ", ".join(f"{name}={m.outline}" for name, m in sorted(meanings.items()))
    printed = [m.expressions for _, m in sorted(meanings.items()) if m.expressions]
    dialects = {m.dialect for m in meanings.values() if m.dialect}
    meaning = Meaning(
        f"rows of a changelog with {outlines}", "; ".join(printed), "".join(dialects)
    )
    return replace(counted, meaning=meaning)


def stored_fields(aggregate: CompiledAggregate, way: Way) -> list["pa.Field[Any]"]:
    """Return the columns of the state: partials, or the result where values are read again."""
    if way != "all":
        return list(aggregate.partials)
    return [aggregate.result.with_name(f"{aggregate.result.name}.result")]


def stored_group(aggregate: CompiledAggregate, way: Way) -> ColumnGroup:
    """Return these columns as a group, whose meaning says that they are about a changelog."""
    schema = pa.schema(stored_fields(aggregate, way))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        row = [dict.fromkeys(schema.names)]
        writer.write_batch(pa.RecordBatch.from_pylist(row, schema=schema))
    own = aggregate.meaning
    meaning = Meaning(f"{own.outline} over a changelog", own.expressions, own.dialect)
    fill = sink.getvalue().to_pybytes()
    return ColumnGroup(
        aggregate.result.name, tuple(schema.names), meaning, fill, noun="aggregate"
    )
