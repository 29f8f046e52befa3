"""Operators that keep a row per key and emit its changes as `before`, `after` and `op`."""

from abc import abstractmethod
from collections.abc import Sequence

import polars as pl
import pyarrow as pa

import penstock as pen
from penstock.operators import ArrowCollector, ArrowOperator, OperatorContext, keyed_table
from penstock.state.tables.specs import TableSpec
from tests.builders.graphs import schema_of
from tests.golden_cases.golden_job import ORDER

MICROS_PER_SECOND = 1_000_000


class ChangelogOperator(ArrowOperator):
    """Keeps a row per key. A subclass says what a batch makes of it."""

    def __init__(self, kept: pa.Schema, key: str) -> None:
        self._kept = kept
        self._key = key

    def output_schema(self, inputs: Sequence[pen.StreamSchema]) -> pen.StreamSchema:
        row = pa.struct(list(self._kept))
        return pen.StreamSchema(schema_of(before=row, after=row, op=pa.string()))

    def tables(self) -> Sequence[TableSpec]:
        return [keyed_table("rows", self._kept, key_columns=[self._key])]

    @abstractmethod
    def fold(self, batch: pl.DataFrame) -> pl.DataFrame:
        """Return what a batch says of each of its keys, once; `is_gone` if nothing is left."""

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        table = ctx.get_keyed_state("rows")
        news = self.fold(_frame_of(batch))
        answer = table.get(news)
        known = _frame_of(answer.rows)
        columns = self._kept.names
        was_there, is_gone = pl.Series(answer.found), news["is_gone"]
        changes = pl.DataFrame(
            {"before": known.to_struct(), "after": news.select(columns).to_struct()}
        ).select(
            before=pl.when(was_there).then("before"),
            after=pl.when(~is_gone).then("after"),
            op=pl.when(~was_there)
            .then(pl.lit("c"))
            .when(is_gone)
            .then(pl.lit("d"))
            .otherwise(pl.lit("u")),
        )
        table.put(news.filter(~is_gone).select(columns))
        table.delete(news.filter(is_gone).select(self._key))
        collector.collect(changes.filter(was_there | ~is_gone))


class LatestOrders(ChangelogOperator):
    """Keeps every order as its last change left it, its date in whole seconds."""

    def __init__(self) -> None:
        super().__init__(ORDER, "id")

    def name(self) -> str:
        return "latest-orders"

    def fold(self, batch: pl.DataFrame) -> pl.DataFrame:
        last = batch.group_by("id").last()
        return last.select(
            pl.col("id"),
            pl.col("after").struct.field(*[name for name in ORDER.names if name != "id"]),
            is_gone=pl.col("op") == "d",
        ).with_columns(pl.col("order_date") // MICROS_PER_SECOND)


def _frame_of(batch: pa.RecordBatch) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(batch))
