"""ChangelogTop: the first n rows of each key of a table that changes, as a changelog.

Rows of the table come and go, so any of them may be among the first n one day: all are kept, in
order of rank, and the first n of a key are found without reading the others.

    stored per key       price 10   price 20   price 30   price 40
    n = 2                                      ├─ the last two ─┤     delete price 40:
                                    ├─ the last two ─┤                delete 40, insert 20

What is emitted is the difference between the first rows before and after the epoch's changes. If
columns are ranked by in different directions, no end of the stored order is the first one: then
all rows of a key that changes are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.key_order import has_order
from penstock.core.schema import StreamSchema
from penstock.errors import SchemaError
from penstock.operators.aggregates.frames import check_groupable, in_plain_layouts
from penstock.operators.changelogs.settling import first_equal_rows, settle
from penstock.operators.changes import are_added
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.ranking.order import places_within
from penstock.operators.ranking.top import COUNT, Ranking, TopConfig, meaning_of
from penstock.operators.registry import Configured
from penstock.operators.stateless import EpochOperator
from penstock.state.tables.keyed_view import KeyedView
from penstock.state.tables.sorted_rows import Positions, take_rows
from penstock.state.tables.specs import TableSpec, keyed_table

TABLE = "rows"


@dataclass(frozen=True, slots=True)
class ChangelogTopConfig(TopConfig):
    """The config of operators that rank the rows of a changelog."""

    kind: ClassVar[str] = "changelog_top"

    @override
    def shown(self) -> Mapping[str, str]:
        shown = dict(TopConfig.shown(self))
        return {"emits": shown.pop("keeps"), **shown, "keeps": "all rows of the table"}


class ChangelogTop(Configured[ChangelogTopConfig], EpochOperator):
    """Keeps the rows of a table by key and rank, and emits how the first ones change."""

    def __init__(self, config: ChangelogTopConfig) -> None:
        super().__init__(config)
        self._stream = stream = config.stream
        self._ranking = Ranking(stream, config.rank)
        self._keys = stream.key_columns
        self._counts = stream.is_bag
        rows = self._ranking.rows
        order = [*config.order.by, *config.order.ties]
        if self._counts:
            # All columns tell the rows of a bag apart.
            order = list(dict.fromkeys([*order, *rows.names]))
        self._rest = [name for name in order if name not in self._keys]
        self._stored = pa.schema([*rows, pa.field(COUNT, pa.int64())])

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        check_groupable(inputs[0].arrow, self._keys)
        unordered = [n for n in self._rest if not has_order(self._stored.field(n).type)]
        if unordered:
            raise SchemaError(
                f"the rows of a changelog without a key are told apart by all columns, and "
                f"{unordered} have no order: leave them out with select before, or rank a table "
                "with a key",
                columns=tuple(unordered),
            )
        return self._ranking.output

    @override
    def tables(self) -> Sequence[TableSpec]:
        return [
            keyed_table(
                TABLE,
                self._stored,
                key_columns=[*self._keys, *self._rest],
                routed_by=self._keys,
                description=f"rows by {self.config.order.shown()}",
                groups=[meaning_of(self.config)],
            )
        ]

    @override
    def process_epoch(
        self, rows: pa.Table, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Bring the table up to date, and compare the first rows of its changed keys."""
        rows, table = in_plain_layouts(rows), ctx.get_keyed_state(TABLE)
        firsts = np.unique(first_equal_rows(rows, self._keys))
        keys = take_rows(rows.select(list(self._keys)), firsts)
        before = self._first_rows(table, keys)
        if self._counts:
            self._count(table, rows)
        else:
            settled = settle(rows, self._stream.table_key or ())
            is_added = are_added(settled)
            changed = settled.select(self._ranking.rows.names).cast(self._ranking.rows)
            once: Any = pa.array(np.ones(changed.num_rows, np.int64))
            changed = changed.append_column(self._stored.field(COUNT), once)
            # Removals come first: a row may be replaced by another one of the same rank.
            table.delete(changed.filter(pa.compute.invert(is_added)))
            table.put(changed.filter(is_added))
        changes = self._ranking.difference(before, self._first_rows(table, keys))
        if changes.num_rows:
            collector.collect(changes)

    def _count(self, table: KeyedView, rows: pa.Table) -> None:
        """Add up how often each row comes and goes, and store how often it is there."""
        names = self._ranking.rows.names
        places = first_equal_rows(rows, names)
        signs = np.where(are_added(rows).to_numpy(), 1, -1)
        net = np.bincount(places, signs, rows.num_rows).astype(np.int64)
        changed = np.flatnonzero(net)
        distinct = take_rows(rows.select(names), changed).cast(self._ranking.rows)
        known = table.get(distinct, columns=[COUNT])
        counted: Any = known.rows.column(COUNT).fill_null(0)
        counts = counted.to_numpy() + net[changed]
        stored = distinct.append_column(self._stored.field(COUNT), pa.array(counts))
        is_there = pa.array(counts > 0)
        table.put(stored.filter(is_there))
        table.delete(stored.filter(pa.compute.invert(is_there)))

    def _first_rows(self, table: KeyedView, keys: pa.Table) -> tuple[pa.Table, Positions]:
        """Return the first rows of each key in order of rank, and the number of their key."""
        count, order = self.config.count, self.config.order
        is_down = order.descending[0]
        limit = count if order.is_uniform else None
        found = table.get_all(keys, limit=limit, last=is_down and order.is_uniform)
        rows, groups = (
            found.rows,
            np.repeat(np.arange(keys.num_rows), np.diff(found.offsets)),
        )
        if not order.is_uniform:
            places = order.first_rows(rows, groups, count)
        elif is_down:
            # The last rows of a key come in ascending order.
            ends = np.repeat(found.offsets[1:], np.diff(found.offsets))
            starts = np.repeat(found.offsets[:-1], np.diff(found.offsets))
            places = starts + ends - 1 - np.arange(rows.num_rows)
        else:
            places = np.arange(rows.num_rows)
        if self._counts:
            times: Any = rows.column(COUNT).to_numpy()
            places = np.repeat(places, np.minimum(times[places], count))
            places = places[places_within(groups[places]) < count]
        return take_rows(rows.select(self._ranking.rows.names), places), groups[places]
