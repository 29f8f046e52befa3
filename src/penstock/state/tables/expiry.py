"""Expiry of stored rows: when a row expires, and which rows are live at an instant.

Pure. The only place with these rules, for keyed and time-keyed tables. A row is live iff it
never expires (null) or `expires_at > instant`; at the instant of its expiry it is expired.
Without an instant, as before the first watermark, every row is live. Instants are only
compared, so none is too early or too late.

A keyed row expires one time to live after its event time, judged by the watermark, or after
the epoch that put it, judged by processing time. A time-keyed row has the expiry that its
operator gave it. In an epoch, a time-keyed table shows the rows that were live when the epoch
before ended, because an operator must still see the rows that it has to close or fire. Rows
that expire during the epoch are dropped at its end:

| Time domain | in an epoch | at its checkpoint, and for compaction |
|---|---|---|
| event time | the watermark of the epoch before | the watermark |
| processing time | the processing time of the epoch before | the processing time |
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.arrow_types import Micros, to_micros_within_reach
from penstock.core.rows import InstantsLike, to_instants
from penstock.errors import SchemaError, SettingsError
from penstock.state.files.state_file import StateFile
from penstock.state.proto import state_pb2
from penstock.state.tables.sorted_rows import Flags
from penstock.state.tables.table import Frontier

ExpiresAt: TypeAlias = InstantsLike | None
"""One instant for all rows or one each, of which None is never."""
EXPIRY_TYPE = pa.timestamp("us")
_LAST_INSTANT = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """How long a row lives, counted from its event time or from the epoch that put it."""

    micros: int
    time_column: str | None = None
    """The timestamp column with a row's event time; None to count in processing time."""

    def __post_init__(self) -> None:
        if not 0 < self.micros <= _LAST_INSTANT:
            raise SettingsError(
                f"a time to live of {self.micros!r} microseconds is not possible: it must be "
                "positive and fit 64 bits; leave it out for rows that never expire",
                ttl_micros=self.micros,
            )

    @property
    def domain(self) -> state_pb2.TimeDomain:
        """The clock by which rows expire, as it is stored."""
        return (
            state_pb2.PROCESSING_TIME if self.time_column is None else state_pb2.EVENT_TIME
        )


def clock_within_epoch(domain: state_pb2.TimeDomain, frontier: Frontier) -> int | None:
    """Return the instant by which time-keyed rows are hidden in an epoch begun at `frontier`."""
    if domain == state_pb2.PROCESSING_TIME:
        return frontier.previous_processing_time_micros
    return frontier.watermark_micros


def clock_after_epoch(domain: state_pb2.TimeDomain, frontier: Frontier) -> int | None:
    """Return the instant by which rows are dropped when an epoch ends at `frontier`."""
    if domain == state_pb2.PROCESSING_TIME:
        return frontier.processing_time_micros
    return frontier.watermark_micros


def frontier_micros(ttl: TimeToLive | None, frontier: Frontier) -> int | None:
    """Return the instant by which a time to live is judged; None if nothing can have expired."""
    return None if ttl is None else clock_after_epoch(ttl.domain, frontier)


def is_expired(file: StateFile, instant: int | None) -> bool:
    """Tell from the list entry alone whether a file holds no live row."""
    last = file.last_expiry_micros
    return file.row_count == 0 or (
        instant is not None and last is not None and last <= instant
    )


def expiry_of_rows(
    rows: pa.RecordBatch, ttl: TimeToLive | None, frontier: Frontier
) -> "pa.Array[Any]":
    """Return when each of `rows`, put at `frontier`, will expire; null for never."""
    if ttl is None:
        return _one_expiry(None, rows.num_rows)
    if ttl.time_column is None:
        instant = min(frontier.processing_time_micros + ttl.micros, _LAST_INSTANT)
        return _one_expiry(instant, rows.num_rows)
    column = rows.column(ttl.time_column)
    if column.null_count:
        raise SchemaError(
            f"column {ttl.time_column!r} is null in {column.null_count} rows, but the table's "
            "time to live counts from it: give every row an event time",
            column=ttl.time_column,
        )
    # Times are rounded up, so that `>` decides as for exact ones. An instant that 64-bit
    # microseconds cannot hold is treated as the farthest one they can.
    times = to_micros_within_reach(column, rounds_up=True)
    # The sum must not overflow: a row close to the last instant expires at the last instant.
    return _instants(np.minimum(times, _LAST_INSTANT - ttl.micros) + ttl.micros)


def expiry_of_deletions(
    row_count: int, ttl: TimeToLive | None, frontier: Frontier
) -> "pa.Array[Any]":
    """Return the instant of a delete, from which on its tombstone counts as expired.

    A tombstone is never live. With the instant, the list entry of a file shows that all its
    rows have expired. The instant is null if there is no frontier yet.
    """
    return _one_expiry(frontier_micros(ttl, frontier), row_count)


def given_expiry(expires_at: ExpiresAt, row_count: int, *, table: str) -> "pa.Array[Any]":
    """Return the stored expiry of rows whose operator decides when they expire."""
    if expires_at is None:
        return _one_expiry(None, row_count)
    try:
        instants = to_instants(expires_at, row_count)
    except ValueError as error:
        raise SchemaError(
            f"the rows for table {table!r} cannot expire so: {error}. Give microseconds since "
            "1970, a datetime or None (never) for all rows, or one each as a list, a NumPy "
            "array, an Arrow array or a Polars series of whole numbers or timestamps",
            table=table,
        ) from error
    if not pa.types.is_timestamp(instants.type):
        expiry: pa.Array[Any] = instants.view(EXPIRY_TYPE)
        return expiry
    # As with a time to live, times are rounded up and those too far away become the farthest.
    micros = to_micros_within_reach(instants, rounds_up=True)
    never = instants.is_null().to_numpy(zero_copy_only=False)
    return pa.array(micros, mask=never).view(EXPIRY_TYPE)


def live_rows(expires_at: "pa.Array[Any]", instant: int | None) -> Flags | None:
    """Tell which rows are live at `instant`; None when all of them are."""
    if instant is None or expires_at.null_count == len(expires_at):
        return None
    live: Flags = micros_of(expires_at) > instant
    if expires_at.null_count:
        live |= expires_at.is_null().to_numpy(zero_copy_only=False)
    return None if live.all() else live


def micros_of(column: Any) -> Micros:
    """Return a microsecond column's raw values without copying; undefined where null."""
    return np.frombuffer(
        column.buffers()[1], dtype=np.int64, count=len(column), offset=column.offset * 8
    )


def check_time_column(schema: pa.Schema, ttl: TimeToLive | None) -> None:
    """Refuse a TTL by event time whose column is absent or not a timestamp."""
    if ttl is None or ttl.time_column is None:
        return
    index = schema.get_field_index(ttl.time_column)
    if index < 0 or not pa.types.is_timestamp(schema.field(index).type):
        raise SchemaError(
            f"the time to live counts from column {ttl.time_column!r}, which is not a timestamp "
            f"column of the table ({', '.join(schema.names)}): name one, or count in processing "
            "time",
            column=ttl.time_column,
        )


def _one_expiry(instant: int | None, row_count: int) -> "pa.Array[Any]":
    """Return the expiry of rows that all expire at one instant; None for never."""
    if instant is None:
        return pa.nulls(row_count, EXPIRY_TYPE)
    return _instants(np.full(row_count, instant, dtype=np.int64))


def _instants(micros: Micros) -> "pa.Array[Any]":
    return pa.array(micros).view(EXPIRY_TYPE)
