"""Aggregates of one step → plan → config: all their problems are reported at once.

A plan travels in a graph as plain data: fields as Arrow writes them, expressions as Polars
does. Workers need neither the aggregates nor the schema of the stream.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import Plain
from penstock.operators.aggregates.aggregate import Aggregate, refuse_non_aggregate
from penstock.operators.aggregates.plan import (
    AggregatePlan,
    CompiledAggregate,
    Reduction,
    read_kind,
)


def compile_aggregates(
    step: str,
    aggregates: Mapping[str, Any],
    stream: StreamSchema,
    *,
    taken: Collection[str] = (),
) -> AggregatePlan:
    """Compile what a step computes, or raise with everything that is wrong with any of it.

    Values that are no aggregates are among the problems. `taken` are columns of the output
    that are no results: no result may have their name.
    """
    problems = []
    compiled = []
    for name, aggregate in aggregates.items():
        if name in taken:
            problems.append(f"{name}: the output has a column of that name already")
        if not isinstance(aggregate, Aggregate):
            problems.append(refuse_non_aggregate(name, aggregate).message)
            continue
        try:
            compiled.append(aggregate.compile(name, stream))
        except UserError as error:
            problems.append(f"{name}: {error.message}")
    if not aggregates:
        problems.append("it computes nothing: name at least one, such as total=ps.sum('x')")
    if problems:
        raise SchemaError(
            f"the aggregates of {step!r} cannot be computed:\n  " + "\n  ".join(problems),
            operator=step,
        )
    return AggregatePlan(tuple(compiled))


@dataclass(frozen=True, slots=True)
class AggregateConfig:
    """One compiled aggregate in the config of an operator."""

    shown: str
    reads: tuple[str, ...]
    fields: bytes
    """The result, then the partials: an Arrow schema in its IPC form."""
    from_rows: tuple[bytes, ...]
    """What `Expr.meta.serialize` gives, each; also below."""
    from_partials: tuple[bytes, ...]
    finish: bytes
    from_pair: tuple[bytes, ...] | None = None
    reductions: tuple[tuple[str, str | None], ...] | None = None
    """Kind and column of each."""


def plan_to_config(plan: AggregatePlan) -> tuple[Plain, ...]:
    """Return what `plan_from_config` reads, as the config of an operator."""
    return tuple(
        {
            "shown": a.shown,
            "reads": a.reads,
            "fields": pa.schema([a.result, *a.partials]).serialize().to_pybytes(),
            "from_rows": tuple(e.meta.serialize() for e in a.from_rows),
            "from_partials": tuple(e.meta.serialize() for e in a.from_partials),
            "finish": a.finish.meta.serialize(),
            "from_pair": _serialized(a.from_pair),
            "reductions": None if a.reductions is None else tuple(map(tuple, a.reductions)),
        }
        for a in plan.aggregates
    )


def plan_from_config(configs: Sequence[AggregateConfig]) -> AggregatePlan:
    """Return the plan that went into a config."""
    return AggregatePlan(tuple(map(_read, configs)))


def _serialized(expressions: Sequence[pl.Expr] | None) -> tuple[bytes, ...] | None:
    if expressions is None:
        return None
    return tuple(e.meta.serialize() for e in expressions)


def _reduction(config: tuple[str, str | None]) -> Reduction:
    kind, column = config
    return Reduction(read_kind(kind), column)


def _read(config: AggregateConfig) -> CompiledAggregate:
    try:
        result, *partials = pa.ipc.read_schema(pa.py_buffer(config.fields))
        return CompiledAggregate(
            result,
            config.reads,
            tuple(partials),
            tuple(map(pl.Expr.deserialize, config.from_rows)),
            tuple(map(pl.Expr.deserialize, config.from_partials)),
            pl.Expr.deserialize(config.finish),
            config.shown,
            None
            if config.from_pair is None
            else tuple(map(pl.Expr.deserialize, config.from_pair)),
            None
            if config.reductions is None
            else tuple(map(_reduction, config.reductions)),
        )
    except (pl.exceptions.PolarsError, pa.ArrowException, ValueError, TypeError) as error:
        raise UserError(
            f"the aggregate {config.shown} cannot be read ({error}): it must come from the "
            "same versions of Polars and Arrow on driver and workers",
            code=ErrorCode.INVALID_CONFIG,
        ) from error
