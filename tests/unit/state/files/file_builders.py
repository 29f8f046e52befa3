"""Builders of rows and state files for tests of the files package."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.core.ids import FULL_RANGE, Epoch, KeyRange
from penstock.state.files.cache import FileCache
from penstock.state.files.parquet import EncodedFile, ParquetEncoder, cut_row_groups
from penstock.state.files.state_file import StateFile
from penstock.state.files.writer import FileDescription

NO_CACHE = FileCache(Path("/nonexistent"), 0)


def hashed_rows(row_count: int, *, seed: int = 0) -> pa.Table:
    """Rows sorted by key hash, with hashes over the whole space."""
    random = np.random.default_rng(seed)
    hashes = np.sort(random.integers(0, 1 << 64, row_count, dtype=np.uint64))
    return pa.table(
        {
            "_key_hash": hashes,
            "number": pa.array(random.integers(-(1 << 40), 1 << 40, row_count), pa.int64()),
            "amount": random.random(row_count),
            "text": pa.array([f"tö-{n}" for n in range(row_count)], pa.string()),
        }
    )


def encode_parquet(table: pa.Table, state_version: int) -> EncodedFile:
    """Encode all of `table` as one state file."""
    encoder = ParquetEncoder(table.schema, state_version, table)
    for rows in cut_row_groups(table):
        encoder.write(rows)
    return encoder.finish()


def a_schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(columns)


def a_description(
    epoch: int = 1,
    *,
    visible: KeyRange = FULL_RANGE,
    time_column: str | None = None,
    expiry_column: str | None = None,
    state_version: int = 3,
) -> FileDescription:
    return FileDescription(
        Epoch(epoch),
        0,
        state_version,
        visible=visible,
        time_column=time_column,
        expiry_column=expiry_column,
    )


def a_state_file(
    path: str,
    epoch: int = 1,
    *,
    subtask_index: int = 0,
    level: int = 0,
    visible: KeyRange = FULL_RANGE,
    replaces: tuple[str, ...] = (),
    hashes: tuple[int, int] | None = None,
    row_count: int = 1,
    size_bytes: int = 100,
) -> StateFile:
    """A list entry without an object behind it."""
    return StateFile(
        path=path,
        epoch=Epoch(epoch),
        subtask_index=subtask_index,
        level=level,
        row_count=row_count,
        size_bytes=size_bytes,
        checksum=hash_of_text(path),
        footer_bytes=10,
        footer_checksum=0,
        state_version=0,
        min_key_hash=None if hashes is None else hashes[0],
        max_key_hash=None if hashes is None else hashes[1],
        visible=visible,
        replaces=replaces,
    )


def hash_of_text(text: str) -> int:
    return sum(ord(letter) << (8 * place) for place, letter in enumerate(text[:8]))
