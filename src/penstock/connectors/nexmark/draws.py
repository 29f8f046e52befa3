"""Random numbers and texts by event number: one seed, number and purpose, one value, for ever.

Counter-based: a value is a hash of what it is for, so any range of events can be made by
itself, in any order, on any machine. Integer arithmetic only, because floating point
functions differ between processors in the last bit. Pure.
"""

from decimal import Context, Decimal
from enum import IntEnum
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.hash_kernels import Hashes, combine, hash_words

Numbers: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.uint64]
"""Words of which the lower 32 bits are random and the upper ones zero."""

_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFF_FFFF)
_PRICE_STEPS = 1_024
_LETTER, _DIGIT = ord("?"), ord("#")
_POOL_SIZE = 256


class Purpose(IntEnum):
    """What a random word is for. The numbers are part of every row: never reuse one."""

    REFERENCES = 0
    HOTNESS = 1
    AMOUNTS = 2
    ARRIVAL = 3
    NAMES = 4
    PLACES = 5
    EMAIL = 6
    CREDIT_CARD = 7
    ITEM_NAME = 8
    DESCRIPTION = 9
    CATEGORY = 10
    POOL = 11


def draw(seed: int, purpose: Purpose, numbers: npt.NDArray[np.integer]) -> Hashes:
    """Return 64 random bits for each number."""
    key = combine(
        hash_words(np.array([seed], dtype=np.int64)),
        np.array([purpose], dtype=np.uint64),
    )
    return combine(numbers.astype(np.uint64), np.broadcast_to(key, numbers.shape))


def high(words: Hashes) -> Bits:
    """Return the upper halves."""
    return words >> _HALF


def low(words: Hashes) -> Bits:
    """Return the lower halves: independent of the upper ones."""
    return words & _LOW_HALF


def scale(bits: Bits, bound: int | Numbers) -> Numbers:
    """Spread random bits evenly over `[0, bound)`; a bound is at least 1 and below 2**32."""
    factor = np.uint64(bound) if isinstance(bound, int) else bound.view(np.uint64)
    return (bits * factor >> _HALF).view(np.int64)


def to_prices(bits: Bits) -> Numbers:
    """Return prices in cents between 100 and 10**8, spread evenly over their logarithms."""
    prices = _price_table()
    fine = _HALF - np.uint64(_PRICE_STEPS.bit_length() - 1)
    steps = (bits >> fine).view(np.int64)
    rest = (bits & np.uint64((1 << int(fine)) - 1)).view(np.int64)
    lower = prices[steps]
    return lower + ((prices[steps + 1] - lower) * rest >> np.int64(fine))


@cache
def _price_table() -> Numbers:
    # Decimals in a context of their own: the same on every machine, whatever users set.
    context = Context(prec=28)
    factor = context.power(Decimal(10), context.divide(Decimal(6), Decimal(_PRICE_STEPS)))
    prices, price = [], Decimal(100)
    for _ in range(_PRICE_STEPS + 1):
        prices.append(int(price.to_integral_value(context=context)))
        price = context.multiply(price, factor)
    return np.array(prices, dtype=np.int64)


def write_texts(
    seed: int, purpose: Purpose, numbers: Numbers, template: str
) -> pa.StringArray:
    """Return a text per number: the template with random letters for `?`, digits for `#`."""
    pattern = np.frombuffer(template.encode("ascii"), dtype=np.uint8)
    letters, digits = pattern == _LETTER, pattern == _DIGIT
    octets = _octets(seed, purpose, numbers, int(letters.sum() + digits.sum()))
    texts = np.broadcast_to(pattern, (len(numbers), len(pattern))).copy()
    texts[:, letters] = _spell(octets[:, : letters.sum()], 26, "a")
    texts[:, digits] = _spell(octets[:, letters.sum() :], 10, "0")
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * len(pattern)
    return pa.StringArray.from_buffers(
        len(numbers), pa.py_buffer(offsets.data), pa.py_buffer(texts.data)
    )


def _octets(
    seed: int, purpose: Purpose, numbers: Numbers, count: int
) -> npt.NDArray[np.uint8]:
    word_count = -(-count // 8)
    counters = numbers[:, np.newaxis] * word_count + np.arange(word_count)
    words = draw(seed, purpose, counters.ravel()).astype("<u8")
    return words.view(np.uint8).reshape(len(numbers), word_count * 8)[:, :count]


def _spell(octets: npt.NDArray[np.uint8], size: int, first: str) -> npt.NDArray[np.uint8]:
    return (octets.astype(np.uint16) * size >> 8).astype(np.uint8) + np.uint8(ord(first))


@cache
def text_pool(mean_length: int) -> pa.StringArray:
    """Return texts of up to a fifth more or fewer letters, to pad rows with.

    The standard generator pads every row with fresh letters. Taking one of a few hundred
    texts costs a copy instead, and nobody looks into padding.
    """
    spread = mean_length // 5
    numbers = np.arange(_POOL_SIZE, dtype=np.int64)
    lengths = (
        mean_length
        - spread
        + scale(high(draw(mean_length, Purpose.POOL, numbers)), 2 * spread + 1)
    )
    letters = write_texts(
        mean_length, Purpose.DESCRIPTION, numbers, "?" * (mean_length + spread)
    )
    texts = [
        str(text)[:length] for text, length in zip(letters, lengths.tolist(), strict=True)
    ]
    return pa.array(texts, pa.string())
