"""Key equality agrees with plain Python on every key type, and with the key hash."""

import math
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.key_hash import hash_keys
from penstock.state.tables import sorted_rows

NAN = float("nan")
OTHER_NAN = float(np.uint64(0xFFF8_0000_0000_0001).view(np.float64))


def equal_keys(left: list[Any], right: list[Any], *, row_count: int) -> Any:
    """Compare row by row, picked backwards on both sides."""
    rows = np.arange(row_count, dtype=np.int64)[::-1]
    return sorted_rows.equal_keys(left, rows, right, rows)[::-1]


def compare(left: Any, right: Any, data_type: pa.DataType) -> list[bool]:
    one, other = pa.array(left, data_type), pa.array(right, data_type)
    return list(equal_keys([one], [other], row_count=len(one)))


@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (pa.int8(), [1, -1, None]),
        (pa.uint64(), [1, 2**64 - 1, None]),
        (pa.bool_(), [True, False, None]),
        (pa.float16(), [np.float16(1.5), np.float16(-2), None]),
        (pa.float32(), [1.5, NAN, None]),
        (pa.float64(), [1.5, NAN, None]),
        (pa.string(), ["", "žluťoučký", "鍵", None]),
        (pa.large_string(), ["a", "ab", None]),
        (pa.binary(), [b"", b"\x00", None]),
        (pa.binary(3), [b"abc", b"abd", None]),
        (pa.decimal128(20, 3), [Decimal("1.500"), Decimal("-1.500"), None]),
        (pa.decimal256(60, 3), [Decimal("1e40"), Decimal("-1.5"), None]),
        (pa.decimal32(5, 2), [Decimal("1.50"), Decimal("1.51"), None]),
        (pa.date32(), [1, 2, None]),
        (pa.time64("us"), [1, 2, None]),
        (pa.timestamp("ns"), [-1, 1, None]),
        (pa.timestamp("us", "Europe/Berlin"), [0, 1, None]),
        (pa.duration("ms"), [1, 2, None]),
        (pa.month_day_nano_interval(), [(1, 2, 3), (1, 2, 4), None]),
        (
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
            [{"a": 1, "b": "x"}, {"a": 1}, None],
        ),
        (
            pa.struct([("a", pa.struct([("b", pa.float64())]))]),
            [{"a": {"b": NAN}}, {"a": None}, None],
        ),
        (pa.list_(pa.int64()), [[], [1], [1, 2], [1, None], None]),
        (pa.list_(pa.list_(pa.string())), [[["a"], []], [["a"], ["b"]], [None], None]),
        (pa.large_list(pa.float64()), [[NAN], [0.0], None]),
        (pa.list_(pa.int64(), 2), [[1, 2], [1, 3], None]),
        (
            pa.list_(pa.struct([("a", pa.string())])),
            [[{"a": "x"}], [{"a": None}], [None], None],
        ),
        (pa.map_(pa.string(), pa.float64()), [[], [("a", NAN)], [("a", None)], None]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
        (pa.uuid(), [uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes, None]),
    ],
    ids=str,
)
def test_a_value_equals_itself_and_no_other(
    data_type: pa.DataType, values: list[Any]
) -> None:
    left = [value for value in values for _ in values]
    right = [value for _ in values for value in values]
    expected = [i == j for i in range(len(values)) for j in range(len(values))]
    assert compare(left, right, data_type) == expected


def test_nulls_of_the_null_type_are_equal() -> None:
    assert compare([None, None], [None, None], pa.null()) == [True, True]


@pytest.mark.parametrize("data_type", [pa.float32(), pa.float64()], ids=str)
def test_zeros_are_equal_and_all_not_a_numbers_are(data_type: pa.DataType) -> None:
    assert compare([-0.0, NAN, 0.0], [0.0, OTHER_NAN, NAN], data_type) == [
        True,
        True,
        False,
    ]


def test_a_null_struct_differs_from_a_struct_of_nulls() -> None:
    assert compare([None], [{"a": None}], pa.struct([("a", pa.int64())])) == [False]


def test_values_under_a_null_struct_do_not_count() -> None:
    is_null = pa.array([True, True])
    one = pa.StructArray.from_arrays([pa.array([1, 2])], names=["a"], mask=is_null)
    other = pa.StructArray.from_arrays([pa.array([1, 3])], names=["a"], mask=is_null)
    assert equal_keys([one], [other], row_count=2).tolist() == [True, True]


def test_a_null_inside_a_dictionary_equals_a_null_index() -> None:
    inside = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    outside = pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array(["a"]))
    assert equal_keys([inside], [outside], row_count=2).tolist() == [True, True]
    assert hash_keys([inside]).tolist() == hash_keys([outside]).tolist()


def test_slices_are_compared_at_their_own_offset() -> None:
    whole = pa.array([{"a": [1]}, {"a": [2, 3]}, {"a": []}, {"a": [4]}])
    shifted = pa.array([{"a": [9]}, {"a": [9]}, {"a": [2, 3]}, {"a": []}])
    same = equal_keys([whole.slice(1, 2)], [shifted.slice(2, 2)], row_count=2)
    assert same.tolist() == [True, True]


def test_several_columns_must_all_be_equal() -> None:
    left: list[Any] = [pa.array([1, 1, None]), pa.array(["a", "a", "a"])]
    right: list[Any] = [pa.array([1, 1, None]), pa.array(["a", "b", "a"])]
    assert equal_keys(left, right, row_count=3).tolist() == [True, False, True]


def test_without_columns_all_rows_hold_the_empty_key() -> None:
    assert equal_keys([], [], row_count=2).tolist() == [True, True]


def test_no_rows_compare_to_no_answers() -> None:
    assert compare([], [], pa.list_(pa.int64())) == []


values = st.one_of(
    st.none(),
    st.lists(st.one_of(st.none(), st.floats(), st.just(-0.0)), max_size=3),
)


def same_value(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_value, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return left is None and right is None


@given(st.lists(st.tuples(values, values), min_size=1, max_size=20))
def test_equal_nested_keys_are_those_that_python_finds_equal_and_hash_alike(
    pairs: list[tuple[Any, Any]],
) -> None:
    data_type = pa.struct([("a", pa.list_(pa.float64()))])
    left = pa.array([{"a": one} for one, _ in pairs], data_type)
    right = pa.array([{"a": other} for _, other in pairs], data_type)
    same = equal_keys([left], [right], row_count=len(pairs))
    assert same.tolist() == [same_value(one, other) for one, other in pairs]
    assert (hash_keys([left]) == hash_keys([right]))[same].all()


@given(st.lists(st.integers(-3, 3) | st.none(), min_size=1), st.data())
def test_any_rows_of_two_sides_can_be_compared(
    values: list[int | None], data: st.DataObject
) -> None:
    places = st.lists(st.integers(0, len(values) - 1), min_size=5, max_size=5)
    left, right = data.draw(places), data.draw(places)
    for kind in (pa.int16(), pa.float32(), pa.decimal128(5, 1)):
        column = pa.array(values, pa.int8()).cast(kind)
        same = sorted_rows.equal_keys([column], np.array(left), [column], np.array(right))
        assert same.tolist() == [
            values[i] == values[j] for i, j in zip(left, right, strict=True)
        ]
