"""How fast rows change hands: 20 M rows of 16 bytes sent by key, against the same as Spark rows.

Both sides make the same rows in the same way, send each to the owner of its key, and add
them up there; the sums must agree. Penstock's figure is a whole epoch with receipts and a
published checkpoint. It sends whole numbers in as few bytes as they need; `ratio_wide` is the
same with numbers of 40 bits, which need all of theirs.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import penstock as pen
from benchmarks.sides import run_side
from benchmarks.structured_streaming import DEFAULT, open_peer
from benchmarks.suites import Row
from penstock.operators import (
    ArrowCollector,
    ArrowOperator,
    OperatorContext,
    SourceCollector,
    SourceContext,
    SourceFinishType,
    SourceOperator,
    SourcePlan,
)
from penstock.operators.splits import SourceBudget, SplitPlan, SplitState
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.spark.running import run_on_spark
from penstock.runtime.spark.session import open_session

RATIO_LIMIT = 3.0
BATCH_ROWS = 250_000
TASKS = 2
SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])
ROUNDS = 4
_FORTY_BITS = (1 << 40) - 1


def batches_of(task: int, rows: int, *, wide: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task, the same for both sides."""
    for start in range(0, rows, BATCH_ROWS):
        value = np.arange(start, min(start + BATCH_ROWS, rows), dtype=np.int64)
        key = (value * 2_654_435_761 + task) & (_FORTY_BITS if wide else 0xFFFFF)
        if wide:
            value = (value * 40_503_000_017) & _FORTY_BITS
        yield pa.RecordBatch.from_arrays([pa.array(key), pa.array(value)], schema=SCHEMA)


class Numbers(SourceOperator):
    """Emits the rows, all of them once per round."""

    def __init__(self, rows: int, *, wide: bool) -> None:
        self.rows = rows
        self.wide = wide

    def name(self) -> str:
        return "numbers"

    def output_schema(self) -> pen.StreamSchema:
        return pen.StreamSchema(SCHEMA)

    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        states = {str(task): known.get(str(task), SplitState()) for task in range(TASKS)}
        splits = [
            SplitPlan(name, state.offset, (state.offset or 0) + 1)
            for name, state in states.items()
            if not state.ended
        ]
        return SourcePlan(tuple(splits), is_complete=True, has_more=bool(splits))

    def run(
        self, ctx: SourceContext, collector: SourceCollector
    ) -> SourceFinishType | None:
        for split in ctx.splits:
            for batch in batches_of(int(split.name), self.rows // TASKS, wide=self.wide):
                collector.collect(batch, split=split.name)
            ctx.advance(split.name, split.end)
            if split.end == ROUNDS:
                ctx.end_split(split.name)
        return None


class AddUp(ArrowOperator):
    """Adds all values up, into a counter."""

    def name(self) -> str:
        return "add-up"

    def output_schema(self, inputs: Any) -> None:
        return None

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        ctx.count("rows", batch.num_rows)
        ctx.count("sum", pc.sum(batch.column("value")).as_py())


def run(*, quick: bool) -> Row:
    rows = 4_000_000 if quick else 20_000_000
    own, peer, agrees = _both(rows, wide=False)
    own_wide, peer_wide, agrees_wide = _both(rows, wide=True)
    ratio = peer["seconds"] / own["seconds"]
    agrees = agrees and agrees_wide
    return {
        "name": f"shuffle of {rows // 1_000_000} M rows of 16 bytes",
        "rows": rows,
        "penstock_rows_per_second": round(rows / own["seconds"]),
        "spark_rows_per_second": round(rows / peer["seconds"]),
        "penstock_peak_memory_bytes": own["peak_memory_bytes"],
        "spark_peak_memory_bytes": peer["peak_memory_bytes"],
        "ratio": round(ratio, 2),
        "ratio_wide": round(peer_wide["seconds"] / own_wide["seconds"], 2),
        "agrees": agrees,
        "target": f"at least {RATIO_LIMIT} times Spark rows through mapInArrow",
        "ok": ratio >= RATIO_LIMIT and agrees,
    }


def _both(rows: int, *, wide: bool) -> tuple[Row, Row, bool]:
    """Return Penstock's side, the peer's, and whether they counted the same."""
    own = run_side(run_own, rows, wide=wide)
    peer = run_side(run_peer, rows, wide=wide)
    expected = {name: count * ROUNDS for name, count in peer["counted"].items()}
    return own, peer, own["counted"] == expected


def run_own(rows: int, *, wide: bool) -> Row:
    """Return the best of Penstock's rounds."""
    spark = open_session(f"local[{TASKS},4]", name="benchmark")
    seconds, counted = penstock_seconds(spark, rows, wide=wide)
    spark.stop()
    return {"seconds": min(seconds), "counted": counted}


def run_peer(rows: int, *, wide: bool) -> Row:
    """Return the best of Spark's rounds."""
    session = open_peer(DEFAULT)
    rounds = [spark_seconds(session, rows, wide=wide) for _ in range(ROUNDS)]
    session.stop()
    _, count, total = rounds[0]
    return {
        "seconds": min(seconds for seconds, _, _ in rounds),
        "counted": {"rows": count, "sum": total},
    }


def penstock_seconds(
    spark: SparkSession, rows: int, *, wide: bool
) -> tuple[list[float], dict[str, int]]:
    """Return what each epoch of all rows took, and what was counted in all of them."""
    pipeline = pen.Pipeline("shuffle", parallelism=TASKS)
    read = pipeline.read("numbers", Numbers(rows, wide=wide))
    read.key_by("key").process("all", Nothing()).write("out", AddUp())
    durations: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        status = run_on_spark(
            pipeline.graph(),
            pipeline.registry,
            RunOptions(
                checkpoint=str(Path(folder) / "checkpoints"),
                session=spark,
                settings=DriverSettings(
                    budget=SourceBudget(
                        rows=1 << 40, size_bytes=1 << 50, wall_micros=1 << 50
                    ),
                    adapts_budget=False,
                    target_epoch_micros=1,
                ),
                on_status=lambda status: _note(durations, status),
            ),
        )
    (sink,) = [operator for operator in status.operators if operator.operator == "out"]
    counted = {name: sink.counters[name] for name in ("rows", "sum")}
    return list(durations.values()), counted


class Nothing(ArrowOperator):
    """Passes rows on."""

    def name(self) -> str:
        return "nothing"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)


def _note(durations: dict[int, float], status: pen.JobStatus) -> None:
    if status.last is not None and status.last.rows_read:
        durations[status.last.epoch] = status.last.duration_micros / 1e6


def spark_seconds(
    session: SparkSession, rows: int, *, wide: bool
) -> tuple[float, int, int]:
    """Return what the same took as Spark rows, and what was counted."""

    def make(ids: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in ids:
            tasks: list[Any] = batch.column("id").to_pylist()
            for task in tasks:
                yield from batches_of(task, rows // TASKS, wide=wide)

    def add_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = total = 0
        for batch in batches:
            count += batch.num_rows
            total += pc.sum(batch.column("value")).as_py()
        yield pa.RecordBatch.from_pydict({"rows": [count], "sum": [total]})

    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH_ROWS))
    started = time.perf_counter()
    made = (
        session.range(0, TASKS, 1, TASKS)
        .toDF("id")
        .mapInArrow(make, "key LONG, value LONG")
    )
    summed = made.repartition(TASKS, "key").mapInArrow(add_up, "rows LONG, sum LONG")
    results = summed.collect()
    seconds = time.perf_counter() - started
    return seconds, sum(row["rows"] for row in results), sum(row["sum"] for row in results)
