import time
from datetime import datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from penstock.core.batch import (
    describe_sample,
    find_differences,
    to_batch,
    to_batches,
    to_rows,
)
from penstock.errors import SchemaError


def schema_of(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(columns)


EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001
NAMES = schema_of(name=pa.string(), n=pa.int64())
BATCH = pa.RecordBatch.from_pylist([{"name": "a", "n": 1}, {"name": None, "n": 2}], NAMES)


def test_a_batch_of_the_schema_is_passed_on_as_it_is() -> None:
    assert to_batches(BATCH, NAMES)[0] is BATCH


@pytest.mark.parametrize(
    "empty",
    [BATCH.slice(0, 0), pa.table(BATCH.slice(0, 0)), pl.DataFrame(BATCH).clear()],
    ids=["batch", "table", "frame"],
)
def test_no_rows_are_no_batches(empty: object) -> None:
    assert to_batches(empty, NAMES) == []


def test_a_table_of_several_chunks_becomes_one_batch() -> None:
    table = pa.Table.from_batches([BATCH, BATCH.slice(0, 0), BATCH])
    batches = to_batches(table, NAMES)
    assert [batch.num_rows for batch in batches] == [4]


def test_columns_are_put_in_order_and_metadata_is_the_declared_one() -> None:
    given = BATCH.select(["n", "name"]).replace_schema_metadata({"made": "elsewhere"})
    (batch,) = to_batches(given, NAMES)
    assert batch.schema.equals(NAMES, check_metadata=True)
    assert batch.to_pylist() == BATCH.to_pylist()


LAYOUTS: list[tuple[Any, Any]] = [
    (pa.large_string(), pa.string()),
    (pa.string_view(), pa.string()),
    (pa.string(), pa.large_string()),
    (pa.large_binary(), pa.binary()),
    (pa.binary_view(), pa.binary()),
    (pa.dictionary(pa.int32(), pa.string()), pa.string()),
    (pa.large_list(pa.int64()), pa.list_(pa.int64())),
    (pa.list_(pa.large_string()), pa.list_(pa.string())),
    (pa.struct([("a", pa.large_string())]), pa.struct([("a", pa.string())])),
    (pa.null(), pa.int64()),
]
OTHERS: list[tuple[Any, Any]] = [
    (pa.int32(), pa.int64()),
    (pa.int64(), pa.float64()),
    (pa.float64(), pa.int64()),
    (pa.string(), pa.binary()),
    (pa.timestamp("ms"), pa.timestamp("us")),
    (pa.list_(pa.int32()), pa.list_(pa.int64())),
    (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())])),
]


@pytest.mark.parametrize(("found", "expected"), LAYOUTS, ids=str)
def test_another_layout_of_the_same_values_is_converted(found: Any, expected: Any) -> None:
    assert find_differences(schema_of(x=found), schema_of(x=expected)) == []
    column = pa.nulls(2, found)
    (batch,) = to_batches(pa.table({"x": column}), schema_of(x=expected))
    assert batch.schema.field("x").type == expected


@pytest.mark.parametrize(("found", "expected"), OTHERS, ids=str)
def test_another_type_is_refused(found: Any, expected: Any) -> None:
    problem = f"column 'x' is {found}, expected {expected}"
    assert find_differences(schema_of(x=found), schema_of(x=expected)) == [problem]
    with pytest.raises(SchemaError, match="column 'x' is"):
        to_batches(pa.table({"x": pa.nulls(1, found)}), schema_of(x=expected))


def test_a_dictionary_keeps_its_values_when_it_is_made_plain() -> None:
    encoded = pa.table({"x": pa.array(["a", "b", "a"]).dictionary_encode()})
    (batch,) = to_batches(encoded, schema_of(x=pa.string()))
    assert batch.column("x").to_pylist() == ["a", "b", "a"]


def test_every_difference_is_named_at_once() -> None:
    with pytest.raises(SchemaError) as raised:
        to_batches(pa.record_batch({"nam": ["a"], "n": [1.5]}), NAMES)
    for part in (
        "column 'name' is missing",
        "did you mean 'nam'",
        "column 'nam' (string) is not in the schema",
        "column 'n' is double, expected int64",
    ):
        assert part in raised.value.message


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([1, 2], "list of int"),
        ("rows", "str"),
        (7, "int"),
        (None, "NoneType"),
        (pl.Series([1]), "Series"),
        (pl.LazyFrame({"n": [1]}), "LazyFrame"),
    ],
)
def test_what_is_no_rows_at_all_is_named(given: Any, named: str) -> None:
    with pytest.raises(SchemaError, match=f"got {named}$"):
        to_batches(given, NAMES)


def test_a_sample_shows_the_first_rows_and_cuts_long_ones() -> None:
    long = pa.RecordBatch.from_pylist([{"name": "x" * 500, "n": 1}] * 7, NAMES)
    lines = describe_sample(long).splitlines()
    assert len(lines) == 6
    assert all(len(line) <= 201 and line.endswith("…") for line in lines[:5])
    assert lines[5] == "… and 2 more rows"
    assert describe_sample(BATCH).splitlines() == [repr(row) for row in BATCH.to_pylist()]


def test_a_sample_with_dates_that_python_lacks_is_shown_as_arrow_has_it() -> None:
    far = pa.array([253_402_300_800, None], pa.int64()).view(pa.timestamp("s"))
    sample = describe_sample(pa.record_batch({"n": pa.array([1, 2]), "far": far}))
    assert sample.splitlines() == ["n: [ 1, 2 ]", "far: [ 10000-01-01 00:00:00, null ]"]


def test_wide_rows_take_time_in_proportion_to_their_columns() -> None:
    columns = [f"column {number}" for number in range(20_000)]
    wide = pa.table({name: [1, 2, 3] for name in columns})
    other = pa.schema([(f"other {number}", pa.int64()) for number in range(20_000)])
    start = time.process_time()
    schema = pa.schema([(name, pa.int64()) for name in reversed(columns)])
    by_name: dict[str, Any] = {name: [1, 2, 3] for name in columns}
    for rows in (wide, by_name):
        [batch] = to_batches(rows, schema)
        assert batch.num_columns == 20_000
        assert to_batch(rows, schema, columns[1:]).num_columns == 19_999
    assert len(find_differences(wide.schema, other)) == 40_000
    # It is about two seconds; looking through all columns for each takes minutes.
    assert time.process_time() - start < 10


def test_a_column_that_occurs_twice_is_named() -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(SchemaError, match="column 'a' occurs more than once"):
        to_batches(twice, twice.schema)


FAR: Any = pa.array([253_402_300_800_000_000, 0, None]).view(pa.timestamp("us"))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (FAR, [253_402_300_800_000_000, EPOCH, None]),
        (pa.array([2**30], pa.int32()).view(pa.date32()), [2**30]),
        (pa.ListArray.from_arrays([0, 1, 3], FAR), [[FAR[0].value], [EPOCH, None]]),
        (pa.StructArray.from_arrays([FAR[:1]], ["at"]), [{"at": FAR[0].value}]),
    ],
    ids=["timestamps", "dates", "lists", "structs"],
)
def test_times_that_python_lacks_are_whole_numbers_among_rows(
    column: Any, expected: list[Any]
) -> None:
    rows = pa.table({"n": range(len(expected)), "far": column})
    assert [row["far"] for row in to_rows(rows)] == expected
    assert [row["n"] for row in to_rows(rows)] == list(range(len(expected)))
