"""Top: keeps the first n rows of each key of an append-only stream, and emits how they change.

A row that is not among the first n can never be so later, because rows only come. So the state of
a key is n rows, in numbered slots: a new row takes the slot of the one that it drives out.

    n = 2, by price      bids of an epoch      emitted                slots
                         a 10, b 30, c 20      insert b, insert c     b c
                         d 5                                          b c
                         e 25                  delete c, insert e     b e

With a column for the rank, the key of the changelog is the key and the rank: a new first row
updates all ranks below it. Without one, rows have no key of their own: the changelog is a bag.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.operators.aggregates.frames import (
    ALL_ROWS,
    WHOLE,
    check_groupable,
    columns_to_frame,
    decoded,
    in_plain_layouts,
    number_equal,
)
from penstock.operators.changelogs.settling import settle
from penstock.operators.changes import changelog_schema, kinds_of
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.ranking.order import RankOrder, places_within
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.stateless import EpochOperator
from penstock.state.tables.column_groups import ColumnGroup, Meaning
from penstock.state.tables.sorted_rows import Positions, take_rows
from penstock.state.tables.specs import TableSpec, keyed_table

TABLE = "rows"
SLOT = "top.slot"
"""The column of the state that tells the rows of a key apart."""
COUNT = "top.count"
"""The column of the state that says how often a row is there; of this one it is 1."""
_INSERTED, _DELETED = 0, 3


@dataclass(frozen=True, slots=True)
class TopConfig(OperatorConfig):
    """The config of operators that keep the first rows of each key of an append-only stream."""

    kind: ClassVar[str] = "top"

    rows: bytes
    """The input's schema, as `StreamSchema.to_bytes` returns it; its key is that of the ranking."""
    count: int
    order: RankOrder
    rank: str | None = None
    """The column of the output with the rank, from 1; None for none."""

    @property
    def stream(self) -> StreamSchema:
        """The input."""
        return StreamSchema.from_bytes(self.rows)

    @override
    def shown(self) -> Mapping[str, str]:
        per = [name for name in self.stream.key_columns if name != ALL_ROWS]
        keeps = f"{self.count} rows" + (f" per {', '.join(per)}" if per else "")
        rank = {} if self.rank is None else {"rank": self.rank}
        return {"keeps": keeps, "by": self.order.shown(), **rank}


def meaning_of(config: TopConfig) -> ColumnGroup:
    """Return what state says about its ranking: that of another one is refused.

    Rows that another order or number needs were never kept, or never emitted.
    """
    schema = pa.schema([pa.field(COUNT, pa.int64())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([{COUNT: 1}], schema=schema))
    rank = "" if config.rank is None else ", with their rank"
    outline = f"the first {config.count} rows by {config.order.shown()}{rank}"
    fill = sink.getvalue().to_pybytes()
    return ColumnGroup("top", (COUNT,), Meaning(outline), fill, noun="ranking")


@dataclass(frozen=True)
class Ranking:
    """What rankings emit: the columns of their output, and the changes between two states."""

    stream: StreamSchema
    rank: str | None

    @cached_property
    def rows(self) -> pa.Schema:
        """The columns of the rows that are ranked, in plain layouts."""
        names = [name for name in self.stream.arrow.names if name != CHANGE_COLUMN]
        if not self.stream.is_changelog:
            names = self.stream.arrow.names
        return decoded(pa.schema([self.stream.arrow.field(name) for name in names]))

    @cached_property
    def output(self) -> StreamSchema:
        """The schema of the changelog."""
        fields = {field.name: field for field in self.rows if field.name != ALL_ROWS}
        key = [name for name in self.stream.key_columns if name != ALL_ROWS]
        if self.rank is None:
            identity = self.stream.table_key or tuple(fields)
            key = list(dict.fromkeys([*key, *(n for n in identity if n in fields)]))
            if len(key) == len(fields):
                key = list(fields)
            first = [fields.pop(name) for name in key]
        else:
            first = [fields.pop(name) for name in key]
            first.append(pa.field(self.rank, pa.int64()))
        # Of rows without a key there may be equal ones; a rank tells them apart.
        has_key = self.stream.is_changelog and not self.stream.is_bag
        return changelog_schema(
            first,
            list(fields.values()),
            self.stream.time_column,
            is_bag=self.rank is None and not has_key,
        )

    def changes(
        self, rows: pa.Table, ranks: Positions, codes: "np.typing.NDArray[Any]"
    ) -> pa.Table:
        """Return rows as changes of some kinds, given the place of each in its key from 0."""
        schema = self.output.arrow
        own: dict[str, Any] = {CHANGE_COLUMN: kinds_of(codes)}
        if self.rank is not None:
            own[self.rank] = pa.array(ranks + 1, pa.int64())
        columns = [own[n] if n in own else rows.column(n) for n in schema.names]
        return pa.Table.from_arrays(columns, schema=schema)

    def difference(
        self, before: tuple[pa.Table, Positions], after: tuple[pa.Table, Positions]
    ) -> pa.Table:
        """Return the settled changes between two states of keys: rows, and the key of each.

        The rows of a key are side by side, in order of rank.
        """
        removed = np.full(before[0].num_rows, _DELETED)
        added = np.full(after[0].num_rows, _INSERTED)
        changes = pa.concat_tables(
            [
                self.changes(before[0], places_within(before[1]), removed),
                self.changes(after[0], places_within(after[1]), added),
            ]
        )
        return settle(changes, self.output.table_key or ())


class Top(Configured[TopConfig], EpochOperator):
    """Merges an epoch's rows into the first rows of their keys, and emits what changes."""

    def __init__(self, config: TopConfig) -> None:
        super().__init__(config)
        stream = config.stream
        self._ranking = Ranking(stream, config.rank)
        self._keys = stream.key_columns
        own = [pa.field(SLOT, pa.int32()), pa.field(COUNT, pa.int64())]
        self._stored = pa.schema([*self._ranking.rows, *own])

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        check_groupable(inputs[0].arrow, self._keys)
        return self._ranking.output

    @override
    def tables(self) -> Sequence[TableSpec]:
        order = self.config.order.shown()
        return [
            keyed_table(
                TABLE,
                self._stored,
                key_columns=[*self._keys, SLOT],
                routed_by=self._keys,
                description=f"the first {self.config.count} rows of each key by {order}",
                groups=[meaning_of(self.config)],
            )
        ]

    @override
    def process_epoch(
        self, rows: pa.Table, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Rank the epoch's rows together with those that are kept."""
        rows = in_plain_layouts(rows)
        numbers, firsts = number_equal(columns_to_frame(rows.to_batches(), self._keys))
        keys = take_rows(rows.select(list(self._keys)), firsts)
        table = ctx.get_keyed_state(TABLE)
        found = table.get_all(keys)
        known = found.rows
        known_groups = np.repeat(np.arange(keys.num_rows), np.diff(found.offsets))
        fresh, groups = self._first_fresh_rows(rows, numbers, known, known_groups)
        both = pa.concat_tables([known.select(fresh.column_names), fresh])
        every = np.concatenate([known_groups, groups])
        count, order = self.config.count, self.config.order
        # Kept rows come first among equal ones: they are not driven out by their like.
        kept = order.first_rows(both, every, count)
        is_kept = np.zeros(len(every), np.bool_)
        is_kept[kept] = True
        added = np.sort(kept[kept >= known.num_rows])
        if not len(added):
            return
        gone = np.flatnonzero(~is_kept[: known.num_rows])
        slots: Any = known.column(SLOT).to_numpy()
        taken_slots = _slots_for(every[added], known_groups, gone, slots)
        stored = take_rows(both, added)
        stored = stored.append_column(self._stored.field(SLOT), pa.array(taken_slots))
        once: Any = pa.array(np.ones(len(added), np.int64))
        table.put(stored.append_column(self._stored.field(COUNT), once))
        if self.config.rank is not None:
            ranked = order.first_rows(known, known_groups, count)
            before = take_rows(known, ranked), known_groups[ranked]
            collector.collect(
                self._ranking.difference(before, (take_rows(both, kept), every[kept]))
            )
            return
        changed = np.concatenate([gone, added])
        codes = np.where(changed < known.num_rows, _DELETED, _INSERTED)
        collector.collect(self._ranking.changes(take_rows(both, changed), changed, codes))

    def _first_fresh_rows(
        self, rows: pa.Table, groups: Positions, known: pa.Table, known_groups: Positions
    ) -> tuple[pa.Table, Positions]:
        """Return the epoch's first rows of each key, and the number of their key.

        Of a key with n rows those are left out that are behind all of them: when state has
        its size, nearly all.
        """
        count, order = self.config.count, self.config.order
        values, kept = (_numbers_of(table, order.by[0]) for table in (rows, known))
        if values is not None and kept is not None:
            if order.descending[0]:
                values, kept = ~values, ~kept
            counts = np.bincount(known_groups, minlength=int(groups.max()) + 1)
            limits = np.full(len(counts), np.iinfo(np.int64).min)
            np.maximum.at(limits, known_groups, kept)
            limits[counts < count] = np.iinfo(np.int64).max
            places = np.flatnonzero(values <= limits[groups])
            rows, groups = take_rows(rows, places), groups[places]
        first = order.first_rows(rows, groups, count)
        return take_rows(rows, first).cast(self._ranking.rows), groups[first]


def _numbers_of(rows: pa.Table, name: str) -> Positions | None:
    """Return a column of whole numbers or instants; None for others, with nulls or without rows."""
    if not rows.num_rows:
        return None
    column = columns_to_frame(rows.to_batches(), [name])[name].to_physical()
    if column.dtype not in WHOLE or column.null_count():
        return None
    return column.cast(pl.Int64).to_numpy()


def _slots_for(
    groups: Positions, known_groups: Positions, gone: Positions, slots: Positions
) -> "np.typing.NDArray[np.int32]":
    """Return a slot for each new row: of a row of its key that is gone, else the next free one.

    `groups` are the keys of new rows, in order; `gone` the positions of rows that are driven
    out. A key never loses more rows than it gets.
    """
    size = int(max(groups.max(initial=0), known_groups.max(initial=0))) + 1
    known_counts = np.bincount(known_groups, minlength=size)
    gone_groups = known_groups[gone]
    gone_counts = np.bincount(gone_groups, minlength=size)
    starts = np.cumsum(gone_counts) - gone_counts
    places = places_within(groups)
    is_reused = places < gone_counts[groups]
    found = known_counts[groups] + places - gone_counts[groups]
    found[is_reused] = slots[gone][(starts[groups] + places)[is_reused]]
    return found.astype(np.int32)
