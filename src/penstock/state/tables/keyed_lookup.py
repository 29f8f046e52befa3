"""Looking up many keys or prefixes at once in several runs: the newest version decides.

How it works: the looked-up keys, called probes, are hashed and sorted once. Runs are searched
from the newest to the oldest, each for the probes that no newer run settled. Only segments
whose hash range holds such a probe are opened, one after the other, and each is searched with
one `searchsorted`. Rows found by hash are compared by key; a tombstone or expired row settles
its probe as missing. Found rows are copied out of their segment at once, so that it can be
closed, and put into the order of the probes at the end.

In a table with a rest, a probe's candidates are as many as its prefix has rows. They are in
order of the rest, so the candidates are bisected, all probes at a time.

A lookup of prefixes finds all rows of each, and several versions of some of them. They are
sorted by prefix, rest and age, so the first row of each key counts. With a limit, every segment
gives some rows of a prefix only. All versions are then known up to the lowest row at which a
segment was cut off: the *fence* of the prefix. If too few rows up to there are live, the
prefix is asked for again, with more rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.hash_kernels import Hashes
from penstock.core.key_order import Signs, compare_rows, sort_within
from penstock.state.tables.keyed_runs import Run, Segment
from penstock.state.tables.sorted_rows import (
    Flags,
    Positions,
    equal_keys,
    is_in_order,
    stable_order,
    take_rows,
)

_FEWEST_ROWS = 16
"""Of a prefix with a limit at least this many rows are asked of every segment."""
_NO_LIMIT = 1 << 32
"""No prefix has as many rows, so such a limit is none."""


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
    rest: Sequence[str] = (),
) -> Matches:
    """Find the newest row of each key in `runs`, newest run first, live at `instant`.

    `rest` are the key columns that are not hashed, if rows of equal hash are in their order.
    """
    search = _Search(hashes, keys, key_columns, columns=columns, rest=rest, instant=instant)
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
        *,
        columns: Sequence[str],
        rest: Sequence[str],
        instant: int | None,
    ) -> None:
        count = len(hashes)
        self.order, hashes, keys = _sorted_probes(hashes, keys)
        """The position of each probe in the caller's order."""
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
        self._rest = list(rest)
        self._rest_keys = [keys[list(key_columns).index(name)] for name in rest]

    def ask(self, run: Run) -> None:
        """Settle the probes whose key is in `run`."""
        hashes = self._hashes
        if len(self.unsettled) < len(hashes):
            hashes = hashes[self.unsettled]
        for segment, begin, end in _segments_of(run, hashes):
            self._search(segment, hashes[begin:end], self.unsettled[begin:end])
        self.unsettled = self.unsettled[~self._is_settled[self.unsettled]]

    def _search(self, segment: Segment, hashes: Hashes, probes: Positions) -> None:
        """Match the probes with rows of equal hash, one candidate per probe and round."""
        stored = segment.hashes
        if len(stored) == 0:
            return
        keys = [segment.rows.column(name) for name in self._key_columns]
        positions = stored.searchsorted(hashes)
        places = None
        if self._rest:
            places = segment.places_by(self._rest)
            self._bisect(segment, places, hashes, probes, positions)
        last = len(stored) - 1
        while len(probes):
            # A position past the end is clipped to the last row, which the next line rejects.
            is_candidate = stored[np.minimum(positions, last)] == hashes
            is_candidate &= positions <= last
            if not is_candidate.all():
                probes, positions = probes[is_candidate], positions[is_candidate]
                hashes = hashes[is_candidate]
            rows = positions if places is None else places[positions]
            same = equal_keys(keys, rows, self._keys, probes)
            if same.all():
                self._settle(segment, probes, rows)
                return
            self._settle(segment, probes[same], rows[same])
            others = ~same
            if self._rest:
                # Candidates have one rest: behind a row of another one there are no more.
                others[others] = equal_keys(
                    [segment.rows.column(name) for name in self._rest],
                    rows[others],
                    self._rest_keys,
                    probes[others],
                )
            probes, positions, hashes = (
                probes[others],
                positions[others] + 1,
                hashes[others],
            )

    def _bisect(
        self,
        segment: Segment,
        places: Positions | None,
        hashes: Hashes,
        probes: Positions,
        positions: Positions,
    ) -> None:
        """Move positions from the first row of their hash on to the first of their rest."""
        columns = [segment.rows.column(name) for name in self._rest]
        stored = segment.hashes
        # A single row of its hash needs no search: it is the candidate.
        following = np.minimum(positions + 1, len(stored) - 1)
        left = np.flatnonzero((stored[following] == hashes) & (following > positions))
        ends = positions.copy()
        ends[left] = stored.searchsorted(hashes[left], "right")
        while len(left):
            middles = (positions[left] + ends[left]) // 2
            rows = middles if places is None else places[middles]
            is_below = compare_rows(columns, rows, self._rest_keys, probes[left]) < 0
            positions[left[is_below]] = middles[is_below] + 1
            ends[left[~is_below]] = middles[~is_below]
            left = left[positions[left] < ends[left]]

    def _settle(self, segment: Segment, probes: Positions, positions: Positions) -> None:
        """Mark probes as settled, and copy their rows if these are live."""
        if len(probes) == 0:
            return
        self._is_settled[probes] = True
        is_live = segment.are_live(positions, self._instant)
        if is_live is not None:
            probes, positions = probes[is_live], positions[is_live]
        self.row_of[probes] = np.arange(self._row_count, self._row_count + len(probes))
        self._row_count += len(probes)
        if self._columns and len(probes):
            self.pieces.append(take_rows(segment.rows.select(self._columns), positions))


@dataclass(frozen=True, slots=True)
class PrefixMatches:
    """The live rows of some prefixes, in the order in which they are returned."""

    pieces: pa.Table
    """All rows that were copied, with the asked columns."""
    picked: Positions
    """The rows of the pieces that are returned, in order of the caller's prefixes and the rest."""
    offsets: Positions
    """Where the rows of each prefix begin among the picked ones, and where the last ends."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; most often they fit one batch."""
        rows = self.pieces.combine_chunks()
        yield from take_rows(rows, self.picked).to_batches()


def look_up_prefixes(
    runs: Sequence[Run],
    hashes: Hashes,
    prefixes: Sequence[Any],
    *,
    prefix_columns: Sequence[str],
    rest: Sequence[str],
    stored: pa.Schema,
    instant: int | None,
    limit: int | None = None,
    last: bool = False,
) -> PrefixMatches:
    """Find all rows of each prefix in `runs`, newest run first, live at `instant`.

    `stored` are the columns to copy, those of the rest among them. Of each prefix the first
    `limit` rows in order of the rest are found, or the last ones.
    """
    search = _PrefixSearch(
        hashes, prefixes, prefix_columns, rest=rest, stored=stored, instant=instant
    )
    limit = None if limit is None or limit >= _NO_LIMIT else limit
    width = None if limit is None else max(_FEWEST_ROWS, 2 * limit)
    tables, picked, probes, count = [], [], [], 0
    unsettled = np.arange(len(hashes), dtype=np.int64)
    while len(unsettled):
        found = search.gather(runs, unsettled, width, last=last)
        rows, owners, unsettled = found.newest(rest, limit, last=last)
        tables.append(found.rows)
        picked.append(rows + count)
        probes.append(search.order[owners])
        count += found.rows.num_rows
        width = None if width is None else 4 * width
    owners = np.concatenate([np.empty(0, np.int64), *probes])
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=len(hashes)))
    return PrefixMatches(
        pa.concat_tables([stored.empty_table(), *tables]),
        np.concatenate([np.empty(0, np.int64), *picked])[order],
        np.concatenate([[0], ends]).astype(np.int64),
    )


class _PrefixSearch:
    """One lookup of prefixes under way. Probes are numbered in order of hash."""

    def __init__(
        self,
        hashes: Hashes,
        prefixes: Sequence[Any],
        prefix_columns: Sequence[str],
        *,
        rest: Sequence[str],
        stored: pa.Schema,
        instant: int | None,
    ) -> None:
        self.order, self._hashes, self._prefixes = _sorted_probes(hashes, prefixes)
        """The position of each probe in the caller's order."""
        self._prefix_columns = prefix_columns
        self._rest = rest
        self._stored = stored
        self._instant = instant

    def gather(
        self, runs: Iterable[Run], probes: Positions, width: int | None, *, last: bool
    ) -> "_Versions":
        """Copy the rows of some probes, at most `width` of each out of every segment."""
        hashes = self._hashes[probes]
        pieces: list[pa.RecordBatch] = []
        owners, are_live, are_fences = [], [], []
        for run in runs:
            for segment, begin, end in _segments_of(run, hashes):
                asked = probes[begin:end]
                rows, of, is_fence = self._match(segment, asked, width, last=last)
                if len(rows):
                    is_live = segment.are_live(rows, self._instant)
                    all_live = np.ones(len(rows), np.bool_)
                    pieces.append(take_rows(segment.rows.select(self._stored.names), rows))
                    owners.append(of)
                    are_live.append(all_live if is_live is None else is_live)
                    are_fences.append(is_fence)
        nothing = np.empty(0, np.bool_)
        return _Versions(
            pa.Table.from_batches(pieces, self._stored),
            np.concatenate([np.empty(0, np.int64), *owners]),
            np.concatenate([nothing, *are_live]),
            np.concatenate([nothing, *are_fences]),
        )

    def _match(
        self, segment: Segment, probes: Positions, width: int | None, *, last: bool
    ) -> tuple[Positions, Positions, Flags]:
        """Return rows of a segment, the probes they belong to, and which of them are fences."""
        hashes = self._hashes[probes]
        starts = segment.hashes.searchsorted(hashes)
        ends = segment.hashes.searchsorted(hashes, "right")
        places, is_cut = None, np.zeros(len(probes), np.bool_)
        if width is not None:
            places = segment.places_by(self._rest)
            is_cut = ends - starts > width
            starts = np.maximum(starts, ends - width) if last else starts
            ends = ends if last else np.minimum(ends, starts + width)
        counts = ends - starts
        of = np.repeat(probes, counts)
        # The number of a row among those of its probe: a ramp that starts at 0 for each.
        ramp = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat(starts, counts) + ramp
        rows = rows if places is None else places[rows]
        ours = [segment.rows.column(name) for name in self._prefix_columns]
        same = equal_keys(ours, rows, self._prefixes, of)
        if not same.all():
            if is_cut.any():
                # Prefixes of equal hash lie intermixed: where one ends is not known.
                return self._match(segment, probes, None, last=last)
            rows, of = rows[same], of[same]
            return rows, of, np.zeros(len(rows), np.bool_)
        edges = np.zeros_like(counts) if last else counts - 1
        return rows, of, np.repeat(is_cut, counts) & (ramp == np.repeat(edges, counts))


@dataclass(frozen=True, slots=True)
class _Versions:
    """Copied rows of some probes, newest run first: of some keys several versions."""

    rows: pa.Table
    owners: Positions
    """The probe that each row belongs to."""
    are_live: Flags
    are_fences: Flags
    """Beyond such a row its segment has more of the probe."""

    def newest(
        self, rest: Sequence[str], limit: int | None, *, last: bool
    ) -> tuple[Positions, Positions, Positions]:
        """Return the rows that count, in order, their probes, and the probes to ask again."""
        columns = [_whole(self.rows.column(name)) for name in rest]
        rows, is_like_before = self._ordered(columns)
        starts = np.flatnonzero(~is_like_before)
        newest = rows[starts]
        owners, is_live = self.owners[newest], self.are_live[newest]
        if limit is None or not len(rows):
            return newest[is_live], owners[is_live], np.empty(0, np.int64)
        is_fence = np.logical_or.reduceat(self.are_fences[rows], starts)
        if last:
            is_live, is_fence, owners = is_live[::-1], is_fence[::-1], owners[::-1]
        begins = np.flatnonzero(np.append(np.True_, owners[1:] != owners[:-1]))
        lengths = np.diff(begins, append=len(owners))
        known = is_live & (_count_before(is_fence, begins, lengths) == 0)
        chosen = known & (_count_before(known, begins, lengths) < limit)
        is_short = np.add.reduceat(chosen, begins) < limit
        is_short &= np.logical_or.reduceat(is_fence, begins)
        unsettled = np.sort(owners[begins[is_short]])
        chosen &= ~np.repeat(is_short, lengths)
        if last:
            chosen, owners = chosen[::-1], owners[::-1]
        return newest[chosen], owners[chosen], unsettled

    def _ordered(self, columns: Sequence[Any]) -> tuple[Positions, Flags]:
        """Return the rows by probe, rest and age, and which have the key of the one before."""
        order = np.arange(len(self.owners), dtype=np.int64)
        signs = self._steps(columns, order)
        if (signs > 0).any():
            order = sort_within(self.owners, columns)
            signs = self._steps(columns, order)
        return order, np.append(np.zeros(min(1, len(order)), np.bool_), signs == 0)

    def _steps(self, columns: Sequence[Any], order: Positions) -> Signs:
        """Compare each row of an order with the next by probe and rest."""
        ordered = self.owners[order]
        signs: Signs = np.sign(ordered[:-1] - ordered[1:]).astype(np.int8)
        equal = np.flatnonzero(signs == 0)
        signs[equal] = compare_rows(columns, order[equal], columns, order[equal + 1])
        return signs


def _count_before(flags: Flags, begins: Positions, lengths: Positions) -> Positions:
    """Return for each row how many rows before it in its group are flagged."""
    before: Positions = np.cumsum(flags) - flags
    return before - np.repeat(before[begins], lengths)


def _whole(column: Any) -> Any:
    """Return a column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _sorted_probes(
    hashes: Hashes, keys: Sequence[Any]
) -> tuple[Positions, Hashes, Sequence[Any]]:
    """Return where probes are in order of hash, and hashes and keys in this order."""
    if is_in_order(hashes):
        return np.arange(len(hashes), dtype=np.int64), hashes, keys
    order = stable_order(hashes)
    return order, hashes[order], [take_rows(key, order) for key in keys]


def _segments_of(run: Run, hashes: Hashes) -> Iterator[tuple[Segment, int, int]]:
    """Open one after the other the segments that may hold sorted hashes: `[begin, end)` of them."""
    begins = np.searchsorted(hashes, run.first_hashes, "left")
    ends = np.searchsorted(hashes, run.last_hashes, "right")
    for index in np.flatnonzero(ends > begins).tolist():
        yield run.read_segment(index), int(begins[index]), int(ends[index])
