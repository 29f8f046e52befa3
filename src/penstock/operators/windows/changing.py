"""ChangingWindows: tumbling and sliding windows of changelogs, or with allowed lateness.

With allowed lateness a window is emitted when the watermark reaches its end, and again when
a row comes for it that is late by no more than that. What is emitted then is a changelog:

    watermark of the epoch before    window [0, 10) with a lateness of 5
    ────────────┬──────────────────  ──────────────────────────────────────────────────────
    before 10   │ open               rows are kept; the result is inserted at the watermark 10
    10 to 14    │ late               rows are kept; a result that changes is emitted again
    from 15 on  │ over               rows go to the side output LATE; nothing is kept

Panes are kept until the last of their windows is over, and beside them the results that were
emitted (`emitted`), by key and start of the window: what a changelog takes back must be what it
said, to the last bit, and a sum of floats depends on the order in which partials are merged. Of a
window with fresh rows all panes of these keys are merged again. Rows of `emitted` are only
added, too; the one of the latest epoch counts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import Micros
from penstock.core.figures import show_duration
from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.core.watermark import MIN_MICROS, EventTime, Idle, Watermark
from penstock.graph.logical import BAD, LATE, MAIN, OperatorSpec
from penstock.operators.aggregates.frames import to_batch, to_frame, to_table
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.changes import INSERT
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.updating.aggregate import have_changed, to_result_changes
from penstock.operators.windows.aggregation import (
    MICROS,
    PANE,
    WINDOW_END,
    WINDOW_START,
    WINDOW_TIME,
    WindowAggregation,
    WindowConfig,
    instant_of,
)
from penstock.operators.windows.assignment import (
    END_MICROS,
    FIRST_MICROS,
    WindowGrid,
    find_length_problems,
)
from penstock.operators.windows.changed_rows import (
    EPOCH,
    IS_THERE,
    ChangedAggregation,
    as_rows_aside,
    rows_aside,
)
from penstock.operators.windows.panes import (
    TABLE,
    PaneCombiner,
    PaneCombinerConfig,
    PaneWindowConfig,
    PaneWindows,
    repeat_rows,
)
from penstock.state.tables.sorted_rows import Flags, Positions, take_rows
from penstock.state.tables.specs import TableSpec, time_keyed_table
from penstock.state.tables.time_keyed_view import KeyTimeView

EMITTED = "emitted"
_PLACE = f"{CHANGE_COLUMN}.place"
"""The place of a row's key and window among those of a block."""
_BLOCK = 50_000
"""How many windows of keys are computed anew at once."""


def shown_lateness(lateness_micros: int) -> Mapping[str, str]:
    """Return how long state is kept, for people to read."""
    shown = show_duration(lateness_micros)
    until = f"until the watermark is {shown} beyond the window's end"
    return {"allowed_lateness": shown, "keeps": until}


def hold_back(watermark: Watermark, lateness_micros: int) -> Watermark:
    """Return the watermark of what is emitted: changes of a window come so much after its end."""
    if isinstance(watermark, Idle):
        return watermark
    return EventTime(max(MIN_MICROS, watermark.micros - lateness_micros))


def _aggregation_of(config: WindowConfig) -> WindowAggregation:
    stream = StreamSchema.from_bytes(config.stream)
    kind = ChangedAggregation if stream.is_changelog else WindowAggregation
    return kind(stream, AggregatePlan.from_config(config.aggregates))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingWindowConfig(PaneWindowConfig):
    """The config of windows over changelogs, or with allowed lateness."""

    kind: ClassVar[str] = "changing_window"

    lateness_micros: int | None = None
    """None for windows that are emitted once: then the output is append-only."""

    @override
    def shown(self) -> Mapping[str, str]:
        shown = {"window": self.window, "computes": self.aggregation().finished.display()}
        if self.lateness_micros is None:
            return {**shown, "keeps": "until the watermark has reached the window's end"}
        return {**shown, **shown_lateness(self.lateness_micros)}

    @override
    def aggregation(self) -> WindowAggregation:
        return _aggregation_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingCombinerConfig(PaneCombinerConfig):
    """The config of combiners for such windows."""

    kind: ClassVar[str] = "changing_combiner"

    lateness_micros: int = 0

    @override
    def aggregation(self) -> WindowAggregation:
        return _aggregation_of(self)


def changing_window_specs(
    grid: WindowGrid,
    aggregation: WindowAggregation,
    *,
    lateness_micros: int | None,
    consumer: str,
    shown: str,
    diverts_bad: bool,
) -> tuple[OperatorSpec, OperatorSpec]:
    """Return the combiner and the window operator of one step, to be joined by key."""
    shared: dict[str, Any] = {
        "window": shown,
        "stream": aggregation.stream.to_bytes(),
        "aggregates": aggregation.plan.to_config(),
        **{field.name: getattr(grid, field.name) for field in fields(grid)},
    }
    combiner = ChangingCombinerConfig(
        **shared,
        consumer=consumer,
        diverts_bad=diverts_bad,
        lateness_micros=lateness_micros or 0,
    )
    window = ChangingWindowConfig(**shared, lateness_micros=lateness_micros)
    return combiner.to_operator_spec(), window.to_operator_spec()


class ChangingCombiner(PaneCombiner):
    """Makes partials of the rows, or signed changes, that some window still takes."""

    def __init__(self, config: ChangingCombinerConfig) -> None:
        super().__init__(config)
        self._lateness = config.lateness_micros
        self._is_changelog = self._aggregation.stream.is_changelog

    @override
    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        if not self._is_changelog:
            return super().side_outputs(inputs)
        sides = {LATE: rows_aside(inputs[0], has_time=True)}
        if self.config.diverts_bad:
            sides[BAD] = rows_aside(inputs[0], has_time=False)
        return sides

    @override
    def _send_aside(
        self, rows: pa.RecordBatch, collector: ArrowCollector, output: str
    ) -> None:
        collector.collect(as_rows_aside(rows) if self._is_changelog else rows, output)


class ChangingWindows(PaneWindows):
    """Keeps the panes of its subtask's keys; emits windows that close, and how they change."""

    def __init__(self, config: ChangingWindowConfig) -> None:
        super().__init__(config)
        self._is_revised = config.lateness_micros is not None
        if config.lateness_micros is not None:
            config.refuse(find_length_problems({"lateness": config.lateness_micros}))
            self._lateness = config.lateness_micros
        aggregation = self._aggregation
        self._keys = pa.schema(list(aggregation.key_fields))
        self._results = list(aggregation.finished.results)
        own = [pa.field(EPOCH, pa.int64()), pa.field(IS_THERE, pa.bool_())]
        self._emitted = pa.schema(
            [*self._keys, pa.field(PANE, MICROS), *own, *self._results]
        )

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        aggregation = self._aggregation
        return aggregation.revisions if self._is_revised else aggregation.results

    @override
    def tables(self) -> Sequence[TableSpec]:
        panes = super().tables()
        if not self._is_revised:
            return panes
        emitted = time_keyed_table(
            EMITTED,
            self._emitted,
            key_columns=self._keys.names,
            time_column=PANE,
            description=f"results of {self.config.window} that may still change",
            meaning=self._meaning(),
        )
        return [*panes, emitted]

    @override
    def _meaning(self) -> str:
        parts = [super()._meaning()]
        aggregation = self._aggregation
        if isinstance(aggregation, ChangedAggregation) and aggregation.keeps_values:
            # No partials come of values later: what they were would be missing when it is removed.
            parts.append("of values")
        if self._is_revised:
            parts.append(f"kept {self._lateness} us longer")
        return ", ".join(parts)

    @override
    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark:
        """Hold the watermark back by the lateness, so that no change is late for steps behind."""
        return hold_back(watermark, self._lateness)

    @override
    def emit(
        self, merged: pl.DataFrame, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the results of windows that close, and keep them as long as they may change."""
        if not merged.height:
            return
        if not self._is_revised:
            super().emit(merged, ctx, collector)
            return
        windows = self._with_windows(merged)
        kept = [*self._keys.names, PANE, WINDOW_START, WINDOW_END, WINDOW_TIME]
        results = self._aggregation.finished.results_of(windows, kept)
        change = pl.lit(INSERT).alias(CHANGE_COLUMN)
        collector.collect(to_table(results.with_columns(change), ctx.outputs[MAIN].arrow))
        self._keep(results.with_columns(pl.lit(value=True).alias(IS_THERE)), ctx)

    @override
    def revise(
        self, fresh: pl.DataFrame, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit how partials change windows that were emitted before and are not over."""
        previous = instant_of(ctx.previous_watermark)
        if not self._is_revised or not fresh.height or previous is None:
            return
        late = self._late_windows(fresh, min(previous, END_MICROS))
        for windows, rows in self._blocks(late):
            self._revise_block(windows, rows, ctx, collector)

    def _late_windows(self, fresh: pl.DataFrame, previous: int) -> pl.DataFrame:
        """Return partials once per window that was emitted and is not over, with its start."""
        grid, times = self._grid, fresh.get_column(PANE).to_numpy()
        earliest = grid.first_starts(max(FIRST_MICROS, previous - self._lateness))
        latest = grid.last_starts(max(FIRST_MICROS, previous) - grid.width_micros)
        first = np.maximum(grid.first_starts(times), earliest)
        last = np.minimum(grid.last_starts(times), latest)
        counts = np.maximum((last - first) // grid.slide_micros + 1, 0)
        return repeat_rows(fresh, first, counts, grid.slide_micros)

    def _blocks(self, late: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        """Yield some keys and windows at a time, each once, and partials with their place."""
        names = [*self._keys.names, PANE]
        numbered = late.select(names).with_row_index(_PLACE)
        first = numbered.select(pl.col(_PLACE).first().over(names)).to_series().to_numpy()
        firsts, dense = np.unique(first, return_inverse=True)
        order = np.argsort(dense, kind="stable")
        sorted_places = dense[order]
        for start in range(0, len(firsts), _BLOCK):
            some = firsts[start : start + _BLOCK]
            low, high = np.searchsorted(sorted_places, [start, start + len(some)])
            rows = late[order[low:high]]
            places = pl.Series(_PLACE, sorted_places[low:high] - start, pl.Int64)
            yield late.select(names)[some], rows.with_columns(places)

    def _revise_block(
        self,
        windows: pl.DataFrame,
        fresh: pl.DataFrame,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        aggregation, count = self._aggregation, windows.height
        keys, starts = to_batch(windows, self._keys), windows.get_column(PANE).to_numpy()
        panes = ctx.get_key_time_state(TABLE)
        kept = _rows_between(panes, keys, starts, starts + self._grid.width_micros, fresh)
        merged = aggregation.merge(pl.concat([kept, fresh]), [_PLACE])
        after, there = aligned_results(
            results_in_rows(aggregation, merged),
            merged.get_column(_PLACE).to_numpy(),
            count,
        )
        before, was = self._emitted_before(keys, starts, ctx)
        identity = self._with_windows(windows)
        fields_shown = pa.schema([*self._keys, *aggregation.window_fields])
        changes = to_result_changes(
            ctx.outputs[MAIN].arrow,
            to_batch(identity, fields_shown),
            (before, after),
            (was, there),
            self._results,
        )
        collector.collect(changes)
        # Zeros of either sign are equal: what makes no change was not said, and is not kept.
        changed = have_changed((before, after), (was, there), self._results)
        latest = windows.hstack(after).with_columns(pl.Series(IS_THERE, there))
        self._keep(latest.filter(pl.Series(changed)), ctx)

    def _emitted_before(
        self, keys: pa.RecordBatch, starts: Micros, ctx: OperatorContext
    ) -> tuple[pl.DataFrame, Flags]:
        """Return the results of windows that were emitted last, and for which there were some."""
        names = [EPOCH, IS_THERE, *(field.name for field in self._results)]
        wanted = to_frame(
            pa.schema([self._emitted.field(name) for name in names]).empty_table()
        ).with_columns(pl.lit(0, pl.Int64).alias(_PLACE))
        view = ctx.get_key_time_state(EMITTED)
        found = _rows_between(view, keys, starts, starts + 1, wanted)
        last = found.sort(EPOCH).unique(_PLACE, keep="last", maintain_order=True)
        there = last.filter(pl.col(IS_THERE))
        results = there.select(field.name for field in self._results)
        return aligned_results(results, there.get_column(_PLACE).to_numpy(), len(starts))

    def _keep(self, results: pl.DataFrame, ctx: OperatorContext) -> None:
        """Remember what was emitted, as long as its window is not over."""
        ends = pl.col(PANE) + self._grid.width_micros + self._lateness
        watermark = instant_of(ctx.watermark)
        if watermark is not None:
            results = results.filter(ends > watermark)
        if not results.height:
            return
        epoch = pl.lit(int(ctx.epoch), pl.Int64).alias(EPOCH)
        expiry: Any = results.select(ends).to_series().to_numpy()
        rows = to_table(results.with_columns(epoch), self._emitted)
        view = ctx.get_time_keyed_state(EMITTED)
        view.insert(rows, pa.array(expiry).view(MICROS))

    def _with_windows(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a frame with the columns of windows, whose start is in the pane column."""
        starts, ends = pl.col(PANE), pl.col(PANE) + self._grid.width_micros
        return self._aggregation.with_windows(frame, starts, ends, ends - 1)


def _rows_between(
    view: KeyTimeView,
    keys: pa.RecordBatch,
    starts: Micros,
    ends: Micros,
    like: pl.DataFrame,
) -> pl.DataFrame:
    """Return the rows of keys in their ranges of time, with the place of the key of each.

    They have the columns and types of another frame.
    """
    names = [name for name in like.columns if name != _PLACE]
    pieces = [like.clear()]
    for matches in view.get_between(keys, starts, ends):
        rows = to_frame(take_rows(matches.rows.select(names), matches.places))
        places = pl.Series(_PLACE, matches.probes, pl.Int64)
        columns = [pl.col(name).cast(dtype) for name, dtype in like.schema.items()]
        pieces.append(rows.with_columns(places).select(columns))
    return pl.concat(pieces)


def results_in_rows(aggregation: WindowAggregation, partials: pl.DataFrame) -> pl.DataFrame:
    """Return the results of partials in the types that they are emitted in, row by row."""
    plan = aggregation.finished
    schema = pa.schema(list(plan.results))
    if not partials.height:
        return to_frame(schema.empty_table())
    return to_frame(to_table(plan.results_of(partials, ()), schema))


def aligned_results(
    results: pl.DataFrame, places: Positions, count: int
) -> tuple[pl.DataFrame, Flags]:
    """Return a row for each of so many places, null where there is none, and where there is."""
    rows = np.zeros(count, np.int64)
    rows[places] = np.arange(1, results.height + 1)
    every = pl.concat([results.clear(1), results])
    return every.select(pl.all().gather(rows)), rows > 0
