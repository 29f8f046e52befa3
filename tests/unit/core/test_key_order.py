"""Key values of every type but lists have one order, and it agrees with their equality."""

import math
import uuid
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.key_order import compare_rows, has_order, sort_within
from penstock.state.tables.sorted_rows import equal_keys

NAN, INF = math.nan, math.inf
ASCENDING: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [None, -128, -1, 0, 127]),
    (pa.uint64(), [None, 0, 1, 2**63, 2**64 - 1]),
    (pa.int64(), [None, -(2**63), -1, 0, 2**63 - 1]),
    (pa.bool_(), [None, False, True]),
    (pa.float16(), [None, *map(np.float16, (-INF, -2, 0, 1.5, INF, NAN))]),
    (pa.float32(), [None, -INF, -1.5, 0.0, 1e-30, INF, NAN]),
    (pa.float64(), [None, -INF, -1e300, -5e-324, 0.0, 5e-324, INF, NAN]),
    (pa.string(), [None, "", "\0", "A", "a", "a\0", "ab", "ä", "鍵", "𝄞"]),
    (pa.large_string(), [None, "", "x" * 70, "x" * 70 + "y"]),
    (pa.binary(), [None, b"", b"\x00", b"\x7f", b"\xff", b"\xff\x00"]),
    (pa.binary(2), [None, b"ab", b"ac", b"\xffa"]),
    (pa.decimal128(38, 3), [None, Decimal(-(10**30)), Decimal("-0.001"), Decimal(1)]),
    (pa.decimal256(60, 3), [None, Decimal(-1), Decimal(0), Decimal(10**50)]),
    (pa.decimal32(5, 2), [None, Decimal("-1.50"), Decimal("1.50"), Decimal("1.51")]),
    (pa.decimal64(12, 2), [None, Decimal("-1.50"), Decimal("1.50"), Decimal("1.51")]),
    (pa.date32(), [None, -1, 0, 1]),
    (pa.date64(), [None, 0, 86_400_000]),
    (pa.time32("s"), [None, 0, 1]),
    (pa.timestamp("us", "Europe/Berlin"), [None, -1, 0, 1]),
    (pa.duration("ms"), [None, -5, 2]),
    (pa.month_day_nano_interval(), [None, (-1, 9, 9), (0, -3, 0), (0, 2, -1), (0, 2, 0)]),
    (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [None, {}, {"b": ""}, {"a": 1}, {"a": 1, "b": "x"}, {"a": 2, "b": ""}],
    ),
    (pa.dictionary(pa.int8(), pa.string()), [None, "a", "b"]),
    (pa.uuid(), [None, uuid.UUID(int=1).bytes, uuid.UUID(int=1 << 127).bytes]),
]
every_type = pytest.mark.parametrize(("data_type", "values"), ASCENDING, ids=str)


def sliced(values: list[Any], data_type: pa.DataType) -> Any:
    """An array that begins and ends inside its buffers."""
    return pa.array([values[-1], *values, values[0]], data_type).slice(1, len(values))


@every_type
@pytest.mark.parametrize("first", [0, 1], ids=["with null", "without null"])
def test_values_are_compared_by_their_order(
    data_type: pa.DataType, values: list[Any], first: int
) -> None:
    array, count = sliced(values[first:], data_type), len(values) - first
    left, right = (places.ravel() for places in np.indices((count, count)))
    signs = compare_rows([array], left, [array], right)
    assert signs.tolist() == np.sign(left - right).tolist()
    assert (signs == 0).tolist() == equal_keys([array], left, [array], right).tolist()


@every_type
@pytest.mark.parametrize("first", [0, 1], ids=["with null", "without null"])
def test_values_are_sorted_by_their_order_within_their_group(
    data_type: pa.DataType, values: list[Any], first: int
) -> None:
    count = len(values) - first
    array = sliced(values[first:][::-1] * 2, data_type)
    groups = np.repeat([7, 3], count)
    expected = [*range(2 * count - 1, count - 1, -1), *range(count - 1, -1, -1)]
    assert sort_within(groups, [array]).tolist() == expected


def test_equal_values_keep_their_places() -> None:
    zeros = pa.array([0.0, -0.0, 0.0, NAN, -NAN, NAN])
    assert sort_within(np.zeros(6, np.int64), [zeros]).tolist() == list(range(6))
    rows = np.arange(6)
    signs = compare_rows([zeros], rows, [zeros], rows[::-1])
    assert signs.tolist() == [-1, -1, -1, 1, 1, 1]
    assert compare_rows([zeros], rows[:2], [zeros], rows[1:3]).tolist() == [0, 0]


def test_what_lies_in_memory_where_a_value_is_null_does_not_count() -> None:
    values = np.array([5, 1, 3], np.int64)
    array = pa.array(values, mask=np.array([True, True, True]))
    raw = pa.Array.from_buffers(
        pa.int64(), 3, [pa.py_buffer(b"\0"), pa.py_buffer(values.tobytes())]
    )
    for nulls in (array, raw):
        assert sort_within(np.zeros(3, np.int64), [nulls]).tolist() == [0, 1, 2]
        rows = np.arange(3)
        assert not compare_rows([nulls], rows, [nulls], rows[::-1]).any()


@pytest.mark.parametrize(("data_type", "_values"), ASCENDING, ids=str)
def test_no_rows_have_an_order_too(data_type: pa.DataType, _values: list[Any]) -> None:
    nothing, rows = pa.array([], data_type), np.empty(0, np.int64)
    assert sort_within(rows, [nothing]).tolist() == []
    assert compare_rows([nothing], rows, [nothing], rows).tolist() == []


def test_only_lists_have_no_order() -> None:
    assert all(has_order(data_type) for data_type, _ in ASCENDING)
    inner = pa.list_(pa.int8())
    assert not has_order(inner)
    assert not has_order(pa.list_(pa.int8(), 2))
    assert not has_order(pa.struct([("a", pa.int8()), ("b", inner)]))
    assert not has_order(pa.dictionary(pa.int8(), inner))


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.none() | st.integers(-2, 2), st.sampled_from("abc"))
    )
)
def test_several_columns_count_one_after_the_other(
    rows: list[tuple[int, int | None, str]],
) -> None:
    def key(place: int) -> tuple[int, bool, int, str]:
        group, number, text = rows[place]
        return group, number is not None, number or 0, text

    columns = [
        pa.array([row[1] for row in rows], pa.int32()),
        pa.array([row[2] for row in rows], pa.string()),
    ]
    groups = np.array([row[0] for row in rows], np.int64)
    order = sort_within(groups, columns).tolist()
    assert order == sorted(range(len(rows)), key=key)
    places = np.arange(max(0, len(rows) - 1))
    signs = compare_rows(columns, places, columns, places + 1).tolist()
    keys = [key(place)[1:] for place in range(len(rows))]
    assert signs == [(a > b) - (a < b) for a, b in pairwise(keys)]
