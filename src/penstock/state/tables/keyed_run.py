"""Runs: sorted rows of a keyed table in segments that are opened one at a time.

A run holds one row per key, in order of key hash. Several segments may share a hash at
their border. A run says between which hashes each segment lies, so that readers open only
those they need; whoever reads a segment drops it again, and what stays open is decided by
`OpenSegments` alone.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.hash_kernels import Hashes
from penstock.state.tables.keyed_rows import hashes_of
from penstock.state.tables.keyed_schema import EXPIRES_AT, OPERATION


class Segment:
    """Rows of one segment as lookups need them: with their bookkeeping at hand."""

    __slots__ = ("expires_at", "hashes", "operations", "rows", "size_bytes")

    def __init__(self, rows: pa.RecordBatch) -> None:
        """Look at stored rows without copying them."""
        self.rows = rows
        self.size_bytes = rows.nbytes
        self.hashes = hashes_of(rows)
        operations: Any = rows.column(OPERATION).to_numpy()
        self.operations: npt.NDArray[np.int8] | None = (
            operations if operations.any() else None
        )
        """What each row does to its key; None when all of them are puts."""
        expires_at = rows.column(EXPIRES_AT)
        self.expires_at = None if expires_at.null_count == len(expires_at) else expires_at
        """When each row expires; None when none ever does."""


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
    def read_segment(self, index: int) -> Segment:
        """Return one segment with the rows that belong to the run."""


class MemoryRun(Run):
    """A run of one segment that is held in memory."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        """Take sorted stored rows, one per key."""
        self._segment = Segment(rows)
        hashes = self._segment.hashes
        self._first, self._last = hashes[:1], hashes[-1:]

    @property
    def rows(self) -> pa.RecordBatch:
        """All rows."""
        return self._segment.rows

    @property
    def size_bytes(self) -> int:
        """The memory the rows take."""
        return self._segment.size_bytes

    @property
    def first_hashes(self) -> Hashes:
        """The lowest hash, or nothing if there are no rows."""
        return self._first

    @property
    def last_hashes(self) -> Hashes:
        """The highest hash, or nothing if there are no rows."""
        return self._last

    def read_segment(self, index: int) -> Segment:
        """Return all rows."""
        del index
        return self._segment


class OpenSegments:
    """The segments a view keeps open: the last used ones, up to a number of bytes.

    Bytes are counted as mapped or held, whether the system has them in memory or not.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._segments: OrderedDict[tuple[str, int], Segment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments)

    def find(self, key: tuple[str, int]) -> Segment | None:
        """Return an open segment, which is then the last used one."""
        found = self._segments.get(key)
        if found is not None:
            self._segments.move_to_end(key)
        return found

    def keep(self, key: tuple[str, int], segment: Segment) -> None:
        """Keep a segment open, and close the ones unused for longest."""
        if segment.size_bytes > self.limit_bytes:
            return
        self._segments[key] = segment
        self.size_bytes += segment.size_bytes
        while self.size_bytes > self.limit_bytes:
            _, closed = self._segments.popitem(last=False)
            self.size_bytes -= closed.size_bytes

    def close(self, run: str) -> None:
        """Close the segments of one run."""
        for key in [key for key in self._segments if key[0] == run]:
            self.size_bytes -= self._segments.pop(key).size_bytes

    def clear(self) -> None:
        """Close all."""
        self._segments.clear()
        self.size_bytes = 0


def clip_hashes(hashes: Hashes, first: int, last: int) -> Hashes:
    """Return hashes moved into `[first, last]`."""
    return np.clip(hashes, np.uint64(first), np.uint64(last))
