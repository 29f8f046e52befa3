"""User code that catches everything cannot make an epoch count in which something failed."""

import polars as pl
import pyarrow as pa
import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import ListSinkSpec
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, UserCodeError
from penstock.operators.context import (
    ArrowCollector,
    OperatorContext,
    SourceCollector,
    SourceContext,
)
from penstock.operators.operator import ArrowOperator, SourceFinishType, SourceOperator
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.state.tables.specs import TableSpec, global_table
from penstock.testing import CUT, EOF, Fault, FaultMode, LocalJob, ScriptedSource
from tests.builders.pipelines import NUMBERED, a_list, numbered

SHORT = DriverSettings(budget=SourceBudget(wall_micros=10_000, overrun_micros=10_000))


class Careless(SourceOperator):
    """Reads until it is stopped, and goes on as if nothing had happened."""

    def name(self) -> str:
        return "careless"

    def output_schema(self) -> StreamSchema:
        return NUMBERED

    def run(self, ctx: SourceContext, collector: SourceCollector) -> SourceFinishType:
        rows = pa.RecordBatch.from_pydict({"n": [1]})
        try:
            while True:
                collector.collect(rows)
        except BaseException:  # noqa: BLE001 (the careless author this is about)
            ctx.end_split(ctx.splits[0].name)
        return SourceFinishType.FINAL


def hanging(out: ListSinkSpec) -> LocalJob:
    pipeline = Pipeline("job")
    pipeline.read("careless", Careless()).write("out", out)
    return LocalJob(pipeline, settings=SHORT)


def test_an_interruption_that_a_source_catches_still_fails_the_epoch() -> None:
    with pytest.raises(UserCodeError) as raised:
        hanging(a_list()).run()
    assert raised.value.code is ErrorCode.SOURCE_OVERRAN
    assert raised.value.context["operator"] == "careless"


def test_nothing_counts_of_an_epoch_whose_interruption_a_source_caught() -> None:
    out = a_list()
    job = hanging(out)
    with pytest.raises(UserCodeError):
        job.run()
    assert job.checkpoints.newest() is None
    assert out.rows() == []


class Forgiving(ArrowOperator):
    """Counts rows in a table; takes a failed read for an empty table."""

    def name(self) -> str:
        return "forgiving"

    def tables(self) -> list[TableSpec]:
        return [global_table("counts", str, int)]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        try:
            count = ctx.get_global_keyed_state("counts").get("rows") or 0
        except Exception:  # noqa: BLE001 (the careless author this is about)
            count = 0
        count += batch.num_rows
        ctx.get_global_keyed_state("counts").insert("rows", count)
        collector.collect(pa.RecordBatch.from_pydict({"n": [count]}))


def counting(out: ListSinkSpec) -> LocalJob:
    pipeline = Pipeline("job")
    steps = [*numbered(1), EOF, *numbered(2), CUT, *numbered(3)]
    source = pipeline.read("read", ScriptedSource(steps, NUMBERED))
    source.process("count", Forgiving()).write("out", out)
    return LocalJob(pipeline)


READ_FAILS = Fault(FaultMode.FAIL_BEFORE, operation="read", path="*/count/counts-*")


def test_a_table_read_that_failed_and_was_caught_does_not_change_the_result() -> None:
    out = a_list()
    job = counting(out)
    job.run()
    job.run(READ_FAILS)
    assert [row["n"] for row in out.rows()] == [1, 2, 3]


def test_an_epoch_whose_failed_table_read_was_caught_is_a_failed_one() -> None:
    job = counting(a_list())
    job.run()
    assert job.run(READ_FAILS).restarts == 1


@pytest.mark.parametrize(
    "error", [SystemExit(3), pl.exceptions.PanicException("oh")], ids=repr
)
def test_a_function_that_ends_the_program_or_panics_fails_like_one_that_raises(
    error: BaseException,
) -> None:
    kind, said = type(error), str(error)

    def give_up(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise kind(said)

    pipeline = Pipeline("job")
    source = ScriptedSource([numbered(1), EOF])
    pipeline.read("numbers", source).map_batches(give_up).write("out", a_list())
    with pytest.raises(
        UserCodeError, match=rf"'map_batches-1' raised {kind.__name__} .*{said}"
    ):
        LocalJob(pipeline).run()
