"""Queries that look at one row at a time: q0, q1, q2, q10, q14, q21 and q22."""

import polars as pl

import penstock as pen
from examples.nexmark.site import Site

EUROS = 0.908


def q0(site: Site) -> pen.Stream:
    """Pass all bids through."""
    return site.bids.select("auction", "bidder", "price", "date_time", "extra")


def q1(site: Site) -> pen.Stream:
    """Give prices in euros."""
    price = pl.col("price") * EUROS
    return site.bids.select("auction", "bidder", "date_time", "extra", price=price)


def q2(site: Site) -> pen.Stream:
    """Find bids on some auctions."""
    return site.bids.filter(pl.col("auction") % 123 == 0).select("auction", "price")


def q10(site: Site) -> pen.Stream:
    """Log bids by day and minute: the sink makes a folder of each."""
    time = pl.col("date_time")
    return site.bids.select(
        *("auction", "bidder", "price", "date_time", "extra"),
        day=time.dt.strftime("%Y-%m-%d"),
        minute=time.dt.strftime("%H:%M"),
    )


def q14(site: Site) -> pen.Stream:
    """Take bids of middling prices, with the time of day and a count of letters."""
    hour = pl.col("date_time").dt.hour()
    price = pl.col("price") * EUROS
    time_of_day = (
        pl.when(hour.is_between(8, 18))
        .then(pl.lit("dayTime"))
        .when((hour <= 6) | (hour >= 20))
        .then(pl.lit("nightTime"))
        .otherwise(pl.lit("otherTime"))
    )
    return site.bids.filter((price > 1_000_000) & (price < 50_000_000)).select(
        *("auction", "bidder", "date_time", "extra"),
        price=price,
        time_of_day=time_of_day,
        letters=pl.col("extra").str.count_matches("c", literal=True).cast(pl.Int64),
    )


def q21(site: Site) -> pen.Stream:
    """Find the number of each bid's channel: some have a name, others are in the URL."""
    channel = pl.col("channel").str.to_lowercase()
    numbers = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    named = channel.replace_strict(numbers, default=None, return_dtype=pl.String)
    in_url = pl.col("url").str.extract(r"(?:&|^)channel_id=([^&]*)")
    bids = site.bids.select(
        *("auction", "bidder", "price", "channel"), channel_id=pl.coalesce(named, in_url)
    )
    return bids.filter(pl.col("channel_id").is_not_null())


def q22(site: Site) -> pen.Stream:
    """Cut URLs into folders."""
    parts = pl.col("url").str.split("/")
    folders = {f"dir{n}": parts.list.get(n + 2, null_on_oob=True) for n in (1, 2, 3)}
    return site.bids.select("auction", "bidder", "price", "channel", **folders)
