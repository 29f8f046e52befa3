"""What `for_each_epoch` stages, without Spark: rows in Spark's types, or an error in time."""

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as pen
from penstock.connectors.files.committed import schema_of
from penstock.connectors.files.output.parts import StagedParts
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.state.storage.memory import MemoryStore
from penstock.testing import OperatorHarness
from tests.builders.graphs import schema_of as columns_of

TOO_FAR = {
    "seconds": pa.timestamp("s"),
    "milliseconds": pa.timestamp("ms", "UTC"),
    "duration": pa.duration("s"),
}


def a_sink(schema: pa.Schema, store: MemoryStore) -> OperatorHarness:
    return OperatorHarness(pen.for_each_epoch(lambda *_: None), schema, store=store)


def far(kind: Any) -> "pa.Array[Any]":
    return pa.array([0, 2**62], pa.int64()).view(kind)


@pytest.mark.parametrize("name", TOO_FAR)
def test_a_value_beyond_microseconds_fails_the_epoch_before_it_is_staged(name: str) -> None:
    store, schema = MemoryStore(), columns_of(n=pa.int64(), odd=TOO_FAR[name])
    with a_sink(schema, store) as sink:
        sink.push(pa.table([pa.array([1, 2]), far(TOO_FAR[name])], schema=schema))
        with pytest.raises(UserError, match=r"column 'odd' .* Spark's") as raised:
            sink.barrier()
        assert sink.commits == {}
    assert raised.value.code is ErrorCode.VALUE_OUT_OF_RANGE
    assert list(store.list("_staging")) == []


def test_rows_are_staged_in_the_types_that_spark_reads() -> None:
    store = MemoryStore()
    schema = columns_of(small=pa.uint8(), at=pa.timestamp("ms"), name=pa.large_string())
    with a_sink(schema, store) as sink:
        sink.push([{"small": 255, "at": 1_000, "name": "a"}])
        sink.barrier()
        [data] = sink.commits[1]["staged"].values()
    staged = msgspec.json.decode(data, type=StagedParts)
    form = columns_of(small=pa.int16(), at=pa.timestamp("us"), name=pa.string())
    assert schema_of(staged.schema) == form
    bytes_staged = store.read(staged.files[0].staged)
    assert pq.read_table(pa.BufferReader(bytes_staged)).schema == form


def test_decimals_that_parquet_cannot_hold_are_refused_when_the_pipeline_is_built() -> None:
    with pytest.raises(SchemaError, match="'x'"):
        a_sink(columns_of(x=pa.decimal128(5, -2)), MemoryStore())


def test_an_epoch_without_rows_has_nothing_to_commit() -> None:
    with a_sink(columns_of(n=pa.int64()), MemoryStore()) as sink:
        sink.barrier()
        assert sink.commits == {}
