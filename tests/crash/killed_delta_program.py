"""A pipeline in a process of its own, to be killed: numbers appended to a table, counts merged.

python killed_delta_program.py FOLDER PARALLELISM
"""

import sys
from pathlib import Path

import polars as pl

import penstock as pen
from penstock.api.in_process import run_in_process
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions

ROWS = 4_500


def main(folder: str, parallelism: int) -> None:
    pipeline = pen.Pipeline("numbers", parallelism=parallelism)
    source = pen.impulse(count=ROWS, splits=3, step="1ms")
    numbers = pipeline.read("numbers", source).with_columns(part=pl.col("counter") % 3)
    rows, counts = Path(folder) / "rows", Path(folder) / "counts"
    numbers.write("rows", pen.delta(rows, partition_by=["part"]))
    counted = numbers.key_by("part").aggregate("count", n=pen.count())
    counted.write("counts", pen.delta(counts))
    run_in_process(
        pipeline.graph(),
        pipeline.registry,
        RunOptions(
            checkpoint=str(Path(folder) / "checkpoints"),
            settings=DriverSettings(
                budget=SourceBudget(rows=300), adapts_budget=False, keep_epochs=3
            ),
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
