"""Tests what the Kafka sink writes: keys, places, headers, upserts; and what it refuses to write."""

import json
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

import penstock as pen
from penstock.connectors.kafka import staging
from penstock.connectors.kafka.client import KafkaClients
from penstock.connectors.kafka.markers import (
    encode_marker,
    marker_place,
    marker_topic_of,
    transactional_id,
)
from penstock.connectors.kafka.output_records import RecordColumns
from penstock.connectors.kafka.output_topics import OutputTopics
from penstock.connectors.kafka.sink import Delivery, KafkaSink, KafkaSinkConfig, NewTopic
from penstock.core.clock import SystemClock
from penstock.core.ids import JobId, OperatorId, Subtask, TaskInfo
from penstock.errors import StateError, UserError
from penstock.operators.context import StartContext
from penstock.testing import CUT, ScriptedSource
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_output import Record, an_output, read_output
from tests.builders.kafka_topics import TestTopic, wait_until
from tests.builders.servers import SecureKafka, a_topic

_admin: Any = kafka_admin
"""Its types are public, but are not marked so."""
ROWS = [{"user": f"user-{n % 7}", "n": n} for n in range(100)]


def write(
    config: KafkaSinkConfig, rows: Sequence[dict[str, Any]] | pa.Table, parallelism: int = 2
) -> None:
    p = pen.Pipeline(a_topic("job"))
    source = pen.list_source(rows, splits=2, batch_rows=10)
    # With another parallelism than the sink's, its rows would be dealt out, in no order.
    stream = p.read("rows", source, parallelism=parallelism)
    stream.write("out", config.to_operator_spec(), parallelism=parallelism)
    p.run_in_process("memory:")


def numbers(records: Sequence[Record]) -> list[int]:
    return [json.loads(record.value or b"")["n"] for record in records]


def check_keys(records: Sequence[Record], rows: Sequence[dict[str, Any]]) -> None:
    """Check that a key has one partition, and there the order of each split, which is defined."""
    for user in {row["user"] for row in rows}:
        mine = [record for record in records if record.key == str(user).encode()]
        assert len({record.partition for record in mine}) == 1
        for split in (0, 1):  # rows are dealt to them in turn
            sent = [row["n"] for row in rows[split::2] if row["user"] == user]
            assert [n for n in numbers(mine) if n % 2 == split] == sent


def test_every_row_is_there_once_and_keys_keep_their_order(kafka: KafkaCluster) -> None:
    topic = an_output(kafka.bootstrap)
    write(
        KafkaSinkConfig(kafka.bootstrap, topic, columns=RecordColumns(key=("user",))), ROWS
    )
    records = read_output(kafka.bootstrap, topic)
    assert sorted(numbers(records)) == list(range(100))
    check_keys(records, ROWS)


def java_partition(key: bytes, partitions: int) -> int:
    """Murmur2 as Java's producers have it: `Utils.toPositive(Utils.murmur2(key)) % partitions`."""
    m, mask, h = 0x5BD1E995, 0xFFFFFFFF, (0x9747B28C ^ len(key)) & 0xFFFFFFFF
    whole = len(key) // 4 * 4
    for place in range(0, whole, 4):
        k = int.from_bytes(key[place : place + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = key[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return ((h ^ h >> 15) & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize("partitioner", ["consistent_random", "murmur2"])
def test_a_partitioner_gives_each_key_one_place(
    kafka: KafkaCluster, partitioner: str
) -> None:
    topic = an_output(kafka.bootstrap, partitions=5)
    columns = RecordColumns(key=("user",))
    config = KafkaSinkConfig(
        kafka.bootstrap, topic, columns=columns, partitioner=partitioner
    )
    write(config, ROWS)
    records = read_output(kafka.bootstrap, topic)
    places = {(each.key, each.partition) for each in records}
    assert len(places) == len({key for key, _ in places}) == 7
    by_murmur = {(key, java_partition(key or b"", 5)) for key, _ in places}
    assert (places == by_murmur) == (partitioner == "murmur2")


def test_rows_without_keys_are_spread_by_a_random_partitioner(kafka: KafkaCluster) -> None:
    topic = an_output(kafka.bootstrap, partitions=5)
    write(KafkaSinkConfig(kafka.bootstrap, topic, partitioner="random"), ROWS)
    assert len({each.partition for each in read_output(kafka.bootstrap, topic)}) > 1


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


def test_keys_land_where_producers_of_java_put_them(kafka: KafkaCluster) -> None:
    topic = an_output(kafka.bootstrap, partitions=5)
    write(KafkaSinkConfig(kafka.bootstrap, topic, columns=RecordColumns(key=("n",))), ROWS)
    for record in read_output(kafka.bootstrap, topic):
        assert record.partition == java_partition(record.key or b"", 5)


def test_headers_timestamps_and_partitions_come_from_columns(kafka: KafkaCluster) -> None:
    topic = an_output(kafka.bootstrap, retention_ms="-1")
    at = datetime(2026, 1, 2, tzinfo=UTC)
    rows = pa.table(
        {
            "n": pa.array([1, 2]),
            "at": pa.array([at, at]),
            "to": pa.array([2, 0]),
            "h": pa.array(
                [[("trace", b"7"), ("trace", None)], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    columns = RecordColumns(headers="h", timestamp="at", partition="to")
    write(KafkaSinkConfig(kafka.bootstrap, topic, columns=columns), rows)
    second, first = read_output(kafka.bootstrap, topic)
    assert (second.partition, first.partition) == (0, 2)
    assert first.headers == [("trace", b"7"), ("trace", None)]
    assert second.headers is None
    assert first.timestamp_ms == second.timestamp_ms == int(at.timestamp() * 1000)
    assert json.loads(first.value or b"").keys() == {"n", "at"}


def test_table_is_written_as_upserts_and_tombstones(kafka: KafkaCluster) -> None:
    topic = an_output(kafka.bootstrap, cleanup_policy="compact")
    rows = [
        {"user": "ada", "n": 1, "gone": False},
        {"user": "bob", "n": 2, "gone": False},
        {"user": "ada", "n": 3, "gone": False},
    ]
    rows.append({"user": "bob", "n": 0, "gone": True})
    p = pen.Pipeline(a_topic("job"))
    script = [step for row in rows for step in ([row], CUT)]  # an epoch for each row
    stream = p.read("rows", ScriptedSource({"0": script}))
    table = stream.from_upserts("users", key="user", deleted="gone")
    table.write("out", pen.kafka(topic, servers=kafka.bootstrap))
    p.run_in_process("memory:")
    found: dict[bytes | None, list[bytes | None]] = {}
    for record in read_output(kafka.bootstrap, topic):
        found.setdefault(record.key, []).append(record.value)
    assert found == {
        b'{"user":"ada"}': [b'{"user":"ada","n":1}', b'{"user":"ada","n":3}'],
        b'{"user":"bob"}': [b'{"user":"bob","n":2}', None],
    }


def test_topic_is_copied_record_by_record(kafka: KafkaCluster) -> None:
    topic, other = an_output(kafka.bootstrap), an_output(kafka.bootstrap)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    now_ms = SystemClock().now_micros() // 1_000  # a topic removes old records
    for n in range(20):
        producer.produce(
            topic,
            b"\x00%d" % n if n % 3 else None,
            b"key-%d" % n if n % 4 else None,
            partition=n % 3,
            timestamp=now_ms - n,
            headers=[("a", b"%d" % n), ("b", None)] if n % 2 else None,
        )
    producer.flush(30)
    p = pen.Pipeline(a_topic("job"))
    source = pen.kafka(
        topic,
        servers=kafka.bootstrap,
        format="bytes",
        metadata=["key", "headers", "timestamp", "partition"],
        end="latest",
    )
    sink = pen.kafka(
        other,
        servers=kafka.bootstrap,
        format="bytes",
        value="value",
        key="kafka_key",
        headers="kafka_headers",
        timestamp="kafka_timestamp",
        partition="kafka_partition",
    )
    p.read("in", source).write("out", sink)
    p.run_in_process("memory:")

    def seen(name: str) -> list[tuple[Any, ...]]:
        return [
            (each.partition, each.key, each.value, each.headers, each.timestamp_ms)
            for each in read_output(kafka.bootstrap, name)
        ]

    assert len(seen(other)) == 20
    assert seen(other) == seen(topic)


@pytest.mark.parametrize("form", ["upsert", "debezium"])
def test_other_forms_of_changes_are_written_and_read_back(
    kafka: KafkaCluster, form: str
) -> None:
    topic, out = an_output(kafka.bootstrap), pen.list_sink(a_topic("list"))
    p = pen.Pipeline(a_topic("job"))
    spent = p.read("rows", pen.list_source(ROWS)).key_by("user")
    totals = spent.aggregate("totals", total=pen.sum("n"))
    if form == "upsert":
        sink = pen.kafka(topic, servers=kafka.bootstrap, format=form, key="user")
        totals.to_upserts().write("out", sink)
    else:
        totals.to_debezium().write("out", pen.kafka(topic, servers=kafka.bootstrap))
    p.run_in_process("memory:")
    assert {record.key is None for record in read_output(kafka.bootstrap, topic)} == {
        form == "debezium"
    }
    back = pen.Pipeline(a_topic("job"))
    source = pen.kafka(
        topic,
        servers=kafka.bootstrap,
        format=form,
        schema={"user": str, "total": int},
        format_options={"key": "user"} if form == "upsert" else None,
        end="latest",
    )
    read = back.read("in", source)
    if form == "upsert":
        table = read.from_upserts("table", key="user", deleted="deleted")
    else:
        table = read.from_debezium("table", key="user")
    table.write("out", out)
    back.run_in_process("memory:")
    found = {row["user"]: row["total"] for row in out.rows()}
    assert found == {
        f"user-{k}": sum(n for n in range(100) if n % 7 == k) for k in range(7)
    }


def test_large_epoch_goes_by_shards_and_objects(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaSink, "small_bytes", 100)
    monkeypatch.setattr(staging, "OBJECT_BYTES", 3_000)
    topic, markers = an_output(kafka.bootstrap), a_topic("markers")
    config = KafkaSinkConfig(
        kafka.bootstrap,
        topic,
        columns=RecordColumns(key=("user",)),
        shards=3,
        marker_topic=markers,
    )
    rows = [{"user": f"user-{n % 7}", "n": n} for n in range(1_000)]
    write(config, rows)
    records = read_output(kafka.bootstrap, topic)
    assert sorted(numbers(records)) == list(range(1_000))
    check_keys(records, rows)
    marked = read_output(kafka.bootstrap, markers)
    assert {record.partition for record in marked} <= {1, 2, 3}


def test_at_least_once_sends_at_once_and_says_so(
    kafka: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = an_output(kafka.bootstrap)
    with caplog.at_level(logging.WARNING):
        # The sink bounds what waits itself: a queue of the user would overflow.
        options = {"queue.buffering.max.messages": 10}
        config = KafkaSinkConfig(
            kafka.bootstrap, topic, delivery="at_least_once", options=options
        )
        write(config, ROWS)
    assert sorted(numbers(read_output(kafka.bootstrap, topic))) == list(range(100))
    assert "delivers at least once" in caplog.text


def test_job_goes_on_with_another_delivery(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic, name = an_output(kafka.bootstrap), a_topic("job")
    (tmp_path / "in").mkdir()
    deliveries: list[Delivery] = ["exactly_once", "at_least_once", "exactly_once"]
    for number, delivery in enumerate(deliveries):
        (tmp_path / "in" / f"{number}.jsonl").write_text(f'{{"n": {number}}}\n')
        p = pen.Pipeline(name)
        rows = p.read("rows", pen.files(tmp_path / "in/*.jsonl", discover=True))
        rows.write("out", pen.kafka(topic, servers=kafka.bootstrap, delivery=delivery))
        with p.start_in_process(tmp_path / "checkpoints"):
            deadline = time.monotonic() + 60
            while len(read_output(kafka.bootstrap, topic)) <= number:
                assert time.monotonic() < deadline
    assert sorted(numbers(read_output(kafka.bootstrap, topic))) == [0, 1, 2]


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
