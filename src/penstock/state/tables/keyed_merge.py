"""Merging runs: one stream of rows in order of hash, the newest version of each key only.

Needs memory for about one segment per run, however large the runs are. Tombstones and
expired rows come out too: whether they may be dropped is not for a merge to decide.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.state.tables.keyed_expiry import live_rows
from penstock.state.tables.keyed_rows import hashes_of, join_rows, merge_rows
from penstock.state.tables.keyed_run import Run
from penstock.state.tables.keyed_schema import EXPIRES_AT, OPERATION
from penstock.state.tables.table import DataOperation


def merge_runs(runs: Sequence[Run], key_columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the merged rows of `runs`, oldest run first.

    No hash is split over two batches that are yielded.
    """
    cursors = [_Cursor(run) for run in runs if len(run.first_hashes)]
    while cursors := [cursor for cursor in cursors if cursor.fill()]:
        # Every cursor holds all rows of its run up to its own last hash, so up to the
        # lowest of these nothing is missing.
        bound = min(cursor.last_hash for cursor in cursors)
        yield merge_rows([cursor.take_up_to(bound) for cursor in cursors], key_columns)


def live_only(rows: pa.RecordBatch, instant: int | None) -> pa.RecordBatch:
    """Return the rows that are neither tombstones nor expired at `instant`."""
    is_live = rows.column(OPERATION).to_numpy() == DataOperation.UPSERT.value
    alive = live_rows(rows.column(EXPIRES_AT), instant)
    if alive is not None:
        is_live &= alive
    return rows if is_live.all() else rows.filter(pa.array(is_live))


class _Cursor:
    """How far one run, which has segments, has been merged."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._next = 0
        self._rows = self._read()

    @property
    def last_hash(self) -> int:
        """The hash up to which all rows of the run are at hand."""
        return int(hashes_of(self._rows)[-1])

    def fill(self) -> bool:
        """Have some rows at hand, whole hashes only; False at the end of the run."""
        while self._rows.num_rows == 0:
            if self._next == len(self._run.first_hashes):
                return False
            self._rows = self._read()
        return True

    def take_up_to(self, bound: int) -> pa.RecordBatch:
        """Hand out the rows with hashes up to `bound`."""
        cut = int(np.searchsorted(hashes_of(self._rows), np.uint64(bound), "right"))
        taken, self._rows = self._rows.slice(0, cut), self._rows.slice(cut)
        return taken

    def _read(self) -> pa.RecordBatch:
        """Read the next segment, and those after it that go on with its last hash."""
        firsts, lasts = self._run.first_hashes, self._run.last_hashes
        parts = [self._run.read_segment(self._next).rows]
        self._next += 1
        while self._next < len(firsts) and firsts[self._next] <= lasts[self._next - 1]:
            parts.append(self._run.read_segment(self._next).rows)
            self._next += 1
        return join_rows(parts)
