"""ClockCombiner and ClockWindows: tumbling and sliding windows by the clock of the driver.

A row has the processing time of its epoch, which the driver's plan holds: one instant for all
rows and all subtasks. So tasks that run twice agree, no row is late or has a bad time, and the
rows need no event time. It never goes back (see `runtime.driver.session`), so a window closes in
the epoch where

    processing time of the epoch before  <  end  <=  processing time of this epoch

and everything else is as for windows by event time: panes, what is kept, how they are closed.

    driver's clock     :00        :04       :09        :11               :20
    epochs              ├─ 3 rows  ├─ 1 row  ├─ 2 rows  ├─ 1 row          ├─ no row
    tumbling("10s")                                     └▶ [:00, :10) 6   └▶ [:10, :20) 1

Each epoch asks for another one at the next end of a window, so that windows close on time also if
no row comes. The end of data closes all of them.

**Event time of the results.** A later epoch emits windows that end behind the instant of this one,
and the event time of a result is the last instant of its window. So event time behind this step
has come to the end of the first open window, less a microsecond. That changes only when a window
ends, therefore an epoch that closes windows is always published, and one that does not need not
be.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.schema import StreamSchema
from penstock.core.watermark import (
    MAX_EVENT_TIME,
    MAX_MICROS,
    CheckpointBarrier,
    EventTime,
    Watermark,
)
from penstock.graph.logical import OperatorSpec
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.windows.aggregation import WindowAggregation
from penstock.operators.windows.assignment import WindowGrid
from penstock.operators.windows.panes import (
    PaneCombiner,
    PaneCombinerConfig,
    PaneWindowConfig,
    PaneWindows,
)
from penstock.state.tables.specs import TimeDomain


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockWindowConfig(PaneWindowConfig):
    """The config of tumbling and sliding windows by processing time."""

    kind: ClassVar[str] = "processing_time_window"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockCombinerConfig(PaneCombinerConfig):
    """The config of their combiners."""

    kind: ClassVar[str] = "processing_time_combiner"

    diverts_bad: bool = False


def clock_window_specs(
    grid: WindowGrid, aggregation: WindowAggregation, *, consumer: str, shown: str
) -> tuple[OperatorSpec, OperatorSpec]:
    """Return the combiner and the window operator of one step, to be joined by key."""
    common: dict[str, Any] = {
        "window": shown,
        "stream": aggregation.stream.to_bytes(),
        "aggregates": aggregation.plan.to_config(),
        **asdict(grid),
    }
    combiner = ClockCombinerConfig(**common, consumer=consumer)
    return combiner.to_operator_spec(), ClockWindowConfig(**common).to_operator_spec()


class ClockCombiner(PaneCombiner):
    """Makes partials of rows that all have the processing time of their epoch."""

    @override
    def side_outputs(self, inputs: Any) -> dict[str, StreamSchema]:
        """Return none: no row is late, and none has a bad time."""
        return {}

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Buffer the rows, unless the epoch lies between two windows."""
        times = np.full(batch.num_rows, ctx.processing_time_micros, np.int64)
        if self._grid.has_gaps and self._grid.is_outside(times[:1]).any():
            ctx.count("rows_outside_windows", batch.num_rows)
            return
        self._buffer(batch.select(list(self._aggregation.reads)), times, collector)


class ClockWindows(PaneWindows):
    """Keeps the panes of its subtask's keys and emits windows that the clock has passed."""

    time_domain: ClassVar[TimeDomain] = TimeDomain.PROCESSING_TIME

    @override
    def generates_watermarks(self) -> bool:
        """Return True: the event time of the results follows the clock, not the input."""
        return True

    @override
    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark | None:
        """Return the earliest event time that a result of a later epoch can have."""
        promised = self._grid.next_end(ctx.processing_time_micros) - 1
        if watermark == MAX_EVENT_TIME:
            return EventTime(MAX_MICROS, promised)
        return EventTime(promised)

    @override
    def _reached(self, ctx: OperatorContext) -> tuple[int | None, int | None]:
        """Return the processing time of the epoch before and of this one, or the end of data."""
        has_ended = ctx.watermark == MAX_EVENT_TIME
        now = MAX_MICROS if has_ended else ctx.processing_time_micros
        return ctx.previous_processing_time_micros, now

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the windows that close, keep what later ones need, and wake up for the next."""
        super().handle_checkpoint(barrier, ctx, collector)
        ctx.wake_at(self._grid.next_end(ctx.processing_time_micros))
