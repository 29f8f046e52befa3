"""Penstock's side of a comparison: a pipeline over an input, on embedded Spark with two cores."""

import itertools
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock as pen
from benchmarks.bids import BIDS
from benchmarks.inputs import ROWS_PER_FILE, Input
from benchmarks.profile_split import split_epochs
from benchmarks.sides import folder_bytes
from benchmarks.structured_streaming import CORES, SETTLED_AFTER, rows_per_trigger
from benchmarks.suites import Row
from penstock.core.settings import current
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.spark.executor import SparkExecutor
from penstock.runtime.spark.running import run_on_spark

Build = Callable[[pen.Stream], pen.Stream]


def run_pipeline(
    build: Build,
    files: Path,
    folder: Path,
    *,
    rows_per_epoch: int,
    settled_after: int = SETTLED_AFTER,
    columns: Sequence[str] | None = None,
    read_from: Input = BIDS,
) -> Row:
    """Run a pipeline over all files; results go to Parquet below `folder`, exactly once.

    `columns` are those the query needs: the peers find that out by themselves.
    """
    pipeline = pen.Pipeline("benchmark", parallelism=CORES)
    schema, time_column = read_from.schema, read_from.time_column
    needed = pa.schema([schema.field(name) for name in columns or schema.names])
    source = pen.files(f"{files}/*.parquet", schema=needed, in_time_order=True)
    read = pipeline.read(
        read_from.name, source, event_time=time_column, watermark_delay="1s"
    )
    build(read).write("out", pen.files(str(folder / "out"), format="parquet"))
    return run_to_end(
        pipeline,
        folder / "checkpoint",
        rows_per_epoch=rows_per_epoch,
        settled_after=settled_after,
    )


def run_to_end(
    pipeline: pen.Pipeline, checkpoint: Path, *, rows_per_epoch: int, settled_after: int
) -> Row:
    """Run a pipeline until its data ends; return the pace behind the first epochs."""
    epochs: list[tuple[float, int]] = []

    def note(status: pen.JobStatus) -> None:
        known = epochs[-1][1] if epochs else 0
        if status.rows_read > known:
            epochs.append((time.perf_counter(), status.rows_read))

    root = current().profile_root
    if root is not None:
        shutil.rmtree(root, ignore_errors=True)  # of the warm-up
    jobs = [] if root is None else _time_jobs()
    started = time.perf_counter()
    status = run_on_spark(
        pipeline.graph(),
        pipeline.registry,
        RunOptions(
            checkpoint=str(checkpoint),
            master=f"local[{CORES},4]",
            settings=DriverSettings(
                budget=SourceBudget(
                    rows=rows_per_epoch // CORES, size_bytes=1 << 40, wall_micros=1 << 40
                ),
                adapts_budget=False,
                target_epoch_micros=1,
            ),
            on_status=note,
        ),
    )
    if status.phase is not pen.JobPhase.FINISHED:
        raise RuntimeError(f"the job ended as {status.phase}")
    each = [(b[0] - a[0]) * 1e3 for a, b in itertools.pairwise(epochs)]
    return {
        **({} if root is None else {"profile": split_epochs(Path(root), each, jobs)}),
        **settled([(started, 0), *epochs], settled_after),
        "seconds_with_start": round(time.perf_counter() - started, 2),
        "bytes_checkpointed": folder_bytes(checkpoint),
        "rows_written": status.rows_written,
    }


def _time_jobs() -> list[float]:
    """Note from now on how long the Spark job of every epoch takes."""
    noted: list[float] = []
    run_epoch = SparkExecutor.run_epoch

    def timed(self: SparkExecutor, *arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return run_epoch(self, *arguments)
        finally:
            noted.append((time.perf_counter() - started) * 1e3)

    setattr(SparkExecutor, "run_epoch", timed)  # noqa: B010 (a class is not to be changed)
    return noted


def settled(epochs: list[tuple[float, int]], settled_after: int) -> Row:
    """Return the pace after the first epochs, from the start and when each of them ended."""
    timed = epochs[settled_after:]
    seconds = timed[-1][0] - timed[0][0]
    rows = timed[-1][1] - timed[0][1]
    each = [later[0] - earlier[0] for earlier, later in itertools.pairwise(timed)]
    return {
        "seconds": round(seconds, 3),
        "rows": rows,
        "rows_per_second": round(rows / seconds),
        "seconds_per_epoch": round(statistics.median(each), 3),
    }


def default_rows_per_epoch() -> int:
    """Return as many as the peer takes per trigger: files are read whole by both."""
    assert rows_per_trigger() % ROWS_PER_FILE == 0
    return rows_per_trigger()
