"""UpdatingAggregate: keeps the partials of every key, and emits results that have changed.

The partials of an epoch are gathered; then the state of all their keys is looked up, merged
with them and put back, each once. A change is emitted per key and epoch, none if its results
are as before.

With a time to live a timer is set when a key is new. When it fires, the key is deleted or,
if rows came meanwhile, the timer is set again. By event time the rows of an epoch come before
its watermark and may keep a key alive; by processing time they come at the epoch's instant,
when the key is gone already, and start anew.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.core.key_hash import hash_keys
from penstock.core.schema import StreamSchema
from penstock.core.signals import CheckpointBarrier, Watermark
from penstock.operators.aggregates.frames import to_array, to_batch, to_frame
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import OperatorContext
from penstock.operators.display import DisplayableOperator
from penstock.operators.operator import ArrowOperator
from penstock.operators.timers import DueTimers, Timers
from penstock.operators.updating.changelog import changelog_schema, to_changes
from penstock.operators.updating.expiry import LAST_SEEN, RESULT, Expiry
from penstock.state.tables.hash_order import stable_order
from penstock.state.tables.keyed_view import Flags
from penstock.state.tables.specs import TableSpec, TimeDomain, keyed_table

TABLE = "partials"


class UpdatingAggregate(ArrowOperator):
    """Merges partials into a `KeyedTable` and emits a changelog of the results."""

    def __init__(
        self, plan: AggregatePlan, partials: StreamSchema, expiry: Expiry | None = None
    ) -> None:
        """Take the stream of partials as `combine` emits it."""
        self._plan = plan
        self._expiry = expiry
        self._keys = pa.schema([partials.schema.field(n) for n in partials.key_columns])
        self._partials = pa.schema(list(plan.partials))
        self._results = [field for field in plan.results if field.name != RESULT]
        self._taken: list[pa.RecordBatch] = []

    def name(self) -> str:
        """Return the kind."""
        return "updating_aggregate"

    def display(self) -> DisplayableOperator:
        """Show the key and the aggregates."""
        asked = AggregatePlan(
            tuple(a for a in self._plan.aggregates if a.result.name != RESULT)
        )
        shown = {"by": ", ".join(self._keys.names), "aggregates": asked.display()}
        if self._expiry is not None:
            shown["ttl"] = f"{self._expiry.micros / 1e6:g}s by {self._expiry.domain.value}"
        return DisplayableOperator(self.name(), shown)

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the changelog."""
        del inputs
        return changelog_schema(list(self._keys), self._results)

    def tables(self) -> Sequence[TableSpec]:
        """Keep the partials of every key."""
        return [
            keyed_table(
                TABLE,
                self._stored(),
                key_columns=self._keys.names,
                description=self._plan.display(),
            )
        ]

    def timers(self) -> Collection[TimeDomain]:
        """Use timers only for a time to live."""
        return () if self._expiry is None else (self._expiry.domain,)

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Gather partials."""
        del ctx, collector
        self._taken.append(batch)

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark:
        """Let rows keep their keys alive, if it is event time that ends them."""
        if self._expiry is not None and self._expiry.domain is TimeDomain.EVENT_TIME:
            self._update(ctx, collector)
        return watermark

    def handle_timers(
        self, due: DueTimers, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Delete the keys that were not seen for long enough; look at the others again later."""
        if self._expiry is None or (now := self._expiry.now_micros(ctx)) is None:
            return
        table = ctx.get_keyed_state(TABLE)
        keys = to_batch(to_frame([due.keys], self._keys.names).unique(), self._keys)
        known = table.get(keys)
        alive_until = self._expiry.due_micros(known.rows.column(LAST_SEEN))
        is_due = known.found & (alive_until <= now)
        is_later = known.found & ~is_due
        timers = self._timers_in(ctx)
        timers.set(keys.filter(pa.array(is_later)), alive_until[is_later])
        expired = keys.filter(pa.array(is_due))
        if expired.num_rows == 0:
            return
        before = self._to_rows(known.rows.filter(pa.array(is_due)))
        after = pa.nulls(expired.num_rows, before.type)
        collector.collect(to_changes(_output(ctx), expired, before, after))
        table.delete(expired)
        ctx.count("expired_keys", expired.num_rows)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Merge the epoch's partials into the state."""
        del barrier
        self._update(ctx, collector)

    def _update(self, ctx: OperatorContext, collector: ArrowCollector) -> None:
        if not self._taken:
            return
        columns = [*self._keys.names, *self._partials.names]
        taken, self._taken = to_frame(self._taken, columns), []
        news = self._in_order(self._plan.merge(taken, self._keys.names))
        keys = to_batch(news, self._keys)
        table = ctx.get_keyed_state(TABLE)
        known = table.get(keys, columns=self._partials.names)
        state = to_frame([known.rows], self._partials.names)
        merged = self._plan.merge_pairs(news, state)
        table.put(self._to_stored(keys, merged, ctx))
        if self._expiry is not None:
            is_unarmed = ~known.found
            if LAST_SEEN in state.columns:
                # Without a time so far, its timer waits for ever.
                is_unarmed |= state.get_column(LAST_SEEN).is_null().to_numpy()
            self._arm(keys, merged, ctx, is_unarmed)
        self._emit(keys, (state, merged), known.found, ctx, collector)

    def _in_order(self, news: pl.DataFrame) -> pl.DataFrame:
        """Sort by key hash once, so that neither looking up nor writing has to."""
        columns = [to_array(news.get_column(f.name), f.type) for f in self._keys]
        order = stable_order(hash_keys(columns))
        return news.select(pl.all().gather(order))

    def _emit(
        self,
        keys: pa.RecordBatch,
        states: tuple[pl.DataFrame, pl.DataFrame],
        found: Flags,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Emit how results went from one state to the other; those of new keys from nothing."""
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
        collector.collect(to_changes(_output(ctx), keys, *rows))

    def _to_rows(self, state: pa.RecordBatch) -> "pa.StructArray":
        """Return the results of rows of the table."""
        frame = to_frame([state], self._partials.names)
        return self._struct(self._plan.results_of(frame, ()), None)

    def _struct(self, results: pl.DataFrame, found: Any) -> "pa.StructArray":
        """Return results as one column, null where there are none."""
        arrays = [to_array(results.get_column(f.name), f.type) for f in self._results]
        mask = None if found is None or found.all() else pa.array(~found)
        return pa.StructArray.from_arrays(arrays, fields=self._results, mask=mask)

    def _stored(self) -> pa.Schema:
        columns = [*self._keys, *self._partials]
        if self._expiry is not None and LAST_SEEN not in self._partials.names:
            columns.append(pa.field(LAST_SEEN, pa.timestamp("us")))
        return pa.schema(columns)

    def _to_stored(
        self, keys: pa.RecordBatch, merged: pl.DataFrame, ctx: OperatorContext
    ) -> pa.RecordBatch:
        stored = self._stored()
        columns: list[Any] = [*keys.columns, *to_batch(merged, self._partials).columns]
        if len(columns) < len(stored):
            now = np.full(keys.num_rows, ctx.processing_time_micros, np.int64)
            columns.append(pa.array(now).view(pa.timestamp("us")))
        return pa.RecordBatch.from_arrays(columns, schema=stored)

    def _arm(
        self,
        keys: pa.RecordBatch,
        merged: pl.DataFrame,
        ctx: OperatorContext,
        is_unarmed: Any,
    ) -> None:
        """Set the timer of each key that has none yet."""
        if self._expiry is None or not is_unarmed.any():
            return
        stored = self._to_stored(keys, merged, ctx).filter(pa.array(is_unarmed))
        due = self._expiry.due_micros(stored.column(LAST_SEEN))
        self._timers_in(ctx).set(stored.select(self._keys.names), due)

    def _timers_in(self, ctx: OperatorContext) -> Timers:
        is_event_time = self.timers() == (TimeDomain.EVENT_TIME,)
        return ctx.event_timers if is_event_time else ctx.processing_timers


def _output(ctx: OperatorContext) -> pa.Schema:
    (output,) = ctx.outputs.values()
    return output.schema
