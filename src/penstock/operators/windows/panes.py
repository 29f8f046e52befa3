"""PaneCombiner and PaneWindows: tumbling and sliding windows, merged from panes when they close.

The combiner runs where the rows are and keeps no state. It buffers the columns that are
needed and groups them into partials per key and pane, once per epoch or whenever the buffer
is full. It also decides which rows are late, because partials cannot be taken apart again. It
uses the previous watermark of the window operator, which decides which windows are open there.

The window operator appends what windows of later epochs need to a table by time. It never
changes a row of it; a row expires when the last window that it serves has closed. A window
closes in the epoch where

    watermark of the epoch before  <  end  <=  watermark of this epoch

and is merged from the panes in `[start, end)`, those kept and those of the epoch itself. So
the cost of an epoch depends on its input and output, not on how much is kept. A watermark may
pass many windows at once: after a pause, in a backfill, at the end of data. They are closed in
blocks, earliest first, so that memory is bounded by a block; time without panes is skipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import Micros
from penstock.core.schema import RESERVED_PREFIX, StreamSchema
from penstock.core.watermark import CheckpointBarrier
from penstock.graph.logical import BAD, LATE, OperatorSpec
from penstock.operators.aggregates.frames import (
    ROWS_WORTH_A_PASS,
    group_by_instant,
    to_frame,
    to_table,
)
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured
from penstock.operators.windows.aggregation import (
    MICROS,
    PANE,
    WindowAggregation,
    WindowConfig,
    instant_of,
)
from penstock.operators.windows.assignment import (
    WindowGrid,
    find_grid_problems,
    place_rows,
    reached_before,
)
from penstock.state.tables.specs import TableSpec, TimeDomain, time_keyed_table
from penstock.state.tables.time_keyed_view import TimeKeyedView

BUFFERED_ROWS = 1 << 20
"""How many rows are grouped at once: more would take memory and save little time."""
_PANE = f"{RESERVED_PREFIX}_pane"
"""The pane of a row, under a name that no column of a stream has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaneWindowConfig(WindowConfig):
    """The config of tumbling and sliding windows."""

    kind: ClassVar[str] = "window"

    width_micros: int
    slide_micros: int
    offset_micros: int

    def grid(self) -> WindowGrid:
        """Return the windows; lengths that are not possible are refused."""
        lengths = self.width_micros, self.slide_micros, self.offset_micros
        self.refuse(find_grid_problems(*lengths))
        return WindowGrid(*lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaneCombinerConfig(PaneWindowConfig):
    """The config of combiners: that of the window it works for, and more."""

    kind: ClassVar[str] = "pane_combiner"

    consumer: str
    """The operator that merges the partials."""
    diverts_bad: bool

    @override
    def shown(self) -> Mapping[str, str]:
        return {"for": self.consumer}


def pane_window_specs(
    grid: WindowGrid,
    aggregation: WindowAggregation,
    *,
    consumer: str,
    shown: str,
    diverts_bad: bool,
) -> tuple[OperatorSpec, OperatorSpec]:
    """Return the combiner and the window operator of one step, to be joined by key."""
    window = PaneWindowConfig(
        window=shown,
        stream=aggregation.stream.to_bytes(),
        aggregates=aggregation.plan.to_config(),
        **asdict(grid),
    )
    combiner = PaneCombinerConfig(
        **{field.name: getattr(window, field.name) for field in fields(window)},
        consumer=consumer,
        diverts_bad=diverts_bad,
    )
    return combiner.to_operator_spec(), window.to_operator_spec()


class PaneCombiner(Configured[PaneCombinerConfig], ArrowOperator):
    """Makes partials of the rows that its subtask sees. Its output goes to a `PaneWindows`."""

    def __init__(self, config: PaneCombinerConfig) -> None:
        super().__init__(config)
        self._grid = config.grid()
        self._aggregation = config.aggregation()
        self._lateness = 0
        """How long after its end a window takes rows, in microseconds."""
        self._batches: list[pa.RecordBatch] = []
        self._times: list[Micros] = []
        self._buffered_rows = 0

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        return self._aggregation.partials

    @override
    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        """Return the input's schema for late rows and, if they are diverted, for bad ones."""
        sides = {LATE: inputs[0]}
        if self.config.diverts_bad:
            sides[BAD] = StreamSchema(inputs[0].arrow)
        return sides

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Buffer the rows that some open window holds; late and bad ones go to side outputs."""
        diverts_bad = self.config.diverts_bad
        times = self._aggregation.read_times(batch, ctx, diverts_bad=diverts_bad)
        if times.bad is not None:
            self._send_aside(batch.filter(pa.array(times.bad)), collector, BAD)
        reached = instant_of(ctx.previous_watermark_of(self.config.consumer))
        placed = place_rows(times, self._grid, reached_before(reached, self._lateness))
        if placed.outside is not None:
            ctx.count("rows_outside_windows", int(placed.outside.sum()))
        if placed.late is not None:
            ctx.count("late_rows", int(placed.late.sum()))
            self._send_aside(batch.filter(pa.array(placed.late)), collector, LATE)
        rows, micros = batch.select(list(self._aggregation.reads)), times.micros
        if placed.kept is not None:
            rows, micros = rows.filter(pa.array(placed.kept)), micros[placed.kept]
        self._buffer(rows, micros, collector)

    def _buffer(
        self, rows: pa.RecordBatch, micros: Micros, collector: ArrowCollector
    ) -> None:
        """Keep rows that are in some open window, with their instants, until they are grouped."""
        if len(micros):
            self._batches.append(rows)
            self._times.append(micros)
            self._buffered_rows += len(micros)
        if self._buffered_rows >= BUFFERED_ROWS:
            self._emit(collector)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the partials of the epoch's rows."""
        self._emit(collector)

    def _emit(self, collector: ArrowCollector) -> None:
        if not self._buffered_rows:
            return
        aggregation = self._aggregation
        times = np.concatenate(self._times)
        frame = pl.DataFrame()
        if aggregation.reads:
            frame = aggregation.rows_of(self._batches)
        self._batches, self._times, self._buffered_rows = [], [], 0
        for partials in self._partials_of(frame, times):
            keyed = aggregation.with_key(partials).rename({_PANE: PANE})
            collector.collect(to_table(keyed, aggregation.partials.arrow))

    def _partials_of(self, frame: pl.DataFrame, times: Micros) -> Iterator[pl.DataFrame]:
        """Yield the partials per key and pane; `frame` has no columns if none is read."""
        keys, compute = self._aggregation.stream.key_columns, self._aggregation.combine
        limit = 1 + len(times) // ROWS_WORTH_A_PASS
        panes = self._grid.panes_between(int(times.min()), int(times.max()), limit=limit)
        if panes is None or not frame.width:
            starts = pl.Series(_PANE, self._grid.pane_starts(times))
            placed = pl.DataFrame([*frame.get_columns(), starts])
            yield from group_by_instant(placed, _PANE, keys, compute)
            return
        # Comparisons separate the rows of a few adjacent panes, without a division per row.
        for start, end in panes:
            inside = pl.Series((times >= start) & (times < end))
            rows = frame if len(panes) == 1 else frame.filter(inside)
            if rows.height:
                at = pl.lit(start, pl.Int64).alias(_PANE)
                yield compute(rows, keys).with_columns(at)

    def _send_aside(
        self, rows: pa.RecordBatch, collector: ArrowCollector, output: str
    ) -> None:
        """Emit rows that are in no result."""
        collector.collect(rows, output)


_FIRST_BLOCK = 16
"""How many windows are in the first block; later blocks grow if windows are small."""
_FEW_ROWS = 200_000
_MANY_ROWS = 2_000_000
_LARGEST_BLOCK = 1 << 16
_LARGEST_SHARING_BLOCK = 128
"""The most windows of a block if windows share panes: then a row counts once per window."""


def panes_frame(rows: object) -> pl.DataFrame:
    """Return partials as a frame, their panes as microseconds."""
    return to_frame(rows).with_columns(pl.col(PANE).cast(pl.Int64))  # type: ignore[arg-type]


def close_windows(
    grid: WindowGrid,
    aggregation: WindowAggregation,
    kept: TimeKeyedView,
    fresh: pl.DataFrame,
    ends: tuple[int, int],
) -> Iterator[pl.DataFrame]:
    """Yield the merged partials of windows that end in `ends`, both included.

    They are merged from the panes that are kept and those of the epoch itself, which are not
    among them. The pane column of a result holds the start of the window.
    """
    fresh = fresh if fresh[PANE].is_sorted() else fresh.sort(PANE)
    times = fresh[PANE].to_numpy()
    start, last = ends[0] - grid.width_micros, ends[1] - grid.width_micros
    size = _FIRST_BLOCK
    largest = _LARGEST_BLOCK if grid.is_pane_per_window else _LARGEST_SHARING_BLOCK
    while start <= last:
        index = int(np.searchsorted(times, start))
        next_panes = [kept.min_time(start), *times[index : index + 1].tolist()]
        known = [pane for pane in next_panes if pane is not None]
        if not known:
            return
        start = max(start, grid.first_starts(min(known)))
        if start > last:
            return
        block_last = min(last, start + (size - 1) * grid.slide_micros)
        end = block_last + grid.width_micros
        first_row, end_row = np.searchsorted(times, [start, end]).tolist()
        rows = fresh.slice(first_row, end_row - first_row)
        older = panes_frame(kept.rows(start, end))
        if older.height:
            rows = pl.concat([older, rows]) if rows.height else older
        starts = range(start, block_last + 1, grid.slide_micros)
        yield from _merge(grid, starts, aggregation, rows)
        start = block_last + grid.slide_micros
        if rows.height < _FEW_ROWS:
            size = min(2 * size, largest)
        elif rows.height > _MANY_ROWS:
            size = max(1, size // 2)


def _merge(
    grid: WindowGrid, starts: range, aggregation: WindowAggregation, rows: pl.DataFrame
) -> Iterator[pl.DataFrame]:
    """Merge the partials of consecutive windows, given where these start."""
    keys, merge = aggregation.keys, aggregation.merge
    if grid.is_pane_per_window:
        yield from group_by_instant(rows, PANE, keys, merge)
        return
    times = rows[PANE].to_numpy()
    first = np.maximum(grid.first_starts(times), starts[0])
    last = np.minimum(grid.last_starts(times), starts[-1])
    counts = (last - first) // grid.slide_micros + 1
    if int(counts.sum()) < ROWS_WORTH_A_PASS * len(starts):
        shared = repeat_rows(rows, first, counts, grid.slide_micros)
        yield from group_by_instant(shared, PANE, keys, merge)
        return
    if not rows[PANE].is_sorted():
        rows = rows.sort(PANE)
        times = rows[PANE].to_numpy()
    for start in starts:
        # Rows are sorted by time, so those of a window are adjacent and are not copied.
        first_row, end_row = np.searchsorted(times, [start, start + grid.width_micros])
        merged = merge(rows.slice(int(first_row), int(end_row - first_row)), keys)
        yield merged.with_columns(pl.lit(start, pl.Int64).alias(PANE))


def repeat_rows(
    rows: pl.DataFrame, first: Micros, counts: Micros, slide: int
) -> pl.DataFrame:
    """Return each row once per window that it is in, with the start of that window."""
    places = np.repeat(np.arange(len(counts)), counts)
    # The position among the windows of a row: it counts up and restarts at every row.
    ramp = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = first[places] + ramp * slide
    return rows[places].with_columns(pl.Series(PANE, starts))


TABLE = "panes"


class PaneWindows(Configured[PaneWindowConfig], ArrowOperator):
    """Keeps the panes of its subtask's keys and emits windows that close."""

    time_domain: ClassVar[TimeDomain] = TimeDomain.EVENT_TIME
    """The clock that closes windows."""

    def __init__(self, config: PaneWindowConfig) -> None:
        super().__init__(config)
        self._grid = config.grid()
        self._aggregation = config.aggregation()
        self._lateness = 0
        """How long after its end a window takes rows, in microseconds."""
        self._received: list[pa.RecordBatch] = []

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        return self._aggregation.results

    @override
    def tables(self) -> Sequence[TableSpec]:
        return [
            time_keyed_table(
                TABLE,
                self._aggregation.partials.arrow,
                key_columns=self._aggregation.keys,
                time_column=PANE,
                time_domain=self.time_domain,
                description=f"partials per key and pane of {self.config.window}",
                meaning=self._meaning(),
                groups=self._aggregation.groups,
            )
        ]

    def _reached(self, ctx: OperatorContext) -> tuple[int | None, int | None]:
        """Return how far the clock had come after the epoch before, and how far it has come."""
        return instant_of(ctx.previous_watermark), instant_of(ctx.watermark)

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Buffer partials; they are merged when the epoch's rows are complete."""
        self._received.append(batch)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the windows that close, and keep what later ones need."""
        aggregation, grid = self._aggregation, self._grid
        previous, watermark = self._reached(ctx)
        received, self._received = self._received, []
        schema = aggregation.partials.arrow
        fresh = panes_frame(pa.Table.from_batches(received, schema))
        self.revise(fresh, ctx, collector)
        open_from = grid.open_from(reached_before(watermark, self._lateness))
        is_needed = fresh[PANE] >= open_from
        needed, rest = fresh.filter(is_needed), fresh.filter(~is_needed)
        # Partials of several combiners become one row per key and pane.
        merge = aggregation.condense
        parts = [
            part.select(needed.columns)
            for part in group_by_instant(needed, PANE, aggregation.keys, merge)
        ]
        needed = pl.concat(parts) if parts else needed
        view = ctx.get_time_keyed_state(TABLE)
        closing = grid.closing(previous, watermark)
        if closing is not None:
            panes = pl.concat([rest, needed])
            for merged in close_windows(grid, aggregation, view, panes, closing):
                self.emit(merged, ctx, collector)
        # The write comes last: a pane of this epoch must not be found in the table as well.
        if needed.height:
            expiry = grid.last_ends(needed[PANE].to_numpy()) + self._lateness
            view.insert(to_table(needed, schema), pa.array(expiry).view(MICROS))

    def revise(
        self, fresh: pl.DataFrame, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit how partials change results that were emitted before: here they never do."""

    def emit(
        self, merged: pl.DataFrame, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the results of windows that close; the pane column holds their start."""
        del ctx
        starts, ends = pl.col(PANE), pl.col(PANE) + self._grid.width_micros
        collector.collect(self._aggregation.results_of(merged, starts, ends, ends - 1))

    def _meaning(self) -> str:
        return self._grid.meaning
