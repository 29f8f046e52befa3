"""The kinds "combine", "updating_aggregate" and "to_debezium" in a graph."""

from dataclasses import dataclass
from typing import Literal

from penstock.core.schema import StreamSchema
from penstock.graph.logical import OperatorSpec
from penstock.operators.aggregates.compiling import (
    AggregateConfig,
    plan_from_config,
    plan_to_config,
)
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.registry import ConstructedOperator, OperatorConstructor, Registry
from penstock.operators.updating.aggregate import UpdatingAggregate
from penstock.operators.updating.combine import CombineConstructor
from penstock.operators.updating.debezium import ToDebeziumConstructor
from penstock.operators.updating.expiry import Expiry
from penstock.state.tables.specs import TimeDomain


def updating_aggregate_spec(
    plan: AggregatePlan, partials: StreamSchema, expiry: Expiry | None = None
) -> OperatorSpec:
    """Keep partials by key, as `combine` emits them, and emit results that change."""
    return OperatorSpec(
        "updating_aggregate",
        {
            "partials": partials.to_bytes(),
            "aggregates": plan_to_config(plan),
            "ttl_micros": None if expiry is None else expiry.micros,
            "ttl_domain": "event-time" if expiry is None else expiry.domain.value,
        },
    )


@dataclass(frozen=True, slots=True)
class UpdatingAggregateConfig:
    """The config of kind "updating_aggregate"."""

    partials: bytes
    """What `StreamSchema.to_bytes` gives of the input."""
    aggregates: tuple[AggregateConfig, ...]
    ttl_micros: int | None = None
    ttl_domain: Literal["event-time", "processing-time"] = "event-time"


class UpdatingAggregateConstructor(OperatorConstructor[UpdatingAggregateConfig]):
    """Builds updating aggregates."""

    config_type = UpdatingAggregateConfig

    def with_config(
        self, config: UpdatingAggregateConfig, registry: Registry
    ) -> ConstructedOperator:
        """Read plan and schema."""
        del registry
        expiry = None
        if config.ttl_micros is not None:
            expiry = Expiry(config.ttl_micros, TimeDomain(config.ttl_domain))
        plan = plan_from_config(config.aggregates)
        partials = StreamSchema.from_bytes(config.partials)
        return ConstructedOperator(UpdatingAggregate(plan, partials, expiry))


def register_updating(registry: Registry) -> None:
    """Add the kinds of this package."""
    registry.add("combine", CombineConstructor())
    registry.add("updating_aggregate", UpdatingAggregateConstructor())
    registry.add("to_debezium", ToDebeziumConstructor())
