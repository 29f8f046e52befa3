"""SourceNode: a source as the first node of a chain, with its splits and their watermark."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from penstock.core.clock import Clock
from penstock.core.watermark import IDLE, MAX_MICROS, EventTime, Watermark
from penstock.errors import ErrorCode, UserCodeError, UserError
from penstock.graph.logical import MAIN
from penstock.operators.context import SourceCollector, SourceContext, Targets
from penstock.operators.event_time import (
    is_nearly_idle,
    last_watermark,
    next_idle_micros,
    watermark_of_splits,
)
from penstock.operators.nodes import EpochTerms, NodeParts, OperatorNode
from penstock.operators.operator import SPLITS_TABLE, SourceFinishType, SourceOperator
from penstock.operators.splits import (
    BudgetMeter,
    Deadline,
    SourceAssignment,
    SourceOverrunError,
    SourcePhase,
    SplitState,
    SplitTimes,
)


class SourceNode(OperatorNode[SourceOperator, SourceContext, SourceCollector]):
    """A source that reads its assignment. It stores offsets in its table, by split."""

    def __init__(self, parts: NodeParts, collector: SourceCollector, clock: Clock) -> None:
        context = SourceContext(parts.task, outputs=parts.node.outputs, tables=parts.tables)
        super().__init__(parts, context, collector)
        self._clock = clock
        self._assignment = SourceAssignment()
        self._finish: SourceFinishType | None = None
        self._changed: dict[str, SplitState] = {}

    def measure_at(self, way: Sequence[OperatorNode[Any, Any, Any]]) -> None:
        """Take event times from the operators behind the source, as `WatermarkSpec.behind` says.

        Rows are pushed through them at once, so the split that they come from is known.
        """
        places = [self, *way]
        if self.node.outputs[MAIN].time_column is None:
            places = places[1:]
        times = SplitTimes(self.task.operator, places[0].node.outputs[MAIN])
        self.collector.times, self.collector.observe = times, None
        places[0].collector.observe = times.note_read
        places[-1].collector.observe = times.note_passed

    def begin(
        self,
        terms: EpochTerms,
        assignment: SourceAssignment,
        outlets: Targets,
        fed: Iterable[pa.RecordBatch] | None = None,
    ) -> None:
        """Start an epoch with what the driver dealt to this subtask, and what it is fed."""
        self._assignment = assignment
        self._finish = None
        self._changed = {}
        self.begin_epoch(terms, None, outlets)
        self.context.splits = assignment.splits
        self.context.fed = fed
        self.context.budget = BudgetMeter(assignment.budget, self._clock)
        self.collector.budget = self.context.budget
        self.collector.times.begin_epoch(assignment.latest_micros)
        table = self.context.get_global_keyed_state(SPLITS_TABLE)
        known: dict[str, SplitState] = {}
        for name in (*(split.name for split in assignment.splits), *assignment.resting):
            state = table.get(name)
            if state is None:
                # Its time without rows is measured from its first epoch on.
                state = SplitState(last_active_micros=terms.processing_time_micros)
                table.insert(name, state)
                self._changed[name] = state
            known[name] = state
        self.context.split_states = known

    def run(self, terms: EpochTerms) -> None:
        """Call the source until it returns, then store how far each split was read."""
        assignment, context = self._assignment, self.context
        before = context.split_states.copy()
        is_reading = assignment.phase is SourcePhase.READING
        if is_reading and assignment.splits:
            self._finish = self.call("run", function=self._read)
            if self._finish is SourceFinishType.FINAL:
                for split in context.splits:
                    context.end_split(split.name)
        if assignment.phase is SourcePhase.ENDING or (terms.is_stop and is_reading):
            self.call("on_close", context)
        self.call("run", function=self._note_activity)
        table = context.get_global_keyed_state(SPLITS_TABLE)
        for name in assignment.forgotten:
            table.remove(name)
        for name, state in context.split_states.items():
            if state != before.get(name):
                table.insert(name, state)
                self._changed[name] = state

    def watermark(self) -> Watermark | None:
        """Return the watermark of the splits of this subtask."""
        if self._assignment.phase is not SourcePhase.READING:
            return EventTime(MAX_MICROS, self._assignment.watermark_micros)
        if self._assignment.holds_watermark:
            return None
        if self._assignment.watermark_micros is not None:
            return EventTime(self._assignment.watermark_micros)
        states, spec = self.context.split_states, self.node.watermark
        if all(state.ended for state in states.values()):
            ended_now = (state for state in self._changed.values() if state.ended)
            before = self._assignment.ended_micros
            return IDLE if spec is None else last_watermark(ended_now, spec, before)
        if spec is None:
            return None
        return watermark_of_splits(states, spec, self.context.processing_time_micros)

    def write(self, terms: EpochTerms) -> None:
        """Write the tables and report what was read."""
        self.checkpoint(terms.barrier, None)
        context, meter, spec = self.context, self.context.budget, self.node.watermark
        is_reading = self._assignment.phase is SourcePhase.READING
        if is_reading and spec is not None:
            # The epoch at that time finds that the split has become idle.
            now = context.processing_time_micros
            idle_micros = next_idle_micros(context.split_states, spec, now)
            if idle_micros is not None:
                context.wake_at(idle_micros)
        self.report = replace(
            self.report,
            rows_taken=meter.rows_read,
            wake_up_micros=context.wake_up_micros if is_reading else None,
            splits=self._changed,
            finish=self._finish,
            bytes_read=meter.bytes_read,
            has_more=self._finish is None and meter.is_spent,
        )

    def _read(self) -> SourceFinishType | None:
        """Call `run` of the source; fail the epoch if it takes too long."""
        budget = self._assignment.budget
        limit_seconds = (budget.wall_micros + budget.overrun_micros) / 1_000_000
        deadline = Deadline(limit_seconds)
        self.context.deadline = self.collector.deadline = deadline
        try:
            try:
                finish = self.instance.run(self.context, self.collector)
            finally:
                # Hooks besides `run` have no deadline.
                self.context.deadline = self.collector.deadline = Deadline()
                # A call that raised after its deadline overran too: it must not be retried.
                deadline.check()
        except SourceOverrunError as error:
            raise UserCodeError(
                f"source {self.task.operator!r} did not end its epoch: run() was still busy "
                f"{limit_seconds:g} s after it began. Return when ctx.budget.is_spent, and when "
                "there is nothing to read right now",
                code=ErrorCode.SOURCE_OVERRAN,
            ) from error
        if finish is not None and not isinstance(finish, SourceFinishType):
            raise UserError(
                f"source {self.task.operator!r} returned {finish!r} from run(): return a "
                "SourceFinishType, or None to go on in the next epoch",
                code=ErrorCode.INVALID_NUMBER,
            )
        return finish

    def _note_activity(self) -> None:
        """Note the processing time and the latest event time of every split that gave rows."""
        context, splits = self.context, self.context.splits
        only = splits[0].name if len(splits) == 1 else None
        # A split with planned rows is not idle, even if the budget left them unread.
        active = [s.name for s in splits if s.end is not None and s.end != s.start]
        now, spec = context.processing_time_micros, self.node.watermark
        active += (
            name
            for name in self._assignment.waiting
            if is_nearly_idle(context.split_state(name), spec, now)
        )
        for given, latest_micros in self.collector.latest_by_split.items():
            name = only if given is None else given
            if name is None:
                raise UserError(
                    f"source {self.task.operator!r} emitted rows without saying of which of "
                    "its splits: pass split= to collect",
                    code=ErrorCode.UNKNOWN_SPLIT,
                )
            active.append(name)
            if latest_micros is not None:
                context.note_event_time(name, latest_micros)
        for name in active:
            context.split_states[name] = replace(
                context.split_state(name),
                last_active_micros=context.processing_time_micros,
            )
        times = self.collector.times
        for name, state in context.split_states.items():
            given = None if name == only and None in times.latest else name
            context.split_states[name] = times.settled(given, state)
