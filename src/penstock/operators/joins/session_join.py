"""SessionJoin: rows of equal keys that lie in the same session, cut over both sides together.

A session lasts as long as rows of its key, of either side, follow each other within a gap. It
is `[start, end]` with `end` a gap after its last row, and closes when the watermark is beyond
its end, as sessions of aggregates do; then everything that it holds is emitted.

    left      a1 ───── a2                         a1, a2 with b1, b2
    right         b1 ─────── b2 ──gap──┤
              start                   end         when the watermark is beyond the end

Where a row's session ends is not known when the row comes. So a row is kept until it would end
if no row followed, and is found by that instant when it is due. Then the rows of its key are
cut into sessions: a session that is over is emitted, and rows of one that is still open are
kept again, until its end as far as that is known. So no epoch reads sessions that go on, and a
row is written again at most once per gap that its session lasts.

Lateness is decided for whole sessions: rows whose session had ended when the epoch began are
late, all others count.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import Micros, relay
from penstock.core.batch import empty_batch
from penstock.core.watermark import MIN_MICROS, CheckpointBarrier
from penstock.errors import ErrorCode, UserError
from penstock.operators.aggregates.frames import columns_to_frame
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.joins.matching import (
    JoinConfig,
    JoinSide,
    Rows,
    TimedJoin,
    beyond_all,
    in_one_piece,
)
from penstock.operators.joins.sides import How, JoinRules, Pick
from penstock.operators.joins.window_join import clipped_windows, window_rules, zone_of
from penstock.operators.windows.aggregation import MICROS
from penstock.operators.windows.assignment import Flags, find_length_problems, years_in
from penstock.operators.windows.session_merging import (
    WAKES_AT,
    cut_sessions,
    in_one_number,
)
from penstock.state.tables.sorted_rows import Positions, join_rows, take_rows
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.time_keyed_rows import expand_ranges

_NUMBER = "_penstock_number"
_FIRST_KEYS, _MOST_KEYS = 1_024, 1 << 17
"""How many keys are looked at together; blocks grow and shrink with their rows."""
_FEW_ROWS, _MANY_ROWS = 100_000, 1_000_000
_WAKES_AT = pa.field(WAKES_AT, MICROS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionJoinConfig(JoinConfig):
    """The config of joins in sessions."""

    kind: ClassVar[str] = "session_join"

    window: str
    """The window as the user wrote it."""
    gap_micros: int

    @override
    def rules(self) -> JoinRules:
        return window_rules(self)

    @override
    def shown(self) -> Mapping[str, str]:
        kept = dict.fromkeys(
            ("keeps left rows", "keeps right rows"), "until their session has ended"
        )
        return {**self.shown_keys(), "window": self.window, **kept}


_Span: TypeAlias = tuple[int | None, int | None]
"""The watermark of the epoch before, and of this epoch."""


@dataclass(frozen=True, slots=True)
class _Fresh:
    """This epoch's rows of one side."""

    rows: Rows
    keys: Positions
    """The number of each row's key, in order; -1 for keys that are not looked at."""
    order: Positions
    """The rows in order of these numbers."""


@dataclass(frozen=True, slots=True)
class _Members:
    """Rows of one side of a block of keys, those kept before this epoch first."""

    rows: Rows
    keys: Positions
    """The number of each row's key."""
    wakes_at: Micros
    kept: int
    """How many were kept before."""

    @property
    def is_fresh(self) -> Flags:
        fresh: Flags = np.arange(len(self.keys)) >= self.kept
        return fresh


@dataclass(frozen=True, slots=True)
class _Sessions:
    """The sessions of a block of keys."""

    starts: Micros
    ends: Micros
    of_rows: tuple[Positions, Positions]
    """The session of each row of the left and of the right side."""


class SessionJoin(TimedJoin[SessionJoinConfig]):
    """Keeps the rows of its subtask's keys, and emits what sessions hold when they close."""

    def __init__(self, config: SessionJoinConfig) -> None:
        super().__init__(config)
        problems = find_length_problems({"gap": config.gap_micros})
        if problems:
            raise UserError(
                f"{config.window} cannot be joined in: {'; '.join(problems)}",
                code=ErrorCode.INVALID_NUMBER,
            )
        self._gap = config.gap_micros
        self._years = years_in(zone_of(self.rules.left))
        self._sides = self.left, self.right

    @override
    def tables(self) -> Sequence[TableSpec]:
        what, meaning = f"the join in {self.config.window}", f"gap of {self._gap} us"
        return [side.table(what, meaning, _WAKES_AT) for side in self._sides]

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Look at the keys with sessions that may be over; emit those, keep the others."""
        previous, watermark = beyond_all(ctx.previous_watermark), beyond_all(ctx.watermark)
        span = previous, watermark
        taken = [in_one_piece(s.take_fresh(), s.stream.arrow) for s in self._sides]
        keys = self._keys_to_look_at(taken, span, ctx)
        fresh = [
            _Fresh(rows, numbers, np.argsort(numbers, kind="stable"))
            for side, rows in zip(self._sides, taken, strict=True)
            for numbers in (self._numbers_of(rows, side, keys),)
        ]
        kept = [
            (side, others, others.micros + self._gap)
            for side, own in zip(self._sides, fresh, strict=True)
            for others in (own.rows.where(own.keys < 0),)
        ]
        for members in self._blocks(keys, fresh, ctx):
            kept += self._settle(members, self._cut(members), span, ctx, collector)
        # The writes come last: a row that is kept again must not be found twice.
        for side, rows, wakes_at in kept:
            self._insert(side, rows, wakes_at, ctx)

    def _insert(
        self, side: JoinSide, rows: Rows, wakes_at: Micros, ctx: OperatorContext
    ) -> None:
        if len(rows.micros):
            wakes = pa.array(wakes_at).view(MICROS)
            batch = rows.batch.append_column(_WAKES_AT, wakes)
            # A row is due when the watermark is beyond it, so it must not expire before.
            side.view(ctx).insert(batch, wakes_at + 1)

    def _keys_to_look_at(
        self,
        fresh: Sequence[Rows],
        span: _Span,
        ctx: OperatorContext,
    ) -> pa.RecordBatch:
        """Return every key once that has a row whose session may be over."""
        previous, watermark = span
        found: list[pa.RecordBatch] = []
        if watermark is not None:
            first = MIN_MICROS if previous is None else previous
            for side, rows in zip(self._sides, fresh, strict=True):
                due = side.view(ctx).rows(first, watermark)
                ripe = rows.where(rows.micros + self._gap < watermark)
                batches = [*due.to_batches(), ripe.batch]
                found += [self._keys_of(batch, side) for batch in batches]
        found = [keys for keys in found if keys.num_rows]
        if not found:
            return self._keys_of(empty_batch(self.left.stream.arrow), self.left)
        whole = join_rows(found)
        every = self._numbered(whole)
        distinct = every.unique(self._names, keep="first", maintain_order=True)
        return take_rows(whole, distinct[_NUMBER].to_numpy())

    def _numbered(self, keys: pa.RecordBatch) -> pl.DataFrame:
        """Return keys as Polars compares them, with their numbers."""
        frame = columns_to_frame([keys], self._names)
        return frame.with_columns(pl.Series(_NUMBER, np.arange(keys.num_rows)))

    @property
    def _names(self) -> tuple[str, ...]:
        """What key columns are called while keys of both sides are compared."""
        return self.left.stream.key_columns

    def _keys_of(self, rows: pa.RecordBatch, side: JoinSide) -> pa.RecordBatch:
        """Return the keys of rows of a side, named and typed as those of the left side."""
        arrow = self.left.stream.arrow
        pairs = zip(side.stream.key_columns, self._names, strict=True)
        arrays = [relay(rows.column(own), arrow.field(name).type) for own, name in pairs]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._names))

    def _numbers_of(self, rows: Rows, side: JoinSide, keys: pa.RecordBatch) -> Positions:
        """Return the number of each row's key, -1 for rows of other keys."""
        if not keys.num_rows:
            return np.full(len(rows.micros), -1, np.int64)
        found = columns_to_frame([self._keys_of(rows.batch, side)], self._names).join(
            self._numbered(keys),
            on=list(self._names),
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        return found[_NUMBER].fill_null(-1).to_numpy()

    def _blocks(
        self,
        keys: pa.RecordBatch,
        fresh: Sequence[_Fresh],
        ctx: OperatorContext,
    ) -> Iterator[tuple[_Members, _Members]]:
        """Yield all rows of the keys, some keys at a time."""
        start, size = 0, _FIRST_KEYS
        while start < keys.num_rows:
            end = min(keys.num_rows, start + size)
            block = keys.slice(start, end - start)
            left, right = (
                self._members(side, block, start, own, ctx)
                for side, own in zip(self._sides, fresh, strict=True)
            )
            yield left, right
            count = len(left.keys) + len(right.keys)
            if count < _FEW_ROWS:
                size = min(2 * size, _MOST_KEYS)
            elif count > _MANY_ROWS:
                size = max(1, size // 2)
            start = end

    def _members(
        self,
        side: JoinSide,
        block: pa.RecordBatch,
        start: int,
        fresh: _Fresh,
        ctx: OperatorContext,
    ) -> _Members:
        """Return the rows of a side that have one of the keys, which count from `start`."""
        names, arrow = side.stream.key_columns, side.stream.arrow
        columns = zip(block.columns, names, strict=True)
        arrays = [relay(column, arrow.field(name).type) for column, name in columns]
        found = side.view(ctx).get(pa.RecordBatch.from_arrays(arrays, names=list(names)))
        old = found.rows.select(side.stream.arrow.names)
        keys = np.repeat(np.arange(start, start + block.num_rows), np.diff(found.offsets))
        wakes: Micros = found.rows.column(WAKES_AT).cast(pa.int64()).to_numpy()
        parts = [side.to_rows(batch) for batch in old.to_batches()]
        numbers = fresh.keys[fresh.order]
        first, end = np.searchsorted(numbers, [start, start + block.num_rows])
        places = fresh.order[first:end]
        micros = fresh.rows.micros[places]
        parts.append(Rows(take_rows(fresh.rows.batch, places), micros))
        return _Members(
            in_one_piece(parts, side.stream.arrow),
            np.concatenate([keys, numbers[first:end]]),
            np.concatenate([wakes, micros + self._gap]),
            kept=len(keys),
        )

    def _cut(self, members: tuple[_Members, _Members]) -> _Sessions:
        left, right = members
        # A null is no other null's equal: such rows of the two sides have no session in common.
        has_key = self.right.has_key(right.rows.batch)
        apart = 1 + max(own.keys.max(initial=0) for own in members)
        keys = np.concatenate([left.keys, right.keys + np.where(has_key, 0, apart)])
        micros = np.concatenate([left.rows.micros, right.rows.micros])
        order = np.argsort(in_one_number(keys, micros), kind="stable")
        ordered = micros[order]
        session, first, last = cut_sessions(order, keys[order], ordered, ordered, self._gap)
        of_rows = session[: len(left.keys)], session[len(left.keys) :]
        return _Sessions(ordered[first], ordered[last] + self._gap, of_rows)

    def _settle(
        self,
        members: tuple[_Members, _Members],
        sessions: _Sessions,
        span: _Span,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> Iterator[tuple[JoinSide, Rows, Micros]]:
        """Emit closed sessions and late rows; yield the rows to keep, and until when."""
        previous, watermark = span
        if watermark is None:
            return
        is_over = sessions.ends < watermark
        is_late = np.zeros(len(is_over), np.bool_)
        if previous is not None:
            is_late = sessions.ends < previous
        for side, own, session in zip(self._sides, members, sessions.of_rows, strict=True):
            late = own.rows.where(is_late[session])
            side.put_late_aside(late.batch, ctx, collector)
        self._emit(members, sessions, is_over & ~is_late, collector)
        for side, own, session in zip(self._sides, members, sessions.of_rows, strict=True):
            again = ~is_over[session] & (own.is_fresh | (own.wakes_at < watermark))
            yield side, own.rows.where(again), sessions.ends[session][again]

    def _emit(
        self,
        members: tuple[_Members, _Members],
        sessions: _Sessions,
        is_closed: Flags,
        collector: ArrowCollector,
    ) -> None:
        """Emit what closed sessions hold."""
        left, right = members
        in_left, in_right = (
            np.flatnonzero(is_closed[session]) for session in sessions.of_rows
        )
        of_left = sessions.of_rows[0][in_left]
        matched = np.zeros(len(left.keys), np.bool_), np.zeros(len(right.keys), np.bool_)
        with_key = in_right[self.right.has_key(right.rows.batch)[in_right]]
        has_left_key = self.left.has_key(left.rows.batch)[in_left]
        with_key = with_key[np.argsort(sessions.of_rows[1][with_key], kind="stable")]
        of_right = sessions.of_rows[1][with_key]
        first = np.searchsorted(of_right, of_left, "left")
        counts = np.searchsorted(of_right, of_left, "right") - first
        for owners, places in expand_ranges(first, np.where(has_left_key, counts, 0)):
            ours, theirs = (
                left.rows.pick(in_left[owners]),
                right.rows.pick(with_key[places]),
            )
            window = self._window_columns(sessions, of_left[owners])
            matches = self.rules.are_matches(ours, theirs, window)
            if matches is not None:
                ours, theirs = ours.where(matches), theirs.where(matches)
                window = {name: micros[matches] for name, micros in window.items()}
            matched[0][ours.places] = True
            matched[1][theirs.places] = True
            if not self.how.is_one_sided and len(ours.places):
                collector.collect(self.rules.rows_of(ours, theirs, window))
        emits_left, emits_right = self.how.emits_unmatched
        if emits_left or self.how is How.SEMI:
            wanted = matched[0] if self.how is How.SEMI else ~matched[0]
            alone = left.rows.pick(in_left[wanted[in_left]])
            self._emit_alone(alone, None, sessions, sessions.of_rows[0], collector)
        if emits_right:
            alone = right.rows.pick(in_right[~matched[1][in_right]])
            self._emit_alone(None, alone, sessions, sessions.of_rows[1], collector)

    def _emit_alone(
        self,
        left: Pick | None,
        right: Pick | None,
        sessions: _Sessions,
        session: Positions,
        collector: ArrowCollector,
    ) -> None:
        alone = left or right
        if alone is not None and len(alone.places):
            window = self._window_columns(sessions, session[alone.places])
            collector.collect(self.rules.rows_of(left, right, window))

    def _window_columns(
        self, sessions: _Sessions, numbers: Positions
    ) -> Mapping[str, Micros]:
        ends = sessions.ends[numbers]
        return clipped_windows(sessions.starts[numbers], ends, ends, self._years)
