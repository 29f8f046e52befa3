"""Whole pipelines on an embedded Spark: run, stop, go on, rescale, restore, fail."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.ids import Epoch, JobId, SavepointName
from penstock.operators import ArrowCollector, ArrowOperator, OperatorContext, keyed_table
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.spark.running import run_on_spark
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.urls import open_store
from tests.builders.spark_session import job_ids, shared_session

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COUNTS = pa.schema([("key", pa.int64()), ("count", pa.int64())])
SMALL = DriverSettings(
    budget=SourceBudget(rows=100), adapts_budget=False, target_epoch_micros=1
)


class RunningCount(ArrowOperator):
    """Counts rows per key and emits the new counts."""

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
        frame = pl.DataFrame(pl.from_arrow(batch))
        new = frame.group_by("key", maintain_order=True).agg(count=pl.len().cast(pl.Int64))
        known = pl.DataFrame(pl.from_arrow(counts.get(new).rows))["count"].fill_null(0)
        changed = new.with_columns(count=pl.col("count") + known)
        counts.put(changed)
        collector.collect(changed)


def a_pipeline(
    name: str, *, parallelism: int = 2, rows: int = 1_000, counters: int | None = None
) -> Any:
    pipeline = pen.Pipeline(name, parallelism=parallelism)
    out = pen.list_sink(name)
    (
        pipeline.read("numbers", pen.impulse(count=rows, splits=3))
        .with_columns(key=pl.col("counter") % 10)
        .key_by("key")
        .process("count", RunningCount(), parallelism=counters)
        .write("out", out)
    )
    return pipeline, out


def start(
    pipeline: pen.Pipeline,
    folder: Path,
    on_status: Callable[[pen.JobStatus], None] | None = None,
    **options: Any,
) -> pen.JobStatus:
    return run_on_spark(
        pipeline.graph(),
        pipeline.registry,
        RunOptions(
            checkpoint=str(folder / "checkpoints"),
            session=shared_session(),
            settings=SMALL,
            on_status=on_status,
            **options,
        ),
    )


def assert_every_row_was_counted_once(out: Any, rows: int) -> None:
    found = [(row["key"], row["count"]) for row in out.rows()]
    assert len(found) == len(set(found))
    assert dict(sorted(found)) == dict.fromkeys(range(10), rows // 10)


def test_a_job_runs_to_its_end_and_is_over_then(tmp_path: Path) -> None:
    pipeline, out = a_pipeline("spark-whole")
    status = start(pipeline, tmp_path)
    assert status.phase is pen.JobPhase.FINISHED
    assert status.rows_read == 1_000
    assert_every_row_was_counted_once(out, 1_000)
    again = start(pipeline, tmp_path)
    assert again.phase is pen.JobPhase.FINISHED
    assert again.epochs_run == 0


def test_a_job_that_stopped_goes_on_at_another_parallelism(tmp_path: Path) -> None:
    pipeline, out = a_pipeline("spark-rescaled", parallelism=2)
    stops: list[pen.JobPhase] = []

    def stop_early(status: pen.JobStatus) -> None:
        if status.epochs_published == 3 and not stops:
            stops.append(status.phase)
            raise StopNowError

    with pytest.raises(StopNowError):
        start(pipeline, tmp_path, stop_early)
    wider, _ = a_pipeline("spark-rescaled", parallelism=3)
    assert start(wider, tmp_path).phase is pen.JobPhase.FINISHED
    assert_every_row_was_counted_once(out, 1_000)


@pytest.mark.parametrize("point", [2, "before-the-mistake"])
def test_an_epoch_is_restored_while_one_operator_gets_another_parallelism(
    tmp_path: Path, point: int | str
) -> None:
    def stop_early(status: pen.JobStatus) -> None:
        if status.epochs_published == 4:
            raise StopNowError

    pipeline, out = a_pipeline("spark-restored")
    with pytest.raises(StopNowError):
        start(pipeline, tmp_path, stop_early)
    if isinstance(point, str):
        store = open_store(str(tmp_path / "checkpoints"))
        job = JobCheckpoints(store, JobId("spark-restored"))
        job.pin(SavepointName(point), Epochs(number=Epoch(2)))
    wider, _ = a_pipeline("spark-restored", counters=3)
    status = start(wider, tmp_path, restore=point)
    assert status.phase is pen.JobPhase.FINISHED
    # What abandoned epochs had committed stays in a list: rows may be there twice, never wrong.
    reached: dict[int, int] = {}
    for row in out.rows():
        reached[row["key"]] = max(reached.get(row["key"], 0), row["count"])
    assert reached == dict.fromkeys(range(10), 100)


def test_an_epoch_is_one_job_whatever_the_shape_of_the_graph(tmp_path: Path) -> None:
    """A diamond over four levels, whose subtasks differ in number."""
    pipeline = pen.Pipeline("spark-diamond", parallelism=2)
    counted = (
        pipeline.read("numbers", pen.impulse(count=300, splits=3))
        .with_columns(key=pl.col("counter") % 10)
        .key_by("key")
        .process("first", RunningCount())
    )
    left = counted.with_columns(key=pl.col("count") % 7).key_by("key")
    right = counted.with_columns(key=pl.col("count") % 3).key_by("key")
    both = left.process("left", RunningCount(), parallelism=3).union(
        right.process("right", RunningCount(), parallelism=1)
    )
    last = both.key_by("key").process("last", RunningCount())
    last.write("out", pen.blackhole())
    before = job_ids()
    status = start(pipeline, tmp_path)
    assert status.phase is pen.JobPhase.FINISHED
    assert status.epochs_run > 1
    assert len(job_ids() - before) == status.epochs_run


class StopNowError(BaseException):
    """Stands for a driver that dies between two epochs."""


class Fragile(RunningCount):
    """Cannot bear what it is given."""

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        raise ValueError("too much")


def test_what_user_code_raises_reaches_the_user_without_retries(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("spark-fragile")
    read = pipeline.read("numbers", pen.impulse(count=5)).with_columns(
        key=pl.col("counter")
    )
    read.key_by("key").process("fragile", Fragile()).write("out", pen.list_sink("fragile"))
    with pytest.raises(
        pen.PenstockError, match="operator 'fragile' raised ValueError"
    ) as raised:
        start(pipeline, tmp_path)
    assert "'counter': 0" in raised.value.__notes__[0]


def test_checkpoints_in_memory_are_refused() -> None:
    pipeline, _ = a_pipeline("spark-memory")
    with pytest.raises(pen.PenstockError, match="workers are other processes"):
        run_on_spark(
            pipeline.graph(),
            pipeline.registry,
            RunOptions(
                checkpoint="memory:",
                session=shared_session(),
            ),
        )


def speak(batch: pa.RecordBatch) -> pa.RecordBatch:
    print("a batch of", batch.num_rows)  # noqa: T201 (as users look at what they do)
    logging.getLogger("shop.speech").warning("careful")
    return batch


def test_what_workers_print_and_log_reaches_the_driver_with_its_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = pen.Pipeline("spark-speaks")
    numbers = pipeline.read("numbers", pen.impulse(count=50))
    numbers.map_batches(speak).write("out", pen.blackhole())
    start(pipeline, tmp_path)
    assert capsys.readouterr().err.count("[map_batches-1 0] a batch of 50\n") == 1
    (logged,) = [found for found in caplog.records if found.name == "shop.speech"]
    assert (logged.levelname, logged.message) == ("WARNING", "[map_batches-1 0] careful")
