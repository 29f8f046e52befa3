"""Pipelines with mistakes, as users make them; what they are told is kept."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa

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


def auctions_of(p: pen.Pipeline) -> pen.Stream:
    rows = [{"id": "a", "auction": 1, "price": 9, "price_right": 1, "opened": AT}]
    return p.read("auctions", pen.list_source(rows), event_time="opened")


def joins_that_cannot_be(p: pen.Pipeline) -> None:
    bids, auctions = bids_of(p), auctions_of(p)
    timeless = bids.select("auction", "bidder")
    bids.join("unknown-columns", auctions, left_on="auktion", right_on="id", ttl="1d")
    bids.join("clash", auctions, on="auction", within=("0s", "1m")).join(
        "clash-again", auctions, on="auction", within=("0s", "1m")
    )
    bids.join("key-types", auctions, left_on="auction", right_on="id", ttl="1d")
    timeless.join("no-time", auctions, on="auction", within=("0s", "1m"))
    bids.join("kept-by-bounds", auctions, on="auction", within=("0s", "1m"), ttl="1d")
    bids.join("kept-by-windows", auctions, on="auction", window=pen.session("1m"), ttl="1d")
    residual = pl.col("reserve") > 1
    bids.join("residual", auctions, on="auction", ttl="1d", suffix="_", where=residual)
    bids.join("bounds", auctions, on="auction", within=("1m", "-1m"))
    untyped: Any = bids
    untyped.join("kind", auctions, on="auction", ttl="1d", how="outer")
    untyped.join("ttl", auctions, on="auction", ttl="soon")
    untyped.join("key", auctions, on=3)


def lookups_that_cannot_be(p: pen.Pipeline) -> None:
    bids = bids_of(p)
    names = pen.lookup_frame([{"auction": 1, "name": "lamp"}])
    untyped: Any = bids
    bids.join("all-rows", names, on="auction", how="full")
    bids.join("unknown", names, on="bidder")
    bids.join("types", names, left_on="bidder", right_on="auction")
    bids.join("within", names, on="auction", within=("0s", "1m"))
    untyped.join("frame", pl.DataFrame({"auction": [1]}), on="auction")
    best = bids.top("best", 3, by="price", per="auction")
    bids.join("table", pen.lookup_stream(best, key="auction"), on="auction")
    best.join("changelog", names, on="auction")


def changelogs_that_cannot_be(p: pen.Pipeline) -> None:
    bids = bids_of(p)
    untyped: Any = bids
    last = bids.to_table("last", key="auction")
    bids.to_upserts()
    bids.from_debezium("records", key="auction")
    bids.from_upserts("flags", key="auction", deleted="price")
    untyped.from_upserts("no-key", key=[])
    bids.select("price", "bidder").to_table("no-order", key="bidder")
    last.key_by("bidder").window("w", pen.session("10s")).aggregate(n=pen.count())
    last.select("price")
    last.union(last).to_upserts()
    last.deduplicate("once", "auction", ttl="1h")
    untyped.to_table("keys", key=5)
    untyped.to_table("order", key="auction", order_by=["price"])


def rankings_that_cannot_be(p: pen.Pipeline) -> None:
    bids = bids_of(p)
    untyped: Any = bids
    bids.top("none", 0, by="price", per="auction")
    bids.top("unknown", 3, by="prize", per="auktion")
    bids.top("taken", 3, by="price", per="auction", rank="price")
    bids.top("directions", 3, by=["price", "at"], per="auction", descending=[True])
    bids.deduplicate("by-nothing", ttl="1h")
    bids.deduplicate("unknown-key", "auktion", ttl="1h")
    untyped.deduplicate("keep", "auction", keep="latest", ttl="1h")
    bids.deduplicate("last", "auction", keep="last", ttl="1h")
    bids.select("auction").deduplicate("no-time", "auction", keep="last")


def windows_that_cannot_change(p: pen.Pipeline) -> None:
    by_auction = bids_of(p).key_by("auction")
    by_auction.window("none", pen.tumbling("10s"), allowed_lateness="0s")
    by_auction.window("soon", pen.session("10s"), allowed_lateness="soon")
    by_auction.window("w", pen.tumbling("10s"), allowed_lateness="5s").aggregate(
        change=pen.count()
    )
    bids = p.read("more", pen.list_source(BIDS), event_time="at")
    table = bids.to_table("last", key="bidder")
    table.window("sessions", pen.session("10s")).aggregate(n=pen.count())
    listed = table.with_columns(tags=pl.concat_list("auction"))
    count = pen.aggregate_rows(len, returns=pa.int64(), columns=["tags"])
    listed.window("lists", pen.tumbling("10s")).aggregate(n=count)


def lines_that_cannot_be_records(p: pen.Pipeline) -> None:
    p.read("changes", pen.files("changes/*.jsonl", format="debezium"))
    p.read("own", pen.files("own/*.txt", format="nowhere.formats:Pipes"))
    p.read("keyed", pen.files("own/*.txt", format=f"{__name__}:Keyed"))
    bids_of(p).write("out", pen.files("out", format="debezium"))


class Keyed(pen.RecordFormat):
    """A format that reads keys, which lines of files have not."""

    def __init__(self, schema: pa.Schema | None) -> None:
        self.schema = schema or pa.schema([("key", pa.binary())])

    def decode(self, values: Any, keys: Any = None) -> pen.Decoded:
        raise NotImplementedError

    def encode(self, rows: pa.Table) -> Any:
        raise NotImplementedError

    @property
    def reads_keys(self) -> bool:
        return True


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
        joins_that_cannot_be,
        lookups_that_cannot_be,
        changelogs_that_cannot_be,
        rankings_that_cannot_be,
        windows_that_cannot_change,
        lines_that_cannot_be_records,
    )
}
