"""Combine: makes partials of rows before they are sent to the owner of their key.

An exchange then moves one row per key and epoch instead of one per row. The operator has no
state: it emits the partials of an epoch's rows in the same epoch.

Of a changelog it makes partials by key and sign. Where values are kept, which partials do not
tell, it emits the different rows with their signs added up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import stored_type
from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.core.watermark import CheckpointBarrier, Watermark
from penstock.graph.logical import MAIN, OperatorSpec
from penstock.operators.aggregates.compiled import AggregateConfig
from penstock.operators.aggregates.frames import (
    ALL_ROWS,
    KEY_OF_ALL_ROWS,
    check_groupable,
    columns_to_frame,
    decoded,
    to_batch,
)
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.changes import are_added
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.updating.lifetimes import Expiry, partials_of_lives
from penstock.state.tables.specs import TimeDomain

_MAX_ROWS = 1_000_000
_MAX_BYTES = 256 * 1024 * 1024
SIGN = f"{CHANGE_COLUMN}.sign"
"""The column that says how often partials or values are added; below 0 they are removed."""


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
    is_signed: bool = False
    """Whether rows are changes, and the sign of each partial is in a column of its own."""
    values: tuple[str, ...] = ()
    """The columns that are sent instead of partials, if there are any."""

    @override
    def shown(self) -> Mapping[str, str]:
        plan = AggregatePlan.from_config(self.aggregates).without(CHANGE_COLUMN)
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


def combine_changes_spec(
    plan: AggregatePlan, keys: Sequence[str], values: Sequence[str]
) -> OperatorSpec:
    """Turn changes into partials by key and sign, or into rows of these values with a sign."""
    config = CombineConfig(
        tuple(keys), plan.to_config(), is_signed=True, values=tuple(values)
    )
    return config.to_operator_spec()


def signed_schema(
    plan: AggregatePlan, keys: Sequence[str], values: Sequence[str], stream: StreamSchema
) -> StreamSchema:
    """Return the schema of partials, or of values, that are added or removed."""
    partials = partial_schema(plan, keys, stream)
    by = [partials.arrow.field(name) for name in partials.key_columns]
    sent: Sequence[pa.Field[Any]] = plan.partials
    if values:
        sent = [f for f in decoded(stream.arrow) if f.name in values and f.name not in keys]
    fields = pa.schema([*by, pa.field(SIGN, pa.int64()), *sent])
    return StreamSchema(fields, None, partials.key_columns)


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
        reads = config.values or self._plan.reads
        signed = (CHANGE_COLUMN,) if config.is_signed else ()
        self._columns = tuple(dict.fromkeys((*self._keys, *reads, *signed)))
        self._taken: list[pa.RecordBatch] = []
        self._row_count = 0
        self._size_bytes = 0

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        values = self.config.values
        check_groupable(inputs[0].arrow, tuple(dict.fromkeys((*self._keys, *values))))
        if self.config.is_signed:
            return signed_schema(self._plan, self._keys, values, inputs[0])
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
        if self.config.is_signed:
            added: Any = are_added(pa.Table.from_batches(self._taken))
            is_added = pl.Series(added.to_numpy())
            sign = pl.when(is_added).then(pl.lit(1, pl.Int64)).otherwise(-1).alias(SIGN)
            rows = rows.drop(CHANGE_COLUMN).with_columns(sign)
        self._taken, self._row_count, self._size_bytes = [], 0, 0
        if self.config.values:
            names = [name for name in rows.columns if name != SIGN]
            net = rows.group_by(names).agg(pl.col(SIGN).sum())
            partials = net.filter(pl.col(SIGN) != 0)
        elif self.config.is_signed:
            partials = self._plan.partials_of(rows, [*self._keys, SIGN])
        elif self._expiry is None:
            partials = self._plan.partials_of(rows, self._keys)
        else:
            time = self.config.time
            partials = partials_of_lives(self._plan, rows, self._keys, time, self._expiry)
        if not self._keys:
            only = pl.lit(KEY_OF_ALL_ROWS, pl.Int64).alias(ALL_ROWS)
            partials = partials.with_columns(only)
        collector.collect(to_batch(partials, ctx.outputs[MAIN].arrow))
