import time
from datetime import timedelta

import pytest

from penstock.core.clock import Clock, ManualClock, SystemClock


def test_the_machines_clock_tells_whole_microseconds() -> None:
    clock: Clock = SystemClock()
    before = time.time_ns() // 1_000
    now = clock.now_micros()
    after = time.time_ns() // 1_000

    assert isinstance(now, int)
    assert before <= now <= after


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(micros=-5)
    assert [clock.now_micros(), clock.now_micros()] == [-5, -5]

    clock.advance(12)
    assert clock.now_micros() == 7
    clock.advance("1s")
    clock.advance(timedelta(seconds=1))
    assert clock.now_micros() == 2_000_007


def test_a_manual_clock_does_not_go_back() -> None:
    clock = ManualClock(3)
    with pytest.raises(ValueError, match="only moves forward"):
        clock.advance(-1)

    assert clock.now_micros() == 3
