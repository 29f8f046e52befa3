"""Tests what `kafka` takes and refuses of what users say about writing to a topic."""

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.connectors.kafka.sink import KafkaSink, KafkaSinkConfig
from penstock.errors import SchemaError, UserError
from penstock.operators.registry import read_config


def config_of(**options: Any) -> KafkaSinkConfig:
    """Return the config of a sink as a worker gets it: from the plain values of a graph."""
    spec = pen.kafka("out", servers=["a:1", "b:2"], **options).sink_spec()
    config: KafkaSinkConfig = read_config(spec.kind, spec.config, KafkaSinkConfig)
    return config


def test_options_come_through_a_graph() -> None:
    config = config_of(
        key=["user", pl.col("day")],
        headers="h",
        timestamp="at",
        partition="to",
        value="text",
        format="text",
        create_topic={"partitions": 6, "replication": 3},
        transaction_timeout="1m",
        shards=4,
        options={"compression.type": "zstd", "sasl.password": pen.secret(env="WORD")},
    )
    columns = config.columns
    assert (config.servers, config.topic, config.format) == ("a:1,b:2", "out", "text")
    assert (columns.key, columns.value) == (("user", "day"), ("text",))
    assert (columns.headers, columns.timestamp, columns.partition) == ("h", "at", "to")
    assert (config.transaction_timeout_ms, config.shards) == (60_000, 4)
    assert config.create_topic is not None
    assert (config.create_topic.partitions, config.create_topic.replication) == (6, 3)
    assert config.options["compression.type"] == "zstd"
    assert "WORD" not in str(KafkaSink(config).display())


def test_key_may_be_an_expression() -> None:
    config = config_of(key=pl.col("user").str.to_uppercase())
    assert config.columns.key == ()
    assert config.columns.key_expression is not None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delivery": "once"}, "delivery is 'once'"),
        ({"partitioner": "murmur"}, "did you mean 'murmur2'"),
        ({"key_format": "avro"}, "key_format is 'avro'"),
        ({"shards": 0}, "shards is 0"),
        ({"delivery": "at_least_once", "shards": 2}, "shards concerns transactions"),
        ({"delivery": "at_least_once", "marker_topic": "m"}, "marker_topic concerns"),
        ({"delivery": "at_least_once", "transaction_timeout": "1m"}, "_timeout concerns"),
        ({"key": pl.col("a") + 1, "key_format": "json"}, "key= is an expression"),
        ({"schema": {"a": int}}, "schema says how a topic is read"),
        ({"discover": "1s"}, "discover says how a topic is read"),
        ({"format_options": {"on_new": "bad"}}, "on_new says how records are read"),
        ({"options": {"default.topic.config": {}}}, "'default.topic.config'"),
        ({"options": {"enable.idempotence": False}}, "'enable.idempotence'"),
        ({"transaction_timeout": "1ms"}, "1s at least"),
        ({"create_topic": {"replicas": 3}}, "create_topic"),
        ({"create_topic": 0}, "create_topic"),
        ({"headers": ["a", "b"]}, "headers="),
        ({"key": ["a", "a"]}, "twice"),
        ({"key": [pl.col("a") + 1]}, "no columns"),
        ({"options": {"sasl.password": "x"}}, "pen.secret"),
        ({"start": "latest"}, "start says how a topic is read"),
        ({"metadata": ["key"]}, "metadata says how a topic is read"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as refused:
        config_of(**options)
    assert says in str(refused.value)


def test_sink_writes_to_one_topic() -> None:
    with pytest.raises(UserError, match="one topic"):
        pen.kafka(["a", "b"], servers="a:1").sink_spec()


def test_options_of_writing_are_refused_when_reading() -> None:
    with pytest.raises(UserError, match="metadata="):
        pen.kafka("a", servers="a:1", schema={"n": int}, key="n").source_spec()


def test_rows_that_cannot_be_sent_are_refused_when_the_graph_is_built() -> None:
    p = pen.Pipeline("p")
    rows = p.read("rows", pen.list_source([{"n": 1}]))
    rows.write("out", pen.kafka("out", servers="a:1", key="m"))
    with pytest.raises((SchemaError, UserError), match="'m', which is no column"):
        p.explain()


def test_bad_records_can_be_written_as_they_are() -> None:
    p = pen.Pipeline("p")
    source = pen.kafka("in", servers="a:1", schema={"n": int}, on_bad="divert")
    rows = p.read("rows", source)
    rows.write("out", pen.blackhole())
    rows.side_output(pen.BAD).write("dead", pen.kafka("dead", servers="a:1"))
    assert "dead" in str(p.explain())


@pytest.mark.parametrize("format_", ["json", "upsert"])
def test_columns_without_a_form_are_refused_when_the_graph_is_built(format_: str) -> None:
    columns: list[Any] = [("id", pa.int64()), ("much", pa.decimal256(50, 2))]
    schema = pa.schema(columns)
    p = pen.Pipeline("p")
    rows = p.read("rows", pen.list_source(schema.empty_table()))
    if format_ == "upsert":
        rows = rows.with_columns(deleted=pl.lit(value=False))
    rows.write("out", pen.kafka("out", servers="a:1", key="id", format=format_))
    with pytest.raises(SchemaError, match="'much'"):
        p.explain()


def test_a_format_of_keys_needs_keys() -> None:
    p = pen.Pipeline("p")
    rows = p.read("rows", pen.list_source([{"n": 1}]))
    rows.write("out", pen.kafka("out", servers="a:1", key_format="json"))
    with pytest.raises(SchemaError, match="have no key"):
        p.explain()
