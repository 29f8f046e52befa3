import pickle
from dataclasses import FrozenInstanceError

import pytest

from penstock.core.ids import Epoch
from penstock.core.watermark import (
    IDLE,
    MAX_EVENT_TIME,
    CheckpointBarrier,
    EndOfData,
    EventTime,
    Idle,
    SignalMessage,
    Stop,
    Watermark,
)
from penstock.errors import ErrorCode, UserError

SIGNALS: list[SignalMessage] = [
    EventTime(-5),
    MAX_EVENT_TIME,
    IDLE,
    CheckpointBarrier(Epoch(3), Epoch(1), 17, then_stop=True),
    Stop(),
    EndOfData(),
]


@pytest.mark.parametrize("micros", [-(1 << 63), -1, 0, (1 << 63) - 1])
def test_event_times_span_64_bits(micros: int) -> None:
    assert EventTime(micros).micros == micros


@pytest.mark.parametrize("micros", [-(1 << 63) - 1, 1 << 63])
def test_instants_beyond_64_bits_are_refused(micros: int) -> None:
    with pytest.raises(UserError, match="are no instant") as caught:
        EventTime(micros)
    assert caught.value.code is ErrorCode.INVALID_NUMBER

    with pytest.raises(UserError, match="are no instant"):
        CheckpointBarrier(Epoch(1), Epoch(1), micros)


def test_no_event_time_is_later_than_the_last() -> None:
    assert max(EventTime((1 << 63) - 1), EventTime(0)) == MAX_EVENT_TIME


def test_event_times_are_ordered_as_their_instants() -> None:
    assert EventTime(-2) < EventTime(-1) < EventTime(3)


def test_idle_is_one_value_and_no_event_time() -> None:
    watermarks: list[Watermark] = [Idle(), EventTime(0)]

    assert watermarks[0] == IDLE
    assert watermarks[1] != IDLE


def test_a_barrier_retains_no_epoch_after_its_own() -> None:
    with pytest.raises(UserError, match="need min_epoch <= epoch"):
        CheckpointBarrier(Epoch(3), Epoch(4), 0)


def test_a_barrier_does_not_stop_the_job_unless_told_to() -> None:
    assert CheckpointBarrier(Epoch(3), Epoch(3), 0).then_stop is False


@pytest.mark.parametrize("signal", SIGNALS, ids=repr)
def test_signals_travel_between_processes(signal: SignalMessage) -> None:
    loaded = pickle.loads(pickle.dumps(signal))

    assert loaded == signal
    assert type(loaded) is type(signal)


def test_different_signals_are_never_equal() -> None:
    assert len(set(SIGNALS)) == len(SIGNALS)


def test_signals_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        MAX_EVENT_TIME.micros = 0  # type: ignore[misc]  # that is what must fail
