"""Pending rows: what an epoch has put and deleted so far, as a few sorted runs.

Every write adds a run. The last four are merged when the oldest of them is smaller than the
others together, so a row is copied a logarithmic number of times and lookups see few runs.
Above a size limit all of them become one run on local disk; those are merged in tiers.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from penstock.state.tables.keyed_merge import merge_runs
from penstock.state.tables.keyed_rows import merge_rows
from penstock.state.tables.keyed_run import MemoryRun, Run
from penstock.state.tables.keyed_spill import SpilledRun

_RUNS_MERGED = 4


class PendingRows:
    """The writes of one epoch of one view, newest last."""

    def __init__(
        self, key_columns: Sequence[str], *, limit_bytes: int, spill_folder: Path
    ) -> None:
        self._key_columns = key_columns
        self._limit_bytes = limit_bytes
        self._spill_folder = spill_folder
        self._in_memory: list[MemoryRun] = []
        self._spilled: list[SpilledRun] = []

    def __bool__(self) -> bool:
        return bool(self._in_memory or self._spilled)

    @property
    def size_bytes(self) -> int:
        """The bytes held in memory."""
        return sum(run.size_bytes for run in self._in_memory)

    def runs(self) -> list[Run]:
        """Return the runs, oldest first. They stay as they are, whatever is added later."""
        return [*self._spilled, *self._in_memory]

    def add(self, rows: pa.RecordBatch) -> None:
        """Take sorted stored rows, one per key, that are newer than all before."""
        if rows.num_rows == 0:
            return
        if self._in_memory and self.size_bytes + rows.nbytes > self._limit_bytes:
            self._spill()
        self._in_memory.append(MemoryRun(rows))
        while len(self._in_memory) >= _RUNS_MERGED:
            newest = [run.rows for run in self._in_memory[-_RUNS_MERGED:]]
            if newest[0].num_rows >= sum(rows.num_rows for rows in newest[1:]):
                break
            merged = merge_rows(newest, self._key_columns)
            self._in_memory[-_RUNS_MERGED:] = [MemoryRun(merged)]
        if self.size_bytes > self._limit_bytes:
            self._spill()

    def clear(self) -> None:
        """Forget everything: it is in state files now, or not wanted."""
        self._in_memory = []
        self._spilled = []

    def _spill(self) -> None:
        rows = merge_rows([run.rows for run in self._in_memory], self._key_columns)
        self._spilled.append(SpilledRun(self._spill_folder, [rows], tier=0))
        self._in_memory = []
        while self._last_tier_is_full():
            newest = self._spilled[-_RUNS_MERGED:]
            merged = SpilledRun(
                self._spill_folder,
                merge_runs(newest, self._key_columns),
                tier=newest[0].tier + 1,
            )
            self._spilled[-_RUNS_MERGED:] = [merged]

    def _last_tier_is_full(self) -> bool:
        newest = self._spilled[-_RUNS_MERGED:]
        return len(newest) == _RUNS_MERGED and len({run.tier for run in newest}) == 1
