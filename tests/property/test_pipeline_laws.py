"""Laws of whole pipelines: restarts, rescales and forgetful workers change no output."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_source
from penstock.core.watermark import EventTime, Watermark
from penstock.errors import UserError
from penstock.graph.logical import Exchange, LogicalGraph
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.decide import JobPhase, StopMode
from penstock.runtime.in_process import Chaos, Mischief
from penstock.testing import stored_objects
from tests.builders.pipeline_graphs import SHAPES, Shape, counting, some_rows, windows
from tests.builders.pipeline_job import PipelineJob, small_settings
from tests.builders.pipeline_operators import ROWS, SECOND, BookSink, WindowCount
from tests.builders.profile import by_profile

SHAPE_NAMES = [shape.name for shape in SHAPES]
RUNS = by_profile(default=8, ci=14, nightly=400)
"""How many whole jobs a property runs, by profile."""
PARALLELISM = st.tuples(*[st.integers(1, 3)] * 3)


@st.composite
def restarts(draw: st.DrawFn) -> tuple[int, StopMode, tuple[int, int, int], bool]:
    """A driver's life: how many epochs, how it ends, at what parallelism, with which cache."""
    # Stop would close reminders early, which is its meaning; here nothing may change.
    mode = draw(st.sampled_from([StopMode.IMMEDIATE, StopMode.CHECKPOINT]))
    return draw(st.integers(0, 3)), mode, draw(PARALLELISM), draw(st.booleans())


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    shape=st.sampled_from(SHAPES),
    lives=st.lists(restarts(), max_size=4),
    rows=st.integers(1, 12),
    chaos=st.tuples(st.sampled_from([0, 0, 0.05]), st.integers(0, 1_000)),
)
def test_restarts_at_any_parallelism_change_no_output(
    shape: Shape,
    lives: list[tuple[int, StopMode, tuple[int, int, int], bool]],
    rows: int,
    chaos: tuple[float, int],
) -> None:
    rate, seed = chaos
    with TemporaryDirectory() as folder:
        budget = small_settings(budget=SourceBudget(rows=rows))
        job = PipelineJob(shape, Path(folder), settings=budget)
        for number, (epochs, mode, parallelism, keeps_cache) in enumerate(lives):
            job.run_epochs(
                epochs,
                stop=mode,
                parallelism=parallelism,
                cache="cache" if keeps_cache else f"cache-{number}",
                chaos=Chaos(rate, seed + number),
                seed=seed + number,
            )
        job.finish(parallelism=(2, 2, 3), seed=seed, chaos=Chaos(rate, seed))


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_a_job_grows_and_shrinks_with_windows_open(shape: Shape, tmp_path: Path) -> None:
    slow = small_settings(budget=SourceBudget(rows=2))
    job = PipelineJob(shape, tmp_path, settings=slow)
    for parallelism in ((1, 1, 1), (3, 3, 3), (2, 2, 2)):
        status = job.run_epochs(1, stop=StopMode.CHECKPOINT, parallelism=parallelism)
        assert status.phase is JobPhase.STOPPED
    job.finish(parallelism=(1, 3, 2))


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_starting_a_finished_job_changes_nothing(shape: Shape, tmp_path: Path) -> None:
    job = PipelineJob(shape, tmp_path)
    job.finish()
    before, calls = stored_objects(job.inner), list(job.book.calls)
    status = job.finish(parallelism=(3, 1, 2))
    assert status.epochs_run == 0
    assert stored_objects(job.inner) == before
    assert job.book.calls == calls


@pytest.mark.parametrize("epochs", [5, 6, 7])
def test_an_ended_source_stays_ended_while_the_job_is_moved(
    epochs: int, tmp_path: Path
) -> None:
    # The shorter of two sources ends several epochs before the other one.
    job = PipelineJob(windows(40), tmp_path)
    job.run_epochs(epochs, parallelism=(2, 3, 1))
    job.run_epochs(1, parallelism=(1, 1, 1))
    job.finish(parallelism=(3, 2, 2))


def test_stopping_gracefully_flushes_nothing_that_belongs_to_the_end(
    tmp_path: Path,
) -> None:
    job = PipelineJob(windows(), tmp_path)
    status = job.run_epochs(2, stop=StopMode.GRACEFUL)
    assert status.phase is JobPhase.STOPPED
    fired = len(job.book.rows("out"))
    assert fired < len(job.shape.expected["out"])
    job.finish()


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_every_epoch_fails_once_in_the_same_worker(shape: Shape, tmp_path: Path) -> None:
    # All tasks of the first run of every epoch are done and kept in the worker when it turns
    # out torn: a report is lost. The second run must find none of it.
    job = PipelineJob(shape, tmp_path)
    status = job.finish(chaos=EveryOtherRun())
    assert status.torn_epochs >= status.epochs_published
    job = PipelineJob(shape, tmp_path / "undisturbed")
    assert job.finish().torn_epochs == 0


class EveryOtherRun(Chaos):
    """Lets every run of an epoch but each second one lose what its last task sent."""

    def __init__(self) -> None:
        super().__init__()
        self._runs = 0

    def run_level(self, level, tasks, run):  # type: ignore[no-untyped-def]  # as in Chaos
        self._runs += level == 0
        outputs = list(super().run_level(level, tasks, run))
        return iter(outputs[:-1] if self._runs % 2 else outputs)


@pytest.mark.slow
def test_hidden_counters_survive_nothing_but_what_counted(tmp_path: Path) -> None:
    # Of the mischiefs, these leave a worker with instances whose epoch never counted.
    kinds = (Mischief.LOSE, Mischief.REPEAT, Mischief.RECOMPUTE)
    for seed in range(2):
        job = PipelineJob(counting(30), tmp_path / str(seed))
        status = job.finish(chaos=Chaos(0.2, seed, kinds), seed=seed)
        assert status.torn_epochs > 0


class Held(ArrowOperator):
    """Passes rows on, and lets the watermark of subtask 0 lag behind."""

    def name(self) -> str:
        return "held"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark | None:
        if ctx.task.subtask.index == 0 and isinstance(watermark, EventTime):
            return EventTime(watermark.micros - 30 * SECOND)
        return watermark


def test_state_by_event_time_is_refused_where_subtasks_see_different_watermarks(
    tmp_path: Path,
) -> None:
    # Only one watermark is kept for all subtasks: one that was ahead would fire twice.
    def build(book: str, parallelism: Sequence[int]) -> LogicalGraph:
        p = Pipeline("pipeline", parallelism=2)
        rows = list_source(some_rows(20), ROWS, splits=2)
        held = p.read("read", rows, event_time="at").key_by("user").process("held", Held())
        held.key_by("user").process("windows", WindowCount()).write("out", BookSink(book))
        return p.graph()

    def forwarded(book: str, parallelism: Sequence[int]) -> LogicalGraph:
        graph = build(book, parallelism)
        edges = [
            replace(edge, exchange=Exchange.FORWARD) if edge.target == "windows" else edge
            for edge in graph.edges
        ]
        return replace(graph, edges=tuple(edges))

    job = PipelineJob(Shape("forwarded", forwarded, {}), tmp_path)
    with pytest.raises(UserError, match="may see different watermarks"):
        job.driver().run()
    assert not stored_objects(job.inner)
    PipelineJob(Shape("by key", build, {}), tmp_path).driver().run()
