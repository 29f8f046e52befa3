import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.operators.udfs.async_calls import AsyncCall, CallPool, CallTimeoutError
from penstock.operators.udfs.specs import AsyncUdfSpec, async_udf


async def _nothing(value: Any) -> None:
    return None


def limits(max_concurrency: int, timeout: str, **options: Any) -> AsyncUdfSpec:
    """Return a declaration with these limits; its function is not the one that is called."""
    options = {"retry_delay": 0, "ordered": False, **options}
    return async_udf(
        _nothing,
        returns=pa.int64(),
        inputs=["n"],
        max_concurrency=max_concurrency,
        timeout=timeout,
        **options,
    )


@pytest.fixture
def open_pools() -> Iterator[list[CallPool]]:
    pools: list[CallPool] = []
    yield pools
    for pool in pools:
        pool.close()


@pytest.fixture
def a_pool(open_pools: list[CallPool]) -> Callable[..., CallPool]:
    def build(
        function: Callable[..., Awaitable[Any]],
        *,
        max_concurrency: int = 10,
        timeout: str = "30s",
        retries: int = 0,
        is_ordered: bool = False,
    ) -> CallPool:
        spec = limits(max_concurrency, timeout, retries=retries, ordered=is_ordered)
        open_pools.append(CallPool(function, spec))
        return open_pools[-1]

    return build


def _calls(*values: Any) -> list[AsyncCall]:
    return [AsyncCall(order, (value,)) for order, value in enumerate(values)]


async def _forever(value: Any) -> None:
    await asyncio.Event().wait()


def test_calls_are_answered(a_pool: Callable[..., CallPool]) -> None:
    async def double(value: int) -> int:
        return 2 * value

    pool = a_pool(double)
    calls = _calls(1, 2, 3)
    pool.submit(calls)
    assert pool.wait_idle(None)
    assert set(pool.take_finished()) == set(calls)
    assert [call.value for call in calls] == [2, 4, 6]
    assert pool.take_finished() == []


def test_no_more_calls_than_allowed_are_under_way(a_pool: Callable[..., CallPool]) -> None:
    under_way = most = 0

    async def count(value: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        under_way -= 1

    pool = a_pool(count, max_concurrency=4)
    pool.submit(_calls(*range(50)))
    assert pool.wait_idle(None)
    assert most == 4
    assert len(pool.take_finished()) == 50


def test_ordered_calls_do_not_run_further_ahead_than_allowed(
    a_pool: Callable[..., CallPool],
) -> None:
    started: list[int] = []
    go_on = threading.Event()
    seen = threading.Event()

    async def first_is_slow(value: int) -> None:
        started.append(value)
        if value == 2:
            seen.set()
        while value == 0 and not go_on.is_set():
            await asyncio.sleep(0)

    pool = a_pool(first_is_slow, max_concurrency=3, is_ordered=True)
    pool.submit(_calls(*range(6)))
    assert seen.wait(30)
    assert started == [0, 1, 2]
    go_on.set()
    assert pool.wait_started()
    assert pool.wait_idle(None)
    assert started == [0, 1, 2, 3, 4, 5]


def test_a_call_that_takes_too_long_is_answered_with_a_timeout(
    a_pool: Callable[..., CallPool],
) -> None:
    pool = a_pool(_forever, timeout="1ms")
    (call,) = _calls(1)
    pool.submit([call])
    assert pool.wait_idle(None)
    assert isinstance(call.error, CallTimeoutError)
    assert str(call.error) == "no answer within 0.001 seconds"


def test_a_timeout_of_the_function_itself_is_its_own(
    a_pool: Callable[..., CallPool],
) -> None:
    async def own_timeout(value: int) -> None:
        raise TimeoutError("mine")

    pool = a_pool(own_timeout)
    (call,) = _calls(1)
    pool.submit([call])
    assert pool.wait_idle(None)
    assert str(call.error) == "mine"


def test_a_failed_attempt_is_made_again(a_pool: Callable[..., CallPool]) -> None:
    attempts: list[int] = []

    async def third_time_lucky(value: int) -> str:
        attempts.append(value)
        if len(attempts) < 3:
            raise ConnectionError("not yet")
        return "there"

    pool = a_pool(third_time_lucky, retries=2)
    (call,) = _calls(7)
    pool.submit([call])
    assert pool.wait_idle(None)
    assert (call.value, call.error, call.failures) == ("there", None, 2)
    assert attempts == [7, 7, 7]


def test_the_last_failure_counts(a_pool: Callable[..., CallPool]) -> None:
    async def never(value: int) -> None:
        raise ConnectionError("refused")

    pool = a_pool(never, retries=2)
    (call,) = _calls(7)
    call.failures = 1  # an earlier epoch has tried already
    pool.submit([call])
    assert pool.wait_idle(None)
    assert isinstance(call.error, ConnectionError)
    assert call.failures == 3


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_function_that_ends_its_task_does_not_end_the_others(
    raised: type[BaseException], a_pool: Callable[..., CallPool]
) -> None:
    async def leave(value: int) -> int:
        if value == 0:
            raise raised
        return value

    pool = a_pool(leave, max_concurrency=1)
    calls = _calls(0, 1)
    pool.submit(calls)
    while not pool.wait_idle(None):
        pool.take_finished()
    assert raised.__name__ in repr(calls[0].error)
    assert calls[1].value == 1


def test_calls_that_are_taken_back_get_no_answer(a_pool: Callable[..., CallPool]) -> None:
    was_cancelled = threading.Event()
    has_started = threading.Event()

    async def wait(value: int) -> None:
        has_started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    pool = a_pool(wait, max_concurrency=1)
    calls = _calls(1, 2)
    pool.submit(calls)
    assert has_started.wait(30)
    assert not pool.wait_idle(0)
    pool.cancel_all()
    assert was_cancelled.wait(30)
    assert pool.wait_idle(0)
    assert pool.take_finished() == []
    assert not any(call.is_answered for call in calls)


def test_an_answer_after_its_call_was_taken_back_is_dropped(
    a_pool: Callable[..., CallPool],
) -> None:
    has_started = threading.Event()

    async def stubborn(value: str) -> str:
        if value == "stubborn":
            has_started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "too late"
        return "in time"

    pool = a_pool(stubborn)
    (call,) = _calls("stubborn")
    pool.submit([call])
    assert has_started.wait(30)
    pool.cancel_all()
    (other,) = _calls("other")
    pool.submit([other])
    assert pool.wait_idle(None)
    assert pool.take_finished() == [other]
    assert not call.is_answered


def test_a_failure_wakes_whoever_waits(a_pool: Callable[..., CallPool]) -> None:
    async def first_fails(value: int) -> None:
        if value == 0:
            raise ValueError("bad")
        await asyncio.Event().wait()

    pool = a_pool(first_fails)
    pool.submit(_calls(0, 1))
    assert not pool.wait_idle(None)
    assert [call.arguments for call in pool.take_finished()] == [(0,)]


def test_closing_cancels_what_is_under_way_and_ends_the_thread() -> None:
    ended = threading.Event()
    has_started = threading.Event()

    async def wait(value: int) -> None:
        has_started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    pool = CallPool(wait, limits(1, "30s"))
    pool.submit(_calls(1))
    assert has_started.wait(30)
    thread = pool._thread
    assert thread is not None
    pool.close()
    assert ended.is_set()
    assert not thread.is_alive()


def test_a_pool_without_calls_has_no_thread() -> None:
    pool = CallPool(_forever, limits(1, "30s"))
    pool.submit([])
    assert pool.wait_started()
    assert pool.wait_idle(None)
    assert pool._thread is None
    pool.cancel_all()
    pool.close()


def test_a_pool_can_be_used_again_after_closing() -> None:
    async def same(value: int) -> int:
        return value

    pool = CallPool(same, limits(1, "30s"))
    for value in (1, 2):
        (call,) = _calls(value)
        pool.submit([call])
        assert pool.wait_idle(None)
        assert pool.take_finished() == [call]
        assert call.value == value
        pool.close()


def test_a_pool_that_got_no_thread_can_be_closed_and_used_later(
    a_pool: Callable[..., CallPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = a_pool(_nothing)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            pool.submit(_calls(1))
    pool.close()
    pool.submit(_calls(2))
    assert pool.wait_idle(30)
