"""Sorted rows of a typed table: their order by key hash, equal keys, and one row per key.

Pure. Rows of equal hash may have different keys, so the hash only finds candidates and keys
are compared by their columns. Key equality agrees exactly with the key hash: null equals null,
every NaN equals every NaN, -0.0 equals 0.0, and nested values are equal when their parts are.
"Newest" always means last: the last row of a batch, and the last of several batches.

Rows of a table with a *rest*, the key columns that are not hashed, are in order of hash and
rest, so that those of a key of the stream can be read in order and one of them is found fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.hash_kernels import Hashes
from penstock.core.key_order import compare_rows, sort_within
from penstock.state.files.parquet import KEY_HASH

Flags: TypeAlias = npt.NDArray[np.bool_]
Positions: TypeAlias = npt.NDArray[np.int64]
_Array: TypeAlias = "pa.Array[Any]"
RowsT = TypeVar("RowsT", pa.RecordBatch, pa.Table, _Array)


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """The result of a lookup by key: rows of key i are `rows[offsets[i]:offsets[i + 1]]`."""

    rows: pa.Table
    offsets: Positions

    def rows_of(self, index: int) -> pa.Table:
        """Return the rows of one of the looked-up keys, in the table's order."""
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        return self.rows.slice(start, end - start)


def equal_keys(
    left: Sequence[_Array],
    left_rows: Positions,
    right: Sequence[_Array],
    right_rows: Positions,
) -> Flags:
    """Tell for pairs of rows, picked by number on each side, whether they hold the same key.

    The sides are key columns of equal types. Without columns all rows hold the same, empty
    key.
    """
    same = np.ones(len(left_rows), dtype=np.bool_)
    for one, other in zip(left, right, strict=True):
        if _is_plain(one) and _is_plain(other):
            # Picking values in place costs a tenth of copying a few rows with Arrow.
            same &= one.to_numpy()[left_rows] == other.to_numpy()[right_rows]
        else:
            same &= _equal_values(take_rows(one, left_rows), take_rows(other, right_rows))
    return same


def _is_plain(array: Any) -> bool:
    return array.null_count == 0 and pa.types.is_integer(array.type)


def _equal_values(left: Any, right: Any) -> Flags:
    """Compare two arrays of one type value by value; two nulls are equal."""
    if len(left) == 0:
        return np.ones(0, dtype=np.bool_)
    # A dictionary may hold null as one of its values, so it is decoded before nulls are counted.
    if pa.types.is_dictionary(left.type):
        return _equal_values(left.dictionary_decode(), right.dictionary_decode())
    if isinstance(left.type, pa.BaseExtensionType):
        return _equal_values(left.storage, right.storage)
    if pa.types.is_map(left.type):
        # No key is a map, but rows with one are compared: by their entries, in order.
        entries: Any = pa.list_(pa.struct([left.type.key_field, left.type.item_field]))
        return _equal_values(left.cast(entries), right.cast(entries))
    if left.null_count == 0 and right.null_count == 0:
        return _equal_valid(left, right)
    left_is_valid, right_is_valid = (
        np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
        for array in (left, right)
    )
    same: Flags = left_is_valid == right_is_valid
    rows = np.flatnonzero(left_is_valid & right_is_valid)
    same[rows] = _equal_valid(take_rows(left, rows), take_rows(right, rows))
    return same


def _equal_valid(left: Any, right: Any) -> Flags:
    """Compare two arrays of one type without nulls value by value."""
    types, kind = pa.types, left.type
    if types.is_integer(kind) or types.is_floating(kind):
        ours, theirs = left.to_numpy(), right.to_numpy()
        equal = np.asarray(ours == theirs)
        if types.is_floating(kind):
            equal |= np.isnan(ours) & np.isnan(theirs)
        return equal
    if types.is_null(kind):
        return np.ones(len(left), dtype=np.bool_)
    if types.is_interval(kind):
        # Intervals are equal exactly when their bytes are.
        return np.asarray((_raw_bytes(left) == _raw_bytes(right)).all(axis=1))
    if types.is_struct(kind):
        same = np.ones(len(left), dtype=np.bool_)
        for index in range(kind.num_fields):
            same &= _equal_values(left.field(index), right.field(index))
        return same
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _equal_lists(left, right)
    return np.asarray(pc.equal(left, right).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _raw_bytes(array: Any) -> npt.NDArray[np.uint8]:
    width = array.type.bit_width // 8
    values = np.frombuffer(
        array.buffers()[1],
        dtype=np.uint8,
        count=len(array) * width,
        offset=array.offset * width,
    )
    return values.reshape(len(array), width)


def _equal_lists(left: Any, right: Any) -> Flags:
    """Compare the lengths, then the elements of those rows whose lengths are equal."""
    lengths = pc.list_value_length(left).to_numpy()
    same = np.asarray(lengths == pc.list_value_length(right).to_numpy())
    rows = np.flatnonzero(same & (lengths > 0))
    if len(rows) == 0:
        return same
    elements = _equal_values(
        take_rows(left, rows).flatten(), take_rows(right, rows).flatten()
    )
    starts = np.zeros(len(rows), dtype=np.int64)
    np.cumsum(lengths[rows][:-1], out=starts[1:])
    same[rows] = np.logical_and.reduceat(elements, starts)
    return same


def stable_order(hashes: Hashes) -> Positions:
    """Return the positions that sort `hashes`; equal hashes keep their order.

    The high bits of a hash and its position are packed into one word and sorted by value,
    which is several times faster than sorting positions by hash. The low bits of the hash are
    lost; in the rare case that they matter, a stable sort corrects the order.
    """
    places = np.uint64((1 << max(1, len(hashes) - 1).bit_length()) - 1)
    packed = hashes & ~places
    packed |= np.arange(len(hashes), dtype=np.uint64)
    packed.sort()
    packed &= places
    order = packed.view(np.int64)
    ordered = hashes[order]
    if bool((ordered[1:] < ordered[:-1]).any()):
        order = order[np.argsort(ordered, kind="stable")]
    return order


def is_in_order(hashes: Hashes) -> bool:
    """Tell whether hashes ascend already: a cheap check that may save sorting and copying."""
    return bool((hashes[1:] >= hashes[:-1]).all())


def hashes_of(rows: pa.RecordBatch | pa.Table) -> Hashes:
    """Return the key hashes of stored rows without copying them."""
    return rows.column(KEY_HASH).to_numpy()


def take_rows(rows: RowsT, positions: Positions) -> RowsT:
    """Copy the rows at `positions` of a column or of several."""
    return rows.take(pa.array(positions, pa.int64()))


def join_rows(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate batches of one schema."""
    if len(batches) == 1:
        return batches[0]
    joined: pa.RecordBatch = pa.concat_batches(batches)  # type: ignore[attr-defined]  # not in the stubs
    return joined


def sort_rows(
    rows: pa.RecordBatch, key_columns: Sequence[str], rest: Sequence[str] = ()
) -> pa.RecordBatch:
    """Return stored rows in order of hash and rest, the newest of each key only."""
    hashes = hashes_of(rows)
    if bool((hashes[1:] > hashes[:-1]).all()):
        return rows
    return _arrange(rows, key_columns, rest, stable_order(hashes))


def merge_rows(
    batches: Sequence[pa.RecordBatch],
    key_columns: Sequence[str],
    rest: Sequence[str] = (),
) -> pa.RecordBatch:
    """Merge sorted batches, oldest first, into one sorted batch with the newest of each key."""
    filled = [batch for batch in batches if batch.num_rows]
    if len(filled) <= 1:
        return filled[0] if filled else batches[0]
    rows = join_rows(filled)
    # NumPy's stable sort merges sorted runs in linear time, and equal hashes keep their age.
    order = np.argsort(hashes_of(rows), kind="stable")
    return _arrange(rows, key_columns, rest, order)


def _is_in_pair(is_like_next: Flags) -> Flags:
    """Tell for each row whether it is like the one before or after it."""
    found = np.zeros(len(is_like_next) + 1, dtype=np.bool_)
    found[:-1] |= is_like_next
    found[1:] |= is_like_next
    return found


def newest_per_key(hashes: Hashes, keys: Sequence[Any], order: Positions) -> Positions:
    """Return the rows of `order` after which no row of the same key follows.

    `order` sorts `hashes`. One round compares every row with the last one of its hash. Rows
    with another key go into the next round, so only hash collisions cost more rounds, and
    repeated keys do not.
    """
    ordered = hashes[order]
    is_like_next = ordered[1:] == ordered[:-1]
    if not is_like_next.any():
        return order
    contested = np.flatnonzero(_is_in_pair(is_like_next))
    is_newest = np.ones(len(order), dtype=np.bool_)
    while len(contested) > 1:
        # The leader of a row is the last of the contested rows with its hash.
        values = ordered[contested]
        ends = np.flatnonzero(np.append(values[1:] != values[:-1], np.True_))
        leaders = contested[np.repeat(ends, np.diff(ends, prepend=-1))]
        same = equal_keys(keys, order[contested], keys, order[leaders])
        is_newest[contested[same & (contested != leaders)]] = False
        contested = contested[~same]
    return order[is_newest]


def newest_by_rest(
    hashes: Hashes, prefix: Sequence[Any], rest: Sequence[Any], order: Positions
) -> Positions:
    """Return the newest rows of each key, as `newest_per_key` does, in order of hash and rest.

    `prefix` are the key columns that are hashed. So rows of equal hash have many keys, and
    those of equal rest, too, are the candidates for the same one.
    """
    ordered = hashes[order]
    is_like_next = ordered[1:] == ordered[:-1]
    pairs = np.flatnonzero(is_like_next)
    signs = compare_rows(rest, order[pairs], rest, order[pairs + 1])
    # Versions of one key, the usual case of equal hashes, are in order already.
    if (signs > 0).any():
        shared = np.flatnonzero(_is_in_pair(is_like_next))
        places = order[shared]
        columns = [take_rows(column, places) for column in rest]
        order = order.copy()
        order[shared] = places[sort_within(ordered[shared], columns)]
        signs = compare_rows(rest, order[pairs], rest, order[pairs + 1])
    repeated = pairs[signs == 0]
    is_last = np.ones(len(order), dtype=np.bool_)
    is_last[repeated] = False
    if equal_keys(prefix, order[repeated], prefix, order[repeated + 1]).all():
        return order[is_last]
    numbers = np.zeros(len(order), dtype=np.uint64)
    numbers[order[1:]] = np.cumsum(is_last[:-1])
    return newest_per_key(numbers, prefix, order)


def _arrange(
    rows: pa.RecordBatch, key_columns: Sequence[str], rest: Sequence[str], order: Positions
) -> pa.RecordBatch:
    """Copy the newest row of each key, in `order` and that of the rest."""
    hashes = hashes_of(rows)
    keys = [rows.column(name) for name in key_columns if name not in rest]
    if rest:
        others = [rows.column(name) for name in rest]
        newest = newest_by_rest(hashes, keys, others, order)
    else:
        newest = newest_per_key(hashes, keys, order)
    kept = pa.array(newest, pa.int64())
    # A column of nulls is made new instead of copied: expiry without a time to live is one.
    columns: list[Any] = [
        pa.nulls(len(kept), column.type)
        if column.null_count == len(column)
        else column.take(kept)
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
