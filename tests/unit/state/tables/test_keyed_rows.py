"""Rows come in order of hash, one per key, and the newest one stays."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.tables.sorted_rows import (
    join_rows,
    merge_rows,
    newest_per_key,
    sort_rows,
)


def batch(rows: list[tuple[int, int]], first_value: int = 0) -> pa.RecordBatch:
    """Rows of (hash, key), numbered in order."""
    return pa.record_batch(
        {
            "key": pa.array([key for _, key in rows], pa.int64()),
            "value": pa.array(range(first_value, first_value + len(rows)), pa.int64()),
            "_key_hash": pa.array([key_hash for key_hash, _ in rows], pa.uint64()),
        }
    )


pairs = st.lists(
    st.tuples(st.integers(0, 3).map(lambda n: n << 61), st.integers(0, 5)), max_size=30
)


def test_rows_that_are_in_order_are_not_copied() -> None:
    rows = batch([(1, 7), (2, 5), (9, 6)])
    assert sort_rows(rows, ["key"]) is rows


def test_rows_in_order_with_a_repeated_key_lose_the_older_one() -> None:
    found = sort_rows(batch([(1, 7), (1, 7), (9, 6)]), ["key"])
    assert found["value"].to_pylist() == [1, 2]


@given(pairs)
def test_sorting_keeps_the_last_row_of_each_key(rows: list[tuple[int, int]]) -> None:
    found = sort_rows(batch(rows), ["key"])
    newest = {row: value for value, row in enumerate(rows)}
    hashes: list[Any] = found.column("_key_hash").to_pylist()
    assert hashes == sorted(hashes)
    assert sorted(
        zip(hashes, found["key"].to_pylist(), found["value"].to_pylist(), strict=True)
    ) == (sorted((key_hash, key, value) for (key_hash, key), value in newest.items()))


@given(st.lists(pairs, min_size=1, max_size=4))
def test_merging_sorted_batches_equals_sorting_them_together(
    parts: list[list[tuple[int, int]]],
) -> None:
    batches, count = [], 0
    for part in parts:
        batches.append(batch(part, count))
        count += len(part)
    merged = merge_rows([sort_rows(one, ["key"]) for one in batches], ["key"])
    together = sort_rows(join_rows(batches), ["key"])

    def contents(rows: pa.RecordBatch) -> list[tuple[object, ...]]:
        return sorted(tuple(row.values()) for row in rows.to_pylist())

    assert contents(merged) == contents(together)
    hashes: list[Any] = merged.column("_key_hash").to_pylist()
    assert hashes == sorted(hashes)


def newest(hashes: list[int], keys: list[int], order: list[int]) -> list[int]:
    found = newest_per_key(np.array(hashes, np.uint64), [pa.array(keys)], np.array(order))
    return list(found)


def test_distinct_hashes_leave_nothing_to_compare() -> None:
    assert newest([3, 1, 2], [7, 7, 7], [1, 2, 0]) == [1, 2, 0]


def test_colliding_keys_are_all_kept() -> None:
    assert newest([1, 1, 1], [7, 8, 9], [0, 1, 2]) == [0, 1, 2]


def test_repetitions_among_collisions_keep_their_last() -> None:
    assert newest([1, 1, 1, 1], [7, 8, 7, 8], [0, 1, 2, 3]) == [2, 3]
    assert newest([9, 1, 1, 1], [7, 8, 7, 8], [1, 2, 3, 0]) == [2, 3, 0]
