"""Tests what the Kafka sink refuses, and when: before a start, or before records are staged."""

import time
from typing import Any

import pytest
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

import penstock as pen
from penstock.connectors.kafka.client import KafkaClients
from penstock.connectors.kafka.markers import (
    encode_marker,
    marker_place,
    marker_topic_of,
    transactional_id,
)
from penstock.connectors.kafka.output_records import RecordColumns
from penstock.connectors.kafka.output_topics import OutputTopics
from penstock.connectors.kafka.sink import KafkaSink, KafkaSinkConfig, NewTopic
from penstock.core.ids import JobId, OperatorId, Subtask, TaskInfo
from penstock.errors import StateError, UserError
from penstock.operators.context import StartContext
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_output import an_output, read_output
from tests.builders.kafka_topics import TestTopic, wait_until
from tests.builders.servers import SecureKafka, a_topic
from tests.kafka.test_kafka_sink import ROWS, write

_admin: Any = kafka_admin
"""Its types are public, but are not marked so."""


def test_asking_about_a_topic_does_not_make_it(kafka: KafkaCluster) -> None:
    # Brokers make topics that clients ask about, unless these tell them not to.
    topic = TestTopic(kafka.bootstrap, a_topic("typo"))
    with pytest.raises(UserError, match="there is no topic"):
        write(KafkaSinkConfig(kafka.bootstrap, topic.name), ROWS)
    p = pen.Pipeline("reads")
    source = pen.kafka(topic.name, servers=kafka.bootstrap, schema={"n": int})
    p.read("rows", source).write("out", pen.blackhole())
    with pytest.raises(UserError, match="there is no topic"):
        p.run_in_process("memory:")
    assert topic.name not in topic.admin.list_topics(timeout=30).topics


def test_a_topic_that_was_deleted_is_not_made_again_by_records(kafka: KafkaCluster) -> None:
    topic = TestTopic.create(kafka.bootstrap)
    producer = KafkaClients(kafka.bootstrap).producer()
    producer.produce(topic.name, b"one")
    assert producer.flush(30) == 0
    topic.delete()
    wait_until(lambda: topic.name not in topic.admin.list_topics(timeout=30).topics)
    fresh = KafkaClients(kafka.bootstrap).producer(message_timeout_ms=2_000)
    fresh.produce(topic.name, b"two")
    fresh.flush(10)
    assert topic.name not in topic.admin.list_topics(timeout=30).topics


def test_checkpoints_that_are_older_than_the_markers_are_refused(
    kafka: KafkaCluster,
) -> None:
    servers, topic = kafka.bootstrap, an_output(kafka.bootstrap)
    task = TaskInfo(JobId(a_topic("job")), OperatorId("out"), Subtask(0, 2))
    markers = marker_topic_of(task)
    clients = KafkaClients(servers)
    OutputTopics(clients).ensure_markers(markers, 3, like=topic)
    for shard, epoch in ((0, 5), (2, 7)):
        name = transactional_id(task, "this", shard)
        producer = clients.producer(transactional_id=name)
        producer.init_transactions(30)
        producer.begin_transaction()
        place = marker_place(markers, task, "this", shard)
        producer.produce(
            markers, encode_marker(epoch, topic), place.key, partition=place.partition
        )
        producer.commit_transaction(30)
    # One that died has left a transaction open: nobody waits for its end.
    dead = clients.producer(transactional_id=a_topic("dead"))
    dead.init_transactions(30)
    dead.begin_transaction()
    dead.produce(markers, b"{}", b"other", partition=2)
    dead.flush(30)

    def check(last_epoch: int, identity: str = "this") -> None:
        sink = KafkaSink(KafkaSinkConfig(servers, topic))
        sink.check_output(StartContext(task, identity, lambda: last_epoch))

    began = time.monotonic()
    check(7)
    check(0, "another")
    assert time.monotonic() - began < 15
    with pytest.raises(StateError, match=r"committed epoch 7.* know none after 6"):
        check(6)


def test_absent_topic_is_refused_or_created(kafka: KafkaCluster) -> None:
    topic = a_topic("out")
    with pytest.raises(UserError, match="create_topic"):
        write(KafkaSinkConfig(kafka.bootstrap, topic), ROWS)
    write(KafkaSinkConfig(kafka.bootstrap, topic, create_topic=NewTopic(2)), ROWS)
    assert len(read_output(kafka.bootstrap, topic)) == 100


@pytest.mark.kafka
def test_host_that_has_no_address_is_named() -> None:
    topics = OutputTopics(KafkaClients("no-host.invalid:9092"))
    with pytest.raises(UserError, match=r"no server has this name.*no-host\.invalid:9092"):
        topics.partitions_of("out")


def test_marker_topic_that_forgets_is_refused(kafka: KafkaCluster) -> None:
    topic, markers = an_output(kafka.bootstrap), an_output(kafka.bootstrap)
    with pytest.raises(UserError, match=r"cleanup\.policy=delete"):
        write(KafkaSinkConfig(kafka.bootstrap, topic, marker_topic=markers), ROWS)


def test_record_that_is_too_large_is_refused_before_it_is_staged(
    kafka: KafkaCluster,
) -> None:
    topic = an_output(kafka.bootstrap, max_message_bytes="2000")
    columns = RecordColumns(key=("user",))
    config = KafkaSinkConfig(kafka.bootstrap, topic, columns=columns)
    with pytest.raises(UserError, match=r"b'ada'.*max\.message\.bytes"):
        write(config, [{"user": "ada", "text": "x" * 3000}])
    # Records that are taken one by one are taken together, too.
    write(config, [{"user": "ada", "text": "x" * 1000}] * 50)
    assert len(read_output(kafka.bootstrap, topic)) == 50


def test_partition_that_is_not_there_is_refused_before_it_is_staged(
    kafka: KafkaCluster,
) -> None:
    topic = an_output(kafka.bootstrap)
    config = KafkaSinkConfig(kafka.bootstrap, topic, columns=RecordColumns(partition="to"))
    with pytest.raises(UserError, match="partitions 0 to 2"):
        write(config, [{"to": 3, "n": 1}])


def allow_guest(secure: SecureKafka, topic: str, markers: str) -> None:
    """Give the guest what the documentation says that a sink needs."""
    write, read, describe, settings = (
        _admin.AclOperation[name]
        for name in ("WRITE", "READ", "DESCRIBE", "DESCRIBE_CONFIGS")
    )
    rules = {
        (_admin.ResourceType.TOPIC, topic, _admin.ResourcePatternType.LITERAL): (
            write,
            describe,
            settings,
        ),
        (_admin.ResourceType.TOPIC, markers, _admin.ResourcePatternType.LITERAL): (
            *(_admin.AclOperation.CREATE, write, read, describe, settings),
        ),
        (
            _admin.ResourceType.TRANSACTIONAL_ID,
            "penstock.",
            _admin.ResourcePatternType.PREFIXED,
        ): (*(write, describe),),
    }
    bindings = [
        _admin.AclBinding(
            kind, name, how, "User:guest", "*", operation, _admin.AclPermissionType.ALLOW
        )
        for (kind, name, how), operations in rules.items()
        for operation in operations
    ]
    admin = AdminClient({"bootstrap.servers": secure.cluster.bootstrap})
    for future in admin.create_acls(bindings).values():
        future.result(30)


def test_permissions_that_the_documentation_names_are_enough(
    secure_kafka: SecureKafka,
) -> None:
    topic, markers = an_output(secure_kafka.cluster.bootstrap), a_topic("markers")
    options = secure_kafka.options("guest")
    servers = options.pop("bootstrap.servers")
    allow_guest(secure_kafka, topic, markers)
    config = KafkaSinkConfig(servers, topic, marker_topic=markers, options=options)
    write(config, ROWS)
    assert len(read_output(secure_kafka.cluster.bootstrap, topic)) == 100
    with pytest.raises(
        UserError, match=r"marker topic 'penstock\.markers.*cannot be made or used"
    ):
        write(KafkaSinkConfig(servers, topic, options=options), ROWS)


def test_missing_permissions_are_named(secure_kafka: SecureKafka) -> None:
    topic = an_output(secure_kafka.cluster.bootstrap)
    options = secure_kafka.options("guest")
    servers = options.pop("bootstrap.servers")
    with pytest.raises(UserError, match="no permission for the topic"):
        write(KafkaSinkConfig(servers, topic, options=options), ROWS)
