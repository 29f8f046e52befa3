"""Whatever can be declared as a value or key comes back from state as it was put."""

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import SchemaError
from tests.unit.state.tables.keyed_harness import KeyedHarness, a_schema

MOMENT = dt.datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=dt.UTC)
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "null": (pa.null(), [None, None]),
    "bool": (pa.bool_(), [True, False, None]),
    "int8": (pa.int8(), [-128, 127, None]),
    "uint64": (pa.uint64(), [0, 2**64 - 1, None]),
    "float16": (pa.float16(), [np.float16(1.5), np.float16("-inf"), None]),
    "float32": (pa.float32(), [1.5, -0.0, None]),
    "float64": (pa.float64(), [float("inf"), 5e-324, None]),
    "decimal32": (pa.decimal32(5, 2), [Decimal("-999.99"), None]),
    "decimal128": (pa.decimal128(38, 10), [Decimal("1E+27"), Decimal("-0.1"), None]),
    "decimal256": (pa.decimal256(76, 0), [Decimal(10**75), Decimal(-1), None]),
    "date32": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "date64": (pa.date64(), [dt.date(1969, 12, 31), None]),
    "time32": (pa.time32("s"), [dt.time(23, 59, 59), None]),
    "time64": (pa.time64("us"), [dt.time(23, 59, 59, 999_999), None]),
    "timestamp s": (pa.timestamp("s"), [dt.datetime(1900, 1, 1), None]),  # noqa: DTZ001 - without a zone
    "timestamp us": (pa.timestamp("us"), [dt.datetime(1, 1, 1), None]),  # noqa: DTZ001 - without a zone
    "timestamp with zone": (pa.timestamp("us", "Europe/Prague"), [MOMENT, None]),
    "timestamp ms": (pa.timestamp("ms", "UTC"), [MOMENT.replace(microsecond=7_000), None]),
    "duration": (pa.duration("us"), [dt.timedelta(days=-1, microseconds=1), None]),
    "string": (pa.string(), ["", "žluťoučký 🐎 \0", "x" * 10_000, None]),
    "large_string": (pa.large_string(), ["", "鍵", None]),
    "string_view": (pa.string_view(), ["short", "longer than twelve bytes", None]),
    "binary": (pa.binary(), [b"", b"\0\xff", None]),
    "binary_view": (pa.binary_view(), [b"", b"\xff" * 20, None]),
    "fixed binary": (pa.binary(3), [b"abc", None]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a", None]),
    "dictionary of ints": (pa.dictionary(pa.int32(), pa.int64()), [5, 6, 5, None]),
    "list": (pa.list_(pa.int64()), [[], [1, None], None]),
    "large list": (pa.large_list(pa.string()), [[], ["a", None], None]),
    "fixed list": (pa.list_(pa.float32(), 2), [[1.0, None], None]),
    "list of lists": (pa.list_(pa.list_(pa.string())), [[["a"], [], None], [], None]),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": 1, "b": None}, None],
    ),
    "nested": (
        pa.struct(
            [("items", pa.list_(pa.struct([("tags", pa.map_(pa.string(), pa.int8()))])))]
        ),
        [{"items": [{"tags": [("é", 1)]}, {"tags": []}, None]}, {"items": None}, None],
    ),
    "map": (
        pa.map_(pa.string(), pa.list_(pa.int64())),
        [[("a", [1]), ("b", None)], [], None],
    ),
    "dictionary inside": (
        pa.struct([("d", pa.dictionary(pa.int8(), pa.string()))]),
        [{"d": "x"}, {"d": None}, None],
    ),
    "uuid": (pa.uuid(), [uuid.UUID(int=7), None]),
}
UNHASHED = {"nested", "map"}
"""Types that cannot be keys: maps have no order."""


def array_of(data_type: Any, values: list[Any]) -> Any:
    if isinstance(data_type, pa.UuidType):
        values = [None if value is None else value.bytes for value in values]
    return pa.array(values, data_type)


def numbers(count: int) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(range(count), pa.int64())})


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_from_every_place_it_passes(tmp_path: Path, name: str) -> None:
    data_type, values = VALUES[name]
    schema = a_schema({"key": pa.int64(), "value": data_type}, "key")
    harness = KeyedHarness(tmp_path, schema)
    column = array_of(data_type, values)
    probe = numbers(len(values) + 1)

    def check() -> None:
        answer = harness.views[0].get(probe)
        found = answer.rows.column("value")
        assert found.type.equals(data_type)
        assert found.to_pylist() == [*column.to_pylist(), None]
        assert answer.found.tolist() == [True] * len(values) + [False]
        scanned = {row["key"]: row["value"] for row in harness.scan()}
        assert [scanned[key] for key in range(len(values))] == column.to_pylist()

    harness.put(numbers(len(values)).append_column("value", column))
    check()
    harness.checkpoint()
    check()
    harness.cache_root = tmp_path / "cold"
    harness.restore(1)
    check()
    harness.delete(pa.record_batch({"key": [999]}))
    harness.checkpoint()
    check()
    assert harness.compact(min_files=2) == 1
    check()
    harness.cache_root = tmp_path / "colder"
    harness.restore(1)
    check()


@pytest.mark.parametrize("name", sorted(set(VALUES) - UNHASHED))
def test_a_value_of_any_type_but_maps_can_be_the_key(tmp_path: Path, name: str) -> None:
    data_type, values = VALUES[name]
    distinct = list({repr(value): value for value in values}.values())
    keys = pa.record_batch({"key": array_of(data_type, distinct)})
    count = pa.array(range(len(distinct)), pa.int64())
    harness = KeyedHarness(tmp_path, a_schema({"key": data_type, "n": pa.int64()}, "key"))
    harness.put(keys.append_column("n", count))
    assert harness.views[0].get(keys).rows.column("n").equals(count)
    harness.checkpoint()
    harness.cache_root = tmp_path / "cold"
    harness.restore(1)
    answer = harness.views[0].get(keys).rows
    assert answer.column("n").equals(count)
    assert answer.column("key").to_pylist() == keys.column("key").to_pylist()
    harness.delete(keys.slice(0, 1))
    assert harness.views[0].get(keys).found.tolist() == [False] + [True] * (
        len(distinct) - 1
    )
    assert len(harness.scan()) == len(distinct) - 1


@pytest.mark.slow
@pytest.mark.parametrize("data_type", [pa.string(), pa.large_binary()], ids=str)
def test_huge_values_come_back(tmp_path: Path, data_type: Any) -> None:
    size = 50 << 20
    schema = a_schema({"key": pa.int64(), "value": data_type}, "key")
    harness = KeyedHarness(tmp_path, schema, memory_budget_bytes=32 << 20)
    for key in range(3):
        value = bytes([65 + key]) * size
        column = pa.array([value], pa.large_binary()).cast(data_type)
        harness.put(pa.RecordBatch.from_arrays([pa.array([key]), column], ["key", "value"]))
    harness.checkpoint()
    harness.cache_root = tmp_path / "cold"
    harness.restore(1)
    for key in range(3):
        answer = harness.views[0].get(pa.record_batch({"key": [key, 7]}))
        found = answer.rows.column("value")
        assert found.cast(pa.large_binary())[0].as_py() == bytes([65 + key]) * size
        assert answer.found.tolist() == [True, False]


def test_an_answer_too_large_for_its_columns_says_what_to_do(tmp_path: Path) -> None:
    narrow = pa.dictionary(pa.int8(), pa.string())
    harness = KeyedHarness(tmp_path, a_schema({"key": pa.int64(), "value": narrow}, "key"))
    for start in (0, 100):
        values = pa.array([f"v{n}" for n in range(start, start + 100)], narrow)
        keys = pa.array(range(start, start + 100), pa.int64())
        harness.put(pa.RecordBatch.from_arrays([keys, values], ["key", "value"]))
    with pytest.raises(SchemaError, match="fewer keys at a time"):
        harness.views[0].get(numbers(200))
    answer = harness.views[0].get(numbers(100)).rows
    assert answer.column("value").to_pylist() == [f"v{n}" for n in range(100)]
    found = {row["key"]: row["value"] for row in harness.scan()}
    assert found == {n: f"v{n}" for n in range(200)}


def test_state_files_open_in_other_tools(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    harness = KeyedHarness(
        tmp_path / "cache", a_schema({"key": pa.string(), "n": pa.int64()}, "key")
    )
    harness.put(pa.record_batch({"key": ["ä", "b"], "n": [1, 2]}))
    harness.delete(pa.record_batch({"key": ["c"]}))
    harness.checkpoint()
    (file,) = harness.files()
    data = harness.store.read(file.path)
    assert data is not None
    (tmp_path / "state.parquet").write_bytes(data)
    query = "select key, n, _operation from read_parquet($path) order by key"
    found = duckdb.execute(query, {"path": str(tmp_path / "state.parquet")}).fetchall()
    assert found == [("b", 2, 0), ("c", None, 1), ("ä", 1, 0)]
