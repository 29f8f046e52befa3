"""The operator that adds a column computed by an `async def` function.

How it works

- The calls of a batch's rows start in order, at most `max_concurrency` at a time;
  `process_batch` returns when the last of them has started. So at most that many calls are
  without an answer at the end of the input, and a slow service slows the source down.
- Behind the input, before it passes the watermark on, the operator waits up to `drain`
  for answers. Calls without an answer are then cancelled and kept in state. The next epoch is
  requested at once, makes these calls first and waits longer for them, so every call has its
  whole timeout in the end.
- The watermark does not pass the event time of a row that has not been emitted. A row that
  was late when it came does not hold it back, because the watermark had passed it already.
- At the end of the data the operator waits for all answers; each call is bounded by its
  timeouts.
- Between epochs no call is under way, so an instance can be dropped there.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any

import pyarrow as pa
from typing_extensions import override

from penstock.core.clock import Clock, SystemClock
from penstock.core.watermark import (
    MAX_EVENT_TIME,
    CheckpointBarrier,
    EndOfData,
    EventTime,
    Stop,
    Watermark,
)
from penstock.errors import ErrorCode, ExternalError
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.udfs.async_calls import (
    CALLS_TABLE,
    CallPool,
    CallTimeoutError,
    RowCall,
    StoredCall,
    hold_of,
    keep_calls,
    patience_of,
    restore_calls,
    rows_of,
)
from penstock.operators.udfs.functions import (
    ColumnOperator,
    Evaluation,
    arguments_of,
    has_null,
    load_function,
    to_result_array,
)
from penstock.operators.udfs.specs import AsyncUdfSpec
from penstock.state.tables.specs import TableSpec, global_table


class AsyncUdfOperator(ColumnOperator[AsyncUdfSpec]):
    """Calls an async function for every row, in order or not, and keeps what has no answer."""

    def __init__(
        self,
        spec: AsyncUdfSpec,
        function: Callable[..., Awaitable[Any]],
        clock: Clock,
        *,
        poll_seconds: float = 0.05,
    ) -> None:
        super().__init__(spec)
        self._clock = clock
        self._poll_seconds = poll_seconds
        """How often the clock is read while waiting: it may be another than the machine's."""
        self._pool = CallPool(function, spec)
        self._open: list[RowCall] = []
        """The calls whose rows this epoch has not emitted yet, in order."""
        self._call_count = 0
        self._has_begun = False
        self._has_drained = False

    @override
    def tables(self) -> Sequence[TableSpec]:
        description = "async calls to be asked again"
        return (global_table(CALLS_TABLE, str, StoredCall, description=description),)

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Start the calls of all rows, and emit what is answered by then."""
        self._begin(ctx)
        skips_nulls = self.config.nulls == "skip"
        self._add(
            RowCall(
                order=self._call_count + index,
                arguments=arguments,
                is_answered=skips_nulls and has_null(arguments),
                batch=batch,
                index=index,
            )
            for index, arguments in enumerate(arguments_of(batch, self.config.inputs))
        )
        while not self._pool.wait_started():
            self._take_answers(ctx)
        self._take_answers(ctx)
        self._emit(ctx, collector)

    @override
    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark | None:
        """Wait for answers; return a watermark that does not pass rows without one."""
        self._begin(ctx)
        is_last = watermark == MAX_EVENT_TIME
        self._drain(ctx, collector, waits_for_all=is_last)
        holds = [hold_of(call, ctx) for call in self._open]
        known = [micros for micros in holds if micros is not None]
        if not known:
            return watermark
        # The output is not idle either, because rows will follow.
        reached = watermark if isinstance(watermark, EventTime) else ctx.watermark
        return None if reached is None else min(reached, EventTime(min(known)))

    @override
    def on_close(
        self, final: Stop | EndOfData, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Wait for all answers at the end of the data; a stopped job calls again later."""
        if isinstance(final, EndOfData):
            self._begin(ctx)
            self._drain(ctx, collector, waits_for_all=True)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Cancel what has no answer and keep it for the next epoch."""
        self._begin(ctx)
        if not self._has_drained:
            self._drain(ctx, collector, waits_for_all=False)
        self._pool.cancel_all()
        self._take_answers(ctx)
        self._emit(ctx, collector)
        if self._open:
            keep_calls(self._open, self.config, ctx)
            ctx.count("calls_kept", len(self._open))
            ctx.wake_at(ctx.processing_time_micros)
        self._open = []
        self._call_count = 0
        self._has_begun = self._has_drained = False

    @override
    def release(self) -> None:
        self._pool.close()

    def _begin(self, ctx: OperatorContext) -> None:
        """Make the calls that earlier epochs have kept, before all others of the epoch."""
        if self._has_begun:
            return
        self._has_begun = True
        self._add(restore_calls(self.config, ctx))

    def _add(self, calls: Iterable[RowCall]) -> None:
        added = list(calls)
        self._open += added
        self._call_count += len(added)
        self._pool.submit(call for call in added if not call.is_answered)

    def _drain(
        self, ctx: OperatorContext, collector: ArrowCollector, *, waits_for_all: bool
    ) -> None:
        """Wait until all calls are answered or the deadline has passed, and emit."""
        deadline = None
        if not waits_for_all:
            patience = patience_of(self._open, self.config)
            deadline = self._clock.now_micros() + round(patience * 1_000_000)
        while not self._pool.wait_idle(None if deadline is None else self._poll_seconds):
            self._take_answers(ctx)
            if deadline is not None and self._clock.now_micros() >= deadline:
                break
        self._take_answers(ctx)
        self._emit(ctx, collector)
        self._has_drained = True

    def _take_answers(self, ctx: OperatorContext) -> None:
        """Note the answers that came; raise the first error that fails the epoch."""
        for call in self._pool.take_finished():
            error, name, operator = call.error, self.config.name, ctx.task.operator
            if error is None or not isinstance(call, RowCall):
                continue
            if not self.is_row_fault(error):
                self._pool.cancel_all()
                if isinstance(error, CallTimeoutError):
                    raise ExternalError(
                        f"UDF {name!r} of operator {operator!r} gave {error} when called with "
                        f"{call.arguments!r:.200}, {call.failures} times. See to the service "
                        "it calls, raise timeout or retries, or send such rows aside "
                        'with on_bad="divert"',
                        code=ErrorCode.UDF_TIMED_OUT,
                        operator=operator,
                        udf=name,
                    ) from error
            call.reason = self.reason_for(error, operator, call.arguments)

    def _emit(self, ctx: OperatorContext, collector: ArrowCollector) -> None:
        """Emit the rows that may be emitted, and remove their entries from state."""
        if self.config.is_ordered:
            ready = list(takewhile(lambda call: call.is_answered, self._open))
            self._open = self._open[len(ready) :]
        else:
            ready = [call for call in self._open if call.is_answered]
            self._open = [call for call in self._open if not call.is_answered]
        if not ready:
            return
        view = ctx.get_global_keyed_state(CALLS_TABLE)
        for call in ready:
            if call.stored is not None:
                view.remove(call.stored[0])
        good = [call for call in ready if call.reason is None]
        results = [call.value for call in good]
        arguments = [call.arguments for call in good]
        values = to_result_array(results, self.config, ctx.task.operator, arguments)
        errors = {i: call.reason for i, call in enumerate(ready) if call.reason is not None}
        self.emit(rows_of(ready), Evaluation(values, errors), ctx, collector)


def build_async_udf(config: AsyncUdfSpec) -> AsyncUdfOperator:
    """Return the operator that calls an `async def` function."""
    return AsyncUdfOperator(config, load_function(config), SystemClock())
