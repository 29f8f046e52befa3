"""The queries of Nexmark in Structured Streaming, as its users write them, and those it cannot.

Results are dropped by its sink `noop`. Queries that change their results run in update mode.
"""

import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)
from pyspark.sql.pandas.types import from_arrow_schema

from benchmarks.nexmark_events import EVENTS_PER_FILE, schema_of
from benchmarks.structured_streaming import FILES_PER_TRIGGER, open_peer
from benchmarks.suites import Row
from examples.nexmark.join_queries import SIDE_ROWS
from examples.nexmark.site import EVENT_TYPES, Kind

Build = Callable[["PeerSite"], DataFrame]
EUROS = 0.908
CANNOT = {
    "q4": "an average of maxima that change: an aggregate in update mode cannot follow another",
    "q9": "what is behind a join of streams must be final: the highest bid so far cannot be told",
    "q19": "a ranking without windows is refused on streams",
}
"""Why the peer has no such query."""


@dataclass(frozen=True)
class PeerQuery:
    """A query, and how it is run."""

    build: Build
    mode: str = "append"
    has_state: bool = True
    leaves_open: bool = False
    """Windows that are open when the data ends are not emitted."""


@dataclass(frozen=True)
class PeerSite:
    """The streams that a query reads."""

    session: SparkSession
    events: DataFrame

    def of(self, kind: Kind) -> DataFrame:
        """Return the events of a kind, with a watermark as Penstock's."""
        timed = self.events.withWatermark("date_time", "4 seconds")
        return timed.where(F.col("event_type") == EVENT_TYPES[kind])

    @property
    def bids(self) -> DataFrame:
        return self.of("bids")

    @property
    def auctions(self) -> DataFrame:
        return self.of("auctions")

    @property
    def persons(self) -> DataFrame:
        return self.of("persons")


def _q0(site: PeerSite) -> DataFrame:
    return site.bids.select("auction", "bidder", "price", "date_time", "extra")


def _q1(site: PeerSite) -> DataFrame:
    price = (F.col("price") * EUROS).alias("price")
    return site.bids.select("auction", "bidder", price, "date_time", "extra")


def _q2(site: PeerSite) -> DataFrame:
    return site.bids.where(F.col("auction") % 123 == 0).select("auction", "price")


def _q3(site: PeerSite) -> DataFrame:
    sold = site.auctions.where("category = 10").select("id", "seller")
    people = site.persons.where("state IN ('OR', 'ID', 'CA')")
    sellers = people.select(F.col("id").alias("person"), "name", "city", "state")
    joined = sold.join(sellers, F.col("seller") == F.col("person"))
    return joined.select("name", "city", "state", "id")


def _q5(site: PeerSite) -> DataFrame:
    window = F.window("date_time", "10 seconds", "2 seconds")
    counts = site.bids.groupBy(window, "auction").agg(F.count("*").alias("bids"))
    most = counts.groupBy(F.col("window").alias("most_window")).agg(
        F.max("bids").alias("most")
    )
    return counts.join(most, F.expr("window = most_window AND bids = most")).select(
        "auction", "bids", F.col("window.end").alias("until")
    )


def _q7(site: PeerSite) -> DataFrame:
    bids = site.bids.select("auction", "bidder", "price", "date_time")
    highest = bids.groupBy(F.window("date_time", "10 seconds")).agg(
        F.max("price").alias("highest")
    )
    timed = highest.select("highest", F.window_time("window").alias("until"))
    return bids.join(
        timed,
        F.expr(
            "price = highest AND date_time <= until"
            " AND date_time > until - INTERVAL 10 SECONDS"
        ),
    ).select("auction", "bidder", "price", "date_time")


def _q8(site: PeerSite) -> DataFrame:
    window = F.window("date_time", "10 seconds")
    came = site.persons.groupBy(window.alias("came"), "id", "name").agg(F.count("*"))
    sold = site.auctions.groupBy(window.alias("sold"), "seller").agg(F.count("*"))
    return came.join(sold, F.expr("came = sold AND id = seller")).select(
        "id", "name", "came"
    )


def _q10(site: PeerSite) -> DataFrame:
    time = F.col("date_time")
    return _q0(site).select(
        "*",
        F.date_format(time, "yyyy-MM-dd").alias("day"),
        F.date_format(time, "HH:mm").alias("minute"),
    )


def _q11(site: PeerSite) -> DataFrame:
    sessions = site.bids.groupBy(F.session_window("date_time", "10 seconds"), "bidder")
    return sessions.agg(F.count("*").alias("bids"))


def _q12(site: PeerSite) -> DataFrame:
    taken = site.bids.withColumn("taken", F.current_timestamp())
    windows = taken.groupBy(F.window("taken", "10 seconds"), "bidder")
    return windows.agg(F.count("*").alias("bids"))


def _q13(site: PeerSite) -> DataFrame:
    table = site.session.range(SIDE_ROWS).select(
        F.col("id").alias("key"), F.format_string("value-%d", "id").alias("value")
    )
    bids = site.bids.select("auction", "bidder", "price", "date_time")
    return bids.withColumn("key", F.col("auction") % SIDE_ROWS).join(table, "key")


def _q14(site: PeerSite) -> DataFrame:
    hour, price = F.hour("date_time"), F.col("price") * EUROS
    time_of_day = (
        F.when(hour.between(8, 18), "dayTime")
        .when((hour <= 6) | (hour >= 20), "nightTime")
        .otherwise("otherTime")
    )
    return site.bids.where((price > 1_000_000) & (price < 50_000_000)).select(
        *("auction", "bidder", "date_time", "extra"),
        price.alias("price"),
        time_of_day.alias("time_of_day"),
        F.expr("length(extra) - length(replace(extra, 'c', ''))").alias("letters"),
    )


_RANKS = {
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}


def _counts() -> list[Column]:
    return [
        F.count("*").alias("total_bids"),
        *(F.count_if(F.expr(where)).alias(f"{r}_bids") for r, where in _RANKS.items()),
    ]


def _distinct() -> list[Column]:
    """Count different values by collecting them: `count_distinct` is refused on streams."""
    return [
        F.size(F.collect_set(F.when(F.expr(where), F.col(column)))).alias(f"{r}_{column}s")
        for column in ("bidder", "auction")
        for r, where in {"total": "true", **_RANKS}.items()
    ]


def _with_day(bids: DataFrame) -> DataFrame:
    return bids.withColumn("day", F.to_date("date_time"))


def _q15(site: PeerSite) -> DataFrame:
    return _with_day(site.bids).groupBy("day").agg(*_counts(), *_distinct())


def _q16(site: PeerSite) -> DataFrame:
    minute = F.max(F.date_format("date_time", "HH:mm")).alias("last_minute")
    days = _with_day(site.bids).groupBy("channel", "day")
    return days.agg(minute, *_counts(), *_distinct())


def _q17(site: PeerSite) -> DataFrame:
    return (
        _with_day(site.bids)
        .groupBy("auction", "day")
        .agg(*_counts(), F.min("price"), F.max("price"), F.avg("price"), F.sum("price"))
    )


def _q18(site: PeerSite) -> DataFrame:
    rest = F.struct("price", "channel", "url", "date_time", "extra")
    last = F.max_by(rest, F.struct("date_time", "price", "channel", "url", "extra"))
    return site.bids.groupBy("bidder", "auction").agg(last.alias("last"))


def _q20(site: PeerSite) -> DataFrame:
    described = site.auctions.where("category = 10").select(
        "id", "item_name", "seller", "category"
    )
    bids = site.bids.select("auction", "bidder", "price", "date_time")
    return bids.join(described, F.col("auction") == F.col("id"))


def _q21(site: PeerSite) -> DataFrame:
    channel = F.lower("channel")
    named = (
        F.when(channel == "apple", "0")
        .when(channel == "google", "1")
        .when(channel == "facebook", "2")
        .when(channel == "baidu", "3")
    )
    in_url = F.nullif(F.regexp_extract("url", "(&|^)channel_id=([^&]*)", 2), F.lit(""))
    bids = site.bids.select(
        "auction",
        "bidder",
        "price",
        "channel",
        F.coalesce(named, in_url).alias("channel_id"),
    )
    return bids.where("channel_id IS NOT NULL")


def _q22(site: PeerSite) -> DataFrame:
    parts = F.split("url", "/")
    folders = [F.get(parts, F.lit(n + 2)).alias(f"dir{n}") for n in (1, 2, 3)]
    return site.bids.select("auction", "bidder", "price", "channel", *folders)


def _q23(site: PeerSite) -> DataFrame:
    bids = site.bids.select("auction", "bidder", "price")
    people = site.persons.select(F.col("id").alias("person"), "name")
    sold = site.auctions.select(F.col("id").alias("sold"), "seller", "category")
    named = bids.join(people, F.col("bidder") == F.col("person"))
    return named.join(sold, F.col("bidder") == F.col("seller"))


QUERIES: dict[str, PeerQuery] = {
    **{
        name: PeerQuery(build, has_state=False)
        for name, build in {
            "q0": _q0,
            "q1": _q1,
            "q2": _q2,
            "q10": _q10,
            "q13": _q13,
            "q14": _q14,
            "q21": _q21,
            "q22": _q22,
        }.items()
    },
    **{
        name: PeerQuery(build, leaves_open=True)
        for name, build in {"q5": _q5, "q7": _q7, "q8": _q8, "q11": _q11}.items()
    },
    **{
        name: PeerQuery(build)
        for name, build in {"q3": _q3, "q20": _q20, "q23": _q23}.items()
    },
    **{
        name: PeerQuery(build, mode="update")
        for name, build in {
            "q12": _q12,
            "q15": _q15,
            "q16": _q16,
            "q17": _q17,
            "q18": _q18,
        }.items()
    },
}


def run_queries(names: Sequence[str], store: str, events: Path, folder: Path) -> Row:
    """Run those queries that can be written, one after the other; others say why not."""
    session = open_peer(store)
    found: Row = {}
    for name in names:
        if name not in QUERIES:
            found[name] = {"error": CANNOT.get(name, "not written")}
            continue
        try:
            found[name] = _run(session, QUERIES[name], events, folder / name)
        except Exception as error:  # noqa: BLE001 (one query must not hide the others)
            traceback.print_exc()
            found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        said = found[name].get("rows_per_second", "failed")
        sys.stderr.write(f"{store.rpartition('.')[2]} {name}: {said} events/s\n")
        shutil.rmtree(folder / name, ignore_errors=True)
    session.stop()
    return found


def _run(session: SparkSession, query: PeerQuery, events: Path, folder: Path) -> Row:
    stream = session.readStream.schema(from_arrow_schema(schema_of()))
    read = stream.option("maxFilesPerTrigger", FILES_PER_TRIGGER).parquet(str(events))
    frame = query.build(PeerSite(session, read))
    writer = frame.writeStream.outputMode(query.mode).option(
        "checkpointLocation", str(folder / "checkpoint")
    )
    if query.build is _q10:
        writer = writer.format("parquet").option("path", str(folder / "out"))
        writer = writer.partitionBy("day", "minute")
    else:
        writer = writer.format("noop")
    running = writer.trigger(availableNow=True).start()
    running.awaitTermination()
    triggers = [progress for progress in running.recentProgress if progress["numInputRows"]]
    seconds = triggers[-1]["durationMs"]["triggerExecution"] / 1e3
    # A stream that a query reads twice counts twice there.
    rows = FILES_PER_TRIGGER * EVENTS_PER_FILE
    return {
        "rows": rows,
        "seconds": seconds,
        "rows_per_second": round(rows / seconds),
        "rows_written": sum(p["sink"]["numOutputRows"] for p in running.recentProgress),
    }


def difference(name: str, own: int, theirs: int) -> str | None:
    """Say how many rows came out of both sides, if that differs where it should not."""
    query = QUERIES[name]
    if name == "q12" or theirs < 0:  # windows of whenever it ran, and files not counted
        return None
    if theirs == own or (query.leaves_open and 0 < theirs < own):
        return None
    return f"{own} rows come out of Penstock, {theirs} of Structured Streaming"
