"""Sources that the executor feeds: told so by their plan, with all the budget they need."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from penstock.api.pipeline import Pipeline
from penstock.catalog import default_registry
from penstock.connectors.stdout import blackhole
from penstock.core.clock import ManualClock
from penstock.core.ids import Epoch, Generation
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.nodes import EpochTerms
from penstock.operators.operator import SourceOperator
from penstock.operators.splits import (
    FED_BUDGET,
    SourceBudget,
    SourcePlan,
    SplitPlan,
    SplitState,
)
from penstock.runtime.plan.epoch_plan import EpochPlan, SourcePlanner
from penstock.runtime.plan.executor import decode_report
from penstock.runtime.plan.physical import compile_graph
from penstock.runtime.task.task import Worker, run_task
from penstock.state.files.cache import FileCache
from penstock.state.storage.memory import MemoryStore

STREAM = StreamSchema(pa.schema([("at", pa.timestamp("us"))]), time_column="at")
FLOOR = 500
TINY = SourceBudget(rows=1, size_bytes=1, wall_micros=1)


class FedSource(SourceOperator):
    """Emits what it is fed."""

    def name(self) -> str:
        return "fed"

    def output_schema(self) -> StreamSchema:
        return STREAM

    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        return SourcePlan((SplitPlan("all", end=1),), is_complete=False, fed="rows")

    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        for batch in ctx.fed or ():
            collector.collect(batch)
        ctx.note_event_time("all", FLOOR)


def run_fed(fed: Iterable[pa.RecordBatch], folder: Path) -> tuple[EpochPlan, SplitState]:
    """Run one task of an epoch; return its plan and what it stored of the split."""
    pipeline = Pipeline("fed")
    pipeline.read("rows", FedSource()).write("out", blackhole())
    graph, registry = pipeline.graph(), default_registry(load_plugins=False)
    reading = SourcePlanner(graph, registry, TINY).plan(1, None)
    barrier = CheckpointBarrier(Epoch(1), Epoch(1), 1, then_stop=False)
    store = MemoryStore()
    generation = Generation(1)
    epoch = EpochPlan(
        graph.job,
        generation,
        EpochTerms(barrier, 1, None),
        run=1,
        assignments=reading.assignments,
    )
    worker = Worker(store, FileCache(folder, limit_bytes=1 << 20), registry, ManualClock(1))
    job = compile_graph(graph)
    records = list(run_task(job, epoch, (), worker, level=0, task=0, fed=fed))
    report = decode_report(records[-1].payload)
    assert report.is_whole, report
    source = next(part for part in report.operators if part.operator == "rows")
    assert not source.has_more
    return epoch, source.splits["all"]


def rows(*micros: int) -> pa.RecordBatch:
    return pa.record_batch({"at": pa.array(micros, pa.timestamp("us"))})


def test_a_fed_source_takes_all_that_it_is_brought(tmp_path: Path) -> None:
    plan, state = run_fed([rows(1, 2), rows(700)], tmp_path)
    (assignment,) = plan.assignments["rows"]  # type: ignore[index]  # an operator's id
    assert assignment.fed == "rows"
    assert assignment.budget == FED_BUDGET
    assert state.max_event_time_micros == 700


def test_event_time_that_came_from_elsewhere_counts_if_it_is_later(tmp_path: Path) -> None:
    _, state = run_fed([rows(1, 2)], tmp_path)
    assert state.max_event_time_micros == FLOOR
