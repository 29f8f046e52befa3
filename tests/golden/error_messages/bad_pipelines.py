"""Pipelines with mistakes, as users make them; what they are told is kept."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import polars as pl

import penstock as ps

AT = datetime(2024, 1, 1, tzinfo=UTC)
BIDS = [{"auction": 1, "bidder": "ada", "price": 5, "at": AT}]


def bids_of(p: ps.Pipeline) -> ps.Stream:
    return p.read("bids", ps.list_source(BIDS), event_time="at", lateness="1s")


def six_mistakes(p: ps.Pipeline) -> None:
    bids = bids_of(p)
    dear = bids.filter(pl.col("prize") > 100)
    by_auction = dear.key_by("auction")
    by_auction.window("per-auction", ps.tumbling("0s")).aggregate(
        bids=ps.count(),
    ).write("out", ps.blackhole())
    by_auction.aggregate("totals", total=ps.sum("bidder"))
    dear.key_by("auctoin").aggregate("seen", bids=ps.count())
    untyped: Any = by_auction
    untyped.window(ps.tumbling("10s")).aggregate(bids=ps.count())
    bids.write("out", ps.blackhole())


def forgotten_names(p: ps.Pipeline) -> None:
    untyped: Any = p
    untyped.read(ps.list_source(BIDS))
    bids: Any = bids_of(p)
    bids.process(ps.OperatorSpec("union"))
    bids.window(window=ps.session("5s"))
    bids.key_by("bidder").aggregate(name=ps.first("bidder"))
    bids.write(ps.blackhole())
    bids.write(None, ps.blackhole())


def steps_behind_a_broken_one(p: ps.Pipeline) -> None:
    broken = bids_of(p).select("nothing")
    broken.filter("anything").key_by("whatever").process("bids", ps.OperatorSpec("union"))
    broken.window("w", ps.sliding("10s", "-1s")).aggregate(n=ps.sum("unknown"))
    broken.side_output("late").rebalance().broadcast().union(broken).write(
        "out", ps.blackhole()
    )
    broken.key_by("whatever").aggregate("totals", ttl="soon", n=ps.count())
    broken.write("out", ps.blackhole())


def one_name_twice(p: ps.Pipeline) -> None:
    by_auction = bids_of(p).key_by("auction")
    by_auction.window("w", ps.tumbling("10s")).aggregate(n=ps.count())
    by_auction.window("w", ps.tumbling("20s")).aggregate(n=ps.count())


def streams_that_do_not_fit(p: ps.Pipeline) -> None:
    bids = bids_of(p)
    bids.union(bids.select("at", "price")).write("out", ps.blackhole())
    bids.with_columns(pl.col("bidder") * 2)
    bids.key_by("auction").window("w", ps.tumbling("10s"), bad_times="divert").aggregate(
        n=ps.count()
    ).side_output("lat")


def a_source_that_cannot_be_read(p: ps.Pipeline) -> None:
    p.read("bids", ps.list_source(BIDS), event_time="ta", lateness=-5)


def mistakes_of_the_graph_too(p: ps.Pipeline) -> None:
    bids = bids_of(p)
    bids.filter("bidder")
    bids.write("out", ps.blackhole(), parallelism=0)


BAD: dict[str, Callable[[ps.Pipeline], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        six_mistakes,
        forgotten_names,
        steps_behind_a_broken_one,
        one_name_twice,
        streams_that_do_not_fit,
        a_source_that_cannot_be_read,
        mistakes_of_the_graph_too,
    )
}
