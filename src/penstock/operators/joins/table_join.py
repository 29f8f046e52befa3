"""TableJoin: the join of two tables, or of all rows so far, and how it changes in every epoch.

Each side keeps its rows by join key. Of an epoch's changes, with L and R for what is kept of
both sides, `-` for the part that goes, and `+` for the rows that are new:

    pairs that go      L-  with  R                    L kept  with  R-
    pairs that come    L+  with  R kept and R+        L kept  with  R+

So every change of the result is emitted once, and what did not change is not touched. Outer,
semi and anti joins note of each kept row whether it is alone. A row that gets a match is alone
no longer. One that loses a match is so if nothing is found for it among what is left. If there
is no residual predicate, all rows of a key have the same matches, and keys are compared.

Keys are processed in blocks, in order of their hashes: memory is bounded by the rows of a block.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import Micros, relay
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier
from penstock.errors import ErrorCode, UserError
from penstock.operators.changes import kinds_of
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.joins.sides import EVENT_TIME, How, Pick, plain
from penstock.operators.joins.table_output import (
    TableJoinConfig,
    derive_output,
    meaning_of,
)
from penstock.operators.joins.table_parts import (
    Fresh,
    Part,
    are_there,
    first_equal,
    number_keys,
)
from penstock.operators.joins.table_side import SideInBlock, TableSide
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured
from penstock.state.tables.sorted_rows import Flags, Positions
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.time_keyed_rows import expand_ranges

_FIRST_BLOCK = 1 << 12
"""How many keys are processed at once at first; blocks grow and shrink with their rows."""
_LARGEST_BLOCK = 1 << 18
_FEW_ROWS = 100_000
_MANY_ROWS = 1_000_000

_Sign = Literal[1, -1]


class TableJoin(Configured[TableJoinConfig], ArrowOperator):
    """Keeps the rows of its subtask's keys on both sides, and emits how their join changes."""

    def __init__(self, config: TableJoinConfig) -> None:
        super().__init__(config)
        self.rules = config.rules()
        self.how = self.rules.how
        notes = self.how not in (How.INNER, How.RIGHT), self.how in (How.RIGHT, How.FULL)
        ttls = config.left_ttl_micros, config.right_ttl_micros
        self.left, self.right = (
            TableSide(
                index,
                stream,
                ttl_micros=ttls[index],
                notes_alone=notes[index],
                diverts_bad=config.diverts_bad,
            )
            for index, stream in enumerate(config.streams())
        )
        self._output = derive_output(self.rules, self.left.given, self.right.given)
        self._asks_only_if_any = self.how.is_one_sided and self.rules.predicate is None
        self._rows_in_block = 0

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return what the rules say, if the inputs are those that the join was made for."""
        for side, given in zip((self.left, self.right), inputs, strict=True):
            is_same = plain(given) == plain(side.given)
            if not (is_same and given.table_key == side.given.table_key):
                raise UserError(
                    f"the {side.name} side of the join is another stream than it was made for",
                    code=ErrorCode.INVALID_GRAPH,
                )
        return self._output

    @override
    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        return {
            **self.left.side_outputs(inputs[0]),
            **self.right.side_outputs(inputs[1]),
        }

    @override
    def tables(self) -> Sequence[TableSpec]:
        meaning = meaning_of(self.rules, self._output)
        return [self.left.table(meaning), self.right.table(meaning)]

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Take rows of the left side; a join has two inputs."""
        self.process_batch_index(0, 2, batch, ctx, collector)

    @override
    def process_batch_index(
        self,
        index: int,
        total_inputs: int,
        batch: pa.RecordBatch,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Buffer rows until the epoch's are complete."""
        (self.left, self.right)[index].buffer(batch, ctx, collector)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit how the join changes by the epoch's rows, and keep them."""
        sides = (self.left, self.right)
        fresh = [
            self._with_key(side, side.take_fresh(), is_left=side is self.left, to=collector)
            for side in sides
        ]
        keys, numbers = number_keys(*self._keys_of(fresh))
        orders = [np.argsort(of_side, kind="stable") for of_side in numbers]
        fresh = [rows.take(order) for rows, order in zip(fresh, orders, strict=True)]
        numbers = [of_side[order] for of_side, order in zip(numbers, orders, strict=True)]
        start, size = 0, _FIRST_BLOCK
        while start < keys.num_rows:
            end = min(keys.num_rows, start + size)
            self._rows_in_block = 0
            block = []
            for rows, of_side in zip(fresh, numbers, strict=True):
                first, last = np.searchsorted(of_side, [start, end])
                part = rows.slice(int(first), int(last))
                block.append((part, of_side[first:last] - start))
            self._run_block(keys.slice(start, end - start), block, ctx, collector)
            start = end
            if self._rows_in_block < _FEW_ROWS:
                size = min(2 * size, _LARGEST_BLOCK)
            elif self._rows_in_block > _MANY_ROWS:
                size = max(1, size // 2)

    def _keys_of(self, fresh: Sequence[Fresh]) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the keys of both sides' rows, named and typed as those of the left side."""
        names = self.left.stream.key_columns
        kinds = [self.left.stream.arrow.field(name).type for name in names]
        left, right = (
            pa.RecordBatch.from_arrays(
                [
                    relay(rows.rows.column(name), kind)
                    for name, kind in zip(side.stream.key_columns, kinds, strict=True)
                ],
                names=list(names),
            )
            for side, rows in zip((self.left, self.right), fresh, strict=True)
        )
        return left, right

    def _with_key(
        self, side: TableSide, fresh: Fresh, *, is_left: bool, to: ArrowCollector
    ) -> Fresh:
        """Return the rows whose key has no null; the others match nothing, now or later."""
        columns = [fresh.rows.column(name) for name in side.stream.key_columns]
        nulls = [
            c.is_null().to_numpy(zero_copy_only=False) for c in columns if c.null_count
        ]
        if not nulls:
            return fresh
        has_none = np.logical_or.reduce(nulls)
        if self.how.emits_unmatched[0 if is_left else 1]:
            for sign in (-1, 1):
                places = np.flatnonzero(has_none & (fresh.is_added == (sign > 0)))
                self._emit_one(
                    Pick(fresh.rows, fresh.times, places), sign, to, is_left=is_left
                )
        return fresh.take(np.flatnonzero(~has_none))

    # ---- one block of keys

    def _run_block(
        self,
        keys: pa.RecordBatch,
        fresh: Sequence[tuple[Fresh, Positions]],
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        left, right = self._load(keys, fresh, ctx)
        self._rows_in_block += len(left.kept) + len(right.kept)
        if not self._asks_only_if_any:
            for lefts, rights, sign in (
                (left.going, right.kept, -1),
                (left.staying, right.going, -1),
                (left.added, right.staying, 1),
                (left.added, right.added, 1),
                (left.staying, right.added, 1),
            ):
                self._meet(lefts, rights, 1 if sign > 0 else -1, collector)
        for side, other in ((left, right), (right, left)):
            self._keep(side, other, ctx, collector)

    def _load(
        self,
        keys: pa.RecordBatch,
        fresh: Sequence[tuple[Fresh, Positions]],
        ctx: OperatorContext,
    ) -> tuple[SideInBlock, SideInBlock]:
        """Return what is kept for the keys of a block, as far as it can matter."""
        (left, left_keys), (right, right_keys) = fresh
        count = keys.num_rows
        has_left, has_right = are_there(left_keys, count), are_there(right_keys, count)
        own_left = are_there(left_keys[self._looked_for(self.left, left)], count)
        own_right = are_there(right_keys[self._looked_for(self.right, right)], count)
        if not self._asks_only_if_any:
            kept_left = self._load_side(self.left, keys, has_right | own_left, ctx)
            kept_right = self._load_side(self.right, keys, has_left | own_right, ctx)
        else:
            # Left rows matter only where the first match comes, or one goes.
            every = np.ones(count, np.bool_)
            limit = None if own_right.any() else 1
            kept_right = self._load_side(self.right, keys, every, ctx, limit)
            may_turn = has_right & (own_right | (kept_right.counts() == 0))
            kept_left = self._load_side(self.left, keys, may_turn | own_left, ctx)
        return (
            self.left.sort_out(kept_left, left, left_keys),
            self.right.sort_out(kept_right, right, right_keys),
        )

    def _looked_for(self, side: TableSide, fresh: Fresh) -> Flags:
        """Tell which changes are about rows that are kept: removals, and all of a bag."""
        return np.ones(len(fresh.is_added), np.bool_) if side.is_bag else ~fresh.is_added

    def _load_side(
        self,
        side: TableSide,
        keys: pa.RecordBatch,
        wanted: Flags,
        ctx: OperatorContext,
        limit: int | None = None,
    ) -> Part:
        names = side.stream.key_columns
        columns = [
            relay(column, side.stream.arrow.field(name).type)
            for column, name in zip(keys.columns, names, strict=True)
        ]
        named = pa.RecordBatch.from_arrays(columns, names=list(names))
        return side.load(ctx, named, wanted, limit)

    def _meet(
        self, left: Part, right: Part, sign: _Sign, collector: ArrowCollector
    ) -> None:
        """Emit the pairs of two parts, and note which rows have got or lost a match."""
        for one, other in self._pairs(left, right):
            for part, numbers in ((left, one), (right, other)):
                (part.gained if sign > 0 else part.lost)[part.places[numbers]] = True
            if self.how.is_one_sided:
                continue
            times = left.weights[one] * right.weights[other]
            picks = left.pick(np.repeat(one, times)), right.pick(np.repeat(other, times))
            self._emit(self.rules.rows_of(*picks, self._times(*picks)), sign, collector)

    def _pairs(self, left: Part, right: Part) -> Iterator[tuple[Positions, Positions]]:
        """Yield the matches of two parts as numbers of their rows, a bounded number at a time."""
        if not (len(left) and len(right)):
            return
        counts = right.counts()
        first = np.cumsum(counts) - counts
        for one, other in expand_ranges(first[left.keys], counts[left.keys]):
            picks = left.pick(one), right.pick(other)
            matches = self.rules.are_matches(*picks, self._times(*picks))
            if matches is None:
                yield one, other
            elif matches.any():
                yield one[matches], other[matches]

    # ---- rows alone, and state

    def _keep(
        self,
        own: SideInBlock,
        other: SideInBlock,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Emit the rows of a side that come or go alone, and keep what is there."""
        side, left = own.side, own.left
        alone, new_alone = None, None
        changed = own.removed > 0
        if side.notes_alone:
            was = side.are_alone(own.kept)
            alone, new_alone = self._are_alone(own, other, was)
            self._emit_turned(own, was, alone, collector)
            self._emit_shown(own.added.where(self._shows(new_alone)), 1, own, collector)
            changed |= alone != was
        weights = own.added.weights
        added = own.added.rows
        if side.is_bag and added.num_rows:
            # Equal rows are one row of the state.
            first = first_equal([added], added.schema.names)
            total = np.bincount(first, minlength=len(first))
            kept = np.where(
                own.equal >= 0, left[np.maximum(own.equal, 0)] if len(left) else 0, 0
            )
            weights = total[first] + kept
        side.write(ctx, own.kept, left, alone, changed)
        side.insert(ctx, added, weights, new_alone)

    def _are_alone(
        self, own: SideInBlock, other: SideInBlock, was: Flags
    ) -> tuple[Flags, Flags]:
        """Tell which kept rows, and which new rows, have no match when the epoch ends."""
        kept, added = own.kept, own.added
        if self.rules.predicate is None:
            comes, goes, stays = (
                part.counts() > 0 for part in (other.added, other.going, other.staying)
            )
            gained, lost = comes[kept.keys], goes[kept.keys]
            remains = stays[kept.keys]
            matched = (comes | stays)[added.keys]
        else:
            gained, lost = kept.gained, kept.lost
            remains = np.zeros(len(kept), np.bool_)
            asks = own.staying.where((lost & ~gained)[own.staying.places])
            is_left = own.side is self.left
            parts = (asks, other.staying) if is_left else (other.staying, asks)
            for pair in self._pairs(*parts):
                remains[asks.places[pair[0 if is_left else 1]]] = True
            matched = added.gained
        alone = ~gained & np.where(lost, ~remains, was)
        again = own.equal >= 0
        # An equal row has the same matches; of those that have expired nobody knows.
        alone[own.equal[again]] = ~matched[again]
        return alone, ~matched

    def _shows(self, alone: Flags) -> Flags:
        return ~alone if self.how is How.SEMI else alone

    def _emit_turned(
        self, own: SideInBlock, was: Flags, alone: Flags, collector: ArrowCollector
    ) -> None:
        """Emit rows that go, and those that are left but come or go because of their matches."""
        shown, shows = self._shows(was), self._shows(alone)
        going, staying = own.going, own.staying
        self._emit_shown(going.where(shown[going.places]), -1, own, collector)
        for sign, turned in ((-1, shown & ~shows), (1, shows & ~shown)):
            part = staying.where(turned[staying.places])
            self._emit_shown(part, 1 if sign > 0 else -1, own, collector)

    def _emit_shown(
        self, part: Part, sign: _Sign, own: SideInBlock, collector: ArrowCollector
    ) -> None:
        self._emit_one(part.whole(), sign, collector, is_left=own.side is self.left)

    def _emit_one(
        self, pick: Pick, sign: int, collector: ArrowCollector, *, is_left: bool
    ) -> None:
        """Emit rows of one side without a partner, if there are any."""
        if not len(pick.places):
            return
        times = {EVENT_TIME: pick.micros} if self.rules.own else {}
        left, right = (pick, None) if is_left else (None, pick)
        self._emit(self.rules.rows_of(left, right, times), sign, collector)

    def _emit(self, rows: pa.RecordBatch, sign: int, collector: ArrowCollector) -> None:
        if self._output.is_changelog:
            kinds = kinds_of(np.full(rows.num_rows, 0 if sign > 0 else 3, np.int8))
            arrays = [kinds, *rows.columns]
            rows = pa.RecordBatch.from_arrays(arrays, schema=self._output.arrow)
        collector.collect(rows)

    def _times(self, left: Pick, right: Pick) -> Mapping[str, Micros]:
        """Return the event time of pairs: the later of both rows'."""
        if not self.rules.own:
            return {}
        return {EVENT_TIME: np.maximum(left.micros, right.micros)}
