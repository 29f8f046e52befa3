"""Pipelines with mistakes, as users make them; what they are told is kept."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import polars as pl

import penstock as pen
from penstock.operators import OperatorSpec

AT = datetime(2024, 1, 1, tzinfo=UTC)
BIDS = [{"auction": 1, "bidder": "ada", "price": 5, "at": AT}]


def bids_of(p: pen.Pipeline) -> pen.Stream:
    return p.read("bids", pen.list_source(BIDS), event_time="at", watermark_delay="1s")


def six_mistakes(p: pen.Pipeline) -> None:
    bids = bids_of(p)
    dear = bids.filter(pl.col("prize") > 100)
    by_auction = dear.key_by("auction")
    by_auction.window("per-auction", pen.tumbling("0s")).aggregate(
        bids=pen.count(),
    ).write("out", pen.blackhole())
    by_auction.aggregate("totals", total=pen.sum("bidder"))
    dear.key_by("auctoin").aggregate("seen", bids=pen.count())
    untyped: Any = by_auction
    untyped.window(pen.tumbling("10s")).aggregate(bids=pen.count())
    bids.write("out", pen.blackhole())


def forgotten_names(p: pen.Pipeline) -> None:
    untyped: Any = p
    untyped.read(pen.list_source(BIDS))
    bids: Any = bids_of(p)
    bids.process(OperatorSpec("union"))
    bids.window(window=pen.session("5s"))
    bids.key_by("bidder").aggregate(name=pen.first("bidder"))
    bids.write(pen.blackhole())
    bids.write(None, pen.blackhole())


def steps_behind_a_broken_one(p: pen.Pipeline) -> None:
    broken = bids_of(p).select("nothing")
    broken.filter("anything").key_by("whatever").process("bids", OperatorSpec("union"))
    broken.window("w", pen.sliding("10s", "-1s")).aggregate(n=pen.sum("unknown"))
    broken.side_output("late").rebalance().broadcast().union(broken).write(
        "out", pen.blackhole()
    )
    broken.key_by("whatever").aggregate("totals", ttl="soon", n=pen.count())
    broken.write("out", pen.blackhole())


def one_name_twice(p: pen.Pipeline) -> None:
    by_auction = bids_of(p).key_by("auction")
    by_auction.window("w", pen.tumbling("10s")).aggregate(n=pen.count())
    by_auction.window("w", pen.tumbling("20s")).aggregate(n=pen.count())


def streams_that_do_not_fit(p: pen.Pipeline) -> None:
    bids = bids_of(p)
    bids.union(bids.select("at", "price")).write("out", pen.blackhole())
    bids.with_columns(pl.col("bidder") * 2)
    bids.key_by("auction").window("w", pen.tumbling("10s"), on_bad="divert").aggregate(
        n=pen.count()
    ).side_output("lat")


def a_source_that_cannot_be_read(p: pen.Pipeline) -> None:
    p.read("bids", pen.list_source(BIDS), event_time="ta", watermark_delay=-5)


def mistakes_of_the_graph_too(p: pen.Pipeline) -> None:
    bids = bids_of(p)
    bids.filter("bidder")
    bids.write("out", pen.blackhole(), parallelism=0)


BAD: dict[str, Callable[[pen.Pipeline], None]] = {
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
