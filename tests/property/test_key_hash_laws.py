from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import HASH_SPACE, owner_of, range_of
from penstock.core.key_hash import hash_keys, hash_keys_uncut, owners_of
from tests.golden.key_hash_reference import hash_rows

whole = st.integers(-(1 << 63), (1 << 63) - 1)
text = st.text(max_size=140)
scalars: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), whole),
    "float64": (pa.float64(), st.floats()),
    "float32": (pa.float32(), st.floats(width=32)),
    "boolean": (pa.bool_(), st.booleans()),
    "string": (pa.string(), text),
    "string_view": (pa.string_view(), text),
    "binary": (pa.binary(), st.binary(max_size=140)),
    "fixed": (pa.binary(5), st.binary(min_size=5, max_size=5)),
    "dictionary": (
        pa.dictionary(pa.int32(), pa.string()),
        st.sampled_from(["", "a", "b" * 130]),
    ),
    "decimal": (
        pa.decimal256(60, 3),
        st.decimals(-(10**50), 10**50, places=3, allow_nan=False),
    ),
}


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """Draw a type, nested up to once, and a strategy of its values."""
    kind, values = draw(st.sampled_from(list(scalars.values())))
    nullable = st.none() | values
    fields = st.fixed_dictionaries({"x": nullable, "y": st.none() | whole})
    choices: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
        (kind, values),
        (pa.list_(kind), st.lists(nullable, max_size=4)),
        (pa.large_list(kind), st.lists(nullable, max_size=4)),
        (pa.list_(kind, 2), st.lists(nullable, min_size=2, max_size=2)),
        (pa.struct([("x", kind), ("y", pa.int64())]), fields),
    ]
    choice: tuple[pa.DataType, st.SearchStrategy[Any]] = draw(st.sampled_from(choices))
    return choice


@st.composite
def columns(draw: st.DrawFn, row_count: int) -> Any:
    """Draw a column of some type: whole, a slice of a longer one, or in chunks."""
    kind, values = draw(typed_values())
    before, after = draw(st.integers(0, 9)), draw(st.integers(0, 2))
    total = before + row_count + after
    drawn = draw(st.lists(st.none() | values, min_size=total, max_size=total))
    array = pa.array(drawn, kind).slice(before, row_count)
    if draw(st.booleans()):
        return array
    cut = draw(st.integers(0, row_count))
    return pa.chunked_array([array.slice(0, cut), array.slice(cut)])


@st.composite
def keys(draw: st.DrawFn) -> list[Any]:
    row_count = draw(st.integers(0, 12))
    return [draw(columns(row_count)) for _ in range(draw(st.integers(1, 3)))]


@pytest.mark.slow
@given(keys())
def test_hashing_many_rows_gives_what_the_documented_algorithm_gives_for_each(
    key_columns: list[Any],
) -> None:
    assert hash_keys_uncut(key_columns).tolist() == hash_rows(key_columns)


@pytest.mark.slow
@given(keys(), st.data())
def test_the_hash_of_a_row_does_not_depend_on_its_neighbours(
    key_columns: list[Any], data: st.DataObject
) -> None:
    row_count = len(key_columns[0])
    start = data.draw(st.integers(0, row_count))
    stop = data.draw(st.integers(start, row_count))
    parts = [column.slice(start, stop - start) for column in key_columns]

    assert hash_keys(parts).tolist() == hash_keys(key_columns).tolist()[start:stop]


@given(
    st.lists(st.integers(0, HASH_SPACE - 1), max_size=20),
    st.one_of(st.integers(1, 100), st.integers(1, 1_000_000)),
)
def test_owners_of_many_hashes_are_those_of_the_one_rule(
    hashes: list[int], parallelism: int
) -> None:
    owners = owners_of(np.array(hashes, dtype=np.uint64), parallelism)

    assert owners.tolist() == [owner_of(one, parallelism) for one in hashes]


@given(st.data(), st.integers(1, 1_000_000))
def test_owners_change_exactly_where_ranges_end(
    data: st.DataObject, parallelism: int
) -> None:
    index = data.draw(st.integers(0, parallelism - 1))
    key_range = range_of(index, parallelism)
    inside = np.array([key_range.start, key_range.end - 1], dtype=np.uint64)

    assert owners_of(inside, parallelism).tolist() == [index, index]
