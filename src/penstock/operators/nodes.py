"""Nodes: the operators of one subtask at run time, with their tables, collectors and timers.

A node outlives epochs; the operator inside may be dropped between any two of them. The chain
loop decides what a node does and when; nodes only carry it out. `ChainedOperator` is a node
with inputs; `SourceNode` has a module of its own.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from typing_extensions import override

from penstock.core.clock import to_micros
from penstock.core.ids import Epoch, OperatorId, TaskInfo
from penstock.core.watermark import (
    IDLE,
    MAX_EVENT_TIME,
    MAX_MICROS,
    Advance,
    CheckpointBarrier,
    EndOfData,
    EventTime,
    Idle,
    InputWatermark,
    Stop,
    Watermark,
    advance,
    event_time_of,
)
from penstock.errors import ErrorCode, PenstockError, StateError, UserError
from penstock.graph.logical import Node
from penstock.operators.context import ArrowCollector, OperatorContext, Targets
from penstock.operators.operator import (
    ArrowOperator,
    SourceFinishType,
    SourceOperator,
)
from penstock.operators.splits import SplitState
from penstock.operators.timers import Timers
from penstock.operators.user_functions import USER_ERRORS, ask, describe_failure
from penstock.operators.worker_output import speaking_for
from penstock.state.tables.specs import TimeDomain
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import SubtaskCheckpoint, TableManager

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EpochTerms:
    """What is fixed before an epoch starts; the same for all subtasks of the job."""

    barrier: CheckpointBarrier
    processing_time_micros: int
    """The one instant that every operator sees as now."""
    previous_processing_time_micros: int | None = None
    """The processing time of the epoch run before; None before the first."""
    is_stop: bool = False
    """Operators are closed: the job stops after this epoch and goes on another time."""
    parent: Epoch | None = None
    """The epoch that this one builds on: the one before it, or after a restore an older one."""


class OperatorReport(msgspec.Struct, frozen=True, array_like=True):
    """What one subtask of one operator did in an epoch; sent to the driver as it is."""

    operator: OperatorId
    checkpoint: SubtaskCheckpoint
    inputs: tuple[InputWatermark, ...] = ()
    rows_emitted: Mapping[str, int] = {}
    rows_taken: int = 0
    counters: Mapping[str, int] = {}
    wake_up_micros: int | None = None
    """When it wants to run again even if no data comes."""
    has_fired: bool = False
    """Timers fired, so the epoch must be published even if nothing else changed."""
    splits: Mapping[str, SplitState] = {}
    """For a source: the states of the splits that changed."""
    finish: SourceFinishType | None = None
    bytes_read: int = 0
    has_more: bool = False
    """For a source: the budget ended its epoch before the data did."""
    samples: Mapping[str, tuple[str, ...]] = {}
    """The first late and bad rows, by output, as JSON; none if samples are turned off."""


InstanceT = TypeVar("InstanceT", bound=ArrowOperator | SourceOperator)
ContextT = TypeVar("ContextT", bound=OperatorContext)
CollectorT = TypeVar("CollectorT", bound=ArrowCollector)


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What a node is made of, before anything runs."""

    node: Node
    task: TaskInfo
    construct: Callable[[], Any]
    """Builds an instance: the first one, and another after `forget`."""
    instance: Any
    tables: TableManager


class OperatorNode(Generic[InstanceT, ContextT, CollectorT]):
    """A source or an operator of a chain; owns its context, tables and collector."""

    def __init__(self, parts: NodeParts, context: ContextT, collector: CollectorT) -> None:
        self.node = parts.node
        self.task = parts.task
        self.tables = parts.tables
        self.context = context
        self.collector = collector
        self.failures: list[PenstockError] = []
        """The failures of all nodes of the chain, kept because user code may catch them."""
        self._construct: Callable[[], InstanceT] = parts.construct
        self.instance = parts.instance
        self.is_started = False
        """The instance's `on_start` was called."""
        self.report: OperatorReport
        """The report of the epoch that was checkpointed last."""

    @cached_property
    def instance(self) -> InstanceT:
        """The user's operator; it is built again after `forget`."""
        return self._construct()

    def forget(self) -> None:
        """Release and drop the operator; the next epoch builds another one on the tables."""
        self.is_started = False
        instance: InstanceT | None = self.__dict__.pop("instance", None)
        if instance is None:
            return
        try:
            instance.release()
        except Exception:  # noqa: BLE001 (the boundary to user code)
            # Its epochs are published or void by now, so there is nothing left to fail.
            _log.exception("operator %r failed in release", str(self.task.operator))

    def skip_epochs(self) -> None:
        """Go on after epochs that ran elsewhere: with another operator, unless this one may."""
        if "instance" in self.__dict__ and not self.call("can_skip_epochs"):
            self.forget()

    def begin_epoch(
        self, terms: EpochTerms, watermark: EventTime | None, outlets: Targets
    ) -> None:
        """Fix the epoch's time and open the collector."""
        context = self.context
        context.epoch = terms.barrier.epoch
        context.parent = terms.parent
        context.processing_time_micros = terms.processing_time_micros
        context.previous_processing_time_micros = terms.previous_processing_time_micros
        context.counters.clear()
        context.wake_up_micros = None
        context.previous_watermark = context.watermark = watermark
        self.tables.begin_epoch(
            Frontier(
                None if watermark is None else watermark.micros,
                terms.processing_time_micros,
                terms.previous_processing_time_micros,
            )
        )
        self.collector.open(outlets)

    def call(
        self,
        hook: str,
        *arguments: Any,
        batch: pa.RecordBatch | None = None,
        function: Callable[..., Any] | None = None,
    ) -> Any:
        """Call a hook of the operator, or a function on its behalf.

        Any exception becomes an error that names the hook and shows rows of `batch`.
        """
        called = function or getattr(self.instance, hook)
        try:
            with speaking_for(self.task.operator):
                result = called(*arguments)
        except USER_ERRORS as error:
            failure = self.fail(error, hook, batch)
            raise failure from failure.__cause__
        if self.failures:
            raise self.failures[0]
        return result

    def fail(
        self, error: BaseException, hook: str, batch: pa.RecordBatch | None = None
    ) -> PenstockError:
        """Note the first failure of the chain, so that catching it cannot hide it."""
        if not self.failures:
            self.failures.append(describe_failure(error, self.context, hook, batch))
        return self.failures[0]

    def checkpoint(self, barrier: CheckpointBarrier, watermark: EventTime | None) -> None:
        """Write the tables, and begin the report with what all kinds of nodes tell."""
        self.collector.close()
        micros = None if watermark is None else watermark.micros
        self.report = OperatorReport(
            self.task.operator,
            self.tables.checkpoint(
                barrier.epoch, barrier.min_epoch, micros, then_stop=barrier.then_stop
            ),
            rows_emitted=dict(self.collector.rows_emitted),
            counters=dict(self.context.counters),
            samples=self.collector.samples,
        )


class ChainedOperator(OperatorNode[ArrowOperator, OperatorContext, ArrowCollector]):
    """An operator that takes batches and signals. Its hooks are called here and nowhere else."""

    def __init__(self, parts: NodeParts, collector: ArrowCollector) -> None:
        node, task, tables = parts.node, parts.task, parts.tables
        self.timers = {
            domain: Timers(domain, tables, node.inputs[0])
            for domain in parts.instance.timers()
        }
        context = OperatorContext(
            task,
            inputs=node.inputs,
            outputs=node.outputs,
            tables=tables,
            timers=self.timers,
        )
        super().__init__(parts, context, collector)
        self._tick_micros = _tick_micros(parts.instance, task)
        self._total_inputs = len(node.inputs)
        self._is_timed = [stream.time_column is not None for stream in node.inputs]
        self._last_output: EventTime | None = None
        self._previous: tuple[InputWatermark, ...] = ()
        self._advance = Advance((), None)
        self.had_ended = False
        """The operator was closed for good in an earlier epoch."""
        self.rows_taken = 0

    def begin(
        self, terms: EpochTerms, previous: Sequence[InputWatermark], outlets: Targets
    ) -> None:
        """Start an epoch; `previous` are the input watermarks in the parent's manifest."""
        known = event_time_of(previous)
        micros = None if known is None else known.micros
        self._previous = tuple(previous)
        if len(self._previous) != self._total_inputs:
            # If the operator has more or fewer inputs than before, all of them start at its
            # own watermark, so that this does not go back.
            self._previous = (InputWatermark(micros),) * self._total_inputs
        self.had_ended = known == MAX_EVENT_TIME
        self.rows_taken = 0
        if self._last_output is not None and (known is None or known < self._last_output):
            # This subtask was ahead: an epoch begins at what all subtasks have reached.
            self._last_output = known
        self.begin_epoch(terms, known, outlets)
        before = terms.previous_processing_time_micros
        for domain, timers in self.timers.items():
            timers.begin_epoch(micros if domain is TimeDomain.EVENT_TIME else before)

    def process(self, index: int, batch: pa.RecordBatch) -> None:
        """Give the operator some rows."""
        if self.had_ended:
            # A closed operator would lose these rows.
            error = StateError(
                f"operator {self.task.operator!r} got rows at input {index} after all its "
                "inputs had ended and it was closed for good: a source cannot go on, nor a new "
                "one be put in front of it. Give the operator a new name, or restore an epoch "
                "before the end",
                code=ErrorCode.JOB_FINISHED,
            )
            raise self.fail(error, "process_batch", batch)
        self.rows_taken += batch.num_rows
        try:
            with speaking_for(self.task.operator):
                self.instance.process_batch_index(
                    index, self._total_inputs, batch, self.context, self.collector
                )
        except USER_ERRORS as error:
            failure = self.fail(error, "process_batch", batch)
            raise failure from failure.__cause__

    def advance(self, watermarks: Sequence[Watermark | None]) -> Watermark | None:
        """Give the operator the watermarks of its inputs; return what it passes on.

        No hook of an operator that was closed for good is called.
        """
        if any(self._is_timed):
            # An input whose rows have no event time may never get a watermark, and says nothing
            # about the time of others: only its end counts.
            watermarks = [
                said if is_timed or said == MAX_EVENT_TIME else IDLE
                for said, is_timed in zip(watermarks, self._is_timed, strict=True)
            ]
        self._advance = advance(self._previous, watermarks)
        watermark = self._advance.watermark
        self.context.watermark = self._advance.event_time
        if self.had_ended:
            return MAX_EVENT_TIME
        if watermark is None and not self.instance.generates_watermarks():
            return None
        answer = self.call(
            "handle_watermark",
            IDLE if watermark is None else watermark,
            self.context,
            self.collector,
        )
        if not self._advance.has_ended:
            return self._checked(answer)
        # A generator has an event time of its own, which came as far as it says.
        is_own = answer == MAX_EVENT_TIME and self.instance.generates_watermarks()
        return EventTime(MAX_MICROS, answer.reached_micros) if is_own else watermark

    def fire_timers(self, terms: EpochTerms) -> None:
        """Call `handle_timers` with timers that are due, until none is left."""
        watermark = self._advance.event_time
        clocks = {
            TimeDomain.EVENT_TIME: None if watermark is None else watermark.micros,
            TimeDomain.PROCESSING_TIME: terms.processing_time_micros,
        }
        has_fired = True
        while has_fired:
            # A timer of one clock may set timers of the other that are due already.
            has_fired = False
            for domain, timers in self.timers.items():
                while (due := timers.take_due(clocks[domain])) is not None:
                    has_fired = True
                    self.call(
                        "handle_timers", due, self.context, self.collector, batch=due.keys
                    )

    def tick(self, terms: EpochTerms) -> None:
        """Call `handle_tick` if a boundary of its interval was crossed since the last epoch."""
        if self._tick_micros is None:
            return
        tick = terms.processing_time_micros // self._tick_micros
        before = terms.previous_processing_time_micros
        if before is None or before // self._tick_micros < tick:
            self.call("handle_tick", tick, self.context, self.collector)
        self.context.wake_at((tick + 1) * self._tick_micros)

    def close(self, terms: EpochTerms) -> None:
        """Call `on_close` in the epoch that ends the input or the run."""
        final = (
            EndOfData() if self._advance.has_ended else Stop() if terms.is_stop else None
        )
        if final is not None:
            self.call("on_close", final, self.context, self.collector)

    def write(self, terms: EpochTerms) -> None:
        """Let the operator finish its epoch and write its tables."""
        if not self.had_ended:
            self.call("handle_checkpoint", terms.barrier, self.context, self.collector)
        wake_up_micros = None
        if not self._advance.has_ended:
            by_clock = self.timers.get(TimeDomain.PROCESSING_TIME)
            # This comes before the tables are written, which may close them.
            due_micros = None if by_clock is None else by_clock.next_due_micros()
            if due_micros is not None:
                self.context.wake_at(due_micros)
            wake_up_micros = self.context.wake_up_micros
        self.checkpoint(terms.barrier, self._advance.event_time)
        self.report = replace(
            self.report,
            inputs=self._advance.inputs,
            rows_taken=self.rows_taken,
            wake_up_micros=wake_up_micros,
            has_fired=any(timers.has_fired for timers in self.timers.values()),
        )

    @override
    def forget(self) -> None:
        self._last_output = None
        super().forget()

    def _checked(self, answer: Any) -> Watermark | None:
        """Refuse a watermark that is lower than an earlier one, or is no watermark at all."""
        if answer is None or isinstance(answer, Idle):
            return answer
        problem, said = None, self._last_output
        if not isinstance(answer, EventTime):
            problem = f"returned {answer!r}, which is no watermark"
        elif answer == MAX_EVENT_TIME:
            problem = "returned the watermark that only the end of all data may have"
        elif (
            said is not None and answer < said and not self.instance.generates_watermarks()
        ):
            # Only a generator may send less: its partitions move and wake up.
            problem = f"went back in time from {said} to {answer}"
        if problem is not None:
            raise self.fail(
                UserError(
                    f"operator {self.task.operator!r} {problem} in handle_watermark: return "
                    "the watermark it was given, an earlier one that never falls, or None",
                    code=ErrorCode.WATERMARK_WENT_BACK,
                ),
                "handle_watermark",
            )
        self._last_output = EventTime(answer.micros)
        return self._last_output


def _tick_micros(operator: ArrowOperator, task: TaskInfo) -> int | None:
    """Return the interval of an operator's ticks; None if it wants none."""
    interval = ask(task.operator, "tick_interval", operator.tick_interval)
    if interval is None:
        return None
    problem: Exception | None = None
    try:
        micros = to_micros(interval)
    except UserError as error:
        micros, problem = 0, error
    if micros == 0:
        raise UserError(
            f"operator {task.operator!r} wants a tick every {interval}: return a positive "
            "interval from tick_interval, such as '10s' or a timedelta, or None",
            code=ErrorCode.INVALID_NUMBER,
            operator=task.operator,
        ) from problem
    return micros
