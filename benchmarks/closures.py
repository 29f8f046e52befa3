"""How much travels to start an epoch of a large job: 1,000 subtasks, simulated, nothing runs.

What a Spark task is sent must not grow with the square of the parallelism. Where a plan is
too large to go beside the job, it is part of the closure, which executors fetch once.
"""

import base64

import polars as pl
import pyarrow as pa

import penstock as pen
from benchmarks.suites import Row
from penstock.core.ids import Epoch, Generation
from penstock.core.settings import current
from penstock.core.watermark import CheckpointBarrier
from penstock.graph.codec import encode_graph
from penstock.operators import ArrowCollector, ArrowOperator, OperatorContext
from penstock.operators.nodes import EpochTerms
from penstock.operators.splits import SourceBudget
from penstock.operators.user_functions import pickle_function
from penstock.runtime.plan.epoch_plan import EpochPlan, SourcePlanner
from penstock.runtime.plan.physical import compile_graph
from penstock.runtime.spark.task import (
    LARGEST_PROPERTY_CHARACTERS,
    SuperstepTask,
    WorkerSpec,
)
from penstock.state.storage.urls import open_store

CLOSURE_LIMIT = 1 << 20


def run(*, quick: bool) -> list[Row]:
    return [measure(subtasks) for subtasks in (2, 1_000)]


def measure(subtasks: int) -> Row:
    pipeline = pen.Pipeline("wide", parallelism=subtasks)
    (
        pipeline.read("numbers", pen.impulse(count=10**9, splits=subtasks))
        .with_columns(key=pl.col("counter") % 1_000_003)
        .key_by("key")
        .process("first", PassOn())
        .key_by("counter")
        .process("second", PassOn())
        .write("out", pen.blackhole())
    )
    graph = pipeline.graph()
    plan = compile_graph(graph)
    terms = EpochTerms(CheckpointBarrier(Epoch(1), Epoch(1), 0), 0)
    reading = SourcePlanner(graph, pipeline.registry, SourceBudget()).plan(0, None)
    epoch = EpochPlan(
        graph.job, Generation(1), terms, run=1, assignments=reading.assignments
    )
    worker = WorkerSpec(
        "worker",
        open_store("memory:closures"),
        "/cache",
        current(),
        pickle_function(pipeline.registry, "registry"),
    )
    beside = len(base64.b64encode(pickle_function(epoch, "plan").pickled))
    is_beside = beside <= LARGEST_PROPERTY_CHARACTERS
    closures = [
        _pickled_bytes(SuperstepTask(encode_graph(graph), carried, level.level, worker))
        for level in plan.supersteps
        for carried in ([None] if is_beside else [epoch])
    ]
    return {
        "name": f"what starts an epoch of {subtasks} subtasks and three supersteps",
        "tasks": sum(level.task_count for level in plan.supersteps),
        "closure_bytes": closures,
        "beside_each_task_bytes": beside if is_beside else 0,
        "driver_bytes": sum(closures) + beside,
        "target": f"closures of at most {CLOSURE_LIMIT} bytes",
        "ok": max(closures) <= CLOSURE_LIMIT,
    }


def _pickled_bytes(task: SuperstepTask) -> int:
    """Return what Spark ships for a function: it pickles as we do."""
    return len(pickle_function(task, "task").pickled)


class PassOn(ArrowOperator):
    """Passes rows on."""

    def name(self) -> str:
        return "pass-on"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)
