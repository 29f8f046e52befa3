"""LookupRows: rows in memory that are found by their key, however many a key has.

Rows are sorted by the hash of their key once. A directory says where the rows of each prefix of
hashes begin, so that a key is found in two steps: bisection would miss the processor's caches
twenty times. Keys of equal hashes are compared. A null in a key matches nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.arrow_types import relay
from penstock.core.batch import empty_batch
from penstock.core.key_hash import hash_keys
from penstock.errors import ErrorCode, UserError
from penstock.operators.joins.matching import without_nulls
from penstock.state.tables.sorted_rows import (
    Flags,
    Positions,
    equal_keys,
    stable_order,
    take_rows,
)

_MOST_PAIRS = 1 << 18
"""About how many pairs are returned at a time: a key may have very many rows."""


class LookupRows:
    """Rows of one schema in plain layouts, by key. Threads may share it: it never changes."""

    def __init__(self, rows: pa.RecordBatch, keys: Sequence[str]) -> None:
        self._keys = tuple(keys)
        has_key = without_nulls([rows.column(name) for name in keys])
        if has_key is not None:
            rows = rows.filter(pa.array(has_key))
        hashes = hash_keys([rows.column(name) for name in keys])
        order = stable_order(hashes)
        self.rows = take_rows(rows, order)
        """The rows that have a key, in another order than they were given."""
        self._hashes = hashes[order]
        # About one row per prefix; hashes that are cut short have 8 bits.
        bits = min(24, max(8, len(hashes).bit_length()))
        self._shift = np.uint64(64 - bits)
        prefixes = np.arange(1 << bits, dtype=np.uint64) << self._shift
        begins = np.append(np.searchsorted(self._hashes, prefixes), len(hashes))
        self._begins = begins.astype(np.int32 if len(hashes) < 1 << 31 else np.int64)
        self._columns: list[Any] = [self.rows.column(name) for name in keys]

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        return self.rows.nbytes + self._hashes.nbytes + self._begins.nbytes

    def partners_of(self, columns: Sequence[Any]) -> Iterator[tuple[Positions, Positions]]:
        """Yield which of some keys match which rows: numbers of keys, and of rows.

        A key matches as many rows as have it. Each result has a bounded size.
        """
        if not self.rows.num_rows:
            return
        asked = [
            relay(column, own.type)
            for column, own in zip(columns, self._columns, strict=True)
        ]
        hashes = hash_keys(asked)
        prefixes = (hashes >> self._shift).astype(np.int64)
        starts: Positions = self._begins[prefixes].astype(np.int64)
        counts: Positions = self._begins[prefixes + 1].astype(np.int64) - starts
        has_key = without_nulls(asked)
        if has_key is not None:
            counts[~has_key] = 0
        totals = np.cumsum(counts)
        first, last = 0, len(counts)
        while first < last:
            before = int(totals[first - 1]) if first else 0
            end = int(np.searchsorted(totals, before + _MOST_PAIRS, "right"))
            end = max(first + 1, end)
            numbers, places = _ranges(starts[first:end], counts[first:end])
            numbers += first
            is_near = self._hashes[places] == hashes[numbers]
            if not is_near.all():
                numbers, places = numbers[is_near], places[is_near]
            same = equal_keys(asked, numbers, self._columns, places)
            if not same.all():
                numbers, places = numbers[same], places[same]
            if len(numbers):
                yield numbers, places
            first = end

    def has(self, columns: Sequence[Any]) -> Flags:
        """Tell which of some keys have a row."""
        found = np.zeros(len(columns[0]), np.bool_)
        for numbers, _ in self.partners_of(columns):
            found[numbers] = True
        return found


def _ranges(starts: Positions, counts: Positions) -> tuple[Positions, Positions]:
    """Return for ranges of places which range each place is of, and all places."""
    numbers = np.repeat(np.arange(len(counts)), counts)
    skipped = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    return numbers, np.arange(len(numbers)) + skipped


def in_plain_layouts(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema that holds the same values, dictionaries decoded."""
    if rows.schema.equals(schema):
        return rows
    arrays: list[Any] = [relay(rows.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def in_one_batch(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as one batch, or refuse more text than a column in memory can hold."""
    filled = [part for part in parts if part.num_rows]
    if len(filled) <= 1:
        return filled[0] if filled else empty_batch(schema)
    batches = pa.Table.from_batches(filled, schema).combine_chunks().to_batches()
    if len(batches) > 1:
        raise UserError(
            "what is looked up has more than 2 GiB of text in one column: leave such columns "
            "out, or declare them as pa.large_string()",
            code=ErrorCode.INVALID_CONFIG,
        )
    return batches[0]
