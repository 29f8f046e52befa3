"""Differences between two versions of a table lead from one to the other."""

from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.inspect.state import diff_rows

_COLUMNS: dict[str, pa.DataType] = {"key": pa.string(), "n": pa.int64()}
SCHEMA = pa.schema(_COLUMNS)
KEYED = st.dictionaries(
    st.sampled_from(["a", "b", "c", None]), st.one_of(st.none(), st.integers(0, 2))
)


def table(rows: list[tuple[Any, Any]]) -> pa.Table:
    return pa.Table.from_pylist([{"key": k, "n": n} for k, n in rows], SCHEMA)


@given(KEYED, KEYED)
def test_by_key_each_row_that_differs_is_told_once(
    before: dict[Any, Any], after: dict[Any, Any]
) -> None:
    found = diff_rows(table(list(before.items())), table(list(after.items())), ["key"])
    reached = dict(before)
    for row in found.to_pylist():
        if row["change"] in {"added", "after"}:
            reached[row["key"]] = row["n"]
        elif row["change"] == "removed":
            assert reached.pop(row["key"]) == row["n"]
        else:
            assert before[row["key"]] == row["n"] != after[row["key"]]
    assert reached == after


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1))),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1))),
)
def test_without_keys_rows_count_as_often_as_they_are_there(
    before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    found = diff_rows(table(before), table(after), [])
    reached = Counter(before)
    for row in found.to_pylist():
        sign = {"added": 1, "removed": -1}[row["change"]]
        reached[row["key"], row["n"]] += sign
    assert +reached == Counter(after)


def test_a_column_that_is_new_is_shown() -> None:
    old = pa.table({"key": ["a"], "n": [1]})
    new = pa.table({"key": ["a", "b"], "n": [1, 2], "m": [3, 4]})
    assert diff_rows(old, new, ["key"]).to_pylist() == [
        {"change": "added", "key": "b", "n": 2, "m": 4}
    ]
