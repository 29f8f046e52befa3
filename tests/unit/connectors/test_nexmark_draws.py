import re
from decimal import localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.nexmark.draws import (
    Purpose,
    _price_table,
    draw,
    high,
    low,
    scale,
    text_pool,
    to_prices,
    write_texts,
)

NUMBERS = np.arange(20_000, dtype=np.int64)
MOST_BITS = (1 << 32) - 1


def test_a_value_depends_on_its_own_number_only() -> None:
    whole = draw(3, Purpose.AMOUNTS, NUMBERS)
    some = np.array([17, 5, 19_999, 5], dtype=np.int64)

    assert draw(3, Purpose.AMOUNTS, some).tolist() == whole[some].tolist()


@pytest.mark.parametrize(("seed", "purpose"), [(1, Purpose.AMOUNTS), (0, Purpose.HOTNESS)])
def test_another_seed_or_purpose_gives_other_values(seed: int, purpose: Purpose) -> None:
    one, other = draw(0, Purpose.AMOUNTS, NUMBERS), draw(seed, purpose, NUMBERS)

    assert not (one == other).any()
    assert abs(np.corrcoef(high(one), high(other))[0, 1]) < 0.03
    assert abs(np.corrcoef(low(one), low(other))[0, 1]) < 0.03


@given(st.integers(0, MOST_BITS), st.integers(1, MOST_BITS))
def test_scaled_bits_stay_below_their_bound(bits: int, bound: int) -> None:
    words = np.array([bits], dtype=np.uint64)

    assert scale(words, bound).tolist() == [bits * bound >> 32]
    assert scale(words, np.array([bound])).tolist() == [bits * bound >> 32]


def test_scaled_bits_are_even() -> None:
    counts = np.bincount(scale(high(draw(0, Purpose.NAMES, NUMBERS)), 10))

    assert abs(counts - 2_000).max() < 6 * 2_000**0.5


def test_prices_grow_with_the_bits_from_a_hundred_to_a_hundred_million() -> None:
    bits = np.linspace(0, MOST_BITS, 100_000).astype(np.uint64)

    prices = to_prices(bits)

    assert prices[0] == 100
    assert prices[-1] == 10**8 - 1
    assert (np.diff(prices) >= 0).all()
    # Whole cents, cut off between two that were rounded; otherwise nearly exact.
    assert np.allclose(prices, 100 * 10 ** (6 * bits / 2**32), rtol=1e-4, atol=1.5)


def test_prices_do_not_depend_on_the_decimal_settings_of_users() -> None:
    expected = _price_table().tolist()
    _price_table.cache_clear()

    with localcontext(prec=3):
        assert _price_table().tolist() == expected


def test_texts_follow_their_template() -> None:
    texts = write_texts(0, Purpose.EMAIL, NUMBERS[:500], "No. ##-???!").to_pylist()

    assert all(re.fullmatch(r"No\. \d\d-[a-z]{3}!", str(text)) for text in texts)
    assert {str(text)[4] for text in texts} == set("0123456789")
    assert {str(text)[7] for text in texts} == set("abcdefghijklmnopqrstuvwxyz")


def test_no_numbers_have_no_texts() -> None:
    assert len(write_texts(0, Purpose.EMAIL, NUMBERS[:0], "???")) == 0


def test_a_pool_has_texts_of_about_the_length_asked_for() -> None:
    lengths = [len(str(text)) for text in text_pool(100)]

    assert min(lengths) >= 80
    assert max(lengths) <= 120
    assert np.mean(lengths) == pytest.approx(100, rel=0.05)
    assert len(set(text_pool(100).to_pylist())) == len(lengths)
