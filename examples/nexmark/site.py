"""Site: the streams of an auction site that the queries read, generated or from Parquet files."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import penstock as pen

Kind = Literal["bids", "auctions", "persons"]
KINDS: tuple[Kind, ...] = ("bids", "auctions", "persons")
PARTS = {"bids": 46, "auctions": 3, "persons": 1}
"""Of 50 events, so many are of each kind."""


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


def stored(folder: Path) -> Callable[[pen.Pipeline, Kind], pen.Stream]:
    """Return what reads events that lie in folders of Parquet files, one per kind."""

    def read(pipeline: pen.Pipeline, kind: Kind) -> pen.Stream:
        files = pen.files(str(folder / kind / "*.parquet"))
        return pipeline.read(kind, files, event_time="date_time")

    return read
