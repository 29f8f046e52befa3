"""How `key_by(…).aggregate(…)` becomes operators: rows are combined, sent by key and kept."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.api.graph_builder import GraphBuilder, Port
from penstock.core.duration import DurationLike, to_micros
from penstock.errors import SchemaError
from penstock.graph.logical import Exchange
from penstock.operators.aggregates.compiling import compile_aggregates
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.updating.changelog import AFTER, BEFORE, OP
from penstock.operators.updating.combine import combine_spec
from penstock.operators.updating.expiry import Expiry
from penstock.operators.updating.kinds import updating_aggregate_spec
from penstock.state.tables.specs import TimeDomain


def add_updating_aggregate(
    builder: GraphBuilder,
    keyed: Port,
    name: str,
    aggregates: Mapping[str, Any],
    *,
    ttl: DurationLike | None,
    ttl_domain: TimeDomain | None,
    parallelism: int | None,
) -> Port:
    """Add both operators behind a keyed stream; return the changelog."""
    operator = builder.claim(name)
    ttl_micros = expiry = None
    with builder.problems.noting():
        ttl_micros = None if ttl is None else to_micros(ttl, "ttl")
    stream, keys = keyed.schema, keyed.schema.key_columns
    if ttl_micros is not None:
        with builder.problems.noting():
            expiry = Expiry.of(ttl_micros, ttl_domain, stream)
    taken = (*keys, OP, BEFORE, AFTER)
    plan = compile_aggregates(name, aggregates, stream, taken=taken)
    if expiry is not None and (hidden := expiry.hidden_aggregates(stream)):
        kept = compile_aggregates(name, hidden, stream)
        plan = AggregatePlan((*plan.aggregates, *kept.aggregates))
    clashes = set(keys) & {field.name for field in plan.partials}
    if clashes:
        raise SchemaError(
            f"{name!r}: key columns {sorted(clashes)} are called like columns of its state: "
            "rename the results",
            operator=name,
        )
    whole = replace(keyed, exchange=Exchange.FORWARD, schema=stream.keyed_by())
    combined = builder.add_step(
        builder.name_for("combine"), combine_spec(plan, keys), [whole]
    )
    partials = builder.port(combined).sent_by(keys)
    spec = updating_aggregate_spec(plan, partials.schema, expiry)
    builder.place(operator, spec, [partials], parallelism=parallelism)
    return builder.port(operator)
