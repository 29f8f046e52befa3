"""The operator that adds a column computed by an `async def` function.

How it works

- A batch's rows are called in order, at most `max_concurrency` at a time; `process_batch`
  comes back when the last of them has started. So no more than that many calls are without
  an answer at the end of the input, and a slow service slows the source down.
- Behind the input, before it speaks of the watermark, the operator waits for answers until
  `drain_seconds` are over. Calls that have none then are cancelled and kept in state, and
  are the first ones to be asked in the next epoch, which is asked for at once and waits
  longer for them: every call has its whole timeout in the end.
- The watermark does not pass the event time of a row that has not been emitted. A row that
  was late when it came holds nothing back: the promise it breaks was made before.
- At the end of the data it waits for all answers; each call is bounded by its timeouts.
- Between epochs nothing is under way, so an instance can be forgotten at any time.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.core.clock import Clock
from penstock.core.schema import StreamSchema
from penstock.core.signals import (
    MAX_EVENT_TIME,
    CheckpointBarrier,
    EndOfData,
    EventTime,
    Stop,
    Watermark,
)
from penstock.errors import ErrorCode, ExternalError, PenstockError
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import OperatorContext
from penstock.operators.display import DisplayableOperator
from penstock.operators.operator import ArrowOperator
from penstock.operators.udfs.async_calls import (
    AsyncCall,
    CallLimits,
    CallPool,
    CallTimeoutError,
)
from penstock.operators.udfs.evaluation import arguments_of, has_null
from penstock.operators.udfs.operator import display_of, emit_results
from penstock.operators.udfs.results import call_failed, describe_error, is_row_fault
from penstock.operators.udfs.row_calls import (
    RowCall,
    evaluation_of,
    forget_calls,
    hold_of,
    keep_calls,
    patience_of,
    restore_calls,
    rows_of,
)
from penstock.operators.udfs.specs import AsyncUdfSpec
from penstock.operators.udfs.stored_calls import calls_table
from penstock.state.tables.specs import TableSpec


class AsyncUdfOperator(ArrowOperator):
    """Calls an async function for every row, in order or not, and keeps what has no answer."""

    def __init__(
        self,
        spec: AsyncUdfSpec,
        function: Callable[..., Awaitable[Any]],
        clock: Clock,
        *,
        poll_seconds: float = 0.05,
    ) -> None:
        self.spec = spec
        self._clock = clock
        self._poll_seconds = poll_seconds
        """How often the clock is asked while waiting: it need not be the machine's."""
        limits = CallLimits(
            spec.max_concurrency,
            spec.timeout_seconds,
            spec.retries,
            spec.retry_delay_seconds,
            spec.is_ordered,
        )
        self._pool = CallPool(function, limits)
        self._open: list[RowCall] = []
        """The calls whose rows this epoch has not emitted yet, in order."""
        self._call_count = 0
        self._has_begun = False
        self._has_drained = False

    def name(self) -> str:
        """Return the kind."""
        return self.spec.kind

    def display(self) -> DisplayableOperator:
        """Show which function reads what, and how it is called."""
        shown = display_of(self.spec)
        facts = {
            "order": "as it came" if self.spec.is_ordered else "any",
            "max_concurrency": str(self.spec.max_concurrency),
            "timeout": f"{self.spec.timeout_seconds} s",
        }
        return DisplayableOperator(shown.name, {**shown.fields, **facts})

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the input with the new column."""
        return self.spec.output_schema(inputs[0])

    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        """Return the stream of bad rows, if they are wanted."""
        return self.spec.side_outputs(inputs[0])

    def tables(self) -> Sequence[TableSpec]:
        """Return the table of calls that are to be asked again."""
        return (calls_table(),)

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Start the calls of all rows, waiting for room, and emit what is answered by then."""
        self._begin(ctx)
        skips_nulls = self.spec.nulls == "skip"
        self._add(
            RowCall(
                order=self._call_count + index,
                arguments=arguments,
                is_answered=skips_nulls and has_null(arguments),
                batch=batch,
                index=index,
            )
            for index, arguments in enumerate(arguments_of(batch, self.spec.inputs))
        )
        while not self._pool.wait_started():
            self._take_answers(ctx)
        self._take_answers(ctx)
        self._emit(ctx, collector)

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark | None:
        """Wait for answers, and hold back for rows that have none."""
        self._begin(ctx)
        is_last = watermark == MAX_EVENT_TIME
        self._drain(ctx, collector, waits_for_all=is_last)
        holds = [hold_of(call, ctx) for call in self._open]
        known = [micros for micros in holds if micros is not None]
        if not known:
            return watermark
        # Not idle either: rows will follow.
        reached = watermark if isinstance(watermark, EventTime) else ctx.watermark
        return None if reached is None else min(reached, EventTime(min(known)))

    def on_close(
        self, final: Stop | EndOfData, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Wait for all answers at the end of the data; a stopped job asks again later."""
        if isinstance(final, EndOfData):
            self._begin(ctx)
            self._drain(ctx, collector, waits_for_all=True)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Cancel what has no answer and keep it for the next epoch."""
        del barrier
        self._begin(ctx)
        if not self._has_drained:
            self._drain(ctx, collector, waits_for_all=False)
        self._pool.cancel_all()
        self._take_answers(ctx)
        self._emit(ctx, collector)
        if self._open:
            keep_calls(self._open, self.spec, ctx)
            ctx.count("calls_kept", len(self._open))
            ctx.wake_at(ctx.processing_time_micros)
        self._open = []
        self._call_count = 0
        self._has_begun = self._has_drained = False

    def release(self) -> None:
        """End the thread that makes the calls."""
        self._pool.close()

    def _begin(self, ctx: OperatorContext) -> None:
        """Ask what earlier epochs have kept, before anything else of the epoch."""
        if self._has_begun:
            return
        self._has_begun = True
        self._add(restore_calls(self.spec, ctx))

    def _add(self, calls: Iterable[RowCall]) -> None:
        added = list(calls)
        self._open += added
        self._call_count += len(added)
        self._pool.submit(call for call in added if not call.is_answered)

    def _drain(
        self, ctx: OperatorContext, collector: ArrowCollector, *, waits_for_all: bool
    ) -> None:
        """Wait until all calls are answered, or the deadline is over, and emit."""
        deadline = None
        if not waits_for_all:
            patience = patience_of(self._open, self.spec)
            deadline = self._clock.now_micros() + round(patience * 1_000_000)
        while not self._pool.wait_idle(None if deadline is None else self._poll_seconds):
            self._take_answers(ctx)
            if deadline is not None and self._clock.now_micros() >= deadline:
                break
        self._take_answers(ctx)
        self._emit(ctx, collector)
        self._has_drained = True

    def _take_answers(self, ctx: OperatorContext) -> None:
        """Note the answers that came; raise the first one that fails the epoch."""
        for call in self._pool.take_finished():
            if call.error is None or not isinstance(call, RowCall):
                continue
            if not is_row_fault(call.error, self.spec):
                self._pool.cancel_all()
                raise self._failure_of(call, call.error, ctx) from call.error
            call.reason = describe_error(call.error)

    def _failure_of(
        self, call: AsyncCall, error: BaseException, ctx: OperatorContext
    ) -> PenstockError:
        operator = ctx.task.operator
        if not isinstance(error, CallTimeoutError):
            return call_failed(error, self.spec, operator, call.arguments)
        return ExternalError(
            f"UDF {self.spec.name!r} of operator {operator!r} gave {error} when called with "
            f"{call.arguments!r:.200}, {call.failures} times. See to the service it calls, "
            'raise timeout_seconds or retries, or send such rows aside with on_error="bad"',
            code=ErrorCode.UDF_TIMED_OUT,
            operator=operator,
            udf=self.spec.name,
        )

    def _emit(self, ctx: OperatorContext, collector: ArrowCollector) -> None:
        """Emit the rows whose turn it is, and forget those that were in state."""
        ready = self._pop_ready()
        if not ready:
            return
        forget_calls(ready, ctx)
        evaluation = evaluation_of(ready, self.spec, ctx)
        emit_results(rows_of(ready), evaluation, ctx, collector)

    def _pop_ready(self) -> list[RowCall]:
        if self.spec.is_ordered:
            unready = (
                index for index, call in enumerate(self._open) if not call.is_answered
            )
            turn = next(unready, len(self._open))
            ready, self._open = self._open[:turn], self._open[turn:]
            return ready
        ready = [call for call in self._open if call.is_answered]
        self._open = [call for call in self._open if not call.is_answered]
        return ready
