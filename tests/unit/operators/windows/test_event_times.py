"""Event times of every unit, and those that no window can hold."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.operators.windows.assignment import (
    END_MICROS,
    FIRST_MICROS,
    Flags,
    read_event_times,
    refuse_bad_times,
)

PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def column(values: list[int | None], unit: str, zone: str | None = None) -> Any:
    return pa.array(values, pa.int64()).view(pa.timestamp(unit, zone))


@pytest.mark.parametrize("unit", PER_SECOND)
def test_every_unit_becomes_microseconds(unit: str) -> None:
    per_second = PER_SECOND[unit]
    times = read_event_times(column([-3 * per_second, 0, 5 * per_second], unit, "UTC"))
    assert times.micros.tolist() == [-3_000_000, 0, 5_000_000]
    assert times.bad is None
    assert times.first_micros == -3_000_000


def test_nanoseconds_are_rounded_down() -> None:
    assert read_event_times(column([-1, 1_999], "ns")).micros.tolist() == [-1, 1]


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_years_outside_of_1_to_9999_and_nulls_are_bad(unit: str) -> None:
    per_second = PER_SECOND[unit]
    first = FIRST_MICROS * per_second // 1_000_000
    end = END_MICROS * per_second // 1_000_000
    extreme = [first, first - 1, None, end - 1, end, (1 << 63) - 1, -(1 << 63)]
    times = read_event_times(column(extreme, unit))
    assert times.bad is not None
    assert times.bad.tolist() == [False, True, True, False, True, True, True]
    assert times.micros[0] == FIRST_MICROS
    assert times.first_micros == FIRST_MICROS


def test_a_slice_is_read_from_where_it_starts() -> None:
    assert read_event_times(column([1, 2, 3], "us").slice(1)).micros.tolist() == [2, 3]


def bad_in(stamps: Any) -> Flags:
    bad = read_event_times(stamps).bad
    assert bad is not None
    return bad


def test_the_error_shows_how_many_there_are_and_the_first() -> None:
    stamps = column([0, None, None], "us")
    error = refuse_bad_times(bad_in(stamps), stamps, "at")
    assert "2 of 3 rows" in error.message
    assert "first in row 1, where it is null" in error.message
    assert "on_bad='divert'" in error.message
    stamps = column([END_MICROS], "us")
    error = refuse_bad_times(bad_in(stamps), stamps, "at")
    assert "where it is 10000-01-01" in error.message
