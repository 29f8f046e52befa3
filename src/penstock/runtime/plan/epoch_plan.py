"""Makes the plan of one epoch, which the driver fixes before any task runs.

A plan is plain data, and small whatever the job's size: tasks read the checkpoint that it names.

**Budgets** limit how much a source reads, so that an epoch takes about its target time. An
epoch takes some time even if it reads nothing, and on a busy or slow machine that alone may be
more than the target. If a smaller budget did not shorten the last epoch, the budget is not cut
again.

**Input watermarks** are kept in the manifest by producer and read back by input, because a
program may change between two runs. An input is the same if the same output of the same
operator feeds it, at any position among the inputs. A new input starts at the watermark of its
operator, so that this does not go back.

**Splits** are planned by the driver's own instance of every source, which never reads rows,
and dealt to the subtasks before an epoch. Their states are read from the source's table once,
at the start; then they come from the tasks' reports.

**When all known splits have ended**, the watermark is the highest of all of them. No subtask
can know that: others may read on in the same epoch. So the driver says it, in the next epoch
that reads nothing, unless everybody who reads the source has come as far already. Until there
is such an epoch, a subtask that ends all its splits says what those that had ended before
reached, if that is more: old files in every epoch would hold the watermark back otherwise. The end
of a source tells it too: so how far event time came before the end follows from the rows alone.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import log
from typing import Any, TypeAlias

from penstock.core.clock import to_micros
from penstock.core.ids import Generation, JobId, OperatorId
from penstock.core.watermark import MAX_EVENT_TIME, InputWatermark, event_time_of
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import LogicalGraph, Node
from penstock.operators.event_time import watermark_of_ended
from penstock.operators.nodes import EpochTerms, OperatorReport
from penstock.operators.operator import SourceOperator
from penstock.operators.registry import Registry
from penstock.operators.splits import (
    FED_BUDGET,
    Lag,
    SourceAssignment,
    SourceBudget,
    SourcePhase,
    SourcePlan,
    SplitPlan,
    SplitState,
    deal_splits,
    have_ended,
)
from penstock.operators.user_functions import USER_ERRORS, to_failure
from penstock.state.protocol.records import CheckpointManifest, CheckpointRef

_log = logging.getLogger(__name__)
Assignments: TypeAlias = Mapping[OperatorId, tuple[SourceAssignment, ...]]


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """Everything a run of an epoch depends on besides the graph and the checkpoint."""

    job: JobId
    generation: Generation
    terms: EpochTerms
    run: int
    """Counts the runs of this driver; a run that is repeated gets a new number."""
    accepted_run: int | None = None
    """The last run that counted: only a chain that was kept after it may go on from memory."""
    parent: CheckpointRef | None = None
    """The checkpoint the epoch builds on."""
    assignments: Assignments = field(default_factory=dict)
    """What each subtask of each source reads."""
    allow_dropped_state: bool = False
    """Whether tables that no operator declares may be dropped."""
    deadline_micros: int | None = None
    """The time after which an executor cancels the epoch, if it can; None for never."""
    samples_keys: bool = False
    """Whether tasks look at some of the keys that they send."""

    @property
    def readers(self) -> list[OperatorId]:
        """The sources that read by themselves in this epoch."""
        return [
            operator
            for operator, parts in self.assignments.items()
            if any(part.splits and part.fed is None for part in parts)
        ]


_FASTEST_FALL, _FASTEST_GROWTH = 0.5, 2.0
_TELLING_CHANGE = 1.25
"""Rows must have changed by this factor for their effect to stand out from noise."""
_HARDLY = 0.3
"""If the duration grows with this power of the rows or less, the rows hardly matter."""
_NO_LIMIT = 1 << 50
MIN_ROWS, MAX_ROWS = 1_000, 100_000_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How many rows of a source an epoch read, and how long it took."""

    rows: int
    duration_micros: int


def adapt_budget(
    budget: SourceBudget,
    *,
    duration_micros: int,
    target_micros: int,
    was_spent: bool,
    rows_matter: bool = True,
) -> SourceBudget:
    """Return the next epoch's budget, given how long the last one took.

    The budget grows only if it was spent: a source without data does not show how much could
    be read. Steps are bounded, so that one unusual epoch changes little. If an epoch is too
    long for other reasons than its rows, a spent budget grows too.
    """
    ratio = target_micros / max(duration_micros, 1)
    if ratio < 1 and not rows_matter:
        ratio = _FASTEST_GROWTH
    if ratio >= 1 and not was_spent:
        return budget
    factor = min(max(ratio, _FASTEST_FALL), _FASTEST_GROWTH)
    # The bounds limit changes: a user's own budget beyond them is kept.
    lowest, highest = min(MIN_ROWS, budget.rows), max(MAX_ROWS, budget.rows)
    rows = min(max(int(budget.rows * factor), lowest), highest)
    return replace(budget, rows=rows)


def do_rows_matter(before: Pace | None, now: Pace) -> bool:
    """Return whether an epoch's duration follows its rows; True until two epochs show else."""
    if before is None or not before.rows or not now.rows:
        return True
    change = now.rows / before.rows
    if 1 / _TELLING_CHANGE < change < _TELLING_CHANGE:
        return True
    slowdown = max(now.duration_micros, 1) / max(before.duration_micros, 1)
    return log(slowdown) / log(change) > _HARDLY


def known_inputs(
    graph: LogicalGraph, manifest: CheckpointManifest | None
) -> dict[OperatorId, tuple[InputWatermark, ...]]:
    """Return how far each input of each operator has come as of a checkpoint."""
    entries = () if manifest is None else manifest.operators
    by_operator = {entry.operator: entry.input_watermarks for entry in entries}
    found = {}
    for node in graph.nodes:
        edges, stored = graph.edges_into(node.operator), by_operator.get(node.operator, ())
        if len(stored) != len(edges) or any(known.producer for known in stored):
            by_producer = {known.producer: known for known in stored}
            reached = event_time_of(stored)
            fresh = InputWatermark(None if reached is None else reached.micros)
            stored = tuple(
                replace(by_producer.get(f"{edge.source}.{edge.output}", fresh), producer="")
                for edge in edges
            )
        found[node.operator] = stored
    return found


def label_inputs(
    graph: LogicalGraph, operator: OperatorId, inputs: Sequence[InputWatermark]
) -> tuple[InputWatermark, ...]:
    """Return an operator's watermarks with the producers by which inputs are found again."""
    return tuple(
        replace(known, producer=f"{edge.source}.{edge.output}")
        for known, edge in zip(inputs, graph.edges_into(operator), strict=True)
    )


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """What all sources do in one epoch."""

    assignments: Assignments
    has_more: bool
    """Some source has more to read than this epoch reads."""
    has_ending: bool
    """Some source announces its end in this epoch."""
    poll_micros: int | None
    """The shortest poll interval of the sources; None if all have ended."""
    lags: Mapping[OperatorId, Lag] = field(default_factory=dict)
    """How far sources that can tell stay behind what there is."""


@dataclass(slots=True)
class PlannedSource:
    """One source as the driver sees it."""

    node: Node
    source: SourceOperator
    budget: SourceBudget
    known: dict[str, SplitState] = field(default_factory=dict)
    """The states of its splits as of the last epoch that counted."""
    pace: Pace | None = None
    """The pace of the epoch before, if it read anything."""


class SourcePlanner:
    """All sources of a job, on the driver. Lives as long as one claim of the job."""

    def __init__(
        self,
        graph: LogicalGraph,
        registry: Registry,
        budget: SourceBudget,
        target_micros: int | None = None,
    ) -> None:
        """Make a planner; without a target, the time an epoch should take, budgets stay."""
        self.sources: dict[OperatorId, PlannedSource] = {}
        self._graph = graph
        self._target_micros = target_micros
        for node in graph.nodes:
            made = registry.construct(node.spec).operator
            if isinstance(made, SourceOperator):
                self.sources[node.operator] = PlannedSource(node, made, budget)

    def plan(
        self,
        now_micros: int,
        manifest: CheckpointManifest | None,
        *,
        is_last: bool = False,
    ) -> ReadingPlan:
        """Decide what every subtask of every source does in the next epoch.

        In the last epoch of a run no split is read, so that the job stops soon.
        """
        assignments: dict[OperatorId, tuple[SourceAssignment, ...]] = {}
        polls: list[int] = []
        lags: dict[OperatorId, Lag] = {}
        has_more = has_ending = False
        inputs = known_inputs(self._graph, manifest)
        others_read = False
        for operator, planned in self._in_order():
            if planned.source.ends_with_others() and not others_read:
                plan = SourcePlan((), is_complete=True)
            else:
                budget = replace(planned.budget, subtasks=planned.node.parallelism)
                plan = self._ask(planned, budget, now_micros)
            if is_last:
                plan = SourcePlan(
                    (),
                    is_complete=plan.is_complete and not plan.splits,
                    # Splits that this epoch would have read wait for the next run.
                    holds_watermark=plan.holds_watermark
                    or bool(plan.splits or plan.waiting),
                )
            readers = self._graph.edges_out_of(operator)
            told = [inputs[e.target][e.input_index].event_time_micros for e in readers]
            # Whether the end of the source has reached every operator that reads it.
            is_known = manifest is not None and all(
                micros == MAX_EVENT_TIME.micros for micros in told
            )
            watermark = None
            if not plan.splits and have_ended(planned.known, is_complete=plan.is_complete):
                watermark = _reached_micros(planned)
                phase = SourcePhase.ENDED if is_known else SourcePhase.ENDING
            elif is_known and readers:
                raise UserError(
                    f"source {operator!r} plans to read on after it had ended and everybody was "
                    "told: its rows would reach closed operators. Return is_complete=False from "
                    "plan_splits while more may come",
                    code=ErrorCode.JOB_FINISHED,
                    operator=operator,
                )
            else:
                phase = SourcePhase.READING
                others_read = True
                what = f"poll_interval of source {operator!r}"
                polls.append(max(1, to_micros(planned.source.poll_interval(), what)))
                if not (is_last or plan.splits):
                    watermark = _watermark_to_tell(planned, told)
            assignments[operator] = _deal(planned, plan, phase, watermark)
            if plan.lag is not None:
                lags[operator] = plan.lag
            has_more |= plan.has_more
            has_ending |= phase is SourcePhase.ENDING
        poll_micros = min(polls, default=None)
        return ReadingPlan(assignments, has_more, has_ending, poll_micros, lags)

    def _in_order(self) -> list[tuple[OperatorId, PlannedSource]]:
        """Return the sources, behind the others those that end with them."""
        return sorted(
            self.sources.items(), key=lambda each: each[1].source.ends_with_others()
        )

    def has_waiting(
        self, *, rows: int | None, size_bytes: int | None, now_micros: int
    ) -> bool:
        """Return whether some source has more to read than that. Plans nothing."""
        ceiling = SourceBudget(
            rows=_NO_LIMIT if rows is None else rows,
            size_bytes=_NO_LIMIT if size_bytes is None else size_bytes,
        )
        return any(
            self._ask(planned, ceiling, now_micros).has_more
            for planned in self.sources.values()
        )

    def accept(
        self, reports: Sequence[OperatorReport], reading: ReadingPlan, duration_micros: int
    ) -> None:
        """Note how far an epoch that counts has read, and adapt budgets to the target."""
        for operator, planned in self.sources.items():
            own = [report for report in reports if report.operator == operator]
            for report in own:
                planned.known.update(report.splits)
            for part in reading.assignments.get(operator, ()):
                for name in part.forgotten:
                    planned.known.pop(name, None)
            known = dict(planned.known)
            _call(operator, "on_committed", partial(planned.source.on_committed, known))
            if self._target_micros is not None:
                pace = Pace(sum(report.rows_taken for report in own), duration_micros)
                planned.budget = adapt_budget(
                    planned.budget,
                    duration_micros=duration_micros,
                    target_micros=self._target_micros,
                    was_spent=reading.has_more or any(report.has_more for report in own),
                    rows_matter=do_rows_matter(planned.pace, pace),
                )
                planned.pace = pace

    def release(self) -> None:
        """Release the driver's instances of sources, which may hold connections."""
        for operator, planned in self.sources.items():
            _call(operator, "release", planned.source.release)

    def _ask(
        self, planned: PlannedSource, budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        operator = planned.node.operator
        plan: Any
        try:
            plan = planned.source.plan_splits(dict(planned.known), budget, now_micros)
        except USER_ERRORS as error:
            message = (
                f"source {operator!r} raised {type(error).__name__} in plan_splits: {error}"
            )
            failure = to_failure(error, message, operator=operator, hook="plan_splits")
            raise failure from failure.__cause__
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
        _check_forgotten(planned, plan)
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


def _call(operator: OperatorId, hook: str, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001 (the boundary to user code)
        _log.exception("source %r failed in %s on the driver", str(operator), hook)


def _check_forgotten(planned: PlannedSource, plan: SourcePlan) -> None:
    """Refuse to forget splits that have rows left, or that nobody knows."""
    for name in plan.forgotten:
        state = planned.known.get(name)
        if state is None or not state.ended:
            what = "is not known" if state is None else "has not ended"
            raise UserError(
                f"source {planned.node.operator!r} plans to forget the split {name!r}, which "
                f"{what}: forget only splits that were read to their end",
                code=ErrorCode.UNKNOWN_SPLIT,
                operator=planned.node.operator,
            )


def _watermark_to_tell(planned: PlannedSource, told: Sequence[int | None]) -> int | None:
    """Return the watermark of a source without open splits, if a reader is not there yet."""
    reached = _reached_micros(planned)
    if reached is None:
        return None
    is_news = any(micros is None or micros < reached for micros in told)
    return reached if is_news else None


def _reached_micros(planned: PlannedSource) -> int | None:
    """Return how far event time came if all splits have ended; None if that is not known."""
    spec = planned.node.watermark
    reached = None if spec is None else watermark_of_ended(planned.known, spec)
    return None if reached is None else reached.micros


def _deal(
    planned: PlannedSource,
    plan: SourcePlan,
    phase: SourcePhase,
    watermark_micros: int | None,
) -> tuple[SourceAssignment, ...]:
    """Deal the splits to the subtasks, both those that are read and those that rest."""
    reads = {split.name for split in plan.splits}
    resting = [
        SplitPlan(name, weight=0)
        for name, state in planned.known.items()
        if name not in reads and not state.ended
    ]
    dealt = deal_splits([*plan.splits, *resting], planned.node.parallelism)
    timed = [
        (micros, state.ended)
        for state in planned.known.values()
        if (micros := state.max_event_time_micros) is not None
    ]
    latest = max((micros for micros, _ in timed), default=None)
    budget = planned.budget if plan.fed is None else FED_BUDGET
    if plan.is_indivisible:
        budget = replace(budget, overrun_micros=_NO_LIMIT)
    latest_ended = max((micros for micros, has_ended in timed if has_ended), default=None)
    return tuple(
        SourceAssignment(
            phase,
            tuple(split for split in part if split.name in reads),
            tuple(split.name for split in part if split.name not in reads),
            budget,
            plan.fed,
            tuple(split.name for split in part if split.name in plan.waiting),
            watermark_micros,
            latest,
            latest_ended,
            () if index else plan.forgotten,
            plan.holds_watermark,
        )
        for index, part in enumerate(dealt)
    )
