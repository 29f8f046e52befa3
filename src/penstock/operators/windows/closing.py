"""Closing windows: which ones have panes at all, in blocks, and how panes become windows.

A watermark may pass many windows at once: after a pause, in a backfill, at the end of data.
They are closed in blocks, earliest first, so that memory is bounded by a block and not by
what is kept. Time without panes is skipped, never walked through.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from penstock.operators.windows.aggregation import PANE, WindowAggregation, to_frame
from penstock.operators.windows.assignment import WindowGrid
from penstock.operators.windows.grouping import ROWS_WORTH_A_PASS, group_by_instant
from penstock.state.tables.time_keyed_view import TimeKeyedView

_FIRST_BLOCK = 16
"""With so many windows a block starts; it grows while windows turn out to be small."""
_FEW_ROWS = 200_000
_MANY_ROWS = 2_000_000
_LARGEST_BLOCK = 1 << 16
_LARGEST_SHARING_BLOCK = 128
"""Windows that share panes hold rows several times over."""


class OpenPanes:
    """The panes that closing windows may need: those kept, and those of the epoch itself."""

    def __init__(self, kept: TimeKeyedView, fresh: pl.DataFrame) -> None:
        """Take the partials of the epoch, which are not among those kept."""
        self._kept = kept
        self._fresh = fresh if fresh[PANE].is_sorted() else fresh.sort(PANE)
        self._times = self._fresh[PANE].to_numpy()

    def first_from(self, start: int) -> int | None:
        """Return the earliest pane at `start` or later."""
        index = int(np.searchsorted(self._times, start))
        found = [self._kept.min_time(start)]
        if index < len(self._times):
            found.append(int(self._times[index]))
        return min((time for time in found if time is not None), default=None)

    def rows(self, start: int, end: int) -> pl.DataFrame:
        """Return the partials of panes in `[start, end)`."""
        first, last = np.searchsorted(self._times, [start, end]).tolist()
        fresh = self._fresh.slice(first, last - first)
        kept = panes_frame(self._kept.rows(start, end))
        parts = [part for part in (kept, fresh) if part.height]
        return pl.concat(parts) if parts else fresh


def panes_frame(rows: object) -> pl.DataFrame:
    """Return partials as a frame, their panes as microseconds."""
    return to_frame(rows).with_columns(pl.col(PANE).cast(pl.Int64))  # type: ignore[arg-type]


def close_windows(
    grid: WindowGrid,
    aggregation: WindowAggregation,
    panes: OpenPanes,
    ends: tuple[int, int],
) -> Iterator[pl.DataFrame]:
    """Yield the merged partials of windows that end in `ends`, both included.

    In the column of panes is where the window starts.
    """
    start, last = ends[0] - grid.width_micros, ends[1] - grid.width_micros
    size = _FIRST_BLOCK
    largest = _LARGEST_BLOCK if grid.is_pane_per_window else _LARGEST_SHARING_BLOCK
    while (pane := panes.first_from(start)) is not None:
        start = max(start, grid.first_start(pane))
        if start > last:
            return
        block_last = min(last, start + (size - 1) * grid.slide_micros)
        rows = panes.rows(start, block_last + grid.width_micros)
        yield from _merge(_Block(grid, start, block_last), aggregation, rows)
        start = block_last + grid.slide_micros
        if rows.height < _FEW_ROWS:
            size = min(2 * size, largest)
        elif rows.height > _MANY_ROWS:
            size = max(1, size // 2)


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive windows, by where the first and the last of them start."""

    grid: WindowGrid
    first: int
    last: int

    def starts(self) -> range:
        return range(self.first, self.last + 1, self.grid.slide_micros)


def _merge(
    block: _Block, aggregation: WindowAggregation, rows: pl.DataFrame
) -> Iterator[pl.DataFrame]:
    keys, merge = aggregation.keys, aggregation.plan.merge
    if block.grid.is_pane_per_window:
        yield from group_by_instant(rows, PANE, keys, merge)
        return
    times = rows[PANE].to_numpy()
    first = np.maximum(block.grid.first_starts(times), block.first)
    last = np.minimum(block.grid.last_starts(times), block.last)
    counts = (last - first) // block.grid.slide_micros + 1
    if int(counts.sum()) < ROWS_WORTH_A_PASS * len(block.starts()):
        shared = _repeat(rows, first, counts, block.grid.slide_micros)
        yield from group_by_instant(shared, PANE, keys, merge)
        return
    if not rows[PANE].is_sorted():
        rows = rows.sort(PANE)
        times = rows[PANE].to_numpy()
    for start in block.starts():
        # In order of time the rows of a window lie side by side: they are not copied.
        first_row, end_row = np.searchsorted(
            times, [start, start + block.grid.width_micros]
        )
        merged = merge(rows.slice(int(first_row), int(end_row - first_row)), keys)
        yield merged.with_columns(pl.lit(start, pl.Int64).alias(PANE))


def _repeat(
    rows: pl.DataFrame,
    first: "np.typing.NDArray[np.int64]",
    counts: "np.typing.NDArray[np.int64]",
    slide: int,
) -> pl.DataFrame:
    """Return each row once per window that it is in, with the start of that window."""
    places = np.repeat(np.arange(len(counts)), counts)
    # Position among the windows of a row: a ramp that starts anew at every row.
    ramp = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = first[places] + ramp * slide
    return rows[places].with_columns(pl.Series(PANE, starts))
