"""UpdatingAggregate: keeps the partials of every key, and emits results that have changed.

The partials of an epoch are gathered; then the state of all their keys is looked up, merged
with them and put back, each once. The operator emits one change per key and epoch, and none
if the results are as before.

With a time to live, a key expires that long after its last row. By event time the last row is
the one with the latest event time, kept as a partial like any aggregate; by processing time it
is the time of the last epoch that brought rows. A timer is set when a key is new. When it
fires, the key is deleted or, if rows came meanwhile, the timer is set again. By event time the
rows of an epoch come before its watermark and may keep a key; by processing time they come at
the epoch's instant, when the key is deleted already, and insert the key again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import to_micros_within_reach
from penstock.core.key_hash import hash_keys
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_MICROS, CheckpointBarrier, Watermark
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import MAIN, OperatorSpec
from penstock.operators.aggregates.aggregate import Aggregate
from penstock.operators.aggregates.compiled import AggregateConfig
from penstock.operators.aggregates.frames import ALL_ROWS, columns_to_frame, to_batch
from penstock.operators.aggregates.functions import Max
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.expressions import to_array
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.timers import DueTimers, Timers
from penstock.operators.updating.changelog import changelog_schema, to_changes
from penstock.state.tables.sorted_rows import Flags, stable_order
from penstock.state.tables.specs import TableSpec, TimeDomain, keyed_table

RESULT = "ttl"
"""The aggregate that keeps the latest event time; no result of a user can have this name."""
LAST_SEEN = f"{RESULT}.value"
"""The column of the state with the time of a key's last row."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """The time after which a key without rows is deleted, and the clock that measures it."""

    micros: int
    domain: TimeDomain

    def __post_init__(self) -> None:
        if not 0 < self.micros <= MAX_MICROS:
            raise UserError(
                f"a ttl of {self.micros} microseconds is not possible: it must be positive. "
                "Leave it out for results that are kept forever",
                code=ErrorCode.INVALID_NUMBER,
            )

    @classmethod
    def of(cls, micros: int, domain: TimeDomain | None, stream: StreamSchema) -> "Expiry":
        """Choose event time for a stream that has it, unless a time domain is given."""
        has_time = stream.time_column is not None
        if domain is None:
            domain = TimeDomain.EVENT_TIME if has_time else TimeDomain.PROCESSING_TIME
        if domain is TimeDomain.EVENT_TIME and not has_time:
            raise SchemaError(
                "ttl by event time needs a stream with event times: name its timestamp column in "
                "Pipeline.read as event_time, or take TimeDomain.PROCESSING_TIME"
            )
        return cls(micros, domain)

    def hidden_aggregates(self, stream: StreamSchema) -> dict[str, Aggregate]:
        """Return the aggregates that must be kept besides the user's own."""
        if self.domain is TimeDomain.PROCESSING_TIME or stream.time_column is None:
            return {}
        return {RESULT: Max(stream.time_column)}

    def now_micros(self, ctx: OperatorContext) -> int | None:
        """Return the time by the clock; None while nothing can expire.

        The end of data does not count as time that passes: keys that are there then stay.
        """
        if self.domain is TimeDomain.PROCESSING_TIME:
            return ctx.processing_time_micros
        watermark = ctx.watermark
        if watermark is None or watermark.micros >= MAX_MICROS:
            return None
        return watermark.micros

    def due_micros(self, last_seen: Any) -> npt.NDArray[np.int64]:
        """Return when keys last seen at some instants expire; null is never."""
        if isinstance(last_seen, pa.ChunkedArray):
            last_seen = last_seen.combine_chunks()
        # Sums of arrays wrap around, unlike integers of Python: this keeps them in range.
        micros = to_micros_within_reach(last_seen)
        due = np.minimum(micros, MAX_MICROS - self.micros) + self.micros
        due[last_seen.is_null().to_numpy(zero_copy_only=False)] = MAX_MICROS
        return np.asarray(due, np.int64)


TABLE = "partials"


@dataclass(frozen=True, slots=True)
class UpdatingAggregateConfig(OperatorConfig):
    """The config of updating aggregates."""

    kind: ClassVar[str] = "updating_aggregate"

    partials: bytes
    """The input's schema, as `StreamSchema.to_bytes` returns it."""
    aggregates: tuple[AggregateConfig, ...]
    ttl_micros: int | None = None
    ttl_domain: Literal["event-time", "processing-time"] = "event-time"

    def expiry(self) -> Expiry | None:
        """Return when keys are deleted; None for never."""
        if self.ttl_micros is None:
            return None
        return Expiry(self.ttl_micros, TimeDomain(self.ttl_domain))

    @override
    def shown(self) -> Mapping[str, str]:
        plan = AggregatePlan.from_config(self.aggregates).without(RESULT)
        keys = StreamSchema.from_bytes(self.partials).key_columns
        shown = {} if keys == (ALL_ROWS,) else {"by": ", ".join(keys)}
        shown["aggregates"] = plan.display()
        if self.ttl_micros is not None:
            shown["ttl"] = f"{self.ttl_micros / 1e6:g}s by {self.ttl_domain}"
        return shown


def updating_aggregate_spec(
    plan: AggregatePlan, partials: StreamSchema, expiry: Expiry | None = None
) -> OperatorSpec:
    """Keep partials by key, as `combine` emits them, and emit results that change."""
    ttl: dict[str, Any] = {}
    if expiry is not None:
        ttl = {"ttl_micros": expiry.micros, "ttl_domain": expiry.domain.value}
    config = UpdatingAggregateConfig(partials.to_bytes(), plan.to_config(), **ttl)
    return config.to_operator_spec()


class UpdatingAggregate(Configured[UpdatingAggregateConfig], ArrowOperator):
    """Merges partials into a `KeyedTable` and emits a changelog of the results."""

    def __init__(self, config: UpdatingAggregateConfig) -> None:
        super().__init__(config)
        partials = StreamSchema.from_bytes(config.partials)
        self._plan = plan = AggregatePlan.from_config(config.aggregates)
        self._expiry = config.expiry()
        self._keys = pa.schema([partials.arrow.field(n) for n in partials.key_columns])
        self._partials = pa.schema(list(plan.partials))
        self._stored = pa.schema([*self._keys, *self._partials])
        if self._expiry is not None and LAST_SEEN not in self._partials.names:
            self._stored = self._stored.append(pa.field(LAST_SEEN, pa.timestamp("us")))
        self._results = list(plan.without(RESULT).results)
        self._taken: list[pa.RecordBatch] = []

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        keys = [field for field in self._keys if field.name != ALL_ROWS]
        return changelog_schema(keys, self._results)

    @override
    def tables(self) -> Sequence[TableSpec]:
        return [
            keyed_table(
                TABLE,
                self._stored,
                key_columns=self._keys.names,
                description=self._plan.display(),
                groups=self._plan.groups,
            )
        ]

    @override
    def timers(self) -> Collection[TimeDomain]:
        return () if self._expiry is None else (self._expiry.domain,)

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self._taken.append(batch)

    @override
    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark:
        """Merge the rows so far if keys expire by event time, so that rows keep their keys."""
        if self._expiry is not None and self._expiry.domain is TimeDomain.EVENT_TIME:
            self._update(ctx, collector)
        return watermark

    @override
    def handle_timers(
        self, due: DueTimers, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Delete the keys without rows for long enough; set another timer for the others."""
        if self._expiry is None or (now := self._expiry.now_micros(ctx)) is None:
            return
        table = ctx.get_keyed_state(TABLE)
        keys = to_batch(columns_to_frame([due.keys], self._keys.names).unique(), self._keys)
        known = table.get(keys)
        alive_until = self._expiry.due_micros(known.rows.column(LAST_SEEN))
        is_due = known.found & (alive_until <= now)
        is_later = known.found & ~is_due
        self._timers_in(ctx).set(keys.filter(pa.array(is_later)), alive_until[is_later])
        expired = keys.filter(pa.array(is_due))
        if expired.num_rows == 0:
            return
        rows = columns_to_frame([known.rows.filter(pa.array(is_due))], self._partials.names)
        before = self._struct(self._plan.results_of(rows, ()), None)
        after = pa.nulls(expired.num_rows, before.type)
        collector.collect(to_changes(ctx.outputs[MAIN].arrow, expired, before, after))
        table.delete(expired)
        ctx.count("expired_keys", expired.num_rows)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Merge the epoch's partials into the state."""
        self._update(ctx, collector)

    def _update(self, ctx: OperatorContext, collector: ArrowCollector) -> None:
        if not self._taken:
            return
        names = [*self._keys.names, *self._partials.names]
        taken, self._taken = columns_to_frame(self._taken, names), []
        news = self._plan.merge(taken, self._keys.names)
        # Sorted by key hash once, so that neither the lookup nor the write has to sort.
        hashed = [to_array(news.get_column(f.name), f.type) for f in self._keys]
        news = news.select(pl.all().gather(stable_order(hash_keys(hashed))))
        keys = to_batch(news, self._keys)
        table = ctx.get_keyed_state(TABLE)
        known = table.get(keys, columns=self._partials.names)
        state = columns_to_frame([known.rows], self._partials.names)
        merged = self._plan.merge_pairs(news, state)
        columns: list[Any] = [*keys.columns, *to_batch(merged, self._partials).columns]
        if len(columns) < len(self._stored):
            now = np.full(keys.num_rows, ctx.processing_time_micros, np.int64)
            columns.append(pa.array(now).view(pa.timestamp("us")))
        stored = pa.RecordBatch.from_arrays(columns, schema=self._stored)
        table.put(stored)
        if self._expiry is not None:
            is_unarmed = ~known.found
            if LAST_SEEN in state.columns:
                # A key without an event time so far has a timer that never fires.
                is_unarmed |= state.get_column(LAST_SEEN).is_null().to_numpy()
            if is_unarmed.any():
                unarmed = stored.filter(pa.array(is_unarmed))
                due = self._expiry.due_micros(unarmed.column(LAST_SEEN))
                self._timers_in(ctx).set(unarmed.select(self._keys.names), due)
        self._emit(keys, (state, merged), known.found, ctx, collector)

    def _emit(
        self,
        keys: pa.RecordBatch,
        states: tuple[pl.DataFrame, pl.DataFrame],
        found: Flags,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Emit the changes of results between two states; new keys have no first state."""
        before, after = (self._plan.results_of(state, ()) for state in states)
        changed = ~found
        for field in self._results:
            was, now = before.get_column(field.name), after.get_column(field.name)
            changed |= was.ne_missing(now).to_numpy()
        if not changed.all():
            picked = pl.Series(changed)
            before, after = before.filter(picked), after.filter(picked)
            keys, found = keys.filter(picked.to_arrow()), found[changed]
        rows = self._struct(before, found), self._struct(after, None)
        collector.collect(to_changes(ctx.outputs[MAIN].arrow, keys, *rows))

    def _struct(self, results: pl.DataFrame, found: Any) -> "pa.StructArray":
        """Return results as one column, null where there are none."""
        arrays = [to_array(results.get_column(f.name), f.type) for f in self._results]
        mask = None if found is None or found.all() else pa.array(~found)
        return pa.StructArray.from_arrays(arrays, fields=self._results, mask=mask)

    def _timers_in(self, ctx: OperatorContext) -> Timers:
        is_event_time = self.timers() == (TimeDomain.EVENT_TIME,)
        return ctx.event_timers if is_event_time else ctx.processing_timers
