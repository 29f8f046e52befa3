from typing import Any

import pytest

from penstock.core.schema import StreamSchema
from penstock.core.watermark import IDLE, EventTime
from tests.unit.operators.udfs.by_hand import OperatorByHand
from tests.unit.operators.udfs.service import KEYED, Service, rows


@pytest.fixture
def service() -> Service:
    return Service()


def _by_hand(
    service: Service, stream: StreamSchema = KEYED, *, parallelism: int = 1, **options: Any
) -> OperatorByHand:
    return OperatorByHand(lambda: service.build(**options), stream, parallelism=parallelism)


def test_the_watermark_passes_when_all_is_answered(service: Service) -> None:
    (output,) = _by_hand(service).run_epoch({0: [rows(5)]}, EventTime(100))
    assert output.watermark == EventTime(100)


def test_the_watermark_does_not_pass_an_unanswered_row(service: Service) -> None:
    service.silent = {40, 50}
    by_hand = _by_hand(service, ordered=False)
    (first,) = by_hand.run_epoch({0: [rows(50, 40, 60)]}, EventTime(100))
    assert first.watermark == EventTime(40)
    service.silent = {50}
    (second,) = by_hand.run_epoch({}, EventTime(200))
    assert second.watermark == EventTime(50)
    service.silent = set()
    (third,) = by_hand.run_epoch({}, EventTime(200))
    assert third.watermark == EventTime(200)


def test_an_answered_row_that_waits_its_turn_holds_the_watermark_too(
    service: Service,
) -> None:
    service.silent = {40}
    (output,) = _by_hand(service).run_epoch({0: [rows(40, 30)]}, EventTime(100))
    assert output.main == []
    assert output.watermark == EventTime(30)


def test_a_late_row_does_not_take_the_watermark_back(service: Service) -> None:
    by_hand = _by_hand(service)
    by_hand.run_epoch({}, EventTime(100))
    service.silent = {99}
    (first,) = by_hand.run_epoch({0: [rows(99)]}, EventTime(150))
    assert (first.main, first.watermark) == ([], EventTime(150))
    assert by_hand.run_epoch({}, EventTime(160))[0].watermark == EventTime(160)


def test_the_watermark_never_goes_back_while_rows_wait(service: Service) -> None:
    by_hand = _by_hand(service, ordered=False)
    service.silent = {120}
    said = []
    for numbers, watermark in [((120,), 100), ((110, 90), 130), ((125,), 140), ((), 150)]:
        batch = {0: [rows(*numbers)]} if numbers else {}
        (output,) = by_hand.run_epoch(batch, EventTime(watermark))
        assert isinstance(output.watermark, EventTime)
        said.append(output.watermark.micros)
    assert said == [100, 120, 120, 120]


def test_an_idle_input_is_not_idle_for_others_while_rows_wait(service: Service) -> None:
    service.silent = {150}
    by_hand = _by_hand(service)
    by_hand.run_epoch({0: [rows(150)]}, EventTime(100))
    assert by_hand.run_epoch({}, IDLE)[0].watermark == EventTime(100)
    service.silent = set()
    assert by_hand.run_epoch({}, IDLE)[0].watermark == IDLE


def test_before_event_time_is_known_nothing_is_said_while_rows_wait(
    service: Service,
) -> None:
    service.silent = {5}
    (output,) = _by_hand(service).run_epoch({0: [rows(5)]}, IDLE)
    assert output.watermark is None


def test_a_stream_without_event_time_holds_nothing_back(service: Service) -> None:
    service.silent = {5}
    timeless = StreamSchema(KEYED.arrow)
    (output,) = _by_hand(service, timeless).run_epoch({0: [rows(5)]}, EventTime(9))
    assert output.watermark == EventTime(9)
