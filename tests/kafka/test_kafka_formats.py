"""Formats on a real broker: dead letters that can be replayed, and drift that fails the job."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

import penstock as pen
from penstock.errors import UserError
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_output import Record, an_output, read_output
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


BAD = [b'{"id": 2, "price": "much"}', b"\xffoops"]
SENT_MS = 1_700_000_000_000


def produce_orders(topic: TestTopic) -> list[Record]:
    """Write a good record and two bad ones, of which one has headers; return the bad ones."""
    topic.produce([b'{"id": 1, "price": 7}'], timestamp=SENT_MS)
    headers = [("trace", b"\x00\xff"), ("trace", None)]
    topic.produce(
        BAD[:1], key=lambda _: b"a\x00key", timestamp=SENT_MS + 1, headers=headers
    )
    topic.produce(BAD[1:], timestamp=SENT_MS + 2)
    return read_output(topic.servers, topic.name)[1:]


def divert(topic: TestTopic, dead: str, change: Callable[[pen.Stream], pen.Stream]) -> None:
    """Read a topic, and write its bad records to another one, with all that they have."""
    p = pen.Pipeline(a_topic("job"))
    source = pen.kafka(
        topic.name, servers=topic.servers, schema=SCHEMA, end="latest", on_bad="divert"
    )
    orders = p.read("orders", source)
    orders.write("good", pen.blackhole())
    sink = pen.kafka(
        dead,
        servers=topic.servers,
        format="bytes",
        key="key",
        value="value",
        headers="headers",
        timestamp="timestamp",
    )
    change(orders.side_output(pen.BAD)).write("dead", sink)
    p.run_in_process("memory:")


def without_places(records: list[Record]) -> list[Record]:
    """Return records as a producer sends them, in order of their values."""
    sent = [replace(record, partition=0, offset=0) for record in records]
    return sorted(sent, key=lambda record: record.value or b"")


def test_bad_records_are_dead_letters_that_can_be_replayed(kafka: KafkaCluster) -> None:
    servers = kafka.bootstrap
    topic, dead = TestTopic.create(servers), an_output(servers, retention_ms="-1")
    bad = produce_orders(topic)
    assert [record.value for record in bad] == BAD
    divert(topic, dead, lambda rows: rows)
    letters = read_output(servers, dead)
    assert without_places(letters) == without_places(bad)

    # A schema that was corrected reads from there what it can, and the rest is as it was.
    again, still_dead = TestTopic(servers, dead), an_output(servers, retention_ms="-1")
    p = pen.Pipeline(a_topic("job"))
    text = {"id": int, "price": str}
    out, bad_again = pen.list_sink(a_topic("out")), pen.list_sink(a_topic("bad"))
    source = pen.kafka(
        dead,
        servers=servers,
        schema=text,
        end="latest",
        on_bad="divert",
        metadata=["key", "headers", "timestamp"],
    )
    replayed = p.read("again", source)
    replayed.write("out", out)
    replayed.side_output(pen.BAD).write("bad", bad_again)
    p.run_in_process("memory:")
    (row,) = out.rows()
    assert row == {
        "id": 2,
        "price": "much",
        "kafka_key": b"a\x00key",
        "kafka_headers": [
            {"name": "trace", "value": b"\x00\xff"},
            {"name": "trace", "value": None},
        ],
        "kafka_timestamp": datetime.fromtimestamp((SENT_MS + 1) / 1000, UTC),
    }
    assert [left["value"] for left in bad_again.rows()] == BAD[1:]
    divert(again, still_dead, lambda rows: rows)
    assert without_places(read_output(servers, still_dead)) == without_places(bad)


def header(name: str, value: pl.Expr) -> pl.Expr:
    return pl.struct(name=pl.lit(name), value=value.cast(pl.String).cast(pl.Binary))


def tell(rows: pen.Stream) -> pen.Stream:
    """Add reason and place to the headers, as the documentation of formats shows it."""
    where = pl.format("{}/{} {}", "topic", "partition", "offset")
    told = pl.concat_list(header("error", pl.col("error")), header("from", where))
    return rows.with_columns(headers=pl.concat_list(pl.col("headers").fill_null([]), told))


def test_reason_and_place_of_a_dead_letter_are_in_its_headers(kafka: KafkaCluster) -> None:
    topic, dead = (
        TestTopic.create(kafka.bootstrap),
        an_output(kafka.bootstrap, retention_ms="-1"),
    )
    bad = produce_orders(topic)
    divert(topic, dead, tell)
    letters = without_places(read_output(kafka.bootstrap, dead))
    for offset, before, after, reason in zip(
        (1, 2), bad, letters, (b"price", b"utf-8"), strict=True
    ):
        own, told = before.headers or [], after.headers or []
        assert told[: len(own)] == own
        error, place = told[len(own) :]
        assert error[0] == "error"
        assert reason in (error[1] or b"")
        assert place == ("from", f"{topic.name}/0 {offset}".encode())
        assert replace(after, headers=None) == replace(
            before, partition=0, offset=0, headers=None
        )


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
