"""Tests what the Kafka sink writes: keys, places, headers, upserts, by either delivery."""

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
from typing_extensions import override

import penstock as pen
from penstock.connectors.kafka import staging
from penstock.connectors.kafka.output_records import RecordColumns
from penstock.connectors.kafka.sink import Delivery, KafkaSink, KafkaSinkConfig
from penstock.core.clock import SystemClock
from penstock.core.schema import StreamSchema
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import SourceFinishType, SourceOperator
from penstock.testing import CUT, ScriptedSource
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_output import Record, an_output, read_output
from tests.builders.kafka_topics import wait_until
from tests.builders.servers import a_topic

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
    # Without this the client keeps to one partition for some milliseconds at a time.
    each_anew = {"sticky.partitioning.linger.ms": 0}
    config = KafkaSinkConfig(
        kafka.bootstrap, topic, partitioner="random", options=each_anew
    )
    write(config, ROWS)
    assert len({each.partition for each in read_output(kafka.bootstrap, topic)}) > 1


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


class Watching(SourceOperator):
    """Gives rows, and looks into a topic before the epoch can end that they belong to."""

    def __init__(self, servers: str, topic: str, shown: list[int]) -> None:
        self._servers, self._topic, self._shown = servers, topic, shown

    @override
    def name(self) -> str:
        return "watching"

    @override
    def output_schema(self) -> StreamSchema:
        return StreamSchema(pa.schema([("n", pa.int64())]))

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> SourceFinishType:
        collector.collect(pa.table({"n": [0, 1, 2]}))
        wait_until(lambda: self._seen() == self._shown)
        return SourceFinishType.FINAL

    def _seen(self) -> list[int]:
        return sorted(numbers(read_output(self._servers, self._topic)))


@pytest.mark.parametrize(
    ("delivery", "shown"), [("at_least_once", [0, 1, 2]), ("exactly_once", [])]
)
def test_rows_are_there_before_their_epoch_ends_if_they_come_at_least_once(
    kafka: KafkaCluster, delivery: Delivery, shown: list[int]
) -> None:
    topic, p = an_output(kafka.bootstrap), pen.Pipeline(a_topic("job"))
    rows = p.read("rows", Watching(kafka.bootstrap, topic, shown))
    rows.write("out", pen.kafka(topic, servers=kafka.bootstrap, delivery=delivery))
    p.run_in_process("memory:")
    assert sorted(numbers(read_output(kafka.bootstrap, topic))) == [0, 1, 2]


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
