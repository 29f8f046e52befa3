"""Runs: sorted rows of a keyed table in segments that are opened one at a time.

A run holds one row per key, in order of key hash. Several segments may share a hash at
their border. A run says between which hashes each segment lies, so that readers open only
those they need; whoever reads a segment drops it again, and what stays open is decided by
`OpenSegments` alone.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.core.hash_kernels import Hashes
from penstock.state.tables.keyed_rows import hashes_of


class Run(ABC):
    """Immutable sorted rows, in segments."""

    @property
    @abstractmethod
    def first_hashes(self) -> Hashes:
        """The lowest key hash of each segment, ascending."""

    @property
    @abstractmethod
    def last_hashes(self) -> Hashes:
        """The highest key hash of each segment, ascending."""

    @abstractmethod
    def read_segment(self, index: int) -> pa.RecordBatch:
        """Return the stored rows of one segment that belong to the run."""


class MemoryRun(Run):
    """A run of one segment that is held in memory."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        """Take sorted stored rows, one per key."""
        self.rows = rows
        hashes = hashes_of(rows)
        self._first, self._last = hashes[:1], hashes[-1:]

    @property
    def first_hashes(self) -> Hashes:
        """The lowest hash, or nothing if there are no rows."""
        return self._first

    @property
    def last_hashes(self) -> Hashes:
        """The highest hash, or nothing if there are no rows."""
        return self._last

    def read_segment(self, index: int) -> pa.RecordBatch:
        """Return all rows."""
        del index
        return self.rows


class OpenSegments:
    """The segments a view keeps open: the last used ones, up to a number of bytes.

    Bytes are counted as mapped or held, whether the system has them in memory or not.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._segments: OrderedDict[tuple[str, int], pa.RecordBatch] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments)

    def get(
        self, key: tuple[str, int], open_segment: Callable[[], pa.RecordBatch]
    ) -> pa.RecordBatch:
        """Return an open segment, or open it and close the ones unused for longest."""
        found = self._segments.get(key)
        if found is not None:
            self._segments.move_to_end(key)
            return found
        opened = open_segment()
        size = opened.nbytes
        if size > self.limit_bytes:
            return opened
        self._segments[key] = opened
        self.size_bytes += size
        while self.size_bytes > self.limit_bytes:
            _, closed = self._segments.popitem(last=False)
            self.size_bytes -= closed.nbytes
        return opened

    def close(self, path: str) -> None:
        """Close the segments of one run."""
        for key in [key for key in self._segments if key[0] == path]:
            self.size_bytes -= self._segments.pop(key).nbytes

    def clear(self) -> None:
        """Close all."""
        self._segments.clear()
        self.size_bytes = 0


def clip_hashes(hashes: Hashes, first: int, last: int) -> Hashes:
    """Return hashes moved into `[first, last]`."""
    return np.clip(hashes, np.uint64(first), np.uint64(last))
