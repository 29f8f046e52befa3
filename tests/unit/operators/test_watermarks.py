"""The rules of watermarks, one by one; their laws are among the property tests."""

import pytest

from penstock.core.watermark import (
    IDLE,
    MAX_EVENT_TIME,
    EventTime,
    InputWatermark,
    Watermark,
    advance,
    event_time_of,
    has_ended,
    merge,
    merge_subtasks,
)

FIVE, NINE = EventTime(5), EventTime(9)
SILENT = InputWatermark()


@pytest.mark.parametrize(
    ("latest", "expected"),
    [
        ([], IDLE),
        ([FIVE], FIVE),
        ([NINE, FIVE], FIVE),
        ([None, FIVE], None),
        ([None, IDLE], None),
        ([IDLE, FIVE], FIVE),
        ([IDLE, IDLE], IDLE),
        ([MAX_EVENT_TIME, FIVE], FIVE),
        ([MAX_EVENT_TIME, MAX_EVENT_TIME], MAX_EVENT_TIME),
        ([MAX_EVENT_TIME, IDLE], IDLE),
    ],
)
def test_merging(latest: list[Watermark | None], expected: Watermark | None) -> None:
    assert merge(latest) == expected


def test_an_idle_input_comes_back_at_the_operators_watermark() -> None:
    inputs = advance((SILENT, SILENT), (FIVE, FIVE)).inputs
    moved = advance(inputs, (IDLE, NINE))
    assert moved.watermark == NINE
    assert moved.inputs[0] == InputWatermark(9, idle=True)
    back = advance(moved.inputs, (EventTime(6), NINE))
    assert back.watermark == NINE
    assert back.inputs[0] == InputWatermark(9)


def test_while_all_are_idle_event_time_stands_still() -> None:
    inputs = advance((SILENT, SILENT), (FIVE, NINE)).inputs
    moved = advance(inputs, (IDLE, IDLE))
    assert moved.watermark == IDLE
    assert moved.event_time == FIVE


def test_what_an_input_takes_back_is_not_heard() -> None:
    inputs = advance((SILENT,), (NINE,)).inputs
    assert advance(inputs, (FIVE,)).watermark == NINE


def test_only_all_ends_together_are_the_end() -> None:
    inputs = advance((SILENT, SILENT), (MAX_EVENT_TIME, FIVE)).inputs
    assert not has_ended(inputs)
    inputs = advance(inputs, (MAX_EVENT_TIME, IDLE)).inputs
    assert not has_ended(inputs)
    assert event_time_of(inputs) == FIVE
    assert has_ended(advance(inputs, (MAX_EVENT_TIME, MAX_EVENT_TIME)).inputs)


def test_a_source_has_no_inputs_and_no_event_time_of_its_own() -> None:
    assert event_time_of(()) is None
    assert not has_ended(())
    assert merge_subtasks([(), ()]) == ()


@pytest.mark.parametrize(
    ("of_subtasks", "expected"),
    [
        ([InputWatermark(5), InputWatermark(9)], InputWatermark(5)),
        ([InputWatermark(5, idle=True), InputWatermark(9)], InputWatermark(9)),
        ([InputWatermark(), InputWatermark(9)], InputWatermark()),
        (
            [InputWatermark(5, idle=True), InputWatermark(9, idle=True)],
            InputWatermark(5, idle=True),
        ),
    ],
)
def test_the_slowest_subtask_counts_and_idle_ones_are_left_out(
    of_subtasks: list[InputWatermark], expected: InputWatermark
) -> None:
    assert merge_subtasks([(known,) for known in of_subtasks]) == (expected,)


def test_what_one_subtask_was_told_is_not_forgotten_because_another_was_idle() -> None:
    """Else event time would go back, and windows that have fired would fire again."""
    first = (InputWatermark(9), InputWatermark(9, idle=True))
    second = (InputWatermark(5, idle=True), InputWatermark(5, idle=True))
    assert event_time_of(merge_subtasks([first, second])) == NINE
