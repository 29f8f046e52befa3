"""Row calls: a row together with its async call, and how both go into state and come back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec
import pyarrow as pa

from penstock.errors import ErrorCode, UserError
from penstock.operators.context import OperatorContext
from penstock.operators.udfs.async_calls import AsyncCall
from penstock.operators.udfs.evaluation import arguments_of
from penstock.operators.udfs.results import Evaluation, to_result_array
from penstock.operators.udfs.specs import AsyncUdfSpec, ResultSpec
from penstock.operators.udfs.stored_calls import (
    CALLS_TABLE,
    StoredCall,
    call_id,
    own_calls,
    position_of,
    read_answer,
    read_row,
    to_ipc,
)

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
