"""What a window step computes: keys, aggregates, and the columns of partials and results.

Grouping by key and instant: many rows at few instants, or few at each of many. Pure.

Grouping by one column is several times as fast as by two. So the rows of an instant that
has many of them are grouped by key alone, in a pass of their own; all others at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.errors import did_you_mean
from penstock.operators.aggregates.aggregate import relayed
from penstock.operators.aggregates.plan import AggregatePlan

WINDOW_START = "window_start"
WINDOW_END = "window_end"
WINDOW_TIME = "window_time"
PANE = "pane_start"
ALL_ROWS = "all_rows"
"""The key column of a stream without a key: every row has the same."""
KEY_OF_ALL_ROWS = 0x61C8864680B583EB
"""Its value. It hashes to 0, so the first subtask owns it at any parallelism."""
MICROS = pa.timestamp("us")

OWN_COLUMNS = (
    *(WINDOW_START, WINDOW_END, WINDOW_TIME, PANE, ALL_ROWS),
    *("session_slot", "session_slots", "session_start", "session_last", "session_wakes_at"),
)
"""Columns that windows add: no key and no result may have their names."""


@dataclass(frozen=True)
class WindowAggregation:
    """Aggregates over the windows of one stream. Valid by construction."""

    stream: StreamSchema
    """The rows, with their event time and perhaps a key."""
    plan: AggregatePlan

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The key columns of partials; there is always one."""
        return self.stream.key_columns or (ALL_ROWS,)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The columns of the rows that are looked at, besides their event time."""
        return tuple(dict.fromkeys((*self.stream.key_columns, *self.plan.reads)))

    @cached_property
    def key_fields(self) -> tuple["pa.Field[Any]", ...]:
        """The key columns in their plain form."""
        if not self.stream.key_columns:
            return (pa.field(ALL_ROWS, pa.int64()),)
        return tuple(
            pa.field(name, _plain_type(self.stream.schema.field(name).type))
            for name in self.stream.key_columns
        )

    @cached_property
    def partials(self) -> StreamSchema:
        """What is sent to the owners of keys: partials per key and pane."""
        columns = [*self.key_fields, pa.field(PANE, MICROS), *self.plan.partials]
        return StreamSchema(pa.schema(columns), PANE)

    @cached_property
    def results(self) -> StreamSchema:
        """What comes out: a row per key and window."""
        instant = pa.timestamp("us", self._zone)
        columns = [
            *(field for field in self.key_fields if field.name != ALL_ROWS),
            *(pa.field(name, instant) for name in (WINDOW_START, WINDOW_END, WINDOW_TIME)),
            *self.plan.results,
        ]
        return StreamSchema(pa.schema(columns), WINDOW_TIME)

    @property
    def _zone(self) -> str | None:
        field: Any = self.stream.schema.field(self.stream.time_column or "")
        zone: str | None = field.type.tz
        return zone

    def with_key(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return rows or partials with the key column that a stream without a key lacks."""
        if self.stream.key_columns:
            return frame
        return frame.with_columns(pl.lit(KEY_OF_ALL_ROWS, pl.Int64).alias(ALL_ROWS))

    def results_of(
        self, partials: pl.DataFrame, starts: pl.Expr, ends: pl.Expr, last: pl.Expr
    ) -> pa.Table:
        """Return the results of merged partials, given windows as instants in microseconds.

        `last` is the last instant that a window holds.
        """
        windows = partials.with_columns(
            starts.cast(pl.Datetime("us")).alias(WINDOW_START),
            ends.cast(pl.Datetime("us")).alias(WINDOW_END),
            last.cast(pl.Datetime("us")).alias(WINDOW_TIME),
        )
        kept = [*self.stream.key_columns, WINDOW_START, WINDOW_END, WINDOW_TIME]
        return to_rows(self.plan.results_of(windows, kept), self.results.schema)


def find_stream_problems(stream: StreamSchema) -> list[str]:
    """Say what keeps a stream from being cut into windows."""
    problems = [
        f"key column {name!r} has the name of a column that the window adds: rename it"
        for name in stream.key_columns
        if name in OWN_COLUMNS
    ]
    if stream.time_column is None:
        stamps = [f.name for f in stream.schema if pa.types.is_timestamp(f.type)]
        hint = did_you_mean("event_time", stamps) if stamps else ""
        problems.append(
            "its rows have no event time: name their timestamp column as event_time when "
            f"reading them, and keep it{hint}"
        )
    for name in stream.key_columns:
        kind = stream.schema.field(name).type
        try:
            pl.from_arrow(pa.array([], _plain_type(kind)))
        except Exception as error:  # noqa: BLE001 (Polars panics with many kinds)
            problems.append(
                f"key column {name!r} of type {kind} cannot be grouped: {error}"
            )
    return problems


def _plain_type(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def to_frame(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    """Return rows as a frame, dictionaries as values, without copying what need not be."""
    return pl.DataFrame(pl.from_arrow(relayed(rows), rechunk=False))


def to_rows(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """Return a frame in the declared types: Polars has fewer of them than Arrow."""
    table = frame.to_arrow()
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for field, column in ((f, table.column(f.name)) for f in schema)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


Compute: TypeAlias = Callable[[pl.DataFrame, Sequence[str]], pl.DataFrame]
"""Computes one row per group, given rows and the columns to group by."""

ROWS_WORTH_A_PASS = 20_000
"""Fewer rows are not worth a pass of their own, which has a fixed cost."""


def group_by_instant(
    frame: pl.DataFrame, instant: str, keys: Sequence[str], compute: Compute
) -> Iterator[pl.DataFrame]:
    """Yield one row per key and instant, in any number of frames.

    `instant` names a column of microseconds without nulls.
    """
    if not frame.height:
        return
    moments = frame[instant]
    if moments.min() == moments.max():
        yield _at(compute(frame, keys), instant, moments.item(0))
        return
    if frame.height < ROWS_WORTH_A_PASS:
        yield compute(frame, [*keys, instant])
        return
    counts = moments.value_counts(name="rows")
    is_dense = pl.col("rows") >= ROWS_WORTH_A_PASS
    for moment in counts.filter(is_dense)[instant].sort().to_list():
        yield _at(compute(frame.filter(moments == moment), keys), instant, moment)
    scattered = counts.filter(~is_dense)[instant]
    if len(scattered):
        rest = frame.filter(moments.is_in(scattered.implode()))
        yield compute(rest, [*keys, instant])


def _at(frame: pl.DataFrame, instant: str, moment: int) -> pl.DataFrame:
    return frame.with_columns(pl.lit(moment, pl.Int64).alias(instant))
