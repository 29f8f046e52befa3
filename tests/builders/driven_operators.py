"""Operators driven by hand, hook by hook: a subtask's context and collector on real tables.

One subtask's chain, run epoch by epoch as a task would run it, without exchanges.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.catalog import default_registry
from penstock.core.clock import ManualClock
from penstock.core.ids import Epoch, JobId, OperatorId, Subtask, TaskInfo
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier, InputWatermark, Watermark
from penstock.graph.logical import MAIN, Edge, Node, OperatorSpec
from penstock.operators.chain import (
    AssembledChain,
    ChainResult,
    ChainSetting,
    chain_processing,
)
from penstock.operators.context import (
    ArrowCollector,
    CommitContext,
    OperatorContext,
    SourceCollector,
    SourceContext,
)
from penstock.operators.nodes import EpochTerms, OperatorReport
from penstock.operators.operator import (
    ArrowOperator,
    SourceOperator,
    SourcePlan,
    splits_table,
)
from penstock.operators.splits import (
    BudgetMeter,
    SourceAssignment,
    SourceBudget,
    SplitPlan,
    SplitState,
    have_ended,
)
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import TableManager
from tests.builders.kept_epochs import Metadata, an_attempt
from tests.builders.scripted import Parts, numbers_in

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

    @property
    def numbers(self) -> list[int]:
        return numbers_in(self.batches)


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
    """All subtasks of an operator with one input, built again in every epoch."""

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
    """A source of one subtask, built again in every epoch; splits are kept between them."""

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


Port: TypeAlias = tuple[str, int]
"""An operator and the number of one of its inputs."""


@dataclass
class Given:
    """What comes from other chains in one epoch."""

    rows: Sequence[tuple[str, int, pa.RecordBatch]] = ()
    spoken: Mapping[Port, Watermark | None] = field(default_factory=dict)

    def batches(self) -> Iterator[tuple[OperatorId, int, pa.RecordBatch]]:
        return ((OperatorId(name), index, batch) for name, index, batch in self.rows)

    def watermarks(self) -> Mapping[Port, Watermark | None]:
        return self.spoken


@dataclass
class Ran:
    """What one epoch gave."""

    reports: dict[str, OperatorReport]
    watermarks: dict[str, Watermark | None]
    left: dict[tuple[str, str], Taken]
    """The rows of outputs that no link takes up, by operator and output."""

    def numbers(self, operator: str, output: str = "main") -> list[int]:
        return self.left[operator, output].numbers


class ChainRig:
    """Runs epochs of a chain; what each leaves behind is what the next one starts from."""

    def __init__(
        self, parts: Parts, nodes: Sequence[Node], links: Sequence[Edge] = ()
    ) -> None:
        self.clock = ManualClock(0)
        self.store = MemoryStore()
        self.nodes = tuple(nodes)
        self.links = tuple(links)
        self.epoch = 0
        self.watermarks: dict[OperatorId, tuple[InputWatermark, ...]] = {}
        self.metadata: dict[OperatorId, Metadata] = {}
        self._registry = parts.registry
        self._chain: AssembledChain | None = None
        self._previous: int | None = None

    @property
    def chain(self) -> AssembledChain:
        if self._chain is None:
            setting = ChainSetting(
                JOB, Subtask(0, 1), self._registry, self.clock, self._tables
            )
            self._chain = AssembledChain(self.nodes, self.links, setting)
        return self._chain

    def run(
        self,
        *given: tuple[str, int, pa.RecordBatch],
        spoken: Mapping[Port, Watermark | None] | None = None,
        now: int | None = None,
        is_stop: bool = False,
        then_stop: bool = False,
        assignments: Mapping[str, SourceAssignment] | None = None,
    ) -> Ran:
        """Run one epoch."""
        self.epoch += 1
        self.clock.micros += 1
        moment = self.clock.micros if now is None else now
        epoch = Epoch(self.epoch)
        barrier = CheckpointBarrier(epoch, Epoch(1), moment, then_stop=then_stop)
        terms = EpochTerms(barrier, moment, self._previous, is_stop=is_stop)
        chain = self.chain
        for node in chain.nodes:
            node.tables.catch_up(
                an_attempt(self.store, node.task), self._restored(node.task.operator)
            )
        left = {
            (str(node.operator), output): Taken()
            for node in self.nodes
            for output in node.outputs
        }
        chain.begin(
            terms,
            watermarks=self.watermarks,
            assignments={
                OperatorId(name): found for name, found in (assignments or {}).items()
            },
            outlets={
                node.operator: {
                    output: [left[str(node.operator), output]] for output in node.outputs
                }
                for node in self.nodes
            },
        )
        inputs = Given(given, spoken or {})
        steps = chain_processing(chain.nodes, chain.links, inputs, terms, tuple[object])
        reports, watermarks = _run_to_end(steps)
        self._previous = moment
        for report in reports:
            self.watermarks[report.operator] = report.inputs
            if report.checkpoint.changed:
                self.metadata[report.operator] = report.checkpoint.metadata
        told = {str(operator): said for operator, said in watermarks.items()}
        return Ran({str(r.operator): r for r in reports}, told, left)

    def restart(self) -> None:
        """Go on in another process."""
        if self._chain is not None:
            self._chain.close()
        self._chain = None

    def _restored(self, operator: OperatorId) -> dict[int, Metadata]:
        known = self.metadata.get(operator)
        return {} if known is None else {0: known}

    def _tables(self, task: TaskInfo, specs: tuple[TableSpec, ...]) -> TableManager:
        return TableManager.load(
            an_attempt(self.store, task), specs, self._restored(task.operator)
        )


def _run_to_end(steps: Generator[object, None, ChainResult]) -> ChainResult:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: ChainResult = end.value
            return result
