"""Samples of what passes through a job: the first late and bad rows, and the most frequent keys.

They are for people who ask why rows are put aside, or which key is hot. Nothing is decided by
them, so they may be few, and text is cut. Only a few rows of a batch are ever looked at.
"""

from collections import Counter
from collections.abc import MutableMapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.core.batch import to_rows
from penstock.core.settings import current
from penstock.graph.logical import BAD, LATE

SAMPLED = frozenset({LATE, BAD})
"""The outputs whose first rows are kept."""
ROWS_PER_SAMPLE = 3
_LONGEST_ROW = 1_024
_LONGEST_KEY = 128
_ROWS_PER_BATCH = 64
_MOST_SAMPLED = 4_096
_KEYS_PER_SAMPLE = 16


def sample_rows(
    samples: MutableMapping[str, tuple[str, ...]], output: str, batch: pa.RecordBatch
) -> None:
    """Add the first rows of a batch to the samples of an output, unless there are enough.

    A setting turns samples off, for rows that must not be stored twice.
    """
    known = samples.get(output, ())
    wanted = ROWS_PER_SAMPLE - len(known)
    if wanted > 0 and current().journal_samples == "on":
        rows = to_rows(batch.slice(0, wanted))
        samples[output] = (*known, *(_shown(row, _LONGEST_ROW) for row in rows))


class KeyCounter:
    """Counts the keys of some of the rows that go through an exchange.

    >>> import pyarrow as pa
    >>> counter = KeyCounter(("user",))
    >>> counter.note(pa.RecordBatch.from_pydict({"user": ["ada"] * 1_000}))
    >>> counter.rows_by_key()
    {'"ada"': 1000}
    """

    def __init__(self, key_columns: tuple[str, ...]) -> None:
        self._key_columns = key_columns
        self._keys: list[list[Any]] = []
        self._sampled = 0
        self._batches = 0
        self._take_every = 1
        self._random = np.random.default_rng(0)
        self.rows = 0
        """How many rows have passed."""

    def note(self, batch: pa.RecordBatch) -> None:
        """Look at a few rows of a batch, spread over all of it."""
        self.rows += batch.num_rows
        self._batches += 1
        if self._batches % self._take_every:
            return
        count = min(batch.num_rows, _ROWS_PER_BATCH)
        # By chance: keys often come in a fixed order, which any step could match.
        places = self._random.integers(0, batch.num_rows, count)
        chosen = batch.select(list(self._key_columns)).take(places)
        self._keys.append([tuple(row.values()) for row in to_rows(chosen)])
        self._sampled += chosen.num_rows
        if self._sampled > _MOST_SAMPLED:
            # Later batches count as much as earlier ones: half of what is known goes.
            self._keys = self._keys[::2]
            self._sampled = sum(map(len, self._keys))
            self._take_every *= 2

    def rows_by_key(self) -> dict[str, int]:
        """Return about how many rows each of the most frequent keys has, highest first."""
        counts = Counter(_shown_key(key) for keys in self._keys for key in keys)
        total = counts.total()
        return {
            key: round(count * self.rows / total)
            for key, count in counts.most_common(_KEYS_PER_SAMPLE)
        }


def _shown_key(key: tuple[Any, ...]) -> str:
    return _shown(key[0] if len(key) == 1 else list(key), _LONGEST_KEY)


def _shown(value: Any, longest: int) -> str:
    try:
        text = msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError):
        text = str(value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
