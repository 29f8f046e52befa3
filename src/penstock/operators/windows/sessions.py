"""SessionWindows: windows that last as long as rows follow each other within a gap.

A session is `[start, end]` with `end` a gap after its last row, and takes in every row up to
`end`, that instant included, as Spark's and Flink's sessions do. So it closes when the
watermark is beyond its end: then no row can follow that would belong to it.

Rows and open sessions that are within a gap of each other become one session, in whatever
order they come. Lateness is decided for a whole session: rows whose session had ended when the
epoch began are late, all others count.

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
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_MICROS, CheckpointBarrier
from penstock.graph.logical import BAD, LATE, OperatorSpec
from penstock.operators.aggregates.frames import ALL_ROWS, number_equal, to_frame, to_table
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
from penstock.operators.windows.session_merging import (
    FRAGMENT,
    KEY,
    LAST,
    SESSION,
    SIZE,
    START,
    TIME,
    WAKES_AT,
    fragments_of,
    merge_sessions,
)
from penstock.state.tables.specs import TableSpec, keyed_table, time_keyed_table

SESSIONS = "sessions"
WAKE_UPS = "wake-ups"
SLOT, SLOTS = "session_slot", "session_slots"
_TIMES = (START, LAST, WAKES_AT)


class SessionStore:
    """Reads and writes the sessions of one step; it decides nothing about them."""

    def __init__(
        self,
        aggregation: WindowAggregation,
        shown: str,
        more: Sequence["pa.Field[Any]"] = (),
        meaning: str = "",
    ) -> None:
        """Declare both tables; sessions may have more columns, and wake-ups a meaning."""
        self._keys = aggregation.keys
        self._meaning = meaning
        self._groups = aggregation.plan.groups
        self._shown = shown
        keys = list(aggregation.key_fields)
        times = [pa.field(name, MICROS) for name in _TIMES]
        slots = [pa.field(SLOT, pa.int32()), pa.field(SLOTS, pa.int32())]
        self._prefixes, self._probes = pa.schema(keys), pa.schema([*keys, slots[0]])
        self._sessions = pa.schema(
            [*keys, *slots, *times, *more, *aggregation.plan.partials]
        )
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
                meaning=self._meaning,
            ),
        ]

    def keys_to_wake(
        self, ctx: OperatorContext, start: int | None, end: int
    ) -> pl.DataFrame:
        """Return the keys with wake-ups in `[start, end)`, each perhaps several times."""
        rows = ctx.get_time_keyed_state(WAKE_UPS).rows(start, end)
        return to_frame(rows).select(self._keys)

    def read(self, ctx: OperatorContext, keys: pl.DataFrame) -> pl.DataFrame:
        """Return the sessions of keys, numbered in `KEY` by their place; times in microseconds."""
        found = ctx.get_keyed_state(SESSIONS).get_all(to_table(keys, self._prefixes))
        numbers = np.repeat(np.arange(keys.height), np.diff(found.offsets))
        return to_frame(found.rows).with_columns(
            pl.Series(KEY, numbers), pl.col(*_TIMES).cast(pl.Int64)
        )

    def write(
        self, ctx: OperatorContext, sessions: pl.DataFrame, known: pl.DataFrame
    ) -> None:
        """Replace the stored sessions of all keys in `sessions` and `known` by `sessions`.

        Both are numbered in `KEY`. Sessions are in order of key and start, and have the key
        columns; instants are in microseconds.
        """
        key, known_key = sessions[KEY].to_numpy(), known[KEY].to_numpy()
        counts = np.bincount(key, minlength=int(known_key.max(initial=-1)) + 1)
        slots = np.arange(len(key)) - (np.cumsum(counts) - counts)[key]
        slotted = sessions.with_columns(
            pl.Series(SLOT, slots, pl.Int32), pl.Series(SLOTS, counts[key], pl.Int32)
        )
        gone = known.filter(pl.Series(known[SLOT].to_numpy() >= counts[known_key]))
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
        self._lateness = 0
        """How long after its end a session takes rows, in microseconds."""
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
        merged, sessions_of = merge_sessions(fragments, known, plan, self._gap)
        known = known.with_columns(sessions_of.slice(fragments.height))
        if previous is not None:
            placed = fragments.select(FRAGMENT).with_columns(
                sessions_of.head(fragments.height)
            )
            is_late = pl.col(LAST) + self._gap + self._lateness < previous
            late = placed.join(merged.filter(is_late), on=SESSION, how="semi")
            if late.height:
                rows_late = by_row.is_in(late[FRAGMENT].implode())
                ctx.count("late_rows", int(rows_late.sum()))
                table = pa.Table.from_batches(batches).filter(rows_late.to_arrow())
                for batch in table.to_batches():
                    self._send_aside(batch, collector, LATE)
            merged = merged.filter(~is_late)
        # How many rows and sessions have become each session.
        sizes = np.bincount(sessions_of.to_numpy(), minlength=1)
        merged = merged.with_columns(pl.Series(SIZE, sizes[merged[SESSION].to_numpy()]))
        sessions = merged.hstack(keys.select(pl.all().gather(merged[KEY])))
        self.settle(sessions, known, watermark, ctx, collector)

    def settle(
        self,
        sessions: pl.DataFrame,
        known: pl.DataFrame,
        watermark: int | None,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Emit the sessions that close and keep the others, in place of those known before."""
        is_closed, ends = self._is_closed(watermark), pl.col(LAST) + self._gap
        closed = sessions.filter(is_closed)
        if closed.height:
            results = self._aggregation.results_of(closed, pl.col(START), ends, ends)
            collector.collect(results)
        self._keep(sessions.filter(~is_closed), known, ends, watermark, ctx)

    def _is_closed(self, watermark: int | None) -> pl.Expr:
        if watermark is None:
            return pl.lit(value=False)
        return pl.col(LAST) + self._gap < watermark

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
        """Return rows with the numbers of their keys, and every key once, in order of number."""
        names = list(self._aggregation.keys)
        every = pl.concat([rows.select(names), woken.select(names)])
        numbers, places = number_equal(every)
        numbered = rows.with_columns(pl.Series(KEY, numbers[: rows.height]))
        return numbered, every.select(pl.all().gather(places))

    def _keep(
        self,
        sessions: pl.DataFrame,
        known: pl.DataFrame,
        due: pl.Expr,
        watermark: int | None,
        ctx: OperatorContext,
    ) -> None:
        """Write sessions; set a wake-up for those that have none until they are due."""
        is_asleep = pl.col(WAKES_AT).is_null() | (pl.col(WAKES_AT) > due)
        if watermark is not None:
            is_asleep |= pl.col(WAKES_AT) < watermark
        asleep = sessions.with_columns(is_asleep.alias(SESSION))
        kept = asleep.with_columns(
            pl.when(SESSION).then(due).otherwise(pl.col(WAKES_AT)).alias(WAKES_AT)
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
