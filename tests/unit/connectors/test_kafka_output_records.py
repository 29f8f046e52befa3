"""Tests how rows become records of Kafka: keys, values, headers, timestamps, tombstones."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from penstock.connectors.formats.registry import record_format
from penstock.connectors.kafka.output_check import check_records
from penstock.connectors.kafka.output_records import (
    RecordColumns,
    RecordEncoder,
    record_sizes,
)
from penstock.connectors.kafka.output_topics import OutputTopic
from penstock.core.schema import StreamSchema
from penstock.errors import UserError
from penstock.operators.changes import changelog_schema

ROWS = pa.record_batch(
    {
        "user": pa.array(["ada", None, "bob"]),
        "id": pa.array([1, 2, 3], pa.int64()),
        "raw": pa.array([b"\x00", b"", b"\xff"], pa.binary()),
        "at": pa.array(
            [datetime(2026, 1, 1, tzinfo=UTC), None, datetime(1970, 1, 2, tzinfo=UTC)]
        ).cast(pa.timestamp("us", "UTC")),
        "to": pa.array([2, None, 0], pa.int8()),
        "tags": pa.array(
            [[("a", b"1"), ("a", None)], [], None],
            pa.list_(pa.struct([("k", pa.string()), ("v", pa.binary())])),
        ),
        "map": pa.array([[("x", "1")], None, []], pa.map_(pa.string(), pa.string())),
    }
)


def records_of(
    rows: pa.RecordBatch, columns: RecordColumns, stream: StreamSchema | None = None
) -> pa.RecordBatch:
    stream = stream or StreamSchema(rows.schema)
    assert columns.find_problems(stream) == []
    values = pa.schema([stream.arrow.field(name) for name in columns.value_of(stream)])
    keys = pa.schema([stream.arrow.field(name) for name in columns.key_of(stream)])
    encoder = RecordEncoder(
        columns,
        stream,
        record_format("json", values),
        record_format("json", keys) if keys.names else None,
    )
    return encoder.encode(rows)


@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        (RecordColumns(key=("user",)), [b"ada", None, b"bob"]),
        (RecordColumns(key=("id",)), [b"1", b"2", b"3"]),
        (RecordColumns(key=("raw",)), [b"\x00", b"", b"\xff"]),
        (
            RecordColumns(key=("user", "id")),
            [b'{"user":"ada","id":1}', b'{"user":null,"id":2}', b'{"user":"bob","id":3}'],
        ),
        (
            RecordColumns(key=("id",), key_format="json"),
            [b'{"id":1}', b'{"id":2}', b'{"id":3}'],
        ),
        (
            RecordColumns(
                key_expression=pl.concat_str(["user", "id"], separator="-").meta.serialize()
            ),
            [b"ada-1", None, b"bob-3"],
        ),
        (RecordColumns(key_expression=pl.lit("same").meta.serialize()), [b"same"] * 3),
        (RecordColumns(), [None] * 3),
    ],
    ids=["text", "number", "bytes", "several", "json", "expression", "literal", "none"],
)
def test_keys_are_text_or_bytes_or_json(
    columns: RecordColumns, keys: list[bytes | None]
) -> None:
    named = RecordColumns(
        key=columns.key,
        key_expression=columns.key_expression,
        key_format=columns.key_format,
        value=("id",),
    )
    records = records_of(ROWS, named)
    assert records.column("key").to_pylist() == keys
    assert records.column("value").to_pylist() == [b'{"id":1}', b'{"id":2}', b'{"id":3}']


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        (
            "tags",
            [[{"name": "a", "value": b"1"}, {"name": "a", "value": None}], [], None],
        ),
        ("map", [[{"name": "x", "value": b"1"}], None, []]),
    ],
)
def test_headers_are_lists_or_maps(name: str, headers: list[Any]) -> None:
    records = records_of(ROWS, RecordColumns(headers=name, value=("id",)))
    assert records.column("headers").to_pylist() == headers
    sliced = records_of(ROWS.slice(1), RecordColumns(headers=name, value=("id",)))
    assert sliced.column("headers").to_pylist() == headers[1:]


def test_headers_and_partition_are_not_part_of_the_value() -> None:
    columns = RecordColumns(headers="tags", partition="to", timestamp="at")
    records = records_of(ROWS.drop_columns(["map", "raw"]), columns)
    assert json.loads(records.column("value")[2].as_py()).keys() == {"user", "id", "at"}
    assert records.column("partition").to_pylist() == [2, None, 0]
    assert records.column("timestamp").to_pylist() == [1_767_225_600_000, None, 86_400_000]


TABLE = changelog_schema([pa.field("user", pa.string())], [pa.field("n", pa.int64())])


def changes(*rows: tuple[str, str | None, int]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    return pa.record_batch([pa.array(list(c)) for c in columns], schema=TABLE.arrow)


def test_changes_become_upserts_and_tombstones() -> None:
    rows = changes(
        ("insert", "ada", 1),
        ("update-before", "bob", 1),
        ("update-after", "bob", 2),
        ("delete", "eve", 3),
    )
    records = records_of(rows, RecordColumns(), TABLE)
    assert list(zip(*(column.to_pylist() for column in records.columns), strict=True)) == [
        (b'{"user":"ada"}', b'{"user":"ada","n":1}'),
        (b'{"user":"bob"}', b'{"user":"bob","n":2}'),
        (b'{"user":"eve"}', None),
    ]
    as_text = records_of(rows, RecordColumns(key_format="text"), TABLE)
    assert as_text.column("key").to_pylist() == [b"ada", b"bob", b"eve"]


def test_batch_of_updates_before_gives_no_record() -> None:
    assert (
        records_of(changes(("update-before", "a", 1)), RecordColumns(), TABLE).num_rows == 0
    )


def test_null_key_of_a_changed_row_is_refused() -> None:
    with pytest.raises(UserError, match="null key"):
        records_of(changes(("insert", None, 1)), RecordColumns(key_format="text"), TABLE)


@pytest.mark.parametrize(
    ("columns", "stream", "says"),
    [
        (RecordColumns(key=("usr",)), None, "did you mean 'user'"),
        (RecordColumns(headers="id"), None, "list of structs"),
        (RecordColumns(timestamp="id"), None, "must be a timestamp"),
        (RecordColumns(partition="user"), None, "whole number"),
        (RecordColumns(key=("tags",)), None, 'key_format="json"'),
        (RecordColumns(key=("user", "id"), key_format="text"), None, "one column"),
        (RecordColumns(value=()), None, "no column"),
        (RecordColumns(key=("n",)), TABLE, "must be that of the table, user"),
    ],
)
def test_columns_that_cannot_work_are_named(
    columns: RecordColumns, stream: StreamSchema | None, says: str
) -> None:
    problems = columns.find_problems(stream or StreamSchema(ROWS.schema))
    assert says in " ".join(problems)


def test_instant_before_1970_is_refused() -> None:
    rows = pa.record_batch({"at": pa.array([-1], pa.timestamp("ms"))})
    with pytest.raises(UserError, match="before 1970"):
        records_of(rows, RecordColumns(timestamp="at"))


@pytest.mark.parametrize("number", [-1, 2**40])
def test_number_that_no_partition_has_is_refused(number: int) -> None:
    rows = pa.record_batch({"to": pa.array([number]), "n": pa.array([1])})
    with pytest.raises(UserError, match="partition="):
        records_of(rows, RecordColumns(partition="to"))


def test_sizes_count_keys_values_and_headers() -> None:
    records = records_of(ROWS, RecordColumns(key=("user",), value=("id",), headers="tags"))
    sizes = record_sizes(records)
    assert sizes[0] - sizes[2] == 2 * 10 + 3
    assert sizes[2] - sizes[1] == 3


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        (OutputTopic(3), None),
        (OutputTopic(2), "partitions 0 to 1"),
        (OutputTopic(3, max_message_bytes=150), "key b'ada'.*max.message.bytes"),
        (OutputTopic(3, future_millis=1000), "in the future.*after.max.ms"),
        (OutputTopic(3, is_compacted=True), "has no key, and the topic is compacted"),
    ],
)
def test_record_that_the_topic_would_not_take_is_found(
    topic: OutputTopic, says: str | None
) -> None:
    columns = RecordColumns(key=("user",), value=("id",), partition="to", timestamp="at")
    problem = check_records(records_of(ROWS, columns), topic, 1_000_000)
    if says is None:
        assert problem is None
    else:
        assert problem is not None
        assert re.search(says, problem)


@pytest.mark.parametrize(
    ("past_millis", "is_taken"),
    [(1_000, False), (99_999, False), (120_000, True), (2**63, True)],
)
def test_a_record_as_old_as_the_topic_takes_it_gets_some_time_to_be_committed(
    past_millis: int, *, is_taken: bool
) -> None:
    oldest_ms = 24 * 3600 * 1000
    records = records_of(ROWS, RecordColumns(key=("user",), value=("id",), timestamp="at"))
    topic = OutputTopic(3, past_millis=past_millis)
    problem = check_records(records, topic, oldest_ms + 100_000)
    assert (problem is None) == is_taken
    if problem is not None:
        assert "100 s in the past" in problem
        assert "message.timestamp.before.max.ms" in problem


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ([(None, b"1")], "has a null as a header's name"),
        ([None], "has a null as a header's name"),
        ([("a\0b", b"1")], "NUL in a header's name"),
    ],
)
def test_headers_without_a_name_that_can_be_written_are_refused(
    pairs: list[Any], says: str
) -> None:
    kind = pa.list_(pa.struct([("k", pa.string()), ("v", pa.binary())]))
    rows = pa.record_batch({"id": [1, 2], "tags": pa.array([None, pairs], kind)})
    with pytest.raises(UserError, match=says):
        records_of(rows, RecordColumns(value=("id",), headers="tags"))


@pytest.mark.parametrize("first", [0, 999, -1])
def test_an_instant_that_kafka_takes_for_none_is_refused(first: int) -> None:
    kind = pa.timestamp("us", "UTC")
    rows = pa.record_batch({"id": [1, 2], "at": pa.array([first, None], kind)})
    with pytest.raises(UserError, match="1970, which Kafka has no timestamp for"):
        records_of(rows, RecordColumns(value=("id",), timestamp="at"))
    rows = pa.record_batch({"id": [1, 2], "at": pa.array([1_000, None], kind)})
    records = records_of(rows, RecordColumns(value=("id",), timestamp="at"))
    assert records.column("timestamp").to_pylist() == [1, None]
