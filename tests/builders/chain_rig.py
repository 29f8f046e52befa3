"""Chains of operators run epoch by epoch as tasks run them, without driver and exchanges.

`ChainRig` is for tests of the chain itself and of what single subtasks say. Operators whose
output is what matters are tested with the harnesses of `penstock.testing`.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.catalog import default_registry
from penstock.core.clock import ManualClock
from penstock.core.ids import Epoch, JobId, OperatorId, Subtask, TaskInfo
from penstock.core.schema import StreamSchema
from penstock.core.watermark import (
    CheckpointBarrier,
    InputWatermark,
    Watermark,
    merge_subtasks,
)
from penstock.graph.logical import MAIN, Edge, Node, OperatorSpec
from penstock.operators.chain import (
    AssembledChain,
    ChainResult,
    ChainSetting,
    chain_processing,
)
from penstock.operators.nodes import EpochTerms, OperatorReport
from penstock.operators.operator import ArrowOperator, SourceOperator
from penstock.operators.registry import Registry
from penstock.operators.splits import (
    SourceAssignment,
    SourceBudget,
    SourcePlan,
    SplitState,
    have_ended,
)
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table_manager import TableManager
from penstock.testing import EpochOutput, OperatorHarness
from tests.builders.kept_epochs import Metadata, an_attempt
from tests.builders.scripted import numbers_in

REGISTRY = default_registry(load_plugins=False)
OPERATOR = OperatorId("op")


def an_operator(spec: OperatorSpec) -> ArrowOperator:
    """Build an operator the way a subtask does."""
    built = REGISTRY.construct(spec).operator
    assert isinstance(built, ArrowOperator)
    return built


def a_source(spec: OperatorSpec) -> SourceOperator:
    """Build a source the way a subtask does."""
    built = REGISTRY.construct(spec).operator
    assert isinstance(built, SourceOperator)
    return built


def run_stateless(
    spec: OperatorSpec, stream: StreamSchema, *batches: pa.RecordBatch
) -> EpochOutput:
    """Push batches through an operator; return what it emitted."""
    with OperatorHarness(spec, stream, registry=REGISTRY) as harness:
        for batch in batches:
            harness.push(batch)
        return harness.barrier()


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


Port: TypeAlias = tuple[str, int]
"""An operator and the number of one of its inputs."""
GivenBatch: TypeAlias = tuple[str, int, pa.RecordBatch]


@dataclass
class Given:
    """What comes from other chains in one epoch."""

    rows: Sequence[GivenBatch] = ()
    spoken: Mapping[Port, Watermark | None] = field(default_factory=dict)

    def batches(self) -> Iterator[tuple[OperatorId, int, pa.RecordBatch]]:
        return ((OperatorId(name), index, batch) for name, index, batch in self.rows)

    def watermarks(self) -> Mapping[Port, Watermark | None]:
        return self.spoken


@dataclass
class Ran:
    """What one epoch of one subtask gave."""

    reports: dict[str, OperatorReport]
    watermarks: dict[str, Watermark | None]
    left: dict[tuple[str, str], Taken]
    """The rows of all outputs, by operator and output."""

    def numbers(self, operator: str, output: str = "main") -> list[int]:
        return self.left[operator, output].numbers


class ChainRig:
    """Runs epochs of a chain; what each leaves behind is what the next one starts from."""

    def __init__(
        self, registry: Registry, nodes: Sequence[Node], links: Sequence[Edge] = ()
    ) -> None:
        self.clock = ManualClock(0)
        self.store = MemoryStore()
        self.nodes = tuple(nodes)
        self.links = tuple(links)
        self.epoch = 0
        self.watermarks: dict[OperatorId, tuple[InputWatermark, ...]] = {}
        self.metadata: dict[OperatorId, dict[int, Metadata]] = {}
        self._registry = registry
        self._chains: list[AssembledChain] = []
        self._previous: int | None = None

    @property
    def chain(self) -> AssembledChain:
        """The chain of the only subtask."""
        return self._assembled(1)[0]

    def run(self, *given: GivenBatch, **terms: Any) -> Ran:
        """Run one epoch of the only subtask; `terms` are those of `run_subtasks`."""
        return self.run_subtasks([given], **terms)[0]

    def run_subtasks(
        self,
        given: Sequence[Sequence[GivenBatch]],
        *,
        spoken: Mapping[Port, Watermark | None] | None = None,
        now: int | None = None,
        is_stop: bool = False,
        then_stop: bool = False,
        assignments: Mapping[str, SourceAssignment] | None = None,
    ) -> list[Ran]:
        """Run one epoch of as many subtasks as there are lists of batches."""
        self.epoch += 1
        self.clock.micros += 1
        moment = self.clock.micros if now is None else now
        barrier = CheckpointBarrier(
            Epoch(self.epoch), Epoch(1), moment, then_stop=then_stop
        )
        terms = EpochTerms(barrier, moment, self._previous, is_stop=is_stop)
        dealt = {OperatorId(name): found for name, found in (assignments or {}).items()}
        chains = self._assembled(len(given))
        ran = [
            self._run_subtask(chain, Given(own, spoken or {}), terms, dealt)
            for chain, own in zip(chains, given, strict=True)
        ]
        self._previous = moment
        for node in self.nodes:
            reports = [subtask.reports[node.operator] for subtask in ran]
            self.watermarks[node.operator] = merge_subtasks([r.inputs for r in reports])
            self.metadata[node.operator] = {
                index: report.checkpoint.metadata for index, report in enumerate(reports)
            }
        return ran

    def restart(self) -> None:
        """Go on in another process."""
        for chain in self._chains:
            chain.close()
        self._chains = []

    def _run_subtask(
        self,
        chain: AssembledChain,
        given: Given,
        terms: EpochTerms,
        assignments: Mapping[OperatorId, SourceAssignment],
    ) -> Ran:
        for node in chain.nodes:
            node.tables.catch_up(
                an_attempt(self.store, node.task),
                self.metadata.get(node.task.operator, {}),
            )
        left = {
            (str(node.operator), output): Taken()
            for node in self.nodes
            for output in node.outputs
        }
        chain.begin(
            terms,
            watermarks=self.watermarks,
            assignments=assignments,
            outlets={
                node.operator: {
                    output: [left[str(node.operator), output]] for output in node.outputs
                }
                for node in self.nodes
            },
        )
        steps = chain_processing(chain.nodes, chain.links, given, terms, tuple[object])
        reports, watermarks = _run_to_end(steps)
        told = {str(operator): said for operator, said in watermarks.items()}
        return Ran({str(r.operator): r for r in reports}, told, left)

    def _assembled(self, parallelism: int) -> list[AssembledChain]:
        if len(self._chains) != parallelism:
            self.restart()
            for index in range(parallelism):
                setting = ChainSetting(
                    JobId("job"),
                    Subtask(index, parallelism),
                    self._registry,
                    self.clock,
                    self._tables,
                )
                self._chains.append(AssembledChain(self.nodes, self.links, setting))
        return self._chains

    def _tables(self, task: TaskInfo, specs: tuple[TableSpec, ...]) -> TableManager:
        restored = self.metadata.get(task.operator, {})
        return TableManager.load(an_attempt(self.store, task), specs, restored)


def _run_to_end(steps: Generator[object, None, ChainResult]) -> ChainResult:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: ChainResult = end.value
            return result


class DrivenSource:
    """A source alone in its chain, built again in every epoch, its plans made here."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.spec = spec
        self.known: dict[str, SplitState] = {}
        self.plan = SourcePlan((), is_complete=False)
        self.taken = Taken()
        self._rig = ChainRig(REGISTRY, ())

    def run_epoch(
        self, budget: SourceBudget | None = None, *, now_micros: int = 0
    ) -> list[dict[str, Any]]:
        """Plan and read one epoch; return the rows."""
        source = a_source(self.spec)
        budget = budget or SourceBudget()
        self.plan = source.plan_splits(self.known, budget, now_micros)
        outputs = {MAIN: source.output_schema()}
        self._rig.nodes = (Node(OPERATOR, self.spec, outputs=outputs),)
        self._rig.restart()
        assignment = SourceAssignment(splits=self.plan.splits, budget=budget)
        ran = self._rig.run(now=now_micros, assignments={OPERATOR: assignment})
        report = ran.reports[OPERATOR]
        assert report.finish is None
        self.known |= report.splits
        self.taken = ran.left[OPERATOR, MAIN]
        return self.taken.rows()

    def has_ended(self) -> bool:
        return have_ended(self.known, is_complete=self.plan.is_complete)
