"""UpdatingAggregate: keeps the partials of every key, and emits results that have changed.

The partials of an epoch are gathered; then the state of all their keys is looked up, merged
with them and put back, each once. The operator emits one change per key and epoch, and none
if the results are as before.

With a time to live, keys expire: see `penstock.operators.updating.lifetimes`. A timer is set when
a key is new. When it fires, the key is deleted or, if rows came meanwhile, the timer is set
again. Both happen when the epoch's rows are merged, so that they and the end of a key make
one change. A life that has ended when its first rows come is not shown at all.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.key_hash import hash_keys
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MIN_MICROS, CheckpointBarrier
from penstock.graph.logical import MAIN, OperatorSpec
from penstock.operators.aggregates.compiled import AggregateConfig
from penstock.operators.aggregates.frames import ALL_ROWS, columns_to_frame, to_batch
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.changes import changelog_schema, to_changes
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.expressions import to_array
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.timers import DueTimers, Timers
from penstock.operators.updating.lifetimes import (
    EARLIER,
    LAST_SEEN,
    RESULT,
    EarlierLives,
    Expiry,
    find_split,
    with_first_rows,
)
from penstock.state.tables.sorted_rows import Flags, stable_order
from penstock.state.tables.specs import TableSpec, TimeDomain, keyed_table

TABLE = "partials"
_PLACE = "ttl.place"


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
        if self.ttl_micros is None:
            shown["keeps"] = "every key for ever" if keys != (ALL_ROWS,) else "one result"
        else:
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
        self._expiry = expiry = config.expiry()
        self._keys = pa.schema([partials.arrow.field(n) for n in partials.key_columns])
        self._partials = pa.schema(list(plan.partials))
        own = [] if expiry is None else expiry.stored_fields(plan)
        more = [field for field in own if field.name not in self._partials.names]
        self._kept = pa.schema([*self._partials, *more])
        """The columns of the state beside the key."""
        self._earlier = EarlierLives(self._keys, plan)
        self._results = list(plan.without(RESULT).results)
        self._taken: list[pa.RecordBatch] = []
        self._fired: list[pa.RecordBatch] = []

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        keys = [field for field in self._keys if field.name != ALL_ROWS]
        return changelog_schema(keys, self._results)

    @override
    def tables(self) -> Sequence[TableSpec]:
        plan, expiry = self._plan, self._expiry
        groups = list(plan.without(RESULT).groups)
        if expiry is not None:
            groups.append(expiry.stored_group(plan))
        kept = keyed_table(
            TABLE,
            pa.schema([*self._keys, *self._kept]),
            key_columns=self._keys.names,
            description=plan.display(),
            groups=groups,
        )
        if expiry is None or not expiry.by_event_time:
            return [kept]
        return [kept, self._earlier.table()]

    @override
    def timers(self) -> Collection[TimeDomain]:
        return () if self._expiry is None else (self._expiry.domain,)

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self._taken.append(batch)

    @override
    def handle_timers(
        self, due: DueTimers, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Note the keys that may have expired: rows of this epoch may keep them."""
        keys, now = due.keys, None if self._expiry is None else self._expiry.now_micros(ctx)
        # At the end of data all timers fire, whether their keys may have expired or not.
        is_due = due.due_micros.to_numpy() <= (MIN_MICROS if now is None else now)
        self._fired.append(keys if is_due.all() else keys.filter(pa.array(is_due)))

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Merge the epoch's partials into the state, and delete the keys that have expired."""
        names = self._keys.names
        taken, fired = self._taken, self._fired
        self._taken, self._fired = [], []
        rest = pl.DataFrame()
        if fired:
            rest = columns_to_frame(fired, names).unique()
        if taken:
            rows = columns_to_frame(taken, [*names, *self._partials.names])
            news = self._plan.merge(rows, names)
            has_fired = np.zeros(news.height, np.bool_)
            if rest.height:
                every = pl.concat([news.select(names), rest]).with_row_index(_PLACE)
                first = every.select(pl.col(_PLACE).first().over(names)).to_series()
                known = first[news.height :].to_numpy()
                has_fired[known[known < news.height]] = True
                rest = rest.filter(pl.Series(known >= news.height))
            self._update(rows, news, has_fired, ctx, collector)
        if rest.height:
            self._expire(to_batch(rest, self._keys), ctx, collector)

    def _expire(
        self, keys: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Delete the keys without rows for long enough; set another timer for the others."""
        if self._expiry is None or (now := self._expiry.now_micros(ctx)) is None:
            return
        known = ctx.get_keyed_state(TABLE).get(keys)
        alive_until = self._expiry.due_micros(known.rows.column(LAST_SEEN))
        is_due = known.found & (alive_until <= now)
        is_later = known.found & ~is_due
        self._timers_in(ctx).set(keys.filter(pa.array(is_later)), alive_until[is_later])
        if is_due.any():
            state = columns_to_frame(
                [known.rows.filter(pa.array(is_due))], self._kept.names
            )
            gone = keys.filter(pa.array(is_due))
            self._delete(gone, state, ctx)
            was = np.ones(gone.num_rows, np.bool_)
            results = self._plan.results_of(state, ())
            before = output_columns(gone, results, self._results)
            changes = to_changes(ctx.outputs[MAIN].arrow, before, before, was, ~was)
            collector.collect(changes)

    def _delete(
        self, keys: pa.RecordBatch, state: pl.DataFrame, ctx: OperatorContext
    ) -> None:
        ctx.get_keyed_state(TABLE).delete(keys)
        ctx.count("expired_keys", keys.num_rows)
        if EARLIER in state.columns:
            columns = [*columns_to_frame([keys], keys.schema.names), state[EARLIER]]
            self._earlier.drop(ctx, pl.DataFrame(columns))

    def _update(
        self,
        rows: pl.DataFrame,
        news: pl.DataFrame,
        has_fired: Flags,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Merge partials: `rows` as they came, `news` merged to one row per key."""
        # Sorted by key hash once, so that neither the lookup nor the write has to sort.
        hashed = [to_array(news.get_column(f.name), f.type) for f in self._keys]
        order = stable_order(hash_keys(hashed))
        news = news.select(pl.all().gather(order))
        keys = to_batch(news, self._keys)
        table = ctx.get_keyed_state(TABLE)
        known = table.get(keys, columns=self._kept.names)
        state = with_first_rows(columns_to_frame([known.rows], self._kept.names))
        merged = self._merged(rows, news, state, ctx)
        lives = np.ones(keys.num_rows, np.bool_)
        stored = pa.RecordBatch.from_arrays(
            [*keys.columns, *to_batch(merged, self._kept).columns],
            schema=pa.schema([*self._keys, *self._kept]),
        )
        if self._expiry is not None:
            ends, now = (
                self._expiry.due_micros(stored.column(LAST_SEEN)),
                self._expiry.now_micros(ctx),
            )
            if now is not None:
                lives = ends > now
            was_armed = known.found & state.get_column(LAST_SEEN).is_not_null().to_numpy()
            is_unarmed = lives & (~was_armed | has_fired[order])
            unarmed = keys.filter(pa.array(is_unarmed))
            self._timers_in(ctx).set(unarmed, ends[is_unarmed])
        if lives.all():
            table.put(stored)
        else:
            table.put(stored.filter(pa.array(lives)))
            gone = known.found & ~lives
            ctx.count("late_keys", int((~known.found & ~lives).sum()))
            if gone.any():
                self._delete(
                    keys.filter(pa.array(gone)), state.filter(pl.Series(gone)), ctx
                )
        self._emit(keys, (state, merged), (known.found, lives), ctx, collector)

    def _merged(
        self,
        rows: pl.DataFrame,
        news: pl.DataFrame,
        state: pl.DataFrame,
        ctx: OperatorContext,
    ) -> pl.DataFrame:
        """Return what becomes of the state of each key: the columns of the state, in order."""
        expiry, names = self._expiry, self._keys.names
        if expiry is None:
            return self._plan.merge_pairs(news, state)
        if not expiry.by_event_time:
            # Rows that come when their key has expired begin its next life.
            now = ctx.processing_time_micros
            ends = expiry.due_micros(to_array(state[LAST_SEEN], pa.timestamp("us")))
            begins = pl.Series(ends <= now)
            others = state.select(
                pl.when(~begins).then(pl.col(name)).alias(name) for name in state.columns
            )
            seen = pl.lit(now, pl.Int64).cast(pl.Datetime("us")).alias(LAST_SEEN)
            return self._plan.merge_pairs(news, others).with_columns(seen)
        merged = self._plan.merge_pairs(news, state)
        merged = merged.with_columns(pl.lit(0, pl.Int32).alias(EARLIER))
        is_split = find_split(news, state, expiry)
        if not is_split.any():
            return merged
        split = pl.Series(is_split)
        some = news.filter(split).select(names), state.filter(split)
        latest = self._earlier.merge(ctx, *some, rows, expiry)
        both = pl.concat([merged.filter(~split), latest.select(merged.columns)])
        # Positions before the split keys were put behind the others.
        order = np.argsort(np.argsort(is_split, kind="stable"))
        return both.select(pl.all().gather(order))

    def _emit(
        self,
        keys: pa.RecordBatch,
        states: tuple[pl.DataFrame, pl.DataFrame],
        there: tuple[Flags, Flags],
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Emit the changes of results between two states; `there` says which keys are in each."""
        before, after = (self._plan.results_of(state, ()) for state in states)
        schema = ctx.outputs[MAIN].arrow
        changes = to_result_changes(schema, keys, (before, after), there, self._results)
        collector.collect(changes)

    def _timers_in(self, ctx: OperatorContext) -> Timers:
        is_event_time = self.timers() == (TimeDomain.EVENT_TIME,)
        return ctx.event_timers if is_event_time else ctx.processing_timers


def output_columns(
    keys: pa.RecordBatch, results: pl.DataFrame, fields: Sequence["pa.Field[Any]"]
) -> list[Any]:
    """Return the columns of the output for keys and their results."""
    shown = [keys.column(n) for n in keys.schema.names if n != ALL_ROWS]
    return shown + [to_array(results[f.name], f.type) for f in fields]


def have_changed(
    results: tuple[pl.DataFrame, pl.DataFrame],
    there: tuple[Flags, Flags],
    fields: Sequence["pa.Field[Any]"],
) -> Flags:
    """Return which rows differ between results before and after, given as for the changes."""
    (before, after), (found, lives) = results, there
    changed: Flags = found != lives
    for field in fields:
        was, now = before.get_column(field.name), after.get_column(field.name)
        changed |= was.ne_missing(now).to_numpy()
    changed &= found | lives
    return changed


def to_result_changes(
    schema: pa.Schema,
    keys: pa.RecordBatch,
    results: tuple[pl.DataFrame, pl.DataFrame],
    there: tuple[Flags, Flags],
    fields: Sequence["pa.Field[Any]"],
) -> pa.RecordBatch:
    """Return the changes between results before and after, row by row.

    `there` says which keys are in each; `fields` are the columns of the results. What is as
    before makes no change.
    """
    (before, after), (found, lives) = results, there
    changed = have_changed(results, there, fields)
    if not changed.all():
        picked = pl.Series(changed)
        before, after = before.filter(picked), after.filter(picked)
        keys = keys.filter(picked.to_arrow())
        found, lives = found[changed], lives[changed]
    olds, news = (output_columns(keys, side, fields) for side in (before, after))
    return to_changes(schema, olds, news, found, lives)
