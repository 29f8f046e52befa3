"""The job of the Kafka demo: bids and auctions from Kafka, joined and counted, into Kafka and Delta.

    topic bids      ─┐
                     ├─ join: each bid with its auction ──┬──────────────────────▶ Delta table
    topic auctions  ─┘                                    └─ window per category ─▶ topic per-category

`build` makes the pipeline; `recompute` says in batch what it must have found.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl

import penstock as pen

NAME = "kafka-demo"
BIDS, AUCTIONS, RESULTS = "bids", "auctions", "per-category"
WIDTH = "2s"
LONGEST = timedelta(seconds=10)
"""For how long an auction takes bids."""
BID = {"auction": int, "bidder": int, "price": int, "bid_time": datetime}
AUCTION = {"auction": int, "category": int, "seller": int, "opened": datetime}
SALE = ["auction", "bidder", "price", "bid_time", "category", "seller"]
"""The columns of the Delta table: a bid and what it is on."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the job finds, or should find."""

    sales: pl.DataFrame
    """Bids with their auctions: the columns of `SALE`."""
    windows: pl.DataFrame
    """Bids by category and window."""


def build(servers: str, table: Path, *, parallelism: int) -> pen.Pipeline:
    """Return the pipeline; nothing runs yet."""
    pipeline = pen.Pipeline(NAME, parallelism=parallelism)
    bids = pipeline.read(
        "bids",
        pen.kafka(BIDS, servers=servers, schema=BID),
        event_time="bid_time",
        watermark_delay="100ms",
    )
    auctions = pipeline.read(
        "auctions",
        pen.kafka(AUCTIONS, servers=servers, schema=AUCTION),
        event_time="opened",
        watermark_delay="100ms",
    )
    sales = bids.join(
        "auctions-of-bids", auctions, on="auction", within=(-LONGEST, timedelta())
    )
    sales.select(*SALE).write("table", pen.delta(str(table)))
    (
        sales.key_by("category")
        .window("per-category", pen.tumbling(WIDTH))
        .aggregate(bids=pen.count(), total=pen.sum("price"), top=pen.max("price"))
        .select("category", "window_end", "bids", "total", "top")
        .write("topic", pen.kafka(RESULTS, servers=servers, key="category"))
    )
    return pipeline


def recompute(bids: pl.DataFrame, auctions: pl.DataFrame) -> Answers:
    """Return what the job must find, by one pass over all rows, without Penstock."""
    since_opening = pl.col("bid_time") - pl.col("opened")
    sales = bids.join(auctions, on="auction").filter(
        since_opening.is_between(timedelta(), LONGEST)
    )
    windows = sales.group_by(
        "category",
        # A pair has the later of both times, which is the bid's.
        window_end=pl.col("bid_time").dt.truncate(WIDTH).dt.offset_by(WIDTH),
    ).agg(
        bids=pl.len().cast(pl.Int64),
        total=pl.col("price").sum(),
        top=pl.col("price").max(),
    )
    return Answers(sales.select(SALE), windows)
