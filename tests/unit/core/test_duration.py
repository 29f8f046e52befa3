"""Durations: what people write, and what it is in microseconds."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import DurationLike, to_micros
from penstock.core.watermark import MAX_MICROS
from penstock.errors import ErrorCode, UserError


@pytest.mark.parametrize(
    ("written", "micros"),
    [
        ("0s", 0),
        ("7us", 7),
        ("250ms", 250_000),
        ("10s", 10_000_000),
        ("5m", 300_000_000),
        ("1h30m", 5_400_000_000),
        ("2d", 172_800_000_000),
        ("1m30s500ms", 90_500_000),
        ("0.5s", 500_000),
        ("1.000001s", 1_000_001),
        (timedelta(seconds=2, microseconds=3), 2_000_003),
        (42, 42),
        (0, 0),
        (MAX_MICROS, MAX_MICROS),
    ],
)
def test_a_duration_is_read_in_microseconds(written: DurationLike, micros: int) -> None:
    assert to_micros(written) == micros


@pytest.mark.parametrize(
    "written", ["", "10", "s", "10 s", "ten seconds", "1x", "1s!", "-1s", "\uff11s", "1e3s"]
)
def test_text_that_is_no_duration_is_told_how_one_is_written(written: str) -> None:
    with pytest.raises(UserError) as raised:
        to_micros(written, "lateness")
    assert raised.value.code is ErrorCode.INVALID_NUMBER
    assert raised.value.message == (
        f"{written!r} is not a valid lateness: write numbers with units, such as '250ms', '10s', "
        "'5m' or '1h30m' (units: us, ms, s, m, h, d), or give a timedelta or a whole number of "
        "microseconds"
    )


@pytest.mark.parametrize("value", [True, 1.5, None, b"1s"])
def test_other_types_are_no_durations(value: Any) -> None:
    with pytest.raises(
        UserError, match="is not a valid duration: write numbers with units"
    ):
        to_micros(value)


@pytest.mark.parametrize(
    "value", [-1, timedelta(seconds=-1), MAX_MICROS + 1, "9999999999d"]
)
def test_negative_and_endless_durations_are_refused(value: DurationLike) -> None:
    with pytest.raises(UserError, match="must not be negative, nor longer than"):
        to_micros(value)


def test_fractions_of_microseconds_are_refused_not_rounded() -> None:
    with pytest.raises(
        UserError, match=r"'1\.5us' is not a valid duration: it is finer than"
    ):
        to_micros("1.5us")


@given(st.integers(0, 86_400_000_000_000))
def test_a_timedelta_and_its_microseconds_are_the_same(micros: int) -> None:
    assert to_micros(timedelta(microseconds=micros)) == to_micros(f"{micros}us") == micros
