"""One side of a table join: the changes of an epoch, and a table of the rows that are there.

Kept rows are routed by the join key. What tells the rows of one join key apart depends on the
stream:

| stream | a kept row is found by | besides |
|---|---|---|
| append-only | a number: the epoch, and its place in it | |
| changelog with a table key | the table key | |
| changelog without one, a bag | all its columns | how often it is there |

A number need only be unique within a join key, which one subtask owns in an epoch, and numbers of
epochs are never reused. Where rows without a match are of interest, each row says whether it
is `alone`. That spares counting matches again, and stays true when partners have expired.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.arrow_types import Micros, relay
from penstock.core.schema import Settling, StreamSchema
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import BAD
from penstock.operators.changelogs.settling import settle
from penstock.operators.changes import are_added
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.joins.sides import BAD_RIGHT, SIDES, plain
from penstock.operators.joins.table_output import without_change
from penstock.operators.joins.table_parts import Fresh, Part, first_equal
from penstock.operators.windows.assignment import read_event_times, refuse_bad_times
from penstock.state.tables.column_groups import ColumnGroup
from penstock.state.tables.sorted_rows import Flags, Positions, take_rows
from penstock.state.tables.specs import TableSpec, TimeDomain, keyed_table

ROW, COUNT, ALONE = "_penstock_row", "_penstock_count", "_penstock_alone"
"""Columns of the state: which row it is, how often it is there, whether it has no match."""
_NUMBERS_PER_EPOCH = 32
"""How many bits of a row's number are its place in the epoch."""


class TableSide:
    """One side of a table join in one subtask."""

    def __init__(
        self,
        index: int,
        given: StreamSchema,
        *,
        ttl_micros: int | None,
        notes_alone: bool,
        diverts_bad: bool,
    ) -> None:
        self.name = SIDES[index]
        self.given = given
        self.stream = plain(without_change(given))
        self.notes_alone = notes_alone
        self._bad = (BAD, BAD_RIGHT)[index]
        self._diverts_bad = diverts_bad and given.time_column is not None
        self._ttl_micros = ttl_micros
        self.is_bag = given.is_bag
        self._taken: list[pa.RecordBatch] = []
        self._next_row = 0
        rest = (ROW,) if given.table_key is None else given.table_key
        self._identity = tuple(dict.fromkeys((*given.key_columns, *rest)))
        own = [
            *([pa.field(ROW, pa.int64())] if given.table_key is None else []),
            *([pa.field(COUNT, pa.int64())] if self.is_bag else []),
            *([pa.field(ALONE, pa.bool_())] if notes_alone else []),
        ]
        self._stored = pa.schema([*self.stream.arrow, *own])

    def side_outputs(self, stream: StreamSchema) -> Mapping[str, StreamSchema]:
        """Return where bad rows go, if they are diverted."""
        return {self._bad: StreamSchema(stream.arrow)} if self._diverts_bad else {}

    def table(self, meaning: ColumnGroup) -> TableSpec:
        """Declare the table of kept rows; it says what kind of join keeps them."""
        time = self.stream.time_column if self._ttl_micros is not None else None
        return keyed_table(
            self.name,
            self._stored,
            key_columns=self._identity,
            routed_by=self.stream.key_columns,
            ttl=self._ttl_micros,
            ttl_domain=TimeDomain.PROCESSING_TIME
            if time is None
            else TimeDomain.EVENT_TIME,
            time_column=time,
            description=f"rows of the {self.name} side of the join",
            groups=[meaning],
        )

    # ---- the rows of an epoch

    def buffer(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Keep rows until the epoch's are complete; those with a bad event time go aside."""
        time = self.stream.time_column
        if time is not None:
            bad = read_event_times(batch.column(time)).bad
            if bad is not None:
                if not self._diverts_bad:
                    raise refuse_bad_times(bad, batch.column(time), time)
                ctx.count("bad_rows", int(bad.sum()))
                collector.collect(batch.filter(pa.array(bad)), self._bad)
                batch = batch.filter(pa.array(~bad))
        if batch.num_rows:
            self._taken.append(batch)

    def take_fresh(self) -> Fresh:
        """Return what the epoch's changes come to, and forget them."""
        self._next_row = 0
        taken, self._taken = self._taken, []
        table = pa.Table.from_batches(taken, self.given.arrow)
        key = self.given.table_key
        if key is not None and self.given.settling is not Settling.SETTLED:
            table = settle(table, key)
        is_added = np.ones(table.num_rows, np.bool_)
        if key is not None and table.num_rows:
            is_added = are_added(table).combine_chunks().to_numpy(zero_copy_only=False)
        rows = self._in_one_piece(table)
        return Fresh(rows, self._times_of(rows), is_added)

    def _in_one_piece(self, table: pa.Table) -> pa.RecordBatch:
        arrays: list[Any] = []
        for field in self.stream.arrow:
            chunks = [relay(chunk, field.type) for chunk in table.column(field.name).chunks]
            whole: Any = pa.chunked_array(chunks, field.type).combine_chunks()
            if isinstance(whole, pa.ChunkedArray):
                raise UserError(
                    f"column {field.name!r} has more than 2 GiB of text in one epoch: let epochs "
                    "be smaller, with a trigger by rows or bytes, or cast it to large_string",
                    code=ErrorCode.INVALID_CONFIG,
                )
            arrays.append(whole)
        return pa.RecordBatch.from_arrays(arrays, schema=self.stream.arrow)

    def _times_of(self, rows: pa.RecordBatch) -> Micros:
        if self.stream.time_column is None:
            return np.zeros(rows.num_rows, np.int64)
        return self.stream.event_times_of(rows)

    # ---- the rows that are kept

    def load(
        self, ctx: OperatorContext, keys: pa.RecordBatch, wanted: Flags, limit: int | None
    ) -> Part:
        """Return the kept rows of the keys that are wanted, at most `limit` of each.

        `keys` has the columns of the join key of this side, one row per key of the block.
        """
        numbers = np.flatnonzero(wanted)
        view = ctx.get_keyed_state(self.name)
        found = view.get_all(take_rows(keys, numbers), limit=limit)
        counts = np.diff(found.offsets)
        whole = found.rows.combine_chunks().to_batches()
        if len(whole) > 1:
            raise UserError(
                f"the {self.name} side of the join keeps more than 2 GiB of text for the keys of "
                "one block of rows: cast the column to large_string",
                code=ErrorCode.INVALID_CONFIG,
            )
        rows = whole[0] if whole else pa.RecordBatch.from_pylist([], schema=self._stored)
        weights = np.ones(rows.num_rows, np.int64)
        if self.is_bag:
            weights = rows.column(COUNT).to_numpy()
        return Part.of(
            rows, self._times_of(rows), np.repeat(numbers, counts), weights, len(wanted)
        )

    def are_alone(self, kept: Part) -> Flags:
        """Tell which kept rows have had no match so far."""
        alone: Flags = kept.rows.column(ALONE).to_numpy(zero_copy_only=False)
        return alone

    def find_equal(self, kept: Part, fresh: pa.RecordBatch) -> Positions:
        """Return for each fresh row which of the kept rows it is about, or -1."""
        found = np.full(fresh.num_rows, -1, np.int64)
        if self.given.table_key is None or not (kept.rows.num_rows and fresh.num_rows):
            return found
        first = first_equal([kept.rows, fresh], self._identity)[kept.rows.num_rows :]
        return np.where(first < kept.rows.num_rows, first, -1)

    def sort_out(self, kept: Part, fresh: Fresh, keys: Positions) -> "SideInBlock":
        """Tell apart what an epoch adds, and what it removes of the kept rows."""
        is_added = fresh.is_added
        added = fresh.take(np.flatnonzero(is_added))
        gone = fresh.rows.filter(pa.array(~is_added))
        weights = np.ones(added.rows.num_rows, np.int64)
        part = Part.of(added.rows, added.times, keys[is_added], weights, kept.key_count)
        found = self.find_equal(kept, gone)
        removed = np.bincount(found[found >= 0], minlength=len(kept))
        removed = np.minimum(removed, kept.weights)
        equal = np.full(len(part), -1, np.int64)
        if self.is_bag:
            equal = self.find_equal(kept, added.rows)
        return SideInBlock(self, kept, equal, removed, part)

    def write(
        self, ctx: OperatorContext, kept: Part, weights: Positions, alone: Flags | None,
        changed: Flags,
    ) -> None:  # fmt: skip
        """Put back the kept rows that have changed; those of weight zero are deleted."""
        if not changed.any():
            return
        view = ctx.get_keyed_state(self.name)
        is_gone = changed & (weights == 0)
        if is_gone.any():
            view.delete(kept.rows.filter(pa.array(is_gone)).select(list(self._identity)))
        stays = changed & (weights > 0)
        if stays.any():
            view.put(self._to_store(kept.rows, weights, alone).filter(pa.array(stays)))

    def insert(
        self,
        ctx: OperatorContext,
        rows: pa.RecordBatch,
        weights: Positions,
        alone: Flags | None,
    ) -> None:
        """Keep new rows."""
        if rows.num_rows:
            ctx.get_keyed_state(self.name).put(
                self._to_store(rows, weights, alone, ctx.epoch)
            )

    def _to_store(
        self,
        rows: pa.RecordBatch,
        weights: Positions,
        alone: Flags | None,
        epoch: int | None = None,
    ) -> pa.RecordBatch:
        """Return rows as the table holds them; those of an epoch get numbers."""
        own: dict[str, Any] = {COUNT: pa.array(weights)}
        if alone is not None:
            own[ALONE] = pa.array(alone)
        if epoch is None:
            own[ROW] = rows.column(ROW) if ROW in rows.schema.names else None
        else:
            start = (epoch << _NUMBERS_PER_EPOCH) + self._next_row
            own[ROW] = pa.array(np.arange(start, start + rows.num_rows))
            self._next_row += rows.num_rows
        arrays = [
            own[name] if name in own else rows.column(name) for name in self._stored.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._stored)


@dataclass(frozen=True, slots=True)
class SideInBlock:
    """What one side is about in a block of keys."""

    side: "TableSide"
    kept: Part
    """Its rows before this epoch."""
    equal: Positions
    """For each new row the kept row that it is equal to, in a bag; else -1."""
    removed: Positions
    """How often each kept row is removed."""
    added: Part

    @property
    def left(self) -> Positions:
        """How often each kept row is left."""
        return self.kept.weights - self.removed

    @property
    def going(self) -> Part:
        """The rows that are removed."""
        return self.kept.weighing(self.removed)

    @property
    def staying(self) -> Part:
        """The rows that are left."""
        return self.kept.weighing(self.left)
