"""Queries over windows, of event time and of processing time: q5, q7, q8, q11 and q12."""

import polars as pl

import penstock as pen
from examples.nexmark.site import Site

WINDOW = ("window_start", "window_end")


def q5(site: Site) -> pen.Stream:
    """Find the auctions with most bids in the last ten seconds, every two seconds."""
    counts = (
        site.bids.key_by("auction")
        .window("bids-per-auction", pen.sliding("10s", "2s"))
        .aggregate(bids=pen.count())
    )
    most = counts.window("most-bids", pen.tumbling("2s")).aggregate(most=pen.max("bids"))
    hot = counts.rename({"window_end": "until"}).join(
        "hottest",
        most,
        left_on="until",
        right_on="window_end",
        within=("0s", "0s"),
        where=pl.col("bids") == pl.col("most"),
    )
    return hot.select("auction", "bids", "until")


def q7(site: Site) -> pen.Stream:
    """Find the highest bids of every ten seconds."""
    bids = site.bids.select("auction", "bidder", "price", "date_time")
    highest = bids.window("highest", pen.tumbling("10s")).aggregate(price=pen.max("price"))
    return bids.join(
        "bids-of-that-price",
        highest,
        on="price",
        within=("0s", "10s"),
        where=pl.col("date_time").is_between("window_start", "window_end", closed="left"),
    ).select("auction", "bidder", "price", "date_time")


def q8(site: Site) -> pen.Stream:
    """Find people who came and sold something within the same ten seconds."""
    came = site.persons.select("id", "name", "date_time")
    sold = site.auctions.select("seller", "date_time")
    return came.join(
        "new-sellers",
        sold,
        left_on="id",
        right_on="seller",
        how="semi",
        window=pen.tumbling("10s"),
    )


def q11(site: Site) -> pen.Stream:
    """Count the bids of each bidder in sessions."""
    return (
        site.bids.key_by("bidder")
        .window("sessions", pen.session("10s"))
        .aggregate(bids=pen.count())
    )


def q12(site: Site) -> pen.Stream:
    """Count the bids that come from each bidder within ten seconds by the clock."""
    return (
        site.bids.key_by("bidder")
        .window("as-they-come", pen.tumbling("10s", time_domain="processing-time"))
        .aggregate(bids=pen.count())
    )
