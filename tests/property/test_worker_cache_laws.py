"""What a worker remembers between epochs: an instance goes on only from the run that counted.

Operators here break the rules on purpose. Their memory holds what their tables do not, or
their tables what another attempt would not write again: so it shows whose memory it is.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_source
from penstock.core.clock import new_token
from penstock.core.schema import StreamSchema
from penstock.graph.logical import LogicalGraph
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.runtime.in_process import Chaos, Mischief
from penstock.state.tables.specs import TableSpec, global_table
from tests.builders.graphs import schema_of
from tests.builders.pipeline_graphs import JOB, Row, Shape, some_rows
from tests.builders.pipeline_job import PipelineJob
from tests.builders.pipeline_operators import COUNTS, ROWS, BookSink, batch_of

NAMED = schema_of(user=pa.string(), name=pa.string())
ROW_COUNT = 30
TEARING = (Mischief.LOSE, Mischief.DUPLICATE, Mischief.REPEAT)


class NameUsers(ArrowOperator):
    """Gives every user a random name when it first comes; remembers it in table and memory."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def name(self) -> str:
        return "name-users"

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        return StreamSchema(NAMED)

    def tables(self) -> Sequence[TableSpec]:
        return [global_table("names", str, str)]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        table = ctx.get_global_keyed_state("names")
        users = [str(user) for user in batch.column("user").to_pylist()]
        for user in users:
            if user not in self._names:
                self._names[user] = table.get(user) or str(new_token())
                table.insert(user, self._names[user])
        rows = [{"user": user, "name": self._names[user]} for user in users]
        collector.collect(batch_of(rows, NAMED))


class HiddenCount(ArrowOperator):
    """Counts rows in memory only, which nobody should do."""

    def __init__(self) -> None:
        self._count = 0

    def name(self) -> str:
        return "hidden-count"

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        return StreamSchema(COUNTS)

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self._count += batch.num_rows
        collector.collect(batch_of([{"user": "all", "count": self._count}], COUNTS))


def adjacent_users() -> list[Row]:
    """Rows of which five make an epoch, and whose users come in two epochs, one after the other."""
    return [{**row, "user": f"u{(row['number'] + 2) // 5}"} for row in some_rows(ROW_COUNT)]


def a_job(operator: ArrowOperator, folder: Path) -> PipelineJob:
    def build(book: str, parallelism: Sequence[int]) -> LogicalGraph:
        p = Pipeline(JOB, parallelism=1)
        read = p.read("read", list_source(adjacent_users(), ROWS))
        done = read.key_by("user").process("op", operator, parallelism=1)
        done.rebalance(parallelism=1).write("out", BookSink(book))
        return p.graph()

    return PipelineJob(Shape("one operator", build, {}), folder)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mischief", [Mischief.RECOMPUTE, Mischief.REPEAT, Mischief.LOSE])
def test_memory_and_table_are_of_the_same_attempt(
    mischief: Mischief, seed: int, tmp_path: Path
) -> None:
    # The attempt that counts is not always the one that the worker saw last.
    job = a_job(NameUsers(), tmp_path)
    job.driver(chaos=Chaos(0.4, seed, (mischief,)), seed=seed).run()
    named = {(row["user"], row["name"]) for row in job.book.rows("out")}
    assert len(job.book.rows("out")) == ROW_COUNT
    assert len(named) == len({user for user, _ in named}) == 7


@pytest.mark.parametrize("seed", range(4))
def test_memory_never_holds_rows_of_a_run_that_did_not_count(
    seed: int, tmp_path: Path
) -> None:
    job = a_job(HiddenCount(), tmp_path)
    status = job.driver(chaos=Chaos(0.4, seed, TEARING), seed=seed).run()
    assert status.torn_epochs > 0
    counts = [row["count"] for row in job.book.rows("out")]
    # It may have been forgotten and have begun anew; it never saw more than there was.
    assert max(counts) <= ROW_COUNT


def test_memory_goes_on_while_nothing_happens(tmp_path: Path) -> None:
    job = a_job(HiddenCount(), tmp_path)
    job.driver().run()
    assert max(row["count"] for row in job.book.rows("out")) == ROW_COUNT
