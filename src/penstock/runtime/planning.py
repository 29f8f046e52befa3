"""Planning what sources read: asked of the sources, dealt to their subtasks, before an epoch.

The driver's own instance of every source does this, and never reads rows. What is known of
the splits comes from the source's table once, at the start; then from the tasks' reports.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.core.ids import OperatorId
from penstock.core.signals import MAX_EVENT_TIME
from penstock.errors import ErrorCode, PenstockError, UserCodeError, UserError
from penstock.graph.logical import LogicalGraph, Node
from penstock.operators.nodes import OperatorReport
from penstock.operators.registry import Registry
from penstock.operators.source import SourceOperator, SourcePlan
from penstock.operators.splits import (
    FED_BUDGET,
    SourceAssignment,
    SourceBudget,
    SourcePhase,
    SplitPlan,
    SplitState,
    deal_splits,
    have_ended,
)
from penstock.runtime.budgets import Pace
from penstock.runtime.input_watermarks import known_inputs
from penstock.state.protocol.records import CheckpointManifest

Assignments = Mapping[OperatorId, tuple[SourceAssignment, ...]]


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """What all sources do in one epoch."""

    assignments: Assignments
    has_more: bool
    """Some source knows of more than this epoch reads."""
    has_ending: bool
    """Some source tells its end in this epoch."""
    poll_micros: int | None
    """The shortest interval at which a source wants to be asked again; None if all ended."""


@dataclass(slots=True)
class PlannedSource:
    """One source as the driver sees it."""

    node: Node
    source: SourceOperator
    budget: SourceBudget
    known: dict[str, SplitState] = field(default_factory=dict)
    pace: Pace | None = None
    """Of the epoch before, if it read anything."""


class SourcePlanner:
    """All sources of a job, on the driver. Lives as long as one claim of the job."""

    def __init__(
        self, graph: LogicalGraph, registry: Registry, budget: SourceBudget
    ) -> None:
        self.sources: dict[OperatorId, PlannedSource] = {}
        self._graph = graph
        for node in graph.nodes:
            made = registry.construct(node.spec).operator
            if isinstance(made, SourceOperator):
                self.sources[node.operator] = PlannedSource(node, made, budget)

    def restore(
        self, read_splits: Callable[[OperatorId], Mapping[str, SplitState]]
    ) -> None:
        """Take over what the checkpoint knows of every source's splits."""
        for operator, planned in self.sources.items():
            planned.known = dict(read_splits(operator))

    def plan(
        self,
        now_micros: int,
        manifest: CheckpointManifest | None,
        *,
        is_last: bool = False,
    ) -> ReadingPlan:
        """Decide what every subtask of every source does in the next epoch.

        In the last epoch of a run all splits rest: whoever asked for a stop is waiting.
        """
        assignments: dict[OperatorId, tuple[SourceAssignment, ...]] = {}
        polls: list[int] = []
        has_more = has_ending = False
        for operator, planned in self.sources.items():
            plan = self._ask(planned, now_micros)
            if is_last:
                plan = SourcePlan((), is_complete=plan.is_complete and not plan.splits)
            phase = self._phase(planned, plan, manifest)
            assignments[operator] = _deal(planned, plan, phase)
            has_more |= plan.has_more
            has_ending |= phase is SourcePhase.ENDING
            if phase is SourcePhase.READING:
                polls.append(_micros(planned.source))
        return ReadingPlan(assignments, has_more, has_ending, min(polls, default=None))

    def accept(self, reports: Iterable[OperatorReport]) -> None:
        """Note how far the splits were read in an epoch that counts."""
        for report in reports:
            planned = self.sources.get(report.operator)
            if planned is not None:
                planned.known.update(report.splits)

    def _ask(self, planned: PlannedSource, now_micros: int) -> SourcePlan:
        operator = planned.node.operator
        plan: Any
        try:
            budget = replace(planned.budget, subtasks=planned.node.parallelism)
            plan = planned.source.plan_splits(dict(planned.known), budget, now_micros)
        except PenstockError as error:
            error.context.setdefault("operator", operator)
            raise
        except Exception as error:
            raise UserCodeError(
                f"source {operator!r} raised {type(error).__name__} in plan_splits: {error}",
                operator=operator,
                hook="plan_splits",
            ) from error
        if not isinstance(plan, SourcePlan) or not all(
            isinstance(split, SplitPlan) for split in plan.splits
        ):
            raise UserError(
                f"source {operator!r} returned {plan!r} from plan_splits: return a SourcePlan "
                "whose splits are SplitPlans",
                code=ErrorCode.UNKNOWN_SPLIT,
                operator=operator,
                hook="plan_splits",
            )
        names = [split.name for split in plan.splits]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise UserError(
                f"source {operator!r} plans the split {twice[0]!r} twice in one epoch: two "
                "subtasks would read it at once. Give each part a name of its own",
                code=ErrorCode.UNKNOWN_SPLIT,
                operator=operator,
            )
        return plan

    def _phase(
        self, planned: PlannedSource, plan: SourcePlan, manifest: CheckpointManifest | None
    ) -> SourcePhase:
        operator = planned.node.operator
        told = manifest is not None and self._was_told(operator, manifest)
        has_ended = not plan.splits and have_ended(
            planned.known, is_complete=plan.is_complete
        )
        if has_ended:
            return SourcePhase.ENDED if told else SourcePhase.ENDING
        if told and self._graph.edges_out_of(operator):
            raise UserError(
                f"source {operator!r} plans to read on after it had ended and everybody was "
                "told: its rows would reach closed operators. Return is_complete=False from "
                "plan_splits while more may come",
                code=ErrorCode.JOB_FINISHED,
                operator=operator,
            )
        return SourcePhase.READING

    def _was_told(self, operator: OperatorId, manifest: CheckpointManifest) -> bool:
        """Tell whether everybody that reads a source knows that it has ended."""
        inputs = known_inputs(self._graph, manifest)
        return all(
            inputs[edge.target][edge.input_index].event_time_micros == MAX_EVENT_TIME.micros
            for edge in self._graph.edges_out_of(operator)
        )


def _deal(
    planned: PlannedSource, plan: SourcePlan, phase: SourcePhase
) -> tuple[SourceAssignment, ...]:
    """Deal what is read, and with it the splits that only rest, to the subtasks."""
    reads = {split.name for split in plan.splits}
    resting = [
        SplitPlan(name, weight=0)
        for name, state in planned.known.items()
        if name not in reads and not state.ended
    ]
    dealt = deal_splits([*plan.splits, *resting], planned.node.parallelism)
    return tuple(
        SourceAssignment(
            phase,
            tuple(split for split in part if split.name in reads),
            tuple(split.name for split in part if split.name not in reads),
            planned.budget if plan.fed is None else FED_BUDGET,
            plan.fed,
        )
        for part in dealt
    )


def _micros(source: SourceOperator) -> int:
    return max(1, int(source.poll_interval().total_seconds() * 1_000_000))
