"""Hashes are put in order as a stable sort would."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.tables.sorted_rows import stable_order


@given(st.lists(st.integers(0, (1 << 64) - 1) | st.integers(0, 3), max_size=50))
def test_the_order_is_that_of_a_stable_sort(values: list[int]) -> None:
    hashes = np.array(values, np.uint64)
    assert stable_order(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()


@pytest.mark.parametrize("low_bits", [0, 3, 12])
def test_hashes_that_differ_in_their_lowest_bits_are_ordered(low_bits: int) -> None:
    random = np.random.default_rng(low_bits)
    hashes = random.integers(0, 1 << 64, 5_000, dtype=np.uint64)
    hashes[::2] = (hashes[0] & np.uint64(0xFFFF_FFFF_FFFF_0000)) | (
        hashes[::2] & np.uint64((1 << low_bits) - 1)
    )
    assert stable_order(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()
