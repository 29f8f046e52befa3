"""Queries of Nexmark as cases to be run in every mode, and what SQL says of the same events."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

import penstock as pen
from examples.nexmark.__main__ import queries
from examples.nexmark.site import KINDS, Kind, Site, generated
from penstock.core.clock import ManualClock, new_token
from penstock.testing.given import to_instant
from tests.builders.aggregated_rows import fold
from tests.examples.nexmark_sql import NOW, SQL

EVENTS = 3_000
GAP = "20ms"
"""So the events last a minute, and windows close while others fill."""
ROWS = {"bids": EVENTS * 46 // 50, "auctions": EVENTS * 3 // 50}
KEYS = {
    "q4": ["category"],
    "q9": ["id"],
    "q19": ["auction", "rank"],
    "q15": ["day"],
    "q16": ["channel", "day"],
    "q17": ["auction", "day"],
    "q18": ["bidder", "auction"],
}
"""The keys of queries whose output is a changelog."""


@dataclass(frozen=True, slots=True)
class NexmarkCase:
    """One query over the events."""

    name: str

    @property
    def clock(self) -> ManualClock | None:
        """The clock of its drivers, which stands still; None for that of this machine."""
        return ManualClock(to_instant(NOW)) if self.name == "q12" else None

    @property
    def row_count(self) -> int:
        return ROWS["auctions" if self.name in {"q3", "q8"} else "bids"]

    def pipeline(self, output: str, *, parallelism: int) -> pen.Pipeline:
        pipeline = pen.Pipeline(f"nexmark-{self.name}", parallelism=parallelism)
        rows = queries()[self.name](Site(pipeline, events(splits=2)))
        rows.write("out", pen.files(output, format="parquet"))
        return pipeline

    def check(self, output: str) -> None:
        found = pen.read_committed(output).to_pylist()
        if self.name in KEYS:
            keys = KEYS[self.name]
            table = fold(found, keys)
            found = [dict(zip(keys, key, strict=True)) | row for key, row in table.items()]
        assert counted(found) == expected()[self.name]


def events(*, splits: int = 1) -> Callable[[pen.Pipeline, Kind], pen.Stream]:
    """Return what reads the events that all cases are about."""
    return generated(EVENTS, splits=splits, gap=GAP)


@cache
def expected() -> Mapping[str, Counter[Any]]:
    """Return the rows that SQL gives of the same events, by query."""
    with duckdb.connect() as connection:
        for kind in KINDS:
            pipeline, rows = pen.Pipeline("all"), pen.list_sink(f"all-{kind}-{new_token()}")
            events()(pipeline, kind).write("out", rows)
            pipeline.run_in_process("memory:")
            connection.register(kind, pa.Table.from_batches(rows.batches()))
        return {
            name: counted(connection.sql(sql).to_arrow_table().to_pylist())
            for name, sql in SQL.items()
        }


def counted(rows: Iterable[Mapping[str, Any]]) -> Counter[Any]:
    """Return how often each row is there; columns in any order, fractions rounded."""
    return Counter(
        tuple(
            sorted(
                (name, round(value, 6) if isinstance(value, float) else value)
                for name, value in row.items()
            )
        )
        for row in rows
    )
