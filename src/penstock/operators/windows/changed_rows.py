"""ChangedAggregation: what windows compute of a changelog, out of whose panes rows are taken.

A pane holds what was added and what was removed side by side, told apart by a sign; both are
put together only when a window is computed, so state stays append-only:

| aggregates | a pane's rows | a window is |
|---|---|---|
| all take rows out by arithmetic | partials by key and sign | the added partials, without the removed ones |
| others among them | the different values that are read, with signs added up | partials of the values that are left |

A row is added in an earlier epoch than it is removed, or in the same one, and both have the
same event time. So a window that takes in the removal has the row; one without rows is none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.errors import SchemaError
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.aggregates.frames import check_groupable, decoded, to_frame
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.changes import DELETE, INSERT, are_added
from penstock.operators.updating.change_plan import ROWS, compile_changes
from penstock.operators.updating.combine import SIGN
from penstock.operators.windows.aggregation import MICROS, PANE, WindowAggregation
from penstock.state.tables.column_groups import ColumnGroup

EPOCH, IS_THERE = f"{CHANGE_COLUMN}.epoch", f"{CHANGE_COLUMN}.is_there"
"""Columns beside results that were emitted: when they were, and whether there were any."""
IS_EMITTED = f"{CHANGE_COLUMN}.is_emitted"
"""The column of a session that says whether its results were emitted."""
STATE_COLUMNS = (SIGN, ROWS, EPOCH, IS_THERE, IS_EMITTED)
"""Columns of the state of windows that change: no key and no result may have their names."""


@dataclass(frozen=True)
class ChangedAggregation(WindowAggregation):
    """Aggregates over the windows of a changelog. Valid by construction.

    The plan begins with the count of rows if all of it is arithmetic.
    """

    @cached_property
    def keeps_values(self) -> bool:
        """Return whether panes hold values instead of partials."""
        return self.plan.aggregates[0].result.name != CHANGE_COLUMN

    @property
    @override
    def finished(self) -> AggregatePlan:
        return self.plan.without(CHANGE_COLUMN)

    @cached_property
    def _values(self) -> tuple["pa.Field[Any]", ...]:
        """The columns that panes hold beside key, pane and sign."""
        if not self.keeps_values:
            return self.plan.partials
        keys = self.stream.key_columns
        plain = decoded(self.stream.arrow)
        return tuple(plain.field(name) for name in self.plan.reads if name not in keys)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The columns of the rows that are read, besides their event time."""
        names = (*self.stream.key_columns, *self.plan.reads, CHANGE_COLUMN)
        return tuple(dict.fromkeys(names))

    @cached_property
    def partials(self) -> StreamSchema:
        """The schema of what is sent to the owners of keys."""
        own = [pa.field(PANE, MICROS), pa.field(SIGN, pa.int64())]
        return StreamSchema(pa.schema([*self.key_fields, *own, *self._values]), PANE)

    @property
    @override
    def groups(self) -> tuple[ColumnGroup, ...]:
        # Values belong to no aggregate: any that reads the same ones may be computed of them.
        return () if self.keeps_values else self.plan.groups

    @override
    def rows_of(self, batches: Sequence[pa.RecordBatch]) -> pl.DataFrame:
        table = pa.Table.from_batches(batches)
        is_added = pl.Series(are_added(table).to_numpy())
        sign = pl.when(is_added).then(pl.lit(1, pl.Int64)).otherwise(-1).alias(SIGN)
        return to_frame(table.drop_columns(CHANGE_COLUMN)).with_columns(sign)

    @override
    def combine(self, rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        if self.keeps_values:
            return self._net(rows, by)
        return self.plan.partials_of(rows, [*by, SIGN])

    @override
    def condense(self, panes: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        if self.keeps_values:
            return self._net(panes, by)
        return self.plan.merge(panes, [*by, SIGN])

    @override
    def merge(self, panes: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        if self.keeps_values:
            return self._of_values(panes, by)
        plan, names = self.plan, list(by)
        added = plan.merge(panes.filter(pl.col(SIGN) > 0), names)
        gone = panes.filter(pl.col(SIGN) < 0)
        if gone.height:
            removed = plan.merge(gone, names)
            others = added.select(names).join(
                removed, on=names, how="left", nulls_equal=True, maintain_order="left"
            )
            left = plan.unmerge_pairs(added, others)
            added = added.select(names).hstack(left)
        return added.filter(pl.col(ROWS) > 0)

    def _net(self, rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """Return the different values of each group with their signs added up."""
        names = dict.fromkeys((*by, *(field.name for field in self._values)))
        net = rows.group_by(*names).agg(pl.col(SIGN).sum())
        return net.filter(pl.col(SIGN) != 0)

    def _of_values(self, panes: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """Return the partials of the values of each group that are left."""
        net = self._net(panes, by).filter(pl.col(SIGN) > 0)
        if not net.height:
            nothing = self.plan.of_no_rows(0)
            return net.select(by).hstack(nothing)
        each = np.repeat(np.arange(net.height), net.get_column(SIGN).to_numpy())
        return self.plan.partials_of(net.select(pl.all().gather(each)), by)


def compile_changed(
    step: str, aggregates: Mapping[str, Any], stream: StreamSchema, taken: Sequence[str]
) -> AggregatePlan:
    """Compile aggregates over the windows of a changelog, or raise with what is wrong."""
    keys = stream.key_columns
    plan = compile_changes(step, aggregates, stream, taken=taken, keys=keys)
    if not plan.values:
        return plan.arithmetic
    # Values are rows again when a window is computed, which then is one of rows.
    names = [name for name in stream.arrow.names if name != CHANGE_COLUMN]
    fields = pa.schema([stream.arrow.field(name) for name in names])
    rows = replace(stream, arrow=fields, table_key=None, is_bag=False)
    compiled = compile_aggregates(step, aggregates, rows, taken=taken, keys=keys)
    clashing = [name for name in compiled.reads if name in (PANE, SIGN)]
    if clashing:
        raise SchemaError(
            f"the aggregates of {step!r} read {clashing}, and windows over changelogs keep values "
            "beside columns of these names: rename them before",
            operator=step,
            columns=tuple(clashing),
        )
    check_groupable(rows.arrow, compiled.reads)
    return compiled


def find_name_problems(stream: StreamSchema) -> list[str]:
    """Return which key columns have a name that windows need whose results change."""
    return [
        f"key column {name!r} has the name of a column that its state or output adds: rename it"
        for name in stream.key_columns
        if name in (CHANGE_COLUMN, *STATE_COLUMNS)
    ]


def rows_aside(stream: StreamSchema, *, has_time: bool) -> StreamSchema:
    """Return the schema of changes that are in no window: append-only rows with `change`."""
    return StreamSchema(stream.arrow, stream.time_column if has_time else None)


def as_rows_aside(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return changes as those of a side output: each is an `insert` or a `delete` for itself."""
    is_added: Any = are_added(rows)
    kinds: Any = pa.array(np.where(is_added.to_numpy(zero_copy_only=False), INSERT, DELETE))
    place = rows.schema.get_field_index(CHANGE_COLUMN)
    return rows.set_column(place, rows.schema.field(place), kinds.cast(pa.string()))
