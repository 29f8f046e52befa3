"""Splits that are counted through: how far each may go in an epoch, by count, rate and budget.

For sources that make their rows: row r of a split is always the same row. A split's offset
is how many rows it has emitted, and the processing time at which the source was started.
The driver plans how far each split counts; a run reads exactly that, so a second run of an
epoch gives the same rows. How many splits there are is fixed by the first epoch: it is part
of their names, and later runs keep what the state knows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from penstock.operators.collector import SourceCollector
from penstock.operators.context import SourceContext
from penstock.operators.source import SourcePlan
from penstock.operators.splits import SourceBudget, SplitPlan, SplitState

_BATCH_ROWS = 65_536
_UNLIMITED = 1 << 62

RowsBelow: TypeAlias = Callable[[int, int, int], int]
"""(number, split index, split count) → rows of the split among the numbers before it."""
MakeRows: TypeAlias = Callable[[int, int, int, int], pa.RecordBatch]
"""(split index, split count, start, end) → the rows `[start, end)` of the split."""


@dataclass(frozen=True, slots=True)
class CountedSplits:
    """The splits of one source: how many numbers there are, and how they become rows."""

    count: int | None
    """Numbers in all; None without an end."""
    rate: float | None
    """Numbers a second, since the first epoch; None as fast as possible."""
    splits: int
    rows_below: RowsBelow

    def plan(
        self,
        known: Mapping[str, SplitState],
        budget: SourceBudget,
        now_micros: int,
        *,
        row_bytes: int,
    ) -> SourcePlan:
        """Let every split count as far as count, rate and its share of the budget allow.

        In the first epoch all splits are named, also those with nothing to do yet: from then
        on their number is in the state.
        """
        split_count = _split_count(known) or self.splits
        share = max(1, min(budget.rows, budget.size_bytes // row_bytes) // split_count)
        plans = []
        has_more = False
        for index in range(split_count):
            name = _split_name(index, split_count)
            state = known.get(name, SplitState())
            if state.ended:
                continue
            done, since = (0, now_micros) if state.offset is None else state.offset
            due = self._due(index, split_count, now_micros - since)
            end = max(done, min(done + share, due))
            has_more |= end < due
            if end > done or state.offset is None or self._is_last(index, split_count, end):
                plans.append(SplitPlan(name, (done, since), (end, since), end - done))
        return SourcePlan(tuple(plans), is_complete=True, has_more=has_more)

    def run(
        self, ctx: SourceContext, collector: SourceCollector, make_rows: MakeRows
    ) -> None:
        """Count as planned; a split ends with its last row."""
        for split in ctx.splits:
            index, split_count = _parse(split.name)
            (done, since), (end, _) = split.start, split.end
            ctx.advance(split.name, (done, since))
            for start in range(done, end, _BATCH_ROWS):
                upto = min(start + _BATCH_ROWS, end)
                collector.collect(
                    make_rows(index, split_count, start, upto), split=split.name
                )
                ctx.advance(split.name, (upto, since))
            if self._is_last(index, split_count, end):
                ctx.end_split(split.name)

    def _due(self, index: int, split_count: int, elapsed_micros: int) -> int:
        """Return how many rows a split may have emitted after so much time."""
        limits = [] if self.count is None else [self.count]
        if self.rate is not None:
            limits.append(int(self.rate * max(0, elapsed_micros) / 1_000_000))
        return self.rows_below(min(limits), index, split_count) if limits else _UNLIMITED

    def _is_last(self, index: int, split_count: int, done: int) -> bool:
        count = self.count
        return count is not None and done >= self.rows_below(count, index, split_count)


def _split_name(index: int, split_count: int) -> str:
    return f"{index}-of-{split_count}"


def _parse(name: str) -> tuple[int, int]:
    index, _, split_count = name.partition("-of-")
    return int(index), int(split_count)


def _split_count(known: Mapping[str, SplitState]) -> int | None:
    return next((_parse(name)[1] for name in known), None)
