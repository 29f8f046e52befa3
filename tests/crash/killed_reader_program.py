"""A pipeline in a process of its own, to be killed: a topic of Kafka, written to files.

python killed_reader_program.py SERVERS TOPIC FOLDER PARALLELISM
"""

import sys
from pathlib import Path

import penstock as pen
from penstock.api.in_process import run_in_process
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions


def main(servers: str, topic: str, folder: str, parallelism: int) -> None:
    pipeline = pen.Pipeline("reader", parallelism=parallelism)
    source = pen.kafka(topic, servers=servers, schema={"n": int}, end="latest")
    out = pen.files(str(Path(folder) / "out"), format="parquet")
    pipeline.read("numbers", source).write("out", out)
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
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
