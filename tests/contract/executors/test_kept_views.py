"""A view that an operator keeps in an attribute works in every epoch, on every executor."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_source
from penstock.core.schema import StreamSchema
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.runtime.driver.decide import JobPhase
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import ManualPacer
from penstock.state.tables.global_keyed import GlobalKeyedView
from penstock.state.tables.specs import TableSpec, global_table
from tests.builders.pipeline_graphs import (
    JOB,
    START_MICROS,
    some_rows,
)
from tests.builders.pipeline_operators import COUNTS, ROWS, BookSink, batch_of, open_book
from tests.contract.executors.conftest import MakeExecutor
from tests.contract.executors.epoch_runner import a_runner


class KeepsItsView(ArrowOperator):
    """Takes a view in `on_start`, as in the specification, and uses it in every epoch."""

    passed: GlobalKeyedView[str, int]

    def name(self) -> str:
        return "keeps-its-view"

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        return StreamSchema(COUNTS)

    def tables(self) -> Sequence[TableSpec]:
        return [global_table("passed", str, int)]

    def on_start(self, ctx: OperatorContext) -> None:
        self.passed = ctx.table_manager.get_global_keyed_state("passed")

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        for user in batch.column("user").to_pylist():
            key = f"{user}-{ctx.task.subtask.index}"
            count = (self.passed.get(key) or 0) + 1
            self.passed.insert(key, count)
            collector.collect(batch_of([{"user": key, "count": count}], COUNTS))


def test_a_view_kept_from_on_start_works_in_every_epoch_behind_a_forward_edge(
    executor_under_test: MakeExecutor, tmp_path: Path
) -> None:
    """Event time of the two splits differs, so in each epoch one subtask is ahead."""
    rows = [
        {**row, "at": START_MICROS + 1_000_000 * at * (1 + at % 2)}
        for at, row in enumerate(some_rows(60, users=9))
    ]
    book = open_book("kept-view")
    p = Pipeline(JOB, parallelism=2)
    source = list_source(rows, ROWS, splits=2, batch_rows=4, time_column="at")
    read = p.read("read", source, watermark_delay="1s")
    read.process("keep", KeepsItsView()).write("out", BookSink("kept-view"))
    runner = a_runner(p.graph(), executor_under_test, tmp_path)
    driver = JobDriver(runner.environment, pacer=ManualPacer(runner.clock))
    assert driver.run().phase is JobPhase.FINISHED
    counts: dict[str, list[int]] = {}
    for row in book.rows("out"):
        counts.setdefault(row["user"], []).append(row["count"])
    assert sum(map(len, counts.values())) == len(rows)
    assert all(sorted(found) == [*range(1, len(found) + 1)] for found in counts.values())
