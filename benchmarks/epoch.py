"""What an epoch costs before it has anything to do: ten rows, two supersteps, durable state.

Both sides count ten rows per key in every epoch and keep the counts: Penstock in a
`KeyedTable`, Structured Streaming in RocksDB with changelog checkpoints. They take turns, each in
processes of its own and with its own settings of the JVM, so that both find the machine
equally busy; the first epochs of each turn are its warm-up.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import penstock as pen
from benchmarks.sides import run_side
from benchmarks.structured_streaming import CORES, ROCKSDB, open_peer
from benchmarks.suites import Row
from penstock.core.clock import new_token
from penstock.core.settings import current
from penstock.operators import ArrowCollector, ArrowOperator, OperatorContext, keyed_table
from penstock.operators.splits import SourceBudget
from penstock.operators.user_functions import pickle_function
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment, SideWork
from penstock.runtime.driver.session import JobSession
from penstock.runtime.spark.executor import SparkExecutor
from penstock.runtime.spark.session import open_session
from penstock.runtime.spark.task import WorkerSpec
from penstock.state.files.cache import FileCache
from penstock.state.storage.urls import open_store

RATIO_LIMIT = 0.5
ROWS = 10
COUNTS = pa.schema([("key", pa.int64()), ("count", pa.int64())])


class RunningCount(ArrowOperator):
    """Counts rows per key."""

    def name(self) -> str:
        return "running-count"

    def output_schema(self, inputs: Any) -> pen.StreamSchema:
        return pen.StreamSchema(COUNTS)

    def tables(self) -> Any:
        return [keyed_table("counts", COUNTS, key_columns=["key"])]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        counts = ctx.get_keyed_state("counts")
        new = pl.DataFrame(batch).group_by("key").agg(count=pl.len().cast(pl.Int64))
        known = pl.DataFrame(counts.get(new).rows)["count"].fill_null(0)
        changed = new.with_columns(count=pl.col("count") + known)
        counts.put(changed)
        collector.collect(changed)


def run(*, quick: bool) -> Row:
    turns, epochs, warm_up = (1, 30, 20) if quick else (2, 150, 100)
    own: list[float] = []
    peer: list[float] = []
    for _ in range(turns):
        own += run_side(time_epochs, epochs, warm_up)["millis"]
        peer += run_side(time_triggers, epochs, warm_up)["millis"]
    median, peer_median = statistics.median(own), statistics.median(peer)
    ratio = median / peer_median
    return {
        "name": "empty stateful epoch of two supersteps on Spark",
        "penstock_millis": round(median, 1),
        "penstock_p90_millis": round(_p90(own), 1),
        "structured_streaming_millis": round(peer_median, 1),
        "structured_streaming_p90_millis": round(_p90(peer), 1),
        "epochs": len(own),
        "ratio": round(ratio, 3),
        "target": f"at most {RATIO_LIMIT} times Structured Streaming's trigger",
        "ok": ratio <= RATIO_LIMIT,
    }


def time_epochs(epochs: int, warm_up: int) -> Row:
    """Return what each epoch of Penstock took after the warm-up."""
    spark = open_session(f"local[{CORES},4]", name="benchmark")
    with tempfile.TemporaryDirectory() as folder:
        job = small_job(spark, Path(folder), epochs=epochs + warm_up)
        times = [_timed(job) for _ in range(epochs + warm_up)]
        job.environment.side_work.close()
        job.environment.executor.close()
        spark.stop()
    return {"millis": times[warm_up:]}


def time_triggers(epochs: int, warm_up: int) -> Row:
    """Return what each trigger of Structured Streaming took after the warm-up."""
    session = open_peer(ROCKSDB)
    with tempfile.TemporaryDirectory() as folder:
        times = triggers(session, Path(folder), epochs + warm_up)
        session.stop()
    return {"millis": times[warm_up:]}


def small_job(spark: SparkSession, folder: Path, *, epochs: int) -> JobSession:
    """Return a job that reads ten rows an epoch."""
    pipeline = pen.Pipeline("epochs", parallelism=2)
    source = pen.impulse(count=ROWS * (epochs + 10) * 2, splits=2)
    (
        pipeline.read("numbers", source)
        .with_columns(key=pl.col("counter") % ROWS)
        .key_by("key")
        .process("count", RunningCount())
        .write("out", pen.blackhole())
    )
    store = open_store(str(folder / "checkpoints"))
    cache = folder / "cache"
    registry = pickle_function(pipeline.registry, "registry")
    worker = WorkerSpec(new_token(), store, str(cache), current(), registry)
    environment = JobEnvironment(
        pipeline.graph(),
        store,
        FileCache(cache, limit_bytes=1 << 30),
        SparkExecutor(spark, worker),
        pipeline.registry,
        side_work=SideWork(8),
        settings=DriverSettings(
            budget=SourceBudget(rows=ROWS), adapts_budget=False, target_epoch_micros=1
        ),
    )
    return JobSession.start(environment)


def triggers(session: SparkSession, folder: Path, count: int) -> list[float]:
    """Return what triggers of Structured Streaming took."""
    source = session.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    keyed = (
        source.option("numPartitions", 2).load().withColumn("key", F.col("value") % ROWS)
    )
    query = (
        keyed.groupBy("key")
        .count()
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(folder))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        while (last := query.lastProgress) is None or last["batchId"] < count:
            time.sleep(0.1)
            failure = query.exception()
            if failure is not None:
                raise failure
        done = query.recentProgress[:count]
        return [progress["durationMs"]["triggerExecution"] for progress in done]
    finally:
        query.stop()


def _timed(job: JobSession) -> float:
    started = time.perf_counter()
    job.run_epoch()
    return (time.perf_counter() - started) * 1e3


def _p90(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[-1]
