"""Tests that a range of a partition is read whole and ends, whatever its offsets hold."""

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.connectors.kafka.client import KafkaClients
from penstock.connectors.kafka.fetched import Range
from penstock.connectors.kafka.positions import Partition
from penstock.connectors.kafka.reading import PartitionReader
from penstock.errors import ExternalError
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_topics import TestTopic, wait_until


class Reading:
    """A reader of one topic that is asked for one range after the other."""

    def __init__(self, topic: TestTopic, **options: Any) -> None:
        self.topic = topic
        self.reader = PartitionReader(KafkaClients(topic.servers, options))

    def read(self, start: int, end: int, partition: int = 0) -> list[bytes | None]:
        return self.read_all({partition: (start, end)})[partition]

    def read_all(
        self, ranges: dict[int, tuple[int, int]], kept: Sequence[int] = ()
    ) -> dict[int, list[bytes | None]]:
        wanted = {Partition(self.topic.name, n): Range(*each) for n, each in ranges.items()}
        found: dict[int, list[bytes | None]] = {n: [] for n in ranges}
        reached = {n: start for n, (start, _) in ranges.items()}
        for piece in self.reader.read(
            wanted,
            kept=[Partition(self.topic.name, n) for n in kept],
            on_gone=self._refuse,
            on_stall=lambda: None,
        ):
            number = piece.partition.number
            assert piece.next > reached[number]
            reached[number] = piece.next
            if piece.chunks:
                found[number] += piece.values.to_pylist()
        assert reached == {n: end for n, (_, end) in ranges.items()}
        return found

    @staticmethod
    def _refuse(partition: Partition, at: int) -> int:
        raise AssertionError(f"{partition} has no offset {at}")


@pytest.fixture
def topic(brokers: KafkaCluster) -> TestTopic:
    return TestTopic.create(brokers.bootstrap, partitions=2, copies=len(brokers.ports))


def values(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def test_a_range_that_ends_with_the_marker_of_a_transaction_is_done(
    topic: TestTopic,
) -> None:
    topic.transact(values(1, 2, 3))
    wait_until(lambda: topic.end() == 4)
    reading = Reading(topic)
    assert reading.read(0, 4) == values(1, 2, 3)
    topic.transact(values(4))
    wait_until(lambda: topic.end() == 6)
    assert reading.read(4, 6) == values(4)
    reading.reader.close()


def test_a_range_of_aborted_records_and_markers_alone_is_done(topic: TestTopic) -> None:
    topic.transact(values(1, 2), commits=False)
    wait_until(lambda: topic.end() == 3)
    reading = Reading(topic)
    assert reading.read(0, 3) == []
    topic.transact(values(3, 4), commits=False)
    wait_until(lambda: topic.end() == 6)
    assert reading.read(3, 6) == []
    topic.produce(values(5))
    assert reading.read(6, 7) == values(5)
    reading.reader.close()


def test_an_open_transaction_ends_what_can_be_read(topic: TestTopic) -> None:
    topic.produce(values(1))
    producer = topic.open_transaction(values(2, 3))
    topic.produce(values(4))
    assert topic.end() == 1
    reading = Reading(topic)
    assert reading.read(0, 1) == values(1)
    producer.commit_transaction()
    wait_until(lambda: topic.end() == 5)
    assert reading.read(1, 5) == values(2, 3, 4)
    reading.reader.close()


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_ranges_of_any_cut_give_the_same_records(topic: TestTopic, step: int) -> None:
    for first in range(0, 12, 3):
        topic.transact(values(first, first + 1))
        topic.transact(values(100), commits=False)
        topic.produce(values(first + 2))
    wait_until(lambda: topic.end() == 24)
    end = topic.end()
    reading = Reading(topic)
    found = [
        value
        for start in range(0, end, step)
        for value in reading.read(start, min(start + step, end))
    ]
    assert found == values(*range(12))
    # Another reader, and the same one again, read what was read.
    assert Reading(topic).read(3, 9) == reading.read(3, 9)
    reading.reader.close()


def test_compacted_offsets_are_passed_over(kafka: KafkaCluster) -> None:
    topic = TestTopic.create(
        kafka.bootstrap,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="100",
    )
    reading = Reading(topic)

    def is_compacted() -> bool:
        # The newest segment is not compacted, so there must come others.
        topic.produce(values(9), key=lambda _: b"same")
        end = topic.end()
        found = Reading(topic).read(0, end)
        return len(found) < end

    wait_until(is_compacted)
    end = topic.end()
    found = reading.read(0, end)
    assert found[-1] == b"9"
    assert len(found) < end
    reading.reader.close()


def test_records_behind_a_range_are_kept_for_the_next_one(topic: TestTopic) -> None:
    topic.produce(values(*range(2_000)))
    topic.produce(values(*range(2_000)), partition=1)
    reading = Reading(topic)
    for start in range(0, 2_000, 250):
        part = (start, start + 250)
        found = reading.read_all({0: part, 1: part})
        assert found == {0: values(*range(*part)), 1: values(*range(*part))}
    reading.reader.close()


def test_a_partition_far_ahead_of_another_is_paused_and_loses_nothing(
    topic: TestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.connectors.kafka.fetched.MOST_HELD", 100)
    topic.produce(values(*range(5_000)))
    reading = Reading(topic, **{"queued.min.messages": 10})
    assert reading.read(0, 10) == values(*range(10))
    topic.produce(values(*range(5_000)), partition=1)
    assert reading.read_all({1: (0, 5_000)}, kept=[0])[1] == values(*range(5_000))
    found = [
        value
        for start in range(10, 5_000, 998)
        for value in reading.read(start, min(start + 998, 5_000))
    ]
    assert found == values(*range(10, 5_000))
    reading.reader.close()


def test_a_reader_goes_anywhere(topic: TestTopic) -> None:
    topic.produce(values(*range(100)))
    reading = Reading(topic)
    for start, end in [(50, 60), (0, 10), (10, 20), (15, 25), (90, 100), (0, 100)]:
        assert reading.read(start, end) == values(*range(start, end))
    reading.reader.close()


def test_a_position_that_no_broker_has_is_given_up(
    topic: TestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.connectors.kafka.reading._PATIENCE_SECONDS", 1.0)
    topic.produce(values(1, 2, 3))
    asked: list[int] = []

    def go_on(_: Partition, at: int) -> int:
        asked.append(at)
        return at

    reader = PartitionReader(KafkaClients(topic.servers))
    wanted = {Partition(topic.name, 0): Range(10, 12)}
    with pytest.raises(ExternalError, match="no broker gave offset 10"):
        list(reader.read(wanted, on_gone=go_on, on_stall=lambda: None))
    assert set(asked) == {10}
