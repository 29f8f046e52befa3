"""Site: the streams of an auction site that the queries read, generated or from Parquet files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import polars as pl
import pyarrow as pa

import penstock as pen

Kind = Literal["bids", "auctions", "persons"]
KINDS: tuple[Kind, ...] = ("bids", "auctions", "persons")
EVENT_TYPES: Mapping[Kind, int] = {"persons": 0, "auctions": 1, "bids": 2}
"""What the column `event_type` of mixed events says."""


@dataclass(frozen=True)
class Site:
    """Three streams with event times; each is read only if a query uses it."""

    pipeline: pen.Pipeline
    read: Callable[[pen.Pipeline, Kind], pen.Stream]

    @cached_property
    def bids(self) -> pen.Stream:
        """Who offers how much for what, and where: most of all events."""
        return self.read(self.pipeline, "bids")

    @cached_property
    def auctions(self) -> pen.Stream:
        """What is sold by whom, and until when."""
        return self.read(self.pipeline, "auctions")

    @cached_property
    def persons(self) -> pen.Stream:
        """Who buys and sells."""
        return self.read(self.pipeline, "persons")


def generated(
    events: int, *, splits: int = 1, gap: str | None = None
) -> Callable[[pen.Pipeline, Kind], pen.Stream]:
    """Return what reads the first so many events of the generator, all kinds counted.

    They happen every `gap`, by default every 100 microseconds.
    """

    def read(pipeline: pen.Pipeline, kind: Kind) -> pen.Stream:
        source = pen.nexmark(events, kind=kind, splits=splits, gap=gap)
        return pipeline.read(kind, source, event_time="date_time")

    return read


def stored(
    folder: Path, schema: pa.Schema, columns: Mapping[Kind, Sequence[str]]
) -> Callable[[pen.Pipeline, Kind], pen.Stream]:
    """Return what reads the events of all kinds, mixed as they came, from Parquet files.

    Files in order of their names are in order of time. `schema` has the columns to read, of
    all kinds together; `columns` are those of each kind.
    """
    events: dict[int, pen.Stream] = {}

    def read(pipeline: pen.Pipeline, kind: Kind) -> pen.Stream:
        if id(pipeline) not in events:
            files = pen.files(folder / "*.parquet", schema=schema, in_time_order=True)
            events[id(pipeline)] = pipeline.read(
                "events", files, event_time="date_time", watermark_delay="4s"
            )
        is_kind = pl.col("event_type") == EVENT_TYPES[kind]
        return events[id(pipeline)].filter(is_kind).select(*columns[kind])

    return read
