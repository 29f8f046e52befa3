import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.key_hash import hash_keys
from penstock.core.schema import StreamSchema
from penstock.errors import CorruptStateError, ErrorCode, SchemaError

MAP: pa.DataType = pa.map_(pa.string(), pa.string())
FIELDS: "list[pa.Field[Any]]" = [
    pa.field("auction", pa.int64(), nullable=False),
    pa.field("bidder", pa.string()),
    pa.field("ts", pa.timestamp("us", "UTC")),
    pa.field("extra", MAP),
]
BIDS = pa.schema(FIELDS, metadata={"owner": "us"})


def times(
    values: list[int | None], unit: str = "us", zone: str | None = None
) -> pa.RecordBatch:
    column: Any = pa.array(values, pa.int64()).cast(pa.timestamp(unit, zone))
    return pa.record_batch({"ts": column})


def event_times(batch: pa.RecordBatch) -> list[int]:
    found: list[int] = StreamSchema(batch.schema, "ts").event_times_of(batch).tolist()
    return found


def test_a_stream_knows_its_roles() -> None:
    stream = StreamSchema(BIDS, "ts", ("auction", "bidder"))

    assert (stream.time_column, stream.key_columns) == ("ts", ("auction", "bidder"))


def test_a_stream_needs_neither_event_time_nor_key() -> None:
    assert StreamSchema(BIDS).key_columns == ()
    assert StreamSchema(pa.schema([])).time_column is None


def test_a_stream_can_be_keyed_anew() -> None:
    assert StreamSchema(BIDS, "ts").keyed_by("bidder") == StreamSchema(
        BIDS, "ts", ("bidder",)
    )


def test_unknown_columns_are_told_with_what_was_meant() -> None:
    with pytest.raises(SchemaError) as caught:
        StreamSchema(BIDS, "tss", ("auctoin", "zzz"))

    assert caught.value.message == "\n".join(
        [
            "the schema of a stream cannot be used:",
            "  time column 'tss' is not a column; did you mean 'ts'?",
            "  key column 'auctoin' is not a column; did you mean 'auction'?",
            "  key column 'zzz' is not a column; known are 'auction', 'bidder', 'extra', 'ts'",
        ]
    )


def test_the_time_column_must_be_a_timestamp() -> None:
    with pytest.raises(
        SchemaError, match="time column 'auction' has the type int64: it must be"
    ):
        StreamSchema(BIDS, "auction")


def test_a_key_must_be_of_a_type_that_can_be_hashed() -> None:
    with pytest.raises(
        SchemaError, match="key column 'extra': a key cannot have the"
    ) as caught:
        StreamSchema(BIDS, "ts", ("extra",))

    assert caught.value.code is ErrorCode.UNSUPPORTED_KEY_TYPE


def test_a_key_column_counts_once() -> None:
    with pytest.raises(SchemaError, match="key column 'auction' is named 2 times"):
        StreamSchema(BIDS, "ts", ("auction", "auction"))


def test_two_columns_of_one_name_are_refused() -> None:
    fields: list[tuple[str, pa.DataType]] = [("a", pa.int64()), ("a", pa.string())]
    twice = pa.schema(fields)

    with pytest.raises(SchemaError, match="column 'a' occurs more than once"):
        StreamSchema(twice, key_columns=("a",))


@pytest.mark.parametrize(
    "name", ["_penstock", "_penstock_x", "_key_hash", "_operation", "_expires_at"]
)
def test_names_of_columns_that_state_files_add_are_reserved(name: str) -> None:
    with pytest.raises(SchemaError, match=f"column name '{name}' is reserved") as caught:
        StreamSchema(pa.schema([(name, pa.int64())]))

    assert caught.value.code is ErrorCode.INVALID_NAME


@pytest.mark.parametrize("name", ["penstock", "_timestamp", "key_hash", "", "Zürich"])
def test_other_names_are_free(name: str) -> None:
    stream = StreamSchema(pa.schema([(name, pa.int64())]), key_columns=(name,))

    assert stream.key_columns == (name,)


def test_all_problems_are_told_at_once() -> None:
    schema = pa.schema(
        [
            ("a", pa.int64()),
            ("a", pa.int64()),
            ("_operation", pa.map_(pa.string(), pa.string())),
        ]
    )
    with pytest.raises(SchemaError) as caught:
        StreamSchema(schema, "a", ("_operation", "b"))

    told = caught.value.message
    assert caught.value.code is ErrorCode.SCHEMA_MISMATCH
    assert all(
        part in told
        for part in (
            "column 'a' occurs more than once",
            "'_operation' is reserved",
            "time column 'a' has the type int64",
            "key column '_operation': a key cannot",
            "key column 'b' is not a column",
        )
    )
    assert len(told.splitlines()) == 6


@pytest.mark.parametrize(
    "stream",
    [
        StreamSchema(pa.schema([])),
        StreamSchema(BIDS),
        StreamSchema(BIDS, "ts", ("bidder", "auction")),
        StreamSchema(BIDS.remove_metadata(), "ts"),
        StreamSchema(pa.schema([('quo"te\n', pa.int8())]), key_columns=('quo"te\n',)),
    ],
    ids=lambda stream: str(stream.key_columns),
)
def test_a_schema_comes_through_bytes_and_pickle_whole(stream: StreamSchema) -> None:
    for loaded in (
        StreamSchema.from_bytes(stream.to_bytes()),
        pickle.loads(pickle.dumps(stream)),
    ):
        assert loaded == stream
        assert loaded.arrow.equals(stream.arrow, check_metadata=True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a schema at all",
        BIDS.serialize().to_pybytes(),
        StreamSchema(BIDS, "ts").to_bytes()[:40],
        BIDS.with_metadata({b"penstock.stream": b"{}"}).serialize().to_pybytes(),
        BIDS.with_metadata({b"penstock.stream": b"["}).serialize().to_pybytes(),
        BIDS.with_metadata({b"penstock.stream": b"[]"}).serialize().to_pybytes(),
    ],
)
def test_bytes_that_are_no_stream_schema_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptStateError, match="are not the schema of a stream") as caught:
        StreamSchema.from_bytes(data)

    assert caught.value.code is ErrorCode.UNDECODABLE


def test_keys_come_in_the_order_of_the_key() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": ["x", "y"]})
    stream = StreamSchema(batch.schema, key_columns=("b", "a"))

    assert [column.to_pylist() for column in stream.keys_of(batch)] == [["x", "y"], [1, 2]]
    assert (
        stream.key_hashes_of(batch).tolist()
        == hash_keys([batch.column("b"), batch.column("a")]).tolist()
    )


def test_a_stream_without_a_key_has_one_key() -> None:
    batch = pa.record_batch({"a": [1, 2]})

    assert StreamSchema(batch.schema).key_hashes_of(batch).tolist() == [0, 0]


def test_a_batch_without_a_column_of_its_stream_is_refused() -> None:
    stream = StreamSchema(BIDS, "ts", ("auction",))
    batch = pa.record_batch({"auctions": [1]})

    with pytest.raises(SchemaError, match=r"lacks the column 'auction'.*mean 'auctions'"):
        stream.keys_of(batch)
    with pytest.raises(SchemaError, match="lacks the column 'ts'"):
        stream.event_times_of(batch)


@pytest.mark.parametrize(("unit", "factor"), [("s", 1_000_000), ("ms", 1_000), ("us", 1)])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Zurich"])
def test_event_times_are_microseconds_whatever_the_unit(
    unit: str, factor: int, zone: str | None
) -> None:
    assert event_times(times([-3, 0, 7], unit, zone)) == [-3 * factor, 0, 7 * factor]


def test_finer_event_times_are_rounded_down_before_1970_too() -> None:
    assert event_times(times([-1_001, -1_000, -1, 0, 999, 1_000], "ns")) == [
        -2,
        -1,
        -1,
        0,
        0,
        1,
    ]


def test_event_times_span_64_bits() -> None:
    assert event_times(times([-(1 << 63), (1 << 63) - 1])) == [-(1 << 63), (1 << 63) - 1]


@pytest.mark.parametrize("value", [(1 << 63) // 1_000 + 1, -(1 << 63) // 1_000 - 1])
def test_instants_that_microseconds_cannot_hold_are_refused(value: int) -> None:
    with pytest.raises(SchemaError, match="further from 1970"):
        event_times(times([0, value], "ms"))


def test_a_row_without_event_time_is_told_with_its_place() -> None:
    with pytest.raises(
        SchemaError, match=r"2 of 4 rows have no event time.*first in row 1"
    ):
        event_times(times([1, None, 2, None]))


def test_a_batch_whose_time_is_no_timestamp_is_refused() -> None:
    stream = StreamSchema(times([1]).schema, "ts")

    with pytest.raises(SchemaError, match="have the type int64: they must be timestamps"):
        stream.event_times_of(pa.record_batch({"ts": [1]}))


def test_a_stream_without_event_time_has_none_to_give() -> None:
    with pytest.raises(SchemaError, match="has no event time"):
        StreamSchema(BIDS).event_times_of(pa.record_batch({"auction": [1]}))


def test_event_times_of_no_rows_are_none() -> None:
    found = StreamSchema(BIDS, "ts").event_times_of(BIDS.empty_table())

    assert (found.dtype, found.shape) == (np.dtype(np.int64), (0,))


def test_event_times_of_chunks_and_slices_are_those_of_their_rows() -> None:
    whole, nullable = times([1, 2, 3, 4]), times([None, 5, 6])
    table = pa.Table.from_batches([whole.slice(2), nullable.slice(1)])

    assert StreamSchema(whole.schema, "ts").event_times_of(table).tolist() == [3, 4, 5, 6]


def test_a_nul_in_the_name_of_a_column_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"holds a NUL, .* rename it") as caught:
        StreamSchema(pa.schema([("a\0b", pa.int64())]))
    assert caught.value.code is ErrorCode.INVALID_NAME


def test_a_nul_in_the_name_of_a_field_inside_of_a_column_is_refused() -> None:
    inner = pa.struct([("a\0b", pa.int64())])
    for kind in (inner, pa.list_(inner), pa.map_(pa.string(), inner)):
        with pytest.raises(SchemaError, match=r"'s' .* holds a NUL, .* rename it"):
            StreamSchema(pa.schema([("s", kind)]))


@pytest.mark.parametrize("zone", ["-0330", "GMT+3", "Z", "Nowhere/At_all", "+25:00"])
def test_a_time_column_in_a_zone_that_nobody_knows_is_refused(zone: str) -> None:
    columns: dict[str, Any] = {"at": pa.timestamp("us", zone)}
    with pytest.raises(
        SchemaError, match=r"the time zone .* which nobody knows: take 'UTC'"
    ):
        StreamSchema(pa.schema(columns), "at")
    assert StreamSchema(pa.schema(columns)).arrow.names == ["at"]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "+05:30", "-08:00", "Etc/GMT+3"])
def test_a_time_column_may_be_in_any_zone_that_is_known(zone: str) -> None:
    columns: dict[str, Any] = {"at": pa.timestamp("us", zone)}
    assert StreamSchema(pa.schema(columns), "at").time_column == "at"
