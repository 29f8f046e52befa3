"""Rows ↔ bytes in Arrow's IPC stream form, and the sink that stages its rows as such.

For small outputs: the rows of an epoch are kept in its checkpoint until they are committed.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.core.signals import CheckpointBarrier
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.state.tables.specs import TableSpec, global_table

STAGED = "staged"
"""The table whose commit data carries the rows of an epoch."""


def to_bytes(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Return rows as one stream, schema first."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def from_bytes(data: bytes) -> pa.Table:
    """Return the rows of a stream; they refer to `data` instead of copying it."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()


def staged_tables(commit_data: Mapping[str, Mapping[int, bytes]]) -> list[pa.Table]:
    """Return the staged rows of all subtasks of an epoch, in order of subtask."""
    staged = commit_data.get(STAGED, {})
    return [from_bytes(staged[subtask]) for subtask in sorted(staged)]


class StagingSink(ArrowOperator):
    """A sink that hands the rows of an epoch to its commit. Subclasses say what that does."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        """The rows of this epoch so far; empty between epochs."""

    def output_schema(self, inputs: Sequence[StreamSchema]) -> None:
        """Return None: it is a sink."""
        del inputs

    def tables(self) -> Sequence[TableSpec]:
        """Declare the table that carries the commit data."""
        return [global_table(STAGED, str, bytes, uses_two_phase_commit=True)]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Keep the rows until the epoch is complete."""
        del ctx, collector
        self._batches.append(batch)

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Stage the epoch's rows; without rows there is nothing to commit."""
        del barrier, collector
        batches, self._batches = self._batches, []
        if batches:
            ctx.insert_committing_data(STAGED, to_bytes(batches, batches[0].schema))
