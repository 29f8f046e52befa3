"""The key hash written once more, one value at a time: the text of `key_hash` as plain Python.

It shares nothing with the vectorised code but the numbers, so that each checks the other.
"""

import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import xxhash

ALL = (1 << 64) - 1
G = 0x9E3779B97F4A7C15
NULL_HASH = 0x6A09E667F3BCC909
STRUCT_SEED = 0xBB67AE8584CAA73B
LIST_SEED = 0x3C6EF372FE94F82B
BYTES_SEED = 0xB492B66FBE98F273


def mix(z: int) -> int:
    z &= ALL
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & ALL
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & ALL
    return z ^ z >> 31


def word(w: int) -> int:
    return mix(w + G)


def combine(h: int, x: int) -> int:
    return mix((h * G & ALL) ^ x)


def hash_bytes(data: bytes) -> int:
    h = mix(BYTES_SEED + len(data))
    if len(data) > 128:
        return mix(h ^ xxhash.xxh3_64_intdigest(data))
    for start in range(0, len(data), 8):
        h = mix(h ^ int.from_bytes(data[start : start + 8], "little"))
    return h


def hash_float(value: float) -> int:
    if value != value:  # noqa: PLR0124 - the definition of NaN
        return word(0x7FF8000000000000)
    return word(int.from_bytes(struct.pack("<d", value + 0.0), "little"))


def hash_decimal(value: Decimal, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits))) * 10 ** (scale + exponent)
    unscaled = -unscaled if sign else unscaled
    count = 1
    while not -(1 << (64 * count - 1)) <= unscaled < 1 << (64 * count - 1):
        count += 1
    h = word(unscaled & ALL)
    for index in range(1, count):
        h = combine(h, word(unscaled >> (64 * index) & ALL))
    return h


def hash_list(hashes: Sequence[int]) -> int:
    total = sum(combine(one, word(place)) for place, one in enumerate(hashes))
    return mix(LIST_SEED + len(hashes) + total)


def hash_scalar(scalar: Any) -> int:  # noqa: PLR0911 - one for each row of the table
    """Hash one Arrow scalar as the documentation of `key_hash` says."""
    kind = scalar.type
    types = pa.types
    if not scalar.is_valid:
        return NULL_HASH
    if types.is_dictionary(kind):
        return hash_scalar(scalar.value)
    if isinstance(kind, pa.BaseExtensionType):
        return hash_scalar(scalar.value)
    if types.is_boolean(kind) or types.is_integer(kind):
        return word(int(scalar.as_py()))
    if types.is_floating(kind):
        return hash_float(float(scalar.as_py()))
    if types.is_decimal(kind):
        return hash_decimal(scalar.as_py(), kind.scale)
    if types.is_interval(kind):
        months, days, nanos = scalar.as_py()
        return combine(word((days & 0xFFFFFFFF) << 32 | (months & 0xFFFFFFFF)), word(nanos))
    if types.is_temporal(kind):
        return word(scalar.value)
    if types.is_struct(kind):
        h = STRUCT_SEED
        for index in range(kind.num_fields):
            h = combine(h, hash_scalar(scalar[index]))
        return h
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return hash_list([hash_scalar(item) for item in scalar.values])
    value = scalar.as_py()
    return hash_bytes(value.encode() if isinstance(value, str) else value)


def hash_rows(columns: Sequence[Any]) -> list[int]:
    """Hash the rows of several columns, one value at a time."""
    rows = []
    for index in range(len(columns[0])):
        h = hash_scalar(columns[0][index])
        for column in columns[1:]:
            h = combine(h, hash_scalar(column[index]))
        rows.append(h)
    return rows
