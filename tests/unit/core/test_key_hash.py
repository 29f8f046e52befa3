import tracemalloc
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.core import settings
from penstock.core.ids import owner_of
from penstock.core.key_hash import (
    NULL_HASH,
    check_key_type,
    hash_keys,
    hash_keys_uncut,
    keep_top_bits,
    owners_of,
)
from penstock.errors import ErrorCode, SchemaError, UserError
from tests.golden.key_hash_reference import hash_bytes, hash_rows

CHUNK_ROWS = 16_384


def hashes_of(*columns: Any) -> list[int]:
    hashes: list[int] = hash_keys_uncut(columns).tolist()
    return hashes


def from_buffers(data_type: pa.DataType, length: int, *buffers: bytes | None) -> Any:
    wrapped = [None if one is None else pa.py_buffer(one) for one in buffers]
    return pa.Array.from_buffers(data_type, length, wrapped)


def int32s(*values: int) -> bytes:
    return np.array(values, dtype="<i4").tobytes()


@pytest.mark.parametrize("wider", [pa.int16(), pa.int32(), pa.int64()])
def test_a_widened_integer_hashes_as_before(wider: pa.DataType) -> None:
    narrow = pa.array([-128, -1, 0, 1, 127, None], pa.int8())

    assert hashes_of(narrow) == hashes_of(narrow.cast(wider))


@pytest.mark.parametrize("wider", [pa.uint64(), pa.int64()])
def test_a_widened_unsigned_integer_hashes_as_before(wider: pa.DataType) -> None:
    narrow = pa.array([0, 1, 2**32 - 1, None], pa.uint32())

    assert hashes_of(narrow) == hashes_of(narrow.cast(wider))


@pytest.mark.parametrize("narrow_type", [pa.float16(), pa.float32()])
def test_a_widened_float_hashes_as_before(narrow_type: pa.DataType) -> None:
    narrow = pa.array(
        [0.0, -0.0, 1.5, -2.25, float("inf"), float("nan"), None], narrow_type
    )

    assert hashes_of(narrow) == hashes_of(narrow.cast(pa.float64()))


def test_minus_zero_is_zero() -> None:
    minus, plus = hashes_of(pa.array([-0.0, 0.0]))

    assert minus == plus


def test_every_nan_is_the_same_key() -> None:
    patterns = [
        0x7FF8000000000000,
        0xFFF8000000000000,
        0x7FF0000000000001,
        0x7FFFFFFFFFFFFFFF,
    ]
    values = np.array(patterns, dtype=np.uint64).view(np.float64)

    assert len(set(hashes_of(pa.array(values)))) == 1


@pytest.mark.parametrize(
    "wider", [pa.decimal64(18, 2), pa.decimal128(38, 2), pa.decimal256(76, 2)]
)
def test_a_decimal_of_wider_precision_hashes_as_before(wider: pa.DataType) -> None:
    values = [Decimal("-1.50"), Decimal("0.00"), Decimal("9999999.99"), None]

    assert hashes_of(pa.array(values, pa.decimal32(9, 2))) == hashes_of(
        pa.array(values, wider)
    )


@pytest.mark.parametrize(
    "other",
    [pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()],
)
def test_text_hashes_by_its_bytes_whatever_holds_it(other: pa.DataType) -> None:
    text = pa.array(["", "a", "Zürich", "long enough not to be inlined in a view", None])

    assert hashes_of(text) == hashes_of(text.cast(other))


def test_bytes_of_fixed_size_hash_as_bytes() -> None:
    values = [b"abc", b"def", None, b"\x00\x00\x00"]

    assert hashes_of(pa.array(values, pa.binary(3))) == hashes_of(
        pa.array(values, pa.binary())
    )


def test_a_dictionary_hashes_as_its_values() -> None:
    plain = pa.array(["b", "a", None, "b", "c"])

    assert hashes_of(plain.dictionary_encode()) == hashes_of(plain)


def test_a_dictionary_larger_than_its_rows_hashes_as_its_values() -> None:
    plain = pa.array([f"v{number}" for number in range(100)])

    assert hashes_of(plain.dictionary_encode().slice(90, 3)) == hashes_of(
        plain.slice(90, 3)
    )


def test_a_null_inside_a_dictionary_is_null() -> None:
    indices = pa.array([0, 1, None, 1], pa.int8())
    encoded = pa.DictionaryArray.from_arrays(indices, pa.array(["a", None]))

    assert hashes_of(encoded)[1:] == [NULL_HASH] * 3


def test_a_dictionary_without_values_is_all_null() -> None:
    empty = pa.array([], pa.string())
    encoded = pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int8()), empty)

    assert hashes_of(encoded) == [NULL_HASH] * 2


def test_chunks_with_different_dictionaries_hash_as_their_values() -> None:
    first, second = pa.array(["a", "b", "a"]), pa.array(["b", "z", None])
    chunked = pa.chunked_array([first.dictionary_encode(), second.dictionary_encode()])

    assert hashes_of(chunked) == hashes_of(first) + hashes_of(second)


def test_run_ends_hash_as_the_repeated_values() -> None:
    plain = pa.array([1, 1, 1, None, 5, 5])
    encoded = pc.call_function("run_end_encode", [plain])

    assert hashes_of(encoded) == hashes_of(plain)
    assert hashes_of(encoded.slice(2, 3)) == hashes_of(plain.slice(2, 3))


def test_an_extension_hashes_as_its_storage() -> None:
    storage = pa.array([b"0123456789abcdef", None], pa.binary(16))

    assert hashes_of(pa.ExtensionArray.from_storage(pa.uuid(), storage)) == hashes_of(
        storage
    )


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        (0, pa.int64()),
        (0.0, pa.float64()),
        (False, pa.bool_()),
        ("", pa.string()),
        (b"", pa.binary(0)),
        (Decimal(0), pa.decimal128(9, 0)),
        ([], pa.list_(pa.int8())),
        ([None], pa.list_(pa.int8())),
        ({"x": None}, pa.struct([("x", pa.int8())])),
        ({}, pa.struct([])),
    ],
)
def test_null_is_distinct_from_what_looks_empty(value: Any, data_type: pa.DataType) -> None:
    hashes = hashes_of(pa.array([value, None], data_type))

    assert hashes[1] == NULL_HASH
    assert hashes[0] != NULL_HASH


def test_exactly_one_integer_shares_the_hash_of_null() -> None:
    assert hashes_of(pa.array([2154821783102845885])) == [NULL_HASH]


def test_null_rows_do_not_depend_on_the_bytes_below_them() -> None:
    array = from_buffers(pa.int32(), 3, bytes([0b101]), int32s(1, 2, 3))

    assert hashes_of(array) == hashes_of(pa.array([1, None, 3]))


def test_null_text_does_not_depend_on_the_bytes_below_it() -> None:
    data = b"a" + b"x" * 140 + b"b"
    array = from_buffers(pa.string(), 3, bytes([0b101]), int32s(0, 1, 141, 142), data)

    assert hashes_of(array) == hashes_of(pa.array(["a", None, "b"]))


def test_the_order_of_columns_matters() -> None:
    assert hashes_of(pa.array([1]), pa.array([2])) != hashes_of(
        pa.array([2]), pa.array([1])
    )


def test_where_text_is_cut_into_columns_matters() -> None:
    pairs = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")]
    hashes = hashes_of(
        pa.array([one for one, _ in pairs]), pa.array([two for _, two in pairs])
    )

    assert len(set(hashes)) == len(pairs)


def test_trailing_zero_bytes_matter() -> None:
    values = [b"a" + b"\x00" * count for count in range(20)]

    assert len(set(hashes_of(pa.array(values)))) == len(values)


def test_the_order_and_number_of_list_elements_matter() -> None:
    lists: list[list[int | None]] = [
        [],
        [1],
        [1, 1],
        [1, 2],
        [2, 1],
        [None],
        [1, None],
        [None, 1],
    ]

    assert len(set(hashes_of(pa.array(lists)))) == len(lists)


def test_a_list_of_fixed_size_hashes_as_a_list() -> None:
    values: list[list[Any] | None] = [[1, 2], [3, None], None, [5, 6]]
    fixed, free = pa.array(values, pa.list_(pa.int64(), 2)), pa.array(values)

    assert hashes_of(fixed) == hashes_of(free)
    assert hashes_of(fixed.slice(1, 2)) == hashes_of(free.slice(1, 2))


def test_a_list_far_longer_than_its_neighbours_hashes_by_the_book() -> None:
    lists: list[list[int]] = [list(range(1_000)), [], [7]]
    array = pa.array(lists)

    assert hashes_of(array) == hash_rows([array])


def test_chunked_columns_hash_as_one_and_need_not_be_cut_alike() -> None:
    numbers, text = pa.array([1, 2, 3, None, 5]), pa.array(["a", None, "c", "d", "e" * 140])
    left = pa.chunked_array([numbers.slice(0, 2), numbers.slice(2, 0), numbers.slice(2)])
    right = pa.chunked_array([text.slice(0, 4), text.slice(4)])

    assert hashes_of(left, right) == hashes_of(numbers, text)


def test_many_chunks_take_no_more_memory_than_their_hashes_and_one_chunk() -> None:
    column = pa.chunked_array([pa.array(range(10_000))] * 20)
    tracemalloc.start()
    try:
        hashes = hash_keys([column])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * hashes.nbytes


def test_a_column_without_chunks_has_no_hashes() -> None:
    assert hashes_of(pa.chunked_array([], pa.string())) == []


@pytest.mark.parametrize("length", [*range(18), 63, 64, 65, 127, 128, 129, 200])
def test_bytes_of_every_length_up_to_the_end_of_the_buffer_hash_by_the_book(
    length: int,
) -> None:
    value = bytes(range(1, length + 1))
    array = from_buffers(pa.binary(), 1, None, int32s(0, length), value)

    assert array.buffers()[2].size == length
    assert hashes_of(array) == [hash_bytes(value)]


def test_bytes_after_a_short_string_do_not_matter() -> None:
    array = from_buffers(pa.binary(), 2, None, int32s(0, 3, 6), b"abcabc!!!!!!!!")
    first, second = hashes_of(array)

    assert first == second == hash_bytes(b"abc")


def test_rows_on_both_sides_of_a_kernel_chunk_hash_alike() -> None:
    lengths = [number % 20 for number in range(CHUNK_ROWS + 3)]
    text = pa.array(["abcdefghijklmnopqrst"[:length] for length in lengths])
    numbers = pa.array(lengths)
    hashes = hashes_of(numbers, text)

    assert hashes == [hashes[length] for length in lengths]
    assert hashes[:20] == hash_rows([numbers.slice(0, 20), text.slice(0, 20)])


def test_short_and_long_text_mix_in_one_batch() -> None:
    text = pa.array([("ab" * count)[: count * 7 % 150] for count in range(300)])

    assert hashes_of(text) == hash_rows([text])
    assert hashes_of(text.slice(123, 50)) == hash_rows([text.slice(123, 50)])


def test_a_struct_seen_through_a_slice_of_itself_hashes_its_own_rows() -> None:
    struct_array = pa.array([{"x": n, "y": [str(n)] * n} for n in range(6)])

    assert hashes_of(struct_array.slice(2, 3)) == hash_rows([struct_array.slice(2, 3)])


def test_no_columns_are_one_key_for_all_rows() -> None:
    assert hash_keys([], row_count=3).tolist() == [0, 0, 0]
    assert hash_keys([]).tolist() == []


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(
        SchemaError, match=r"the key columns have \[2, 1\] rows where 2 were"
    ):
        hash_keys([pa.array([1, 2]), pa.array([1])])


def test_a_row_count_other_than_the_columns_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"have \[2\] rows where 3 were expected"):
        hash_keys([pa.array([1, 2])], row_count=3)


@pytest.mark.parametrize(
    "data_type",
    [
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.map_(pa.string(), pa.int64())),
        pa.struct([("deep", pa.list_(pa.map_(pa.string(), pa.int64())))]),
        pa.dense_union([pa.field("a", pa.int64())]),
        pa.sparse_union([pa.field("a", pa.int64())]),
        pa.list_view(pa.int64()),
    ],
    ids=str,
)
def test_types_without_a_stable_hash_are_refused(
    data_type: pa.DataType,
) -> None:
    with pytest.raises(SchemaError, match="cannot have the Arrow type") as caught:
        check_key_type(data_type)
    assert caught.value.code is ErrorCode.UNSUPPORTED_KEY_TYPE


def test_a_column_without_rows_is_refused_by_its_type_too() -> None:
    with pytest.raises(SchemaError, match="cannot have the Arrow type"):
        hash_keys([pa.array([], pa.map_(pa.string(), pa.int64()))])


def test_the_refusal_names_the_type_and_a_way_out() -> None:
    with pytest.raises(SchemaError) as caught:
        check_key_type(pa.map_(pa.string(), pa.int64()))

    assert "map<string, int64>" in caught.value.message
    assert "derive one" in caught.value.message


@pytest.mark.parametrize("bits", [1, 8, 63, 64])
def test_a_cut_hash_keeps_its_top_bits_only(bits: int) -> None:
    whole = hash_keys_uncut([pa.array(range(100))])
    cut = keep_top_bits(whole.copy(), bits)

    assert [one >> (64 - bits) for one in whole.tolist()] == [
        one >> (64 - bits) for one in cut.tolist()
    ]
    assert all(one & ((1 << (64 - bits)) - 1) == 0 for one in cut.tolist())


def test_hashes_are_cut_as_the_settings_say() -> None:
    column = pa.array(range(100))
    cut = keep_top_bits(hash_keys_uncut([column]), settings.current().hash_bits)

    assert hash_keys([column]).tolist() == cut.tolist()


def test_a_cut_hash_stays_with_the_same_neighbours() -> None:
    whole = np.sort(hash_keys_uncut([pa.array(range(1_000))]))
    cut = keep_top_bits(whole.copy(), 8)

    assert (np.diff(cut.astype(object)) >= 0).all()


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7, 256, 1_000_000, (1 << 32) - 1])
def test_owners_at_the_edges_are_those_of_the_one_rule(parallelism: int) -> None:
    edges = [0, 1, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    owners = owners_of(np.array(edges, dtype=np.uint64), parallelism)

    assert owners.dtype == np.int64
    assert owners.tolist() == [owner_of(edge, parallelism) for edge in edges]


@pytest.mark.parametrize("parallelism", [0, -1, 1 << 32])
def test_owners_need_a_parallelism_that_can_be(parallelism: int) -> None:
    with pytest.raises(UserError, match="cannot own keys") as caught:
        owners_of(np.zeros(1, dtype=np.uint64), parallelism)
    assert caught.value.code is ErrorCode.INVALID_NUMBER


def test_hashing_leaves_its_input_alone() -> None:
    column = pa.array(np.array([-0.0, float("nan"), 1.0]))
    before = column.buffers()[1]
    assert before is not None
    frozen = before.to_pybytes()
    hash_keys([column, column])

    assert before.to_pybytes() == frozen
