"""What a live side promises about the point at which it begins: Kafka, and what stands for it."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest

import penstock as pen
from penstock.connectors.history.handover import Handover
from penstock.connectors.history.source import LiveSource
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, UserError
from penstock.operators.operator import SourceOperator
from penstock.operators.splits import SourceBudget
from penstock.testing.given import shared_registry
from tests.builders.graphs import schema_of
from tests.builders.kafka_topics import TestTopic
from tests.builders.live_stream import TOPIC, LiveStream

NUMBERS = StreamSchema(schema_of(n=pa.int64()))
BUDGET = SourceBudget()


class LivePlace(Protocol):
    """A live stream of two partitions with ten records each."""

    topic: str

    def source(self) -> SourceOperator: ...

    def remove_before(self, partition: int, offset: int) -> None: ...


class InFiles:
    topic = TOPIC

    def __init__(self, folder: Path) -> None:
        self._stream = LiveStream(folder, NUMBERS)
        for partition in range(2):
            self._stream.write(partition, [{"n": n} for n in range(10)])
        self.remove_before = self._stream.remove_before

    def source(self) -> SourceOperator:
        return self._stream


class InKafka:
    def __init__(self, servers: str) -> None:
        self.made = TestTopic.create(servers, partitions=2)
        self.topic = self.made.name
        for partition in range(2):
            self.made.produce([b'{"n": 1}'] * 10, partition=partition)

    def source(self) -> SourceOperator:
        spec = pen.kafka(
            self.topic, servers=self.made.servers, schema=NUMBERS, start="after-history"
        ).live_spec()
        made = shared_registry().construct(spec).operator
        assert isinstance(made, SourceOperator)
        return made

    def remove_before(self, partition: int, offset: int) -> None:
        self.made.remove_before(offset, partition)


@pytest.fixture(params=["files", pytest.param("kafka", marks=pytest.mark.kafka)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LivePlace]:
    if request.param == "files":
        yield InFiles(tmp_path)
        return
    made = InKafka(request.getfixturevalue("kafka").bootstrap)
    yield made
    made.made.delete()


def begun(place: LivePlace, handover: Handover) -> SourceOperator:
    source = place.source()
    assert isinstance(source, LiveSource)
    source.begin_at(handover)
    return source


def starts_of(place: LivePlace, handover: Handover) -> dict[str, Any]:
    """Return the first offset of each partition; of Kafka's the topic's id comes first."""
    source = begun(place, handover)
    source.check_splits({})
    plan = source.plan_splits({}, BUDGET, 0)
    source.release()
    return {
        split.name: next(part for part in split.start if isinstance(part, int))
        for split in plan.splits
    }


def test_live_begins_at_its_offsets_and_elsewhere_at_0(place: LivePlace) -> None:
    first, second = f"{place.topic}/0", f"{place.topic}/1"
    found = starts_of(place, Handover("offsets", offsets={first: 4}))
    assert found == {first: 4, second: 0}
    found = starts_of(place, Handover("columns", offsets={first: 10, second: 3}))
    assert found == {first: 10, second: 3}


def test_a_point_that_was_removed_fails_the_start(place: LivePlace) -> None:
    place.remove_before(0, 5)
    first = f"{place.topic}/0"
    for offset in (None, 0, 4):
        offsets = {} if offset is None else {first: offset}
        source = begun(place, Handover("offsets", offsets=offsets))
        with pytest.raises(UserError, match="does not hold the hand-over point") as failure:
            source.check_splits({})
        assert failure.value.code == ErrorCode.INPUT_LOST
        assert f"{first} begins at 5" in str(failure.value)
        with pytest.raises(UserError, match="does not hold the hand-over point"):
            source.plan_splits({}, BUDGET, 0)
        source.release()
    assert starts_of(place, Handover("offsets", offsets={first: 5}))[first] == 5


@pytest.mark.parametrize(("partition", "offset"), [(7, 1), (0, 11)])
def test_a_point_of_another_topic_is_refused(
    place: LivePlace, partition: int, offset: int
) -> None:
    source = begun(
        place, Handover("offsets", offsets={f"{place.topic}/{partition}": offset})
    )
    with pytest.raises(UserError, match="the topic was made again") as failure:
        source.check_splits({})
    assert failure.value.code == ErrorCode.INPUT_CHANGED
    source.release()


def test_without_a_clock_an_instant_begins_at_the_first_record(place: LivePlace) -> None:
    handover = Handover("time", 0, "at", skew_micros=None)
    assert set(starts_of(place, handover).values()) == {0}
    place.remove_before(1, 2)
    source = begun(place, handover)
    with pytest.raises(UserError, match="does not hold the hand-over point"):
        source.check_splits({})
    source.release()


@pytest.mark.kafka
def test_kafka_goes_on_without_what_is_lost_if_told_so(
    kafka: Any, caplog: pytest.LogCaptureFixture
) -> None:
    place = InKafka(kafka.bootstrap)
    place.remove_before(0, 5)
    spec = pen.kafka(
        place.topic,
        servers=kafka.bootstrap,
        schema=NUMBERS,
        start="after-history",
        on_lost="continue",
    ).live_spec()
    source: Any = shared_registry().construct(spec).operator
    source.begin_at(Handover("offsets", offsets={f"{place.topic}/0": 2}))
    with caplog.at_level(logging.WARNING):
        first, second = source.plan_splits({}, BUDGET, 0).splits
    assert (first.start[1], second.start[1]) == (5, 0)
    assert "does not hold the hand-over point" in caplog.text
    source.release()
    # That the topic is another one is not a loss.
    source = shared_registry().construct(spec).operator
    source.begin_at(Handover("offsets", offsets={f"{place.topic}/9": 2}))
    with pytest.raises(UserError, match="the topic was made again"):
        source.check_splits({})
    source.release()
    place.made.delete()


@pytest.mark.kafka
def test_kafka_begins_with_the_first_record_of_the_time(kafka: Any) -> None:
    topic = TestTopic.create(kafka.bootstrap, partitions=2)
    for second in range(1, 10):
        topic.produce([b'{"n": 1}'], timestamp=second * 1_000)
    spec = pen.kafka(
        topic.name,
        servers=topic.servers,
        schema=NUMBERS,
        metadata={"timestamp": "at"},
        start="after-history",
    ).live_spec()

    def start_at(handover: Handover) -> list[int]:
        source: Any = shared_registry().construct(spec).operator
        source.begin_at(handover)
        splits = source.plan_splits({}, BUDGET, 0).splits
        source.release()
        return [split.start[1] for split in splits]

    # By the record's own timestamp no clocks differ; a partition without records begins there.
    assert start_at(Handover("time", 5_000_000, "at")) == [4, 0]
    assert start_at(Handover("time", 4_000_001, "at")) == [3, 0]
    by_value = Handover("time", 5_000_000, "other", skew_micros=2_000_000)
    assert start_at(by_value) == [2, 0]
    topic.remove_before(4)
    with pytest.raises(UserError, match="does not hold the hand-over point"):
        # The first that is left is of that time, and so may be some that are gone.
        start_at(Handover("time", 5_000_000, "at"))
    assert start_at(Handover("time", 6_000_000, "at")) == [5, 0]
    # Where nothing is known of clocks, all is read, and the instant must still be held.
    assert start_at(Handover("time", 6_000_000, "other", skew_micros=None)) == [4, 0]
    with pytest.raises(UserError, match="does not hold the hand-over point"):
        start_at(Handover("time", 5_000_000, "other", skew_micros=None))
    topic.delete()
