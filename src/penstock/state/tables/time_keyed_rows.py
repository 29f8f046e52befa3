"""Rows of a time-keyed table in memory: chunks that answer for a time range or for keys.

A chunk is a record batch of stored rows, from a file (mapped, sorted by hash) or written in
this epoch. What it knows about itself (times, hash order) is computed once, when asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.hash_kernels import Hashes
from penstock.state.files.parquet import KEY_HASH
from penstock.state.tables.key_equality import equal_keys
from penstock.state.tables.time_keyed_schema import (
    EXPIRES_AT,
    Micros,
    TimeKeyedSchema,
    live_rows,
    micros_of,
)

Positions: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The instants `start <= t < end` in microseconds; None for no bound."""

    start: int | None = None
    end: int | None = None

    def picks(self, times: Micros) -> npt.NDArray[np.bool_] | None:
        """Tell which times lie in the range; None when all of them do."""
        picked = None
        if self.start is not None:
            picked = times >= self.start
        if self.end is not None:
            before = times < self.end
            picked = before if picked is None else picked & before
        return picked


class Chunk:
    """Some stored rows of one table. Immutable."""

    def __init__(self, rows: pa.RecordBatch, schema: TimeKeyedSchema) -> None:
        self.rows = rows
        self._schema = schema

    @cached_property
    def times(self) -> Micros:
        """The event time of each row, rounded down to microseconds."""
        return self._schema.stream.event_times_of(self.rows)

    def check_times(self) -> None:
        """Refuse rows without an event time."""
        self._schema.stream.event_times_of(self.rows)

    @cached_property
    def _time_bounds(self) -> tuple[int, int]:
        return int(self.times.min()), int(self.times.max())

    @cached_property
    def hashes(self) -> Hashes:
        """The key hash of each row."""
        return self.rows.column(KEY_HASH).to_numpy()

    @cached_property
    def _order(self) -> Positions | None:
        """The positions in order of hash; None when the rows are in that order."""
        if bool((self.hashes[1:] >= self.hashes[:-1]).all()):
            return None
        return np.argsort(self.hashes, kind="stable")

    @cached_property
    def _sorted_hashes(self) -> Hashes:
        return self.hashes if self._order is None else self.hashes[self._order]

    @cached_property
    def last_expiry_micros(self) -> int | None:
        """The instant at which the last row dies; None if one never does."""
        column: Any = self.rows.column(EXPIRES_AT)
        return None if column.null_count else int(micros_of(column).max())

    def is_dead(self, watermark_micros: int | None) -> bool:
        """Tell whether every row has expired."""
        last = self.last_expiry_micros
        return (
            watermark_micros is not None and last is not None and last <= watermark_micros
        )

    def live(self, watermark_micros: int | None, times: TimeRange) -> pa.RecordBatch:
        """Return the live rows whose time lies in a range."""
        if self._misses(times):
            return self.rows.slice(0, 0)
        picked = live_rows(self.rows, watermark_micros)
        if not self._lies_in(times):
            timely = times.picks(self.times)
            picked = timely if picked is None or timely is None else picked & timely
        return self.rows if picked is None else self.rows.filter(pa.array(picked))

    def match(
        self, hashes: Hashes, keys: Sequence[Any], watermark_micros: int | None
    ) -> tuple[Positions, Positions]:
        """Return which live rows hold which of the keys, as (probe, row) positions."""
        first = np.searchsorted(self._sorted_hashes, hashes, "left")
        counts = np.searchsorted(self._sorted_hashes, hashes, "right") - first
        probes = np.repeat(np.arange(len(hashes)), counts)
        # Position inside each probe's stretch: a ramp that starts anew at every probe.
        ramp = np.arange(len(probes)) - np.repeat(np.cumsum(counts) - counts, counts)
        places = np.repeat(first, counts) + ramp
        rows = places if self._order is None else self._order[places]
        live = live_rows(self.rows, watermark_micros)
        if live is not None:
            probes, rows = probes[live[rows]], rows[live[rows]]
        ours = [self.rows.column(name) for name in self._schema.key_columns]
        same = equal_keys(keys, probes, ours, rows)
        return probes[same], rows[same]

    def _misses(self, times: TimeRange) -> bool:
        low, high = self._time_bounds
        return (times.end is not None and low >= times.end) or (
            times.start is not None and high < times.start
        )

    def _lies_in(self, times: TimeRange) -> bool:
        low, high = self._time_bounds
        return (times.start is None or low >= times.start) and (
            times.end is None or high < times.end
        )


def join_chunks(chunks: Sequence[Chunk], schema: TimeKeyedSchema) -> list[Chunk]:
    """Return the same rows in one chunk, or in several if they are too many for one batch."""
    table = pa.Table.from_batches([chunk.rows for chunk in chunks], schema=schema.stored)
    return [
        Chunk(batch, schema)
        for batch in table.combine_chunks().to_batches()
        if batch.num_rows
    ]
