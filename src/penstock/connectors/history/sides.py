"""Contexts and collectors of the two sides: each reads as if it were the only source.

A side's splits have a prefix in the state, and its rows pass a filter on their way out. What a
side does to its context it does to the outer one, under the prefix.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from msgspec.structs import replace
from typing_extensions import override

from penstock.core.batch import to_batches
from penstock.core.rows import RowsLike
from penstock.core.schema import StreamSchema
from penstock.graph.logical import MAIN
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.splits import SplitPlan, SplitState

HISTORY = "history/"
LIVE = "live/"
FOLDED = "#folded"
"""Start and end in the plan of a split that is not read: it only loses what was folded."""
LEFT_OUT = {HISTORY: "rows_after_handover", LIVE: "rows_before_handover"}
"""The counters of rows that a side leaves out, as they are the other's."""


def is_read(split: SplitPlan, prefix: str) -> bool:
    """Return whether a side reads a split in this epoch."""
    return split.name.startswith(prefix) and not is_folded(split)


def is_folded(split: SplitPlan) -> bool:
    """Return whether a split is in the plan only to lose what was folded; see `planning`."""
    return isinstance(split.start, str) and split.start == FOLDED


def inner_states(known: Mapping[str, SplitState], prefix: str) -> dict[str, SplitState]:
    """Return the states of one side's splits under its own names.

    The offset of a split of history is a pair: the side's own, and the offsets of the live
    stream behind the rows that were read.
    """
    found = {
        name.removeprefix(prefix): state
        for name, state in known.items()
        if name.startswith(prefix)
    }
    if prefix == LIVE:
        return found
    return {name: replace(s, offset=s.offset and s.offset[0]) for name, s in found.items()}


def ends_of(state: SplitState | None) -> dict[str, int]:
    """Return the offsets of the live stream that a split keeps: those its rows have come to."""
    return {} if state is None or not state.offset else dict(state.offset[1] or {})


class SideContext(SourceContext):
    """The context of one side for one call: all it notes is noted by the outer one."""

    def __init__(
        self,
        outer: SourceContext,
        prefix: str,
        ends: dict[str, dict[str, int]] | None = None,
    ) -> None:
        """View `outer`; `ends` is what history's rows tell about the live stream, by split."""
        # Everything but the splits is shared, such as tables, counters and the deadline.
        vars(self).update(vars(outer))
        self._outer = outer
        self._prefix = prefix
        self._ends = ends
        self.split_states = inner_states(outer.split_states, prefix)
        self.splits = tuple(
            SplitPlan(split.name.removeprefix(prefix), split.start, split.end, split.weight)
            for split in outer.splits
            if is_read(split, prefix)
        )

    @override
    def advance(self, split: str, offset: Any) -> None:
        super().advance(split, offset)
        if self._ends is not None:
            offset = (offset, self._ends.get(split, {}))
        self._outer.advance(self._prefix + split, offset)

    @override
    def note_event_time(self, split: str, micros: int) -> None:
        super().note_event_time(split, micros)
        self._outer.note_event_time(self._prefix + split, micros)

    @override
    def end_split(self, split: str) -> None:
        super().end_split(split)
        self._outer.end_split(self._prefix + split)

    @override
    def wake_at(self, processing_time_micros: Any) -> None:
        self._outer.wake_at(processing_time_micros)


class SideCollector(SourceCollector):
    """Takes the rows of one side, and passes on those that a filter keeps."""

    def __init__(
        self,
        outer: SourceCollector,
        context: SideContext,
        prefix: str,
        *,
        outputs: Mapping[str, StreamSchema],
        keep: Callable[[pa.RecordBatch, str], pa.RecordBatch],
    ) -> None:
        """Take rows of `outputs`, the side's own; `keep` is called with its rows and the split."""
        vars(self).update(vars(outer))
        self._outer = outer
        self._context = context
        self._prefix = prefix
        self._side_outputs = outputs
        self._keep = keep

    @override
    def collect(
        self, rows: RowsLike, output: str = MAIN, *, split: str | None = None
    ) -> None:
        """Emit rows of a split of the side."""
        if split is None and len(self._context.splits) == 1:
            split = self._context.splits[0].name
        named = None if split is None else self._prefix + split
        stream = self._side_outputs.get(output)
        if stream is None:
            self._outer.collect(rows, output, split=named)  # which refuses it
            return
        for batch in to_batches(rows, stream.arrow):
            kept = self._keep(batch, split or "") if output == MAIN else batch
            if kept.num_rows < batch.num_rows:
                left_out = batch.num_rows - kept.num_rows
                # Rows that are left out take their part of the epoch, too.
                self._outer.budget.spend(left_out, batch.nbytes - kept.nbytes)
                self._context.count(LEFT_OUT[self._prefix], left_out)
            if kept.num_rows:
                wanted = self._outer_schema(output)
                self._outer.collect(_fitted(kept, wanted), output, split=named)

    def _outer_schema(self, output: str) -> pa.Schema:
        return self._context.outputs[output].arrow


def _fitted(rows: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns of a schema, those that the side does not have as nulls."""
    if rows.schema.equals(wanted):
        return rows
    names = set(rows.schema.names)
    columns = [
        rows.column(field.name)
        if field.name in names
        else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
