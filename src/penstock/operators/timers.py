"""Timers: instants per key at which an operator wants to be called, kept in a table.

How it works. A timer is a row of a time-keyed table. It fires in the one epoch where

    clock of the epoch before  <  due  <=  clock of this epoch

The clock is the watermark or processing time. Nothing fires twice after a restore or a
rescale, because the clock of the epoch before is in the manifest.

- A row holds a key, the instant `due`, and whether the timer is set or cancelled. Of several
  rows of one key and instant the last one counts.
- `fires_at` is `due`. A timer for an instant that has passed fires in the epoch that sets it. If
  the epoch's timers have fired already (in a tick, on close, at the checkpoint), `fires_at` is
  the next instant of the clock.
- A row expires when the clock reaches `fires_at`; rows are never deleted.
- If the clock did not move, a fired timer has not expired; a cancelling row stops it from
  firing again.
- Timers set before the first watermark wait for it. After the last one, the end of data, a
  timer can be set but no clock will reach it.

The functions on timer rows are pure; `Timers` holds the table and the clock of one subtask.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.arrow_types import Micros, to_micros
from penstock.core.batch import empty_batch, to_batch, to_batches
from penstock.core.key_hash import hash_keys
from penstock.core.rows import InstantsLike, RowsLike, to_instants
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_MICROS
from penstock.errors import ErrorCode, InternalError, UserError
from penstock.state.tables.sorted_rows import join_rows, newest_per_key, stable_order
from penstock.state.tables.specs import TableSpec, TimeDomain, time_keyed_table
from penstock.state.tables.table_manager import TableManager
from penstock.state.tables.time_keyed_view import TimeKeyedView

FIRES_AT, DUE, IS_SET = "fires_at", "due", "is_set"
_KEY_PREFIX = "key."


def timer_schema(keyed: StreamSchema) -> pa.Schema:
    """Return the columns of a timer table; a prefix keeps keys apart from the table's own."""
    keys = [
        keyed.arrow.field(name).with_name(key_column(name)).remove_metadata()
        for name in keyed.key_columns
    ]
    return pa.schema(
        [
            *keys,
            pa.field(FIRES_AT, pa.timestamp("us"), nullable=False),
            pa.field(DUE, pa.timestamp("us"), nullable=False),
            pa.field(IS_SET, pa.bool_(), nullable=False),
        ]
    )


def key_column(name: str) -> str:
    """Return the name of a key column of the input in a timer table."""
    return _KEY_PREFIX + name


def keys_of(rows: pa.RecordBatch, keyed: StreamSchema) -> pa.RecordBatch:
    """Return the keys of timer rows, under the names that the input has."""
    fields = [keyed.arrow.field(name) for name in keyed.key_columns]
    columns = [rows.column(key_column(name)) for name in keyed.key_columns]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def micros_in(rows: pa.RecordBatch, name: str) -> Micros:
    """Return an instant of each row."""
    column: Any = rows.column(name)
    micros: Micros = column.view(pa.int64()).to_numpy()
    return micros


def to_rows(
    keys: pa.RecordBatch, due: InstantsLike, keyed: StreamSchema, *, is_set: bool
) -> pa.RecordBatch:
    """Return the rows that set or cancel timers, each timer once, with `fires_at` as `due`."""
    schema = timer_schema(keyed)
    instants = pa.array(due_instants(due, keys.num_rows)).view(pa.timestamp("us"))
    flags = pa.array(np.full(len(instants), is_set))
    columns = [*keyed.keys_of(keys), instants, instants, flags]
    named: pa.RecordBatch = pa.RecordBatch.from_arrays(columns, names=schema.names)
    rows = to_batches(named, schema)
    return newest_rows(join_rows(rows)) if rows else named.slice(0, 0)


def newest_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the last row of each key and instant, in the order they were written."""
    if rows.num_rows < 2:
        return rows
    names = [n for n in rows.schema.names if n not in (FIRES_AT, IS_SET)]
    identity: list[Any] = [rows.column(name) for name in names]
    hashes = hash_keys(identity)
    newest = newest_per_key(hashes, identity, stable_order(hashes))
    if len(newest) == rows.num_rows:
        return rows
    return rows.take(pa.array(np.sort(newest), pa.int64()))


def set_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the newest row of each timer that is set, not cancelled."""
    newest = newest_rows(rows)
    return newest.filter(newest.column(IS_SET))


def in_firing_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows earliest first; those of one instant by the hash of their key."""
    keys: list[Any] = [
        rows.column(n) for n in rows.schema.names if n.startswith(_KEY_PREFIX)
    ]
    order = np.lexsort((hash_keys(keys), micros_in(rows, DUE)))
    return rows.take(pa.array(order, pa.int64()))


def next_instant(micros: int) -> int:
    """Return the instant after this one; the last one has none."""
    return min(micros + 1, MAX_MICROS)


def due_instants(given: InstantsLike, row_count: int) -> Micros:
    """Return one instant per row in microseconds: finer timestamps are rounded down."""
    try:
        column = to_instants(given, row_count)
    except ValueError as error:
        raise _refusal(str(error)) from error
    if column.null_count:
        first = column.is_null().index(True).as_py()
        raise _refusal(f"{column.null_count} instants are null, first in row {first}")
    is_timestamp = pa.types.is_timestamp(column.type)
    micros = to_micros(column) if is_timestamp else column.to_numpy()
    if micros is None:
        raise _refusal("an instant is further from 1970 than 2**63 microseconds")
    return np.asarray(micros, np.int64)


def _refusal(problem: str) -> UserError:
    return UserError(
        f"timers cannot be set or cancelled so: {problem}. Give microseconds since 1970 or a "
        "datetime for all keys, or one per key as a list, a NumPy array, an Arrow array or a "
        "Polars series of whole numbers or timestamps",
        code=ErrorCode.INVALID_NUMBER,
    )


TIMER_TABLES = {
    TimeDomain.EVENT_TIME: "penstock.event-timers",
    TimeDomain.PROCESSING_TIME: "penstock.processing-timers",
}
_FIRST_LOOK_MICROS = 1_000
_LOOKS = 8


@dataclass(frozen=True, slots=True)
class DueTimers:
    """Timers of one time domain that are due, earliest first, each once.

    Timers of one instant come in an order that is the same in every run of the epoch.
    """

    domain: TimeDomain
    keys: pa.RecordBatch
    """The key columns, a row per timer."""
    due_micros: pa.Int64Array
    """The instant that each timer was set for."""


def timer_tables(
    domains: Collection[TimeDomain], keyed: StreamSchema
) -> tuple[TableSpec, ...]:
    """Return the tables that keep the timers of an operator, given its first input."""
    return tuple(
        time_keyed_table(
            TIMER_TABLES[domain],
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
        """A timer fired in this epoch."""
        self._tables = tables
        self._keyed = keyed
        self._previous: int | None = None
        self._now: int | None = None
        """The clock of this epoch; None before the first `take_due`."""
        self._floor: int | None = None
        """The latest instant that has passed: its timers have fired or fire in this epoch."""
        self._recent: list[pa.RecordBatch] = []
        """What was set and cancelled since the last `take_due`."""

    def set(self, keys: RowsLike, due_micros: InstantsLike) -> None:
        """Set a timer per row; setting one twice is the same as once.

        `keys` holds the key columns of the operator's first input, and perhaps others.
        `due_micros` is one instant for all of them, or one each: see `InstantsLike`.
        """
        self._write(keys, due_micros, is_set=True)

    def cancel(self, keys: RowsLike, due_micros: InstantsLike) -> None:
        """Take back a timer per row; one that is not set is no error."""
        self._write(keys, due_micros, is_set=False)

    def begin_epoch(self, previous_micros: int | None) -> None:
        """Start an epoch; `previous_micros` is what the clock showed after the one before."""
        self.has_fired = False
        self._previous = self._floor = previous_micros
        self._now = None
        self._recent = []

    def take_due(self, now_micros: int | None) -> DueTimers | None:
        """Return all timers due at `now_micros` that have not fired yet; None without any.

        Called until it returns None, because a timer that fires may set others that are due
        as well. If `now_micros` is None, the clock has not moved.
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
        # If the clock does not move past a timer in this epoch, a row that cancels it stops it
        # from firing again.
        ahead = rows.filter(pa.array(micros_in(rows, FIRES_AT) > now))
        if ahead.num_rows:
            gone = _with_column(ahead, IS_SET, pa.array([False] * ahead.num_rows))
            self._view().insert(gone, gone.column(FIRES_AT))
        due: Any = rows.column(DUE)
        return DueTimers(self.domain, keys_of(rows, self._keyed), due.view(pa.int64()))

    def next_due_micros(self) -> int | None:
        """Return when the next timer is due after this epoch's own time; None without timers.

        Behind very many cancelled timers it may be an earlier instant, never a later one. Call
        it before the tables are closed.
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
            found = set_rows(rows)
            if found.num_rows:
                return int(micros_in(found, FIRES_AT).min())
            if end > MAX_MICROS:
                return None
            start, width = end, width * 16
        return view.min_time(start)

    def _write(self, keys: RowsLike, due: InstantsLike, *, is_set: bool) -> None:
        given = to_batch(keys, self._keyed.arrow, self._keyed.key_columns)
        rows = to_rows(given, due, self._keyed, is_set=is_set)
        if rows.num_rows == 0:
            return
        if self._floor is not None:
            # Timers for instants that have passed fire at the next instant of the clock.
            moved = np.maximum(micros_in(rows, DUE), next_instant(self._floor))
            rows = _with_column(rows, FIRES_AT, pa.array(moved).view(pa.timestamp("us")))
        self._view().insert(rows, rows.column(FIRES_AT))
        if self._now is not None:
            self._recent.append(rows)

    def _rows_to_fire(self, now: int) -> pa.RecordBatch | None:
        """Return the timers set for `now` or earlier, in order; None if there is none."""
        if self._now is None:
            # Rows whose `fires_at` the clock reaches in this epoch.
            start = None if self._previous is None else next_instant(self._previous)
            last = now if start is None else max(now, start)
            end = None if last == MAX_MICROS else last + 1
            rows = _in_one_batch(self._view().rows(start, end))
        elif self._recent:
            rows = join_rows(self._recent)
        else:
            return None
        # If the clock did not move, the next instant is read too, where late timers are kept:
        # timers that are due only then do not fire yet.
        past = rows.filter(pa.array(micros_in(rows, DUE) <= now))
        due = set_rows(past)
        return in_firing_order(due) if due.num_rows else None

    def _view(self) -> TimeKeyedView:
        return self._tables.get_time_keyed_state(TIMER_TABLES[self.domain])


def _with_column(rows: pa.RecordBatch, name: str, column: Any) -> pa.RecordBatch:
    index = rows.schema.get_field_index(name)
    return rows.set_column(index, rows.schema.field(index), column)


def _in_one_batch(rows: pa.Table) -> pa.RecordBatch:
    batches = rows.to_batches()
    return join_rows(batches or [empty_batch(rows.schema)])
