"""SessionWindows: windows that last as long as rows follow each other within a gap.

A session is `[start, end]` with `end` a gap after its last row, and takes in every row up to
`end`, that instant included, as Spark's and Flink's sessions do. So it closes when the
watermark is beyond its end: then no row can follow that would belong to it.

Rows and open sessions that are within a gap of each other become one session, in whatever
order they come. What comes out late is decided for the whole of it: rows whose session had
ended when the epoch began are late, all others count.
"""

from collections.abc import Mapping, Sequence

import polars as pl
import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.core.signals import CheckpointBarrier, EventTime
from penstock.graph.logical import BAD, LATE
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import OperatorContext
from penstock.operators.display import DisplayableOperator
from penstock.operators.operator import ArrowOperator
from penstock.operators.windows.aggregation import (
    ALL_ROWS,
    WindowAggregation,
    to_frame,
)
from penstock.operators.windows.assignment import Micros
from penstock.operators.windows.event_times import read_event_times, refuse_bad_times
from penstock.operators.windows.session_merge import (
    FRAGMENT,
    KEY,
    LAST,
    SESSION,
    START,
    TIME,
    WAKES_AT,
    Fragments,
    fragments_of,
    merge_sessions,
    number_keys,
)
from penstock.operators.windows.session_store import SessionStore
from penstock.state.tables.specs import TableSpec


class SessionWindows(ArrowOperator):
    """Keeps the open sessions of its subtask's keys and emits those that close."""

    def __init__(
        self,
        gap_micros: int,
        aggregation: WindowAggregation,
        shown: str,
        *,
        diverts_bad_times: bool,
    ) -> None:
        self._gap = gap_micros
        self._aggregation = aggregation
        self._shown = shown
        self._diverts_bad_times = diverts_bad_times
        self._store = SessionStore(aggregation, shown)
        self._batches: list[pa.RecordBatch] = []
        self._times: list[Micros] = []

    def name(self) -> str:
        """Return the kind."""
        return "session_window"

    def display(self) -> DisplayableOperator:
        """Show the window and what is computed."""
        computed = self._aggregation.plan.display()
        return DisplayableOperator(
            self.name(), {"window": self._shown, "computes": computed}
        )

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the results."""
        del inputs
        return self._aggregation.results

    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        """Return late rows and, if they are wanted, bad ones: as they came."""
        fields = [inputs[0].schema.field(name) for name in self._given(inputs[0].schema)]
        rows = StreamSchema(pa.schema(fields), inputs[0].time_column)
        sides = {LATE: rows}
        if self._diverts_bad_times:
            sides[BAD] = StreamSchema(rows.schema)
        return sides

    def tables(self) -> Sequence[TableSpec]:
        """Return the tables of open sessions."""
        return self._store.tables()

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Buffer rows until the epoch's are complete; send bad ones aside."""
        name = self._aggregation.stream.time_column or ""
        times = read_event_times(batch.column(name))
        micros = times.micros
        if times.bad is not None:
            if not self._diverts_bad_times:
                raise refuse_bad_times(times, batch.column(name), name)
            ctx.count("bad_rows", int(times.bad.sum()))
            self._send_aside(batch.filter(pa.array(times.bad)), collector, BAD)
            batch, micros = batch.filter(pa.array(~times.bad)), micros[~times.bad]
        if batch.num_rows:
            self._batches.append(batch)
            self._times.append(micros)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Merge the epoch's rows into sessions; emit those that close, keep the others."""
        del barrier
        previous, watermark = _micros(ctx.previous_watermark), _micros(ctx.watermark)
        batches, rows = self._take_rows()
        woken = pl.DataFrame(schema=rows.select(self._aggregation.keys).schema)
        if watermark is not None:
            woken = self._store.keys_to_wake(ctx, previous, watermark)
        if not rows.height and not woken.height:
            return
        rows, keys = self._number(rows, woken)
        fragments = fragments_of(rows, self._aggregation.plan, self._gap)
        known = self._store.read(ctx, keys)
        merged, placed = merge_sessions(
            fragments.sessions, known, self._aggregation.plan, self._gap
        )
        if previous is not None:
            is_late = pl.col(LAST) + self._gap < previous
            late = placed.join(merged.filter(is_late), on=SESSION, how="semi")
            self._send_late(batches, fragments, late, ctx, collector)
            merged = merged.filter(~is_late)
        sessions = merged.join(keys, on=KEY)
        is_closed = pl.lit(value=False)
        if watermark is not None:
            is_closed = pl.col(LAST) + self._gap < watermark
        self._emit(sessions.filter(is_closed), collector)
        self._keep(sessions.filter(~is_closed), known, watermark, ctx)

    def _take_rows(self) -> tuple[list[pa.RecordBatch], pl.DataFrame]:
        """Return this epoch's rows as they came, and what is needed of them, with `TIME`."""
        batches, self._batches = self._batches, []
        times, self._times = self._times, []
        aggregation = self._aggregation
        plain = {field.name: field for field in aggregation.key_fields}
        names = dict.fromkeys((*aggregation.keys, *aggregation.plan.reads))
        fields = [plain.get(n) or aggregation.stream.schema.field(n) for n in names]
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

    def _send_late(
        self,
        batches: Sequence[pa.RecordBatch],
        fragments: Fragments,
        late: pl.DataFrame,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        if not late.height:
            return
        is_late = fragments.rows[FRAGMENT].is_in(late[FRAGMENT].implode())
        ctx.count("late_rows", int(is_late.sum()))
        rows = pa.Table.from_batches(batches).filter(is_late.to_arrow())
        for batch in rows.to_batches():
            self._send_aside(batch, collector, LATE)

    def _emit(self, closed: pl.DataFrame, collector: ArrowCollector) -> None:
        ends = pl.col(LAST) + self._gap
        if closed.height:
            collector.collect(
                self._aggregation.results_of(closed, pl.col(START), ends, ends)
            )

    def _keep(
        self,
        sessions: pl.DataFrame,
        known: pl.DataFrame,
        watermark: int | None,
        ctx: OperatorContext,
    ) -> None:
        """Write open sessions; set a wake-up for those that have none ahead of them."""
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
        """Return the columns that rows came with: those of a stream without a key got one."""
        is_keyed = bool(self._aggregation.stream.key_columns)
        return [name for name in schema.names if is_keyed or name != ALL_ROWS]


def _micros(watermark: EventTime | None) -> int | None:
    return None if watermark is None else watermark.micros
