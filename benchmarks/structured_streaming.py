"""Structured Streaming as the peer: the same files, cores, rows per epoch and durability."""

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)
from pyspark.sql.pandas.types import from_arrow_schema

from benchmarks.bids import BIDS
from benchmarks.events import AUCTION, BID, LONGEST_LIFE_MILLIS
from benchmarks.inputs import ROWS_PER_FILE, Input
from benchmarks.sides import folder_bytes
from benchmarks.suites import Row

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
DEFAULT = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
FILES_PER_TRIGGER = 2
CORES = 2
SETTLED_AFTER, QUICK_SETTLED_AFTER = 5, 2
"""Triggers and epochs that are not timed: JVMs warm up and state gets its first size."""


def open_peer(store: str, *, jars: Sequence[Path] = (), slots: int = CORES) -> SparkSession:
    """Start Spark for the peer alone, as its users would.

    `slots` are the tasks that run at once; there are no more cores for them.
    """
    builder = SparkSession.builder.master(f"local[{slots}]").appName("peer")
    if jars:
        # What `spark.jars` does for a cluster; a JVM that is started anew needs no copy.
        classes = os.pathsep.join(map(str, jars))
        builder = builder.config("spark.driver.extraClassPath", classes)
    spark = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "6g")  # the default store keeps all state there
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    # Workers must find the functions of the suites.
    spark.sparkContext.pythonExec = sys.executable
    spark.sparkContext.environment["PYTHONPATH"] = os.pathsep.join(
        map(os.path.abspath, sys.path)
    )
    return prepare(spark, store)


def prepare(spark: SparkSession, store: str) -> SparkSession:
    """Return a session of its own that keeps state in a store."""
    session = spark.newSession()
    for name, value in {
        "spark.sql.shuffle.partitions": CORES,
        "spark.sql.streaming.stateStore.providerClass": store,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        session.conf.set(name, str(value))
    return session


def read_files(session: SparkSession, folder: Path, read_from: Input = BIDS) -> DataFrame:
    """Return an input as a stream, two files (a million rows) a trigger."""
    stream = session.readStream.schema(from_arrow_schema(read_from.schema))
    return stream.option("maxFilesPerTrigger", FILES_PER_TRIGGER).parquet(str(folder))


def tumbling(bids: DataFrame) -> DataFrame:
    """Count, sum and max by auction per 10 s."""
    windows = bids.withWatermark("ts", "1 second").groupBy(
        F.window("ts", "10 seconds"), "auction"
    )
    aggregated = windows.agg(
        F.count("*").alias("bids"),
        F.sum("price").alias("total"),
        F.max("price").alias("top"),
    )
    return aggregated.select(
        "auction", F.col("window.end").alias("window_end"), "bids", "total", "top"
    )


def sliding(bids: DataFrame) -> DataFrame:
    """Count and sum by auction, 10 s sliding by 2 s."""
    window = F.window("ts", "10 seconds", "2 seconds")
    windows = bids.withWatermark("ts", "1 second").groupBy(window, "auction")
    aggregated = windows.agg(F.count("*").alias("bids"), F.sum("price").alias("total"))
    return aggregated.select(
        "auction", F.col("window.end").alias("window_end"), "bids", "total"
    )


def updating(bids: DataFrame) -> DataFrame:
    """Count and sum by bidder, as changes."""
    return bids.groupBy("bidder").agg(
        F.count("*").alias("bids"), F.sum("price").alias("total")
    )


def deduplicated(bids: DataFrame) -> DataFrame:
    """Take the first bid of each bidder on each auction, for ten minutes."""
    timed = bids.withWatermark("ts", "10 minutes")
    return timed.dropDuplicatesWithinWatermark(["bidder", "auction"])


def sessions(bids: DataFrame) -> DataFrame:
    """Count and sum by bidder in sessions with a gap of 1 s."""
    windows = bids.withWatermark("ts", "1 second").groupBy(
        F.session_window("ts", "1 second"), "bidder"
    )
    aggregated = windows.agg(F.count("*").alias("bids"), F.sum("price").alias("total"))
    end = F.col("session_window.end").alias("window_end")
    return aggregated.select("bidder", end, "bids", "total")


def joined(events: DataFrame) -> DataFrame:
    """Join bids with their auctions, those alone that came while the auction was open."""
    events = events.withWatermark("date_time", "1 second")
    bids = events.where(F.col("event_type") == BID).select(
        "auction", "bidder", "price", F.col("date_time").alias("bid_time")
    )
    auctions = events.where(F.col("event_type") == AUCTION).select(
        F.col("auction").alias("id"), "seller", "category", "expires", "date_time"
    )
    longest = F.expr(f"INTERVAL {LONGEST_LIFE_MILLIS} MILLISECONDS")
    is_in_time = (
        (F.col("auction") == F.col("id"))
        & (F.col("bid_time") >= F.col("date_time"))
        & (F.col("bid_time") <= F.col("date_time") + longest)
        & (F.col("bid_time") <= F.col("expires"))
    )
    return bids.join(auctions, is_in_time).drop("id")


def run_query(
    query: Callable[[DataFrame], DataFrame],
    store: str,
    files: Path,
    folder: Path,
    *,
    mode: str,
    settled_after: int,
    read_from: Input = BIDS,
) -> Row:
    """Run a query over all files; results go to Parquet below `folder`."""
    session = open_peer(store)
    frame = query(read_files(session, files, read_from))
    # A query that reads its input twice counts its rows twice.
    return run_to_end(
        frame,
        folder,
        mode=mode,
        settled_after=settled_after,
        rows_in=lambda _: rows_per_trigger(),
    )


def run_to_end(
    frame: DataFrame,
    folder: Path,
    *,
    mode: str,
    settled_after: int,
    rows_in: Callable[[Mapping[str, Any]], int],
) -> Row:
    """Run a stream over all there is, and stop its session; `rows_in` counts a trigger's rows."""
    checkpoint, out = folder / "checkpoint", folder / "out"
    writer = frame.writeStream.outputMode(mode).option(
        "checkpointLocation", str(checkpoint)
    )
    if mode == "append":
        writer = writer.format("parquet").option("path", str(out))
    else:
        writer = writer.foreachBatch(
            lambda changes, batch: changes.write.mode("overwrite").parquet(
                f"{out}/batch={batch}"
            )
        )
    started = time.perf_counter()
    running = writer.trigger(availableNow=True).start()
    running.awaitTermination()
    seconds = time.perf_counter() - started
    triggers = [progress for progress in running.recentProgress if progress["numInputRows"]]
    timed = triggers[settled_after:]
    settled = [t["durationMs"]["triggerExecution"] / 1e3 for t in timed]
    rows = sum(map(rows_in, timed))
    frame.sparkSession.stop()
    return {
        "seconds": round(sum(settled), 3),
        "rows": rows,
        "rows_per_second": round(rows / sum(settled)),
        "seconds_per_trigger": round(statistics.median(settled), 3),
        "seconds_with_start": round(seconds, 2),
        "bytes_checkpointed": folder_bytes(checkpoint),
    }


def rows_per_trigger() -> int:
    """Return how many rows a trigger, and an epoch, takes."""
    return FILES_PER_TRIGGER * ROWS_PER_FILE
