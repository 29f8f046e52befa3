"""The job of the demo: Nexmark bids → the hot auctions of every ten seconds → Parquet.

Two windows, one behind the other. The first counts the bids of each auction in windows that
slide; the second takes what comes out for one window together, and keeps the best.

What the demo is about, dying and going on, is elsewhere: any job with the same functions can
stand here. `build` makes the pipeline, `recompute` says in batch what it must have found,
and `read_output` what it did find.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa

import penstock as pen
from penstock.connectors.nexmark.draws import EventKind
from penstock.connectors.nexmark.rows import SCHEMAS, NexmarkConfig, make_batch
from penstock.operators import OperatorSpec

NAME = "hot-items"
WIDTH, SLIDE = "10s", "2s"
WINDOWS_PER_BID = 5
TOP = 3
_COLUMNS = ["auction", "price", "date_time"]
_CHUNK_ROWS = 1_000_000


class Hottest(pen.Aggregate):
    """The auctions with most bids, best first; of equal ones those that began last."""

    def partial(self) -> Mapping[str, pl.Expr]:
        """Rank what there is."""
        return {"ranked": pl.struct("bids", "auction").sort(descending=True).head(TOP)}

    def merge(self, ranked: pl.Expr) -> Mapping[str, pl.Expr]:
        """Rank the best of several parts."""
        return {"ranked": ranked.explode().sort(descending=True).head(TOP)}

    def final(self, ranked: pl.Expr) -> pl.Expr:
        """Return a list of auctions and their bids."""
        return ranked


def bids(events: int, *, splits: int = 1) -> OperatorSpec:
    """Return the source: the bids among so many events of an auction site."""
    return pen.nexmark(
        events, kind="bids", splits=splits, disorder="200ms", columns=_COLUMNS
    )


def build(events: int, output: Path, *, parallelism: int = 2) -> pen.Pipeline:
    """Return the pipeline; nothing runs yet."""
    pipeline = pen.Pipeline(NAME, parallelism=parallelism)
    source = bids(events, splits=parallelism)
    (
        pipeline.read("bids", source, event_time="date_time", watermark_delay="200ms")
        .key_by("auction")
        .window("per-auction", pen.sliding(WIDTH, SLIDE))
        .aggregate(bids=pen.count(), top_price=pen.max("price"))
        # All results of a window have one event time, so here they come together again.
        .window("hottest", pen.tumbling(SLIDE))
        .aggregate(
            hottest=Hottest(),
            auctions=pen.count(),
            bids=pen.sum("bids"),
            top_price=pen.max("top_price"),
        )
        .select("window_end", "hottest", "auctions", "bids", "top_price")
        .write("parquet", pen.files(str(output)))
    )
    return pipeline


def rows_of(events: int) -> int:
    """Return how many of the events are bids."""
    config = _config_of(events)
    return config.sequence.rows_below(events, 0, 1)


def _config_of(events: int) -> NexmarkConfig:
    return msgspec.convert(dict(bids(events).config), NexmarkConfig)


def recompute(events: int) -> pl.DataFrame:
    """Return what the job must find, by one pass over the same bids, without Penstock."""
    slides = [
        rows.group_by("auction", start=pl.col("date_time").dt.truncate(SLIDE)).agg(
            bids=pl.len().cast(pl.Int64), top_price=pl.col("price").max()
        )
        for rows in _all_bids(events)
    ]
    # A bid is in the window that ends with its slide of time, and in the four behind it.
    windows = pl.DataFrame({"nth": range(1, WINDOWS_PER_BID + 1)})
    slide = pl.duration(seconds=2)
    return (
        pl.concat(slides)
        .join(windows, how="cross")
        .group_by("auction", window_end=pl.col("start") + pl.col("nth") * slide)
        .agg(pl.col("bids").sum(), pl.col("top_price").max())
        .group_by("window_end")
        .agg(
            pl.struct("bids", "auction").top_k(TOP).sort(descending=True).alias("hottest"),
            pl.len().cast(pl.Int64).alias("auctions"),
            pl.col("bids").sum(),
            pl.col("top_price").max(),
        )
        .sort("window_end")
    )


def _all_bids(events: int) -> Iterator[pl.DataFrame]:
    config = _config_of(events)
    emitted = SCHEMAS[EventKind.BIDS].arrow
    schema = pa.schema([emitted.field(name) for name in _COLUMNS])
    row_count = config.sequence.rows_below(events, 0, 1)
    for start in range(0, row_count, _CHUNK_ROWS):
        end = min(start + _CHUNK_ROWS, row_count)
        rows = make_batch(config, config.sequence.numbers(0, 1, start, end), schema)
        yield pl.DataFrame(pl.from_arrow(rows))


def read_output(output: Path) -> pl.DataFrame:
    """Return what the committed files say, one row per window."""
    rows = pl.DataFrame(pl.from_arrow(pen.read_committed(str(output))))
    return rows.sort("window_end")
