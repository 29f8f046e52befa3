"""Kafka: JSON records of 100 bytes from a topic, counted in tumbling windows."""

import tempfile
from functools import partial
from pathlib import Path

import penstock as pen
from benchmarks import structured_streaming, tumbling
from benchmarks.bids import SCHEMA
from benchmarks.comparison import compare_sides, same_windows
from benchmarks.kafka_peer import run_kafka_query
from benchmarks.kafka_topics import VALUE_BYTES, a_broker, fill_bids
from benchmarks.penstock_side import run_to_end
from benchmarks.structured_streaming import (
    CORES,
    DEFAULT,
    QUICK_SETTLED_AFTER,
    ROCKSDB,
    SETTLED_AFTER,
    rows_per_trigger,
)
from benchmarks.suites import Row

ROWS, QUICK_ROWS, WARM_UP_ROWS = 16_000_000, 4_000_000, 2_000_000
GOAL, GOAL_DEFAULT, GOAL_ROWS_PER_SECOND = 3.0, 1.5, 1_000_000


def run_topic(topic: str, folder: Path, *, servers: str, settled_after: int) -> Row:
    """Run Penstock over a topic of bids; results go to Parquet below `folder`, exactly once."""
    pipeline = pen.Pipeline("benchmark", parallelism=CORES)
    source = pen.kafka(topic, servers=servers, schema=SCHEMA, end="latest")
    bids = pipeline.read("bids", source, event_time="ts", watermark_delay="1s")
    tumbling.build(bids).write("out", pen.files(str(folder / "out"), format="parquet"))
    return run_to_end(
        pipeline,
        folder / "checkpoint",
        rows_per_epoch=rows_per_trigger(),
        settled_after=settled_after,
    )


def run(*, quick: bool) -> Row:
    settled_after = QUICK_SETTLED_AFTER if quick else SETTLED_AFTER
    with (
        tempfile.TemporaryDirectory(prefix="penstock-kafka-") as folder,
        a_broker(Path(folder)) as servers,
    ):
        few = fill_bids(servers, "few", WARM_UP_ROWS)
        topic = fill_bids(servers, "bids", QUICK_ROWS if quick else ROWS)
        row = compare_sides(
            "kafka",
            partial(run_topic, servers=servers, settled_after=settled_after),
            {
                store: partial(
                    run_kafka_query,
                    structured_streaming.tumbling,
                    store,
                    servers=servers,
                    settled_after=settled_after,
                )
                for store in (ROCKSDB, DEFAULT)
            },
            few,
            topic,
            agree=same_windows("auction, window_end, bids, total, top"),
            goal=GOAL,
            goal_default=GOAL_DEFAULT,
            quick=quick,
        )
    reached = row["penstock_rows_per_second"] >= GOAL_ROWS_PER_SECOND
    return {
        **row,
        "value_bytes": VALUE_BYTES,
        "target": f"{row['target']}, and at least {GOAL_ROWS_PER_SECOND:,} rows/s",
        "ok": row["ok"] and reached,
    }
