"""PaneCombiner: turns rows into partials per key and pane before they are exchanged.

It keeps no state. It runs where the rows are, buffers the columns that are needed, and once
per epoch (or whenever the buffer is full) groups them. It also decides which rows are late,
because partials cannot be taken apart again: by the watermark that the window operator has
reached, which is the one that decides what it still has open.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.core.schema import RESERVED_PREFIX, StreamSchema
from penstock.core.signals import CheckpointBarrier
from penstock.graph.logical import BAD, LATE
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import OperatorContext
from penstock.operators.display import DisplayableOperator
from penstock.operators.operator import ArrowOperator
from penstock.operators.windows.aggregation import (
    PANE,
    WindowAggregation,
    to_frame,
    to_rows,
)
from penstock.operators.windows.assignment import Flags, Micros, WindowGrid
from penstock.operators.windows.event_times import read_event_times, refuse_bad_times
from penstock.operators.windows.grouping import ROWS_WORTH_A_PASS, group_by_instant
from penstock.operators.windows.placing import place_rows

BUFFERED_ROWS = 1 << 20
"""So many rows are grouped at once: more cost memory and save little."""
_PANE = f"{RESERVED_PREFIX}_pane"
"""The pane of a row, under a name that no column of a stream has."""


class PaneCombiner(ArrowOperator):
    """Makes partials of the rows that its subtask sees. Its output goes to a `PaneWindows`."""

    def __init__(
        self,
        grid: WindowGrid,
        aggregation: WindowAggregation,
        *,
        consumer: str,
        diverts_bad_times: bool,
    ) -> None:
        self._grid = grid
        self._aggregation = aggregation
        self._consumer = consumer
        self._diverts_bad_times = diverts_bad_times
        self._batches: list[pa.RecordBatch] = []
        self._times: list[Micros] = []
        self._buffered_rows = 0

    def name(self) -> str:
        """Return the kind."""
        return "pane_combiner"

    def display(self) -> DisplayableOperator:
        """Show whose partials they are."""
        return DisplayableOperator(self.name(), {"for": self._consumer})

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the partials."""
        del inputs
        return self._aggregation.partials

    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        """Return late rows and, if they are wanted, bad ones: as they came."""
        sides = {LATE: inputs[0]}
        if self._diverts_bad_times:
            sides[BAD] = StreamSchema(inputs[0].schema)
        return sides

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Buffer the rows that some open window holds; send late and bad ones aside."""
        name = self._aggregation.stream.time_column or ""
        times = read_event_times(batch.column(name))
        if times.bad is not None:
            if not self._diverts_bad_times:
                raise refuse_bad_times(times, batch.column(name), name)
            ctx.count("bad_rows", int(times.bad.sum()))
            collector.collect(batch.filter(pa.array(times.bad)), BAD)
        reached = ctx.previous_watermark_of(self._consumer)
        placed = place_rows(times, self._grid, None if reached is None else reached.micros)
        if placed.outside is not None:
            ctx.count("rows_outside_windows", int(placed.outside.sum()))
        if placed.late is not None:
            ctx.count("late_rows", int(placed.late.sum()))
            collector.collect(batch.filter(pa.array(placed.late)), LATE)
        self._buffer(batch, times.micros, placed.kept)
        if self._buffered_rows >= BUFFERED_ROWS:
            self._emit(collector)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the partials of the epoch's rows."""
        del barrier, ctx
        self._emit(collector)

    def _buffer(self, batch: pa.RecordBatch, micros: Micros, kept: Flags | None) -> None:
        rows = batch.select(list(self._aggregation.reads))
        if kept is not None:
            rows, micros = rows.filter(pa.array(kept)), micros[kept]
        if len(micros):
            self._batches.append(rows)
            self._times.append(micros)
            self._buffered_rows += len(micros)

    def _emit(self, collector: ArrowCollector) -> None:
        if not self._buffered_rows:
            return
        aggregation = self._aggregation
        times = np.concatenate(self._times)
        frame = pl.DataFrame()
        if aggregation.reads:
            frame = to_frame(pa.Table.from_batches(self._batches))
        self._batches, self._times, self._buffered_rows = [], [], 0
        for partials in self._partials_of(frame, times):
            keyed = aggregation.with_key(partials).rename({_PANE: PANE})
            collector.collect(to_rows(keyed, aggregation.partials.schema))

    def _partials_of(self, frame: pl.DataFrame, times: Micros) -> Iterator[pl.DataFrame]:
        """Yield the partials per key and pane; the frame has no columns if none is needed."""
        keys, compute = (
            self._aggregation.stream.key_columns,
            self._aggregation.plan.partials_of,
        )
        limit = 1 + len(times) // ROWS_WORTH_A_PASS
        panes = self._grid.panes_between(int(times.min()), int(times.max()), limit=limit)
        if panes is None or not frame.width:
            starts = pl.Series(_PANE, self._grid.pane_starts(times))
            placed = pl.DataFrame([*frame.get_columns(), starts])
            yield from group_by_instant(placed, _PANE, keys, compute)
            return
        # Panes that lie side by side are told apart without a division per row.
        for start, end in panes:
            inside = pl.Series((times >= start) & (times < end))
            rows = frame if len(panes) == 1 else frame.filter(inside)
            if rows.height:
                at = pl.lit(start, pl.Int64).alias(_PANE)
                yield compute(rows, keys).with_columns(at)
