from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.watermark import IDLE, MAX_MICROS, MIN_MICROS, EventTime, Idle, Watermark
from penstock.graph.logical import WatermarkSpec
from penstock.operators.event_time import (
    last_watermark,
    next_idle_micros,
    slowest_split,
    watermark_of_splits,
)
from penstock.operators.splits import SplitState

NO_TIMEOUT = WatermarkSpec(delay_micros=10)
TIMEOUT = WatermarkSpec(delay_micros=10, idle_timeout_micros=100)


def seen(micros: int | None, *, at: int | None = 0, ended: bool = False) -> SplitState:
    return SplitState(max_event_time_micros=micros, last_active_micros=at, ended=ended)


@pytest.mark.parametrize(
    ("states", "now", "expected"),
    [
        ({}, 0, IDLE),
        ({"a": seen(50)}, 0, EventTime(40)),
        ({"a": seen(50), "b": seen(70)}, 0, EventTime(40)),
        ({"a": seen(50), "b": seen(None)}, 0, None),
        ({"a": seen(50, ended=True), "b": seen(70)}, 0, EventTime(60)),
        ({"a": seen(50, ended=True), "b": seen(None, ended=True)}, 0, IDLE),
        ({"a": seen(50), "b": seen(70, at=50)}, 99, EventTime(40)),
        ({"a": seen(50), "b": seen(70, at=50)}, 100, EventTime(60)),
        ({"a": seen(50), "b": seen(70, at=50)}, 150, IDLE),
        ({"a": seen(None), "b": seen(70, at=50)}, 99, None),
        ({"a": seen(None), "b": seen(70, at=50)}, 100, EventTime(60)),
        ({"a": seen(None, at=None), "b": seen(70, at=50)}, 10**9, None),
    ],
)
def test_the_watermark_of_splits(
    states: Mapping[str, SplitState], now: int, expected: Watermark | None
) -> None:
    assert watermark_of_splits(states, TIMEOUT, now) == expected


def test_without_a_timeout_no_split_is_ever_idle() -> None:
    states = {"a": seen(50), "b": seen(70)}

    assert watermark_of_splits(states, NO_TIMEOUT, MAX_MICROS) == EventTime(40)
    assert next_idle_micros(states, NO_TIMEOUT, 0) is None


def test_instants_at_the_ends_of_time_stay_in_it_and_announce_no_end() -> None:
    earliest = {"a": seen(MIN_MICROS)}
    latest = {"a": seen(MAX_MICROS)}

    assert watermark_of_splits(earliest, TIMEOUT, 0) == EventTime(MIN_MICROS)
    assert watermark_of_splits(latest, WatermarkSpec(), 0) == EventTime(MAX_MICROS - 1)


def test_the_next_wake_up_is_when_the_first_live_split_becomes_idle() -> None:
    states = {
        "idle": seen(1, at=-500),
        "ended": seen(1, at=10, ended=True),
        "unknown": seen(None, at=None),
        "later": seen(1, at=40),
        "first": seen(None, at=30),
    }

    assert next_idle_micros(states, TIMEOUT, 50) == 130


micros = st.integers(-1000, 1000)
split_states = st.builds(
    SplitState,
    ended=st.booleans(),
    max_event_time_micros=st.none() | micros,
    last_active_micros=st.none() | micros,
)
splits = st.dictionaries(st.sampled_from("abcd"), split_states)
rules = st.builds(
    WatermarkSpec,
    delay_micros=st.integers(0, 50),
    idle_timeout_micros=st.none() | st.integers(1, 500),
)


@given(splits, rules, micros)
def test_no_live_split_that_is_not_idle_is_overtaken(
    states: dict[str, SplitState], rule: WatermarkSpec, now: int
) -> None:
    together = watermark_of_splits(states, rule, now)

    for name, state in states.items():
        alone = watermark_of_splits({name: state}, rule, now)
        if not isinstance(together, EventTime) or isinstance(alone, Idle):
            continue
        assert alone is not None
        assert together <= alone


@given(splits, rules, micros, st.integers(0, 2000))
def test_without_rows_the_watermark_changes_only_at_the_wake_ups(
    states: dict[str, SplitState], rule: WatermarkSpec, now: int, later: int
) -> None:
    wake_up = next_idle_micros(states, rule, now)
    before = now + later if wake_up is None else min(now + later, wake_up - 1)

    assert watermark_of_splits(states, rule, now) == watermark_of_splits(
        states, rule, max(now, before)
    )


@given(splits, rules, micros)
def test_wake_ups_end_and_then_everybody_with_a_known_time_is_idle(
    states: dict[str, SplitState], rule: WatermarkSpec, now: int
) -> None:
    for _ in range(len(states)):
        wake_up = next_idle_micros(states, rule, now)
        if wake_up is None:
            break
        assert wake_up > now
        now = wake_up

    assert next_idle_micros(states, rule, now) is None


@given(splits, rules, micros, st.sampled_from("abcd"), st.integers(0, 1000))
def test_more_rows_never_lower_the_watermark_of_active_splits(
    states: dict[str, SplitState], rule: WatermarkSpec, now: int, name: str, more: int
) -> None:
    active = {
        split: SplitState(
            max_event_time_micros=state.max_event_time_micros, last_active_micros=now
        )
        for split, state in states.items()
    }
    before = watermark_of_splits(active, rule, now)
    if name not in active:
        return
    latest = (active[name].max_event_time_micros or 0) + more
    after = watermark_of_splits({**active, name: seen(latest, at=now)}, rule, now)

    if isinstance(before, EventTime):
        assert isinstance(after, EventTime)
        assert after >= before


def test_splits_that_ended_together_say_how_far_the_latest_came() -> None:
    ended = [SplitState(ended=True, max_event_time_micros=m) for m in (30, 50, None)]
    assert last_watermark(ended, WatermarkSpec(delay_micros=5)) == EventTime(45)


def test_splits_that_ended_without_a_row_say_nothing() -> None:
    assert last_watermark([SplitState(ended=True)], WatermarkSpec()) == IDLE
    assert last_watermark([], WatermarkSpec()) == IDLE


def test_the_slowest_split_is_the_open_one_that_is_furthest_behind() -> None:
    states = {
        "ended": seen(1, ended=True),
        "idle": seen(2, at=0),
        "slow": seen(-3, at=90),
        "fast": seen(70, at=90),
    }
    assert slowest_split(states, TIMEOUT, 100) == "slow"
    assert slowest_split({**states, "new": seen(None, at=90)}, TIMEOUT, 100) == "new"
    assert slowest_split({"ended": seen(1, ended=True)}, TIMEOUT, 100) is None
