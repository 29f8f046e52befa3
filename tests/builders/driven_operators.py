"""Operators driven by hand, hook by hook: a subtask's context and collector on real tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.catalog import default_registry
from penstock.core.clock import ManualClock
from penstock.core.ids import Epoch, JobId, OperatorId, Subtask, TaskInfo
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier, Watermark
from penstock.graph.logical import MAIN, OperatorSpec
from penstock.operators.collector import ArrowCollector, SourceCollector
from penstock.operators.context import CommitContext, OperatorContext, SourceContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.source import SourceOperator, SourcePlan, splits_table
from penstock.operators.splits import (
    BudgetMeter,
    SourceBudget,
    SplitPlan,
    SplitState,
    have_ended,
)
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import TableManager
from tests.builders.kept_epochs import Metadata, an_attempt

JOB = JobId("job")
OPERATOR = OperatorId("op")


class Taken:
    """Where rows end up."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def take(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch.to_pylist()]


def an_operator(spec: OperatorSpec) -> ArrowOperator:
    """Build an operator the way a subtask does."""
    built = default_registry(load_plugins=False).construct(spec).operator
    assert isinstance(built, ArrowOperator)
    return built


def a_source(spec: OperatorSpec) -> SourceOperator:
    """Build a source the way a subtask does."""
    built = default_registry(load_plugins=False).construct(spec).operator
    assert isinstance(built, SourceOperator)
    return built


def a_task(index: int = 0, parallelism: int = 1) -> TaskInfo:
    return TaskInfo(JOB, OPERATOR, Subtask(index, parallelism))


def outputs_of(operator: ArrowOperator, *inputs: StreamSchema) -> dict[str, StreamSchema]:
    main = operator.output_schema(inputs)
    return {} if main is None else {MAIN: main}


def run_stateless(
    spec: OperatorSpec, stream: StreamSchema, *batches: pa.RecordBatch
) -> Taken:
    """Push batches through an operator without state; return what it emitted."""
    operator = an_operator(spec)
    outputs = outputs_of(operator, stream)
    tables = TableManager.load(an_attempt(MemoryStore(), a_task()), operator.tables(), {})
    taken = Taken()
    collector = ArrowCollector(OPERATOR, outputs, {MAIN: [taken]})
    collector.open({})
    ctx = OperatorContext(a_task(), inputs=(stream,), outputs=outputs, tables=tables)
    for batch in batches:
        operator.process_batch_index(0, 1, batch, ctx, collector)
    return taken


class DrivenOperator:
    """All subtasks of an operator with one input, built anew in every epoch."""

    def __init__(self, spec: OperatorSpec, stream: StreamSchema) -> None:
        self.spec = spec
        self.stream = stream
        self.store: ObjectStore = MemoryStore()
        self.metadata: dict[int, Metadata] = {}
        self.epoch = 0
        self.emitted: list[Taken] = []
        self.wake_ups: list[int | None] = []

    def run_epoch(
        self,
        batches: Sequence[Sequence[pa.RecordBatch]],
        *,
        now_micros: int = 0,
        incoming: Watermark | None = None,
    ) -> list[Watermark | None]:
        """Run one epoch with as many subtasks as there are lists of batches."""
        self.epoch += 1
        said: list[Watermark | None] = []
        metadata: dict[int, Metadata] = {}
        self.emitted, self.wake_ups = [], []
        for index, own in enumerate(batches):
            task = a_task(index, len(batches))
            answer, metadata[index] = self._run_subtask(task, own, now_micros, incoming)
            said.append(answer)
        self.metadata = metadata
        return said

    def _run_subtask(
        self,
        task: TaskInfo,
        batches: Sequence[pa.RecordBatch],
        now_micros: int,
        incoming: Watermark | None,
    ) -> tuple[Watermark | None, Metadata]:
        operator = an_operator(self.spec)
        epoch = Epoch(self.epoch)
        outputs = outputs_of(operator, self.stream)
        attempt = an_attempt(self.store, task)
        tables = TableManager.load(attempt, operator.tables(), self.metadata)
        tables.begin_epoch(Frontier(None, now_micros))
        taken = Taken()
        collector = ArrowCollector(OPERATOR, outputs, {MAIN: [taken]})
        collector.open({})
        ctx = OperatorContext(task, inputs=(self.stream,), outputs=outputs, tables=tables)
        ctx.epoch, ctx.processing_time_micros = epoch, now_micros
        operator.on_start(ctx)
        for batch in batches:
            operator.process_batch_index(0, 1, batch, ctx, collector)
        said = None
        if incoming is not None:
            said = operator.handle_watermark(incoming, ctx, collector)
        operator.handle_checkpoint(
            CheckpointBarrier(epoch, epoch, now_micros), ctx, collector
        )
        self.emitted.append(taken)
        self.wake_ups.append(ctx.wake_up_micros)
        return said, tables.checkpoint(epoch, epoch, None).metadata

    def commit(self, *, job: str = JOB, epoch: int | None = None) -> None:
        """Commit the last epoch, as the driver does after it was acknowledged."""
        staged: dict[str, dict[int, bytes]] = {}
        for index, metadata in self.metadata.items():
            for table, data in metadata.commit_data.items():
                staged.setdefault(table, {})[index] = data
        task = TaskInfo(JobId(job), OPERATOR, Subtask(0, len(self.metadata)))
        an_operator(self.spec).handle_commit(
            Epoch(epoch or self.epoch), staged, CommitContext(task, self.store)
        )


class DrivenSource:
    """A source of one subtask, built anew in every epoch; splits are kept between them."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.spec = spec
        self.known: dict[str, SplitState] = {}
        self.plan = SourcePlan((), is_complete=False)
        self.taken = Taken()

    def run_epoch(
        self,
        budget: SourceBudget | None = None,
        *,
        now_micros: int = 0,
        splits: Sequence[SplitPlan] | None = None,
    ) -> list[dict[str, Any]]:
        """Plan and read one epoch; return the rows."""
        source = a_source(self.spec)
        budget = budget or SourceBudget()
        self.plan = source.plan_splits(self.known, budget, now_micros)
        rows, states = self.read(
            source, self.plan.splits if splits is None else splits, budget
        )
        self.known = {**self.known, **states}
        return rows

    def read(
        self, source: SourceOperator, splits: Sequence[SplitPlan], budget: SourceBudget
    ) -> tuple[list[dict[str, Any]], Mapping[str, SplitState]]:
        outputs = {MAIN: source.output_schema()}
        task = a_task()
        manager = TableManager.load(
            an_attempt(MemoryStore(), task), [*source.tables(), splits_table()], {}
        )
        self.taken = Taken()
        collector = SourceCollector(OPERATOR, outputs, {MAIN: [self.taken]})
        collector.open({})
        ctx = SourceContext(task, outputs=outputs, tables=manager)
        ctx.splits = tuple(splits)
        ctx.budget = collector.budget = BudgetMeter(budget, ManualClock())
        ctx.split_states = {s.name: self.known.get(s.name, SplitState()) for s in splits}
        source.on_start(ctx)
        assert source.run(ctx, collector) is None
        return self.taken.rows(), ctx.split_states

    def has_ended(self) -> bool:
        return have_ended(self.known, is_complete=self.plan.is_complete)
