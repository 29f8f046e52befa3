"""Looking up many keys at once in several runs: the newest version of each key decides.

How it works: the looked-up keys, called probes, are hashed and sorted once. Runs are searched
from the newest to the oldest, each for the probes that no newer run settled. Only segments
whose hash range holds such a probe are opened, one after the other, and each is searched with
one `searchsorted`. Rows found by hash are compared by key; a tombstone or expired row settles
its probe as missing. Found rows are copied out of their segment at once, so that it can be
closed, and put into the order of the probes at the end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.hash_kernels import Hashes
from penstock.state.tables.expiry import live_rows
from penstock.state.tables.keyed_runs import Run, Segment
from penstock.state.tables.sorted_rows import (
    Flags,
    Positions,
    equal_keys,
    is_in_order,
    stable_order,
    take_rows,
)
from penstock.state.tables.table import DataOperation


@dataclass(frozen=True, slots=True)
class Matches:
    """The live rows that were found, and which row belongs to which key."""

    pieces: tuple[pa.RecordBatch, ...]
    row_of: Positions
    """For each key, in the caller's order, its row in the joined pieces; -1 if it has none."""

    @property
    def found(self) -> Flags:
        """Tell for each key whether it has a live row."""
        return self.row_of >= 0

    def aligned(self, stored: pa.Schema, names: Sequence[str]) -> pa.RecordBatch:
        """Return one row of the named stored columns per key; nulls for a key without a row."""
        fields = [stored.field(name).with_nullable(nullable=True) for name in names]
        if not self.pieces:
            columns: list[Any] = [pa.nulls(len(self.row_of), f.type) for f in fields]
        else:
            found = self.found
            picked = pa.array(self.row_of, pa.int64(), mask=None if found.all() else ~found)
            rows = pa.Table.from_batches(self.pieces)
            found_columns = (rows.column(name).take(picked) for name in names)
            columns = [
                column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
                for column in found_columns
            ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def look_up(
    runs: Iterable[Run],
    hashes: Hashes,
    keys: Sequence[Any],
    *,
    key_columns: Sequence[str],
    columns: Sequence[str],
    instant: int | None,
) -> Matches:
    """Find the newest row of each key in `runs`, newest run first, live at `instant`."""
    search = _Search(hashes, keys, key_columns, columns, instant)
    for run in runs:
        if len(search.unsettled) == 0:
            break
        search.ask(run)
    row_of = np.empty(len(hashes), dtype=np.int64)
    row_of[search.order] = search.row_of
    return Matches(tuple(search.pieces), row_of)


class _Search:
    """One lookup under way. Probes are numbered in order of hash."""

    def __init__(
        self,
        hashes: Hashes,
        keys: Sequence[Any],
        key_columns: Sequence[str],
        columns: Sequence[str],
        instant: int | None,
    ) -> None:
        """Sort the hashed keys, unless they are sorted already."""
        count = len(hashes)
        self.order: Positions = np.arange(count, dtype=np.int64)
        """The position of each probe in the caller's order."""
        if not is_in_order(hashes):
            self.order = stable_order(hashes)
            hashes, keys = hashes[self.order], [take_rows(key, self.order) for key in keys]
        self.unsettled: Positions = np.arange(count, dtype=np.int64)
        self.row_of: Positions = np.full(count, -1, dtype=np.int64)
        self.pieces: list[pa.RecordBatch] = []
        self._is_settled = np.zeros(count, dtype=np.bool_)
        self._row_count = 0
        self._hashes = hashes
        self._keys = keys
        self._key_columns = key_columns
        self._columns = list(columns)
        self._instant = instant

    def ask(self, run: Run) -> None:
        """Settle the probes whose key is in `run`."""
        hashes = self._hashes
        if len(self.unsettled) < len(hashes):
            hashes = hashes[self.unsettled]
        begins = np.searchsorted(hashes, run.first_hashes, "left")
        ends = np.searchsorted(hashes, run.last_hashes, "right")
        for index in np.flatnonzero(ends > begins).tolist():
            begin, end = int(begins[index]), int(ends[index])
            segment = run.read_segment(index)
            self._search(segment, hashes[begin:end], self.unsettled[begin:end])
        self.unsettled = self.unsettled[~self._is_settled[self.unsettled]]

    def _search(self, segment: Segment, hashes: Hashes, probes: Positions) -> None:
        """Match the probes with rows of equal hash, one candidate per probe and round."""
        stored = segment.hashes
        if len(stored) == 0:
            return
        keys = [segment.rows.column(name) for name in self._key_columns]
        positions = stored.searchsorted(hashes)
        last = len(stored) - 1
        while len(probes):
            # A position past the end is clipped to the last row, which the next line rejects.
            is_candidate = stored[np.minimum(positions, last)] == hashes
            is_candidate &= positions <= last
            if not is_candidate.all():
                probes, positions = probes[is_candidate], positions[is_candidate]
                hashes = hashes[is_candidate]
            same = equal_keys(keys, positions, self._keys, probes)
            if same.all():
                self._settle(segment, probes, positions)
                return
            self._settle(segment, probes[same], positions[same])
            others = ~same
            probes, positions, hashes = (
                probes[others],
                positions[others] + 1,
                hashes[others],
            )

    def _settle(self, segment: Segment, probes: Positions, positions: Positions) -> None:
        """Mark probes as settled, and copy their rows if these are live."""
        if len(probes) == 0:
            return
        self._is_settled[probes] = True
        if segment.operations is not None:
            is_put = segment.operations[positions] == DataOperation.UPSERT.value
            probes, positions = probes[is_put], positions[is_put]
        if segment.expires_at is not None and self._instant is not None:
            is_live = live_rows(take_rows(segment.expires_at, positions), self._instant)
            if is_live is not None:
                probes, positions = probes[is_live], positions[is_live]
        self.row_of[probes] = np.arange(self._row_count, self._row_count + len(probes))
        self._row_count += len(probes)
        if self._columns and len(probes):
            self.pieces.append(take_rows(segment.rows.select(self._columns), positions))
