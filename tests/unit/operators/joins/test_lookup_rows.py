"""LookupRows: rows in memory, found by key."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.operators.joins import lookup_rows
from penstock.operators.joins.lookup_rows import LookupRows


def rows(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def found(table: LookupRows, column: str, *keys: Any) -> list[tuple[int, Any]]:
    """Return number of key and value of each match, in order."""
    values = table.rows.column(column).to_pylist()
    return sorted(
        (int(number), values[place])
        for numbers, places in table.partners_of(keys)
        for number, place in zip(numbers, places, strict=True)
    )


def test_a_key_matches_all_rows_that_have_it_and_none_else() -> None:
    table = LookupRows(rows(k=[1, 2, 1, 3], v=["a", "b", "c", "d"]), ["k"])
    assert found(table, "v", pa.array([1, 9, 3])) == [(0, "a"), (0, "c"), (2, "d")]
    assert table.has([pa.array([1, 9, 3])]).tolist() == [True, False, True]


def test_nulls_match_nothing_not_even_each_other() -> None:
    table = LookupRows(rows(k=[None, 2], j=["x", None], v=[1, 2]), ["k", "j"])
    assert table.rows.num_rows == 0
    assert found(table, "v", pa.array([None, 2]), pa.array(["x", None])) == []
    one = LookupRows(rows(k=[1, None], v=[1, 2]), ["k"])
    assert found(one, "v", pa.array([None, 1])) == [(1, 1)]


def test_keys_of_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def same_hash(columns: Any) -> Any:
        return np.zeros(len(columns[0]), np.uint64)

    monkeypatch.setattr(lookup_rows, "hash_keys", same_hash)
    table = LookupRows(rows(k=[1, 2, 3, 2], v=[1, 2, 3, 4]), ["k"])
    assert found(table, "v", pa.array([2, 4, 3])) == [(0, 2), (0, 4), (2, 3)]


def test_other_layouts_of_the_same_text_are_equal_keys() -> None:
    table = LookupRows(rows(k=["a", "b"], v=[1, 2]), ["k"])
    keys = pa.array(["b", "a", "b"]).dictionary_encode()
    assert found(table, "v", keys) == [(0, 2), (1, 1), (2, 2)]


def test_very_many_matches_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_rows, "_MOST_PAIRS", 10)
    table = LookupRows(rows(k=[1] * 7 + [2] * 30, v=list(range(37))), ["k"])
    pieces = list(table.partners_of([pa.array([1, 1, 2, 1, 5, 1])]))
    assert [len(numbers) for numbers, _ in pieces] == [7, 7, 30, 7, 7]
    assert found(table, "v", pa.array([9, 1])) == [(1, v) for v in range(7)]
