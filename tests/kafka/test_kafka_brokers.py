"""Tests a source on three brokers: one that dies, a leader that moves, and all of them gone."""

import json
from typing import Any

import pytest

import penstock as pen
from penstock.errors import ExternalError
from penstock.testing import SourceHarness
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_topics import TestTopic, done, wait_until
from tests.builders.profile import by_profile

pytestmark = pytest.mark.slow
COUNT = 600
TRIES = 20


@pytest.fixture
def topic(kafka_cluster: KafkaCluster) -> TestTopic:
    topic = TestTopic.create(kafka_cluster.bootstrap, partitions=3, copies=3)
    fill(topic, 0)
    return topic


def fill(topic: TestTopic, first: int) -> None:
    rows = [json.dumps({"n": n}).encode() for n in range(first, first + COUNT)]
    for partition in range(3):
        topic.produce(rows[partition::3], partition)


def source(topic: TestTopic, **options: Any) -> Any:
    return pen.kafka(topic.name, servers=topic.servers, schema={"n": int}, **options)


def leader_of(topic: TestTopic, partition: int) -> int:
    from confluent_kafka import TopicCollection

    (found,) = done(topic.admin.describe_topics(TopicCollection([topic.name])))
    return int(found.partitions[partition].leader.id)


def move_leader(cluster: KafkaCluster, topic: TestTopic, partition: int) -> None:
    new = leader_of(topic, partition) % 3 + 1
    cluster.move_leader(topic.name, partition, to=new)
    wait_until(lambda: leader_of(topic, partition) == new)


def read(harness: SourceHarness, rows: int) -> None:
    """Read an epoch as a driver does: one that the brokers failed is tried again."""
    for _ in range(TRIES):
        try:
            harness.read(rows=rows)
        except ExternalError:
            continue
        return
    raise AssertionError("no epoch succeeds")


def numbers(harness: SourceHarness) -> list[int]:
    return sorted(row["n"] for row in harness.rows())


def test_a_broker_that_dies_costs_no_row_and_none_is_read_twice(
    kafka_cluster: KafkaCluster, topic: TestTopic
) -> None:
    with SourceHarness(source(topic).source_spec(), parallelism=2) as harness:
        read(harness, 50)
        kafka_cluster.kill_broker(leader_of(topic, 0))
        for _ in range(4):
            read(harness, 50)
        fill(topic, COUNT)
        for _ in range(20):
            read(harness, 50)
            if len(harness.rows()) == 2 * COUNT:
                break
        assert numbers(harness) == list(range(2 * COUNT))


def test_a_leader_that_moves_costs_no_row_and_none_is_read_twice(
    kafka_cluster: KafkaCluster, topic: TestTopic
) -> None:
    with SourceHarness(source(topic).source_spec(), parallelism=2) as harness:
        read(harness, 50)
        for partition in range(2):
            move_leader(kafka_cluster, topic, partition)
            read(harness, 50)
        for _ in range(20):
            read(harness, 50)
            if len(harness.rows()) == COUNT:
                break
        assert numbers(harness) == list(range(COUNT))


def test_a_leader_that_moves_while_a_transaction_is_open_hides_and_shows_the_same(
    kafka_cluster: KafkaCluster, topic: TestTopic
) -> None:
    opened = topic.open_transaction([b'{"n": 1000}'])
    topic.produce([b'{"n": 1001}'])
    with SourceHarness(source(topic).source_spec()) as harness:
        for _ in range(4):
            read(harness, 200)
        assert numbers(harness) == list(range(COUNT))
        move_leader(kafka_cluster, topic, 0)
        read(harness, 200)
        # Behind an open transaction nothing is read, whoever leads.
        assert numbers(harness) == list(range(COUNT))
        opened.commit_transaction(60)
        wait_until(lambda: _is_read(harness, COUNT + 2))
        assert numbers(harness) == [*range(COUNT), 1000, 1001]


def test_a_partition_that_no_broker_leads_waits_while_the_others_are_read(
    kafka_cluster: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = TestTopic.create(kafka_cluster.bootstrap, partitions=3, copies=1)
    fill(topic, 0)
    with SourceHarness(source(topic).source_spec(), parallelism=2) as harness:
        wait_until(lambda: _is_read(harness, COUNT))
        # It has the only copy.
        kafka_cluster.kill_broker(leader_of(topic, 0))
        for number in range(3):
            rows = [b'{"n": %d}' % n for n in (1000 + number, 2000 + number)]
            topic.produce(rows[:1], 1)
            topic.produce(rows[1:], 2)
            read(harness, 200)
            waiting = [name for part in harness.assignments for name in part.waiting]
            assert waiting == [f"{topic.name}/0"]
            assert len(harness.rows()) == COUNT + 2 * (number + 1)
        assert any("event time waits" in each for each in caplog.messages)
        kafka_cluster.start_all()
        topic.produce([b'{"n": 3000}'], 0)
        wait_until(lambda: _is_read(harness, COUNT + 7))
        late = [1000, 1001, 1002, 2000, 2001, 2002, 3000]
        assert numbers(harness) == [*range(COUNT), *late]


def _is_read(harness: SourceHarness, rows: int) -> bool:
    read(harness, 200)
    return len(harness.rows()) == rows


def test_a_job_waits_for_brokers_that_are_down(
    kafka_cluster: KafkaCluster, topic: TestTopic
) -> None:
    if not by_profile(False, False, True):
        pytest.skip("takes half a minute: part of `make soak`")
    pipeline, out = pen.Pipeline("waits"), pen.list_sink(f"waits-{topic.name}")
    pipeline.read("in", source(topic, end="latest")).write("out", out)
    events: list[str] = []

    def on_status(status: pen.JobStatus) -> None:
        if not events and status.phase == "running":
            events.append("down")
            for number in (1, 2):
                kafka_cluster.kill_broker(number)
        elif events == ["down"] and status.restarts:
            events.append("up")
            kafka_cluster.start_all()

    status = pipeline.run_in_process(
        "memory:", on_status=on_status, restarts=pen.restarts(30, longest_delay="1s")
    )
    assert events == ["down", "up"]
    assert status.phase == "finished"
    assert sorted(row["n"] for row in out.rows()) == list(range(COUNT))
