"""KeptValues: a table of a step's values by group, for aggregates that cannot do without them.

A row is a value, or several of one row, with the number of rows that have it. Rows of a group are
found together, in order of the value. How much is read is told by the ways of `change_plan`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.operators.aggregates.compiled import CompiledAggregate
from penstock.operators.aggregates.frames import to_batch, to_frame
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.context import OperatorContext
from penstock.operators.updating.change_plan import (
    COUNT,
    GROUP,
    KeptConfig,
    Way,
    stored_fields,
)
from penstock.operators.updating.combine import SIGN
from penstock.state.tables.keyed_view import KeyedView
from penstock.state.tables.sorted_rows import Flags, Positions
from penstock.state.tables.specs import TableSpec, keyed_table

_MAX_READ = 500_000
"""How many rows are read at once; a group that has more is still read as a whole."""


def aligned(frame: pl.DataFrame, default: pl.DataFrame, count: int) -> pl.DataFrame:
    """Return a row for each of so many groups: that of the frame, or the default row."""
    names = default.columns
    places = np.zeros(count, np.int64)
    places[frame.get_column(GROUP).to_numpy()] = np.arange(1, frame.height + 1)
    every = pl.concat([default, frame.select(names).cast(default.schema)])
    return every.select(pl.all().gather(places))


def partials_by_group(
    plan: AggregatePlan, rows: pl.DataFrame, count: int, *, or_null: bool
) -> pl.DataFrame:
    """Return the partials of each of so many groups; of those without rows null, or of no rows."""
    default = plan.of_no_rows(1)
    made = default.head(0).with_columns(pl.lit(0, pl.Int64).alias(GROUP))
    if rows.height:
        made = plan.partials_of(rows, [GROUP])
    return aligned(made, default.clear(1) if or_null else default, count)


@dataclass(frozen=True, slots=True)
class _Lookup:
    """The table of values, with the keys of the groups that change."""

    view: KeyedView
    keys: pa.RecordBatch

    def read(
        self, groups: Positions, *, limit: int | None = None, last: bool = False
    ) -> pl.DataFrame:
        """Return the values of groups with their places and counts, in order of the values."""
        taken: Any = pa.array(groups)
        found = self.view.get_all(self.keys.take(taken), limit=limit, last=last)
        places = np.repeat(groups, np.diff(found.offsets))
        return to_frame(found.rows).with_columns(pl.Series(GROUP, places, pl.Int64))


class KeptValues:
    """One table of values, and how the aggregates over it follow its changes."""

    def __init__(self, config: KeptConfig, number: int, keys: pa.Schema) -> None:
        self.name = f"values-{number}"
        types = pa.ipc.read_schema(pa.py_buffer(config.types))
        rest = [field for field in types if field.name not in keys.names]
        self._keys = keys
        self._columns = list(config.columns)
        self._key = pa.schema([*keys, *rest])
        self._stored = self._key.append(pa.field(COUNT, pa.int64()))
        self._counts = pl.Expr.deserialize(config.counts)
        made = [CompiledAggregate.from_config(a) for a in config.aggregates]
        self._members: list[tuple[CompiledAggregate, Way]] = list(
            zip(made, config.ways, strict=True)
        )
        self.fields = [
            field for member in self._members for field in stored_fields(*member)
        ]
        """The columns that the aggregates have in the state of a group."""

    def table(self) -> TableSpec:
        """Return the table: a row per group and value."""
        return keyed_table(
            self.name,
            self._stored,
            key_columns=self._key.names,
            routed_by=self._keys.names,
            description=f"values of {', '.join(a.shown for a, _ in self._members)}",
        )

    def members(self) -> Sequence[tuple[CompiledAggregate, Way]]:
        """Return the aggregates over these values, and how each looks at them."""
        return self._members

    def update(
        self,
        ctx: OperatorContext,
        keys: pa.RecordBatch,
        news: pl.DataFrame,
        state: pl.DataFrame,
        sizes: Positions,
    ) -> pl.DataFrame:
        """Take an epoch's changes into the table; return what becomes of the groups' state.

        `news` has the group, the values and the sign of each change; `keys`, `state` and
        `sizes`, the number of rows, are those of the groups.
        """
        view, count = ctx.get_keyed_state(self.name), keys.num_rows
        columns = dict.fromkeys((*self._key.names, *self._columns))
        signed = news.filter(self._counts).group_by(GROUP, *columns)
        rows = signed.agg(pl.col(SIGN).sum()).filter(pl.col(SIGN) != 0)
        appeared, vanished = self._write(view, rows)
        lookup = _Lookup(view, keys)
        parts = []
        for aggregate, way in self._members:
            plan = AggregatePlan((aggregate,))
            names = [field.name for field in stored_fields(aggregate, way)]
            own = state.select(names)
            if way == "all":
                groups = np.unique(rows.get_column(GROUP).to_numpy())
                parts.append(self._read_again(lookup, groups, own, plan, sizes))
                continue
            added = partials_by_group(plan, appeared, count, or_null=False)
            merged = plan.merge_pairs(added, own)
            removed = partials_by_group(plan, vanished, count, or_null=True)
            if way == "distinct":
                parts.append(plan.unmerge_pairs(merged, removed))
            else:
                lost = np.flatnonzero(_is_lost(merged, removed))
                parts.append(self._read_end(lookup, lost, merged, plan, way))
        return pl.concat(parts, how="horizontal")

    def _write(
        self, view: KeyedView, rows: pl.DataFrame
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Count the rows of each value; return the values that are new and those that are gone."""
        if not rows.height:
            return rows, rows
        probes = to_batch(rows, self._key)
        known = view.get(probes, columns=[COUNT])
        before = np.where(known.found, _numbers(known.rows.column(COUNT)), 0)
        after = before + rows.get_column(SIGN).to_numpy()
        is_there = after > 0
        counted = rows.with_columns(pl.Series(COUNT, after)).filter(pl.Series(is_there))
        view.put(to_batch(counted, self._stored))
        view.delete(probes.filter(pa.array(known.found & ~is_there)))
        appeared, vanished = ~known.found & is_there, known.found & ~is_there
        return rows.filter(pl.Series(appeared)), rows.filter(pl.Series(vanished))

    def _read_end(
        self,
        lookup: _Lookup,
        lost: Positions,
        merged: pl.DataFrame,
        plan: AggregatePlan,
        way: Way,
    ) -> pl.DataFrame:
        """Compute groups anew whose deciding value is gone: from the end of those that are left."""
        if not len(lost):
            return merged
        ends = lookup.read(lost, limit=1, last=way == "last")
        unplaced = ends.filter(pl.col(self._columns[0]).is_null())
        if way == "first" and unplaced.height:
            # Rows without a place come last, but in the table's order nulls come first.
            all_of = np.unique(unplaced.get_column(GROUP).to_numpy())
            ends = pl.concat([ends, lookup.read(all_of)])
        left = partials_by_group(plan, ends, merged.height, or_null=False)
        is_lost = np.zeros(merged.height, np.bool_)
        is_lost[lost] = True
        return _chosen(is_lost, left, merged)

    def _read_again(
        self,
        lookup: _Lookup,
        groups: Positions,
        state: pl.DataFrame,
        plan: AggregatePlan,
        sizes: Positions,
    ) -> pl.DataFrame:
        """Compute results anew from all values of these groups; others have those of before."""
        is_new = np.zeros(len(sizes), np.bool_)
        is_new[groups] = True
        results = plan.results_of(plan.of_no_rows(1), ())
        pieces = []
        for some in _slices(groups, sizes):
            rows = lookup.read(some)
            counts = rows.get_column(COUNT).to_numpy()
            repeated = np.repeat(np.arange(rows.height), counts)
            made = plan.partials_of(rows.select(pl.all().gather(repeated)), [GROUP])
            pieces.append(plan.results_of(made, [GROUP]))
        none = results.head(0).with_columns(pl.lit(0, pl.Int64).alias(GROUP))
        found = aligned(
            pl.concat(pieces).select(none.columns) if pieces else none, results, len(sizes)
        )
        (column,) = state.columns
        found = found.rename({results.columns[0]: column})
        # A group whose rows have no such value at all has the result of no rows from its start.
        is_new |= state.get_column(column).is_null().to_numpy()
        return _chosen(is_new, found, state)


def _is_lost(merged: pl.DataFrame, removed: pl.DataFrame) -> Flags:
    """Return where the value that decides is among those that are gone."""
    is_there = removed.select(pl.any_horizontal(pl.all().is_not_null())).to_series()
    lost = is_there.to_numpy().copy()
    for name in merged.columns:
        lost &= merged[name].eq_missing(removed[name]).to_numpy()
    return lost


def _chosen(is_first: Flags, first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    """Return the row of the first frame where it is chosen, elsewhere that of the second."""
    both = pl.concat([first, second.select(first.columns).cast(first.schema)])
    places = np.arange(first.height) + np.where(is_first, 0, first.height)
    return both.select(pl.all().gather(places))


def _slices(groups: Positions, sizes: Positions) -> Iterator[Positions]:
    """Yield groups that together have not too many rows; at least one at a time."""
    parts = np.cumsum(np.maximum(sizes[groups], 1)) // _MAX_READ
    for cut in np.split(groups, np.flatnonzero(np.diff(parts)) + 1):
        if len(cut):
            yield cut


def _numbers(column: Any) -> Any:
    return column.fill_null(0).to_numpy(zero_copy_only=False)
