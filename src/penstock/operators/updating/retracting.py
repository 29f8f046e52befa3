"""RetractingAggregate: results per key of a changelog, out of which rows are taken again.

Partials of the rows that an epoch adds are merged into the state of their keys, and those of the
rows that it removes are taken out: in this order, so that nothing is taken out before it was
added. What arithmetic cannot take out is computed of kept values: see `change_plan`. A key
without rows is deleted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.key_hash import hash_keys
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier
from penstock.graph.logical import MAIN, OperatorSpec
from penstock.operators.aggregates.compiled import AggregateConfig, CompiledAggregate
from penstock.operators.aggregates.frames import ALL_ROWS, columns_to_frame, to_batch
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.changes import changelog_schema
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.updating.aggregate import to_result_changes
from penstock.operators.updating.change_plan import (
    GROUP,
    ROWS,
    ChangePlan,
    KeptConfig,
    Way,
    stored_group,
)
from penstock.operators.updating.combine import SIGN
from penstock.operators.updating.kept_values import (
    KeptValues,
    aligned,
    partials_by_group,
)
from penstock.state.tables.sorted_rows import Flags, stable_order
from penstock.state.tables.specs import TableSpec, keyed_table

TABLE = "groups"


@dataclass(frozen=True, slots=True)
class RetractingAggregateConfig(OperatorConfig):
    """The config of aggregates over changelogs."""

    kind: ClassVar[str] = "retracting_aggregate"

    changes: bytes
    """The input's schema, as `StreamSchema.to_bytes` returns it."""
    arithmetic: tuple[AggregateConfig, ...]
    kept: tuple[KeptConfig, ...]
    results: tuple[str, ...]
    has_values: bool
    """Whether the input has values instead of partials."""
    display: str

    @override
    def shown(self) -> Mapping[str, str]:
        keys = StreamSchema.from_bytes(self.changes).key_columns
        by = {} if keys == (ALL_ROWS,) else {"by": ", ".join(keys)}
        values = [column for kept in self.kept for column in kept.columns]
        keeps = {"keeps": ", ".join(dict.fromkeys(values))} if values else {}
        return {**by, "aggregates": self.display, **keeps}


def retracting_aggregate_spec(plan: ChangePlan, changes: StreamSchema) -> OperatorSpec:
    """Keep results of a changelog by key, and emit those that change."""
    return RetractingAggregateConfig(
        changes.to_bytes(),
        plan.arithmetic.to_config(),
        plan.kept,
        plan.results,
        bool(plan.values),
        plan.shown,
    ).to_operator_spec()


class RetractingAggregate(Configured[RetractingAggregateConfig], ArrowOperator):
    """Merges signed partials or values into a `KeyedTable` and emits how results change."""

    def __init__(self, config: RetractingAggregateConfig) -> None:
        super().__init__(config)
        changes = StreamSchema.from_bytes(config.changes)
        self._columns = changes.arrow.names
        self._keys = pa.schema([changes.arrow.field(n) for n in changes.key_columns])
        self._plan = plan = AggregatePlan.from_config(config.arithmetic)
        self._kept = [
            KeptValues(kept, number, self._keys)
            for number, kept in enumerate(config.kept, 1)
        ]
        fields = [field for kept in self._kept for field in kept.fields]
        self._state = pa.schema([*plan.partials, *fields])
        """The columns of the state beside the key."""
        every = [(a, None) for a in plan.aggregates[1:]]
        self._finished: list[tuple[CompiledAggregate, Way | None]] = [
            *every,
            *(member for kept in self._kept for member in kept.members()),
        ]
        types = {a.result.name: a.result for a, _ in self._finished}
        self._results = [types[name] for name in config.results]
        self._taken: list[pa.RecordBatch] = []

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        keys = [field for field in self._keys if field.name != ALL_ROWS]
        return changelog_schema(keys, self._results)

    @override
    def tables(self) -> Sequence[TableSpec]:
        groups = [stored_group(a, way or "distinct") for a, way in self._finished]
        # The number of rows has the meaning of the whole step.
        counted = stored_group(self._plan.aggregates[0], "distinct")
        whole = replace(counted, noun="what it keeps", is_whole=True)
        own = keyed_table(
            TABLE,
            pa.schema([*self._keys, *self._state]),
            key_columns=self._keys.names,
            description=self.config.display,
            groups=[whole, *groups],
        )
        return [own, *(kept.table() for kept in self._kept)]

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self._taken.append(batch)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Take the epoch's changes into the state, and emit the results that have changed."""
        if not self._taken:
            return
        rows = columns_to_frame(self._taken, self._columns)
        self._taken = []
        if self.config.has_values:
            names = [name for name in self._columns if name != SIGN]
            # What one subtask removed another may have added.
            net = rows.group_by(names).agg(pl.col(SIGN).sum())
            rows = net.filter(pl.col(SIGN) != 0)
        if not rows.height:
            return
        keys, news = self._grouped(rows)
        table = ctx.get_keyed_state(TABLE)
        known = table.get(keys, columns=self._state.names)
        state = columns_to_frame([known.rows], self._state.names)
        parts = [self._by_arithmetic(news, state, keys.num_rows)]
        sizes = parts[0].get_column(ROWS).to_numpy()
        for kept in self._kept:
            own = state.select(field.name for field in kept.fields)
            parts.append(kept.update(ctx, keys, news, own, sizes))
        merged = pl.concat(parts, how="horizontal")
        lives = sizes > 0
        columns = [*keys.columns, *to_batch(merged, self._state).columns]
        stored = pa.RecordBatch.from_arrays(
            columns, schema=pa.schema([*self._keys, *self._state])
        )
        table.put(stored.filter(pa.array(lives)))
        table.delete(keys.filter(pa.array(known.found & ~lives)))
        self._emit(keys, (state, merged), (known.found, lives), ctx, collector)

    def _grouped(self, rows: pl.DataFrame) -> tuple[pa.RecordBatch, pl.DataFrame]:
        """Return the different keys in order of their hash, and rows with the place of theirs."""
        names = self._keys.names
        placed = rows.select(names).with_row_index(GROUP)
        first = placed.select(pl.col(GROUP).first().over(names)).to_series().to_numpy()
        firsts, dense = np.unique(first, return_inverse=True)
        keys = to_batch(rows.select(pl.col(names).gather(firsts)), self._keys)
        # Sorted by key hash once, so that neither the lookup nor the write has to sort.
        order: Any = stable_order(hash_keys(keys.columns))
        ranks = np.argsort(order)
        grouped = rows.with_columns(pl.Series(GROUP, ranks[dense], pl.Int64))
        return keys.take(pa.array(order)), grouped

    def _by_arithmetic(
        self, news: pl.DataFrame, state: pl.DataFrame, count: int
    ) -> pl.DataFrame:
        """Return the partials of groups after an epoch's changes."""
        plan, default = self._plan, self._plan.of_no_rows(1)
        sides = []
        for is_added in (True, False):
            rows = news.filter((pl.col(SIGN) > 0) == is_added)
            null = default if is_added else default.clear(1)
            if self.config.has_values:
                times = np.abs(rows.get_column(SIGN).to_numpy())
                each = np.repeat(np.arange(rows.height), times)
                rows = rows.select(pl.all().gather(each))
                sides.append(partials_by_group(plan, rows, count, or_null=not is_added))
            else:
                merged = plan.merge(rows, [GROUP])
                sides.append(aligned(merged, null, count))
        added, removed = sides
        return plan.unmerge_pairs(plan.merge_pairs(added, state), removed)

    def _emit(
        self,
        keys: pa.RecordBatch,
        states: tuple[pl.DataFrame, pl.DataFrame],
        there: tuple[Flags, Flags],
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Emit the changes of results between two states; `there` says which keys are in each."""
        before, after = (self._results_of(state) for state in states)
        schema = ctx.outputs[MAIN].arrow
        changes = to_result_changes(schema, keys, (before, after), there, self._results)
        collector.collect(changes)

    def _results_of(self, state: pl.DataFrame) -> pl.DataFrame:
        """Return the results of groups out of their state."""
        computed = AggregatePlan(tuple(a for a, way in self._finished if way != "all"))
        stored = [
            pl.col(f"{a.result.name}.result").alias(a.result.name)
            for a, way in self._finished
            if way == "all"
        ]
        if not computed.aggregates:
            return state.select(stored)
        results = computed.results_of(state, ())
        return results.hstack(state.select(stored)) if stored else results
