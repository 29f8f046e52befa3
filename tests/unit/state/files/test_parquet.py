"""Parquet encoding: everything comes back as it was, small, and cut into segments."""

import datetime
import decimal
import struct
import uuid
from collections.abc import Mapping
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.core.ids import checksum_of
from penstock.errors import CorruptStateError, ErrorCode, SchemaError
from penstock.state.files.parquet import (
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS,
    CheckpointParquetMetadata,
    ParquetEncoder,
    as_batch,
    check_storable,
    cut_row_groups,
    decode_row_groups,
)
from tests.unit.state.files.file_builders import encode_parquet, hashed_rows


def decoded(data: bytes) -> pa.Table:
    return decode_row_groups(pa.BufferReader(data), None, None)


def encodings_of(table: pa.Table) -> dict[str, tuple[str, ...]]:
    group = pq.read_metadata(pa.BufferReader(encode_parquet(table, 0).data)).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema: tuple(column.encodings) for column in columns}


VALUES: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, None, False]),
    "int8": (pa.int8(), [-128, None, 127]),
    "int16": (pa.int16(), [-(1 << 15), None, 5]),
    "int32": (pa.int32(), [-(1 << 31), None, 5]),
    "int64": (pa.int64(), [-(1 << 63), None, (1 << 63) - 1]),
    "uint8": (pa.uint8(), [0, None, 255]),
    "uint16": (pa.uint16(), [0, None, 65_535]),
    "uint32": (pa.uint32(), [0, None, (1 << 32) - 1]),
    "uint64": (pa.uint64(), [0, None, (1 << 64) - 1]),
    "float16": (pa.float16(), [np.float16(1.5), None, np.float16(-2)]),
    "float32": (pa.float32(), [1.5, None, float("inf")]),
    "float64": (pa.float64(), [-0.0, None, 1e308]),
    "string": (pa.string(), ["", None, "é中🦊"]),
    "large string": (pa.large_string(), ["", None, "x" * 100_000]),
    "string view": (pa.string_view(), ["", None, "longer than twelve bytes"]),
    "binary": (pa.binary(), [b"", None, b"\x00\xff"]),
    "large binary": (pa.large_binary(), [b"", None, b"\x00\xff"]),
    "fixed binary": (pa.binary(3), [b"abc", None, b"\x00\x00\x00"]),
    "date32": (pa.date32(), [datetime.date(1, 1, 1), None, datetime.date(2026, 1, 1)]),
    "date64": (pa.date64(), [datetime.date(1969, 1, 1), None, datetime.date(2026, 1, 1)]),
    "time32 s": (pa.time32("s"), [datetime.time(1), None, datetime.time(23)]),
    "time32": (pa.time32("ms"), [datetime.time(1), None, datetime.time(23)]),
    "time64": (pa.time64("us"), [datetime.time(1), None, datetime.time(23)]),
    "time64 ns": (pa.time64("ns"), [1, None, 86_399_999_999_999]),
    "timestamp s": (pa.timestamp("s"), [-5, None, 5]),
    "timestamp ms": (pa.timestamp("ms"), [-5, None, 5]),
    "timestamp us": (pa.timestamp("us"), [-(1 << 63), None, (1 << 63) - 1]),
    "timestamp ns": (pa.timestamp("ns"), [-(1 << 62), None, 1]),
    "timestamp zone": (pa.timestamp("us", "Europe/Berlin"), [0, None, 1]),
    "duration": (pa.duration("us"), [-1, None, 1]),
    "duration s": (pa.duration("s"), [-1, None, 1]),
    "decimal": (pa.decimal128(38, 9), [decimal.Decimal("-1.5"), None, decimal.Decimal(0)]),
    "wide decimal": (
        pa.decimal256(60, 3),
        [decimal.Decimal("1e50"), None, decimal.Decimal(0)],
    ),
    "list": (pa.list_(pa.int32()), [[], None, [1, None]]),
    "large list": (pa.large_list(pa.string()), [[], None, ["a", None]]),
    "fixed list": (pa.list_(pa.float32(), 2), [[1.0, 2.0], None, [3.0, None]]),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
        [{"a": 1, "b": []}, None, {"a": None, "b": ["x"]}],
    ),
    "map": (pa.map_(pa.string(), pa.int64()), [[], None, [("k", 1), ("l", None)]]),
    "list of structs": (
        pa.list_(pa.struct([("t", pa.timestamp("us", "UTC"))])),
        [[{"t": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)}], None, []],
    ),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", None, "a"]),
    "small dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"]),
    "list of seconds": (pa.list_(pa.timestamp("s")), [[1, None], None, []]),
    "uuid": (pa.uuid(), [uuid.UUID(int=1).bytes, None, uuid.UUID(int=2).bytes]),
    "null": (pa.null(), [None, None, None]),
}


@pytest.mark.parametrize("name", VALUES)
def test_every_arrow_type_comes_back_as_it_was(name: str) -> None:
    kind, values = VALUES[name]
    table = pa.table({"v": pa.array(values, kind)})
    check_storable(table.schema, what="the table")
    assert decoded(encode_parquet(table, 0).data).equals(table)


@pytest.mark.parametrize("name", VALUES)
def test_every_arrow_type_comes_back_from_an_empty_and_an_all_null_table(name: str) -> None:
    kind, _ = VALUES[name]
    for values in ([], [None, None]):
        table = pa.table({"v": pa.array(values, kind)})
        back = decoded(encode_parquet(table, 0).data)
        assert back.equals(table)


def test_nan_payload_and_negative_zero_keep_their_bits() -> None:
    bits = np.array([0x7FF8000000000001, 0x8000000000000000, 0x7FF0000000000000], np.uint64)
    table = pa.table({"v": bits.view(np.float64)})
    back = decoded(encode_parquet(table, 0).data).column("v").to_numpy()
    assert back.view(np.uint64).tolist() == bits.tolist()


def test_columns_that_may_not_be_null_stay_so() -> None:
    schema = pa.schema([pa.field("k", pa.binary(), nullable=False)])
    check_storable(schema, what="the table")
    encoded = encode_parquet(schema.empty_table(), 0)
    assert not pq.read_schema(pa.BufferReader(encoded.data)).field("k").nullable


@pytest.mark.parametrize(
    "kind",
    [
        pa.month_day_nano_interval(),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.struct([]),
        pa.dictionary(pa.int8(), pa.int64()),
    ],
)
def test_a_type_that_would_not_come_back_is_refused_when_declared(
    kind: pa.DataType,
) -> None:
    with pytest.raises(SchemaError, match="cannot be stored") as raised:
        check_storable(pa.schema([("v", kind)]), what="table 'sessions'")
    assert raised.value.code is ErrorCode.UNSUPPORTED_VALUE_TYPE
    assert "table 'sessions'" in raised.value.message


def test_a_column_named_twice_is_refused() -> None:
    with pytest.raises(SchemaError, match="twice"):
        check_storable(pa.schema([("v", pa.int8()), ("v", pa.int8())]), what="the table")


@pytest.mark.slow
def test_rows_of_huge_values_make_short_segments() -> None:
    table = pa.table({"v": [b"x" * (ROW_GROUP_BYTES // 3)] * 5 + [b"y"]})
    segments = list(cut_row_groups(table))
    assert len(segments) > 1
    assert all(segment.nbytes <= ROW_GROUP_BYTES for segment in segments)
    assert pa.Table.from_batches(segments).equals(table)


def test_one_value_above_the_segment_size_is_a_segment_of_its_own() -> None:
    table = pa.table({"v": [b"x" * (ROW_GROUP_BYTES + 1), b"y"]})
    assert [segment.num_rows for segment in cut_row_groups(table)] == [1, 1]


def test_a_table_of_many_chunks_becomes_whole_segments() -> None:
    chunks = ROW_GROUP_ROWS // 1_000 + 5
    table = pa.concat_tables([hashed_rows(1_000)] * chunks)
    assert [segment.num_rows for segment in cut_row_groups(table)] == [
        ROW_GROUP_ROWS,
        chunks * 1_000 - ROW_GROUP_ROWS,
    ]


def test_the_encoded_file_describes_its_own_bytes() -> None:
    encoded = encode_parquet(hashed_rows(100), 4)
    length = struct.unpack("<I", encoded.data[-8:-4])[0] + 8
    assert encoded.row_count == 100
    assert encoded.checksum == checksum_of(encoded.data)
    assert encoded.footer_bytes == length
    assert encoded.footer_checksum == checksum_of(encoded.data[-length:])


def test_numbers_times_and_hashes_get_no_dictionary() -> None:
    table = hashed_rows(1_000).append_column(
        "t", pa.array(range(1_000), pa.timestamp("us"))
    )
    found = encodings_of(table)
    assert "DELTA_BINARY_PACKED" in found["_key_hash"]
    assert "DELTA_BINARY_PACKED" in found["number"]
    assert "DELTA_BINARY_PACKED" in found["t"]
    assert "BYTE_STREAM_SPLIT" in found["amount"]


def test_text_gets_a_dictionary_only_where_it_repeats() -> None:
    table = pa.table(
        {
            "city": ["Kyoto", "Oslo", None, "Oslo"] * 5_000,
            "id": [f"user-{n}" for n in range(20_000)],
        }
    )
    found = encodings_of(table)
    assert "RLE_DICTIONARY" in found["city"]
    assert "RLE_DICTIONARY" not in found["id"]


def test_sorted_hashes_take_fewer_bytes_than_plain_ones() -> None:
    hashes = hashed_rows(50_000).select(["_key_hash"])
    assert len(encode_parquet(hashes, 0).data) < 50_000 * 7.5


def test_statistics_hold_hashes_above_the_signed_range() -> None:
    table = pa.table({"_key_hash": np.array([1, (1 << 64) - 1], np.uint64)})
    metadata = pq.read_metadata(pa.BufferReader(encode_parquet(table, 0).data))
    statistics = metadata.row_group(0).column(0).statistics
    assert statistics is not None
    assert (statistics.min, statistics.max) == (1, (1 << 64) - 1)


def test_duckdb_reads_a_state_file(tmp_path: Any) -> None:
    path = tmp_path / "state.parquet"
    table = hashed_rows(1_000)
    path.write_bytes(encode_parquet(table, 0).data)
    read = duckdb.connect().read_parquet(str(path)).aggregate("sum(number), max(_key_hash)")
    expected = (pc.sum(table["number"]).as_py(), table["_key_hash"][-1].as_py())
    assert read.fetchall() == [expected]


def test_the_footer_metadata_goes_both_ways() -> None:
    metadata = CheckpointParquetMetadata(7, (0, 1, (1 << 64) - 1))
    pairs = {
        name.encode(): value.encode() for name, value in metadata.to_key_values().items()
    }
    assert CheckpointParquetMetadata.from_key_values(pairs, path="p") == metadata


@pytest.mark.parametrize("pairs", [None, {}, {b"penstock.state_version": b"1"}])
def test_a_footer_without_the_metadata_is_foreign(pairs: dict[bytes, bytes] | None) -> None:
    with pytest.raises(CorruptStateError, match="not a state file") as raised:
        CheckpointParquetMetadata.from_key_values(pairs, path="a/b.parquet")
    assert raised.value.code is ErrorCode.FOREIGN_OBJECT


@pytest.mark.parametrize(
    ("version", "checksums"), [(b"x", b""), (b"", b""), (b"-1", b""), (b"1", b"0" * 15)]
)
def test_a_garbled_footer_is_undecodable(version: bytes, checksums: bytes) -> None:
    pairs = {b"penstock.state_version": version, b"penstock.segment_checksums": checksums}
    with pytest.raises(CorruptStateError, match="garbled") as raised:
        CheckpointParquetMetadata.from_key_values(pairs, path="p")
    assert raised.value.code is ErrorCode.UNDECODABLE


def test_rows_of_another_schema_are_refused_by_the_encoder() -> None:
    encoder = ParquetEncoder(pa.schema([("v", pa.int64())]), 0, pa.table({"v": [1]}))
    with pytest.raises(SchemaError):
        encoder.write(pa.record_batch({"w": ["x"]}))


def test_a_table_without_rows_is_an_empty_batch() -> None:
    batch = as_batch(hashed_rows(0))
    assert (batch.num_rows, batch.schema) == (0, hashed_rows(0).schema)


def test_a_footer_without_an_arrow_schema_is_refused() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(hashed_rows(1), sink, store_schema=False)
    with pytest.raises(pa.ArrowInvalid, match="no Arrow schema"):
        decode_row_groups(pa.BufferReader(sink.getvalue()), None, None)
