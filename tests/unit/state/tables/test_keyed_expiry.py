"""Expiry is exact to the microsecond, whatever the unit, and never wraps around."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SchemaError, SettingsError
from penstock.state.tables.expiry import (
    TimeToLive,
    check_time_column,
    expiry_of_deletions,
    expiry_of_rows,
    frontier_micros,
    live_rows,
)
from penstock.state.tables.table import Frontier

LAST = (1 << 63) - 1
FIRST = -(1 << 63)
BY_EVENT = TimeToLive(10, "time")
BY_PROCESSING = TimeToLive(10)


def rows_at(*times: int, unit: Any = "us") -> pa.RecordBatch:
    return pa.record_batch({"time": pa.array(times, pa.timestamp(unit))})


def micros(expires_at: Any) -> list[int | None]:
    return list(expires_at.cast(pa.int64()).to_pylist())


def is_live(time: int, unit: Any, watermark: int, ttl: int) -> bool:
    expires_at = expiry_of_rows(
        rows_at(time, unit=unit), TimeToLive(ttl, "time"), Frontier()
    )
    flags = live_rows(expires_at, watermark)
    return flags is None or bool(flags[0])


def test_a_row_is_dead_at_the_very_instant_it_expires() -> None:
    assert is_live(100, "us", 109, 10)
    assert not is_live(100, "us", 110, 10)
    assert not is_live(100, "us", 111, 10)


def test_event_time_counts_from_the_row_and_processing_time_from_the_epoch() -> None:
    frontier = Frontier(watermark_micros=7, processing_time_micros=1_000)
    assert micros(expiry_of_rows(rows_at(5, -20), BY_EVENT, frontier)) == [15, -10]
    assert micros(expiry_of_rows(rows_at(5, -20), BY_PROCESSING, frontier)) == [
        1_010,
        1_010,
    ]
    assert micros(expiry_of_rows(rows_at(5, -20), None, frontier)) == [None, None]


def test_expiry_is_judged_by_the_clock_it_was_counted_in() -> None:
    frontier = Frontier(watermark_micros=7, processing_time_micros=1_000)
    assert frontier_micros(BY_EVENT, frontier) == 7
    assert frontier_micros(BY_PROCESSING, frontier) == 1_000
    assert frontier_micros(None, frontier) is None
    assert frontier_micros(BY_EVENT, Frontier(processing_time_micros=5)) is None


def test_a_tombstone_counts_as_expired_from_the_delete_on() -> None:
    frontier = Frontier(watermark_micros=7, processing_time_micros=1_000)
    assert micros(expiry_of_deletions(2, BY_EVENT, frontier)) == [7, 7]
    assert micros(expiry_of_deletions(1, BY_PROCESSING, frontier)) == [1_000]
    assert micros(expiry_of_deletions(1, BY_EVENT, Frontier())) == [None]
    assert micros(expiry_of_deletions(1, None, frontier)) == [None]


def test_rows_that_never_expire_are_live_among_those_that_do() -> None:
    expires_at = pa.array([None, 5, None, 20], pa.timestamp("us"))
    flags = live_rows(expires_at, 10)
    assert flags is not None
    assert flags.tolist() == [True, False, True, True]
    sliced = live_rows(expires_at.slice(1, 2), 10)
    assert sliced is not None
    assert sliced.tolist() == [False, True]


def test_no_answer_is_given_where_all_rows_are_live() -> None:
    assert live_rows(pa.array([None, None], pa.timestamp("us")), 10) is None
    assert live_rows(pa.array([11, None], pa.timestamp("us")), 10) is None
    assert live_rows(pa.array([1], pa.timestamp("us")), None) is None


def test_an_event_near_the_end_of_time_lives_until_then() -> None:
    assert micros(expiry_of_rows(rows_at(LAST - 3), BY_EVENT, Frontier())) == [LAST]
    far = expiry_of_rows(rows_at(0), TimeToLive(LAST), Frontier(processing_time_micros=5))
    assert micros(far) == [LAST]


def test_events_before_1970_do_not_wrap() -> None:
    assert micros(expiry_of_rows(rows_at(FIRST + 1, -1), BY_EVENT, Frontier())) == [
        FIRST + 11,
        9,
    ]


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_instants_that_microseconds_cannot_reach_stay_at_the_ends(unit: str) -> None:
    early, late = micros(
        expiry_of_rows(rows_at(FIRST + 1, LAST, unit=unit), BY_EVENT, Frontier())
    )
    assert early is not None
    assert late is not None
    assert early < -(1 << 62)
    assert late > 1 << 62


def test_a_row_without_event_time_is_refused() -> None:
    rows = pa.record_batch({"time": pa.array([1, None], pa.timestamp("us"))})
    with pytest.raises(SchemaError, match="'time' is null in 1 rows"):
        expiry_of_rows(rows, BY_EVENT, Frontier())


@pytest.mark.parametrize("micros", [0, -1, 1 << 63])
def test_an_impossible_time_to_live_is_refused(micros: int) -> None:
    with pytest.raises(SettingsError, match="not possible"):
        TimeToLive(micros)


def test_the_time_column_must_be_a_timestamp_of_the_table() -> None:
    check_time_column(rows_at().schema, BY_EVENT)
    check_time_column(pa.schema([]), BY_PROCESSING)
    for schema in (pa.schema([("time", pa.int64())]), pa.schema([("other", pa.int64())])):
        with pytest.raises(SchemaError, match="column 'time', which is not a timestamp"):
            check_time_column(schema, BY_EVENT)


UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


@given(
    unit=st.sampled_from(sorted(UNITS)),
    time=st.integers(-(1 << 40), 1 << 40),
    ttl=st.integers(1, 1 << 40),
    watermark=st.integers(-(1 << 50), 1 << 50),
    near=st.integers(-2, 2) | st.none(),
)
def test_a_row_is_live_exactly_while_time_plus_ttl_exceeds_the_watermark(
    unit: str, time: int, ttl: int, watermark: int, near: int | None
) -> None:
    expires_nanos = time * UNITS[unit] + ttl * 1_000
    if near is not None:
        watermark = expires_nanos // 1_000 + near
    assert is_live(time, unit, watermark, ttl) == (expires_nanos > watermark * 1_000)
