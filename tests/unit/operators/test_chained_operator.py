"""Ticks, timers, wake-ups, and the watermarks an operator may and may not return."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.watermark import IDLE, MAX_EVENT_TIME, EventTime
from penstock.errors import ErrorCode, UserCodeError, UserError
from penstock.operators.context import OperatorContext
from penstock.operators.timers import DueTimers
from penstock.state.tables.specs import TimeDomain
from tests.builders.chain_rig import ChainRig
from tests.builders.scripted import BY_USER, PLAIN, Log, Parts, Scripted, rows

A0 = ("a", 0)
SECOND = 1_000_000


def an_operator(build: Callable[[], Scripted]) -> ChainRig:
    parts = Parts()
    return ChainRig(parts.registry, [parts.node("a", build, BY_USER)])


@given(
    st.integers(1, 10),
    st.lists(st.integers(1, 25), min_size=1, max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_a_tick_comes_once_per_crossed_boundary_and_missed_ones_are_skipped(
    seconds: int, steps: list[int], forgets: list[bool]
) -> None:
    ticks: list[int] = []

    def note(tick: int, *_: object) -> None:
        ticks.append(tick)

    rig = an_operator(lambda: Scripted(tick=timedelta(seconds=seconds), handle_tick=note))
    now, expected, last = 0, [], None
    for step, forget in zip(steps, forgets, strict=False):
        now += step * SECOND // 2
        tick = now // (seconds * SECOND)
        if last is None or tick > last:
            expected.append(tick)
        last = tick
        ran = rig.run(now=now)
        assert ran.reports["a"].wake_up_micros == (tick + 1) * seconds * SECOND
        if forget:
            rig.restart()
    assert ticks == expected
    assert len(set(ticks)) == len(ticks)


def test_operators_of_one_chain_tick_at_their_own_intervals() -> None:
    log, parts = Log(), Parts()
    two, three = timedelta(seconds=2), timedelta(seconds=3)
    nodes = [
        parts.node("a", lambda: Scripted("a", log, tick=two), PLAIN),
        parts.node("b", lambda: Scripted("b", log, tick=three), PLAIN),
    ]
    rig = ChainRig(parts.registry, nodes)
    for second in range(1, 8):
        rig.run(now=second * SECOND)
    assert log.of("a").count("handle_tick") == 1 + 3
    assert log.of("b").count("handle_tick") == 1 + 2


def test_a_tick_interval_may_be_a_text_or_microseconds() -> None:
    for interval in ("2s", 2 * SECOND, timedelta(seconds=2)):
        rig = an_operator(lambda interval=interval: Scripted(tick=interval))  # type: ignore[misc]
        ran = rig.run(now=3 * SECOND)
        assert ran.reports["a"].wake_up_micros == 4 * SECOND


@pytest.mark.parametrize(
    "interval", [timedelta(0), timedelta(seconds=-1), "0s", "soon", 1.5]
)
def test_a_tick_interval_that_is_not_positive_is_refused(interval: Any) -> None:
    rig = an_operator(lambda: Scripted(tick=interval))
    with pytest.raises(UserError, match="operator 'a' wants a tick every") as raised:
        rig.run()
    assert raised.value.code is ErrorCode.INVALID_NUMBER


def test_what_wakes_up_earliest_counts_and_only_for_one_epoch() -> None:
    wishes = [[30, 20, 25], []]

    def ask(batch: object, ctx: OperatorContext, *_: object) -> None:
        for micros in wishes.pop(0):
            ctx.wake_at(micros)

    rig = an_operator(lambda: Scripted(process_batch=ask))
    assert rig.run(("a", 0, rows(1))).reports["a"].wake_up_micros == 20
    assert rig.run(("a", 0, rows(1))).reports["a"].wake_up_micros is None


def test_the_next_timer_by_processing_time_wakes_the_operator_up() -> None:
    fired: list[int] = []

    def set_timer(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
        ctx.processing_timers.set(batch, 500)

    def note(due: DueTimers, *_: object) -> None:
        fired.extend(due.due_micros.to_pylist())  # type: ignore[arg-type] # none is null

    rig = an_operator(
        lambda: Scripted(
            timers=[TimeDomain.PROCESSING_TIME], process_batch=set_timer, handle_timers=note
        )
    )
    ran = rig.run(("a", 0, rows(1)), now=100)
    assert ran.reports["a"].wake_up_micros == 500
    assert not ran.reports["a"].has_fired
    ran = rig.run(now=500)
    assert fired == [500]
    assert ran.reports["a"].has_fired
    assert ran.reports["a"].wake_up_micros is None


def test_timers_that_set_due_timers_of_the_other_clock_fire_in_the_same_epoch() -> None:
    fired: list[TimeDomain] = []

    def set_timer(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
        ctx.event_timers.set(batch, 5)

    def again(due: DueTimers, ctx: OperatorContext, *_: object) -> None:
        fired.append(due.domain)
        if len(fired) == 1:
            ctx.processing_timers.set(due.keys, 1)
        elif len(fired) == 2:
            ctx.event_timers.set(due.keys, 6)

    rig = an_operator(
        lambda: Scripted(
            timers=list(TimeDomain), process_batch=set_timer, handle_timers=again
        )
    )
    rig.run(("a", 0, rows(1)), spoken={A0: EventTime(10)}, now=50)
    by_event, by_clock = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME
    assert fired == [by_event, by_clock, by_event]


def test_an_error_in_handle_timers_shows_the_keys_that_were_due() -> None:
    def set_timer(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
        ctx.event_timers.set(batch, 5)

    def fail(*_: object) -> None:
        raise ValueError("oh")

    rig = an_operator(
        lambda: Scripted(
            timers=[TimeDomain.EVENT_TIME], process_batch=set_timer, handle_timers=fail
        )
    )
    with pytest.raises(UserCodeError) as raised:
        rig.run(("a", 0, rows(1, user="ann")), spoken={A0: EventTime(9)})
    assert raised.value.context["hook"] == "handle_timers"
    assert "'user': 'ann'" in raised.value.__notes__[0]


def answering(*answers: Any, generates: bool = False) -> ChainRig:
    left = list(answers)
    return an_operator(
        lambda: Scripted(
            generates_watermarks=generates, handle_watermark=lambda *_: left.pop(0)
        )
    )


def test_an_operator_may_hold_the_watermark_back_or_say_nothing() -> None:
    rig = answering(EventTime(3), None, IDLE, EventTime(3), EventTime(8))
    said = [rig.run(spoken={A0: EventTime(10)}).watermarks["a"] for _ in range(5)]
    assert said == [EventTime(3), None, IDLE, EventTime(3), EventTime(8)]


@pytest.mark.parametrize(
    ("answers", "part"),
    [
        ([EventTime(5), EventTime(4)], "went back in time"),
        ([EventTime(5), MAX_EVENT_TIME], "only the end of all data"),
        ([EventTime(5), 7], "returned 7, which is no watermark"),
        ([EventTime(5), "later"], "returned 'later', which is no watermark"),
    ],
    ids=["less", "max", "number", "text"],
)
def test_other_answers_are_refused(answers: list[Any], part: str) -> None:
    rig = answering(*answers)
    rig.run(spoken={A0: EventTime(5)})
    with pytest.raises(UserError) as raised:
        rig.run(spoken={A0: EventTime(9)})
    assert raised.value.code is ErrorCode.WATERMARK_WENT_BACK
    assert part in raised.value.message
    assert raised.value.context == {
        "operator": "a",
        "subtask": 0,
        "epoch": 2,
        "hook": "handle_watermark",
    }


def test_an_operator_that_makes_watermarks_may_return_less_and_is_always_asked() -> None:
    rig = answering(EventTime(5), EventTime(4), IDLE, generates=True)
    said = [rig.run().watermarks["a"] for _ in range(3)]
    assert said == [EventTime(5), EventTime(4), IDLE]


def test_the_end_of_data_is_passed_on_whatever_the_operator_answers() -> None:
    rig = answering(EventTime(5), None)
    assert rig.run(spoken={A0: EventTime(5)}).watermarks["a"] == EventTime(5)
    assert rig.run(spoken={A0: MAX_EVENT_TIME}).watermarks["a"] == MAX_EVENT_TIME


def test_the_context_shows_the_watermark_before_and_from_handle_watermark_on() -> None:
    seen: list[tuple[str, Any, Any]] = []

    def look(where: str) -> Callable[..., Any]:
        def hook(*arguments: Any) -> Any:
            ctx = next(a for a in arguments if isinstance(a, OperatorContext))
            seen.append((where, ctx.previous_watermark, ctx.watermark))
            return arguments[0] if where == "watermark" else None

        return hook

    rig = an_operator(
        lambda: Scripted(
            process_batch=look("batch"),
            handle_watermark=look("watermark"),
            handle_checkpoint=look("checkpoint"),
        )
    )
    rig.run(("a", 0, rows(1)), spoken={A0: EventTime(5)})
    rig.restart()
    rig.run(("a", 0, rows(1)), spoken={A0: EventTime(7)})
    five, seven = EventTime(5), EventTime(7)
    assert seen == [
        ("batch", None, None),
        ("watermark", None, five),
        ("checkpoint", None, five),
        ("batch", five, five),
        ("watermark", five, seven),
        ("checkpoint", five, seven),
    ]


def test_rows_and_counters_are_reported_per_epoch() -> None:
    def count(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
        ctx.count("odd")
        ctx.count("seen", batch.num_rows)

    rig = an_operator(lambda: Scripted(process_batch=count))
    report = rig.run(("a", 0, rows(1, 2)), ("a", 0, rows(3))).reports["a"]
    assert (report.rows_taken, report.counters) == (3, {"odd": 2, "seen": 3})
    report = rig.run().reports["a"]
    assert (report.rows_taken, report.counters, report.rows_emitted) == (0, {}, {})
