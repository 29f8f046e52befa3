"""Combine: rows become partials before they are sent to the owner of their key.

An exchange then moves one row per key and epoch instead of one per row. Without state: what
it has taken it passes on in the same epoch.

The kinds "combine", "updating_aggregate" and "to_debezium" in a graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import stored_type
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier, Watermark
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.aggregates.aggregate import check_groupable, to_batch, to_frame
from penstock.operators.aggregates.compiling import (
    AggregateConfig,
    plan_from_config,
    plan_to_config,
)
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import OperatorContext
from penstock.operators.operator import ArrowOperator, DisplayableOperator
from penstock.operators.registry import ConstructedOperator, OperatorConstructor, Registry
from penstock.operators.updating.aggregate import Expiry, UpdatingAggregate
from penstock.operators.updating.changelog import ToDebeziumConstructor
from penstock.state.tables.specs import TimeDomain

_MAX_ROWS = 1_000_000
_MAX_BYTES = 256 * 1024 * 1024


def combine_spec(plan: AggregatePlan, keys: Sequence[str]) -> OperatorSpec:
    """Turn rows into partials by key, a row per key and epoch if they fit into memory."""
    return OperatorSpec(
        "combine", {"keys": tuple(keys), "aggregates": plan_to_config(plan)}
    )


def partial_schema(
    plan: AggregatePlan, keys: Sequence[str], stream: StreamSchema
) -> StreamSchema:
    """Return the stream of partials by key; encoded key columns hold their values instead."""
    fields = [stream.schema.field(name) for name in keys]
    plain = [field.with_type(stored_type(field.type)) for field in fields]
    return StreamSchema(pa.schema([*plain, *plan.partials]), None, tuple(keys))


class Combine(ArrowOperator):
    """Gathers an epoch's rows and emits their partials by key."""

    def __init__(self, plan: AggregatePlan, keys: Sequence[str]) -> None:
        self._plan = plan
        self._keys = tuple(keys)
        self._columns = tuple(dict.fromkeys((*keys, *plan.reads)))
        self._taken: list[pa.RecordBatch] = []
        self._row_count = 0
        self._size_bytes = 0

    @override
    def name(self) -> str:
        return "combine"

    @override
    def display(self) -> DisplayableOperator:
        fields = {"by": ", ".join(self._keys), "aggregates": self._plan.display()}
        return DisplayableOperator("combine", fields)

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        check_groupable(inputs[0].schema, self._keys)
        return partial_schema(self._plan, self._keys, inputs[0])

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Keep what is needed of some rows; combine them when they get many."""
        needed = batch.select(list(self._columns))
        self._taken.append(needed)
        self._row_count += needed.num_rows
        self._size_bytes += needed.nbytes
        if self._row_count >= _MAX_ROWS or self._size_bytes >= _MAX_BYTES:
            self._emit(ctx, collector)

    @override
    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark:
        """Emit before the watermark passes: what follows may act on it."""
        self._emit(ctx, collector)
        return watermark

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit what came without a watermark or behind it."""
        self._emit(ctx, collector)

    def _emit(self, ctx: OperatorContext, collector: ArrowCollector) -> None:
        if not self._taken:
            return
        rows = to_frame(self._taken, self._columns)
        self._taken, self._row_count, self._size_bytes = [], 0, 0
        partials = self._plan.partials_of(rows, self._keys)
        (output,) = ctx.outputs.values()
        collector.collect(to_batch(partials, output.schema))


@dataclass(frozen=True, slots=True)
class CombineConfig:
    """The config of kind "combine"."""

    keys: tuple[str, ...]
    aggregates: tuple[AggregateConfig, ...]


class CombineConstructor(OperatorConstructor[CombineConfig]):
    """Builds combiners."""

    config_type = CombineConfig

    @override
    def with_config(self, config: CombineConfig, registry: Registry) -> ConstructedOperator:
        if not config.keys:
            raise UserError(
                "combine without a key: name at least one column",
                code=ErrorCode.INVALID_CONFIG,
            )
        return ConstructedOperator(
            Combine(plan_from_config(config.aggregates), config.keys)
        )


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

    @override
    def with_config(
        self, config: UpdatingAggregateConfig, registry: Registry
    ) -> ConstructedOperator:
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
