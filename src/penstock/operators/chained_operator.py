"""ChainedOperator: an operator with inputs as a node of a chain."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
from typing_extensions import override

from penstock.core.ids import TaskInfo
from penstock.core.watermark import (
    IDLE,
    MAX_EVENT_TIME,
    Advance,
    EndOfData,
    EventTime,
    Idle,
    InputWatermark,
    Stop,
    Watermark,
    advance,
    event_time_of,
    has_ended,
)
from penstock.errors import ErrorCode, PenstockError, StateError, UserError
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import OperatorContext
from penstock.operators.nodes import (
    EpochTerms,
    NodeParts,
    OperatorNode,
    OperatorReport,
    Outlets,
)
from penstock.operators.operator import ArrowOperator
from penstock.operators.timers import Timers
from penstock.state.tables.specs import TimeDomain
from penstock.state.tables.table import Frontier


class InputPort:
    """One input of a node, as whoever feeds it sees it."""

    __slots__ = ("_index", "_node")

    def __init__(self, node: "ChainedOperator", index: int) -> None:
        self._node = node
        self._index = index

    def take(self, batch: pa.RecordBatch) -> None:
        """Let the operator process some rows."""
        self._node.process(self._index, batch)


class ChainedOperator(OperatorNode[ArrowOperator, OperatorContext, ArrowCollector]):
    """An operator that takes batches and signals. Its hooks are called here and nowhere else."""

    def __init__(self, parts: NodeParts[ArrowOperator], collector: ArrowCollector) -> None:
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
        self._tick_micros = _micros_of(parts.instance.tick_interval(), task)
        self._total_inputs = len(node.inputs)
        self._last_output: EventTime | None = None
        self._previous: tuple[InputWatermark, ...] = ()
        self._advance = Advance((), None)
        self._wake_up_micros: int | None = None
        self._is_closed = False
        self.rows_taken = 0

    def begin(
        self, terms: EpochTerms, previous: Sequence[InputWatermark], outlets: Outlets
    ) -> None:
        """Start an epoch from what the last one left: `previous` is the manifest's."""
        self._previous = _fit(tuple(previous), len(self.node.inputs))
        self.rows_taken = 0
        self._is_closed = self.had_ended
        known = event_time_of(self._previous)
        if self._last_output is not None and (known is None or known < self._last_output):
            # An epoch begins at what all subtasks have reached; this one was ahead of them.
            self._last_output = known
        micros = None if known is None else known.micros
        frontier = Frontier(
            micros, terms.processing_time_micros, terms.previous_processing_time_micros
        )
        self.begin_epoch(terms, frontier, outlets)
        for domain, timers in self.timers.items():
            is_event_time = domain is TimeDomain.EVENT_TIME
            timers.begin_epoch(
                micros if is_event_time else terms.previous_processing_time_micros
            )
        self.start()

    @property
    def had_ended(self) -> bool:
        """Tell whether the operator was closed for good in an earlier epoch."""
        return has_ended(self._previous)

    def process(self, index: int, batch: pa.RecordBatch) -> None:
        """Give the operator some rows."""
        if self._is_closed:
            raise self._refuse_rows(index, batch)
        self.rows_taken += batch.num_rows
        try:
            self.instance.process_batch_index(
                index, self._total_inputs, batch, self.context, self.collector
            )
        except Exception as error:
            raise self.fail(error, "process_batch", batch) from error

    def advance(self, spoken: Sequence[Watermark | None]) -> Watermark | None:
        """Tell the operator how far event time has come; return what it passes on."""
        self._advance = advance(self._previous, spoken)
        watermark = self._advance.watermark
        self.context.watermark = self._advance.event_time
        if watermark is None and not self.instance.generates_watermarks():
            return None
        answer = self.call(
            "handle_watermark",
            self.instance.handle_watermark,
            IDLE if watermark is None else watermark,
            self.context,
            self.collector,
        )
        return MAX_EVENT_TIME if self._advance.has_ended else self._checked(answer)

    def rest(self, spoken: Sequence[Watermark | None]) -> None:
        """Pass an epoch after the operator was closed for good: nothing is called."""
        self._advance = advance(self._previous, spoken)
        self.context.watermark = self._advance.event_time

    def fire_timers(self, terms: EpochTerms) -> None:
        """Hand over the timers that are due, until none is left."""
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
                        "handle_timers",
                        self.instance.handle_timers,
                        due,
                        self.context,
                        self.collector,
                        batch=due.keys,
                    )

    def tick(self, terms: EpochTerms) -> None:
        """Call `handle_tick` if a boundary of its interval was crossed since the last epoch."""
        if self._tick_micros is None:
            return
        tick = terms.processing_time_micros // self._tick_micros
        before = terms.previous_processing_time_micros
        if before is None or before // self._tick_micros < tick:
            self.call(
                "handle_tick", self.instance.handle_tick, tick, self.context, self.collector
            )
        self.context.wake_at((tick + 1) * self._tick_micros)

    def close(self, terms: EpochTerms) -> None:
        """Call `on_close` in the epoch that ends the input or the run."""
        final = (
            EndOfData() if self._advance.has_ended else Stop() if terms.is_stop else None
        )
        if final is not None:
            self.call(
                "on_close", self.instance.on_close, final, self.context, self.collector
            )

    def write(self, terms: EpochTerms) -> None:
        """Let the operator finish its epoch and write its tables."""
        if not self.had_ended:
            self.call(
                "handle_checkpoint",
                self.instance.handle_checkpoint,
                terms.barrier,
                self.context,
                self.collector,
            )
        # Before the tables are written: they may be closed afterwards.
        self._wake_up_micros = self._next_wake_up()
        self.checkpoint(terms.barrier, self._advance.event_time)

    def _next_wake_up(self) -> int | None:
        if self._advance.has_ended:
            return None
        wake_ups = [self.context.wake_up_micros]
        by_clock = self.timers.get(TimeDomain.PROCESSING_TIME)
        if by_clock is not None:
            wake_ups.append(by_clock.next_due_micros())
        return min((micros for micros in wake_ups if micros is not None), default=None)

    @override
    def report(self) -> OperatorReport:
        """Say what was done in the epoch that was just checkpointed."""
        return OperatorReport(
            self.task.operator,
            self.checkpointed(),
            inputs=self._advance.inputs,
            rows_emitted=dict(self.collector.rows_emitted),
            rows_taken=self.rows_taken,
            counters=dict(self.context.counters),
            wake_up_micros=self._wake_up_micros,
            has_fired=any(timers.has_fired for timers in self.timers.values()),
        )

    @override
    def forget(self) -> None:
        """Drop the operator, and with it what it said last."""
        self._last_output = None
        super().forget()

    def _refuse_rows(self, index: int, batch: pa.RecordBatch) -> PenstockError:
        """Refuse rows after the end of data: the operator was closed and would lose them."""
        error = StateError(
            f"operator {self.task.operator!r} got rows at input {index} after all its inputs "
            "had ended and it was closed for good: a source cannot go on, nor a new one be "
            "put in front of it. Give the operator a new name, or restore an epoch before the "
            "end",
            code=ErrorCode.JOB_FINISHED,
        )
        return self.fail(error, "process_batch", batch)

    def _checked(self, answer: Any) -> Watermark | None:
        """Refuse a watermark that takes back what was promised, or is none at all."""
        if answer is None:
            return None
        if isinstance(answer, Idle):
            return answer
        problem = None
        if not isinstance(answer, EventTime):
            problem = f"returned {answer!r}, which is no watermark"
        elif answer == MAX_EVENT_TIME:
            problem = "returned the watermark that only the end of all data may have"
        elif self._is_less(answer):
            problem = f"went back in time from {self._last_output} to {answer}"
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

    def _is_less(self, answer: EventTime) -> bool:
        """Tell whether a promise is taken back; partitions that move or wake up may do so."""
        said = self._last_output
        return (
            said is not None and answer < said and not self.instance.generates_watermarks()
        )


def _fit(previous: tuple[InputWatermark, ...], count: int) -> tuple[InputWatermark, ...]:
    """Return the known watermarks for as many inputs as there are now.

    Inputs of an operator that got more or fewer of them start where the operator stood, so
    that its own watermark does not go back.
    """
    if len(previous) == count:
        return previous
    known = event_time_of(previous)
    return (InputWatermark(None if known is None else known.micros),) * count


def _micros_of(interval: timedelta | None, task: TaskInfo) -> int | None:
    if interval is None:
        return None
    micros = interval // timedelta(microseconds=1)
    if micros <= 0:
        raise UserError(
            f"operator {task.operator!r} wants a tick every {interval}: return a positive "
            "interval from tick_interval, or None",
            code=ErrorCode.INVALID_NUMBER,
            operator=task.operator,
        )
    return micros
