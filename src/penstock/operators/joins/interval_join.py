"""IntervalJoin: pairs of rows of equal keys whose event times are within bounds of each other.

    left.time + lower  <=  right.time  <=  left.time + upper

Pairs are emitted in the epoch in which the later of both rows comes. A row without a match is
emitted in the epoch in which the watermark passes the last instant at which a partner could
come, or at once if it came behind that:

    left row at t      ├──────────────┼───────────────────┤
                    t + lower         t               t + upper      then: watermark > t + upper

Whether a row was matched is not noted anywhere. When it is due, partners are looked for again
among what the other side keeps. So these are kept until the last row that could ask for them is
due, and nothing is ever rewritten. With `due(t)` the last instant at which a row waits:

| side | waits for partners until | kept for rows that ask again, if those are emitted alone |
|---|---|---|
| left | t + upper | until t + upper - lower, if lower < 0 |
| right | t - lower | until t - lower + upper, if upper > 0 |

A semi join emits a left row with its first match, and asks for older ones in the same way. A
row that is emitted alone has its own event time, which lies up to `upper` (of a right row:
`-lower`) behind the watermark. So the watermark of the output is held back by as much, and no
row is late for the next step.

Rows of one epoch are processed in this order: right rows meet the left rows that were kept; right
rows are kept; left rows meet all right rows; left rows are kept. So every pair is found once.

Two streams of aggregates over equal windows are joined in the same way: their windows are a
part of the key, and `lower = upper = 0`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import Micros
from penstock.core.figures import show_duration
from penstock.core.watermark import (
    MAX_MICROS,
    MIN_MICROS,
    CheckpointBarrier,
    EventTime,
    Idle,
    Watermark,
)
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.joins.matching import (
    JoinConfig,
    JoinSide,
    Rows,
    TimedJoin,
    beyond_all,
)
from penstock.operators.joins.sides import EVENT_TIME, How, JoinRules, Pick
from penstock.operators.windows.aggregation import WINDOW_TIME
from penstock.operators.windows.assignment import LONGEST_MICROS, Flags
from penstock.state.tables.specs import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalJoinConfig(JoinConfig):
    """The config of interval joins."""

    kind: ClassVar[str] = "interval_join"

    lower_micros: int
    upper_micros: int
    bounds: str
    """The interval as the user wrote it."""
    has_windows: bool = False
    """Whether rows carry windows, which are a part of the key, instead of event times alone."""

    @override
    def rules(self) -> JoinRules:
        left, right = self.sides()
        types = [s.arrow.field(s.time_column or "").type for s in (left, right)]
        zone = types[0].tz or types[1].tz
        own = (pa.field(EVENT_TIME, pa.timestamp("us", zone)),)
        return JoinRules(
            left,
            right,
            How(self.how),
            self.suffix,
            self.predicate(),
            own=() if self.has_windows else own,
            time_column=WINDOW_TIME if self.has_windows else EVENT_TIME,
            shared=(WINDOW_TIME,) if self.has_windows else (),
        )

    @property
    def kept_micros(self) -> tuple[int, int]:
        """How long left and right rows are kept behind their event time; it may be negative."""
        how, lower, upper = How(self.how), self.lower_micros, self.upper_micros
        asks_again = how in (How.RIGHT, How.FULL), how not in (How.INNER, How.RIGHT)
        return (
            upper + (max(0, -lower) if asks_again[0] else 0),
            -lower + (max(0, upper) if asks_again[1] else 0),
        )

    @property
    def held_back_micros(self) -> int:
        """How far the event time of an emitted row may be behind the watermark."""
        how = How(self.how)
        waits_left = how not in (How.INNER, How.RIGHT)
        waits_right = how in (How.RIGHT, How.FULL)
        return max(
            0,
            self.upper_micros if waits_left else 0,
            -self.lower_micros if waits_right else 0,
        )

    @override
    def shown(self) -> Mapping[str, str]:
        left, right = (_show_kept(micros) for micros in self.kept_micros)
        within = "window" if self.has_windows else "within"
        kept = {"keeps left rows": left, "keeps right rows": right}
        return {**self.shown_keys(), within: self.bounds, **kept}


def _show_kept(micros: int) -> str:
    if micros <= 0:
        return "until the watermark has passed them"
    return f"until the watermark is {show_duration(micros)} beyond them"


def find_bound_problems(lower_micros: int, upper_micros: int) -> list[str]:
    """Return the reasons why an interval between such bounds is not possible."""
    problems = [
        f"a bound of {micros} microseconds is not possible: it must be at most 9999 years"
        for micros in (lower_micros, upper_micros)
        if abs(micros) > LONGEST_MICROS
    ]
    if lower_micros > upper_micros:
        problems.append(
            "its lower bound is above its upper bound: nothing can match. Exchange them"
        )
    return problems


class IntervalJoin(TimedJoin[IntervalJoinConfig]):
    """Keeps the rows of its subtask's keys as long as partners can come, and emits matches."""

    def __init__(self, config: IntervalJoinConfig) -> None:
        super().__init__(config)
        self._lower, self._upper = config.lower_micros, config.upper_micros
        self._kept_left, self._kept_right = config.kept_micros

    @override
    def tables(self) -> Sequence[TableSpec]:
        what = f"the join within {self.config.bounds}"
        # A semi or anti join leaves out rows whose match came before them.
        which = "unmatched rows" if self.how.is_one_sided else "rows"
        return [
            self.left.table(what, f"{which} kept for {self._kept_left} us"),
            self.right.table(what, f"rows kept for {self._kept_right} us"),
        ]

    @override
    def late_rows(self, micros: Micros, ctx: OperatorContext) -> Flags | None:
        reached = ctx.previous_watermark
        return None if reached is None else micros < reached.micros

    @override
    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark | None:
        """Hold the watermark back by as much as rows that are emitted alone are behind it."""
        if isinstance(watermark, Idle):
            return watermark
        held_back = watermark.micros - self.config.held_back_micros
        return EventTime(max(MIN_MICROS, held_back))

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the pairs of the epoch's rows, and the rows that are due and have none."""
        previous, watermark = beyond_all(ctx.previous_watermark), beyond_all(ctx.watermark)
        left, right = self.left.take_fresh_pieces(), self.right.take_fresh()
        emits_left, emits_right = self.how.emits_unmatched
        span = previous, watermark
        due_left = self._due(self.left, self._upper, span, ctx) if emits_left else []
        due_right = self._due(self.right, -self._lower, span, ctx) if emits_right else []
        self._meet_kept_left(right, ctx, collector)
        self.right.insert(ctx, right, lambda micros: micros + (self._kept_right + 1))
        waiting = [self._meet_right(rows, watermark, ctx, collector) for rows in left]
        self.left.insert(ctx, waiting, lambda micros: micros + (self._kept_left + 1))
        for rows in due_left:
            matched = self._are_matched(rows, self.left, ctx)
            self._emit_alone(rows.where(~matched), self.left, collector)
        if watermark is not None and emits_right:
            due_right += [r.where(r.micros - self._lower < watermark) for r in right]
        for rows in due_right:
            matched = self._are_matched(rows, self.right, ctx)
            self._emit_alone(rows.where(~matched), self.right, collector)

    def _due(
        self,
        side: JoinSide,
        waits: int,
        span: tuple[int | None, int | None],
        ctx: OperatorContext,
    ) -> list[Rows]:
        """Return the kept rows whose last partner could have come between two watermarks."""
        previous, watermark = span
        if watermark is None:
            return []
        first = MIN_MICROS if previous is None else previous - waits
        end = MAX_MICROS if watermark == MAX_MICROS else watermark - waits
        return side.kept_between(ctx, first, end)

    def _meet_kept_left(
        self, fresh: Sequence[Rows], ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit what this epoch's right rows make of the left rows that were kept before."""
        if self.how is How.ANTI:
            return
        firsts: dict[int, tuple[Pick, Flags]] = {}
        pairs = (p for rows in fresh for p in self._pairs_at(rows.whole, self.right, ctx))
        for right, left in pairs:
            if self.how is How.SEMI:
                _, found = firsts.setdefault(
                    id(left.rows), (left, np.zeros(left.rows.num_rows, np.bool_))
                )
                found[left.places] = True
            else:
                collector.collect(self._joined(left, right))
        for left, found in firsts.values():
            places = np.flatnonzero(found)
            older = self._are_matched_at(
                Pick(left.rows, left.times, places), self.left, ctx
            )
            self._collect_left(Pick(left.rows, left.times, places[~older]), collector)

    def _meet_right(
        self,
        rows: Rows,
        watermark: int | None,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> Rows:
        """Emit what this epoch's left rows make of all right rows; return those that wait."""
        matched = np.zeros(len(rows.micros), np.bool_)
        one_sided = self.how.is_one_sided
        for left, right in self._pairs_at(rows.whole, self.left, ctx, first_only=one_sided):
            matched[left.places] = True
            if not one_sided:
                collector.collect(self._joined(left, right))
        if self.how is How.SEMI:
            self._collect_left(rows.pick(np.flatnonzero(matched)), collector)
        kept = ~matched if one_sided else np.ones(len(matched), np.bool_)
        if watermark is not None:
            is_due = rows.micros + self._upper < watermark
            if self.how.emits_unmatched[0]:
                self._emit_alone(rows.where(~matched & is_due), self.left, collector)
            if not self.how.emits_unmatched[1]:
                kept &= ~is_due  # nothing in this epoch asks for them any more
        return rows.where(kept)

    def _pairs_at(
        self,
        pick: Pick,
        side: JoinSide,
        ctx: OperatorContext,
        *,
        first_only: bool = False,
    ) -> Iterator[tuple[Pick, Pick]]:
        """Yield the matches of rows of one side among what the other side keeps: own, other.

        With `first_only` not all of a row's matches need to come.
        """
        is_left = side is self.left
        other = self.right if is_left else self.left
        first, last = self._lower, self._upper
        if not is_left:
            first, last = -last, -first
        micros = pick.micros
        bounds = micros + first, micros + (last + 1)
        found_pairs = other.partners_of(
            ctx,
            side.stream.key_columns,
            pick,
            bounds,
            first_only=first_only and self.rules.predicate is None,
        )
        for numbers, found in found_pairs:
            own = Pick(pick.rows, pick.times, pick.places[numbers])
            left, right = (own, found) if is_left else (found, own)
            matches = self.rules.are_matches(left, right, self._times(left, right))
            if matches is None:
                yield own, found
            elif matches.any():
                yield own.where(matches), found.where(matches)

    def _are_matched(self, rows: Rows, side: JoinSide, ctx: OperatorContext) -> Flags:
        return self._are_matched_at(rows.whole, side, ctx)

    def _are_matched_at(self, pick: Pick, side: JoinSide, ctx: OperatorContext) -> Flags:
        """Tell which picked rows have a match among what the other side keeps."""
        matched = np.zeros(pick.rows.num_rows, np.bool_)
        for own, _ in self._pairs_at(pick, side, ctx, first_only=True):
            matched[own.places] = True
        return matched[pick.places]

    def _emit_alone(self, rows: Rows, side: JoinSide, collector: ArrowCollector) -> None:
        """Emit rows of one side without a partner."""
        if not len(rows.micros):
            return
        pick = rows.whole
        left, right = (pick, None) if side is self.left else (None, pick)
        collector.collect(self.rules.rows_of(left, right, {EVENT_TIME: pick.micros}))

    def _collect_left(self, left: Pick, collector: ArrowCollector) -> None:
        if len(left.places):
            collector.collect(self.rules.rows_of(left, None, {}))

    def _joined(self, left: Pick, right: Pick) -> pa.RecordBatch:
        return self.rules.rows_of(left, right, self._times(left, right))

    def _times(self, left: Pick, right: Pick) -> Mapping[str, Micros]:
        """Return the event time of pairs: the later of both rows'."""
        return {EVENT_TIME: np.maximum(left.micros, right.micros)}
