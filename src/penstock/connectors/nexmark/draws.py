"""Computes from an event's number its kind, the split that emits it, and its random values.

Events come in groups that repeat one pattern: `persons`, then `auctions`, then `bids`. Split
k of K takes the groups g with `g % K == k`, whole, so that every split has all kinds in the
same proportions and all splits move through event time together.

    group     0                1                2                3
    number    0 1 … 4 5 … 49   50 51 … 54 … 99  100 …            150 …
    kind      P A A A B … B    P A A A B … B    P A A A B … B    P A A A B … B
    split     0 (of 2)         1                0                1

Pure. Random values are counter-based: each is a hash of seed, number and purpose, so any range
of events can be made by itself, in any order, on any machine. All arithmetic is on integers,
because floating point functions differ between processors in the last bit.
"""

from dataclasses import dataclass
from decimal import Context, Decimal
from enum import IntEnum, StrEnum
from functools import cache, cached_property
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


class EventKind(StrEnum):
    """Which events of the sequence a source emits."""

    ALL = "all"
    PERSONS = "persons"
    AUCTIONS = "auctions"
    BIDS = "bids"


@dataclass(frozen=True)
class EventSequence:
    """The pattern of a group, and the kinds that a source emits."""

    persons: int
    auctions: int
    bids: int
    kind: EventKind

    @cached_property
    def group_size(self) -> int:
        """How many events a group has."""
        return self.persons + self.auctions + self.bids

    @cached_property
    def emitted(self) -> range:
        """The positions in a group that are emitted."""
        first_bid = self.persons + self.auctions
        match self.kind:
            case EventKind.ALL:
                return range(self.group_size)
            case EventKind.PERSONS:
                return range(self.persons)
            case EventKind.AUCTIONS:
                return range(self.persons, first_bid)
            case EventKind.BIDS:
                return range(first_bid, self.group_size)

    def rows_below(self, number: int, index: int, split_count: int) -> int:
        """Return how many rows a split emits of the events before `number`."""
        group_count, rest = divmod(number, self.group_size)
        whole = max(0, -(-(group_count - index) // split_count))
        rows = whole * len(self.emitted)
        if group_count % split_count == index:
            rows += min(max(0, rest - self.emitted.start), len(self.emitted))
        return rows

    def numbers(self, index: int, split_count: int, start: int, end: int) -> Numbers:
        """Return the event numbers of the rows `[start, end)` of a split."""
        rows = np.arange(start, end, dtype=np.int64)
        groups: Numbers = rows // len(self.emitted)
        positions = rows - groups * len(self.emitted) + self.emitted.start
        return (groups * split_count + index) * self.group_size + positions


class Purpose(IntEnum):
    """What a random word is used for. Every row depends on these numbers: never reuse one."""

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
        hash_words(np.array([seed], dtype=np.int64)), np.array([purpose], dtype=np.uint64)
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
    # A context of its own makes decimals the same on every machine, whatever users set.
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
    word_count = -(-int(letters.sum() + digits.sum()) // 8)
    counters = numbers[:, np.newaxis] * word_count + np.arange(word_count)
    words = draw(seed, purpose, counters.ravel()).astype("<u8")
    octets = words.view(np.uint8).reshape(len(numbers), word_count * 8).astype(np.uint16)
    texts = np.broadcast_to(pattern, (len(numbers), len(pattern))).copy()
    start = 0
    for places, size, first in ((letters, 26, "a"), (digits, 10, "0")):
        end = start + int(places.sum())
        texts[:, places] = (octets[:, start:end] * size >> 8) + ord(first)
        start = end
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * len(pattern)
    return pa.StringArray.from_buffers(
        len(numbers), pa.py_buffer(offsets.data), pa.py_buffer(texts.data)
    )


@cache
def text_pool(mean_length: int) -> pa.StringArray:
    """Return texts of up to a fifth more or fewer letters, to pad rows with.

    The standard generator pads every row with other random letters. Choosing one of a few
    hundred texts only costs a copy, and no query reads the padding.
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
