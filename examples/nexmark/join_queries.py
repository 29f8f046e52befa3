"""Queries that join what people sell, buy and say of themselves: q3, q4, q9, q13, q19, q20, q23."""

import polars as pl

import penstock as pen
from examples.nexmark.site import Site

SIDE_ROWS = 10_000
FOR_EVER = (None, None)
"""The rows of both sides are kept: any of them may find a partner at any time."""


def _bids_in_time(site: Site) -> pen.Stream:
    """Return bids with their auctions, those alone that came while the auction was open."""
    bids = site.bids.select("auction", "bidder", "price", bid_time="date_time")
    auctions = site.auctions.select("id", "category", "seller", "expires", "date_time")
    is_open = pl.col("bid_time").is_between("date_time", "expires")
    return auctions.join(
        "bids-in-time", bids, left_on="id", right_on="auction", where=is_open, ttl=FOR_EVER
    )


def q3(site: Site) -> pen.Stream:
    """Find who sells things of one category in three states."""
    sold = site.auctions.filter(pl.col("category") == 10).select("id", "seller")
    people = site.persons.filter(pl.col("state").is_in(["OR", "ID", "CA"]))
    sellers = people.select("id", "name", "city", "state").rename({"id": "person"})
    joined = sold.join(
        "sellers", sellers, left_on="seller", right_on="person", ttl=FOR_EVER
    )
    return joined.select("name", "city", "state", "id")


def q4(site: Site) -> pen.Stream:
    """Follow the average of the highest bids of each category."""
    highest = (
        _bids_in_time(site)
        .key_by("id", "category")
        .aggregate("highest-bids", final=pen.max("price"))
    )
    return highest.key_by("category").aggregate("averages", average=pen.avg("final"))


def q9(site: Site) -> pen.Stream:
    """Keep the winning bid of each auction: the highest one, of several the first."""
    return _bids_in_time(site).top(
        "winning-bids", 1, by=["price", "bid_time"], per="id", descending=[True, False]
    )


def q13(site: Site) -> pen.Stream:
    """Look up a value for each bid in a small table."""
    table = pl.DataFrame({"key": range(SIDE_ROWS)}).with_columns(
        value=pl.format("value-{}", "key")
    )
    bids = site.bids.select("auction", "bidder", "price", "date_time")
    keyed = bids.with_columns(key=pl.col("auction") % SIDE_ROWS)
    return keyed.join("values", pen.lookup_frame(table), on="key")


def q19(site: Site) -> pen.Stream:
    """Keep the ten highest bids of each auction."""
    bids = site.bids.select("auction", "bidder", "price", "date_time")
    return bids.top("highest-bids", 10, by="price", per="auction", rank="rank")


def q20(site: Site) -> pen.Stream:
    """Add their auctions to bids on things of one category."""
    auctions = site.auctions.filter(pl.col("category") == 10)
    described = auctions.select("id", "item_name", "seller", "category")
    bids = site.bids.select("auction", "bidder", "price", "date_time")
    return bids.join(
        "auctions-of-bids", described, left_on="auction", right_on="id", ttl=FOR_EVER
    )


def q23(site: Site) -> pen.Stream:
    """Add to bids who made them, and what these people sell themselves."""
    bids = site.bids.select("auction", "bidder", "price")
    people = site.persons.select("id", "name").rename({"id": "person"})
    sold = site.auctions.select("id", "seller", "category").rename({"id": "sold"})
    named = bids.join("bidders", people, left_on="bidder", right_on="person", ttl=FOR_EVER)
    return named.join("sold", sold, left_on="bidder", right_on="seller", ttl=FOR_EVER)
