"""OperatorNode: one operator of one subtask at run time, with its tables and its outlets.

A node outlives epochs; the operator inside may be forgotten between any two of them. The
chain loop tells a node what to do and when; here is only how.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from penstock.core.ids import Epoch, OperatorId, TaskInfo
from penstock.core.watermark import CheckpointBarrier, EventTime, InputWatermark
from penstock.errors import ErrorCode, InternalError, PenstockError, UserError
from penstock.graph.logical import Node
from penstock.operators.collector import ArrowCollector, Target
from penstock.operators.context import OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.source import SourceFinishType, SourceOperator, splits_table
from penstock.operators.splits import SplitState
from penstock.operators.timers import timer_tables
from penstock.operators.user_functions import describe_failure
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import SubtaskCheckpoint, TableManager

_log = logging.getLogger(__name__)

Outlets = Mapping[str, Sequence[Target]]
"""Where the rows of an operator's outputs leave the chain, by output."""


@dataclass(frozen=True, slots=True)
class EpochTerms:
    """What is fixed of an epoch before it starts; the same for all subtasks of the job."""

    barrier: CheckpointBarrier
    processing_time_micros: int
    """The one instant that every operator sees as now."""
    previous_processing_time_micros: int | None = None
    """That of the epoch run before; None before the first."""
    is_stop: bool = False
    """Tell operators to close: the job stops after this epoch and goes on another time."""
    parent: Epoch | None = None
    """The epoch that this one builds on: the one before it, but after a restore an older one."""


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
    """Timers fired, so the epoch must count even if nothing else changed."""
    splits: Mapping[str, SplitState] = {}
    """For a source: what changed."""
    finish: SourceFinishType | None = None
    bytes_read: int = 0
    has_more: bool = False
    """For a source: the budget ended the epoch, not the data."""


InstanceT = TypeVar("InstanceT", bound=ArrowOperator | SourceOperator)
ContextT = TypeVar("ContextT", bound=OperatorContext)
CollectorT = TypeVar("CollectorT", bound=ArrowCollector)


@dataclass(frozen=True, slots=True)
class NodeParts(Generic[InstanceT]):
    """What a node is made of, before anything runs."""

    node: Node
    task: TaskInfo
    construct: Callable[[], InstanceT]
    """Builds another instance when one was forgotten."""
    instance: InstanceT
    tables: TableManager


class OperatorNode(ABC, Generic[InstanceT, ContextT, CollectorT]):
    """A source or an operator of a chain; owns its context, tables and collector."""

    def __init__(
        self, parts: NodeParts[InstanceT], context: ContextT, collector: CollectorT
    ) -> None:
        self.node = parts.node
        self.task = parts.task
        self.tables = parts.tables
        self.context = context
        self.collector = collector
        self.failures: list[PenstockError] = []
        """Shared by the nodes of a chain. Kept, because user code may catch what it raises."""
        self._construct = parts.construct
        self._instance: InstanceT | None = parts.instance
        self._is_started = False
        self._checkpoint: SubtaskCheckpoint | None = None

    @property
    def instance(self) -> InstanceT:
        """The user's operator; built anew if it was forgotten."""
        if self._instance is None:
            self._instance = self._construct()
        return self._instance

    def forget(self) -> None:
        """Drop the operator: the next epoch builds a new one on the tables."""
        instance, self._instance, self._is_started = self._instance, None, False
        if instance is None:
            return
        try:
            instance.release()
        except Exception:  # noqa: BLE001 (the boundary to user code)
            # Its epochs are done or void either way; there is nothing left to fail.
            _log.exception("operator %r failed in release", str(self.task.operator))

    def begin_epoch(self, terms: EpochTerms, frontier: Frontier, outlets: Outlets) -> None:
        """Fix the epoch's time and open the collector; start the operator if it is new."""
        context = self.context
        context.epoch = terms.barrier.epoch
        context.parent = terms.parent
        context.processing_time_micros = terms.processing_time_micros
        context.counters.clear()
        context.wake_up_micros = None
        previous = frontier.watermark_micros
        context.previous_watermark = None if previous is None else EventTime(previous)
        context.watermark = context.previous_watermark
        self.tables.begin_epoch(frontier)
        self.collector.open(outlets)

    def start(self) -> None:
        """Call `on_start` if the operator was just built."""
        if not self._is_started:
            self.call("on_start", self.instance.on_start, self.context)
            self._is_started = True

    def call(
        self, hook: str, method: Callable[..., Any], *arguments: Any, batch: Any = None
    ) -> Any:
        """Call user code; whatever it raises becomes an error that names it."""
        try:
            result = method(*arguments)
        except Exception as error:
            raise self.fail(error, hook, batch) from error
        if self.failures:
            raise self.failures[0]
        return result

    def fail(
        self, error: Exception, hook: str, batch: pa.RecordBatch | None = None
    ) -> PenstockError:
        """Note the first failure of the chain, so that catching it cannot hide it."""
        if not self.failures:
            self.failures.append(describe_failure(error, self.context, hook, batch))
        return self.failures[0]

    def checkpoint(self, barrier: CheckpointBarrier, watermark: EventTime | None) -> None:
        """Write the tables; the epoch's report can be made after this."""
        self.collector.close()
        micros = None if watermark is None else watermark.micros
        self._checkpoint = self.tables.checkpoint(
            barrier.epoch, barrier.min_epoch, micros, then_stop=barrier.then_stop
        )

    @abstractmethod
    def report(self) -> OperatorReport:
        """Say what was done in the epoch that was just checkpointed."""

    def checkpointed(self) -> SubtaskCheckpoint:
        """Return this epoch's checkpoint, once."""
        done, self._checkpoint = self._checkpoint, None
        if done is None:
            raise InternalError(
                f"operator {self.task.operator!r} has no checkpoint to report"
            )
        return done


def declared_tables(
    operator: ArrowOperator | SourceOperator, node: Node
) -> tuple[TableSpec, ...]:
    """Return every table of an operator: those it declares and those kept on its behalf."""
    if isinstance(operator, SourceOperator):
        return (*operator.tables(), splits_table())
    domains = tuple(operator.timers())
    if not domains:
        return tuple(operator.tables())
    if not node.inputs[0].key_columns:
        raise UserError(
            f"operator {node.operator!r} sets timers but its first input has no key: a timer "
            "belongs to a key. Put key_by before it",
            code=ErrorCode.INVALID_GRAPH,
            operator=str(node.operator),
        )
    return (*operator.tables(), *timer_tables(domains, node.inputs[0]))
