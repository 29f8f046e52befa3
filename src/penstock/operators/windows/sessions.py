"""SessionWindows: windows that last as long as rows follow each other within a gap.

A session is `[start, end]` with `end` a gap after its last row, and takes in every row up to
`end`, that instant included, as Spark's and Flink's sessions do. So it closes when the
watermark is beyond its end: then no row can follow that would belong to it.

Rows and open sessions that are within a gap of each other become one session, in whatever
order they come. Lateness is decided for a whole session: rows whose session had ended when the
epoch began are late, all others count.

Merging sorts rows and open sessions by key and instant and cuts where the distance exceeds
the gap, so sessions may have any length and rows may come in any order.

Open sessions are kept in two tables:

| table | kind | rows |
|---|---|---|
| `sessions` | keyed by key and slot, routed by key | one per open session; slots 0, 1, 2 … by start |
| `wake-ups` | by time | when a session ended as of some epoch, and its key |

The row in slot 0 holds the number of slots. The wake-up of a session stays when the session
grows: when it is due and the session is still open, another one is set. So there is one
outstanding wake-up per session, however long it is, and no epoch reads all sessions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import Micros
from penstock.core.schema import RESERVED_PREFIX, StreamSchema
from penstock.core.watermark import MAX_MICROS, CheckpointBarrier
from penstock.graph.logical import BAD, LATE, OperatorSpec
from penstock.operators.aggregates.frames import ALL_ROWS, to_frame, to_table
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured
from penstock.operators.windows.aggregation import (
    MICROS,
    WindowAggregation,
    WindowConfig,
    instant_of,
)
from penstock.operators.windows.assignment import END_MICROS, find_length_problems
from penstock.state.tables.specs import TableSpec, keyed_table, time_keyed_table

KEY = f"{RESERVED_PREFIX}_key"
"""The number of a row's key."""
TIME = f"{RESERVED_PREFIX}_time"
"""The event time of a row in microseconds."""
SESSION = f"{RESERVED_PREFIX}_session"
"""The number of the session that a row or a fragment belongs to."""
FRAGMENT = f"{RESERVED_PREFIX}_fragment"
START, LAST, WAKES_AT = "session_start", "session_last", "session_wakes_at"


def number_keys(frame: pl.DataFrame, keys: Sequence[str]) -> pl.Series:
    """Return the same number for equal keys: the position of the first row that has it.

    Keys are equal as groups are: all nulls, all NaNs, and zeros of either sign.
    """
    positions = frame.select(*keys).with_row_index(KEY)
    return positions.select(pl.col(KEY).cast(pl.Int64).first().over(*keys)).to_series()


def fragments_of(
    rows: pl.DataFrame, plan: AggregatePlan, gap: int
) -> tuple[pl.Series, pl.DataFrame]:
    """Group rows with `KEY` and `TIME` that are within a gap of each other.

    Such a group is a fragment of a session, whose other rows may be in state. Return the
    fragment of each row, and `FRAGMENT`, `KEY`, `START`, `LAST` and partials of each fragment.
    """
    key, time = rows[KEY].to_numpy(), rows[TIME].to_numpy()
    order = np.argsort(in_one_number(key, time), kind="stable")
    sorted_key, sorted_time = key[order], time[order]
    fragment, first, last = cut_sessions(order, sorted_key, sorted_time, sorted_time, gap)
    by_row = pl.Series(FRAGMENT, fragment)
    partials = plan.partials_of(rows.hstack([by_row]), [FRAGMENT])
    places = partials[FRAGMENT].to_numpy()
    bounds = pl.DataFrame(
        {
            KEY: sorted_key[first][places],
            START: sorted_time[first][places],
            LAST: sorted_time[last][places],
        }
    )
    return by_row, partials.hstack(bounds)


def merge_sessions(
    fragments: pl.DataFrame, known: pl.DataFrame, plan: AggregatePlan, gap: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Merge the fragments of this epoch with the sessions known before.

    Both have `KEY`, `START`, `LAST` and partials, `known` also `WAKES_AT`, and fragments
    `FRAGMENT`. Return the sessions by `SESSION`, and which session each fragment is in.
    """
    parts = [part.name for part in plan.partials]
    columns = [KEY, START, LAST, WAKES_AT, FRAGMENT, *parts]
    every = pl.concat([fragments, known], how="diagonal").select(columns)
    key, start, last = (every[name].to_numpy() for name in (KEY, START, LAST))
    order = np.argsort(in_one_number(key, start), kind="stable")
    reached = _reached(key[order], last[order])
    session, first, final = cut_sessions(order, key[order], start[order], reached, gap)
    every = every.with_columns(pl.Series(SESSION, session))
    merged = plan.merge(every, [SESSION])
    wakes_at = every[WAKES_AT].fill_null(MAX_MICROS).to_numpy()[order]
    places = merged[SESSION].to_numpy()
    bounds = {
        KEY: key[order][first],
        START: start[order][first],
        LAST: reached[final],
        WAKES_AT: np.minimum.reduceat(wakes_at, first) if len(first) else wakes_at,
    }
    merged = merged.with_columns(pl.Series(n, of[places]) for n, of in bounds.items())
    is_awake = pl.col(WAKES_AT) != MAX_MICROS
    merged = merged.with_columns(pl.when(is_awake).then(WAKES_AT).alias(WAKES_AT))
    placed = every.filter(pl.col(FRAGMENT).is_not_null()).select(FRAGMENT, SESSION)
    return merged, placed


def cut_sessions(
    order: Micros, key: Micros, start: Micros, reached: Micros, gap: int
) -> tuple[Micros, Micros, Micros]:
    """Cut sorted rows into sessions: where the key changes or the distance exceeds the gap.

    Return the session of each row, in the order the rows had before they were sorted, and the
    first and the last row of each session, in sorted order.
    """
    is_new = np.ones(len(key), np.bool_)
    is_new[1:] = (key[1:] != key[:-1]) | (start[1:] - reached[:-1] > gap)
    first = np.flatnonzero(is_new)
    last = np.append(first[1:], len(key))[: len(first)] - 1
    session = np.empty(len(key), np.int64)
    session[order] = np.cumsum(is_new) - 1
    return session, first, last


def _reached(key: Micros, last: Micros) -> Micros:
    """Return the latest instant among each row and those of its key before it; sorted by key."""
    ranked = np.sort(last)
    rank = np.searchsorted(ranked, last)
    # The ranks of a key are above those of earlier keys, so the maximum stays within a key.
    highest = np.maximum.accumulate(key * len(key) + rank)
    return ranked[highest - key * len(key)]


def in_one_number(key: Micros, instant: Micros) -> Micros:
    """Return numbers that sort by key, and within a key by instant."""
    if not len(key):
        return key
    first, last = int(instant.min()), int(instant.max())
    if (int(key.max()) + 1) * (last - first + 1) >= 1 << 63:
        instant = np.searchsorted(np.sort(instant), instant)
        first, last = 0, len(key) - 1
    return key * (last - first + 1) + (instant - first)


SESSIONS = "sessions"
WAKE_UPS = "wake-ups"
SLOT, SLOTS = "session_slot", "session_slots"
_TIMES = (START, LAST, WAKES_AT)


class SessionStore:
    """Reads and writes the sessions of one step; it decides nothing about them."""

    def __init__(self, aggregation: WindowAggregation, shown: str) -> None:
        self._keys = aggregation.keys
        self._groups = aggregation.plan.groups
        self._shown = shown
        keys = list(aggregation.key_fields)
        times = [pa.field(name, MICROS) for name in _TIMES]
        slots = [pa.field(SLOT, pa.int32()), pa.field(SLOTS, pa.int32())]
        self._probes = pa.schema([*keys, slots[0]])
        self._sessions = pa.schema([*keys, *slots, *times, *aggregation.plan.partials])
        self._wake_ups = pa.schema([*keys, pa.field(WAKES_AT, MICROS)])

    def tables(self) -> list[TableSpec]:
        """Return both tables."""
        return [
            keyed_table(
                SESSIONS,
                self._sessions,
                key_columns=[*self._keys, SLOT],
                routed_by=self._keys,
                description=f"open sessions of {self._shown}",
                groups=self._groups,
            ),
            time_keyed_table(
                WAKE_UPS,
                self._wake_ups,
                key_columns=self._keys,
                time_column=WAKES_AT,
                description=f"when to look at sessions of {self._shown}",
            ),
        ]

    def keys_to_wake(
        self, ctx: OperatorContext, start: int | None, end: int
    ) -> pl.DataFrame:
        """Return the keys with wake-ups in `[start, end)`, each perhaps several times."""
        rows = ctx.get_time_keyed_state(WAKE_UPS).rows(start, end)
        return to_frame(rows).select(self._keys)

    def read(self, ctx: OperatorContext, keys: pl.DataFrame) -> pl.DataFrame:
        """Return the sessions of keys, which are numbered in `KEY`; instants in microseconds."""
        first = self._look_up(ctx, keys.with_columns(pl.lit(0, pl.Int32).alias(SLOT)))
        more = first.filter(pl.col(SLOTS) > 1)
        if not more.height:
            return first
        probes = (
            more.select(*self._keys, KEY, pl.int_ranges(1, pl.col(SLOTS)).alias(SLOT))
            .explode(SLOT)
            .with_columns(pl.col(SLOT).cast(pl.Int32))
        )
        return pl.concat([first, self._look_up(ctx, probes)])

    def _look_up(self, ctx: OperatorContext, probes: pl.DataFrame) -> pl.DataFrame:
        found = ctx.get_keyed_state(SESSIONS).get(to_table(probes, self._probes))
        sessions = to_frame(found.rows).with_columns(
            probes[KEY], pl.col(*_TIMES).cast(pl.Int64)
        )
        return sessions.filter(pl.Series(found.found))

    def write(
        self, ctx: OperatorContext, sessions: pl.DataFrame, known: pl.DataFrame
    ) -> None:
        """Replace the stored sessions of all keys in `sessions` and `known` by `sessions`.

        Both are numbered in `KEY`; sessions have the key columns, instants in microseconds.
        """
        slotted = sessions.sort(KEY, START).with_columns(
            pl.int_range(pl.len(), dtype=pl.Int32).over(KEY).alias(SLOT),
            pl.len().over(KEY).cast(pl.Int32).alias(SLOTS),
        )
        gone = known.join(slotted, on=[KEY, SLOT], how="anti")
        view = ctx.get_keyed_state(SESSIONS)
        if gone.height:
            view.delete(to_table(gone, self._probes))
        if slotted.height:
            timed = slotted.with_columns(pl.col(*_TIMES).cast(pl.Datetime("us")))
            view.put(to_table(timed, self._sessions))

    def wake(self, ctx: OperatorContext, sessions: pl.DataFrame) -> None:
        """Set a wake-up for each of some sessions at its `WAKES_AT`."""
        if not sessions.height:
            return
        instants: Any = sessions[WAKES_AT].to_numpy()
        timed = sessions.with_columns(pl.col(WAKES_AT).cast(pl.Datetime("us")))
        # A wake-up is due when the watermark is beyond it, so it must not expire before.
        expiry = pa.array(instants + np.int64(1)).view(MICROS)
        ctx.get_time_keyed_state(WAKE_UPS).insert(to_table(timed, self._wake_ups), expiry)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWindowConfig(WindowConfig):
    """The config of session windows."""

    kind: ClassVar[str] = "session_window"

    gap_micros: int
    diverts_bad: bool


def session_window_spec(
    gap_micros: int, aggregation: WindowAggregation, *, shown: str, diverts_bad: bool
) -> OperatorSpec:
    """Return the operator of a step; its input must be keyed by `aggregation.keys`."""
    return SessionWindowConfig(
        window=shown,
        stream=aggregation.stream.to_bytes(),
        aggregates=aggregation.plan.to_config(),
        gap_micros=gap_micros,
        diverts_bad=diverts_bad,
    ).to_operator_spec()


class SessionWindows(Configured[SessionWindowConfig], ArrowOperator):
    """Keeps the open sessions of its subtask's keys and emits those that close."""

    def __init__(self, config: SessionWindowConfig) -> None:
        super().__init__(config)
        config.refuse(find_length_problems({"gap": config.gap_micros}))
        self._gap = config.gap_micros
        self._aggregation = config.aggregation()
        self._store = SessionStore(self._aggregation, config.window)
        self._batches: list[pa.RecordBatch] = []
        self._times: list[Micros] = []

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        return self._aggregation.results

    @override
    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        """Return the input's schema for late rows and, if they are diverted, for bad ones."""
        fields = [inputs[0].arrow.field(name) for name in self._given(inputs[0].arrow)]
        rows = StreamSchema(pa.schema(fields), inputs[0].time_column)
        sides = {LATE: rows}
        if self.config.diverts_bad:
            sides[BAD] = StreamSchema(rows.arrow)
        return sides

    @override
    def tables(self) -> Sequence[TableSpec]:
        return self._store.tables()

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Buffer rows until the epoch's are complete; bad ones go to the side output."""
        diverts_bad = self.config.diverts_bad
        times = self._aggregation.read_times(batch, ctx, diverts_bad=diverts_bad)
        micros = times.micros
        if times.bad is not None:
            self._send_aside(batch.filter(pa.array(times.bad)), collector, BAD)
            batch, micros = batch.filter(pa.array(~times.bad)), micros[~times.bad]
        if batch.num_rows:
            self._batches.append(batch)
            self._times.append(micros)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Merge the epoch's rows into sessions; emit those that close, keep the others."""
        previous = _beyond_all(instant_of(ctx.previous_watermark))
        watermark = _beyond_all(instant_of(ctx.watermark))
        aggregation = self._aggregation
        batches, rows = self._take_rows()
        woken = pl.DataFrame(schema=rows.select(aggregation.keys).schema)
        if watermark is not None:
            woken = self._store.keys_to_wake(ctx, previous, watermark)
        if not rows.height and not woken.height:
            return
        rows, keys = self._number(rows, woken)
        plan = aggregation.plan
        by_row, fragments = fragments_of(rows, plan, self._gap)
        known = self._store.read(ctx, keys)
        merged, placed = merge_sessions(fragments, known, plan, self._gap)
        if previous is not None:
            is_late = pl.col(LAST) + self._gap < previous
            late = placed.join(merged.filter(is_late), on=SESSION, how="semi")
            if late.height:
                rows_late = by_row.is_in(late[FRAGMENT].implode())
                ctx.count("late_rows", int(rows_late.sum()))
                table = pa.Table.from_batches(batches).filter(rows_late.to_arrow())
                for batch in table.to_batches():
                    self._send_aside(batch, collector, LATE)
            merged = merged.filter(~is_late)
        sessions = merged.join(keys, on=KEY)
        is_closed = pl.lit(value=False)
        if watermark is not None:
            is_closed = pl.col(LAST) + self._gap < watermark
        closed, ends = sessions.filter(is_closed), pl.col(LAST) + self._gap
        if closed.height:
            collector.collect(aggregation.results_of(closed, pl.col(START), ends, ends))
        self._keep(sessions.filter(~is_closed), known, watermark, ctx)

    def _take_rows(self) -> tuple[list[pa.RecordBatch], pl.DataFrame]:
        """Return this epoch's rows as they came, and the columns to read of them, with `TIME`."""
        batches, self._batches = self._batches, []
        times, self._times = self._times, []
        aggregation = self._aggregation
        plain = {field.name: field for field in aggregation.key_fields}
        names = dict.fromkeys((*aggregation.keys, *aggregation.plan.reads))
        fields = [plain.get(n) or aggregation.stream.arrow.field(n) for n in names]
        tables = [
            pa.Table.from_batches([batch]).select(list(names)).cast(pa.schema(fields))
            for batch in batches
        ]
        empty = pa.schema(fields).empty_table()
        frame = to_frame(pa.concat_tables([empty, *tables]))
        instants = pl.concat([pl.Series(TIME, [], pl.Int64), *map(pl.Series, times)])
        return batches, frame.with_columns(instants.alias(TIME))

    def _number(
        self, rows: pl.DataFrame, woken: pl.DataFrame
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return rows with the numbers of their keys, and every key once with its number."""
        names = list(self._aggregation.keys)
        keys = pl.concat([rows.select(names), woken.select(names)])
        numbers = number_keys(keys, names)
        keys = keys.with_columns(numbers)
        first = keys.filter(numbers == pl.int_range(len(numbers), eager=True))
        return rows.with_columns(numbers.head(rows.height)), first

    def _keep(
        self,
        sessions: pl.DataFrame,
        known: pl.DataFrame,
        watermark: int | None,
        ctx: OperatorContext,
    ) -> None:
        """Write open sessions; set a wake-up for those that have none outstanding."""
        is_asleep = pl.col(WAKES_AT).is_null()
        if watermark is not None:
            is_asleep |= pl.col(WAKES_AT) < watermark
        asleep = sessions.with_columns(is_asleep.alias(SESSION))
        kept = asleep.with_columns(
            pl.when(SESSION)
            .then(pl.col(LAST) + self._gap)
            .otherwise(pl.col(WAKES_AT))
            .alias(WAKES_AT)
        )
        self._store.write(ctx, kept, known)
        self._store.wake(ctx, kept.filter(pl.col(SESSION)))

    def _send_aside(
        self, batch: pa.RecordBatch, collector: ArrowCollector, output: str
    ) -> None:
        collector.collect(batch.select(self._given(batch.schema)), output)

    def _given(self, schema: pa.Schema) -> list[str]:
        """Return the columns that rows came with, without the key column added to them."""
        is_keyed = bool(self._aggregation.stream.key_columns)
        return [name for name in schema.names if is_keyed or name != ALL_ROWS]


def _beyond_all(watermark: int | None) -> int | None:
    """Return a watermark; behind the year 9999 no row can follow, so all sessions are over."""
    return MAX_MICROS if watermark is not None and watermark >= END_MICROS else watermark
