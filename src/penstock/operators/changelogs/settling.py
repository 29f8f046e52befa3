"""Settle: brings the changes of an epoch into their exact form, for those who look at each row.

    change         k  n            change         k  n
    update-after   1  5            delete         2  7
    update-before  2  7       ─▶   insert         1  5
    insert         3  1            insert         3  2
    delete         3  1
    insert         3  2

Behind a filter an `update-after` may stand alone, and behind a join a row may come and go within
one epoch. The operator gathers the rows of an epoch and emits at most one change per key: rows
that cancel each other out vanish, a row for a row is an update, what is left is an insert or
a delete. It keeps nothing from epoch to epoch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import stored_type
from penstock.core.schema import CHANGE_COLUMN, Settling, StreamSchema
from penstock.graph.logical import OperatorSpec
from penstock.operators.aggregates.frames import (
    check_groupable,
    columns_to_frame,
    first_equal,
)
from penstock.operators.changes import are_added, check_changelog, kinds_of
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.frames import polars_type
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.stateless import EpochOperator
from penstock.state.tables.sorted_rows import Flags, Positions, equal_keys


@dataclass(frozen=True, slots=True)
class SettleConfig(OperatorConfig):
    """The config of operators that settle changes."""

    kind: ClassVar[str] = "settle"

    sent_by: tuple[str, ...] = ()
    """The columns by which the rows are sent on: an update that changes them is taken apart."""

    @override
    def shown(self) -> Mapping[str, str]:
        return {"sent_by": ", ".join(self.sent_by)} if self.sent_by else {}


def settle_spec(sent_by: Sequence[str] = ()) -> OperatorSpec:
    """Emit at most one exact change per key and epoch."""
    return SettleConfig(tuple(sent_by)).to_operator_spec()


class Settle(Configured[SettleConfig], EpochOperator):
    """Gathers the changes of an epoch and emits what they come to."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        stream = inputs[0]
        check_groupable(stream.arrow, check_changelog("settle", stream))
        return replace(stream, settling=Settling.SETTLED)

    @override
    def process_epoch(
        self, rows: pa.Table, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        key = check_changelog("settle", ctx.inputs[0])
        collector.collect(settle(rows, key, self.config.sent_by))


def settle(rows: pa.Table, key: Sequence[str], sent_by: Sequence[str] = ()) -> pa.Table:
    """Return what the changes of one epoch come to, the changes of a key side by side."""
    if not rows.num_rows:
        return rows
    is_added = are_added(rows).to_numpy()
    groups = first_equal_rows(rows, key)
    kept = _remaining(rows, groups, is_added)
    # Rows of a group side by side, in the order in which groups come; removals first.
    order: Positions = kept[np.lexsort((kept, is_added[kept], groups[kept]))]
    is_first = _is_update_before(groups[order], is_added[order])
    first = np.flatnonzero(is_first)
    names = [name for name in rows.column_names if name != CHANGE_COLUMN]
    before, after = order[first], order[first + 1]
    is_same = _are_equal(rows, names, before, after)
    codes = np.where(is_added[order], 0, 3)
    is_update = np.ones(len(first), np.bool_)
    if sent_by:
        is_update = _are_equal(rows, sent_by, before, after)
    codes[first[is_update]] = 1
    codes[first[is_update] + 1] = 2
    is_shown = np.ones(len(order), np.bool_)
    is_shown[first[is_same]] = False
    is_shown[first[is_same] + 1] = False
    shown: Any = order[is_shown]
    settled = rows.take(shown)
    place = rows.schema.get_field_index(CHANGE_COLUMN)
    kinds = kinds_of(codes[is_shown])
    return settled.set_column(place, rows.schema.field(place), kinds)


def first_equal_rows(rows: pa.Table, columns: Sequence[str]) -> Positions:
    """Return the first row that is equal in these columns, for each row."""
    if not columns:
        return np.zeros(rows.num_rows, np.int64)
    told_apart = pa.table([_told_apart(rows.column(n)) for n in columns], list(columns))
    return first_equal(columns_to_frame(told_apart.to_batches(), columns))


def _told_apart(column: "pa.ChunkedArray[Any]") -> Any:
    """Return what tells values of a column apart: those that Polars lacks are numbered."""
    if polars_type(stored_type(column.type)) != pl.Object:
        return column
    whole: Any = column.combine_chunks()
    return whole.dictionary_encode().indices


def _remaining(rows: pa.Table, groups: Positions, is_added: Flags) -> Positions:
    """Return the rows that do not cancel each other out within a group.

    A group of one row, or of a removal and an addition, is left for the caller to look at:
    these are nearly all groups.
    """
    added = np.bincount(groups, is_added, rows.num_rows)
    removed = np.bincount(groups, ~is_added, rows.num_rows)
    is_large = ((added > 1) | (removed > 1))[groups]
    every = np.arange(rows.num_rows)
    if not is_large.any():
        return every
    large = every[is_large]
    names = [name for name in rows.column_names if name != CHANGE_COLUMN]
    taken: Any = large
    equal = first_equal_rows(rows.take(taken), names)
    signs = np.where(is_added[large], 1, -1)
    net = np.bincount(equal, signs, len(large)).astype(np.int64)[equal]
    # Of equal rows, the first ones of the sign that prevails are kept, as many as prevail.
    order = np.lexsort((large, signs, equal))
    place = np.arange(len(large))
    starts = np.flatnonzero(
        np.diff(equal[order], prepend=-1) | np.diff(signs[order], prepend=0)
    )
    rank = np.empty(len(large), np.int64)
    rank[order] = place - np.repeat(starts, np.diff(starts, append=len(large)))
    is_kept = (np.sign(net) == signs) & (rank < np.abs(net))
    return np.concatenate([every[~is_large], large[is_kept]])


def _is_update_before(groups: Positions, is_added: Flags) -> Flags:
    """Return which rows are a removal of a group that has one addition besides, and no more."""
    sizes = np.bincount(groups, minlength=1)
    is_pair = sizes[groups] == 2
    follows = np.append(is_added[1:] & (groups[1:] == groups[:-1]), [False])[: len(groups)]
    return np.asarray(is_pair & ~is_added & follows)


def _are_equal(
    rows: pa.Table, columns: Sequence[str], one: Positions, other: Positions
) -> Flags:
    """Return which pairs of rows are equal in these columns."""
    arrays: list[Any] = [rows.column(name).combine_chunks() for name in columns]
    return equal_keys(arrays, one, arrays, other)
