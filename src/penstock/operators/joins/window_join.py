"""WindowJoin: rows of equal keys that lie in the same tumbling or sliding window.

Rows of both sides are kept until the last window that holds them has closed. A window closes
where

    watermark of the epoch before  <  end  <=  watermark of this epoch

and then everything is emitted that it holds: pairs, rows without a match, or rows with one.
Nothing comes earlier, so there is nothing to take back. A row that is in several windows is
emitted for each of them.

    left      a1 ──── a2 ─────┤            a1, a2 with b1     when the watermark reaches the end
    right        b1 ──────────┤  b2
              start          end

A row of the left side asks for its partners by key and by the bounds of the window, so that the
cost follows the rows of the windows that close. Windows are closed in blocks, earliest first, as
aggregates are: memory is bounded by a block, and time without rows is skipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import Micros
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier
from penstock.errors import ErrorCode, UserError
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.joins.matching import JoinConfig, JoinSide, Rows, TimedJoin
from penstock.operators.joins.sides import How, JoinRules, Pick
from penstock.operators.windows.aggregation import (
    WINDOW_END,
    WINDOW_START,
    WINDOW_TIME,
    instant_of,
)
from penstock.operators.windows.assignment import (
    Flags,
    WindowGrid,
    find_grid_problems,
    years_in,
)
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.time_keyed_rows import expand_ranges

_FIRST_BLOCK = 16
"""How many windows are closed at once at first; blocks grow and shrink with their rows."""
_FEW_ROWS = 100_000
_MANY_ROWS = 1_000_000
_LARGEST_BLOCK = 1 << 16


def window_rules(config: JoinConfig) -> JoinRules:
    """Return what a join by windows emits: its own columns are the window's."""
    left, right = config.sides()
    zone = zone_of(left)
    names = WINDOW_START, WINDOW_END, WINDOW_TIME
    return JoinRules(
        left,
        right,
        How(config.how),
        config.suffix,
        config.predicate(),
        own=tuple(pa.field(name, pa.timestamp("us", zone)) for name in names),
        time_column=WINDOW_TIME,
        is_windowed=True,
    )


def zone_of(stream: StreamSchema) -> str | None:
    """Return the time zone of a stream's event time."""
    kind = stream.arrow.field(stream.time_column or "").type
    zone: str | None = kind.tz
    return zone


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowJoinConfig(JoinConfig):
    """The config of joins in tumbling and sliding windows."""

    kind: ClassVar[str] = "window_join"

    window: str
    """The window as the user wrote it."""
    width_micros: int
    slide_micros: int
    offset_micros: int

    @override
    def rules(self) -> JoinRules:
        return window_rules(self)

    def grid(self) -> WindowGrid:
        """Return the windows; lengths that are not possible are refused."""
        lengths = self.width_micros, self.slide_micros, self.offset_micros
        problems = find_grid_problems(*lengths)
        if problems:
            raise UserError(
                f"{self.window} cannot be joined in: {'; '.join(problems)}",
                code=ErrorCode.INVALID_NUMBER,
            )
        return WindowGrid(*lengths)

    @override
    def shown(self) -> Mapping[str, str]:
        kept = dict.fromkeys(
            ("keeps left rows", "keeps right rows"), "until their last window has closed"
        )
        return {**self.shown_keys(), "window": self.window, **kept}


@dataclass(frozen=True, slots=True)
class _InWindows:
    """Rows of one side, each once per window that it is in."""

    pick: Pick
    starts: Micros
    """The start of the window."""


class WindowJoin(TimedJoin[WindowJoinConfig]):
    """Keeps the rows of its subtask's keys, and emits what windows hold when they close."""

    def __init__(self, config: WindowJoinConfig) -> None:
        super().__init__(config)
        self._grid = config.grid()
        self._years = years_in(zone_of(self.rules.left))

    @override
    def tables(self) -> Sequence[TableSpec]:
        what, meaning = f"the join in {self.config.window}", f"rows of {self._grid.meaning}"
        return [side.table(what, meaning) for side in (self.left, self.right)]

    @override
    def late_rows(self, micros: Micros, ctx: OperatorContext) -> Flags | None:
        if ctx.previous_watermark is None:
            return None
        late: Flags = micros < self._grid.open_from(ctx.previous_watermark.micros)
        return late & ~self._grid.is_outside(micros) if self._grid.has_gaps else late

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Keep the epoch's rows, and emit what the windows that close hold."""
        grid = self._grid
        for side in (self.left, self.right):
            fresh = side.take_fresh()
            if grid.has_gaps:
                fresh = [self._inside(rows, ctx) for rows in fresh]
            side.insert(ctx, fresh, grid.last_ends)
        closing = grid.closing(
            instant_of(ctx.previous_watermark), instant_of(ctx.watermark)
        )
        if closing is None:
            return
        for starts in self._blocks(closing, ctx):
            self._close(starts, ctx, collector)

    def _inside(self, rows: Rows, ctx: OperatorContext) -> Rows:
        """Return rows without those between windows, which are counted."""
        outside = self._grid.is_outside(rows.micros)
        ctx.count("rows_outside_windows", int(outside.sum()))
        return rows.where(~outside)

    def _blocks(self, closing: tuple[int, int], ctx: OperatorContext) -> Iterator[range]:
        """Yield where the windows of each block start; windows without rows are skipped."""
        grid, size = self._grid, _FIRST_BLOCK
        start, last = (end - grid.width_micros for end in closing)
        sides = (self.left,) if self.how.is_one_sided else (self.left, self.right)
        views = [side.view(ctx) for side in sides]
        while start <= last:
            found = [view.min_time(start) for view in views]
            known = [micros for micros in found if micros is not None]
            if not known:
                return
            start = max(start, grid.first_starts(min(known)))
            block_last = min(last, start + (size - 1) * grid.slide_micros)
            if start > last:
                return
            self._rows_in_block = 0
            yield range(start, block_last + 1, grid.slide_micros)
            start = block_last + grid.slide_micros
            if self._rows_in_block < _FEW_ROWS:
                size = min(2 * size, _LARGEST_BLOCK)
            elif self._rows_in_block > _MANY_ROWS:
                size = max(1, size // 2)

    def _close(
        self, starts: range, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        emits_left, emits_right = self.how.emits_unmatched
        for placed in self._in_windows(self.left, starts, ctx):
            matched = np.zeros(len(placed.starts), np.bool_)
            one_sided = self.how.is_one_sided
            pairs = self._pairs(placed, self.left, ctx, first_only=one_sided)
            for numbers, left, right in pairs:
                matched[numbers] = True
                if not self.how.is_one_sided:
                    own = self._window_columns(placed.starts[numbers])
                    collector.collect(self.rules.rows_of(left, right, own))
            wanted = matched if self.how is How.SEMI else ~matched
            if (emits_left or self.how is How.SEMI) and wanted.any():
                own = self._window_columns(placed.starts[wanted])
                collector.collect(self.rules.rows_of(placed.pick.where(wanted), None, own))
        if not emits_right:
            return
        for placed in self._in_windows(self.right, starts, ctx):
            matched = np.zeros(len(placed.starts), np.bool_)
            pairs = self._pairs(placed, self.right, ctx, first_only=True)
            for numbers, _, _ in pairs:
                matched[numbers] = True
            if not matched.all():
                own = self._window_columns(placed.starts[~matched])
                alone = placed.pick.where(~matched)
                collector.collect(self.rules.rows_of(None, alone, own))

    def _in_windows(
        self, side: JoinSide, starts: range, ctx: OperatorContext
    ) -> Iterator[_InWindows]:
        """Yield the rows of a side once per window that starts in `starts`."""
        grid = self._grid
        for rows in side.kept_between(ctx, starts[0], starts[-1] + grid.width_micros):
            self._rows_in_block += len(rows.micros)
            first = np.maximum(grid.first_starts(rows.micros), starts[0])
            last = np.minimum(grid.last_starts(rows.micros), starts[-1])
            counts = (last - first) // grid.slide_micros + 1
            numbers = (first - starts[0]) // grid.slide_micros
            for places, windows in expand_ranges(numbers, counts):
                at = starts[0] + windows * grid.slide_micros
                yield _InWindows(rows.pick(places), at)

    def _pairs(
        self,
        placed: _InWindows,
        side: JoinSide,
        ctx: OperatorContext,
        *,
        first_only: bool,
    ) -> Iterator[tuple[np.typing.NDArray[np.int64], Pick, Pick]]:
        """Yield the matches of rows of one side: numbers of those rows, left rows, right rows."""
        other = self.right if side is self.left else self.left
        keys, starts = side.stream.key_columns, placed.starts
        bounds = starts, starts + self._grid.width_micros
        first_only = first_only and self.rules.predicate is None
        found_pairs = other.partners_of(
            ctx, keys, placed.pick, bounds, first_only=first_only
        )
        for numbers, found in found_pairs:
            pick = placed.pick
            own = Pick(pick.rows, pick.times, pick.places[numbers])
            left, right = (own, found) if side is self.left else (found, own)
            window = self._window_columns(starts[numbers])
            matches = self.rules.are_matches(left, right, window)
            if matches is None:
                yield numbers, left, right
            elif matches.any():
                yield numbers[matches], left.where(matches), right.where(matches)

    def _window_columns(self, starts: Micros) -> Mapping[str, Micros]:
        ends = starts + self._grid.width_micros
        return clipped_windows(starts, ends, ends - 1, self._years)


def clipped_windows(
    starts: Micros, ends: Micros, last: Micros, years: tuple[int, int]
) -> Mapping[str, Micros]:
    """Return the columns of windows, cut off where Python's years end."""
    instants = {WINDOW_START: starts, WINDOW_END: ends, WINDOW_TIME: last}
    return {name: np.clip(micros, *years) for name, micros in instants.items()}
