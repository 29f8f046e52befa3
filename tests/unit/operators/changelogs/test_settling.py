"""Settled changes: at most one per key and epoch, exact in kind, whatever rows they are made of."""

from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SchemaError
from penstock.operators.changelogs.settling import settle
from penstock.operators.changes import KINDS

Change = tuple[str, int, Any]
_COLUMNS: dict[str, Any] = {"change": pa.string(), "k": pa.int64(), "x": pa.float64()}
SCHEMA = pa.schema(_COLUMNS)


def a_table(*changes: Change) -> pa.Table:
    rows = [{"change": change, "k": k, "x": x} for change, k, x in changes]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def settled(*changes: Change, key: list[str] | None = None, sent_by: Any = ()) -> list[Any]:
    found = settle(a_table(*changes), ["k"] if key is None else key, sent_by)
    assert found.schema.equals(SCHEMA)
    return [tuple(row.values()) for row in found.to_pylist()]


def test_a_lone_half_of_an_update_is_an_insert_or_a_delete() -> None:
    assert settled(("update-after", 1, 5.0), ("update-before", 2, 7.0)) == [
        ("insert", 1, 5.0),
        ("delete", 2, 7.0),
    ]


def test_a_row_for_a_row_is_an_update_in_whatever_order_they_come() -> None:
    expected = [("update-before", 1, 5.0), ("update-after", 1, 6.0)]
    assert settled(("delete", 1, 5.0), ("insert", 1, 6.0)) == expected
    assert settled(("insert", 1, 6.0), ("delete", 1, 5.0)) == expected


def test_changes_of_one_key_stand_side_by_side() -> None:
    found = settled(
        ("update-before", 1, 1.0),
        ("update-before", 2, 1.0),
        ("update-after", 2, 2.0),
        ("update-after", 1, 2.0),
    )
    assert [row[:2] for row in found] == [
        ("update-before", 1),
        ("update-after", 1),
        ("update-before", 2),
        ("update-after", 2),
    ]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.decimal256(50, 0), [Decimal(1), Decimal(2), None]),
        (pa.timestamp("us", "+05:30"), [1, 2, None]),
        (pa.month_day_nano_interval(), [(1, 2, 3), (1, 2, 4), None]),
    ],
    ids=str,
)
def test_rows_cancel_each_other_out_also_by_values_that_polars_lacks(
    kind: Any, values: list[Any]
) -> None:
    one, two, none = values
    changes = [("delete", one), ("insert", two), ("delete", two), ("insert", none)]
    columns = [[kind for kind, _ in changes], [1] * 4]
    table = pa.table(
        [*columns, pa.array([x for _, x in changes], kind)], ["change", "k", "x"]
    )
    found = settle(table, ["k"])
    assert found.column("change").to_pylist() == ["update-before", "update-after"]
    assert found.column("x").to_pylist() == [table["x"][0].as_py(), None]


@pytest.mark.parametrize("x", [1.0, None, float("nan"), 0.0])
def test_an_update_that_changes_nothing_vanishes(x: float | None) -> None:
    assert settled(("update-before", 1, x), ("update-after", 1, x)) == []


def test_rows_that_come_and_go_within_an_epoch_are_not_seen() -> None:
    assert settled(("insert", 3, 1.0), ("delete", 3, 1.0), ("insert", 3, 2.0)) == [
        ("insert", 3, 2.0)
    ]
    assert (
        settled(
            ("update-before", 3, 1.0),
            ("update-after", 3, 2.0),
            ("update-before", 3, 2.0),
            ("update-after", 3, 1.0),
        )
        == []
    )


def test_an_update_that_changes_where_rows_are_sent_is_taken_apart() -> None:
    changes = (("update-before", 1, 5.0), ("update-after", 1, 6.0))
    assert settled(*changes, sent_by=["x"]) == [("delete", 1, 5.0), ("insert", 1, 6.0)]
    assert settled(*changes, sent_by=["k"])[0][0] == "update-before"


def test_a_table_of_one_row_has_an_empty_key() -> None:
    assert settled(("delete", 1, 5.0), ("insert", 1, 6.0), key=[]) == [
        ("update-before", 1, 5.0),
        ("update-after", 1, 6.0),
    ]


def test_a_change_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(SchemaError, match="holds the change 'upsert'"):
        settled(("upsert", 1, 5.0))


def signs_of(changes: list[Change]) -> Counter[tuple[int, Any]]:
    signs: Counter[tuple[int, Any]] = Counter()
    for change, k, x in changes:
        signs[k, x] += 1 if change in ("insert", "update-after") else -1
    return Counter({row: count for row, count in signs.items() if count})


@given(
    st.lists(
        st.tuples(
            st.sampled_from(KINDS), st.integers(0, 3), st.sampled_from([0.5, 1.5, None])
        )
    )
)
def test_settled_changes_come_to_the_same_as_all_rows(changes: list[Change]) -> None:
    for key in (["k"], ["k", "x"], []):
        found = settled(*changes, key=key)
        assert signs_of(found) == signs_of(changes)
        assert settled(*found, key=key) == found
        removed = [row[1:] for row in found if row[0] in ("delete", "update-before")]
        added = [row[1:] for row in found if row[0] in ("insert", "update-after")]
        assert not set(removed) & set(added)
