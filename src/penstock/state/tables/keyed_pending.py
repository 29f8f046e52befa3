"""Pending rows: what an epoch has put and deleted so far, as a few sorted runs.

Every write adds a run. The last four are merged when the oldest of them is smaller than the
others together, so a row is copied a logarithmic number of times and lookups see few runs.
Above a size limit all of them become one run on local disk; those are merged in tiers.

Spilled runs: an epoch's own writes on local disk, when they outgrow the memory budget.

The file has no name, so nothing is left behind however the process ends. It is private to
one view and one epoch; durable are only the state files that a checkpoint writes from it.
"""

import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.hash_kernels import Hashes
from penstock.errors import ErrorCode, StorageError
from penstock.state.tables.keyed_runs import MemoryRun, Run, Segment, merge_runs
from penstock.state.tables.sorted_rows import hashes_of, merge_rows

SPILL_SEGMENT_ROWS = 1 << 16
SPILL_SEGMENT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _Extent:
    start: int
    size_bytes: int
    first_hash: int
    last_hash: int


class SpilledRun(Run):
    """A run in an unnamed local file, mapped a segment at a time."""

    def __init__(
        self, folder: Path, batches: Iterable[pa.RecordBatch], *, tier: int
    ) -> None:
        """Write sorted rows, one per key, to `folder`; a full or broken disk is a `StorageError`."""
        self.tier = tier
        self._extents: list[_Extent] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - lives as long as the run
            for batch in batches:
                for rows in _cut(batch):
                    self._append(rows)
            self._file.flush()
        except OSError as error:
            raise StorageError(
                f"this epoch wrote more than the memory budget, and {folder} cannot take the "
                f"rest: {error}. Free space there, set another cache folder, raise the memory "
                "budget, or run smaller epochs",
                code=ErrorCode.STORAGE_FULL,
                folder=str(folder),
            ) from error
        self._first = np.array([e.first_hash for e in self._extents], np.uint64)
        self._last = np.array([e.last_hash for e in self._extents], np.uint64)

    @property
    @override
    def first_hashes(self) -> Hashes:
        return self._first

    @property
    @override
    def last_hashes(self) -> Hashes:
        return self._last

    @override
    def read_segment(self, index: int) -> Segment:
        extent = self._extents[index]
        mapping = mmap.mmap(
            self._file.fileno(),
            extent.size_bytes,
            access=mmap.ACCESS_READ,
            offset=extent.start,
        )
        with pa.ipc.open_stream(pa.py_buffer(mapping)) as reader:
            return Segment(reader.read_next_batch())

    def __del__(self) -> None:
        # The last reader to let go gives the disk space back; a scan may outlive its epoch.
        # On a full disk closing tries once more to write what is buffered: nobody needs it.
        if hasattr(self, "_file"):
            with suppress(OSError):
                self._file.close()

    def _append(self, rows: pa.RecordBatch) -> None:
        """Write one segment at the next place that can be mapped on its own."""
        start = (
            -(-self._file.tell() // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        )
        self._file.seek(start, os.SEEK_SET)
        with pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), rows.schema) as writer:
            writer.write_batch(rows)
        hashes = hashes_of(rows)
        self._extents.append(
            _Extent(start, self._file.tell() - start, int(hashes[0]), int(hashes[-1]))
        )


def _cut(rows: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
    """Cut rows into segments, by number and, where rows are large, by size."""
    if rows.num_rows == 0:
        return
    per_row = rows.nbytes // rows.num_rows + 1
    step = max(1, min(SPILL_SEGMENT_ROWS, SPILL_SEGMENT_BYTES // per_row))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


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
