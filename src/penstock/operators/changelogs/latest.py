"""Latest: keeps the last row of each key and emits how it changes, which makes rows a changelog.

Which row is the last one is told by a column (an event time, a version), of several the greatest
row; or by the order in which rows come, for sources that promise to bring the rows of a key in
order. A column may say that the row of a key is gone.

    to_table        by event time
    from_upserts    as rows come, or by a column; with deletions
    from_debezium   as records come, or by a version that is no column of the table; with deletions
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.key_hash import check_key_type, hash_keys_uncut
from penstock.core.schema import StreamSchema
from penstock.errors import SchemaError
from penstock.graph.logical import MAIN, OperatorSpec
from penstock.operators.aggregates.aggregate import DIALECT, is_orderable
from penstock.operators.aggregates.frames import (
    check_groupable,
    columns_to_frame,
    decoded,
    frame_schema,
    in_plain_layouts,
)
from penstock.operators.changes import changelog_schema, to_changes
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.stateless import EpochOperator, check_columns
from penstock.state.tables.column_groups import ColumnGroup, Meaning
from penstock.state.tables.sorted_rows import Flags, equal_keys, take_rows
from penstock.state.tables.specs import TableSpec, keyed_table

TABLE = "rows"
_PLACE = "_penstock_place"


@dataclass(frozen=True, slots=True)
class LatestConfig(OperatorConfig):
    """The config of operators that keep the last row of each key."""

    kind: ClassVar[str] = "latest"

    rows: bytes
    """The input's schema, as `StreamSchema.to_bytes` returns it; its key is the table's."""
    order: str | None = None
    """The column that tells which row is the last one; None for the order in which rows come."""
    deleted: str | None = None
    """The column that is true where the row of a key is gone; it is no column of the table."""
    version: str | None = None
    """The column that tells instead of `order` which row is the last one, of several the last to
    come; it is no column of the table."""
    version_of: str = ""
    """The expression whose values the versions are, as Polars prints it."""

    @override
    def shown(self) -> Mapping[str, str]:
        key = ", ".join(StreamSchema.from_bytes(self.rows).key_columns)
        order = self.order if self.version is None else self.version_of
        by = {} if order is None else {"order": order}
        gone = {} if self.deleted is None else {"deleted": self.deleted}
        keeps = "the last row of each key"
        if gone:
            keeps += ", and for ever when it was deleted" if by else " until it is deleted"
        return {"key": key, **by, **gone, "keeps": keeps}


def latest_spec(
    rows: StreamSchema,
    order: str | None = None,
    deleted: str | None = None,
    *,
    version: str | None = None,
    version_of: str = "",
) -> OperatorSpec:
    """Keep the last row of each key and emit its changes; rows come by key."""
    named = [name for name in (order, deleted, version) if name is not None]
    check_columns(named, rows.arrow.names, "the table")
    if order is not None and not is_orderable(frame_schema(rows.arrow)[order]):
        raise SchemaError(
            f"column {order!r} says which row is the last one, but it is "
            f"{rows.arrow.field(order).type}, which has no order: name a column of numbers, text, "
            "bytes, instants, durations or booleans",
            column=order,
        )
    if deleted is not None:
        found = rows.arrow.field(deleted).type
        if not pa.types.is_boolean(found):
            raise SchemaError(
                f"column {deleted!r} says which rows are deleted, but it is {found}: it must be "
                "true or false",
                column=deleted,
            )
        if deleted in rows.key_columns or deleted == order:
            raise SchemaError(
                f"column {deleted!r} says which rows are deleted: it cannot be a key or an order "
                "as well",
                column=deleted,
            )
    config = LatestConfig(rows.to_bytes(), order, deleted, version, version_of)
    return config.to_operator_spec()


class Latest(Configured[LatestConfig], EpochOperator):
    """Merges an epoch's rows into a `KeyedTable` and emits a changelog of it."""

    def __init__(self, config: LatestConfig) -> None:
        super().__init__(config)
        self._stream = StreamSchema.from_bytes(config.rows)
        hidden = (config.deleted, config.version)
        shown = [f for f in self._stream.arrow if f.name not in hidden]
        self._shown = decoded(pa.schema(shown))
        """The columns of the table."""
        self._order = config.order if config.version is None else config.version
        # By an order of its own, a deletion must be remembered: an older row may still come.
        is_marked = config.deleted is not None and self._order is not None
        mark = [pa.field(str(config.deleted), pa.bool_())] if is_marked else []
        version = [f for f in self._stream.arrow if f.name == config.version]
        self._stored = pa.schema([*self._shown, *decoded(pa.schema(version)), *mark])
        self._types = frame_schema(self._stored)

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        keys, time = self._stream.key_columns, self._stream.time_column
        check_groupable(inputs[0].arrow, keys)
        fields = {field.name: field for field in self._shown}
        key = [fields.pop(name) for name in keys]
        return changelog_schema(key, list(fields.values()), time)

    @override
    def tables(self) -> Sequence[TableSpec]:
        keys, order = self._stream.key_columns, self.config.order
        # Rows that another order needs were never kept.
        by = "as they come" if order is None else f"by {order}"
        meaning = Meaning(f"the last rows {by}")
        if self.config.version is not None:
            meaning = Meaning("the last records in order", self.config.version_of, DIALECT)
        group = ColumnGroup(TABLE, (), meaning, fill=b"", noun="table")
        return [keyed_table(TABLE, self._stored, key_columns=keys, groups=[group])]

    @override
    def process_epoch(
        self, rows: pa.Table, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Compare the last row of each key of this epoch with the one that is kept."""
        last, is_gone = self._last_rows(in_plain_layouts(rows))
        table = ctx.get_keyed_state(TABLE)
        known = table.get(last)
        was = known.found
        if self._order is not None:
            is_newer = self._is_newer(last, known.rows, was)
            last, is_gone = _picked(last, is_newer), is_gone[is_newer]
            before, was = _picked(known.rows, is_newer), was[is_newer]
        else:
            before = known.rows
        if self.config.deleted in self._stored.names:
            mark = before.column(str(self.config.deleted))
            was = was & ~mark.fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003 (Arrow's signature)
            table.put(last)
        else:
            table.put(_picked(last, ~is_gone))
            table.delete(_picked(last, is_gone))
        self._emit(before, last, (was, ~is_gone), ctx, collector)

    def _emit(
        self,
        before: pa.RecordBatch,
        after: pa.RecordBatch,
        there: tuple[Flags, Flags],
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        schema = ctx.outputs[MAIN].arrow
        names = schema.names[1:]
        was, is_there = there
        olds: list[Any] = [before.column(name) for name in names]
        news: list[Any] = [after.column(name) for name in names]
        every = np.arange(after.num_rows)
        same = was & is_there & equal_keys(olds, every, news, every)
        changed = pa.array((was | is_there) & ~same)
        olds = [column.filter(changed) for column in olds]
        news = [column.filter(changed) for column in news]
        picked = changed.to_numpy(zero_copy_only=False)
        changes = to_changes(schema, olds, news, was[picked], is_there[picked])
        collector.collect(changes)

    def _last_rows(self, rows: pa.Table) -> tuple[pa.RecordBatch, Flags]:
        """Return the last row of each key in the epoch, and which say that theirs is gone."""
        config, keys = self.config, list(self._stream.key_columns)
        if self._order is None:
            frame = columns_to_frame(rows.to_batches(), keys).with_row_index(_PLACE)
        else:
            frame = self._rivals(rows.to_batches(), self._order, keys)
        last = frame.group_by(keys, maintain_order=True).agg(pl.col(_PLACE).last())
        places = last.get_column(_PLACE).to_numpy().astype(np.int64)
        if config.deleted is None:
            is_gone = np.zeros(len(places), np.bool_)
        else:
            gone: Any = take_rows(rows.column(config.deleted).combine_chunks(), places)
            is_gone = gone.fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003 (Arrow's signature)
        picked = take_rows(rows.select(self._stored.names), places).combine_chunks()
        cast = picked.cast(self._stored)
        return next(iter(cast.to_batches())), is_gone

    def _rivals(
        self, taken: Sequence[pa.RecordBatch], order: str, keys: list[str]
    ) -> pl.DataFrame:
        """Return the rows of the epoch that may be their key's last, the greatest one last.

        Nearly always these are one per key, so that only their order is looked at.
        """
        frame = columns_to_frame(taken, [*dict.fromkeys([*keys, order])])
        frame = frame.with_row_index(_PLACE)
        value = pl.col(order)
        greatest = value.nan_max() if frame.schema[order].is_float() else value.max()
        highest = frame.filter(value.eq_missing(greatest.over(keys)))
        if self.config.version is not None:
            return highest  # of several the last to come
        is_tied = pl.len().over(keys) > 1
        tied = highest.filter(is_tied)
        if not tied.height:
            return highest
        some: Any = tied.get_column(_PLACE).to_arrow()
        rows = pa.Table.from_batches(taken).take(some).combine_chunks()
        names = [*keys, _PLACE]
        whole = self._compared(rows).with_columns(tied.select(names))
        by = [name for name in self._ordered_by if name not in keys]
        ordered = whole.sort([*by, _PLACE], nulls_last=False)
        return pl.concat([highest.filter(~is_tied).select(names), ordered.select(names)])

    @cached_property
    def _ordered_by(self) -> list[str]:
        """The columns that decide which of two rows is the later one, most important first."""
        if self.config.version is not None:
            return [self.config.version]
        others = [name for name in self._stored.names if name != self.config.order]
        known = [name for name in others if _is_compared(self._stored.field(name).type)]
        return [str(self.config.order), *known]

    def _compared(self, rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
        """Return what rows are compared by: values that have no order by their hashes."""
        batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        plain = [n for n in self._ordered_by if is_orderable(self._types[n])]
        frame = columns_to_frame(batches, plain)
        return frame.with_columns(
            pl.Series(name, hash_keys_uncut([rows.column(name)]))
            for name in self._ordered_by
            if name not in plain
        )

    def _is_newer(self, rows: pa.RecordBatch, known: pa.RecordBatch, was: Flags) -> Flags:
        """Return which rows are later than those that are kept, or as late and of a version."""
        new, old = self._compared(rows), self._compared(known)
        later = np.ones(rows.num_rows, np.bool_)
        is_open = was.copy()
        for name in self._ordered_by:
            one, other = new[name], old[name]
            is_above = ((one > other) | (one.is_not_null() & other.is_null())).fill_null(
                value=False
            )
            is_equal = one.eq_missing(other)
            later[is_open & ~is_above.to_numpy() & ~is_equal.to_numpy()] = False
            is_open &= is_equal.to_numpy()
        if self.config.version is None:
            later[is_open] = False  # the same row again
        return later


def _is_compared(kind: Any) -> bool:
    """Tell whether rows can be compared by a column of a type: all but those with maps can."""
    try:
        check_key_type(kind)
    except SchemaError:
        return False
    return True


def _picked(rows: pa.RecordBatch, which: Flags) -> pa.RecordBatch:
    return rows if which.all() else rows.filter(pa.array(which))
