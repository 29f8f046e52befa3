"""RecordFormat: the contract between connectors that move bytes and a format of records.

    values, keys   --decode-->   rows, which records they come from, which records are bad
    rows           --encode-->   values, and keys where the format has its own

A record is bytes, or null: a *tombstone*, by which Kafka's compacted topics say that a key is
gone. What it means is the format's to say:

| format          | a tombstone gives                                         |
|-----------------|-----------------------------------------------------------|
| json, csv       | no row, and is not bad                                     |
| bytes, text     | a row whose column is null                                 |
| debezium        | no row: the record of the deletion itself precedes it      |
| upsert          | a row with the key, and true in the column `deleted`       |

A format is built on the driver, to check schemas, and again in every task. It holds no
state that matters: the same bytes give the same rows, however they are cut into batches.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes: TypeAlias = Any
"""An Arrow array of type binary or large_binary; a null is a tombstone."""
Places: TypeAlias = npt.NDArray[np.int64]
"""Positions of records in the values that were decoded, ascending."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that is no row of the schema."""

    index: int
    """Its position in the values that were decoded."""
    reason: str
    fails: bool = False
    """It fails the job by a rule of schema drift, also where bad records are diverted."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows of some records, in their order."""

    rows: pa.Table
    taken: Places | None = None
    """The record that each row comes from; None if each record gave one row, in order."""
    bad: Sequence[BadRecord] = field(default=())

    def take(self, column: Any) -> Any:
        """Return what belongs to the rows, of a column with a value per record."""
        return column if self.taken is None else column.take(pa.array(self.taken))

    def rows_of(self, count: int) -> Places:
        """Return for each of `count` records its row; -1 for one that gave none."""
        if self.taken is None:
            return np.arange(count)
        rows = np.full(count, -1, dtype=np.int64)
        rows[self.taken] = np.arange(len(self.taken))
        return rows


class RecordFormat(ABC):
    """Turns a column of bytes into rows of one schema, and back. Used by one thread.

    Those that are built in have names, by which `record_format` finds them. Others are given as
    objects, which need a schema and two methods:

    >>> class Words(RecordFormat):
    ...     schema = pa.schema([("words", pa.list_(pa.string()))])
    ...
    ...     def decode(self, values, keys=None):
    ...         words = [
    ...             None if v is None else v.decode().split() for v in values.to_pylist()
    ...         ]
    ...         return Decoded(pa.table({"words": words}, self.schema))
    ...
    ...     def encode(self, rows):
    ...         lines = [" ".join(words).encode() for words in rows["words"].to_pylist()]
    ...         return pa.array(lines, pa.binary())
    >>> Words().decode(pa.array([b"ink and paper"])).rows.to_pylist()
    [{'words': ['ink', 'and', 'paper']}]
    """

    schema: pa.Schema
    """The rows that `decode` gives and `encode` takes."""

    @abstractmethod
    def decode(self, values: Bytes, keys: Bytes | None = None) -> Decoded:
        """Return the rows of records. Bad ones are told, never raised.

        `keys` are the keys of the same records, which only formats with `reads_keys` look at.
        """

    @abstractmethod
    def encode(self, rows: pa.Table) -> Bytes:
        """Return a value per row; raise `UserError` for one that has no form."""

    def check_writable(self) -> None:  # noqa: B027 (most formats can write every schema that they take)
        """Raise `UserError` if the schema has columns that `encode` has no form for."""

    def encode_keys(self, rows: pa.Table) -> Bytes | None:  # noqa: ARG002 (for overrides)
        """Return a key per row, or None if the format says nothing about keys."""
        return None

    @property
    def reads_keys(self) -> bool:
        """Whether rows have columns that come from the keys of records."""
        return False


def find_present(values: Bytes) -> tuple[Bytes, Places | None]:
    """Return the values that are no tombstones, and where they are; None for everywhere."""
    if not values.null_count:
        return values, None
    is_there = np.asarray(values.is_valid().to_numpy(zero_copy_only=False))
    return values.drop_null(), np.flatnonzero(is_there)
