"""StreamLookup: rows with what a small, changing table says about their key.

The right side is a changelog that every subtask gets whole. Each holds all rows of the table in
memory. The changes of an epoch are applied before its left rows are looked up, so these see the
table as it is at the end of their epoch, whichever side came first. What was emitted is never
taken back: a later change is seen by later rows.

The table is kept in a global table, cut into pieces by the hash of its key. A subtask writes the
pieces whose first hash is in its key range, those that changed; all of them read all pieces
when they start. So a change costs a piece, not the table, and any parallelism can go on.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.batch import empty_batch, from_ipc, to_batches, to_ipc
from penstock.core.key_hash import hash_keys
from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.core.watermark import CheckpointBarrier
from penstock.errors import ErrorCode, SchemaError, StateError, UserError
from penstock.operators.changes import are_added
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.joins.lookup_join import LookupConfig, LookupConfigT, LookupOperator
from penstock.operators.joins.lookup_rows import LookupRows, in_one_batch, in_plain_layouts
from penstock.operators.joins.sides import plain
from penstock.state.tables.global_keyed import GlobalKeyedView
from penstock.state.tables.sorted_rows import Positions, equal_keys, stable_order
from penstock.state.tables.specs import TableSpec, global_table

_PIECE_BITS = 8
"""The table is kept in 256 pieces: a change of one row writes about that part of it."""
_SHIFT = np.uint64(64 - _PIECE_BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLookupConfig(LookupConfig):
    """The config of kind "lookup_stream"."""

    kind: ClassVar[str] = "lookup_stream"

    table_key: tuple[str, ...]
    """The columns that tell the rows of the table apart."""

    @override
    def shown(self) -> Mapping[str, str]:
        key = ", ".join(self.table_key)
        shown = {**self.shown_keys(), "looks up": f"the last row per {key} of a stream"}
        return {**shown, **self.shown_kept("until others replace them")}


class HeldLookup(LookupOperator[LookupConfigT], Generic[LookupConfigT]):
    """Holds a small table that its second input brings, and joins the rows of each epoch with it.

    Rows wait until the second input is complete; the table is kept as Arrow streams by number.
    """

    table_name: ClassVar[str]
    """The global table; kinds that number their streams differently have different ones."""

    def __init__(self, config: LookupConfigT) -> None:
        super().__init__(config)
        self._waiting: list[pa.RecordBatch] = []
        self._changes: list[pa.RecordBatch] = []
        self.set_rows(empty_batch(self.right.arrow))

    @abstractmethod
    def apply(self, changes: Sequence[pa.RecordBatch], ctx: OperatorContext) -> None:
        """Change the table by all that the second input brought in an epoch, and keep it."""

    def set_rows(self, rows: pa.RecordBatch) -> None:
        """Hold other rows."""
        self.rows = rows
        """All rows of the table."""
        self._table = LookupRows(rows, self.right.key_columns)
        """The same by the key of the join."""

    def hold(self, pieces: Iterable[bytes], ctx: OperatorContext) -> None:
        """Hold the rows of several Arrow streams, or refuse those of another table."""
        schema = self.right.arrow
        parts: list[pa.RecordBatch] = []
        try:
            for data in pieces:
                parts += to_batches(from_ipc(data), schema)
        except (SchemaError, pa.ArrowException) as error:
            raise StateError(
                f"operator {ctx.task.operator!r} keeps rows that do not fit its right side any "
                f"more: {error}. Give the join another name: it then begins with an empty table",
                code=ErrorCode.MIGRATION_FAILED,
                operator=ctx.task.operator,
            ) from error
        self.set_rows(in_one_batch(parts, schema))

    @override
    def tables(self) -> Sequence[TableSpec]:
        about = "the rows that are looked up"
        return [global_table(self.table_name, int, bytes, description=about)]

    def view(self, ctx: OperatorContext) -> GlobalKeyedView[int, bytes]:
        """Return what is kept."""
        return ctx.get_global_keyed_state(self.table_name)

    @override
    def on_start(self, ctx: OperatorContext) -> None:
        """Read the table as all subtasks have written it."""
        kept = sorted(self.view(ctx).items())
        self.hold((data for _, data in kept), ctx)

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Take rows of the left side; the join has two inputs."""
        self._waiting.append(batch)

    @override
    def process_batch_index(
        self,
        index: int,
        total_inputs: int,
        batch: pa.RecordBatch,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Keep rows until the changes of the epoch are complete."""
        (self._waiting, self._changes)[index].append(batch)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Apply the changes, keep what they changed, and look up the rows of the epoch."""
        if self._changes:
            changes, self._changes = self._changes, []
            self.apply(changes, ctx)
        waiting, self._waiting = self._waiting, []
        for batch in waiting:
            self.emit(self.to_left(batch), [self._table], collector)


class StreamLookup(HeldLookup[StreamLookupConfig]):
    """Holds the table of a changelog, in pieces by the hash of its key."""

    table_name = "right"

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        right = plain(inputs[1]).arrow
        if right.names != [CHANGE_COLUMN, *self.right.arrow.names]:
            raise UserError(
                "the right side of the join is another stream than it was made for",
                code=ErrorCode.INVALID_GRAPH,
            )
        return super().output_schema(inputs)

    @override
    def apply(self, changes: Sequence[pa.RecordBatch], ctx: OperatorContext) -> None:
        """Change the table, and keep the pieces of it that have other rows than before."""
        self._keep(self._changed_by(pa.Table.from_batches(changes)), ctx)

    def _changed_by(self, changes: pa.Table) -> Positions:
        """Change the table; return the pieces of it that have other rows than before.

        Each key has one change per epoch at most: all its rows go, and those added come.
        """
        schema, kept = self.right.arrow, self.rows
        pieces = []
        added = []
        for batch in changes.combine_chunks().to_batches():
            flags = are_added(batch)
            rows = in_plain_layouts(batch, schema) if batch.num_rows else batch
            keys = self._key_of(rows)
            gone = _find(self._key_of(kept), keys)
            kept = kept.filter(pa.array(~gone))
            pieces.append(_pieces_of(keys))
            added.append(rows.filter(flags))
        # A key whose changes came in two batches is in both: what was added is not removed.
        self.set_rows(in_one_batch([kept, *added], schema))
        return np.unique(np.concatenate(pieces))

    def _keep(self, changed: Positions, ctx: OperatorContext) -> None:
        """Write the changed pieces that this subtask is responsible for."""
        view, schema = self.view(ctx), self.right.arrow
        own = [p for p in changed.tolist() if p << int(_SHIFT) in ctx.task.key_range]
        if not own:
            return
        pieces = _pieces_of(self._key_of(self.rows))
        for piece in own:
            rows = self.rows.filter(pa.array(pieces == piece))
            if rows.num_rows:
                view.insert(piece, to_ipc([rows], schema))
            else:
                view.remove(piece)

    def _key_of(self, rows: pa.RecordBatch) -> list[Any]:
        return [rows.column(name) for name in self.config.table_key]


def _pieces_of(keys: Sequence[Any]) -> Positions:
    """Return the piece of the table that each key is in."""
    hashes = hash_keys(keys)
    pieces: Positions = (hashes >> _SHIFT).astype(np.int64)
    return pieces


def _find(keys: Sequence[Any], wanted: Sequence[Any]) -> Any:
    """Tell which keys are among those wanted; in the key of a table nulls are values."""
    found = np.zeros(len(keys[0]), np.bool_)
    hashes, asked = hash_keys(keys), hash_keys(wanted)
    order = stable_order(asked)
    asked = asked[order]
    # Keys of equal hashes are compared one after the other: there are hardly any of them.
    place = np.searchsorted(asked, hashes, "left")
    ends = np.searchsorted(asked, hashes, "right")
    while (is_open := (place < ends) & ~found).any():
        rows = np.flatnonzero(is_open)
        found[rows] = equal_keys(keys, rows, wanted, order[place[rows]])
        place[rows] += 1
    return found
