"""SourceHarness: test a source without a runtime: what it plans, reads, and remembers.

    with SourceHarness(LogFiles("logs/"), parallelism=2) as harness:
        harness.read(rows=100)            one epoch with a budget
        harness.rescale(3)                another process with more subtasks goes on
        harness.read()
        assert harness.rows() == [...]

Every epoch asks the source what there is to read, deals its splits to subtasks, runs them,
and checkpoints their offsets, as a job would.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from penstock.core.clock import DurationLike, ManualClock, to_micros
from penstock.core.ids import OperatorId
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import MAIN, LogicalGraph, Node, OperatorSpec, WatermarkSpec
from penstock.operators.registry import Registry
from penstock.operators.source import SPLITS_TABLE, SourceFinishType, SourceOperator
from penstock.operators.splits import (
    SourceAssignment,
    SourceBudget,
    SourcePhase,
    SplitState,
)
from penstock.operators.user_functions import source_spec
from penstock.runtime.plan.epoch_plan import SourcePlanner
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing.chain_nodes import START, next_terms, shared_registry, to_output
from penstock.testing.chain_subtasks import (
    JOB,
    Amnesia,
    ChainSubtasks,
    SubtaskInput,
    read_table,
    rescale_nodes,
)
from penstock.testing.given import Emitted, EpochOutput, InstantLike, to_instant

_SOURCE = OperatorId("source")


class SourceHarness:
    """A source under test. Not thread-safe; close it, or use it as a context manager."""

    def __init__(
        self,
        source: SourceOperator | OperatorSpec,
        *,
        parallelism: int = 1,
        budget: SourceBudget | None = None,
        lateness: DurationLike = 0,
        idle_timeout: DurationLike | None = None,
        amnesia: Amnesia = Amnesia.NOTHING,
        now: InstantLike = START,
        store: ObjectStore | None = None,
        registry: Registry | None = None,
    ) -> None:
        self.clock = ManualClock(to_instant(now))
        self.assignments: tuple[SourceAssignment, ...] = ()
        """What each subtask was given in the last epoch."""
        self._budget = budget or SourceBudget()
        self._is_told = False
        registry = registry or shared_registry()
        spec = source if isinstance(source, OperatorSpec) else source_spec(source)
        watermark = WatermarkSpec(
            to_micros(lateness, "lateness"),
            None if idle_timeout is None else to_micros(idle_timeout, "idle timeout"),
        )
        node = _source_node(spec, parallelism, watermark, registry)
        self._subtasks = ChainSubtasks(
            [node],
            [],
            store=MemoryStore() if store is None else store,
            registry=registry,
            clock=self.clock,
            amnesia=amnesia,
        )
        self._emitted = Emitted(node.outputs)
        self._planner = self._plan_anew()

    def read(self, *, rows: int | None = None, is_stop: bool = False) -> EpochOutput:
        """Run an epoch; `rows` limits what each subtask may read, `is_stop` closes the source.

        An epoch in which the source asks to stop immediately does not count.
        """
        planned = self._planner.sources[_SOURCE]
        planned.budget = self._budget if rows is None else replace(self._budget, rows=rows)
        terms = next_terms(self._subtasks.state, self.clock, is_stop=is_stop)
        plan = self._planner.plan(terms.processing_time_micros, None)
        self.assignments = plan.assignments[_SOURCE]
        if self._is_told:
            self.assignments = tuple(
                replace(part, phase=SourcePhase.ENDED) for part in self.assignments
            )
        inputs = [SubtaskInput(_SOURCE) for _ in self.assignments]
        before = self._subtasks.state
        run = self._subtasks.run(terms, inputs, self.assignments)
        output = to_output(terms, run)
        if output.finish is SourceFinishType.IMMEDIATE:
            self._subtasks.discard(before)
            return output
        self._planner.accept(run.reports.values())
        self._is_told = self._is_told or plan.has_ending
        self._emitted.extend(run.emitted)
        return output

    def read_all(self, *, rows: int | None = None, max_epochs: int = 1_000) -> None:
        """Run epochs until the source has ended and everybody was told."""
        for _ in range(max_epochs):
            if self.has_ended:
                return
            self.read(rows=rows)
        raise UserError(
            f"the source has not ended after {max_epochs} epochs: its splits are "
            f"{dict(self.splits)}",
            code=ErrorCode.SOURCE_OVERRAN,
        )

    def advance(self, duration: DurationLike) -> None:
        """Let processing time pass: the next epoch happens then."""
        self.clock.advance(to_micros(duration))

    def rescale(self, parallelism: int) -> None:
        """Go on in another process with so many subtasks: only the checkpoint is left."""
        before = self._subtasks
        before.close()
        self._subtasks = ChainSubtasks(
            rescale_nodes(before.nodes, parallelism),
            before.links,
            store=before.store,
            registry=before.registry,
            clock=self.clock,
            amnesia=before.amnesia,
            state=before.state,
        )
        self._planner = self._plan_anew()

    def rows(self, output: str = MAIN) -> list[dict[str, Any]]:
        """Return all rows since the start or the last `take`, as dictionaries."""
        return self._emitted.rows(output)

    def take(self, output: str = MAIN) -> list[dict[str, Any]]:
        """Return the rows of an output and forget them."""
        return self._emitted.take(output)

    def state(self, table: str) -> Any:
        """Return what a table of the source's own holds after the last epoch."""
        return read_table(self._subtasks, table)

    @property
    def splits(self) -> Mapping[str, SplitState]:
        """How far every split was read, as the last checkpoint has it."""
        known: dict[str, SplitState] = read_table(self._subtasks, SPLITS_TABLE)
        return known

    @property
    def has_ended(self) -> bool:
        """Tell whether the source has ended and said so in an epoch."""
        return self._is_told

    def close(self) -> None:
        """Release the source."""
        self._subtasks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _plan_anew(self) -> SourcePlanner:
        """Return a planner that knows what the checkpoint does, as another driver's would."""
        graph = LogicalGraph(JOB, self._subtasks.nodes)
        planner = SourcePlanner(graph, self._subtasks.registry, self._budget)
        planner.restore(lambda _: self.splits)
        return planner


def _source_node(
    spec: OperatorSpec, parallelism: int, watermark: WatermarkSpec, registry: Registry
) -> Node:
    built = registry.construct(spec).operator
    if not isinstance(built, SourceOperator):
        raise UserError(
            f"{built.name()!r} is no source: test it with OperatorHarness",
            code=ErrorCode.INVALID_GRAPH,
        )
    stream = built.output_schema()
    return Node(
        _SOURCE,
        OperatorSpec(spec.kind, spec.config),
        parallelism=parallelism,
        outputs={MAIN: stream, **built.side_outputs()},
        watermark=None if stream.time_column is None else watermark,
    )
