"""Columns and values that name folders: whatever a folder's name could not tell is refused."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.files.names import (
    add_partition,
    find_partition_problems,
    split_rows,
)
from penstock.errors import ErrorCode, UserError
from tests.builders.graphs import schema_of

YEAR_10000 = 253_402_300_800


def split(values: "pa.Array[Any]") -> list[tuple[Any, pa.RecordBatch]]:
    rows = pa.record_batch({"n": pa.array(range(len(values))), "key": values})
    return list(split_rows(rows, ["key"]))


@pytest.mark.parametrize(
    "kind",
    [
        pa.float64(),
        pa.decimal256(50, 2),
        pa.decimal256(10, 2),
        pa.decimal128(5, -2),
        pa.timestamp("us", "+05:30"),
        pa.binary(),
    ],
)
def test_a_type_that_cannot_name_a_folder_is_refused(kind: pa.DataType) -> None:
    [problem] = find_partition_problems(["key"], schema_of(n=pa.int64(), key=kind))
    assert f"'key' of type {kind}" in problem


@pytest.mark.parametrize(
    "values",
    [
        pa.array([Decimal("1.20"), Decimal("-0.05"), None], pa.decimal128(38, 2)),
        pa.array([True, False, None]),
        pa.array([2**64 - 1, 0], pa.uint64()),
        pa.array([0, 86_400_000, -86_400_000], pa.int64()).view(pa.date64()),
        pa.array([-1, YEAR_10000 - 1, None], pa.int64()).view(pa.timestamp("s")),
        pa.array([1, None], pa.int64()).view(pa.timestamp("ns", "Europe/Berlin")),
        pa.array(["", "a", "ü/%2F"], pa.large_string()),
    ],
    ids=lambda values: str(values.type),
)
def test_a_value_comes_back_from_its_folder(values: "pa.Array[Any]") -> None:
    schema = schema_of(n=pa.int64(), key=values.type)
    found = [
        add_partition(pa.Table.from_batches([rows]), ["key"], partition, schema)
        for partition, rows in split(values)
    ]
    assert pa.concat_tables(found)["key"].combine_chunks() == values


@pytest.mark.parametrize(
    "value",
    [
        pa.array([YEAR_10000], pa.int64()).view(pa.timestamp("s")),
        pa.array([YEAR_10000 * 1000], pa.int64()).view(pa.timestamp("ms", "UTC")),
        pa.array([-800_000], pa.int32()).view(pa.date32()),
        pa.array([2**62], pa.int64()).view(pa.timestamp("us")),
        pa.array([1], pa.int64()).view(pa.date64()),
        pa.array([-62_135_596_802], pa.int64()).view(pa.timestamp("s", "Europe/Berlin")),
    ],
    ids=lambda value: str(value.type),
)
def test_a_value_that_would_not_come_back_is_refused(value: "pa.Array[Any]") -> None:
    with pytest.raises(UserError, match=r"names 'key', .* that no folder's name") as raised:
        split(pa.concat_arrays([pa.nulls(1, value.type), value]))
    assert raised.value.code is ErrorCode.VALUE_OUT_OF_RANGE
    assert raised.value.context["column"] == "key"
