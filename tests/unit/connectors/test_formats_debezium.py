"""Changes as Debezium writes them: rules of schema drift, and records that are odd."""

import math
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.formats.registry import record_format
from tests.unit.connectors.test_formats_drift import (
    COLUMNS,
    GOOD,
    MISSING,
    NEW,
    NULL,
    ORDERS,
    WIDER,
)


def change(after: bytes, before: bytes = b"null", op: bytes = b"c") -> bytes:
    # Records have keys that no schema declares: they are no drift.
    more = b'"source": {"lsn": 7}, "ts_ms": 1'
    return b'{"before": %b, "after": %b, "op": "%b", %b}' % (before, after, op, more)


@pytest.mark.parametrize("form", ["bare", "wrapped", "registry"])
@pytest.mark.parametrize(
    ("rules", "good", "failing"),
    [
        ({}, [1, 2, 3, 4], []),
        ({"on_new": "bad"}, [1, 3, 4], []),
        ({"on_new": "fail"}, [1, 3, 4], [1]),
        ({"on_missing": "bad"}, [1, 2, 4], []),
        ({"on_missing": "fail"}, [1, 2, 4], [2]),
        ({"on_wider": "fail"}, [1, 2, 3, 4], [4]),
        ({"on_wider": "cast"}, [1, 2, 3, 4], []),
        ({"on_new": "fail", "on_missing": "fail", "on_wider": "fail"}, [1, 4], [1, 2, 4]),
    ],
)
def test_rules_are_for_the_columns_of_a_table_whose_changes_are_read(
    form: str, rules: dict[str, Any], good: list[int], failing: list[int]
) -> None:
    values = [change(row) for row in (GOOD, NEW, MISSING, NULL, WIDER)]
    if form == "wrapped":
        values = [b'{"schema": {}, "payload": %b}' % value for value in values]
    if form == "registry":
        values = [b"\0\0\0\0{" + value for value in values]
    tombstones = [None, b'{"schema": {}, "payload": null}']
    given = pa.array([*values, b"oops", *tombstones], pa.binary())
    decoded = record_format("debezium", ORDERS, rules).decode(given)
    after: list[Any] = decoded.rows["after"].to_pylist()
    assert [row["id"] for row in after] == good
    assert decoded.rows["op"].to_pylist() == ["c"] * len(good)
    assert decoded.rows["before"].null_count == len(good)
    assert [bad.index for bad in decoded.bad if bad.fails] == failing
    assert len(decoded.bad) == 6 - len(good)


def test_wider_values_of_changes_are_cast() -> None:
    values = [change(b'{"id": "6", "item": 7}', before=b'{"id": 6.0}', op=b"u")]
    cast = record_format("debezium", ORDERS, {"on_wider": "cast"})
    assert cast.decode(pa.array(values)).rows.to_pylist() == [
        {"before": {"id": 6, "item": None}, "after": {"id": 6, "item": "7"}, "op": "u"}
    ]


def test_a_row_before_a_change_may_lack_columns_and_may_not_have_new_ones() -> None:
    values = [
        change(b"null", before=b'{"id": 1}', op=b"d"),
        change(b"null", before=NEW, op=b"d"),
        change(b"5"),
    ]
    strict = record_format("debezium", ORDERS, {"on_new": "bad", "on_missing": "bad"})
    decoded = strict.decode(pa.array(values))
    assert decoded.rows["before"].to_pylist() == [{"id": 1, "item": None}]
    assert decoded.rows["after"].to_pylist() == [None]
    assert [(bad.index, bad.reason) for bad in decoded.bad] == [
        (1, "its `before`: it has the new column 'tip'"),
        (2, "JSON parse error: Column(/after) changed from object to number"),
    ]


def test_rules_change_nothing_about_changes_without_drift() -> None:
    declared = pa.schema(
        [
            pa.field("ts_ms", pa.int64()),
            pa.field("after", pa.struct(COLUMNS), nullable=False),
            pa.field("op", pa.string()),
        ]
    )
    values = pa.array([change(GOOD), change(b"null", op=b"d"), None, b'{"op": "r"}', b"[]"])
    plain, strict = (
        record_format("debezium", declared, rules).decode(values)
        for rules in ({}, {"on_new": "fail"})
    )
    assert strict.rows.equals(plain.rows)
    assert plain.rows["ts_ms"].to_pylist() == [1]
    assert strict.taken is not None
    assert plain.taken is not None
    assert strict.taken.tolist() == plain.taken.tolist() == [0]
    assert strict.bad == plain.bad
    assert [bad.index for bad in plain.bad] == [1, 3, 4]


@pytest.mark.parametrize("rules", [{}, {"on_new": "bad"}], ids=["no-rules", "rules"])
@pytest.mark.parametrize(
    "twice",
    [
        b'{"op": "u", "before": {"id": 1}, "before": null, "after": {"id": 2}}',
        b'{"op": "c", "after": {"id": 1}, "after": {"id": 2}}',
        b'{"payload": {"op": "c", "after": {"id": 1}, "after": null}}',
        b'{"payload": null, "payload": {"op": "c", "after": {"id": 1}}}',
        b'{"op": "c", "after": {"id": 1, "id": 2}}',
    ],
)
def test_a_change_with_a_key_twice_is_bad(twice: bytes, rules: dict[str, Any]) -> None:
    decoded = record_format("debezium", ORDERS, rules).decode(pa.array([twice]))
    assert [bad.index for bad in decoded.bad] == [0]


@pytest.mark.parametrize("rules", [{}, {"on_new": "bad"}], ids=["no-rules", "rules"])
@pytest.mark.parametrize("form", ["%b", '{"schema": {}, "payload": %b}'])
def test_numbers_that_are_none_are_read_in_changes(
    form: str, rules: dict[str, Any]
) -> None:
    columns: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("price", pa.float64())]
    prices = pa.schema(columns)
    value = b' { "op" :"c","source":{"q": [NaN, {"a": -Infinity}]} , "after":{"id": 7, "price":NaN}, "x": []}'
    decoded = record_format("debezium", prices, rules).decode(
        pa.array([form.encode() % value])
    )
    assert not decoded.bad
    (after,) = decoded.rows["after"].to_pylist()
    assert after is not None
    assert after["id"] == 7
    assert math.isnan(after["price"])


def test_a_part_that_fails_the_job_is_not_hidden_by_one_that_is_bad() -> None:
    rules = {"on_new": "bad", "on_wider": "fail"}
    values = [change(NEW, before=WIDER, op=b"u"), change(WIDER, before=NEW, op=b"u")]
    decoded = record_format("debezium", ORDERS, rules).decode(pa.array(values))
    assert [bad.fails for bad in decoded.bad] == [True, True]


@pytest.mark.parametrize("rules", [{}, {"on_new": "bad"}], ids=["no-rules", "rules"])
def test_rows_of_changes_may_be_absent_whatever_columns_they_must_have(
    rules: dict[str, Any],
) -> None:
    row = pa.struct([pa.field("id", pa.int64(), nullable=False)])
    own = pa.schema([("before", row), ("after", row), ("op", pa.string())])
    decoded = record_format("debezium", own, rules).decode(pa.array([change(b'{"id": 1}')]))
    assert decoded.rows.to_pylist() == [{"before": None, "after": {"id": 1}, "op": "c"}]
