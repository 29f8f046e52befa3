"""PaneWindows: tumbling and sliding windows, merged from panes when they close.

Partials come in per key and pane. What windows of later epochs need is appended to a table
by time and never changed; it expires when the last window that it serves has closed. A
window closes in the epoch where

    watermark of the epoch before  <  end  <=  watermark of this epoch

and is merged from the panes in `[start, end)`, those kept and those of the epoch itself. So
an epoch costs what came in and what goes out, whatever is kept.
"""

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.core.signals import CheckpointBarrier, EventTime
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import OperatorContext
from penstock.operators.display import DisplayableOperator
from penstock.operators.operator import ArrowOperator
from penstock.operators.windows.aggregation import (
    MICROS,
    PANE,
    WindowAggregation,
    to_rows,
)
from penstock.operators.windows.assignment import WindowGrid
from penstock.operators.windows.closing import OpenPanes, close_windows, panes_frame
from penstock.operators.windows.grouping import group_by_instant
from penstock.state.tables.specs import TableSpec, time_keyed_table

TABLE = "panes"


class PaneWindows(ArrowOperator):
    """Keeps the panes of its subtask's keys and emits windows that close."""

    def __init__(
        self, grid: WindowGrid, aggregation: WindowAggregation, shown: str
    ) -> None:
        self._grid = grid
        self._aggregation = aggregation
        self._shown = shown
        self._received: list[pa.RecordBatch] = []

    def name(self) -> str:
        """Return the kind."""
        return "window"

    def display(self) -> DisplayableOperator:
        """Show the window and what is computed."""
        computed = self._aggregation.plan.display()
        return DisplayableOperator(
            self.name(), {"window": self._shown, "computes": computed}
        )

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the results."""
        del inputs
        return self._aggregation.results

    def tables(self) -> Sequence[TableSpec]:
        """Return the table of panes."""
        return [
            time_keyed_table(
                TABLE,
                self._aggregation.partials.schema,
                key_columns=self._aggregation.keys,
                time_column=PANE,
                description=f"partials per key and pane of {self._shown}",
                meaning=self._grid.meaning,
            )
        ]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Take partials; they are merged when the epoch's are complete."""
        del ctx, collector
        self._received.append(batch)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the windows that close, and keep what later ones need."""
        del barrier
        aggregation, grid = self._aggregation, self._grid
        watermark = _micros(ctx.watermark)
        fresh = self._take_received()
        is_needed = fresh[PANE] >= grid.open_from(watermark)
        needed, rest = self._merged(fresh.filter(is_needed)), fresh.filter(~is_needed)
        view = ctx.get_time_keyed_state(TABLE)
        closing = grid.closing(_micros(ctx.previous_watermark), watermark)
        if closing is not None:
            panes = OpenPanes(view, pl.concat([rest, needed]))
            for merged in close_windows(grid, aggregation, panes, closing):
                starts, ends = pl.col(PANE), pl.col(PANE) + grid.width_micros
                results = aggregation.results_of(merged, starts, ends, ends - 1)
                collector.collect(results)
        # Only now: a pane of this epoch must not be found in the table as well.
        if needed.height:
            expiry = grid.last_ends(needed[PANE].to_numpy())
            rows = to_rows(needed, aggregation.partials.schema)
            view.insert(rows, pa.array(expiry).view(MICROS))

    def _take_received(self) -> pl.DataFrame:
        """Return this epoch's partials, their panes as microseconds."""
        received, self._received = self._received, []
        return panes_frame(
            pa.Table.from_batches(received, self._aggregation.partials.schema)
        )

    def _merged(self, partials: pl.DataFrame) -> pl.DataFrame:
        """Return partials of several senders as one row per key and pane."""
        aggregation = self._aggregation
        merged = group_by_instant(partials, PANE, aggregation.keys, aggregation.plan.merge)
        parts = [part.select(partials.columns) for part in merged]
        return pl.concat(parts) if parts else partials


def _micros(watermark: EventTime | None) -> int | None:
    return None if watermark is None else watermark.micros
