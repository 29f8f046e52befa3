"""What can be declared as a keyed table, and how it is written down."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.core.arrow_types import have_same_values, relay, stored_type
from penstock.errors import ErrorCode, SchemaError
from penstock.state.proto import state_pb2
from penstock.state.tables.columns import KeyedSchema
from penstock.state.tables.expiry import TimeToLive
from tests.unit.state.tables.keyed_harness import a_schema


@pytest.mark.parametrize(
    "ttl",
    [None, TimeToLive(5), TimeToLive(5, "time")],
    ids=["never", "processing", "event"],
)
def test_a_declaration_survives_its_durable_form(ttl: TimeToLive | None) -> None:
    schema = a_schema(
        {
            "key": pa.field("key", pa.string(), nullable=False),
            "time": pa.timestamp("ms", "UTC"),
        },
        "key",
        ttl=ttl,
    )
    config = state_pb2.KeyedTableConfig.FromString(
        schema.to_config("what").SerializeToString()
    )
    assert KeyedSchema.from_config(config.SerializeToString()) == schema
    assert config.description == "what"


def test_the_durable_form_names_the_clock() -> None:
    columns = {"key": pa.int64(), "time": pa.timestamp("us")}
    domains = [
        a_schema(columns, "key", ttl=ttl).to_config().ttl_domain
        for ttl in (None, TimeToLive(5), TimeToLive(5, "time"))
    ]
    assert domains == [
        state_pb2.MISSING_TIME_DOMAIN,
        state_pb2.PROCESSING_TIME,
        state_pb2.EVENT_TIME,
    ]


def test_all_problems_of_a_declaration_are_told_at_once() -> None:
    with pytest.raises(SchemaError) as caught:
        a_schema({"_key_hash": pa.int64()}, "a", "a")
    assert "'_key_hash' has a reserved name" in caught.value.message
    assert "key column 'a' is not in the schema" in caught.value.message
    assert "named twice" in caught.value.message


@pytest.mark.parametrize(
    "data_type",
    [
        pa.map_(pa.string(), pa.int64()),
        pa.struct([("m", pa.map_(pa.string(), pa.int64()))]),
    ],
    ids=str,
)
def test_a_key_that_cannot_be_hashed_is_refused(data_type: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="key cannot have the Arrow type"):
        a_schema({"key": data_type}, "key")


@pytest.mark.parametrize(
    "data_type",
    [
        pa.month_day_nano_interval(),
        pa.struct([]),
        pa.list_view(pa.int64()),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.sparse_union([pa.field("a", pa.int64())]),
    ],
    ids=str,
)
def test_a_column_that_would_not_come_back_is_refused_when_declared(data_type: Any) -> None:
    with pytest.raises(SchemaError) as caught:
        a_schema({"key": pa.int64(), "value": data_type}, "key")
    assert caught.value.code is ErrorCode.UNSUPPORTED_VALUE_TYPE


def test_value_columns_are_nullable_in_files_and_keys_as_declared() -> None:
    schema = a_schema(
        {
            "key": pa.field("key", pa.int64(), nullable=False),
            "value": pa.field("value", pa.int64(), nullable=False),
        },
        "key",
    )
    assert not schema.stored.field("key").nullable
    assert schema.stored.field("value").nullable
    assert schema.stored.names == ["key", "value", "_key_hash", "_operation", "_expires_at"]


TEXT = pa.large_string()


@pytest.mark.parametrize(
    ("declared", "stored"),
    [
        (pa.string_view(), TEXT),
        (pa.binary_view(), pa.large_binary()),
        (pa.dictionary(pa.int8(), pa.string_view()), TEXT),
        (pa.dictionary(pa.int8(), pa.int64()), pa.int64()),
        (pa.list_(pa.string_view()), pa.list_(TEXT)),
        (pa.list_(pa.string_view(), 2), pa.list_(TEXT, 2)),
        (pa.large_list(pa.string_view()), pa.large_list(TEXT)),
        (pa.struct([("a", pa.string_view())]), pa.struct([("a", TEXT)])),
        (pa.map_(pa.string_view(), pa.string_view()), pa.map_(TEXT, TEXT)),
        (pa.string(), pa.string()),
        (pa.uuid(), pa.uuid()),
    ],
    ids=str,
)
def test_views_and_dictionaries_are_stored_plainly(declared: Any, stored: Any) -> None:
    assert stored_type(declared).equals(stored)
    assert have_same_values(declared, stored)
    values = pa.nulls(2, stored)
    assert relay(values, declared).type.equals(declared)
    assert relay(relay(values, declared), stored).equals(values)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (pa.string(), pa.large_string(), True),
        (pa.list_(pa.string()), pa.large_list(pa.string_view()), True),
        (pa.list_(pa.field("element", pa.int64())), pa.list_(pa.int64()), True),
        (pa.run_end_encoded(pa.int32(), pa.int64()), pa.int64(), True),
        (pa.string(), pa.binary(), False),
        (pa.int32(), pa.int64(), False),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())]), False),
        (pa.list_(pa.int64(), 2), pa.list_(pa.int64()), False),
    ],
    ids=str,
)
def test_only_layouts_of_equal_values_stand_for_each_other(
    one: Any, other: Any, same: bool
) -> None:
    assert have_same_values(one, other) is same
    assert have_same_values(other, one) is same


def test_runs_of_equal_values_are_laid_out_plainly() -> None:
    runs: Any = pa.RunEndEncodedArray.from_arrays(
        pa.array([2, 3], pa.int32()), pa.array(["a", "b"])
    )
    assert relay(runs, pa.string()).to_pylist() == ["a", "a", "b"]


def test_a_dictionary_gets_the_index_type_it_was_declared_with() -> None:
    declared = pa.dictionary(pa.uint16(), pa.int64(), ordered=True)
    laid_out = relay(pa.array([5, None, 5]), declared)
    assert laid_out.type.equals(declared)
    assert laid_out.to_pylist() == [5, None, 5]
