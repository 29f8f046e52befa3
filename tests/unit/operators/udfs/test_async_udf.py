import threading
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.ids import owner_of
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_EVENT_TIME, EventTime
from penstock.errors import ErrorCode, ExternalError, StateError, UserCodeError, UserError
from tests.unit.operators.udfs.by_hand import EpochOutput, OperatorByHand
from tests.unit.operators.udfs.service import KEYED, UNKEYED, Service, rows


@pytest.fixture
def service() -> Service:
    return Service()


def _by_hand(
    service: Service, stream: StreamSchema = KEYED, *, parallelism: int = 1, **options: Any
) -> OperatorByHand:
    return OperatorByHand(lambda: service.build(**options), stream, parallelism=parallelism)


def _numbers(output: EpochOutput) -> list[int]:
    return [row["n"] for row in output.main]


def _user_of(index: int, parallelism: int) -> str:
    """A key that a subtask owns."""
    for number in range(10_000):
        user = f"user-{number}"
        batch = rows(0, user=user)
        if owner_of(int(KEYED.key_hashes_of(batch)[0]), parallelism) == index:
            return user
    raise AssertionError("no key found")


def test_rows_leave_with_their_answers_in_order(service: Service) -> None:
    (output,) = _by_hand(service).run_epoch({0: [rows(3, 1), rows(2)]})
    assert [(row["n"], row["tens"]) for row in output.main] == [(3, 30), (1, 10), (2, 20)]
    assert output.wake_up_micros is None


def test_more_rows_than_may_be_under_way_are_all_answered(service: Service) -> None:
    by_hand = _by_hand(service, max_concurrency=3)
    (output,) = by_hand.run_epoch({0: [rows(*range(100))]})
    assert _numbers(output) == list(range(100))


def test_nulls_are_not_asked_about(service: Service) -> None:
    (output,) = _by_hand(service).run_epoch({0: [rows(1, None, 2)]})
    assert [row["tens"] for row in output.main] == [10, None, 20]
    assert sorted(service.calls) == [1, 2]


def test_only_the_named_columns_are_passed(service: Service) -> None:
    service.silent = {1}
    by_hand = _by_hand(service)
    by_hand.run_epoch({0: [rows(1)]})
    service.silent = set()
    (output,) = by_hand.run_epoch()
    assert service.calls == [1, 1], "also when a kept call is asked again"
    assert output.main[0]["tens"] == 10


# ---- what has no answer at the deadline


def test_an_unanswered_call_is_kept_and_asked_again(service: Service) -> None:
    service.silent = {2}
    by_hand = _by_hand(service, ordered=False)
    (first,) = by_hand.run_epoch({0: [rows(1, 2, 3)]})
    assert _numbers(first) == [1, 3]
    assert first.wake_up_micros == 1_000, "the next epoch comes at once"
    assert first.counters["calls_kept"] == 1
    (second,) = by_hand.run_epoch()
    assert _numbers(second) == []
    service.silent = set()
    (third,) = by_hand.run_epoch()
    assert _numbers(third) == [2]
    assert third.wake_up_micros is None
    (fourth,) = by_hand.run_epoch()
    assert _numbers(fourth) == []
    assert service.calls.count(2) == 3


def test_order_holds_across_epochs_without_asking_again(service: Service) -> None:
    service.silent = {2}
    by_hand = _by_hand(service)
    (first,) = by_hand.run_epoch({0: [rows(1, 2, 3)]})
    assert _numbers(first) == [1], "3 is answered and waits for 2"
    (second,) = by_hand.run_epoch({0: [rows(4)]})
    assert _numbers(second) == []
    service.silent = set()
    (third,) = by_hand.run_epoch({0: [rows(5)]})
    assert _numbers(third) == [2, 3, 4, 5]
    assert [row["tens"] for row in third.main] == [20, 30, 40, 50]
    assert [service.calls.count(n) for n in (3, 4)] == [1, 1]


def test_many_kept_calls_keep_their_order(service: Service) -> None:
    service.silent = set(range(25))
    by_hand = _by_hand(service)
    for first in range(0, 24, 12):
        by_hand.run_epoch({0: [rows(*range(first, first + 12))]})
    service.silent = set()
    (output,) = by_hand.run_epoch()
    assert _numbers(output) == list(range(24))


def test_bad_rows_keep_their_place_in_order_across_epochs(service: Service) -> None:
    service.silent, service.failing = {1}, {2}
    by_hand = _by_hand(service, on_bad="divert")
    (first,) = by_hand.run_epoch({0: [rows(1, 2, 3)]})
    assert (first.main, first.bad) == ([], [])
    service.silent = set()
    (second,) = by_hand.run_epoch()
    assert _numbers(second) == [1, 3]
    assert [(row["n"], row["error"]) for row in second.bad] == [
        (2, "ValueError: 2 is refused")
    ]
    assert service.calls.count(2) == 1


def test_attempts_are_counted_across_epochs(service: Service) -> None:
    service.scripts = {1: ["fail", "silent", "fail", "answer"]}
    by_hand = _by_hand(service, on_bad="divert", retries=1, retry_delay="0s")
    (first,) = by_hand.run_epoch({0: [rows(1)]})
    assert (first.main, first.bad) == ([], [])
    (second,) = by_hand.run_epoch()
    assert [row["n"] for row in second.bad] == [1]
    assert len(service.calls) == 3


@pytest.mark.parametrize("stream", [KEYED, UNKEYED], ids=["keyed", "unkeyed"])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 4), (4, 2)])
def test_every_kept_call_has_exactly_one_owner_after_a_rescale(
    stream: StreamSchema, before: int, after: int, service: Service
) -> None:
    given = {
        index: [rows(10 * index, 10 * index + 1, user=_user_of(index, before))]
        for index in range(before)
    }
    everything = [10 * index + step for index in range(before) for step in (0, 1)]
    service.silent = set(everything)
    by_hand = _by_hand(service, stream, parallelism=before)
    assert not any(output.main for output in by_hand.run_epoch(given))
    by_hand.parallelism = after
    assert not any(output.main for output in by_hand.run_epoch())
    by_hand.parallelism = before
    service.silent = set()
    outputs = by_hand.run_epoch()
    assert sorted(n for output in outputs for n in _numbers(output)) == everything
    assert not any(output.main for output in by_hand.run_epoch())


def test_a_kept_call_of_a_key_follows_its_key(service: Service) -> None:
    user = _user_of(3, 4)
    service.silent = {1, 2}
    by_hand = _by_hand(service)
    by_hand.run_epoch({0: [rows(1, 2, user=user)]})
    service.silent = set()
    by_hand.parallelism = 4
    outputs = by_hand.run_epoch({3: [rows(3, user=user)]})
    assert [_numbers(output) for output in outputs] == [[], [], [], [1, 2, 3]]


def test_a_row_that_was_not_brought_by_its_key_stays_where_it_came(
    service: Service,
) -> None:
    service.silent = {1}
    by_hand = _by_hand(service, parallelism=2)
    by_hand.run_epoch({0: [rows(1, user=_user_of(1, 2))]})
    service.silent = set()
    outputs = by_hand.run_epoch()
    assert [_numbers(output) for output in outputs] == [[1], []]


def test_kept_rows_that_no_longer_fit_the_input_are_explained(service: Service) -> None:
    service.silent = {1}
    by_hand = _by_hand(service)
    by_hand.run_epoch({0: [rows(1)]})
    columns: Any = {"n": pa.int64(), "extra": pa.string()}
    by_hand.stream = StreamSchema(pa.schema(columns))
    with pytest.raises(StateError, match="kept a call whose row does not fit") as caught:
        by_hand.run_epoch()
    assert caught.value.code is ErrorCode.MIGRATION_FAILED


# ---- the end


def test_at_the_end_of_the_data_everything_is_answered(service: Service) -> None:
    """The deadline is over at once, but does not count; a call is bounded by its timeout."""
    asked = threading.Event()

    class Slow(Service):
        async def __call__(self, n: int) -> Any:
            asked.set()
            return await super().__call__(n)

    slow = Slow()
    slow.silent = {1}
    by_hand = _by_hand(slow, on_bad="divert", timeout="10ms")
    (output,) = by_hand.run_epoch({0: [rows(1, 2)]}, MAX_EVENT_TIME)
    assert _numbers(output) == [2]
    assert [row["error"] for row in output.bad] == [
        "CallTimeoutError: no answer within 0.01 seconds"
    ]
    assert output.watermark == MAX_EVENT_TIME
    assert output.wake_up_micros is None
    assert asked.is_set()


def test_kept_calls_are_answered_at_the_end_of_the_data_too(service: Service) -> None:
    service.silent = {1}
    by_hand = _by_hand(service)
    by_hand.run_epoch({0: [rows(1, 2)]}, EventTime(0))
    service.silent = set()
    (output,) = by_hand.run_epoch({0: [rows(3)]}, MAX_EVENT_TIME)
    assert _numbers(output) == [1, 2, 3]
    assert output.watermark == MAX_EVENT_TIME


# ---- calls that fail


def test_a_call_that_raises_fails_the_epoch_with_its_arguments(service: Service) -> None:
    service.failing = {2}
    with pytest.raises(UserCodeError, match=r"raised ValueError: 2 is refused") as caught:
        _by_hand(service).run_epoch({0: [rows(1, 2)]})
    assert "called with (2,)" in caught.value.message
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_call_that_times_out_fails_the_epoch_so_that_it_is_tried_again(
    service: Service,
) -> None:
    service.silent = {2}
    by_hand = _by_hand(service, timeout="10ms", drain="1000000000s")
    with pytest.raises(ExternalError, match=r"no answer within 0\.01 seconds") as caught:
        by_hand.run_epoch({0: [rows(1, 2)]})
    assert caught.value.code is ErrorCode.UDF_TIMED_OUT


def test_failing_rows_are_sent_aside_if_wanted(service: Service) -> None:
    service.failing = {2, 3}
    by_hand = _by_hand(service, on_bad="divert", max_concurrency=1, ordered=False)
    (output,) = by_hand.run_epoch({0: [rows(1, 2, 3, 4)]})
    assert _numbers(output) == [1, 4]
    assert [row["n"] for row in output.bad] == [2, 3]
    assert output.counters == {"bad_rows": 2}


def test_an_answer_of_another_type_is_refused() -> None:
    class Wrong(Service):
        async def __call__(self, n: int) -> Any:
            return "ten"

    with pytest.raises(UserError, match="'ten' of type str, which is no int64") as caught:
        _by_hand(Wrong()).run_epoch({0: [rows(1)]})
    assert caught.value.code is ErrorCode.UDF_INVALID
