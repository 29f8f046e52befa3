"""The first n rows of each key in windows: an aggregate of rows, and the operator behind it.

`FirstRows` is an aggregate as any other, so windows of all kinds compute it, and late rows, panes
and sessions are theirs. Its partials are lists of at most n rows per key and pane. When a window
closes, `RankedRows` makes rows of its list:

    window_end  rows                      window_end  rank  price
    12:10       [{price 9}, {price 7}] ─▶ 12:10       1     9
                                          12:10       2     7
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import why_not_in_polars
from penstock.core.schema import CHANGE_COLUMN, Settling, StreamSchema
from penstock.errors import SchemaError
from penstock.operators.aggregates.aggregate import Aggregate
from penstock.operators.aggregates.frames import decoded, frame_schema
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.ranking.order import RankOrder, places_within
from penstock.operators.registry import Configured, OperatorConfig
from penstock.state.tables.sorted_rows import take_rows

ROWS = "top.rows"
"""The result of the aggregate."""


@dataclass(frozen=True, eq=False)
class FirstRows(Aggregate):
    """The first rows of a group by some order, as a list of structs."""

    count: int
    order: RankOrder
    columns: tuple[str, ...] = ()
    """What is kept of each row: all columns but the key; set by `for_stream`."""

    @override
    def display(self) -> str:
        return f"top {self.count} by {self.order.shown()}"

    @override
    def meaning(self) -> str:
        kept = ", ".join(self.columns)
        return f"first {self.count} rows of {kept} by {self.order.shown()}"

    @override
    def for_stream(self, stream: StreamSchema) -> "FirstRows":
        types = frame_schema(stream.arrow)
        names = _ranked_columns(stream)
        if not names:
            raise SchemaError(
                f"{self.display()}: all columns are the key, so that rows of one key are equal: "
                "leave the column by which rows are ranked out of key_by"
            )
        problems = [
            f"column {name!r}: {why_not_in_polars(stream.arrow.field(name).type)}"
            for name in names
            if types[name] == pl.Object
        ]
        if problems:
            raise SchemaError(
                f"{self.display()}: {'; '.join(problems)}: leave it out before"
            )
        return replace(self, columns=tuple(names), order=self.order.within(names))

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        return {"rows": pl.struct(pl.col(name) for name in self.columns)}

    @override
    def merge(self, rows: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"rows": rows.explode()}

    @override
    def settle(self, **computed: pl.Expr) -> Mapping[str, pl.Expr]:
        """Keep the first rows, of all groups at once."""
        first = partial(_first_rows, order=self.order, count=self.count)
        return {"rows": computed["rows"].map_batches(first, is_elementwise=True)}

    @override
    def final(self, rows: pl.Expr) -> pl.Expr:
        return rows

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType:
        plain = decoded(stream.arrow)
        fields = [plain.field(name) for name in _ranked_columns(stream)]
        kept = [pa.field(field.name, field.type) for field in fields]
        return pa.large_list(pa.field("item", pa.struct(kept)))


def _ranked_columns(stream: StreamSchema) -> list[str]:
    """Return the columns of the rows in lists: all but the key, and the kind of a change."""
    left_out = {*stream.key_columns, *([CHANGE_COLUMN] if stream.is_changelog else [])}
    return [name for name in stream.arrow.names if name not in left_out]


def _first_rows(lists: pl.Series, *, order: RankOrder, count: int) -> pl.Series:
    """Return lists of rows in order, each cut off behind the first ones."""
    found: Any = lists.to_arrow()
    parents = found.value_parent_indices().to_numpy().astype(np.int64)
    structs = found.flatten()
    names = [field.name for field in structs.type]
    rows = pa.Table.from_arrays(structs.flatten(), names=names)
    places = order.first_rows(rows, parents, count)
    counts = np.bincount(parents[places], minlength=len(lists))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int64())
    kept = pa.LargeListArray.from_arrays(offsets, take_rows(structs, places))
    return pl.Series(lists.name, kept).cast(lists.dtype)


@dataclass(frozen=True, slots=True)
class RankedRowsConfig(OperatorConfig):
    """The config of operators that make rows of the lists that windows computed."""

    kind: ClassVar[str] = "ranked_rows"

    rank: str | None = None
    """The column of the output with the rank, from 1; None for none."""

    @override
    def shown(self) -> Mapping[str, str]:
        return {} if self.rank is None else {"rank": self.rank}


class RankedRows(Configured[RankedRowsConfig], ArrowOperator):
    """Makes a row of each struct in the list of a window; it keeps nothing."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        stream = inputs[0]
        window = [field for field in stream.arrow if field.name != ROWS]
        kind: Any = stream.arrow.field(ROWS).type
        rank = self.config.rank
        own = [] if rank is None else [pa.field(rank, pa.int64())]
        taken = {field.name for field in (*window, *own)}
        clashing = [field.name for field in kind.value_type if field.name in taken]
        if clashing or len(taken) < len(window) + len(own):
            raise SchemaError(
                f"columns {clashing or [rank]} have names that top in windows adds: rename them "
                "before, or give rank= another name",
                columns=tuple(clashing),
            )
        fields = pa.schema([*window, *own, *kind.value_type])
        if stream.table_key is None:
            return StreamSchema(fields, stream.time_column)
        # Lists that change are changes of their rows: those of a window stay in one subtask.
        key = (*stream.table_key, rank) if rank else tuple(fields.names[1:])
        return StreamSchema(
            fields,
            stream.time_column,
            table_key=key,
            settling=Settling.TOGETHER,
            is_bag=not rank,
        )

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        lists: Any = batch.column(ROWS)
        parents = lists.value_parent_indices().to_numpy().astype(np.int64)
        structs = lists.flatten()
        names = [field.name for field in structs.type]
        columns: dict[str, Any] = dict(zip(names, structs.flatten(), strict=True))
        for name in batch.schema.names:
            if name != ROWS:
                columns[name] = take_rows(batch.column(name), parents)
        if self.config.rank is not None:
            columns[self.config.rank] = pa.array(places_within(parents) + 1, pa.int64())
        schema = self.output_schema(ctx.inputs).arrow
        arrays = [columns[name] for name in schema.names]
        collector.collect(pa.RecordBatch.from_arrays(arrays, schema=schema))
