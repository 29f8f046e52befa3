"""Open sessions in tables: a row for each, and an index of when to look at it again.

| table | kind | rows |
|---|---|---|
| `sessions` | keyed by key and slot, routed by key | one per open session; slots 0, 1, 2 … by start |
| `wake-ups` | by time | when a session ended as of some epoch, and its key |

The row in slot 0 says how many slots there are. A session that grows leaves its wake-up where
it is: when that comes, the session turns out to be open and gets another one. So there is one
outstanding wake-up per session, however long it is, and no epoch looks through all sessions.
"""

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.operators.context import OperatorContext
from penstock.operators.windows.aggregation import (
    MICROS,
    WindowAggregation,
    to_frame,
    to_rows,
)
from penstock.operators.windows.session_merge import KEY, LAST, START, WAKES_AT
from penstock.state.tables.specs import TableSpec, keyed_table, time_keyed_table

SESSIONS = "sessions"
WAKE_UPS = "wake-ups"
SLOT, SLOTS = "session_slot", "session_slots"
_TIMES = (START, LAST, WAKES_AT)


class SessionStore:
    """The sessions of one step. Knows columns and tables, not what a session is."""

    def __init__(self, aggregation: WindowAggregation, shown: str) -> None:
        self._keys = aggregation.keys
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
        found = ctx.get_keyed_state(SESSIONS).get(to_rows(probes, self._probes))
        sessions = to_frame(found.rows).with_columns(
            probes[KEY], pl.col(*_TIMES).cast(pl.Int64)
        )
        return sessions.filter(pl.Series(found.found))

    def write(
        self, ctx: OperatorContext, sessions: pl.DataFrame, known: pl.DataFrame
    ) -> None:
        """Let `sessions` be all that their keys and those of `known` have.

        Both are numbered in `KEY`; sessions have the key columns, instants in microseconds.
        """
        slotted = sessions.sort(KEY, START).with_columns(
            pl.int_range(pl.len(), dtype=pl.Int32).over(KEY).alias(SLOT),
            pl.len().over(KEY).cast(pl.Int32).alias(SLOTS),
        )
        gone = known.join(slotted, on=[KEY, SLOT], how="anti")
        view = ctx.get_keyed_state(SESSIONS)
        if gone.height:
            view.delete(to_rows(gone, self._probes))
        if slotted.height:
            timed = slotted.with_columns(pl.col(*_TIMES).cast(pl.Datetime("us")))
            view.put(to_rows(timed, self._sessions))

    def wake(self, ctx: OperatorContext, sessions: pl.DataFrame) -> None:
        """Set a wake-up for each of some sessions at its `WAKES_AT`."""
        if not sessions.height:
            return
        instants: Any = sessions[WAKES_AT].to_numpy()
        timed = sessions.with_columns(pl.col(WAKES_AT).cast(pl.Datetime("us")))
        # A wake-up is due once the watermark is beyond it: until then it must be seen.
        expiry = pa.array(instants + np.int64(1)).view(MICROS)
        ctx.get_time_keyed_state(WAKE_UPS).insert(to_rows(timed, self._wake_ups), expiry)
