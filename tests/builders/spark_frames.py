"""Jobs that read and write DataFrames, on the shared Spark: small, and run with few rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

import penstock as ps
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.driver import RunOptions
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.spark.attach import QUERY_ID
from penstock.runtime.spark.running import run_on_spark
from tests.builders.spark_session import shared_session

NUMBERS = pa.schema([pa.field("number", pa.int64(), nullable=False)])
QUICK = DriverSettings(
    budget=SourceBudget(rows=100), adapts_budget=False, target_epoch_micros=1
)


class CrashError(Exception):
    """Stands for a process that dies: no error of Penstock, so nothing is tried again."""


def numbers(start: int, end: int, *, partitions: int = 3) -> DataFrame:
    """Return the numbers `[start, end)` as a DataFrame."""
    frame = shared_session().range(start, end, 1, partitions)
    return frame.withColumnRenamed("id", "number")


def start(
    pipeline: ps.Pipeline,
    folder: Path,
    on_status: Callable[[ps.JobStatus], None] | None = None,
) -> ps.JobStatus:
    """Run a job to its end."""
    return run_on_spark(
        pipeline.graph(),
        pipeline.registry,
        RunOptions(
            checkpoint=str(folder / "checkpoints"),
            session=shared_session(),
            settings=QUICK,
            on_status=on_status,
        ),
    )


class Ledger:
    """Takes epochs as DataFrames, idempotent as such functions must be: by epoch."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.rows: dict[int, list[int]] = {}
        self.before: Callable[[int], None] = lambda epoch: None
        self.after: Callable[[int], None] = lambda epoch: None

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        self.before(epoch)
        self.calls.append(epoch)
        found = [row["number"] for row in frame.collect()]
        # A repeated commit must hand over the same rows.
        assert sorted(self.rows.get(epoch, found)) == sorted(found)
        self.rows[epoch] = found
        self.after(epoch)

    @property
    def numbers(self) -> list[int]:
        """All rows of all epochs, sorted."""
        return sorted(number for rows in self.rows.values() for number in rows)


@contextmanager
def as_query(query: str) -> Iterator[None]:
    """Let this thread look like that of a streaming query."""
    context = shared_session().sparkContext
    context.setLocalProperty(QUERY_ID, query)
    try:
        yield
    finally:
        context.setLocalProperty(QUERY_ID, None)  # type: ignore[arg-type]  # None removes it


def attached_pipeline(name: str, ledger: Any, *, parallelism: int = 2) -> ps.Pipeline:
    """Return a pipeline that hands the numbers of a query's batches to a ledger."""
    pipeline = ps.Pipeline(name, parallelism=parallelism)
    read = pipeline.read("numbers", ps.attached(schema=NUMBERS))
    read.write("ledger", ps.for_each_epoch(ledger))
    return pipeline
