"""Calls in state: what of an async call outlives an epoch that ended before its answer.

Kept in a global table under `epoch-subtask-number` of the epoch that first kept the call: a
name nobody gives again, whatever the parallelism becomes. Each call has a position in key
space, and the subtask that owns this position owns the call: it alone asks again, and
removes the entry with the answer.
"""

from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.batch import to_batches
from penstock.core.ids import Epoch, KeyRange, Subtask
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, StateError
from penstock.operators.context import OperatorContext
from penstock.state.tables.global_keyed_view import GlobalKeyedView
from penstock.state.tables.specs import TableSpec, global_table

CALLS_TABLE = "penstock.calls"


class StoredCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call without an answer, or one whose answer waits its turn. New fields need defaults."""

    epoch: int
    """The epoch that first kept it; orders calls, with `number`."""
    number: int
    """Its place among the calls that its subtask first kept in that epoch."""
    position: int
    """A key hash: says who owns the call after a rescale."""
    row: bytes
    """The whole input row as an Arrow IPC stream."""
    hold_micros: int | None = None
    """What the output's watermark must not pass; None if the row was late when it came."""
    failures: int = 0
    """How many attempts have failed."""
    cut_offs: int = 0
    """How many epochs have ended before its answer came."""
    answer: bytes | None = None
    """The result as an Arrow IPC stream of one value, if there is one."""
    error: str | None = None
    """Why there is no result, if the call has failed for good."""


def calls_table() -> TableSpec:
    """Declare the table."""
    return global_table(
        CALLS_TABLE, str, StoredCall, description="async calls to be asked again"
    )


def call_id(epoch: Epoch, subtask: Subtask, number: int) -> str:
    """Return the name of a call that is kept for the first time."""
    return f"{epoch}-{subtask.index}-{number}"


def own_calls(
    view: GlobalKeyedView[str, StoredCall], key_range: KeyRange
) -> list[tuple[str, StoredCall]]:
    """Return the calls a subtask owns, in the order their rows came."""
    found = [(name, call) for name, call in view.items() if call.position in key_range]
    return sorted(found, key=lambda item: (item[1].epoch, item[1].number, item[0]))


def position_of(row: pa.RecordBatch, stream: StreamSchema, key_range: KeyRange) -> int:
    """Return the position of a row's call: its key hash, else the start of the own range.

    A row whose key belongs to another subtask stays here: it was not brought by its key, and
    only this subtask holds the watermark back for it.
    """
    if stream.key_columns:
        key_hash = int(stream.key_hashes_of(row)[0])
        if key_hash in key_range:
            return key_hash
    return key_range.start


def to_ipc(batch: pa.RecordBatch) -> bytes:
    """Return a few rows as bytes that describe themselves."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def read_row(stored: StoredCall, ctx: OperatorContext) -> pa.RecordBatch:
    """Return the row of a stored call in the schema that the input has now."""
    rows = pa.ipc.open_stream(pa.py_buffer(stored.row)).read_all()
    try:
        return to_batches(rows, ctx.inputs[0].schema)[0]
    except (SchemaError, pa.ArrowException) as error:
        raise StateError(
            f"operator {ctx.task.operator!r} has kept a call whose row does not fit its input "
            f"any more: {error}. Let the earlier version of the pipeline answer its calls "
            "before the input changes, or give the operator another name",
            code=ErrorCode.MIGRATION_FAILED,
            operator=ctx.task.operator,
        ) from error


def read_answer(answer: bytes) -> Any:
    """Return a stored answer as an Arrow scalar, which no Python type would cut short."""
    return pa.ipc.open_stream(pa.py_buffer(answer)).read_all().column(0)[0]
