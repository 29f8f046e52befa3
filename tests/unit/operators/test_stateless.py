from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from penstock.core.schema import StreamSchema
from penstock.errors import SchemaError, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.stateless import (
    KeyByConfig,
    UnionConfig,
    flat_map_spec,
    map_batches_spec,
)
from penstock.operators.user_functions import pickle_function
from tests.builders.chain_rig import an_operator, run_stateless

BATCH = pa.RecordBatch.from_pydict({"n": [1, 2, 3], "name": ["a", "b", "c"]})
STREAM = StreamSchema(BATCH.schema)
LENGTHS = StreamSchema(pa.schema({"length": pa.int64()}))


def twice(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [batch, batch]


def as_frame(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("n") * 10)


def as_table(table: pa.Table) -> pa.Table:
    assert isinstance(table, pa.Table)
    return table.slice(1)


def test_map_batches_gives_one_result_per_batch() -> None:
    spec = map_batches_spec(lambda batch: batch.slice(0, 1))

    assert run_stateless(spec, STREAM, BATCH, BATCH).rows() == [{"n": 1, "name": "a"}] * 2


@pytest.mark.parametrize(
    ("function", "expected"), [(as_frame, [10, 20, 30]), (as_table, [2, 3])]
)
def test_a_function_gets_the_kind_of_rows_it_is_annotated_with(
    function: object, expected: list[int]
) -> None:
    emitted = run_stateless(map_batches_spec(function), STREAM, BATCH)  # type: ignore[arg-type]

    assert [row["n"] for row in emitted.rows()] == expected
    assert emitted.batches()[0].schema.equals(BATCH.schema)


def test_another_schema_is_declared_with_the_function() -> None:
    spec = map_batches_spec(
        lambda batch: pa.RecordBatch.from_pydict({"length": [batch.num_rows]}), LENGTHS
    )

    assert an_operator(spec).output_schema((STREAM,)) == LENGTHS
    assert run_stateless(spec, STREAM, BATCH).rows() == [{"length": 3}]


def test_a_result_of_another_schema_than_declared_is_refused() -> None:
    spec = map_batches_spec(lambda batch: batch.select(["n"]))

    with pytest.raises(SchemaError, match="'name' is missing"):
        run_stateless(spec, STREAM, BATCH)


def test_a_result_that_is_no_rows_is_refused() -> None:
    with pytest.raises(SchemaError, match="NoneType"):
        run_stateless(map_batches_spec(lambda _: None), STREAM, BATCH)


def test_flat_map_emits_every_result() -> None:
    assert len(run_stateless(flat_map_spec(twice), STREAM, BATCH).batches()) == 2
    assert run_stateless(flat_map_spec(lambda _: []), STREAM, BATCH).batches() == []


def test_flat_map_takes_generators() -> None:
    def singles(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for row in range(batch.num_rows):
            yield batch.slice(row, 1)

    emitted = run_stateless(flat_map_spec(singles), STREAM, BATCH)

    assert [batch.num_rows for batch in emitted.batches()] == [1, 1, 1]


@pytest.mark.parametrize("result", [BATCH, pl.DataFrame({"n": [1]}), None, 7])
def test_flat_map_refuses_a_single_result(result: object) -> None:
    with pytest.raises(UserError, match="list of batches"):
        run_stateless(flat_map_spec(lambda _: result), STREAM, BATCH)


def test_something_that_is_not_a_function_is_refused() -> None:
    with pytest.raises(UserError, match="not a function"):
        an_operator(OperatorSpec("map_batches", {"function": pickle_function(7)}))


def test_key_by_changes_the_key_and_nothing_else() -> None:
    spec = KeyByConfig(
        (
            "name",
            "n",
        )
    ).to_operator_spec()

    assert an_operator(spec).output_schema((STREAM,)) == STREAM.keyed_by("name", "n")
    assert run_stateless(spec, STREAM, BATCH).batches()[0] is BATCH


def test_key_by_an_unknown_column_is_refused_with_a_suggestion() -> None:
    with pytest.raises(SchemaError, match="did you mean 'name'"):
        an_operator(KeyByConfig(("nmae",)).to_operator_spec()).output_schema((STREAM,))


def test_key_by_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="at least one"):
        an_operator(KeyByConfig(()).to_operator_spec())


def test_a_union_has_the_schema_of_its_first_input() -> None:
    fields: list[pa.Field[Any]] = [
        pa.field("name", pa.large_string()),
        pa.field("n", pa.int64()),
    ]
    wide = StreamSchema(pa.schema(fields), None, ("n",))

    output = an_operator(UnionConfig().to_operator_spec()).output_schema(
        (STREAM.keyed_by("name"), wide)
    )

    assert output == STREAM


def test_a_union_keeps_a_key_that_all_inputs_have() -> None:
    keyed = STREAM.keyed_by("name")

    assert (
        an_operator(UnionConfig().to_operator_spec()).output_schema((keyed, keyed)) == keyed
    )


def test_a_union_of_different_streams_is_refused_with_all_differences() -> None:
    fields: list[pa.Field[Any]] = [
        pa.field("n", pa.float64()),
        pa.field("extra", pa.timestamp("us")),
    ]
    other = StreamSchema(pa.schema(fields), "extra")

    with pytest.raises(SchemaError) as caught:
        an_operator(UnionConfig().to_operator_spec()).output_schema((STREAM, STREAM, other))

    for problem in (
        "input 2: column 'name' is missing",
        "input 2: column 'n' is double, expected int64",
        "input 2: column 'extra'",
        "input 2: its time column is 'extra'",
    ):
        assert problem in caught.value.message
    assert "input 1" not in caught.value.message
