"""A pipeline in a process of its own, to be killed: files of history, then a topic, into files.

python killed_handover_program.py SERVERS TOPIC FOLDER PARALLELISM HANDOVER

`HANDOVER` is "offsets" for those in history's rows, or an instant in seconds.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import penstock as pen
from penstock.api.in_process import run_in_process
from penstock.core.schema import StreamSchema
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from tests.contract.sources.concat_sources import placed_files
from tests.contract.sources.source_under_test import SCHEMA


def main(servers: str, topic: str, folder: Path, parallelism: int, handover: str) -> None:
    point: dict[str, Any] = {}
    if handover != "offsets":
        point = {"at": datetime.fromtimestamp(int(handover), UTC), "by": "at", "skew": None}
    source = pen.concat_sources(
        history=placed_files(folder / "old"),
        live=pen.kafka(
            topic,
            servers=servers,
            schema=StreamSchema(SCHEMA, time_column="at"),
            metadata=["partition", "offset"],
            start="after-history",
            end="latest",
        ),
        **point,
    )
    pipeline = pen.Pipeline("killed", parallelism=parallelism)
    pipeline.read("in", source).write("out", pen.files(folder / "out", format="parquet"))
    run_in_process(
        pipeline.graph(),
        pipeline.registry,
        RunOptions(
            checkpoint=str(folder / "checkpoints"),
            settings=DriverSettings(
                budget=SourceBudget(rows=40), adapts_budget=False, keep_epochs=3
            ),
        ),
    )


if __name__ == "__main__":
    _, at, of, below, count, how = sys.argv
    main(at, of, Path(below), int(count), how)
