"""Queries whose results change as bids come: q15, q16, q17 and q18."""

from typing import Any

import polars as pl

import penstock as pen
from examples.nexmark.site import Site

_PRICE = pl.col("price")
RANKS = {
    "rank1": _PRICE < 10_000,
    "rank2": _PRICE.is_between(10_000, 1_000_000, closed="left"),
    "rank3": _PRICE >= 1_000_000,
}
"""Cheap, middling and dear bids."""
_COUNTS: dict[str, Any] = {
    "total_bids": pen.count(),
    **{f"{rank}_bids": pen.count(where=where) for rank, where in RANKS.items()},
}
_DISTINCT: dict[str, Any] = {
    f"{rank}_{column}s": pen.count_distinct(column, where=where)
    for column in ("bidder", "auction")
    for rank, where in {"total": None, **RANKS}.items()
}


def _with_day(bids: pen.Stream) -> pen.Stream:
    return bids.with_columns(day=pl.col("date_time").dt.date())


def q15(site: Site) -> pen.Stream:
    """Count bids, bidders and auctions of each day, by price."""
    bids = _with_day(site.bids).key_by("day")
    return bids.aggregate("per-day", ttl="forever", **_COUNTS, **_DISTINCT)


def q16(site: Site) -> pen.Stream:
    """Count bids, bidders and auctions of each channel and day, by price."""
    bids = _with_day(site.bids)
    timed = bids.with_columns(minute=pl.col("date_time").dt.strftime("%H:%M"))
    return timed.key_by("channel", "day").aggregate(
        "per-channel",
        ttl="forever",
        last_minute=pen.max("minute"),
        **_COUNTS,
        **_DISTINCT,
    )


def q17(site: Site) -> pen.Stream:
    """Follow the prices of each auction and day."""
    return (
        _with_day(site.bids)
        .key_by("auction", "day")
        .aggregate(
            "per-auction",
            **_COUNTS,
            min_price=pen.min("price"),
            max_price=pen.max("price"),
            avg_price=pen.avg("price"),
            sum_price=pen.sum("price"),
        )
    )


def q18(site: Site) -> pen.Stream:
    """Keep the last bid of each bidder on each auction."""
    return site.bids.to_table("last-bids", key=["bidder", "auction"])
