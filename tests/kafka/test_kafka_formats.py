"""Formats on a real broker: dead letters that can be replayed, and drift that fails the job."""

import json
from typing import Any

import pytest

import penstock as pen
from penstock.errors import UserError
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_output import an_output, read_output
from tests.builders.kafka_topics import TestTopic
from tests.builders.servers import a_topic

SCHEMA = {"id": int, "price": int}


def read_all(servers: str, topic: str, **options: Any) -> tuple[Any, Any]:
    """Return the pipeline's sinks of good and bad records, after it has run."""
    p = pen.Pipeline(a_topic("job"))
    good, bad = pen.list_sink(a_topic("good")), pen.list_sink(a_topic("bad"))
    orders = p.read(
        "orders",
        pen.kafka(
            topic, servers=servers, schema=SCHEMA, end="latest", on_bad="divert", **options
        ),
    )
    orders.write("good", good)
    orders.side_output(pen.BAD).write("bad", bad)
    p.run_in_process("memory:")
    return good, bad


def test_bad_records_are_dead_letters_that_can_be_replayed(kafka: KafkaCluster) -> None:
    servers = kafka.bootstrap
    topic, dead = TestTopic.create(servers), an_output(servers)
    topic.produce([b'{"id": 1, "price": 7}', b'{"id": 2, "price": "much"}', b"\xffoops"])

    p = pen.Pipeline(a_topic("job"))
    orders = p.read(
        "orders",
        pen.kafka(
            topic.name, servers=servers, schema=SCHEMA, end="latest", on_bad="divert"
        ),
    )
    orders.write("good", pen.blackhole())
    orders.side_output(pen.BAD).write(
        "dead",
        pen.kafka(
            dead,
            servers=servers,
            format="bytes",
            key="key",
            value="value",
            headers="headers",
            timestamp="timestamp",
        ),
    )
    p.run_in_process("memory:")

    letters = read_output(servers, dead)
    assert sorted(letter.value or b"" for letter in letters) == [
        b'{"id": 2, "price": "much"}',
        b"\xffoops",
    ]
    # A schema that was corrected reads from there what it can.
    p = pen.Pipeline(a_topic("job"))
    text = {"id": int, "price": str}
    out = pen.list_sink(a_topic("out"))
    again = p.read(
        "again",
        pen.kafka(dead, servers=servers, schema=text, end="latest", on_bad="divert"),
    )
    again.write("out", out)
    p.run_in_process("memory:")
    assert out.rows() == [{"id": 2, "price": "much"}]


def test_drift_fails_the_job_by_rule_also_where_bad_records_are_diverted(
    kafka: KafkaCluster,
) -> None:
    topic = TestTopic.create(kafka.bootstrap)
    drifted = {"id": 2, "price": 8, "tip": 1}
    topic.produce([b"oops", json.dumps({"id": 1, "price": 7}).encode()])
    topic.produce([json.dumps(drifted).encode()])
    rules = {"on_new": "fail"}
    with pytest.raises(UserError, match=r"offset 2 of .*new column 'tip'.*change the rule"):
        read_all(kafka.bootstrap, topic.name, format_options=rules)
    good, bad = read_all(kafka.bootstrap, topic.name)
    assert [row["id"] for row in good.rows()] == [1, 2]
    assert [row["value"] for row in bad.rows()] == [b"oops"]


def test_values_behind_the_header_of_a_registry(kafka: KafkaCluster) -> None:
    topic = TestTopic.create(kafka.bootstrap)
    header = b"\x00\x00\x00\x00\x07"
    topic.produce([header + b'{"id": 1, "price": 7}', header + b"\x02\x0e"])
    good, bad = read_all(kafka.bootstrap, topic.name)
    assert good.rows() == [{"id": 1, "price": 7}]
    (row,) = bad.rows()
    assert "Avro or Protobuf" in row["error"]
