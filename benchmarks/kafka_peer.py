"""Structured Streaming on Kafka: its own source and sink, the same topic, cores and rows."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own habit)
from pyspark.sql.pandas.types import from_arrow_schema

from benchmarks.bids import SCHEMA
from benchmarks.steady_load import Counting
from benchmarks.structured_streaming import (
    CORES,
    open_peer,
    rows_per_trigger,
    run_to_end,
)
from benchmarks.suites import Row
from scripts.servers.installation import install, spark_kafka_jars

_LOOK_SECONDS = 0.2


def jars() -> list[Path]:
    """Return the jars of Spark's Kafka connector; the first use downloads them."""
    install("spark-kafka")
    return spark_kafka_jars()


def read_topic(
    session: SparkSession, servers: str, topic: str, **options: object
) -> DataFrame:
    """Return a topic as a stream from its first record on."""
    stream = session.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    given = {"subscribe": topic, "startingOffsets": "earliest", **options}
    for name, value in given.items():
        stream = stream.option(name, str(value))
    return stream.load()


def run_kafka_query(
    query: Callable[[DataFrame], DataFrame],
    store: str,
    topic: str,
    folder: Path,
    *,
    servers: str,
    settled_after: int,
) -> Row:
    """Run a query over a topic of bids; results go to Parquet below `folder`."""
    session = open_peer(store, jars=jars())
    records = read_topic(session, servers, topic, maxOffsetsPerTrigger=rows_per_trigger())
    schema = from_arrow_schema(SCHEMA)
    bid = F.from_json(F.col("value").cast("string"), schema)
    return run_to_end(
        query(records.select(bid.alias("bid")).select("bid.*")),
        folder,
        mode="append",
        settled_after=settled_after,
        rows_in=lambda progress: int(progress["numInputRows"]),
    )


def count_events(
    counting: Counting, *, store: str, real_time: bool = False, slots: int = CORES
) -> Row:
    """Count events by user as they come: triggers follow each other without a pause.

    In real-time mode a trigger is long, and results come while it runs; all its tasks run at
    once, so it needs more slots than there are cores.
    """
    session = open_peer(store, jars=jars(), slots=slots)
    records = read_topic(session, counting.servers, counting.source)
    user = F.from_json(F.col("value").cast("string"), "user LONG").getField("user")
    counts = (
        records.select(user.alias("user")).groupBy("user").agg(F.count("*").alias("events"))
    )
    value = F.to_json(F.struct("user", "events")).alias("value")
    key = F.col("user").cast("string").alias("key")
    writer = (
        counts.select(key, value)
        .writeStream.format("kafka")
        .outputMode("update")
        .option("kafka.bootstrap.servers", counting.servers)
        .option("topic", counting.target)
        .option("checkpointLocation", str(counting.folder / "checkpoint"))
    )
    trigger = {"realTime": "5 seconds"} if real_time else {"processingTime": "0 seconds"}
    running = writer.trigger(**trigger).start()
    while running.isActive and not counting.has_ended:
        time.sleep(_LOOK_SECONDS)
    failure = running.exception()
    if failure is not None:
        raise RuntimeError(str(failure))
    triggers = [
        progress["durationMs"]["triggerExecution"]
        for progress in running.recentProgress
        if progress["numInputRows"]
    ]
    running.stop()
    session.stop()
    return {"trigger_ms": round(statistics.median(triggers), 1)}
