"""Dictionary columns between tasks: the same values, and no more of them than are used."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UserError
from penstock.runtime.task.wire import (
    cut,
    decode_batch,
    encode_batch,
    has_dictionaries,
    trim_dictionaries,
)


def coded(
    indices: list[int | None],
    values: list[str],
    *,
    index_type: pa.DataType | None = None,
    ordered: bool = False,
) -> pa.RecordBatch:
    codes: Any = pa.array(indices, index_type or pa.int16())
    array: Any = pa.DictionaryArray.from_arrays(codes, pa.array(values), ordered=ordered)
    return pa.RecordBatch.from_arrays([array], names=["word"])


def test_dictionaries_are_found_at_any_depth() -> None:
    inner: pa.DataType = pa.dictionary(pa.int8(), pa.string())
    assert has_dictionaries(pa.schema({"x": inner}))
    assert has_dictionaries(pa.schema({"x": pa.list_(pa.struct([("y", inner)]))}))
    assert not has_dictionaries(pa.schema({"x": pa.string()}))


@given(
    st.lists(st.none() | st.integers(0, 19), max_size=60),
    st.sampled_from([pa.int8(), pa.uint16(), pa.int64()]),
    st.booleans(),
    st.integers(0, 10),
)
def test_a_trimmed_batch_is_the_same_rows_of_the_same_type(
    indices: list[int | None], index_type: pa.DataType, ordered: bool, start: int
) -> None:
    values = [f"value {number}" for number in range(20)]
    batch = coded(indices, values, index_type=index_type, ordered=ordered).slice(start)
    trimmed = trim_dictionaries(batch)
    assert trimmed.schema == batch.schema
    assert trimmed.to_pylist() == batch.to_pylist()
    assert (
        decode_batch(encode_batch(trimmed), batch.schema).to_pylist() == batch.to_pylist()
    )


def test_a_few_rows_take_only_their_values_along() -> None:
    whole = coded([*range(1_000)], [f"{number:01000}" for number in range(1_000)])
    few = trim_dictionaries(whole.slice(10, 3))
    column: Any = few.column(0)
    assert column.dictionary.to_pylist() == [f"{number:01000}" for number in (10, 11, 12)]


def test_what_is_left_of_an_ordered_dictionary_is_in_its_order() -> None:
    order = [f"{name:>100}" for name in ("low", "middle", "high", "extreme")]
    trimmed = trim_dictionaries(coded([2, 0, None, 2], order, ordered=True))
    column: Any = trimmed.column(0)
    assert column.dictionary.to_pylist() == [order[0], order[2]]
    assert column.to_pylist() == [order[2], order[0], None, order[2]]


def test_small_dictionaries_are_left_alone() -> None:
    batch = coded([1] * 1_000, ["a", "b"])
    column: Any = trim_dictionaries(batch).column(0)
    assert column.dictionary.to_pylist() == ["a", "b"]


def test_pieces_of_a_batch_weigh_no_more_than_the_batch() -> None:
    values = [f"{number:01150}" for number in range(2_000)]
    batch = coded([*range(2_000)], values)
    pieces = cut(batch, target_bytes=100_000)
    assert sum(piece.num_rows for piece in pieces) == 2_000
    assert [row for piece in pieces for row in piece.to_pylist()] == batch.to_pylist()
    assert 10 <= len(pieces) <= 40
    assert sum(piece.nbytes for piece in pieces) <= 1.1 * batch.nbytes


def test_a_large_dictionary_is_no_large_row() -> None:
    batch = coded([0, 1, 2], ["x" * 5_000] * 2 + ["y" * 5_000])
    pieces = cut(batch, target_bytes=1_000, max_row_bytes=6_000)
    assert [piece.num_rows for piece in pieces] == [1, 1, 1]


@pytest.mark.parametrize("rows", [2, 50, 2_000])
def test_a_dictionary_within_lists_is_not_sent_again_and_again(rows: int) -> None:
    values = coded(
        [*range(rows)], [f"{number:0{400_000 // rows}}" for number in range(rows)]
    )
    lists: Any = pa.ListArray.from_arrays(
        pa.array(range(rows + 1), pa.int32()), values.column(0)
    )
    batch = pa.RecordBatch.from_arrays([lists], names=["words"])
    pieces = cut(batch, target_bytes=100_000)
    assert sum(piece.nbytes for piece in pieces) <= 2 * batch.nbytes
    assert [row for piece in pieces for row in piece.to_pylist()] == batch.to_pylist()


def test_a_dictionary_within_lists_that_is_too_large_to_be_moved_is_refused() -> None:
    values = coded([0, 1], ["x" * 5_000, "y" * 5_000]).column(0)
    lists: Any = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), values)
    batch = pa.RecordBatch.from_arrays([lists], names=["words"])
    with pytest.raises(UserError, match="a dictionary inside of rows has 10,"):
        cut(batch, target_bytes=1_000, max_row_bytes=6_000)
