"""How evenly the hash spreads keys that look as keys do: counted, in dense short forms."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.hash_kernels import Hashes
from penstock.core.key_hash import hash_keys_uncut, owners_of

ROWS = 200_000


def texts(form: str) -> Callable[[], Any]:
    return lambda: pa.array([form.format(number) for number in range(ROWS)])


KEYS: dict[str, Callable[[], Any]] = {
    "counting": lambda: pa.array(range(ROWS)),
    "counting down below zero": lambda: pa.array(range(0, -ROWS, -1)),
    "multiples of 2**32": lambda: pa.array(np.arange(ROWS, dtype=np.int64) << 32),
    "milliseconds as micros": lambda: pa.array(
        np.arange(ROWS) * 1_000 + 1_700_000_000_000_000
    ),
    "whole floats": lambda: pa.array(np.arange(ROWS, dtype=np.float64)),
    "short text": texts("k{}"),
    "padded text": texts("user-{:010d}"),
    "a counter in front": texts("{:08d}-of-the-same-tail"),
    "36 bytes": texts("00000000-0000-4000-8000-{:012d}"),
    "100 bytes": texts("x" * 94 + "{:06d}"),
    "200 bytes": texts("x" * 194 + "{:06d}"),
    "small structs": lambda: pa.array([{"a": n % 500, "b": n // 500} for n in range(ROWS)]),
    "small lists": lambda: pa.array([[n % 500, n // 500] for n in range(ROWS)]),
}


@cache
def hashes_of(name: str) -> Hashes:
    return hash_keys_uncut([KEYS[name]()])


def chi_square_deviation(counts: np.ndarray[Any, Any]) -> float:
    """Return by how many standard deviations the counts are more uneven than chance."""
    expected = counts.sum() / len(counts)
    statistic = float(((counts - expected) ** 2 / expected).sum())
    degrees = len(counts) - 1
    return float((statistic - degrees) / np.sqrt(2 * degrees))


@pytest.mark.parametrize("parallelism", [2, 37, 256, 1_000])
@pytest.mark.parametrize("name", KEYS)
def test_subtasks_get_even_shares_of(name: str, parallelism: int) -> None:
    owners = owners_of(hashes_of(name), parallelism)

    assert abs(chi_square_deviation(np.bincount(owners, minlength=parallelism))) < 5


@pytest.mark.parametrize("name", KEYS)
def test_distinct_keys_have_distinct_hashes(name: str) -> None:
    assert len(np.unique(hashes_of(name))) == ROWS


def test_the_low_bits_are_as_even_as_the_top_bits() -> None:
    low = hashes_of("counting") & np.uint64(1_023)

    assert abs(chi_square_deviation(np.bincount(low.astype(np.int64), minlength=1_024))) < 5


@pytest.mark.slow
def test_a_million_short_strings_do_not_collide() -> None:
    numbers = pa.array(np.arange(1_000_000) * 7_919)

    assert len(np.unique(hash_keys_uncut([numbers.cast(pa.string())]))) == 1_000_000


def test_every_input_bit_flips_about_half_of_the_output_bits() -> None:
    words = np.random.default_rng(7).integers(0, 1 << 63, 2_000, dtype=np.int64)
    before = hash_keys_uncut([pa.array(words)])
    for bit in range(63):
        flipped = hash_keys_uncut([pa.array(words ^ (1 << bit))])
        changed = np.unpackbits((before ^ flipped).view(np.uint8)).mean()
        assert 0.49 < changed < 0.51, bit
