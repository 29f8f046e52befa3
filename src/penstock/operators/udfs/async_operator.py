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

Row calls: a row together with its async call, and how both go into state and come back.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
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
from penstock.errors import ErrorCode, ExternalError, PenstockError, UserError
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import OperatorContext
from penstock.operators.udfs.async_calls import (
    CALLS_TABLE,
    AsyncCall,
    CallLimits,
    CallPool,
    CallTimeoutError,
    StoredCall,
    call_id,
    calls_table,
    own_calls,
    position_of,
    read_answer,
    read_row,
    to_ipc,
)
from penstock.operators.udfs.functions import (
    ColumnOperator,
    Evaluation,
    arguments_of,
    call_failed,
    describe_error,
    emit_results,
    has_null,
    is_row_fault,
    load_function,
    to_result_array,
)
from penstock.operators.udfs.specs import AsyncUdfSpec, ResultSpec
from penstock.state.tables.specs import TableSpec

_MOST_DOUBLINGS = 30


@dataclass(slots=True, eq=False, kw_only=True)
class RowCall(AsyncCall):
    """The call of one row that has not been emitted."""

    batch: pa.RecordBatch
    index: int
    """Which row of the batch."""
    stored: tuple[str, StoredCall] | None = None
    """Its name and entry in state, if an earlier epoch kept it."""
    reason: str | None = None
    """Why it has failed for good, if its row is to be sent aside."""

    @property
    def cut_offs(self) -> int:
        """How many epochs have ended before its answer came."""
        return 0 if self.stored is None else self.stored[1].cut_offs

    @property
    def row(self) -> pa.RecordBatch:
        """The row alone."""
        return self.batch.slice(self.index, 1)


def patience_of(calls: Iterable[RowCall], spec: AsyncUdfSpec) -> float:
    """Return for how many seconds the end of an epoch waits for calls.

    Whoever is asked anew in every epoch and takes longer than one would never answer. So a
    call that was cut off gets twice as long, until an epoch waits for its whole timeout.
    """
    most = max((call.cut_offs for call in calls), default=0)
    longer = spec.drain_seconds * (1 << min(most, _MOST_DOUBLINGS))
    return max(spec.drain_seconds, min(longer, spec.timeout_seconds))


def hold_of(call: RowCall, ctx: OperatorContext) -> int | None:
    """Return what the output's watermark must not pass while the row is not emitted.

    None for a row that was late when it came: the watermark had passed it already, and a
    watermark never goes back.
    """
    if call.stored is not None:
        return call.stored[1].hold_micros
    stream = ctx.inputs[0]
    if stream.time_column is None:
        return None
    micros = int(stream.event_times_of(call.row)[0])
    previous = ctx.previous_watermark
    return None if previous is not None and micros < previous.micros else micros


def restore_calls(spec: ResultSpec, ctx: OperatorContext) -> list[RowCall]:
    """Return the calls that this subtask owns of those that earlier epochs kept, in order."""
    kept = own_calls(ctx.get_global_keyed_state(CALLS_TABLE), ctx.task.key_range)
    calls = []
    for order, (name, stored) in enumerate(kept):
        row = read_row(stored, ctx)
        has_answer = stored.answer is not None
        call = RowCall(
            order=order,
            arguments=arguments_of(row, spec.inputs)[0],
            failures=stored.failures,
            is_answered=has_answer or stored.error is not None,
            value=read_answer(stored.answer) if stored.answer is not None else None,
            batch=row,
            index=0,
            stored=(name, stored),
            reason=stored.error,
        )
        calls.append(call)
    return calls


def keep_calls(calls: Sequence[RowCall], spec: ResultSpec, ctx: OperatorContext) -> None:
    """Put calls into state that this epoch does not emit."""
    view = ctx.get_global_keyed_state(CALLS_TABLE)
    for number, call in enumerate(calls):
        name, stored = call.stored or _first_entry(call, number, ctx)
        changed = msgspec.structs.replace(
            stored,
            failures=call.failures,
            cut_offs=stored.cut_offs + (not call.is_answered),
            answer=_answer_of(call, spec, ctx),
            error=call.reason,
        )
        view.insert(name, changed)


def forget_calls(calls: Sequence[RowCall], ctx: OperatorContext) -> None:
    """Remove calls from state whose rows are being emitted."""
    view = ctx.get_global_keyed_state(CALLS_TABLE)
    for call in calls:
        if call.stored is not None:
            view.remove(call.stored[0])


def evaluation_of(
    calls: Sequence[RowCall], spec: ResultSpec, ctx: OperatorContext
) -> Evaluation:
    """Return what came of answered calls."""
    good = [call for call in calls if call.reason is None]
    values = to_result_array(
        [call.value for call in good],
        spec,
        ctx.task.operator,
        [call.arguments for call in good],
    )
    reasons = ((index, call.reason) for index, call in enumerate(calls))
    return Evaluation(
        values, {index: reason for index, reason in reasons if reason is not None}
    )


def rows_of(calls: Sequence[RowCall]) -> pa.RecordBatch:
    """Return the rows of calls as one batch, in their order."""
    parts = []
    for _, group in groupby(calls, key=lambda call: id(call.batch)):
        run = list(group)
        batch = run[0].batch
        if len(run) < batch.num_rows:
            batch = batch.take(pa.array([call.index for call in run]))
        parts.append(batch)
    if len(parts) == 1:
        return parts[0]
    joined = pa.Table.from_batches(parts).combine_chunks().to_batches()
    if len(joined) > 1:
        raise UserError(
            "the rows of one epoch's calls have more than 2 GiB in one column: lower "
            "max_concurrency, or send the address of the large value instead",
            code=ErrorCode.UDF_INVALID,
        )
    return joined[0]


def _first_entry(
    call: RowCall, number: int, ctx: OperatorContext
) -> tuple[str, StoredCall]:
    row = call.row
    stored = StoredCall(
        epoch=int(ctx.epoch),
        number=number,
        position=position_of(row, ctx.inputs[0], ctx.task.key_range),
        row=to_ipc(row),
        hold_micros=hold_of(call, ctx),
    )
    return call_id(ctx.epoch, ctx.task.subtask, number), stored


def _answer_of(call: RowCall, spec: ResultSpec, ctx: OperatorContext) -> bytes | None:
    """Return the answer of a call that must wait for an earlier one."""
    if not call.is_answered or call.reason is not None:
        return None
    value = to_result_array([call.value], spec, ctx.task.operator, [call.arguments])
    return to_ipc(pa.RecordBatch.from_arrays([value], names=["answer"]))


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

    @override
    def tables(self) -> Sequence[TableSpec]:
        return (calls_table(),)

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Start the calls of all rows, waiting for room, and emit what is answered by then."""
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

    @override
    def on_close(
        self, final: Stop | EndOfData, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Wait for all answers at the end of the data; a stopped job asks again later."""
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
        """Ask what earlier epochs have kept, before anything else of the epoch."""
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
        """Wait until all calls are answered, or the deadline is over, and emit."""
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
        """Note the answers that came; raise the first one that fails the epoch."""
        for call in self._pool.take_finished():
            if call.error is None or not isinstance(call, RowCall):
                continue
            if not is_row_fault(call.error, self.config):
                self._pool.cancel_all()
                raise self._failure_of(call, call.error, ctx) from call.error
            call.reason = describe_error(call.error)

    def _failure_of(
        self, call: AsyncCall, error: BaseException, ctx: OperatorContext
    ) -> PenstockError:
        operator = ctx.task.operator
        if not isinstance(error, CallTimeoutError):
            return call_failed(error, self.config, operator, call.arguments)
        return ExternalError(
            f"UDF {self.config.name!r} of operator {operator!r} gave {error} when called with "
            f"{call.arguments!r:.200}, {call.failures} times. See to the service it calls, "
            'raise timeout_seconds or retries, or send such rows aside with on_error="bad"',
            code=ErrorCode.UDF_TIMED_OUT,
            operator=operator,
            udf=self.config.name,
        )

    def _emit(self, ctx: OperatorContext, collector: ArrowCollector) -> None:
        """Emit the rows whose turn it is, and forget those that were in state."""
        ready = self._pop_ready()
        if not ready:
            return
        forget_calls(ready, ctx)
        evaluation = evaluation_of(ready, self.config, ctx)
        emit_results(rows_of(ready), evaluation, ctx, collector)

    def _pop_ready(self) -> list[RowCall]:
        if self.config.is_ordered:
            unready = (
                index for index, call in enumerate(self._open) if not call.is_answered
            )
            turn = next(unready, len(self._open))
            ready, self._open = self._open[:turn], self._open[turn:]
            return ready
        ready = [call for call in self._open if call.is_answered]
        self._open = [call for call in self._open if not call.is_answered]
        return ready


def build_async_udf(config: AsyncUdfSpec) -> AsyncUdfOperator:
    """Return the operator that calls an `async def` function."""
    function = load_function(config, config.function, wants_async=True)
    return AsyncUdfOperator(config, function, SystemClock())
