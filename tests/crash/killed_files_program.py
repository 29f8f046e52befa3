"""A pipeline in a process of its own, to be killed: numbers, written to files on a real disk.

python killed_files_program.py FOLDER PARALLELISM
"""

import sys
from pathlib import Path

import polars as pl

import penstock as pen
from penstock.api.in_process import run_in_process
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions

ROWS = 12_000


def main(folder: str, parallelism: int) -> None:
    pipeline = pen.Pipeline("numbers", parallelism=parallelism)
    out = str(Path(folder) / "out")
    (
        pipeline.read("numbers", pen.impulse(count=ROWS, splits=3, step="1ms"))
        .with_columns(part=pl.col("counter") % 3)
        .write("out", pen.files(out, format="parquet", partition_by=["part"]))
    )
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
