"""The order of rows is the same by whatever way they are sorted."""

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.ranking.order import RankOrder, sorted_places

WHOLE = st.integers(-3, 3)
FAR = st.sampled_from([-(2**63), -(2**63) + 1, -1, 0, 2**63 - 1])
ROWS = st.lists(st.tuples(st.integers(0, 3), WHOLE, st.none() | WHOLE, FAR), max_size=30)


def ranked(
    rows: list[tuple[Any, ...]], columns: tuple[int, ...], descending: tuple[bool, ...]
) -> list[int]:
    """Return the places of rows by group and columns; a null is below all values."""

    def key(place: int) -> list[Any]:
        values = [rows[place][column] for column in columns]
        ranks = [-(2**70) if value is None else value for value in values]
        downs = zip(ranks, descending, strict=True)
        return [rows[place][0], *(-rank if is_down else rank for rank, is_down in downs)]

    return sorted(range(len(rows)), key=key)


@given(ROWS, st.permutations([1, 2, 3]), st.tuples(*[st.booleans()] * 3), st.integers(1, 3))
def test_rows_are_sorted_by_group_then_by_columns_and_stay_in_order_if_equal(
    rows: list[tuple[Any, ...]],
    columns: list[int],
    descending: tuple[bool, ...],
    count: int,
) -> None:
    chosen, directions = tuple(columns[:count]), descending[:count]
    frame = pl.DataFrame(
        {f"c{c}": pl.Series([row[c] for row in rows], dtype=pl.Int64) for c in chosen}
    )
    groups = np.array([row[0] for row in rows], np.int64)

    places = sorted_places(groups, frame, directions)

    assert places.tolist() == ranked(rows, chosen, directions)


@pytest.mark.parametrize("kind", [pa.int64(), pa.int8(), pa.float64(), pa.timestamp("us")])
@given(rows=ROWS, is_down=st.booleans(), count=st.integers(1, 3))
def test_ties_are_put_in_order_by_the_other_columns(
    kind: pa.DataType, rows: list[tuple[Any, ...]], is_down: bool, count: int
) -> None:
    table = pa.table(
        {
            "by": pa.array([row[1] for row in rows], pa.int64()).cast(kind),
            "tie": pa.array([row[2] for row in rows], pa.int64()),
            "last": pa.array([row[3] for row in rows], pa.int64()),
        }
    )
    order = RankOrder(("by",), (is_down,), ("tie", "last"))
    groups = np.array([row[0] for row in rows], np.int64)

    first = order.first_rows(table, groups, count).tolist()

    expected = ranked(rows, (1, 2, 3), (is_down,) * 3)
    taken = [rows[place][0] for place in expected]
    assert first == [
        place
        for at, place in enumerate(expected)
        if taken[:at].count(rows[place][0]) < count
    ]
