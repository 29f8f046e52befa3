"""A job's status tells what an epoch asked of store and cache."""

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

import penstock as pen
from penstock.operators import ArrowCollector, ArrowOperator, OperatorContext, keyed_table
from penstock.runtime.driver.progress import EpochProgress

COUNTS = pa.schema([("key", pa.int64()), ("count", pa.int64())])


class Counts(ArrowOperator):
    """Counts rows per key."""

    def name(self) -> str:
        return "counts"

    def output_schema(self, inputs: Any) -> pen.StreamSchema:
        return pen.StreamSchema(COUNTS)

    def tables(self) -> Any:
        return [keyed_table("counts", COUNTS, key_columns=["key"])]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        table = ctx.get_keyed_state("counts")
        new = pl.DataFrame(pl.from_arrow(batch)).group_by("key").agg(new=pl.len())
        known = pl.DataFrame(pl.from_arrow(table.get(new.select("key")).rows))["count"]
        table.put(new.select("key", count=pl.col("new") + known.fill_null(0)))


def epochs_of(folder: Path, count: int) -> list[EpochProgress]:
    seen: dict[int, EpochProgress] = {}

    def note(status: pen.JobStatus) -> None:
        if status.last is not None:
            seen[status.last.epoch] = status.last

    pipeline = pen.Pipeline("counts")
    numbers = pipeline.read("numbers", pen.impulse(count=count))
    keyed = numbers.with_columns(key=pl.col("counter") % 7).key_by("key")
    keyed.process("counts", Counts()).write("out", pen.blackhole())
    pipeline.run_in_process(str(folder), on_status=note)
    return list(seen.values())


def test_an_epoch_that_writes_state_asks_something_of_the_store(tmp_path: Path) -> None:
    first, *_ = epochs_of(tmp_path, 100)
    assert first.bytes_written > 0
    assert first.storage_requests >= 2  # one file of each of the two tables at least


def test_a_cache_that_was_not_asked_has_no_hit_rate() -> None:
    progress = EpochProgress(1, True, 0, 0, 0, 0, 0, 0)
    assert progress.cache_hit_rate is None
    asked = EpochProgress(1, True, 0, 0, 0, 0, 0, 0, cache_hits=3, cache_misses=1)
    assert asked.cache_hit_rate == 0.75
