"""The key hash: one stable 64-bit number per key, the same on every machine for ever.

It decides which subtask owns a row and how state files are sorted, so it can never change:
`tests/golden` holds vectors for every type. Equal hashes of different keys are legal
everywhere; readers compare the key columns.

The algorithm, in arithmetic modulo 2**64. `G` is 0x9E3779B97F4A7C15, `BYTES_SEED` is
0xB492B66FBE98F273, the other constants are below, bytes are read as little-endian words, and

    mix(z):  z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9
             z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31
    word(w) = mix(w + G)            combine(h, x) = mix((h * G) ^ x)

| Value | Hash |
|---|---|
| null, of any type | `NULL_HASH` |
| integer, boolean, date, time, timestamp, duration | `word(v)`, v extended to 64 bits, by its sign if it has one |
| float | `word(bits)` of the 64-bit float; -0.0 as 0.0, every NaN as 0x7FF8000000000000 |
| decimal | the unscaled integer as 64-bit words, lowest first, as few as two's complement needs: `word(w0)`, then `combine(h, word(wi))` |
| month-day-nano interval | `combine(word(days << 32 | months), word(nanoseconds))` |
| n bytes, text as UTF-8 | h = `mix(BYTES_SEED + n)`, then h = `mix(h ^ w)` for each 8 bytes, the last padded with zeros; above 128 bytes w is the XXH3-64 (seed 0) of them all |
| struct | h = `STRUCT_SEED`, then h = `combine(h, hash of field)` for each field |
| list of n | `mix(LIST_SEED + n + sum of combine(hash of element i, word(i)))`, i from 0 |
| dictionary, run-end encoded, extension | as the values or the storage |
| several columns | h = hash of the first, then h = `combine(h, hash of next)` |

So a value keeps its hash when its type is widened (int32 to int64, float to double, string to
large_string, a decimal of the same scale), and a value in another unit or scale is a different
key. There are as many 64-bit integers as hashes, so one of them, 2154821783102845885, shares
the hash of null. The setting `hash_bits` keeps only the top bits; it exists for tests.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import settings
from penstock.core.arrow_types import is_bytes, is_text
from penstock.core.hash_kernels import Hashes, combine, hash_byte_strings, hash_words, mix
from penstock.errors import ErrorCode, SchemaError, UserError

NULL_HASH = 0x6A09E667F3BCC909
STRUCT_SEED = 0xBB67AE8584CAA73B
LIST_SEED = 0x3C6EF372FE94F82B

Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"
_Hasher: TypeAlias = Callable[[Any], Hashes]
_types = pa.types


def hash_keys(columns: Sequence[Column], *, row_count: int | None = None) -> Hashes:
    """Return the hash of each row's key, made of one or several columns in order.

    Without columns every row has the same, empty key: the result is `row_count` zeros.
    """
    hashes = hash_keys_uncut(columns, row_count=row_count)
    return keep_top_bits(hashes, settings.current().hash_bits)


def hash_keys_uncut(columns: Sequence[Column], *, row_count: int | None = None) -> Hashes:
    """Return all 64 bits of the hashes, also if the setting `hash_bits` is smaller."""
    if not columns:
        return np.zeros(row_count or 0, dtype=np.uint64)
    lengths = [len(column) for column in columns]
    expected = lengths[0] if row_count is None else row_count
    if any(length != expected for length in lengths):
        raise SchemaError(
            f"the key columns have {lengths} rows where {expected} were expected: pass whole "
            "columns of one batch",
            row_count=expected,
        )
    hashes = _hash_column(columns[0])
    for column in columns[1:]:
        combine(hashes, _hash_column(column))
    return hashes


def keep_top_bits(hashes: Hashes, bits: int) -> Hashes:
    """Clear all but the top `bits` of each hash, in place, and return them."""
    if bits < 64:
        np.bitwise_and(hashes, np.uint64((1 << 64) - (1 << (64 - bits))), out=hashes)
    return hashes


def owners_of(hashes: Hashes, parallelism: int) -> npt.NDArray[np.int64]:
    """Return `owner_of` for each hash: the index of the subtask that owns it."""
    if not 1 <= parallelism < 1 << 32:
        raise UserError(
            f"parallelism {parallelism!r} cannot own keys: need 1 <= parallelism < 2**32",
            code=ErrorCode.INVALID_NUMBER,
            parallelism=parallelism,
        )
    # This is the upper word of a 64 x 32 bit product, made of two products that fit 64 bits.
    factor, half = np.uint64(parallelism), np.uint64(32)
    carried = ((hashes & np.uint64(0xFFFFFFFF)) * factor) >> half
    return ((((hashes >> half) * factor) + carried) >> half).astype(np.int64)


def check_key_type(data_type: pa.DataType) -> None:
    """Raise a `SchemaError` unless values of this type can be hashed as keys."""
    _hasher_of(data_type)


def _hash_column(column: Column) -> Hashes:
    _hasher_of(column.type)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if len(chunks) == 1:
        return _hash_array(chunks[0])
    hashes, start = np.empty(len(column), dtype=np.uint64), 0
    # One at a time: the hashes of all chunks beside the result would take twice the memory.
    for chunk in chunks:
        hashes[start : start + len(chunk)] = _hash_array(chunk)
        start += len(chunk)
    return hashes


def _hash_array(array: Any) -> Hashes:
    if len(array) == 0:
        return np.empty(0, dtype=np.uint64)
    hashes = _hasher_of(array.type)(array)
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = NULL_HASH
    return hashes


def _raw_values(array: Any, dtype: str) -> npt.NDArray[Any]:
    """Return the values of a fixed-width array as they lie in memory, one or more per row."""
    bytes_per_row = array.type.bit_width // 8
    per_row = bytes_per_row // np.dtype(dtype).itemsize
    return np.frombuffer(
        array.buffers()[1],
        dtype=dtype,
        count=len(array) * per_row,
        offset=array.offset * bytes_per_row,
    )


def _hash_nothing(array: Any) -> Hashes:
    return np.full(len(array), NULL_HASH, dtype=np.uint64)


def _hash_integers(array: Any) -> Hashes:
    sign = "u" if pa.types.is_unsigned_integer(array.type) else "i"
    return hash_words(_raw_values(array, f"{sign}{array.type.bit_width // 8}"))


def _hash_floats(array: Any) -> Hashes:
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like any other
        values = _raw_values(array, f"f{array.type.bit_width // 8}").astype(np.float64)
        values += 0.0  # turns -0.0 into 0.0
    values[np.isnan(values)] = np.nan
    return hash_words(values.view(np.uint64))


def _hash_wide_decimals(array: Any) -> Hashes:
    words = _raw_values(array, "i8").reshape(len(array), -1)
    rows_of: dict[int, npt.NDArray[np.intp]] = {}
    is_needed = np.zeros(len(array), dtype=np.bool_)
    for index in reversed(range(1, words.shape[1])):
        is_needed |= words[:, index] != words[:, index - 1] >> 63
        rows_of[index] = np.flatnonzero(is_needed)
    hashes = hash_words(words[:, 0])
    for index in range(1, words.shape[1]):
        rows = rows_of[index]
        hashes[rows] = combine(hashes[rows], hash_words(words[rows, index]))
    return hashes


def _hash_intervals(array: Any) -> Hashes:
    words = _raw_values(array, "<u8").reshape(len(array), 2)
    return combine(hash_words(words[:, 0]), hash_words(words[:, 1]))


def _hash_offset_bytes(array: Any) -> Hashes:
    _, offsets, data = array.buffers()
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    dtype = np.dtype(np.int64 if is_large else np.int32)
    bounds = np.frombuffer(
        offsets, dtype=dtype, count=len(array) + 1, offset=array.offset * dtype.itemsize
    )
    return hash_byte_strings(pa.py_buffer(b"") if data is None else data, bounds)


def _hash_fixed_size_bytes(array: Any) -> Hashes:
    width = array.type.byte_width
    bounds = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * width
    return hash_byte_strings(array.buffers()[1], bounds)


def _hash_structs(array: Any) -> Hashes:
    hashes = np.full(len(array), STRUCT_SEED, dtype=np.uint64)
    for index in range(array.type.num_fields):
        combine(hashes, _hash_array(array.field(index)))
    return hashes


def _hash_offset_lists(array: Any) -> Hashes:
    return _hash_lists(array.values, array.offsets.to_numpy().astype(np.int64))


def _hash_fixed_size_lists(array: Any) -> Hashes:
    rows = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64)
    return _hash_lists(array.values, rows * array.type.list_size)


def _hash_lists(values: Any, bounds: npt.NDArray[np.int64]) -> Hashes:
    """Hash each list from a running sum, so that the cost does not grow with the longest list."""
    first, lengths = int(bounds[0]), np.diff(bounds)
    elements = _hash_array(values.slice(first, int(bounds[-1]) - first))
    starts = bounds - first
    places = np.arange(len(elements), dtype=np.int64) - np.repeat(starts[:-1], lengths)
    running = np.zeros(len(elements) + 1, dtype=np.uint64)
    np.cumsum(combine(elements, hash_words(places)), out=running[1:])
    sums = running[starts[1:]] - running[starts[:-1]]
    return mix(sums + lengths.astype(np.uint64) + np.uint64(LIST_SEED))


def _hash_dictionaries(array: Any) -> Hashes:
    if len(array.dictionary) > len(array):
        return _hash_array(array.dictionary_decode())
    if len(array.dictionary) == 0:
        return _hash_nothing(array)
    hashes: Hashes = _hash_array(array.dictionary)[array.indices.fill_null(0).to_numpy()]
    return hashes


def _is_extension(data_type: pa.DataType) -> bool:
    return isinstance(data_type, pa.BaseExtensionType)


def _nested_types(data_type: Any) -> list[pa.DataType]:
    if _is_extension(data_type):
        return [data_type.storage_type]
    if pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
        return [data_type.value_type]
    return [data_type.field(index).type for index in range(data_type.num_fields)]


_HASHERS: tuple[tuple[tuple[Callable[[Any], bool], ...], _Hasher], ...] = (
    ((_types.is_null,), _hash_nothing),
    ((_types.is_boolean,), lambda array: _hash_integers(array.cast(pa.uint8()))),
    ((_types.is_floating,), _hash_floats),
    ((_types.is_interval,), _hash_intervals),
    ((_types.is_integer, _types.is_temporal), _hash_integers),
    ((_types.is_decimal32, _types.is_decimal64), _hash_integers),
    ((_types.is_decimal,), _hash_wide_decimals),
    ((_types.is_string, _types.is_large_string), _hash_offset_bytes),
    ((_types.is_binary, _types.is_large_binary), _hash_offset_bytes),
    ((is_text, is_bytes), lambda views: _hash_offset_bytes(views.cast(pa.large_binary()))),
    ((_types.is_fixed_size_binary,), _hash_fixed_size_bytes),
    ((_types.is_struct,), _hash_structs),
    ((_types.is_list, _types.is_large_list), _hash_offset_lists),
    ((_types.is_fixed_size_list,), _hash_fixed_size_lists),
    ((_types.is_dictionary,), _hash_dictionaries),
    (
        (_types.is_run_end_encoded,),
        lambda array: _hash_array(pc.call_function("run_end_decode", [array])),
    ),
    ((_is_extension,), lambda array: _hash_array(array.storage)),
)
"""The first entry whose test accepts a type gives the function that hashes its values."""


@lru_cache(maxsize=1024)
def _hasher_of(data_type: pa.DataType) -> _Hasher:
    """Return the function that hashes arrays of this type; its nested types are checked too."""
    for kinds, hasher in _HASHERS:
        if any(is_kind(data_type) for is_kind in kinds):
            for nested in _nested_types(data_type):
                _hasher_of(nested)
            return hasher
    raise SchemaError(
        f"a key cannot have the Arrow type {data_type}: there is no stable hash for its "
        "values. Key by a column of numbers, text, bytes, times, structs or lists, or "
        "derive one",
        code=ErrorCode.UNSUPPORTED_KEY_TYPE,
        data_type=str(data_type),
    )
