"""Rows of a time-keyed table in memory: chunks that are searched by time range or by key.

A chunk is a record batch of stored rows, from a file (mapped, sorted by hash) or written in
this epoch. Its times and orders are computed once, when they are first needed.

Time bounds skip most chunks. After 16 scans a chunk is sorted by time, so that a range costs
only its result. Rows of a key within a range of time are found by bisection, so that a lookup
of a key with many rows costs only its result, too. Chunks of own writes are joined so that their number grows with the logarithm
of the epochs; mapped ones stay where they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.arrow_types import Micros
from penstock.core.hash_kernels import Hashes
from penstock.state.tables.columns import EXPIRES_AT, TimeKeyedSchema
from penstock.state.tables.expiry import live_rows, micros_of
from penstock.state.tables.sorted_rows import (
    Positions,
    equal_keys,
    hashes_of,
    is_in_order,
    stable_order,
    take_rows,
)

_SCANS_BEFORE_SORTING = 16
"""Sorting costs about as much as this many scans; a chunk scanned so often will be again."""
_WALKED_ROWS = 256
_FEW_CHUNKS = 8
"""Up to this number chunks are not joined: most rows expire before there are more."""
_LARGEST_JOINED = 1 << 20
"""Chunks are not joined beyond this many rows: the copy would slow an epoch down."""


@dataclass(frozen=True, slots=True)
class Probes:
    """Keys to look up."""

    keys: Sequence[Any]
    """Their columns in stored types."""
    hashes: Hashes
    by_hash: Positions
    """Their order by hash: searching in order is several times faster than in any other."""
    first_only: bool = False
    """Whether one match of each is enough."""


class Chunk:
    """Some stored rows of one table. The rows never change; only derived values are cached."""

    def __init__(
        self, rows: pa.RecordBatch, schema: TimeKeyedSchema, *, is_mapped: bool = False
    ) -> None:
        self.rows = rows
        self.is_mapped = is_mapped
        """Whether the rows are mapped from a cached file instead of held in memory."""
        self._schema = schema
        self._scans = 0
        self._is_sorted = False
        """Whether ranges are found in the order by time, after enough scans."""
        self._earliest: _Earliest | None = None

    @cached_property
    def times(self) -> Micros:
        """The event time of each row, rounded down to microseconds."""
        column: Any = self.rows.column(self._schema.time_column)
        if column.type.unit == "us" and not column.null_count:
            return micros_of(column)  # without a copy, perhaps of a mapped file
        return self._schema.stream.event_times_of(self.rows)

    @cached_property
    def time_bounds(self) -> tuple[int, int]:
        """The earliest and the latest time of all rows, live or not."""
        # The bounds in the list entry of a file are not read: they are of the column that was
        # the time column when the file was written, and another one may be declared since.
        return int(self.times.min()), int(self.times.max())

    @cached_property
    def _by_hash(self) -> tuple[Positions | None, Hashes]:
        """The positions in order of hash, None when the rows are in that order, and the hashes."""
        hashes = hashes_of(self.rows)
        if is_in_order(hashes):
            return None, hashes
        order = stable_order(hashes)
        return order, hashes[order]

    @cached_property
    def last_expiry_micros(self) -> int | None:
        """The instant at which the last row expires; None if a row never expires."""
        column: Any = self.rows.column(EXPIRES_AT)
        return None if column.null_count else int(micros_of(column).max())

    def is_dead(self, clock_micros: int | None) -> bool:
        """Tell whether every row has expired."""
        last = self.last_expiry_micros
        return clock_micros is not None and last is not None and last <= clock_micros

    def live(
        self, clock_micros: int | None, start: int | None = None, end: int | None = None
    ) -> pa.RecordBatch:
        """Return the live rows whose time lies in `[start, end)`; None is no bound."""
        rows = self.rows
        low, high = self.time_bounds
        if (end is not None and low >= end) or (start is not None and high < start):
            return rows.slice(0, 0)
        if (end is not None and high >= end) or (start is not None and low < start):
            positions = self._positions_in(start, end)
            if self._is_sorted:  # restore the order in which the rows are stored
                positions = np.sort(positions)
            rows = take_rows(rows, positions)
        picked = live_rows(rows.column(EXPIRES_AT), clock_micros)
        return rows if picked is None else rows.filter(pa.array(picked))

    def min_time(self, clock_micros: int | None, start: int | None) -> int | None:
        """Return the earliest time of a live row, at `start` or later; None without one.

        The clock must not be earlier than in the last call.
        """
        if start is not None and self.time_bounds[1] < start:
            return None
        if self._earliest is not None and self._earliest.holds(clock_micros, start):
            return self._earliest.time
        self._earliest = None
        # Sorted rows are read in order of time up to the first live one, others all at once.
        places = self._positions_in(start)
        step = _WALKED_ROWS if self._is_sorted else len(places)
        for first in range(0, len(places), max(1, step)):
            positions = places[first : first + step]
            expiries = take_rows(self.rows.column(EXPIRES_AT), positions)
            live = live_rows(expiries, clock_micros)
            if live is not None:
                positions = positions[live]
            if len(positions):
                place = positions[np.argmin(self.times[positions])]
                expiry: Any = self.rows.column(EXPIRES_AT).slice(int(place), 1)
                until = None if expiry.null_count else int(micros_of(expiry)[0])
                self._earliest = _Earliest(start, int(self.times[place]), until)
                return self._earliest.time
        return None

    def match(
        self, hashes: Hashes, keys: Sequence[Any], clock_micros: int | None
    ) -> tuple[Positions, Positions]:
        """Return which live rows hold which of the keys, as (probe, row) positions."""
        order, stored = self._by_hash
        first = np.searchsorted(stored, hashes, "left")
        counts = np.searchsorted(stored, hashes, "right") - first
        probes = np.repeat(np.arange(len(hashes)), counts)
        # The position among the rows of one probe: a ramp that starts at 0 for every probe.
        ramp = np.arange(len(probes)) - np.repeat(np.cumsum(counts) - counts, counts)
        places = np.repeat(first, counts) + ramp
        rows = places if order is None else order[places]
        live = live_rows(self.rows.column(EXPIRES_AT), clock_micros)
        if live is not None:
            probes, rows = probes[live[rows]], rows[live[rows]]
        ours = [self.rows.column(name) for name in self._schema.key_columns]
        same = equal_keys(keys, probes, ours, rows)
        return probes[same], rows[same]

    def match_between(
        self,
        probed: "Probes",
        clock_micros: int | None,
        starts: Micros,
        ends: Micros,
    ) -> Iterator[tuple[Positions, Positions]]:
        """Yield which live rows hold which of the keys at a time in the key's `[start, end)`.

        Pairs are (probe, row) positions in order of the probes, a bounded number at a time.
        """
        hashes, by_hash = probed.hashes, probed.by_hash
        _, stored, times = self._by_hash_and_time
        wanted = hashes[by_hash]
        first = np.searchsorted(stored, wanted, "left")
        last = np.searchsorted(stored, wanted, "right")
        is_known = last > first
        # From here on in the order of the probes, so that those who copy their rows read them
        # one after another.
        probes = by_hash[is_known]
        back = np.argsort(probes)
        probes, first, last = probes[back], first[is_known][back], last[is_known][back]
        first = _bisect_each(times, first, last, starts[probes])
        last = _bisect_each(times, first, last, ends[probes])
        counts = last - first
        if not probed.first_only:
            yield from self._true_matches(probed, probes, first, counts, clock_micros)
            return
        # Nearly always the first candidate is live and has the key itself, not only its hash.
        is_found = np.zeros(len(hashes), np.bool_)
        few = np.minimum(counts, 1)
        for found, rows in self._true_matches(probed, probes, first, few, clock_micros):
            is_found[found] = True
            yield found, rows
        others = np.where(is_found[probes], 0, counts - few)
        yield from self._true_matches(probed, probes, first + 1, others, clock_micros)

    def _true_matches(
        self,
        probed: "Probes",
        probes: Positions,
        first: Positions,
        counts: Positions,
        clock_micros: int | None,
    ) -> Iterator[tuple[Positions, Positions]]:
        """Yield those rows of the ranges of some probes that are live and have their key."""
        order = self._by_hash_and_time[0]
        live = live_rows(self.rows.column(EXPIRES_AT), clock_micros)
        ours = [self.rows.column(name) for name in self._schema.key_columns]
        for owners, places in expand_ranges(first, counts):
            found = probes[owners]
            rows = places if order is None else order[places]
            if live is not None:
                found, rows = found[live[rows]], rows[live[rows]]
            same = equal_keys(probed.keys, found, ours, rows)
            if not same.all():
                found, rows = found[same], rows[same]
            if len(rows):
                yield found, rows

    @cached_property
    def _by_hash_and_time(self) -> tuple[Positions | None, Hashes, Micros]:
        """As `_by_hash`, but rows of one hash in order of time; and the times in that order."""
        order, hashes = self._by_hash
        times = self.times if order is None else self.times[order]
        if bool(((hashes[1:] != hashes[:-1]) | (times[1:] >= times[:-1])).all()):
            return order, hashes, times
        by_time = np.argsort(self.times, kind="stable")
        order = by_time[stable_order(hashes_of(self.rows)[by_time])]
        return order, hashes, self.times[order]

    def _positions_in(self, start: int | None, end: int | None = None) -> Positions:
        """Return the rows with a time in `[start, end)`, in order of time if that was computed.

        Scans are counted: after enough of them, the order by time is computed.
        """
        self._scans += 1
        self._is_sorted = self._scans > _SCANS_BEFORE_SORTING
        if not self._is_sorted:
            picked = np.ones(len(self.times), np.bool_)
            if start is not None:
                picked &= self.times >= start
            if end is not None:
                picked &= self.times < end
            return np.flatnonzero(picked)
        order, times = self._by_time
        # Searching for None would fail, so a missing bound is left to the slice.
        first, last = (
            None if bound is None else int(np.searchsorted(times, bound))
            for bound in (start, end)
        )
        return order[first:last]

    @cached_property
    def _by_time(self) -> tuple[Positions, Micros]:
        """The positions in order of time, and the times."""
        order = np.argsort(self.times)
        return order, self.times[order]


def expand_ranges(
    first: Positions, counts: Positions, *, limit: int = 1 << 20
) -> Iterator[tuple[Positions, Positions]]:
    """Yield every place of the ranges `[first, first + count)` with the number of its range.

    At most `limit` places come at a time, so that ranges may have any lengths.
    """
    ranges = np.flatnonzero(counts)
    ends = np.cumsum(counts[ranges])
    starts = ends - counts[ranges]
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, limit):
        end = min(total, begin + limit)
        low = int(np.searchsorted(ends, begin, "right"))
        high = int(np.searchsorted(starts, end, "left"))
        cut = np.minimum(ends[low:high], end) - np.maximum(starts[low:high], begin)
        owners = np.repeat(ranges[low:high], cut)
        # A place is the number of its pair, shifted by where its range begins.
        shifts = np.repeat(first[ranges[low:high]] - starts[low:high], cut)
        yield owners, shifts + np.arange(begin, end)


def _bisect_each(
    values: Micros, first: Positions, last: Positions, wanted: Micros
) -> Positions:
    """Return for each range of sorted values where the first one is that is not below `wanted`."""
    low, high = first.copy(), last.copy()
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) >> 1
        is_below = (middle < high) & (values[np.minimum(middle, len(values) - 1)] < wanted)
        low = np.where(is_below, middle + 1, low)
        high = np.where(is_below, high, middle)
    return low


@dataclass(frozen=True, slots=True)
class _Earliest:
    """The earliest live row of a chunk from `start` on, and when it expires.

    While the row lives it stays the earliest, because no rows are added to a chunk.
    """

    start: int | None
    time: int
    until: int | None
    """When the row expires; None for never."""

    def holds(self, clock_micros: int | None, start: int | None) -> bool:
        """Tell whether the row is still the earliest at a later clock and this start."""
        lives = clock_micros is None or self.until is None or clock_micros < self.until
        if self.start is None:
            return lives and (start is None or start <= self.time)
        return lives and start is not None and self.start <= start <= self.time


def settle_chunks(
    chunks: Sequence[Chunk], schema: TimeKeyedSchema, clock_micros: int | None
) -> list[Chunk]:
    """Drop expired chunks, and join the last own chunks of similar size without expired rows."""
    settled = [chunk for chunk in chunks if not chunk.is_dead(clock_micros)]
    while len(settled) > _FEW_CHUNKS and _are_worth_joining(settled[-2], settled[-1]):
        live = [Chunk(c.live(clock_micros), schema) for c in settled[-2:]]
        joined = join_chunks(live, schema)
        settled[-2:] = joined
        if len(joined) > 1:  # their values do not fit one batch
            break
    return settled


def _are_worth_joining(older: Chunk, newer: Chunk) -> bool:
    before, after = older.rows.num_rows, newer.rows.num_rows
    is_own = not (older.is_mapped or newer.is_mapped)
    return is_own and before < 2 * after and before + after <= _LARGEST_JOINED


def join_chunks(chunks: Sequence[Chunk], schema: TimeKeyedSchema) -> list[Chunk]:
    """Return the same rows in one chunk, or in several if they do not fit one batch."""
    table = pa.Table.from_batches([chunk.rows for chunk in chunks], schema=schema.stored)
    return [
        Chunk(batch, schema)
        for batch in table.combine_chunks().to_batches()
        if batch.num_rows
    ]
