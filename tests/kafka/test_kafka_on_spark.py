"""Tests that tasks of Spark read a topic, each partition in its order."""

import json
from pathlib import Path

import pytest

import penstock as pen
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_topics import TestTopic
from tests.builders.spark_session import shared_session

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_tasks_of_spark_read_each_record_once(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = TestTopic.create(kafka.bootstrap, partitions=3)
    wanted: dict[int, list[int]] = {partition: [] for partition in range(3)}
    for number in range(900):
        wanted[number % 3].append(number)
    for partition, numbers in wanted.items():
        topic.produce([json.dumps({"n": n}).encode() for n in numbers], partition)
    pipeline = pen.Pipeline("spark-reads", parallelism=2)
    source = pen.kafka(
        topic.name,
        servers=topic.servers,
        schema={"n": int},
        metadata=["partition", "offset"],
        end="latest",
    )
    out = pen.list_sink(topic.name)
    pipeline.read("in", source).write("out", out)
    status = pipeline.run(str(tmp_path / "checkpoints"), session=shared_session())
    assert status.phase == "finished"
    found = sorted(out.rows(), key=lambda row: row["kafka_offset"])
    for partition, numbers in wanted.items():
        assert [row["n"] for row in found if row["kafka_partition"] == partition] == numbers
