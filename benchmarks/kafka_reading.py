"""Kafka's values in Python tasks, as Arrow: the source's reader beside Spark's own batch source.

Both run in Spark jobs with explicit offsets, a job for each million records, as epochs do. A task
counts records and bytes, and drops them. Why the source has a client of its own: see
docs/design/connectors.md.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka_peer import jars
from benchmarks.kafka_topics import PARTITIONS, VALUE_BYTES, a_broker, fill_bids
from benchmarks.sides import run_side
from benchmarks.structured_streaming import (
    CORES,
    DEFAULT,
    QUICK_SETTLED_AFTER,
    SETTLED_AFTER,
    open_peer,
    rows_per_trigger,
)
from benchmarks.suites import Row
from penstock.connectors.kafka.client import KafkaClients
from penstock.connectors.kafka.fetched import Range
from penstock.connectors.kafka.positions import Partition
from penstock.connectors.kafka.reading import PartitionReader

ROWS, QUICK_ROWS = 16_000_000, 4_000_000
_COUNTED = "records LONG, bytes LONG"

_readers: dict[str, PartitionReader] = {}
"""Address → the reader of this Python worker, which outlives its tasks."""


def read_by_penstock(servers: str, topic: str, start: int, end: int) -> Callable[..., Any]:
    """Return what a task runs: the source's reader, on partitions dealt to tasks in turn."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        subtask: Any
        (subtask,) = pa.Table.from_batches(batches)["id"].to_pylist()
        reader = _readers.setdefault(servers, PartitionReader(KafkaClients(servers)))
        mine = range(subtask, PARTITIONS, CORES)
        ranges = {Partition(topic, number): Range(start, end) for number in mine}
        pieces = reader.read(ranges, on_gone=_fail, on_stall=_go_on)
        yield from (_counted(piece.values) for piece in pieces if piece.chunks)

    return read


def _fail(partition: Partition, offset: int) -> int:
    raise RuntimeError(f"{partition.split} has no offset {offset}")


def _go_on() -> None:
    """Wait for records that are long in coming."""


def count_values(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count what Spark's source has read: what a task runs there."""
    return map(_counted, (batch["value"] for batch in batches))


def _counted(values: Any) -> pa.RecordBatch:
    size = pc.sum(pc.binary_length(values)).as_py() or 0
    return pa.RecordBatch.from_pydict({"records": [len(values)], "bytes": [size]})


def penstock_job(
    session: SparkSession, servers: str, topic: str, start: int, end: int
) -> DataFrame:
    """Return a job of one task per core, each with a consumer."""
    subtasks = session.range(0, CORES, 1, CORES)
    return subtasks.mapInArrow(read_by_penstock(servers, topic, start, end), _COUNTED)


def spark_job(
    session: SparkSession, servers: str, topic: str, start: int, end: int
) -> DataFrame:
    """Return a job of Spark's batch source: one task per partition."""
    reader = session.read.format("kafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("subscribe", topic)
    for name, offset in {"startingOffsets": start, "endingOffsets": end}.items():
        offsets = {topic: {str(number): offset for number in range(PARTITIONS)}}
        reader = reader.option(name, json.dumps(offsets))
    return reader.load().select("value").mapInArrow(count_values, _COUNTED)


def read_topic(
    job: Callable[..., DataFrame], servers: str, topic: str, rows: int, settled_after: int
) -> Row:
    """Read a whole topic job by job; the first ones are not timed."""
    session = open_peer(DEFAULT, jars=jars())
    each = rows_per_trigger() // PARTITIONS
    records = size_bytes = timed = 0
    started = time.perf_counter()
    for number, start in enumerate(range(0, rows // PARTITIONS, each)):
        if number == settled_after:
            started, timed = time.perf_counter(), records
        end = min(start + each, rows // PARTITIONS)
        for counted in job(session, servers, topic, start, end).collect():
            records += counted["records"]
            size_bytes += counted["bytes"]
    seconds = time.perf_counter() - started
    session.stop()
    return {"records": records, "bytes": size_bytes, "pace": (records - timed) / seconds}


def run(*, quick: bool) -> Row:
    rows = QUICK_ROWS if quick else ROWS
    settled_after = QUICK_SETTLED_AFTER if quick else SETTLED_AFTER
    with (
        tempfile.TemporaryDirectory(prefix="penstock-kafka-") as folder,
        a_broker(Path(folder)) as servers,
    ):
        topic = fill_bids(servers, "bids", rows)
        side = partial(
            run_side,
            read_topic,
            servers=servers,
            topic=topic,
            rows=rows,
            settled_after=settled_after,
        )
        own, peer = side(penstock_job), side(spark_job)
    is_whole = all(
        (found["records"], found["bytes"]) == (rows, rows * VALUE_BYTES)
        for found in (own, peer)
    )
    return {
        "name": "kafka_reading",
        "rows": rows,
        "value_bytes": VALUE_BYTES,
        "penstock_rows_per_second": round(own["pace"]),
        "spark_rows_per_second": round(peer["pace"]),
        "penstock_peak_memory_bytes": own["peak_memory_bytes"],
        "spark_peak_memory_bytes": peer["peak_memory_bytes"],
        "ratio": round(own["pace"] / peer["pace"], 2),
        "target": "faster than Spark's source",
        "ok": is_whole and own["pace"] > peer["pace"],
    }
