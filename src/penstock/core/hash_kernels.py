"""Hash kernels: 64-bit words and byte strings, many rows at a time.

Pure NumPy over raw buffers. `key_hash` decides which words an Arrow value consists of, and
describes the algorithm. Rows are hashed in chunks that fit the processor's cache, with
in-place operations only: memory traffic would otherwise cost more than the arithmetic.
"""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

Hashes: TypeAlias = npt.NDArray[np.uint64]
Integers: TypeAlias = npt.NDArray[np.integer]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
BYTES_SEED = np.uint64(0xB492B66FBE98F273)
LONGEST_WORDWISE_BYTES = 128
"""Longer byte strings are hashed as one word: their XXH3."""

_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_CHUNK_ROWS = 16_384
_WORD = 8
_FIRST_BYTES = np.array([(1 << (8 * count)) - 1 for count in range(9)], dtype=np.uint64)
"""Masks that keep the first 0 to 8 bytes of a little-endian word."""


def _chunks(hashes: Hashes) -> Iterator[tuple[slice, Hashes, Hashes]]:
    """Yield which rows each chunk has, their hashes, and scratch memory for `_mix`."""
    scratch = np.empty(min(len(hashes), _CHUNK_ROWS), dtype=np.uint64)
    for start in range(0, len(hashes), _CHUNK_ROWS):
        rows = slice(start, min(start + _CHUNK_ROWS, len(hashes)))
        yield rows, hashes[rows], scratch


def _mix(words: Hashes, scratch: Hashes) -> None:
    """Apply the finaliser of SplitMix64, a bijection, to `words` in place."""
    spare = scratch[: len(words)]
    np.right_shift(words, 30, out=spare)
    np.bitwise_xor(words, spare, out=words)
    np.multiply(words, _MULTIPLIER_1, out=words)
    np.right_shift(words, 27, out=spare)
    np.bitwise_xor(words, spare, out=words)
    np.multiply(words, _MULTIPLIER_2, out=words)
    np.right_shift(words, 31, out=spare)
    np.bitwise_xor(words, spare, out=words)


def mix(words: Hashes) -> Hashes:
    """Apply the finaliser of SplitMix64 to `words` in place, and return them."""
    for _, part, scratch in _chunks(words):
        _mix(part, scratch)
    return words


def hash_words(values: npt.NDArray[np.generic]) -> Hashes:
    """Return `mix(value + GOLDEN)` for each value; narrower integers are sign-extended."""
    hashes = np.empty(len(values), dtype=np.uint64)
    for rows, part, scratch in _chunks(hashes):
        part[:] = values[rows]
        np.add(part, GOLDEN, out=part)
        _mix(part, scratch)
    return hashes


def combine(hashes: Hashes, others: Hashes) -> Hashes:
    """Turn `hashes` in place into `mix(hash * GOLDEN ^ other)`, and return them."""
    for rows, part, scratch in _chunks(hashes):
        np.multiply(part, GOLDEN, out=part)
        np.bitwise_xor(part, others[rows], out=part)
        _mix(part, scratch)
    return hashes


def hash_byte_strings(data: pa.Buffer, offsets: Integers) -> Hashes:
    """Hash the byte strings `data[offsets[i]:offsets[i + 1]]`."""
    hashes = np.empty(len(offsets) - 1, dtype=np.uint64)
    for rows, part, scratch in _chunks(hashes):
        bounds = offsets[rows.start : rows.stop + 1].astype(np.int64)
        _hash_chunk(data, bounds, part, scratch)
    return hashes


def _hash_chunk(
    data: pa.Buffer, bounds: npt.NDArray[np.int64], hashes: Hashes, scratch: Hashes
) -> None:
    lengths = np.diff(bounds)
    np.add(lengths.view(np.uint64), BYTES_SEED, out=hashes)
    _mix(hashes, scratch)
    longest = int(lengths.max())
    if longest == 0:
        return
    if longest > LONGEST_WORDWISE_BYTES:
        rows = np.flatnonzero(lengths > LONGEST_WORDWISE_BYTES)
        _absorb_long(data, bounds, rows, hashes, scratch)
        lengths[rows] = 0
        longest = int(lengths.max())
    words, starts = _loadable_words(data, bounds)
    for position in range(0, longest, _WORD):
        _absorb_words(words, starts, lengths, hashes, scratch, position=position)


def _absorb_long(
    data: pa.Buffer,
    bounds: npt.NDArray[np.int64],
    rows: npt.NDArray[np.intp],
    hashes: Hashes,
    scratch: Hashes,
) -> None:
    """Mix the XXH3 of each of the long strings in `rows` into its hash."""
    whole = memoryview(data)
    spans = zip(bounds[rows].tolist(), bounds[rows + 1].tolist(), strict=True)
    digests = [xxhash.xxh3_64_intdigest(whole[start:end]) for start, end in spans]
    mixed = hashes[rows] ^ np.array(digests, dtype=np.uint64)
    _mix(mixed, scratch)
    hashes[rows] = mixed


def _loadable_words(
    data: pa.Buffer, bounds: npt.NDArray[np.int64]
) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Return a view with one word for every byte position, and where each string starts in it.

    A word loaded at a string's last byte reaches 7 bytes beyond it. If the buffer ends
    before that, the chunk's bytes are copied and padded with zeros; only the last chunk of a
    buffer needs this.
    """
    first, end = int(bounds[0]), int(bounds[-1])
    reach = end - first + _WORD - 1
    source, base = memoryview(data), first
    if first + reach > len(source):
        source, base = memoryview(bytes(source[first:end]) + bytes(_WORD - 1)), 0
    words: Hashes = np.ndarray(
        shape=(reach - _WORD + 1,), dtype="<u8", buffer=source, offset=base, strides=(1,)
    )
    return words, bounds[:-1] - first


def _absorb_words(
    words: Hashes,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    hashes: Hashes,
    scratch: Hashes,
    *,
    position: int,
) -> None:
    """Mix the word at byte `position` of every string that reaches it into its hash."""
    left = lengths - position
    rows = None if int(left.min()) > 0 else np.flatnonzero(left > 0)
    if rows is not None:
        left, starts = left[rows], starts[rows]
    loaded = words[starts + position]
    if int(left.min()) < _WORD:
        np.minimum(left, _WORD, out=left)
        np.bitwise_and(loaded, _FIRST_BYTES.take(left), out=loaded)
    if rows is None:
        np.bitwise_xor(hashes, loaded, out=hashes)
        _mix(hashes, scratch)
    else:
        np.bitwise_xor(loaded, hashes[rows], out=loaded)
        _mix(loaded, scratch)
        hashes[rows] = loaded
