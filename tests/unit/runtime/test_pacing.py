import threading

import pytest

from penstock.core.clock import ManualClock, SystemClock
from penstock.runtime.driver.environment import ClockPacer, ManualPacer


def test_a_manual_pacer_moves_the_clock_and_notes_it() -> None:
    clock = ManualClock(100)
    pacer = ManualPacer(clock)
    pacer.wait_until(150)
    pacer.wait_until(120)
    pacer.interrupt()
    assert clock.micros == 150
    assert pacer.waits == [150, 120]


def test_waiting_for_ever_ends_a_test() -> None:
    with pytest.raises(RuntimeError, match="wait for ever"):
        ManualPacer(ManualClock()).wait_until(None)


def test_a_time_that_has_passed_is_not_waited_for() -> None:
    clock = SystemClock()
    ClockPacer(clock).wait_until(clock.now_micros() - 1)
    ClockPacer(clock).wait_until(clock.now_micros() + 1_000)


def test_an_interruption_before_the_wait_ends_it_once() -> None:
    clock = SystemClock()
    pacer = ClockPacer(clock)
    pacer.interrupt()
    pacer.wait_until(None)
    pacer.wait_until(clock.now_micros() + 1_000)


def test_another_thread_ends_the_wait() -> None:
    pacer = ClockPacer(SystemClock())
    waiter = threading.Thread(target=pacer.wait_until, args=(None,), daemon=True)
    waiter.start()
    pacer.interrupt()
    waiter.join(timeout=30)
    assert not waiter.is_alive()
