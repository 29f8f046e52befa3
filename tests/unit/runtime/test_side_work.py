"""Side work: everything is done, in order without threads; failures are not lost."""

import threading
from collections.abc import Callable

import pytest

from penstock.errors import FencedError, StorageError
from penstock.runtime.driver.environment import SideWork


def numbered(log: list[int]) -> list[Callable[[], int]]:
    def call(number: int) -> int:
        log.append(number)
        return number * 10

    return [lambda number=number: call(number) for number in range(5)]  # type: ignore[misc]


@pytest.mark.parametrize("threads", [0, 3])
def test_results_come_in_the_order_of_the_calls(threads: int) -> None:
    log: list[int] = []
    work = SideWork(threads)
    assert work.run_all(numbered(log)) == [0, 10, 20, 30, 40]
    assert sorted(log) == [0, 1, 2, 3, 4]
    work.close()


def test_without_threads_a_failure_stops_the_calls_behind_it() -> None:
    log: list[int] = []
    first, *others = numbered(log)
    with pytest.raises(StorageError, match="full"):
        SideWork().run_all([first, fail_with(StorageError("full")), *others])
    assert log == [0]


def test_a_failure_is_raised_when_no_call_is_under_way_any_more() -> None:
    log: list[int] = []
    work = SideWork(3)
    with pytest.raises(StorageError, match="full"):
        work.run_all([fail_with(StorageError("full")), *numbered(log)])
    assert sorted(log) == [0, 1, 2, 3, 4]
    work.close()


def test_without_threads_what_nobody_waits_for_happens_at_once() -> None:
    log: list[str] = []
    SideWork().start(lambda: log.append("done"))
    assert log == ["done"]


def test_what_is_aside_fails_where_it_is_asked_for() -> None:
    work = SideWork(1)
    work.start(fail_with(FencedError("another driver")))
    with pytest.raises(FencedError, match="another driver"):
        work.settle()
    work.settle()
    work.close()


def test_only_one_call_is_aside_at_a_time_and_a_check_does_not_wait_for_it() -> None:
    may_end, log = threading.Event(), list[str]()
    work = SideWork(1)

    def first() -> None:
        may_end.wait(10)
        log.append("first")

    work.start(first)
    work.start(lambda: log.append("second"))
    work.check()
    assert log == []
    may_end.set()
    work.settle()
    work.start(lambda: log.append("third"))
    work.close()
    assert log == ["first", "third"]


def test_closing_reports_what_failed_last_without_raising(
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = SideWork(1)
    work.start(fail_with(StorageError("full")))
    work.close()
    assert "the last collection failed: full" in caplog.text


def fail_with(error: Exception) -> Callable[[], int]:
    def fail() -> int:
        raise error

    return fail


@pytest.mark.parametrize("ends", ["settle", "close"])
def test_a_call_that_is_waited_for_is_told_to_leave_off(ends: str) -> None:
    work = SideWork(1, patience_seconds=0.01)
    begun = threading.Event()

    def collect() -> None:
        begun.set()
        while not work.is_settling:
            threading.Event().wait(0.001)

    work.start(collect)
    assert begun.wait(60)
    getattr(work, ends)()
    assert not work.is_settling
    work.close()


def test_a_call_that_is_soon_done_is_not_told_to_leave_off() -> None:
    work, told = SideWork(1, patience_seconds=60), list[bool]()
    begun, goes_on = threading.Event(), threading.Event()

    def collect() -> None:
        begun.set()
        assert goes_on.wait(60)
        told.append(work.is_settling)

    work.start(collect)
    assert begun.wait(60)
    waiting = threading.Thread(target=work.close)
    waiting.start()
    waiting.join(0.05)
    goes_on.set()
    waiting.join(60)
    assert told == [False]
