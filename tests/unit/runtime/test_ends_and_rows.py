"""What has ended stays ended: no row is given to it in silence, and none is lost."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import ListSinkSpec, list_source
from penstock.core.clock import new_token
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, StateError, UserError
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import SourceFinishType, SourceOperator
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.runtime.driver.decide import JobPhase
from penstock.state.storage.memory import MemoryStore
from penstock.testing import CUT, EOF, LocalJob, ScriptedSource
from tests.builders.pipelines import NUMBERED, Pass, a_list, numbered, numbers_in


class Files(SourceOperator):
    """Reads a directory to its end: every file is a split of one row."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files

    def name(self) -> str:
        return "files"

    def output_schema(self) -> StreamSchema:
        return NUMBERED

    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        unread = [name for name in self._files if name not in known]
        return SourcePlan(tuple(SplitPlan(name) for name in unread), is_complete=True)

    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        for split in ctx.splits:
            batch = pa.RecordBatch.from_pydict({"n": [int(split.name)]})
            collector.collect(batch, split=split.name)
            ctx.end_split(split.name)


def a_branch_that_goes_on(pipeline: Pipeline) -> None:
    """Keep the job alive when another branch has ended: this one stops before its last row."""
    source = ScriptedSource([*numbered(10), EOF, *numbered(11)], NUMBERED)
    pipeline.read("alive", source).write("other", a_list())


def reading_files(out: ListSinkSpec, store: MemoryStore, *files: str) -> LocalJob:
    pipeline = Pipeline("job")
    pipeline.read("files", Files(files)).write("out", out)
    a_branch_that_goes_on(pipeline)
    return LocalJob(pipeline, store=store)


def test_a_source_that_plans_more_after_its_end_was_told_is_refused() -> None:
    store, out = MemoryStore(), a_list()
    reading_files(out, store, "1", "2").run()
    with pytest.raises(UserError, match="'files' plans to read on") as raised:
        reading_files(out, store, "1", "2", "3").run()
    assert raised.value.code is ErrorCode.JOB_FINISHED
    assert raised.value.context["operator"] == "files"


def test_nothing_is_published_of_a_source_that_plans_more_after_its_end() -> None:
    store, out = MemoryStore(), a_list()
    reading_files(out, store, "1", "2").run()
    job = reading_files(out, store, "1", "2", "3")
    before = job.checkpoints.newest()
    with pytest.raises(UserError):
        job.run()
    assert job.checkpoints.newest() == before
    assert numbers_in(out) == [1, 2]


def with_a_late_source(
    out: ListSinkSpec, store: MemoryStore, *, behind: str | None
) -> LocalJob:
    """Return a job whose first branch ends; the sink named `behind` gets one more source."""
    pipeline = Pipeline("job")
    first = pipeline.read("first", list_source(numbered(1, 2)))
    if behind == "out":
        first = first.union(pipeline.read("late", list_source(numbered(100, 101))))
    elif behind is not None:
        pipeline.read("late", list_source(numbered(100, 101))).write(behind, out)
    first.write("out", out)
    a_branch_that_goes_on(pipeline)
    return LocalJob(pipeline, store=store)


def test_rows_for_an_operator_that_was_closed_are_an_error_that_names_it() -> None:
    store, out = MemoryStore(), a_list()
    with_a_late_source(out, store, behind=None).run()
    with pytest.raises(StateError, match="'out' got rows at input 0") as raised:
        with_a_late_source(out, store, behind="out").run()
    assert raised.value.code is ErrorCode.JOB_FINISHED
    assert raised.value.context["operator"] == "out"


def test_rows_that_a_closed_operator_refused_are_read_again_for_another() -> None:
    store, out = MemoryStore(), a_list()
    with_a_late_source(out, store, behind=None).run()
    with pytest.raises(StateError):
        with_a_late_source(out, store, behind="out").run()
    with_a_late_source(out, store, behind="new").run()
    assert numbers_in(out) == [1, 2, 100, 101]


def test_an_input_that_changed_places_with_an_ended_one_is_read_to_its_end() -> None:
    store, out = MemoryStore(), a_list()

    def job(*, is_swapped: bool) -> LocalJob:
        pipeline = Pipeline("job")
        ended = pipeline.read("ended", list_source(numbered(1, 2)))
        steps = [*numbered(10), CUT, *numbered(11), EOF, *numbered(12), CUT, *numbered(13)]
        going = pipeline.read("going", ScriptedSource(steps, NUMBERED))
        one, other = (going, ended) if is_swapped else (ended, going)
        one.process("both", Pass(), other).write("out", out)
        return LocalJob(pipeline, store=store)

    assert job(is_swapped=False).run().phase is JobPhase.STOPPED
    assert job(is_swapped=True).run().phase is JobPhase.FINISHED
    assert numbers_in(out) == [1, 2, 10, 11, 12, 13]


CLOSED: list[int] = []
"""The epochs in which a source of one row was closed."""


class OneRow(SourceOperator):
    """Ends after one row, and closes what it opened."""

    def name(self) -> str:
        return "one row"

    def output_schema(self) -> StreamSchema:
        return NUMBERED

    def run(self, ctx: SourceContext, collector: SourceCollector) -> SourceFinishType:
        collector.collect(pa.RecordBatch.from_pydict({"n": [1]}))
        return SourceFinishType.FINAL

    def on_close(self, ctx: SourceContext) -> None:
        CLOSED.append(ctx.epoch)


def test_a_graceful_stop_does_not_close_a_source_that_had_ended_before() -> None:
    CLOSED.clear()
    pipeline = Pipeline("job")
    steps = [*numbered(2), CUT, *numbered(3), CUT, EOF, *numbered(4)]
    going = pipeline.read("going", ScriptedSource(steps, NUMBERED))
    pipeline.read("ended", OneRow()).union(going).write("out", a_list())
    status = LocalJob(pipeline).run()
    assert status.phase is JobPhase.STOPPED
    assert CLOSED == [2]


def test_a_second_job_of_the_same_name_on_a_fresh_store_adds_its_rows_to_a_list() -> None:
    out, name = a_list(), f"job-{new_token()}"
    for n in (1, 2):
        pipeline = Pipeline(name)
        pipeline.read("read", list_source(numbered(n))).write("out", out)
        LocalJob(pipeline, store=MemoryStore()).run()
    assert numbers_in(out) == [1, 2]
