"""A pipeline in a process of its own, to be killed: numbers, written to a topic of Kafka.

python killed_kafka_program.py SERVERS TOPIC FOLDER PARALLELISM SIZE ROWS

With the size "large" epochs are staged in objects and sent by several transactions; with "small"
they are one. The keys of a split are its own, so the numbers of a key are in order.
"""

import sys
from pathlib import Path

import polars as pl

import penstock as pen
from penstock.api.in_process import run_in_process
from penstock.connectors.kafka.sink import KafkaSink
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions

SPLITS, KEYS = 3, 12


def main(servers: str, topic: str, folder: str, parallelism: int, rows: int) -> None:
    pipeline = pen.Pipeline(f"job-of-{topic}", parallelism=parallelism)
    (
        pipeline.read("numbers", pen.impulse(count=rows, splits=SPLITS, step="1ms"))
        .with_columns(key=pl.col("counter") % KEYS)
        .write("out", pen.kafka(topic, servers=servers, key="key"))
    )
    run_in_process(
        pipeline.graph(),
        pipeline.registry,
        RunOptions(
            checkpoint=str(Path(folder) / "checkpoints"),
            settings=DriverSettings(
                budget=SourceBudget(rows=100), adapts_budget=False, keep_epochs=3
            ),
        ),
    )


if __name__ == "__main__":
    if sys.argv[5] == "large":
        KafkaSink.small_bytes = 0
    _, at, to, below, count, _, total = sys.argv
    main(at, to, below, int(count), int(total))
