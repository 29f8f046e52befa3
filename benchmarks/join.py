"""An interval join: bids with their auctions, those alone that came while the auction was open.

All kinds of events lie in the same files, in order of time; every one of them counts as a row.
"""

from dataclasses import replace
from pathlib import Path

import polars as pl

import penstock as pen
from benchmarks import structured_streaming
from benchmarks.comparison import compare, difference
from benchmarks.events import AUCTION, BID, EVENTS, LONGEST_LIFE_MILLIS
from benchmarks.suites import Row

SETTLED_AFTER = 2
FEW_EVENTS = replace(EVENTS, files=10, quick_files=6, warm_up_files=2)
"""Fewer than other suites read: the peer takes half a minute for a million rows."""
_RESULTS = "auction, bidder, price, bid_time, seller, category, expires, date_time"


def build(events: pen.Stream) -> pen.Stream:
    bids = events.filter(pl.col("event_type") == BID).select(
        "auction", "bidder", "price", "date_time"
    )
    auctions = events.filter(pl.col("event_type") == AUCTION).select(
        "auction", "seller", "category", "expires", "date_time"
    )
    return bids.rename({"date_time": "bid_time"}).join(
        "auctions-of-bids",
        auctions,
        on="auction",
        within=(f"-{LONGEST_LIFE_MILLIS}ms", "0s"),
        where=pl.col("bid_time") <= pl.col("expires"),
    )


def run(*, quick: bool) -> Row:
    return compare(
        "join",
        build,
        structured_streaming.joined,
        columns=EVENTS.schema.names,
        mode="append",
        agree=same_pairs,
        goal=10,
        goal_default=4,
        quick=quick,
        read_from=FEW_EVENTS,
        settled_after=SETTLED_AFTER,
    )


def same_pairs(own: Path, theirs: Path) -> str | None:
    rows = f"SELECT {_RESULTS} FROM read_parquet('{{}}')"
    return difference(
        rows.format(f"{own}/**/*.parquet"), rows.format(f"{theirs}/*.parquet")
    )
