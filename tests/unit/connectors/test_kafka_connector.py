"""Tests what users may write of Kafka's topics, and that mistakes are named before a start."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.connectors.kafka.positions import Start
from penstock.core.schema import StreamSchema
from penstock.core.secrets import Secret
from penstock.errors import SchemaError, UserError
from penstock.operators.operator import SourceOperator
from penstock.operators.secret_options import find_secrets
from penstock.operators.splits import SplitState
from penstock.testing.given import shared_registry


def bids(**more: Any) -> Any:
    return pen.kafka("bids", servers="host:9092", schema={"item": int}, **more)


def schema_of(spec: Any) -> StreamSchema:
    made = shared_registry().construct(spec.source_spec()).operator
    assert isinstance(made, SourceOperator)
    return made.output_schema()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("earliest", Start("earliest")),
        ("latest", Start("latest")),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), Start("time", micros=1_000_000)),
        ({0: 17, 1: 4}, Start("offsets", offsets={"bids/0": 17, "bids/1": 4})),
        ({"bids": {0: 17}}, Start("offsets", offsets={"bids/0": 17})),
        ("group:old", Start("group", group="old")),
    ],
)
def test_start_is_written_in_these_ways(given: Any, wanted: Start) -> None:
    assert bids(start=given).start == wanted


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"start": "begin"}, "start is 'begin'"),
        ({"start": "group:"}, "start is 'group:'"),
        ({"start": {0: -1}}, "whole numbers"),
        ({"start": {("bids", 0): 1}}, "by topic"),
        ({"metadata": ["keys"]}, "did you mean 'key'"),
        ({"metadata": {"key": "k", "offset": "k"}}, "one name to two columns"),
        ({"on_lost": "skip"}, "'fail' or 'continue'"),
        ({"on_bad": "skip"}, "'fail' or 'divert'"),
        ({"end": "now"}, "'latest'"),
        ({"format": "jsn"}, "'json'"),
        ({"pattern": "bids.*"}, "not both"),
        ({"options": {"isolation.level": "read_uncommitted"}}, "'isolation.level'"),
        ({"options": {"bootstrap.servers": "other:1"}}, "'bootstrap.servers'"),
        ({"options": {"batch.size": 7}}, "'batch.size'"),
        ({"options": {"sasl.password": "hunter2"}}, "'sasl.password' written out"),
        ({"discover": "soon"}, "discover"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as failure:
        bids(**options).source_spec()
    assert "hunter2" not in str(failure.value)


def test_topics_are_named_once_and_well() -> None:
    with pytest.raises(UserError, match="by name, or a pattern"):
        pen.kafka(servers="h:1")
    with pytest.raises(UserError, match="named twice"):
        pen.kafka(["a", "a"], servers="h:1")
    with pytest.raises(UserError, match="no regular expression"):
        pen.kafka(pattern="(", servers="h:1")
    with pytest.raises(UserError, match="no name of a topic"):
        pen.kafka("a/b", servers="h:1")


@pytest.mark.parametrize("servers", ["", " ", [], ["h:1", ""], "h:1,"])
def test_addresses_of_brokers_are_not_empty(servers: Any) -> None:
    with pytest.raises(UserError, match="empty address"):
        pen.kafka("a", servers=servers)


def test_a_live_side_is_not_read_alone() -> None:
    with pytest.raises(UserError, match="concat_sources"):
        bids(start="after-history").source_spec()


def test_metadata_become_columns_that_do_not_collide() -> None:
    spec = bids(metadata=["key", "headers", "timestamp", "topic", "partition", "offset"])
    assert schema_of(spec).arrow.names == [
        "item",
        "kafka_key",
        "kafka_headers",
        "kafka_timestamp",
        "kafka_topic",
        "kafka_partition",
        "kafka_offset",
    ]
    renamed = schema_of(bids(metadata={"timestamp": "at"})).arrow
    assert renamed.field("at").type == pa.timestamp("us", "UTC")
    with pytest.raises(UserError, match="'item' is in the schema"):
        bids(metadata={"key": "item"}).source_spec()


def test_the_event_time_of_a_schema_is_that_of_the_stream() -> None:
    schema = StreamSchema(pa.schema([("at", pa.timestamp("us", "UTC"))]), "at")
    spec = pen.kafka("bids", servers="h:1", schema=schema)
    assert schema_of(spec).time_column == "at"


def test_an_idle_partition_holds_nothing_back_for_long_by_default() -> None:
    pipeline = pen.Pipeline("p")
    pipeline.read("one", bids(metadata=["timestamp"]), event_time="kafka_timestamp")
    pipeline.read(
        "two",
        bids(metadata=["timestamp"]),
        event_time="kafka_timestamp",
        idle_timeout="2m",
    )
    found = {str(node.operator): node.watermark for node in pipeline.graph().nodes}
    assert found["one"] is not None
    assert found["one"].idle_timeout_micros == 10_000_000
    assert found["two"] is not None
    assert found["two"].idle_timeout_micros == 120_000_000


def test_json_needs_a_schema_and_text_does_not() -> None:
    with pytest.raises(UserError, match="schema="):
        pen.kafka("bids", servers="h:1").source_spec()
    spec = pen.kafka("bids", servers="h:1", format="text")
    assert schema_of(spec).arrow == pa.schema([("value", pa.string())])
    with pytest.raises(SchemaError):
        bids(format="text").source_spec()


def test_options_are_not_shown() -> None:
    spec = bids(options={"sasl.username": "reader"})
    assert "reader" not in repr(spec)
    assert "reader" not in str(shared_registry().construct(spec.source_spec()).display())


@pytest.mark.parametrize(
    "servers", ["me:hunter2@host:9092", ["a:1", "SASL_SSL://me:hunter2@host:9092"]]
)
def test_a_password_in_the_address_of_a_server_is_refused_and_not_shown(
    servers: Any,
) -> None:
    with pytest.raises(UserError, match=r"sasl\.password") as failure:
        pen.kafka("bids", servers=servers, schema={"item": int})
    assert "hunter2" not in str(failure.value)


def test_a_secret_of_a_format_is_not_written_out() -> None:
    name = "tests.unit.connectors.test_kafka_connector:Registered"
    with pytest.raises(UserError, match=r"format_options=….*'registry.password'") as caught:
        bids(format=name, format_options={"registry.password": "HUNTER2"})
    assert "HUNTER2" not in str(caught.value)
    given = {"password": pen.secret(env="REGISTRY_PASSWORD")}
    spec = bids(format=name, format_options=given).source_spec()
    assert [each.env for each in find_secrets(spec.config)] == ["REGISTRY_PASSWORD"]
    made = shared_registry().construct(spec).operator
    assert isinstance(made, SourceOperator)
    assert made.output_schema().arrow.names == ["REGISTRY_PASSWORD"]


class Registered(pen.RecordFormat):
    """A format that asks a registry, with a password."""

    def __init__(self, schema: pa.Schema, password: Secret) -> None:
        del schema
        self.schema = pa.schema([(str(password.env), pa.string())])

    def decode(self, values: Any, keys: Any = None) -> Any:
        raise NotImplementedError

    def encode(self, rows: Any) -> Any:
        raise NotImplementedError


def test_offsets_that_could_not_be_written_to_a_group_are_written_with_the_next_epoch() -> (
    None
):
    source: Any = shared_registry().construct(bids(commit_group="lag").source_spec())
    source = source.operator
    calls: list[tuple[dict[str, int], Callable[[], None]]] = []

    class Group:
        def write_group(
            self, _: str, offsets: dict[str, int], on_failure: Callable[[], None]
        ) -> None:
            calls.append((offsets, on_failure))

    source._topics = Group()

    def commit(first: int, second: int) -> dict[str, int]:
        states = {
            f"bids/{number}": SplitState(offset=("id", at))
            for number, at in enumerate((first, second))
        }
        source.on_committed(states)
        return calls[-1][0]

    assert commit(3, 4) == {"bids/0": 3, "bids/1": 4}
    assert commit(5, 4) == {"bids/0": 5}
    calls[-1][1]()  # the answer is that it failed
    assert commit(5, 4) == {"bids/0": 5, "bids/1": 4}
    assert len(calls) == 3
