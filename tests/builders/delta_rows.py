"""A Delta table for tests of the source: a version per append, and epochs that read it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

import penstock as pen
from penstock.testing import SourceHarness

START = datetime(2026, 1, 1, tzinfo=UTC)


def rows(*numbers: int) -> pa.Table:
    """Return a row per number; its time is its number in seconds."""
    times = [START + timedelta(seconds=n) for n in numbers]
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    return pa.table({"n": list(numbers), "at": times}, schema=schema)


def append(folder: Path, *numbers: int, **options: Any) -> None:
    """Add a version with a row per number."""
    write_deltalake(str(folder), rows(*numbers), mode="append", **options)


def harness(folder: Path, **options: Any) -> SourceHarness:
    """Return a source of the table, to be read epoch by epoch."""
    return SourceHarness(pen.delta(folder, **options).source_spec(), now=START)


def read(source: SourceHarness, epochs: int = 4) -> list[int]:
    """Run some epochs, and return all numbers that were read so far."""
    for _ in range(epochs):
        source.read()
        source.advance("1s")
    return sorted(row["n"] for row in source.rows())
