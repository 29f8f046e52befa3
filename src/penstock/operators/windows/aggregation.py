"""WindowAggregation: the keys and aggregates of a window step, its partials and results.

`WindowAggregation` binds aggregates to a stream; `WindowConfig` is what the configs of all
window operators share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import is_held_by_polars, why_not_in_polars
from penstock.core.schema import StreamSchema
from penstock.core.watermark import EventTime
from penstock.errors import ErrorCode, UserError, did_you_mean
from penstock.operators.aggregates.compiled import AggregateConfig
from penstock.operators.aggregates.frames import (
    ALL_ROWS,
    KEY_OF_ALL_ROWS,
    to_frame,
    to_table,
)
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.changes import changelog_schema
from penstock.operators.context import OperatorContext
from penstock.operators.registry import OperatorConfig
from penstock.operators.windows.assignment import (
    EventTimes,
    read_event_times,
    refuse_bad_times,
    years_in,
)
from penstock.state.tables.column_groups import ColumnGroup

WINDOW_START = "window_start"
WINDOW_END = "window_end"
WINDOW_TIME = "window_time"
PANE = "pane_start"
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
    """The rows, perhaps with a key; with their event time, unless processing time counts."""
    plan: AggregatePlan

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The key columns of partials; there is always at least one."""
        return self.stream.key_columns or (ALL_ROWS,)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The columns of the rows that are read, besides their event time."""
        return tuple(dict.fromkeys((*self.stream.key_columns, *self.plan.reads)))

    @cached_property
    def key_fields(self) -> tuple["pa.Field[Any]", ...]:
        """The key columns in their plain form."""
        if not self.stream.key_columns:
            return (pa.field(ALL_ROWS, pa.int64()),)
        return tuple(
            pa.field(name, _plain_type(self.stream.arrow.field(name).type))
            for name in self.stream.key_columns
        )

    @cached_property
    def partials(self) -> StreamSchema:
        """The schema of what is sent to the owners of keys: partials per key and pane."""
        columns = [*self.key_fields, pa.field(PANE, MICROS), *self.plan.partials]
        return StreamSchema(pa.schema(columns), PANE)

    @property
    def finished(self) -> AggregatePlan:
        """The aggregates whose results are emitted."""
        return self.plan

    @cached_property
    def window_fields(self) -> tuple["pa.Field[Any]", ...]:
        """The columns of the output that say which window it is about."""
        zone = None
        if self.stream.time_column is not None:
            time: Any = self.stream.arrow.field(self.stream.time_column)
            zone = time.type.tz
        instant = pa.timestamp("us", zone)
        names = (WINDOW_START, WINDOW_END, WINDOW_TIME)
        return tuple(pa.field(name, instant) for name in names)

    @cached_property
    def results(self) -> StreamSchema:
        """The schema of the output: a row per key and window."""
        keys = [field for field in self.key_fields if field.name != ALL_ROWS]
        columns = [*keys, *self.window_fields, *self.finished.results]
        return StreamSchema(pa.schema(columns), WINDOW_TIME)

    @cached_property
    def revisions(self) -> StreamSchema:
        """The schema of the output if results may change: a changelog of these rows."""
        keys = [field for field in self.key_fields if field.name != ALL_ROWS]
        start, end, time = self.window_fields
        values = [time, *self.finished.results]
        return changelog_schema([*keys, start, end], values, WINDOW_TIME)

    @cached_property
    def _years(self) -> tuple[int, int]:
        """The first and the last instant that a result may hold."""
        return years_in(self.results.arrow.field(WINDOW_TIME).type.tz)

    def read_times(
        self, batch: pa.RecordBatch, ctx: OperatorContext, *, diverts_bad: bool
    ) -> EventTimes:
        """Return the event times of rows; bad ones are counted if diverted, else refused."""
        name = self.stream.time_column or ""
        times = read_event_times(batch.column(name))
        if times.bad is not None:
            if not diverts_bad:
                raise refuse_bad_times(times.bad, batch.column(name), name)
            ctx.count("bad_rows", int(times.bad.sum()))
        return times

    def with_key(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return rows or partials with the key column that a stream without a key lacks."""
        if self.stream.key_columns:
            return frame
        return frame.with_columns(pl.lit(KEY_OF_ALL_ROWS, pl.Int64).alias(ALL_ROWS))

    @property
    def groups(self) -> tuple[ColumnGroup, ...]:
        """The partials of each aggregate as columns of a table that may come and go."""
        return self.plan.groups

    def rows_of(self, batches: Sequence[pa.RecordBatch]) -> pl.DataFrame:
        """Return rows, of which there are only the columns that are read, to make partials of."""
        return to_frame(pa.Table.from_batches(batches))

    def combine(self, rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """Return the partials of rows by group."""
        return self.plan.partials_of(rows, by)

    def condense(self, panes: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """Return the partials of each group as few rows, which can go on to be merged."""
        return self.plan.merge(panes, by)

    def merge(self, panes: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """Return one row of partials per group, all of whose panes are there."""
        return self.plan.merge(panes, by)

    def with_windows(
        self, frame: pl.DataFrame, starts: pl.Expr, ends: pl.Expr, last: pl.Expr
    ) -> pl.DataFrame:
        """Return a frame with the columns of its windows, given as instants in microseconds.

        `last` is the last instant that a window holds. A window that reaches out of the
        years 1 to 9999 is cut off there: no row lies outside, and Python holds no other years.
        """
        instants = {WINDOW_START: starts, WINDOW_END: ends, WINDOW_TIME: last}
        return frame.with_columns(
            instant.clip(*self._years).cast(pl.Datetime("us")).alias(name)
            for name, instant in instants.items()
        )

    def results_of(
        self, partials: pl.DataFrame, starts: pl.Expr, ends: pl.Expr, last: pl.Expr
    ) -> pa.Table:
        """Return the results of merged partials; windows are given as in `with_windows`."""
        windows = self.with_windows(partials, starts, ends, last)
        kept = [*self.stream.key_columns, WINDOW_START, WINDOW_END, WINDOW_TIME]
        return to_table(self.finished.results_of(windows, kept), self.results.arrow)


def find_stream_problems(
    stream: StreamSchema, *, needs_event_time: bool = True
) -> list[str]:
    """Return the reasons why a stream cannot be cut into windows."""
    problems = [
        f"key column {name!r} has the name of a column that the window adds: rename it"
        for name in stream.key_columns
        if name in OWN_COLUMNS
    ]
    if stream.time_column is None and needs_event_time:
        stamps = [f.name for f in stream.arrow if pa.types.is_timestamp(f.type)]
        hint = did_you_mean("event_time", stamps) if stamps else ""
        by_clock = ", or cut them by the driver's clock, with time_domain='processing-time'"
        if stream.is_changelog:
            by_clock = ""  # such windows are of event time alone
        problems.append(
            "its rows have no event time: name their timestamp column as event_time when "
            f"reading them, and keep it{hint}{by_clock}"
        )
    for name in stream.key_columns:
        kind = _plain_type(stream.arrow.field(name).type)
        if not is_held_by_polars(kind):
            problems.append(
                f"rows cannot be grouped by {name!r}: {why_not_in_polars(kind)}"
            )
            continue
        try:
            pl.from_arrow(pa.array([], kind))
        except Exception as error:  # noqa: BLE001 (Polars panics with many kinds)
            problems.append(
                f"key column {name!r} of type {kind} cannot be grouped: {error}"
            )
    return problems


def _plain_type(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig(OperatorConfig):
    """What the configs of all window operators hold."""

    window: str
    """The window as the user wrote it."""
    stream: bytes
    """The schema of the rows, with their key, as `StreamSchema.to_bytes` returns it."""
    aggregates: tuple[AggregateConfig, ...]

    @override
    def shown(self) -> Mapping[str, str]:
        return {"window": self.window, "computes": self.aggregation().plan.display()}

    def aggregation(self) -> WindowAggregation:
        """Return what is computed."""
        stream = StreamSchema.from_bytes(self.stream)
        return WindowAggregation(stream, AggregatePlan.from_config(self.aggregates))

    def refuse(self, problems: list[str]) -> None:
        """Raise if there are problems with the lengths of the windows."""
        if problems:
            raise UserError(
                f"{self.window} cannot be computed: {'; '.join(problems)}",
                code=ErrorCode.INVALID_NUMBER,
            )


def instant_of(watermark: EventTime | None) -> int | None:
    """Return a watermark in microseconds; None while it is unknown."""
    return None if watermark is None else watermark.micros
