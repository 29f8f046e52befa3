"""Timers: instants per key at which an operator wants to be called, kept in a table.

How it works. A timer is a row of a time-keyed table that expires when its clock (watermark
or processing time) reaches it. It fires in the one epoch where

    clock of the epoch before  <  due  <=  clock of this epoch

so nothing is ever deleted, and nothing fires twice after a restore or a rescale: the clock of
the epoch before is in the manifest. A timer for an instant that has passed fires in the epoch
that sets it. If it is set when the epoch's timers have fired already (in a tick, on close, at
the checkpoint) it is kept for the next instant of the clock.

Where the clock stands still, a timer that fires is not passed by it: a row is written that
says so. Timers set before the first watermark wait for it. After the last one, the end of
data, a timer can be set but no clock will reach it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.core.batch import RowsLike, to_batch
from penstock.core.schema import StreamSchema
from penstock.core.signals import MAX_MICROS
from penstock.errors import ErrorCode, InternalError, UserError
from penstock.operators.timer_rows import (
    DUE,
    FIRES_AT,
    IS_SET,
    fire_later,
    in_firing_order,
    key_column,
    keys_of,
    micros_in,
    newest_rows,
    next_instant,
    set_rows,
    timer_schema,
    to_rows,
)
from penstock.state.tables.keyed_rows import join_rows
from penstock.state.tables.specs import TableSpec, TimeDomain, time_keyed_table
from penstock.state.tables.table_manager import TableManager
from penstock.state.tables.time_keyed_view import TimeKeyedView

_TABLES = {
    TimeDomain.EVENT_TIME: "penstock.event-timers",
    TimeDomain.PROCESSING_TIME: "penstock.processing-timers",
}
_FIRST_LOOK_MICROS = 1_000
_LOOKS = 8


@dataclass(frozen=True, slots=True)
class DueTimers:
    """Timers of one time domain that are due, earliest first, each once.

    Those of one instant come in an order that is the same whenever the epoch is run.
    """

    domain: TimeDomain
    keys: pa.RecordBatch
    """The key columns, a row per timer."""
    due_micros: pa.Int64Array
    """When each was due, as it was set."""


def timer_tables(
    domains: Collection[TimeDomain], keyed: StreamSchema
) -> tuple[TableSpec, ...]:
    """Return the tables that keep the timers of an operator, given its first input."""
    if domains and not keyed.key_columns:
        raise UserError(
            "an operator sets timers but its first input has no key: a timer belongs to a key. "
            "Put key_by before the operator",
            code=ErrorCode.INVALID_GRAPH,
        )
    return tuple(
        time_keyed_table(
            _TABLES[domain],
            timer_schema(keyed),
            key_columns=[key_column(name) for name in keyed.key_columns],
            time_column=FIRES_AT,
            time_domain=domain,
            description=f"timers by {domain.value}",
        )
        for domain in TimeDomain
        if domain in domains
    )


class Timers:
    """The timers of one subtask in one time domain; see `OperatorContext.event_timers`."""

    def __init__(
        self, domain: TimeDomain, tables: TableManager, keyed: StreamSchema
    ) -> None:
        """Keep timers in the table that `timer_tables` declared in `tables`."""
        self.domain = domain
        self.has_fired = False
        """Something fired in this epoch."""
        self._tables = tables
        self._keyed = keyed
        self._previous: int | None = None
        self._now: int | None = None
        """Known from the first `take_due` of the epoch on."""
        self._floor: int | None = None
        """Instants up to here are past, and what was set for them has fired or will fire now."""
        self._recent: list[pa.RecordBatch] = []
        """What was set and cancelled since the last `take_due`."""

    def set(self, keys: RowsLike, due_micros: Any) -> None:
        """Set a timer per row; one that is set already stays set once.

        `keys` holds the key columns of the operator's first input, and perhaps others.
        `due_micros` is one instant for all of them, or an array with one each.
        """
        self._write(to_rows(self._to_keys(keys), due_micros, self._keyed, is_set=True))

    def cancel(self, keys: RowsLike, due_micros: Any) -> None:
        """Take back a timer per row; one that is not set is no error."""
        self._write(to_rows(self._to_keys(keys), due_micros, self._keyed, is_set=False))

    def _to_keys(self, keys: RowsLike) -> pa.RecordBatch:
        return to_batch(keys, self._keyed.schema, self._keyed.key_columns)

    def begin_epoch(self, previous_micros: int | None) -> None:
        """Start an epoch; `previous_micros` is what the clock showed after the one before."""
        self.has_fired = False
        self._previous = self._floor = previous_micros
        self._now = None
        self._recent = []

    def take_due(self, now_micros: int | None) -> DueTimers | None:
        """Return all timers due at `now_micros` that have not fired yet; None without any.

        Called until it returns None, because timers that are set by those that fire may be
        due as well. A clock that says nothing, None, stands still.
        """
        now = self._previous if now_micros is None else now_micros
        if now is None:
            return None
        if self._previous is not None and now < self._previous:
            raise InternalError(
                f"the clock of timers by {self.domain.value} went back from {self._previous} to "
                f"{now}"
            )
        rows = self._rows_to_fire(now)
        self._now, self._recent = now, []
        if rows is None:
            self._floor = now
            return None
        self.has_fired = True
        self._withdraw(rows, now)
        due: Any = rows.column(DUE)
        return DueTimers(self.domain, keys_of(rows, self._keyed), due.view(pa.int64()))

    def next_due_micros(self) -> int | None:
        """Return when the next timer is due after this epoch's own time; None without timers.

        Behind very many cancelled timers it may be an earlier instant, never a later one. Ask
        before the tables are closed.
        """
        view = self._view()
        start = None if self._floor is None else next_instant(self._floor)
        width = _FIRST_LOOK_MICROS
        for _ in range(_LOOKS):
            first = view.min_time(start)
            if first is None:
                return None
            end = first + width
            rows = _in_one_batch(view.rows(first, end if end <= MAX_MICROS else None))
            found = set_rows(newest_rows(rows))
            if found.num_rows:
                return int(micros_in(found, FIRES_AT).min())
            if end > MAX_MICROS:
                return None
            start, width = end, width * 16
        return view.min_time(start)

    def _write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        placed = fire_later(rows, self._floor)
        self._view().insert(placed, placed.column(FIRES_AT))
        if self._now is not None:
            self._recent.append(placed)

    def _rows_to_fire(self, now: int) -> pa.RecordBatch | None:
        """Return the timers set for `now` or earlier, in order; None if there is none."""
        rows = self._passed_rows(now) if self._now is None else _joined(self._recent)
        if rows is None or rows.num_rows == 0:
            return None
        # Rows kept for the next instant of the clock lie beside timers that are for it.
        past = rows.filter(pa.array(micros_in(rows, DUE) <= now))
        due = set_rows(newest_rows(past))
        return in_firing_order(due) if due.num_rows else None

    def _passed_rows(self, now: int) -> pa.RecordBatch:
        """Return the rows that the clock passes in this epoch, and those kept for it."""
        start = last = None
        if self._previous is not None:
            start = last = next_instant(self._previous)
        last = now if last is None else max(now, last)
        end = None if last == MAX_MICROS else last + 1
        return _in_one_batch(self._view().rows(start, end))

    def _withdraw(self, fired: pa.RecordBatch, now: int) -> None:
        """Take back what has fired but will not be passed by the clock in this epoch."""
        kept = fired.filter(pa.array(micros_in(fired, FIRES_AT) > now))
        if kept.num_rows == 0:
            return
        index = kept.schema.get_field_index(IS_SET)
        gone = pa.array([False] * kept.num_rows)
        rows = kept.set_column(index, kept.schema.field(index), gone)
        self._view().insert(rows, rows.column(FIRES_AT))

    def _view(self) -> TimeKeyedView:
        return self._tables.get_time_keyed_state(_TABLES[self.domain])


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    return join_rows(batches) if batches else None


def _in_one_batch(rows: pa.Table) -> pa.RecordBatch:
    batches = rows.to_batches()
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=rows.schema)
    return join_rows(batches)
