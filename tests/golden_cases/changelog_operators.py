"""Operators that keep a row per key and emit its changes as `before`, `after` and `op`."""

from abc import abstractmethod
from collections.abc import Sequence

import polars as pl
import pyarrow as pa

import penstock as ps
from penstock.state.tables.specs import TableSpec
from tests.builders.golden_data import ORDER
from tests.builders.pipeline_operators import schema_of

TOTALS = schema_of(
    counter_mod=pa.int64(),
    min=pa.int64(),
    max=pa.int64(),
    sum=pa.int64(),
    count=pa.int64(),
    avg=pa.float64(),
)
MICROS_PER_SECOND = 1_000_000


class ChangelogOperator(ps.ArrowOperator):
    """Keeps a row per key. A subclass says what a batch makes of it."""

    def __init__(self, kept: pa.Schema, key: str) -> None:
        self._kept = kept
        self._key = key

    def output_schema(self, inputs: Sequence[ps.StreamSchema]) -> ps.StreamSchema:
        row = pa.struct(list(self._kept))
        return ps.StreamSchema(schema_of(before=row, after=row, op=pa.string()))

    def tables(self) -> Sequence[TableSpec]:
        return [ps.keyed_table("rows", self._kept, key_columns=[self._key])]

    @abstractmethod
    def fold(self, batch: pl.DataFrame) -> pl.DataFrame:
        """Return what a batch says of each of its keys, once; `is_gone` if nothing is left."""

    def merge(self, known: pl.DataFrame, news: pl.DataFrame) -> pl.DataFrame:
        """Return the rows as they are now; those known are null where there was none."""
        del known
        return news

    def process_batch(
        self, batch: pa.RecordBatch, ctx: ps.OperatorContext, collector: ps.ArrowCollector
    ) -> None:
        table = ctx.get_keyed_state("rows")
        news = self.fold(_frame_of(batch))
        answer = table.get(news)
        known = _frame_of(answer.rows)
        now = self.merge(known, news)
        columns = self._kept.names
        was_there, is_gone = pl.Series(answer.found), news["is_gone"]
        changes = pl.DataFrame(
            {"before": known.to_struct(), "after": now.select(columns).to_struct()}
        ).select(
            before=pl.when(was_there).then("before"),
            after=pl.when(~is_gone).then("after"),
            op=pl.when(~was_there)
            .then(pl.lit("c"))
            .when(is_gone)
            .then(pl.lit("d"))
            .otherwise(pl.lit("u")),
        )
        table.put(now.filter(~is_gone).select(columns))
        table.delete(now.filter(is_gone).select(self._key))
        collector.collect(changes.filter(was_there | ~is_gone))


class RunningTotals(ChangelogOperator):
    """Keeps min, max, sum, count and average of `counter` by `counter_mod`."""

    def __init__(self) -> None:
        super().__init__(TOTALS, "counter_mod")

    def name(self) -> str:
        return "running-totals"

    def fold(self, batch: pl.DataFrame) -> pl.DataFrame:
        counter = pl.col("counter")
        return batch.group_by("counter_mod").agg(
            min=counter.min(),
            max=counter.max(),
            sum=counter.sum(),
            count=pl.len().cast(pl.Int64),
            is_gone=pl.lit(value=False),
        )

    def merge(self, known: pl.DataFrame, news: pl.DataFrame) -> pl.DataFrame:
        merged = news.with_columns(
            min=pl.min_horizontal(known["min"], news["min"]),
            max=pl.max_horizontal(known["max"], news["max"]),
            sum=known["sum"].fill_null(0) + news["sum"],
            count=known["count"].fill_null(0) + news["count"],
        )
        return merged.with_columns(avg=pl.col("sum") / pl.col("count"))


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
