"""The rows that a table join works on: changes of an epoch, and parts of a side by key. Pure.

A join of tables goes through its keys in blocks. The keys of a block are numbered from 0, and
all its rows are in order of these numbers, so that the partners of a row are neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.core.arrow_types import Micros
from penstock.core.key_hash import hash_keys
from penstock.operators.aggregates.frames import columns_to_frame
from penstock.operators.joins.sides import Pick
from penstock.state.tables.sorted_rows import Flags, Positions, stable_order, take_rows

_PLACE = "_penstock_place"


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of one side in order of their keys, which are numbered from 0."""

    rows: pa.RecordBatch
    times: Micros
    places: Positions
    """Which of `rows` these are."""
    keys: Positions
    """The number of the key of each of them."""
    weights: Positions
    """How often each of them is there."""
    key_count: int
    gained: Flags
    """Of each of `rows`, whether it was found to have got a match."""
    lost: Flags
    """Of each of `rows`, whether it was found to have lost a match."""

    @classmethod
    def of(
        cls,
        rows: pa.RecordBatch,
        times: Micros,
        keys: Positions,
        weights: Positions,
        key_count: int,
    ) -> "Part":
        """Return all rows of a batch."""
        count = rows.num_rows
        notes = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        return cls(rows, times, np.arange(count), keys, weights, key_count, *notes)

    def __len__(self) -> int:
        return len(self.places)

    def weighing(self, weights: Positions) -> "Part":
        """Return these rows with other weights, without those of weight zero."""
        return replace(self, weights=weights).where(weights > 0)

    def where(self, kept: Flags) -> "Part":
        """Return only those for which `kept` is true."""
        if kept.all():
            return self
        places, keys, weights = self.places[kept], self.keys[kept], self.weights[kept]
        return replace(self, places=places, keys=keys, weights=weights)

    def counts(self) -> Positions:
        """Return how many of the rows each key has."""
        return np.bincount(self.keys, minlength=self.key_count)

    def pick(self, numbers: Positions) -> Pick:
        """Return some of them by number, perhaps repeatedly."""
        return Pick(self.rows, self.times, self.places[numbers])

    def whole(self) -> Pick:
        """Return all of them, each as often as it is there."""
        return Pick(self.rows, self.times, np.repeat(self.places, self.weights))


@dataclass(frozen=True, slots=True)
class Fresh:
    """The changes of an epoch on one side, in order of their keys if they were sorted."""

    rows: pa.RecordBatch
    times: Micros
    is_added: Flags

    def take(self, places: Positions) -> "Fresh":
        """Return some of them."""
        return Fresh(
            take_rows(self.rows, places), self.times[places], self.is_added[places]
        )

    def slice(self, start: int, end: int) -> "Fresh":
        """Return those between two places, without copying them."""
        rows = self.rows.slice(start, end - start)
        return Fresh(rows, self.times[start:end], self.is_added[start:end])


def are_there(keys: Positions, count: int) -> Flags:
    """Tell which of some keys occur."""
    found = np.zeros(count, np.bool_)
    found[keys] = True
    return found


def number_keys(
    left: pa.RecordBatch, right: pa.RecordBatch
) -> tuple[pa.RecordBatch, list[Positions]]:
    """Return the keys of two sides in order of their hashes, and the number of each row's key.

    Both have the same columns.
    """
    rows = pa.Table.from_batches([left, right]).combine_chunks()
    whole = next(iter(rows.to_batches()), left)
    first, numbers = np.unique(
        first_equal([whole], whole.schema.names), return_inverse=True
    )
    keys = take_rows(whole, first)
    order = stable_order(hash_keys(keys.columns, row_count=keys.num_rows))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    of_rows, count = rank[numbers], left.num_rows
    return take_rows(keys, order), [of_rows[:count], of_rows[count:]]


def first_equal(parts: Sequence[pa.RecordBatch], columns: Sequence[str]) -> Positions:
    """Return for each row of all parts the first one that is equal in these columns."""
    selected = [part.select(list(columns)) for part in parts]
    frame = columns_to_frame(selected, columns).with_row_index(_PLACE)
    first = frame.select(pl.col(_PLACE).first().over(list(columns)))
    return first.to_series().cast(pl.Int64).to_numpy()
