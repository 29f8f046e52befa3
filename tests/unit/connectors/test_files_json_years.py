"""Dates and timestamps in JSON lines: every one that is written can be read back."""

from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.formats.json_text import (
    from_json_lines,
    to_json_lines,
)
from penstock.errors import ErrorCode, UserError

FIRST = -62_167_219_200
END = 253_402_300_800
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6}


def instants(kind: Any, *values: int) -> "pa.Array[Any]":
    return pa.array(values, pa.int64()).view(kind)


def days(*values: int) -> "pa.Array[Any]":
    return pa.array(values, pa.int32()).view(pa.date32())


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("unit", PER_SECOND)
def test_all_years_of_four_digits_come_back(unit: str, zone: str | None) -> None:
    kind: Any = pa.timestamp(unit, zone)
    step = PER_SECOND[unit]
    rows = pa.table({"x": instants(kind, FIRST * step, END * step - 1)})
    assert from_json_lines(to_json_lines(rows), rows.schema) == rows


def test_the_last_instant_of_local_time_comes_back() -> None:
    kind = pa.timestamp("s", "Europe/Berlin")
    rows = pa.table({"x": instants(kind, END - 3_601)})
    assert b'"9999-12-31T23:59:59+01:00"' in to_json_lines(rows)
    assert from_json_lines(to_json_lines(rows), rows.schema) == rows


OUTSIDE = {
    "date": days(0, END // 86_400),
    "old date": days(FIRST // 86_400 - 1),
    "last date": days(2**31 - 1),
    "date64": instants(pa.date64(), 0, END * 1000),
    "last date64": instants(pa.date64(), 2**63 - 1),
    "seconds": instants(pa.timestamp("s"), END),
    "old seconds": instants(pa.timestamp("s"), FIRST - 1),
    "last second": instants(pa.timestamp("s", "UTC"), 2**63 - 1),
    "local time": instants(pa.timestamp("s", "Europe/Berlin"), END - 3_600),
    "local time far away": instants(pa.timestamp("us", "Europe/Berlin"), 2**63 - 1),
    "first nanosecond": instants(pa.timestamp("ns"), -(2**63) + 1),
    "in a list": pa.array([[0], [END]], pa.list_(pa.timestamp("s"))),
    "in a struct": pa.array([{"a": END}], pa.struct([("a", pa.timestamp("s"))])),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_other_years_are_refused_and_the_column_is_named(name: str) -> None:
    rows = pa.table({"fine": range(len(OUTSIDE[name])), "odd": OUTSIDE[name]})
    with pytest.raises(
        UserError, match=r"column 'odd' .* years are 0000 to 9999"
    ) as raised:
        to_json_lines(rows)
    assert raised.value.code is ErrorCode.VALUE_OUT_OF_RANGE


def test_what_a_null_hides_does_not_count() -> None:
    far = instants(pa.timestamp("s"), END, 1)
    hidden = pa.Array.from_buffers(far.type, 2, [pa.py_buffer(b"\x02"), far.buffers()[1]])
    assert to_json_lines(pa.table({"x": hidden})).startswith(b'{"x":null}\n')
    assert to_json_lines(pa.table({"x": pa.nulls(1, pa.date32())})) == b'{"x":null}\n'


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_dates_have_no_time_and_come_back(kind: pa.DataType) -> None:
    rows = pa.table({"x": pa.array([date(2026, 1, 2), None, date(1, 1, 1)], kind)})
    data = to_json_lines(rows)
    assert data == b'{"x":"2026-01-02"}\n{"x":null}\n{"x":"0001-01-01"}\n'
    assert from_json_lines(data, rows.schema) == rows
    nested = pa.table({"x": pa.array([[date(2026, 1, 2)]], pa.list_(kind))})
    assert to_json_lines(nested) == b'{"x":["2026-01-02"]}\n'
