"""Sorted rows of a keyed table: order by key hash, and one row per key.

Pure. Rows of equal hash may have different keys, so keys are told apart by their columns.
"Newest" always means last: of a batch its last row, of several batches the last one's.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.hash_kernels import Hashes
from penstock.state.files.parquet import KEY_HASH
from penstock.state.tables.hash_order import stable_order
from penstock.state.tables.key_equality import Positions, equal_keys


def hashes_of(rows: pa.RecordBatch) -> Hashes:
    """Return the key hashes of stored rows without copying them."""
    return rows.column(KEY_HASH).to_numpy()


def take_rows(rows: pa.RecordBatch, positions: Positions) -> pa.RecordBatch:
    """Copy the rows at `positions`."""
    return rows.take(pa.array(positions, pa.int64()))


def take_columns(columns: Sequence[Any], positions: Positions) -> list[Any]:
    """Pick the same rows of several arrays."""
    picked = pa.array(positions)
    return [column.take(picked) for column in columns]


def join_rows(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Put batches of one schema behind each other."""
    if len(batches) == 1:
        return batches[0]
    joined: pa.RecordBatch = pa.concat_batches(batches)  # type: ignore[attr-defined]  # not in the stubs
    return joined


def sort_rows(rows: pa.RecordBatch, key_columns: Sequence[str]) -> pa.RecordBatch:
    """Return stored rows in order of hash, the newest of each key only."""
    hashes = hashes_of(rows)
    if bool((hashes[1:] > hashes[:-1]).all()):
        return rows
    return _arrange(rows, key_columns, stable_order(hashes))


def merge_rows(
    batches: Sequence[pa.RecordBatch], key_columns: Sequence[str]
) -> pa.RecordBatch:
    """Merge sorted batches, oldest first, into one sorted batch with the newest of each key."""
    filled = [batch for batch in batches if batch.num_rows]
    if len(filled) <= 1:
        return filled[0] if filled else batches[0]
    rows = join_rows(filled)
    # A stable sort of neighbouring sorted runs is a merge: linear, and keeps the age order.
    return _arrange(rows, key_columns, np.argsort(hashes_of(rows), kind="stable"))


def newest_per_key(hashes: Hashes, keys: Sequence[Any], order: Positions) -> Positions:
    """Return the rows of `order` after which no row of the same key follows.

    `order` sorts `hashes`. One round compares every row with the last one of its hash;
    rows of other keys go into the next round, so collisions cost rounds and repetitions
    do not.
    """
    ordered = hashes[order]
    contested = _rows_with_neighbours(ordered)
    if len(contested) == 0:
        return order
    is_newest = np.ones(len(order), dtype=np.bool_)
    while len(contested) > 1:
        leaders = _last_of_each_hash(ordered, contested)
        same = equal_keys(keys, order[contested], keys, order[leaders])
        is_newest[contested[same & (contested != leaders)]] = False
        contested = contested[~same]
    return order[is_newest]


def _arrange(
    rows: pa.RecordBatch, key_columns: Sequence[str], order: Positions
) -> pa.RecordBatch:
    """Copy the newest row of each key, in `order`."""
    keys = [rows.column(name) for name in key_columns]
    kept = pa.array(newest_per_key(hashes_of(rows), keys, order), pa.int64())
    # Columns of nulls are made anew: without a time to live that is every expiry.
    columns: list[Any] = [
        pa.nulls(len(kept), column.type)
        if column.null_count == len(column)
        else column.take(kept)
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _rows_with_neighbours(hashes: Hashes) -> Positions:
    """Return the rows that share their hash with another row; `hashes` ascend."""
    is_like_next = hashes[1:] == hashes[:-1]
    if not is_like_next.any():
        return np.empty(0, dtype=np.int64)
    shared = np.zeros(len(hashes), dtype=np.bool_)
    shared[:-1] |= is_like_next
    shared[1:] |= is_like_next
    return np.flatnonzero(shared)


def _last_of_each_hash(hashes: Hashes, rows: Positions) -> Positions:
    """Return for each of `rows`, ascending, the last of them with the same hash."""
    values = hashes[rows]
    ends = np.flatnonzero(np.append(values[1:] != values[:-1], np.True_))
    return rows[np.repeat(ends, np.diff(ends, prepend=-1))]
