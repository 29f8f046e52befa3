"""Combine: makes partials of rows before they are sent to the owner of their key.

An exchange then moves one row per key and epoch instead of one per row. The operator has no
state: it emits the partials of an epoch's rows in the same epoch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import stored_type
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier, Watermark
from penstock.graph.logical import MAIN, OperatorSpec
from penstock.operators.aggregates.compiled import AggregateConfig
from penstock.operators.aggregates.frames import (
    ALL_ROWS,
    KEY_OF_ALL_ROWS,
    check_groupable,
    columns_to_frame,
    to_batch,
)
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.updating.lifetimes import Expiry, partials_of_lives
from penstock.state.tables.specs import TimeDomain

_MAX_ROWS = 1_000_000
_MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CombineConfig(OperatorConfig):
    """The config of combiners."""

    kind: ClassVar[str] = "combine"

    keys: tuple[str, ...]
    """The columns that partials are made by; none for one row of partials of all rows."""
    aggregates: tuple[AggregateConfig, ...]
    ttl_micros: int | None = None
    """With it, rows of a key that are so far apart by event time have partials of their own."""
    time: str = ""
    """The column of event times, if there is a time to live by it."""

    @override
    def shown(self) -> Mapping[str, str]:
        plan = AggregatePlan.from_config(self.aggregates)
        by = {"by": ", ".join(self.keys)} if self.keys else {}
        return {**by, "aggregates": plan.display()}


def combine_spec(
    plan: AggregatePlan,
    keys: Sequence[str],
    expiry: Expiry | None = None,
    time: str | None = None,
) -> OperatorSpec:
    """Turn rows into partials by key, one per key and epoch if the rows fit into memory."""
    config = CombineConfig(tuple(keys), plan.to_config())
    if expiry is not None and expiry.by_event_time and time is not None:
        config = replace(config, ttl_micros=expiry.micros, time=time)
    return config.to_operator_spec()


def partial_schema(
    plan: AggregatePlan, keys: Sequence[str], stream: StreamSchema
) -> StreamSchema:
    """Return the schema of partials by key; dictionary-encoded keys are decoded in it.

    Partials of all rows have a key column that is the same for all of them.
    """
    if not keys:
        only = pa.field(ALL_ROWS, pa.int64())
        return StreamSchema(pa.schema([only, *plan.partials]), None, (ALL_ROWS,))
    fields = [stream.arrow.field(name) for name in keys]
    plain = [field.with_type(stored_type(field.type)) for field in fields]
    return StreamSchema(pa.schema([*plain, *plan.partials]), None, tuple(keys))


class Combine(Configured[CombineConfig], ArrowOperator):
    """Gathers an epoch's rows and emits their partials by key."""

    def __init__(self, config: CombineConfig) -> None:
        super().__init__(config)
        self._keys = config.keys
        self._plan = AggregatePlan.from_config(config.aggregates)
        self._expiry: Expiry | None = None
        if config.ttl_micros is not None:
            self._expiry = Expiry(config.ttl_micros, TimeDomain.EVENT_TIME)
        self._columns = tuple(dict.fromkeys((*self._keys, *self._plan.reads)))
        self._taken: list[pa.RecordBatch] = []
        self._row_count = 0
        self._size_bytes = 0

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        check_groupable(inputs[0].arrow, self._keys)
        return partial_schema(self._plan, self._keys, inputs[0])

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Keep the columns that are read; combine the rows when there are many."""
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
        """Emit the partials before the watermark, because later operators may act on it."""
        self._emit(ctx, collector)
        return watermark

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the rest: rows of an epoch without a watermark, or that came behind it."""
        self._emit(ctx, collector)

    def _emit(self, ctx: OperatorContext, collector: ArrowCollector) -> None:
        if not self._taken:
            return
        rows = columns_to_frame(self._taken, self._columns)
        self._taken, self._row_count, self._size_bytes = [], 0, 0
        if self._expiry is None:
            partials = self._plan.partials_of(rows, self._keys)
        else:
            time = self.config.time
            partials = partials_of_lives(self._plan, rows, self._keys, time, self._expiry)
        if not self._keys:
            only = pl.lit(KEY_OF_ALL_ROWS, pl.Int64).alias(ALL_ROWS)
            partials = partials.with_columns(only)
        collector.collect(to_batch(partials, ctx.outputs[MAIN].arrow))
